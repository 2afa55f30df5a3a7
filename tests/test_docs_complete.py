"""Every setting, variable, error and public name is documented, and the navigation of the site names what is there."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import holdfast
from holdfast import Context, Graph, Holdfast, Retry, errors
from holdfast.model.history import KINDS
from holdfast.task.options import _CHECKS as CALL_OPTIONS
from holdfast.task.options import MachineSettings, TaskSettings
from holdfast.task.schedule_registry import ScheduleSettings
from holdfast.web import dashboard

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
SOURCES = sorted((ROOT / "src" / "holdfast").rglob("*.py"))
DIRECTIVE = re.compile(r"^::: (holdfast[\w.]*)$", re.MULTILINE)
VARIABLE = re.compile(r'"(HOLDFAST_[A-Z_]+|NO_COLOR|FORCE_COLOR)"')
BETWEEN_PROCESSES = {"HOLDFAST_DEMO_FOLDER", "HOLDFAST_DEMO_SCHEMA", "HOLDFAST_COMPLETE", "HOLDFAST_DJANGO_TEST"}
"""What our own processes tell each other; nobody sets them by hand."""


def section(page: str, heading: str) -> str:
    """What stands below the one heading that has these words."""
    parts = [part for part in ("\n" + (DOCS / page).read_text()).split("\n## ")[1:] if heading in part.split("\n")[0]]
    assert len(parts) == 1, f"{page} needs one heading with {heading}"
    return parts[0]


def parameters(function: Any) -> set[str]:
    given = inspect.signature(function).parameters.values()
    return {each.name for each in given if each.kind is not each.POSITIONAL_ONLY} - {"self"}


@pytest.mark.parametrize(
    ("heading", "settings"),
    [
        ("`Holdfast(…)`", parameters(Holdfast)),
        ("`@app.task(…)`", {"name", "defaults", *TaskSettings.__annotations__}),
        ("`task.options(…)`", set(CALL_OPTIONS)),
        ("`Retry(…)`", parameters(Retry)),
        ("`ctx.step(…)`", parameters(Context.options)),
        ("`app.worker(…)`", parameters(Holdfast.worker)),
    ],
    ids=["app", "task", "call", "retry", "step", "worker"],
)
def test_a_table_of_settings_has_all_there_are_and_no_others(heading, settings):
    rows = [line for line in section("settings.md", heading).splitlines() if line.startswith("| `")]
    assert {name for row in rows for name in names_in(row.split("|")[1])} == settings


def names_in(text: str) -> set[str]:
    return set(re.findall(r"`(\w+)`", text))


def test_the_settings_of_a_machine_are_all_told_below_those_of_a_task():
    (told,) = [
        part for part in section("settings.md", "`@app.task(…)`").split("\n\n") if part.startswith("`app.machine")
    ]
    assert names_in(told) == {"history", *MachineSettings.__annotations__}


def _schedule(name: str, task: object, *, args: tuple[object, ...] = (), **settings: object) -> None: ...


_schedule.__signature__ = inspect.signature(_schedule).replace(  # type: ignore[attr-defined]
    parameters=[
        inspect.Parameter(each, inspect.Parameter.KEYWORD_ONLY)
        for each in ("name", "task", "args", *ScheduleSettings.__annotations__)
    ]
)


@pytest.mark.parametrize(
    ("call", "function", "before"),
    [
        ("app.limit(name, …)", Holdfast.limit, {"name"}),
        ("app.queue(name, …)", Holdfast.queue, {"name"}),
        ("app.schedule(name, task, …)", _schedule, {"name", "task"}),
        ("@app.trigger(name, …)", Holdfast.trigger, {"name"}),
        ("Graph(name, …)", Graph, {"name"}),
        ("g.add(task, …)", Graph.add, {"args", "kwargs"}),
        ("g.gate(name, …)", Graph.gate, {"name"}),
        ("dashboard(app, …)", dashboard, {"app"}),
    ],
    ids=["limit", "queue", "schedule", "trigger", "graph", "add", "gate", "dashboard"],
)
def test_the_lines_of_other_calls_have_all_their_settings_and_no_others(call, function, before):
    (line,) = [line for line in section("settings.md", "Other calls").splitlines() if line.startswith(f"| `{call}` |")]
    assert names_in(line.split("|")[2]) == parameters(function) - before


def test_the_table_of_history_kinds_has_all_there_are():
    rows = [line for line in section("jobs.md", "History").splitlines() if line.startswith("| `")]
    assert {name for row in rows for name in names_in(row.split("|")[1])} == set(KINDS)


def test_every_environment_variable_is_on_the_page_of_settings():
    used = {name for path in SOURCES for name in VARIABLE.findall(path.read_text())}
    assert {"HOLDFAST_URL", "HOLDFAST_APP", "HOLDFAST_TOKEN", "NO_COLOR"} <= used
    told = section("settings.md", "Environment variables")
    assert {name for name in used - BETWEEN_PROCESSES if f"`{name}`" not in told} == set()


def test_every_error_has_a_line_in_the_table_of_errors():
    page = (DOCS / "reference" / "errors.md").read_text()
    classes = [each for _, each in inspect.getmembers(errors, inspect.isclass) if each.__module__ == errors.__name__]
    names = {each.__name__ for each in classes if issubclass(each, errors.HoldfastError)}
    assert {name for name in names if f"\n| `{name}` | " not in page} == set()
    assert set(re.findall(r"^\| `(\w+)` \| ", page.partition("## Error codes")[0], re.MULTILINE)) == names


def test_every_code_of_an_error_is_explained():
    made = {code for path in SOURCES if "ErrorInfo(" in path.read_text() for code in codes_in(path)}
    named = set(re.findall(r"`([a-z_]+)`", inspect.getdoc(errors.ErrorInfo) or "")) - {"code"}
    assert {"error", "timeout", "crashed", "undo"} <= made
    told = section("reference/errors.md", "Error codes")
    assert {code for code in made | named if f"`{code}`" not in told} == set()


def codes_in(path: Path) -> set[str]:
    """The codes that are written out where a source makes an `ErrorInfo`."""
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call) and node.args]
    made = [call.args[0] for call in calls if isinstance(call.func, ast.Name) and call.func.id == "ErrorInfo"]
    return {code.value for code in made if isinstance(code, ast.Constant)}


def test_every_public_name_is_in_the_reference():
    pages = [page.read_text() for page in (DOCS / "reference").glob("*.md")]
    shown = {name for page in pages for name in DIRECTIVE.findall(page)}
    of_errors = {name for name in holdfast.__all__ if hasattr(errors, name)}
    assert {name for name in set(holdfast.__all__) - of_errors if f"holdfast.{name}" not in shown} == set()
    assert "holdfast.errors" in shown


def test_what_the_reference_shows_exists():
    for page in (DOCS / "reference").glob("*.md"):
        for name in DIRECTIVE.findall(page.read_text()):
            assert resolve(name) is not None, f"{page.name}: {name}"


def resolve(name: str) -> Any:
    """The module, class or function of that dotted name."""
    module, _, last = name.rpartition(".")
    found = __import__(module or name, fromlist=["x"])
    return getattr(found, last, None) or __import__(name, fromlist=["x"])


def test_the_navigation_names_pages_that_are_there_and_each_once():
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    pages = list(pages_of(nav))
    assert [page for page in pages if not (DOCS / page).is_file()] == []
    assert len(pages) == len(set(pages))


def pages_of(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    return [page for part in (nav.values() if isinstance(nav, dict) else nav) for page in pages_of(part)]


@pytest.mark.slow
def test_the_site_is_built_without_a_warning_and_needs_no_other_site(tmp_path):
    site = tmp_path / "site"
    outcome = subprocess.run(
        [sys.executable, ROOT / "dev", "docs", "--site-dir", site], capture_output=True, text=True, timeout=600
    )
    assert outcome.returncode == 0, outcome.stderr
    pages = {page.relative_to(site).as_posix(): page.read_text() for page in site.rglob("*.html")}
    for source in DOCS.rglob("*.md"):
        place = source.relative_to(DOCS).with_suffix(".html")
        assert (place.with_name("index.html") if place.stem == "README" else place).as_posix() in pages
    fetched = re.compile(r'<(?:script|img|link rel="(?:stylesheet|preconnect)")[^>]*(?:src|href)="(https?:[^"]*)"')
    assert {address for page in pages.values() for address in fetched.findall(page)} == set()
    assert "Create a run with these arguments." in pages["reference/tasks.html"]
