"""Rules of the project that tests check: docstrings, exports, errors, SQL files, import cost."""

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
PUBLIC_NAMES = {
    "Holdfast", "Task", "Request", "Context", "SyncContext", "Retry", "Fatal", "RetryAfter", "Graph", "any_of",
    "all_of", "none_of", "State", "After", "Done", "Run", "RunInfo", "StepFailed", "WaitTimeout", "RunFailed",
    "RunCancelled", "ResultTimeout", "KeyConflict", "HoldfastError", "idempotency_key", "stop_requested",
}
# fmt: on
LAZY_MODULES = ("psycopg", "rich", "starlette", "jinja2", "click", "opentelemetry", "prometheus_client")


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def imports_of(path: Path) -> set[str]:
    nodes = list(ast.walk(ast.parse(path.read_text())))
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return plain | {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}


def test_every_module_has_a_docstring():
    files = [*MODULES, *BENCHMARKS, *TESTS]
    assert [relative(path) for path in files if not ast.get_docstring(ast.parse(path.read_text()))] == []


def test_no_module_imports_pickle():
    picklers = {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal"}
    assert [relative(path) for path in MODULES if imports_of(path) & picklers] == []


def test_the_docstring_of_errors_draws_the_class_tree():
    drawn = parents_in_tree(inspect.getdoc(errors) or "")
    classes = [c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, errors.HoldfastError)]
    defined = {c.__name__: c.__bases__[0].__name__ for c in classes if c is not errors.HoldfastError}
    assert drawn == defined


def parents_in_tree(drawing: str) -> dict[str, str]:
    """Return the parent of every name in a drawn tree."""
    parents: dict[str, str] = {}
    path = ["HoldfastError"]
    for line in drawing.splitlines():
        branch, dash, rest = line.partition("── ")
        if dash:
            del path[len(branch) // 4 + 1 :]  # each level is four columns wide
            name = rest.split()[0]
            parents[name] = path[-1]
            path.append(name)
    return parents


def test_the_package_exports_only_public_names():
    holdfast = importlib.import_module("holdfast")
    exported = getattr(holdfast, "__all__", [])
    assert set(exported) - PUBLIC_NAMES == set()
    assert [name for name in exported if not hasattr(holdfast, name)] == []


def test_importing_holdfast_loads_no_expensive_module():
    program = f"import sys, holdfast; print(*[name for name in {LAZY_MODULES!r} if name in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert loaded.split() == []


@pytest.mark.parametrize("path", STATEMENTS, ids=relative)
def test_every_sql_statement_has_a_name_and_a_summary(path):
    first, *statements = path.read_text().split("-- name:")
    assert all(line.startswith("--") for line in first.split("\n") if line.strip()), "SQL before the first name"
    assert statements, "no statements"
    heads = [head_of(statement) for statement in statements]
    assert len({(name, only) for name, only, _ in heads}) == len(heads), "two statements of one name for one database"
    assert [name for name, _, summary in heads if len(summary.split()) < 3] == [], "a statement without a summary"


def head_of(statement: str) -> tuple[str, str, str]:
    """Return a statement's name, its `only:` line if it is for one database, and its summary."""
    name, *lines = statement.strip().split("\n")
    comments = [line.removeprefix("--").strip() for line in takewhile(lambda line: line.startswith("--"), lines)]
    only = "".join(comment for comment in comments if comment.startswith("only:"))
    summary = [
        comment for comment in comments if not comment.startswith("only:") and comment not in ("packed", "counted")
    ]
    return name.strip(), only, " ".join(summary)
