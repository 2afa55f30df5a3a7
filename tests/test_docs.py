"""The code in the README and the docs runs as printed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from holdfast import Context, SyncContext
from holdfast.model.history import KINDS
from tests.support.processes import run_python

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^```python(?P<note>[^\n]*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
YAML = re.compile(r"^```yaml\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(((?!https?:)[^)\s]+)\)")
PAGES_WITH_OWN_TESTS = {"quickstart.md", "tutorial.md"}
HOLDFAST = Path(sys.executable).with_name("holdfast")


def blocks(page: Path) -> list[str]:
    """Return the Python blocks of a page, except those marked `notest`."""
    return [match["code"] for match in BLOCK.finditer(page.read_text()) if "notest" not in match["note"]]


PAGES = [page for page in sorted(ROOT.glob("docs/**/*.md")) if blocks(page) and page.name not in PAGES_WITH_OWN_TESTS]


def clean_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT / "docs")))
def test_the_examples_of_a_page_form_a_program_that_runs_twice(page, tmp_path):
    script = tmp_path / "shop.py"
    script.write_text("\n".join(blocks(page)))
    for _ in ("first", "again"):
        outcome = run_python(script, cwd=tmp_path, env=clean_environment())
        assert (outcome.returncode, outcome.stderr) == (0, "")


def run_pytest(folder: Path, **files: str) -> subprocess.CompletedProcess[str]:
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:asyncio", "-p", "no:schemathesis"]
    return subprocess.run(
        command, cwd=folder, env=clean_environment(), capture_output=True, text=True, timeout=120, check=False
    )


def test_the_tests_on_the_testing_page_pass(tmp_path):
    shop, conftest, *tests, _ = blocks(ROOT / "docs" / "testing.md")
    outcome = run_pytest(tmp_path, shop=shop, conftest=conftest, test_shop="\n".join(tests))
    assert outcome.returncode == 0, outcome.stdout
    assert "6 passed" in outcome.stdout


def test_the_bug_on_the_testing_page_is_reported_as_printed(tmp_path):
    page = (ROOT / "docs" / "testing.md").read_text()
    bug, test = [match["code"] for match in BLOCK.finditer(page) if "notest" in match["note"]]
    (report,) = re.findall(r"^```text\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    outcome = run_pytest(tmp_path, bug=bug, test_bug=test)
    assert outcome.returncode == 1
    assert report in outcome.stdout


def start(script: str, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, script], cwd=folder, env=clean_environment(), stdout=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize(
    ("page", "script", "fatal", "before", "after"),
    [
        (
            "docs/quickstart.md",
            "orders.py",
            "shipping order 42",
            ["charging order 42", "shipping order 42"],
            ["shipping order 42", "order 42 shipped, paid with payment-42"],
        ),
        (
            "docs/durable.md",
            "order.py",
            "packing anchor",
            ["packing rope", "packing anchor"],
            ["packing anchor", "packing lamp", "['a box with rope', 'a box with anchor', 'a box with lamp']"],
        ),
    ],
    ids=["quickstart.md", "durable.md"],
)
def test_the_first_example_resumes_after_a_kill(page, script, fatal, before, after, tmp_path):
    (tmp_path / script).write_text(blocks(ROOT / page)[0])
    with start(script, tmp_path) as first:
        assert first.stdout is not None
        printed = []
        while fatal not in printed:
            printed.append(first.stdout.readline().strip())
            assert printed[-1], "the program ended before it was killed"
        first.kill()
        printed += first.stdout.read().splitlines()
    assert (printed, first.returncode) == (before, -signal.SIGKILL)
    with start(script, tmp_path) as second:
        resumed, _ = second.communicate(timeout=60)
    assert (resumed.splitlines(), second.returncode) == (after, 0)


def test_the_project_of_the_layout_page_works_as_printed(tmp_path):
    page = (ROOT / "docs" / "project-layout.md").read_text()
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").touch()
    for match in BLOCK.finditer(page):
        with (tmp_path / match["note"].split()[-1]).open("a") as file:
            file.write(match["code"])

    def call(*words: object, code: int = 0) -> str:
        outcome = subprocess.run(
            words, cwd=tmp_path, env=clean_environment() | {"HOLDFAST_APP": "shop.durable:app"}, capture_output=True,
            text=True, timeout=60,
        )  # fmt: skip
        assert outcome.returncode == code, outcome.stderr
        return outcome.stdout + outcome.stderr

    listed = call(HOLDFAST, "tasks")
    (printed,) = re.findall(r"\$ holdfast tasks\n(.*?)\$", page, re.DOTALL)
    assert [line for line in listed.splitlines() if "remind" not in line] == printed.splitlines()
    (command,) = re.findall(r"\$ python -c '(.*)'", page)
    run = call(sys.executable, "-c", command).strip()
    reminder = call(HOLDFAST, "enqueue", "--remote", "shop.mail.remind", "bob").strip()
    call(sys.executable, "-c", "from shop.durable import app; app.worker().drain()")
    assert "payment of 4200 by ada" in call(HOLDFAST, "show", run)
    assert "a reminder for bob" in call(HOLDFAST, "show", reminder)
    (tmp_path / "shop" / "mail.py").write_text("import nothing_like_this")
    assert "shop.mail" in call(HOLDFAST, "worker", code=2)


def test_yaml_on_the_pages_is_valid():
    for name in ("alerting.md", "docker.md", "health.md"):
        documents = [yaml.safe_load(text) for text in YAML.findall((ROOT / "docs" / name).read_text())]
        assert documents
        assert all(documents), name


def test_the_jobs_page_lists_every_history_kind():
    page = (ROOT / "docs" / "jobs.md").read_text()
    for kind, meaning in KINDS.items():
        assert f"| `{kind}` | {meaning} |" in page


def test_the_durable_guide_mentions_every_context_method():
    page = (ROOT / "docs" / "durable.md").read_text()
    methods = {name for name in dir(Context) if not name.startswith("_")} - {"run_id", "attempt", "scheduled_for"}
    assert {name for name in methods if f"ctx.{name}" not in page} == set()
    assert {name for name in dir(SyncContext) if not name.startswith("_")} >= methods


def test_links_point_to_existing_pages_and_headings():
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]:
        for target in LINK.findall(FENCED.sub("", page.read_text())):
            path, _, heading = target.partition("#")
            found = page.parent / path if path else page
            assert found.exists(), f"{page.name}: {target}"
            assert not heading or heading in headings(found), f"{page.name}: {target}"


def headings(page: Path) -> set[str]:
    """Return the anchors of a page's headings."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^a-z0-9 _-]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_first_example_in_the_readme_runs_as_printed(tmp_path):
    (tmp_path / "shop.py").write_text("def charge(order): return 'paid'\ndef ship(order, payment): return 'shipped'\n")
    check = 'app.worker().drain()\nassert run.info().state == "waiting"\n'
    (tmp_path / "orders.py").write_text(blocks(ROOT / "README.md")[0] + check)
    outcome = run_python("orders.py", cwd=tmp_path, env=clean_environment())
    assert (outcome.returncode, outcome.stderr) == (0, "")


@pytest.mark.parametrize(("page", "module"), [("README.md", "app"), ("docs/quickstart.md", "tasks")])
def test_the_first_job_runs_as_printed(page, module, tmp_path):
    tasks, send = blocks(ROOT / page)[1:3]
    assert f"holdfast worker --app {module}:app" in (ROOT / page).read_text()
    (tmp_path / f"{module}.py").write_text(tasks)
    (tmp_path / "send.py").write_text(send)
    worker = subprocess.Popen(
        [HOLDFAST, "worker", "--app", f"{module}:app"], cwd=tmp_path, env=clean_environment(), stderr=subprocess.DEVNULL
    )
    try:
        outcome = subprocess.run(
            [sys.executable, "send.py"],
            cwd=tmp_path,
            env=clean_environment(),
            capture_output=True,
            text=True,
            timeout=60,
        )
    finally:
        worker.send_signal(signal.SIGTERM)
        code = worker.wait(60)
    assert (outcome.returncode, outcome.stderr) == (0, "")
    assert outcome.stdout.splitlines()[-1] == "Hello, Ada!"
    assert code == 0


def test_the_first_graph_in_the_readme_runs_as_printed(tmp_path):
    (tmp_path / "release.py").write_text(blocks(ROOT / "README.md")[3])
    outcome = subprocess.run(
        [sys.executable, "release.py"],
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (outcome.returncode, outcome.stderr) == (0, "")
    assert outcome.stdout == "published client.tar.gz, server.tar.gz\n"
