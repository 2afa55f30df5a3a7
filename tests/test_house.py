"""The house's habits, checked by a machine: file length, docstrings, exports, errors, SQL files, import cost."""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys
from itertools import takewhile
from pathlib import Path

import pytest

from holdfast import errors

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "holdfast"
MODULES = sorted(PACKAGE.rglob("*.py"))
BENCHMARKS = sorted((ROOT / "benchmarks").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
STATEMENTS = sorted((PACKAGE / "store" / "sql").rglob("*.sql"))

# fmt: off
CONTRACT = {
    "Holdfast", "Task", "Request", "Context", "SyncContext", "Retry", "Fatal", "RetryAfter", "Graph", "any_of",
    "all_of", "none_of", "State", "After", "Done", "Run", "RunInfo", "StepFailed", "WaitTimeout", "RunFailed",
    "RunCancelled", "ResultTimeout", "KeyConflict", "HoldfastError", "idempotency_key", "stop_requested",
}
# fmt: on
LATE = ("psycopg", "rich", "starlette", "jinja2", "click", "opentelemetry", "prometheus_client")


def by_path(path: Path) -> str:
    return str(path.relative_to(ROOT))


def imports_of(path: Path) -> set[str]:
    nodes = list(ast.walk(ast.parse(path.read_text())))
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return plain | {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}


@pytest.mark.parametrize(
    ("paths", "most"), [(MODULES, 800), (BENCHMARKS, 800), (TESTS, 800)], ids=["src", "benchmarks", "tests"]
)
def test_no_file_is_too_long_to_be_read_at_one_go(paths, most):
    lengths = {by_path(path): len(path.read_text().splitlines()) for path in paths}
    assert {path: length for path, length in lengths.items() if length > most} == {}


def test_every_module_says_what_lives_in_it():
    silent = [
        by_path(path) for path in [*MODULES, *BENCHMARKS, *TESTS] if not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert silent == []


def test_nothing_is_pickled():
    picklers = {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal"}
    assert [by_path(path) for path in MODULES if imports_of(path) & picklers] == []


def test_every_error_is_drawn_in_the_tree_under_its_parent():
    drawn = parents_in_tree(inspect.getdoc(errors) or "")
    classes = [c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, errors.HoldfastError)]
    defined = {c.__name__: c.__bases__[0].__name__ for c in classes if c is not errors.HoldfastError}
    assert drawn == defined


def parents_in_tree(drawing: str) -> dict[str, str]:
    """Each name in the drawn tree with the name that it hangs from."""
    parents: dict[str, str] = {}
    path = ["HoldfastError"]
    for line in drawing.splitlines():
        branch, dash, rest = line.partition("── ")
        if dash:
            del path[len(branch) // 4 + 1 :]  # each level is drawn four columns wide
            name = rest.split()[0]
            parents[name] = path[-1]
            path.append(name)
    return parents


def test_the_package_exports_only_what_the_contract_names():
    holdfast = importlib.import_module("holdfast")
    exported = getattr(holdfast, "__all__", [])
    assert set(exported) - CONTRACT == set()
    assert [name for name in exported if not hasattr(holdfast, name)] == []


def test_importing_holdfast_loads_nothing_dear():
    program = f"import sys, holdfast; print(*[name for name in {LATE!r} if name in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert loaded.split() == []


@pytest.mark.parametrize("path", STATEMENTS, ids=by_path)
def test_every_statement_has_a_name_and_a_purpose(path):
    first, *statements = path.read_text().split("-- name:")
    assert all(line.startswith("--") for line in first.split("\n") if line.strip()), "SQL before the first name"
    assert statements, "no statement in it"
    heads = [head_of(statement) for statement in statements]
    assert len({(name, only) for name, only, _ in heads}) == len(heads), "two statements of one name for one database"
    assert [name for name, _, purpose in heads if len(purpose.split()) < 3] == [], "no line that says what it is for"


def head_of(statement: str) -> tuple[str, str, str]:
    """Name, the one database it is for (else nothing) and purpose: the comment lines that a statement begins with."""
    name, *lines = statement.strip().split("\n")
    comments = [line.removeprefix("--").strip() for line in takewhile(lambda line: line.startswith("--"), lines)]
    only = "".join(comment for comment in comments if comment.startswith("only:"))
    purpose = [
        comment for comment in comments if not comment.startswith("only:") and comment not in ("packed", "counted")
    ]
    return name.strip(), only, " ".join(purpose)
