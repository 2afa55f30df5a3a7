"""What README and docs show runs as it is printed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast import Context, SyncContext
from holdfast.model.history import KINDS

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^```python(?P<note>[^\n]*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(((?!https?:)[^)\s]+)\)")
WITH_TESTS_OF_THEIR_OWN = {"tutorial.md"}
HOLDFAST = Path(sys.executable).with_name("holdfast")


def blocks(page: Path) -> list[str]:
    """The Python of a page, but for what says `notest`."""
    return [match["code"] for match in BLOCK.finditer(page.read_text()) if "notest" not in match["note"]]


PAGES = [
    page for page in sorted(ROOT.glob("docs/**/*.md")) if blocks(page) and page.name not in WITH_TESTS_OF_THEIR_OWN
]


def clean_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT / "docs")))
def test_the_examples_of_a_page_are_one_program_that_runs_and_runs_again(page, tmp_path):
    script = tmp_path / "shop.py"
    script.write_text("\n".join(blocks(page)))
    for _ in ("first", "again"):
        outcome = subprocess.run(
            [sys.executable, script], cwd=tmp_path, env=clean_environment(), capture_output=True, text=True, timeout=60
        )
        assert (outcome.returncode, outcome.stderr) == (0, "")


def run_pytest(folder: Path, **files: str) -> subprocess.CompletedProcess[str]:
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:asyncio", "-p", "no:schemathesis"]
    return subprocess.run(
        command, cwd=folder, env=clean_environment(), capture_output=True, text=True, timeout=120, check=False
    )


def test_the_tests_of_the_page_about_testing_pass(tmp_path):
    shop, conftest, *tests, _ = blocks(ROOT / "docs" / "testing.md")
    outcome = run_pytest(tmp_path, shop=shop, conftest=conftest, test_shop="\n".join(tests))
    assert outcome.returncode == 0, outcome.stdout
    assert "4 passed" in outcome.stdout


def test_the_bug_on_the_page_about_testing_is_found_where_it_says(tmp_path):
    page = (ROOT / "docs" / "testing.md").read_text()
    bug, test = [match["code"] for match in BLOCK.finditer(page) if "notest" in match["note"]]
    (told,) = re.findall(r"^```text\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    outcome = run_pytest(tmp_path, bug=bug, test_bug=test)
    assert outcome.returncode == 1
    assert told in outcome.stdout


def start(script: str, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, script], cwd=folder, env=clean_environment(), stdout=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize(
    ("page", "script", "fatal", "before", "after"),
    [
        (
            "README.md",
            "add.py",
            "counting 3",
            ["counting 1", "counting 2", "counting 3"],
            ["counting 3", "counting 4", "counting 5", "sum: 15"],
        ),
        (
            "docs/durable.md",
            "order.py",
            "packing anchor",
            ["packing rope", "packing anchor"],
            ["packing anchor", "packing lamp", "['a box with rope', 'a box with anchor', 'a box with lamp']"],
        ),
    ],
    ids=["README.md", "durable.md"],
)
def test_the_first_example_goes_on_after_a_kill(page, script, fatal, before, after, tmp_path):
    (tmp_path / script).write_text(blocks(ROOT / page)[0])
    with start(script, tmp_path) as first:
        assert first.stdout is not None
        said = []
        while fatal not in said:
            said.append(first.stdout.readline().strip())
            assert said[-1], "it ended by itself"
        first.kill()
        said += first.stdout.read().splitlines()
    assert (said, first.returncode) == (before, -signal.SIGKILL)
    with start(script, tmp_path) as second:
        goes_on, _ = second.communicate(timeout=60)
    assert (goes_on.splitlines(), second.returncode) == (after, 0)


def test_every_kind_of_history_is_in_the_table_of_jobs():
    page = (ROOT / "docs" / "jobs.md").read_text()
    for kind, meaning in KINDS.items():
        assert f"| `{kind}` | {meaning} |" in page


def test_every_method_of_a_context_is_in_the_guide():
    page = (ROOT / "docs" / "durable.md").read_text()
    methods = {name for name in dir(Context) if not name.startswith("_")} - {"run_id", "attempt", "scheduled_for"}
    assert {name for name in methods if f"ctx.{name}" not in page} == set()
    assert {name for name in dir(SyncContext) if not name.startswith("_")} >= methods


def test_links_between_pages_lead_somewhere():
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")]:
        for target in LINK.findall(FENCED.sub("", page.read_text())):
            path, _, heading = target.partition("#")
            found = page.parent / path if path else page
            assert found.exists(), f"{page.name}: {target}"
            assert not heading or heading in headings(found), f"{page.name}: {target}"


def headings(page: Path) -> set[str]:
    """The names by which the headings of a page can be linked to."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^a-z0-9 _-]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_first_job_of_the_readme_runs_as_printed(tmp_path):
    _, app, send, _ = blocks(ROOT / "README.md")
    (tmp_path / "app.py").write_text(app)
    (tmp_path / "send.py").write_text(send)
    worker = subprocess.Popen(
        [HOLDFAST, "worker", "--app", "app:app"], cwd=tmp_path, env=clean_environment(), stderr=subprocess.DEVNULL
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


def test_the_first_graph_of_the_readme_runs_as_printed(tmp_path):
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
