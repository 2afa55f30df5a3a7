"""Rules of the project that tests check: docstrings, exports, errors, SQL files, import cost, supply chain."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib import metadata
from itertools import takewhile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import holdfast
from holdfast import errors

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "holdfast"
MODULES = sorted(PACKAGE.rglob("*.py"))
BENCHMARKS = sorted((ROOT / "benchmarks").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
STATEMENTS = sorted((PACKAGE / "store" / "sql").rglob("*.sql"))

INTERNAL_TYPES = {
    "AsyncExecutorProtocol", "Client", "Coro", "Declaration", "EnqueuerProtocol", "ExceptionTypes", "ExecutionSpec",
    "GraphClient", "MachineSignature", "Options", "Registry", "Rule", "ScheduleRegistry", "SignatureProtocol", "Store",
    "SyncExecutorProtocol", "WorkerComponents",
}  # fmt: skip
"""Named by attributes and constructors of public classes that only the library itself uses."""
DOCSTRING = re.compile(r'(#.*\n)*r?"""[\w`]')
"""The beginning of a module with a docstring. Parsing all files takes seconds."""
LAZY_MODULES = ("psycopg", "rich", "starlette", "jinja2", "click", "opentelemetry", "prometheus_client", "uvloop")
LAZY_MODULES += ("sqlite3", "holdfast.store.store", "holdfast.engine.worker", "holdfast.control.control")


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def imports_of(path: Path) -> set[str]:
    nodes = list(ast.walk(ast.parse(path.read_text())))
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return plain | {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}


def test_every_module_has_a_docstring():
    files = [*MODULES, *BENCHMARKS, *TESTS]
    assert [relative(path) for path in files if not DOCSTRING.match(path.read_text())] == []


def test_no_module_imports_pickle():
    picklers = {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal"}
    suspects = [path for path in MODULES if any(name in path.read_text() for name in picklers)]
    assert [relative(path) for path in suspects if imports_of(path) & picklers] == []


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


def test_the_package_exports_every_error():
    defined = {c.__name__ for _, c in inspect.getmembers(errors, inspect.isclass) if c.__module__ == errors.__name__}
    assert {"HoldfastError", "RunNotFound", "ErrorInfo"} <= defined
    assert defined - set(holdfast.__all__) == set()
    assert [name for name in defined if getattr(holdfast, name) is not getattr(errors, name)] == []


def test_the_package_exports_every_type_that_a_public_signature_names():
    named = {
        name: where for exported in holdfast.__all__ for name, where in types_named_by(getattr(holdfast, exported))
    }
    assert {"Chunk", "Gate", "HistoryEntry", "Page", "Progress", "RunState", "Worker"} <= set(named)
    assert {name: where for name, where in named.items() if name not in {*holdfast.__all__, *INTERNAL_TYPES}} == {}


def types_named_by(exported: object) -> Iterator[tuple[str, str]]:
    """Yield the types of this library that the annotations of a class or function name, and where."""
    if not inspect.isclass(exported):
        functions = [exported] if inspect.isfunction(exported) else []
    else:
        members = [value for name, value in vars(exported).items() if name == "__init__" or not name.startswith("_")]
        functions = [getattr(getattr(value, "fget", value), "__func__", value) for value in members]
        for name, annotation in vars(exported).get("__annotations__", {}).items():
            if not name.startswith("_"):
                yield from library_types(exported.__module__, annotation, f"{exported.__name__}.{name}")
    for function in filter(inspect.isfunction, functions):
        for annotation in function.__annotations__.values():
            yield from library_types(function.__module__, annotation, function.__qualname__)


@cache
def names_in_module(module: str) -> dict[str, str]:
    """Return the types that a module defines or imports, with the modules that define them."""
    tree = ast.parse(Path(sys.modules[module].__file__ or "").read_text())
    aliases = [
        node.target.id for node in tree.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    ]
    known = {node.name: module for node in tree.body if isinstance(node, ast.ClassDef)}
    known |= dict.fromkeys((name for name in aliases if name[0].isupper() and not name.isupper()), module)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module != "holdfast.model.type_variables":
            known |= {alias.asname or alias.name: node.module or "" for alias in node.names}
    return known


def library_types(module: str, annotation: object, where: str) -> Iterator[tuple[str, str]]:
    known = names_in_module(module)
    for name in re.findall(r"\w+", annotation if isinstance(annotation, str) else str(annotation)):
        if known.get(name, "").startswith("holdfast.") and not name.startswith("_"):
            yield name, where


def test_every_exported_name_exists_and_unknown_ones_are_refused():
    assert holdfast.__all__ == sorted(holdfast.__all__)
    assert [name for name in holdfast.__all__ if not hasattr(holdfast, name)] == []
    with pytest.raises(AttributeError, match="module 'holdfast' has no attribute 'Wroker'"):
        _ = holdfast.Wroker


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


# Supply chain

PINNED_BY_TAG = {"github/codeql-action/init", "github/codeql-action/analyze"}
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PIN = re.compile(r"^[A-Za-z0-9_.-]+==\S+ \\\n(?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+", re.MULTILINE)


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)
def test_workflows_pin_their_actions_and_tools_and_have_few_permissions(file):
    text = file.read_text()
    for action, version in re.findall(r"uses: ([^@\s]+)@(.+)", text):
        assert action in PINNED_BY_TAG or re.fullmatch(r"[0-9a-f]{40} # v[0-9.]+", version), f"{action}@{version}"
    assert re.search(r"^permissions:\n  contents: read$", text, re.MULTILINE)
    assert "pull_request_target" not in text
    for command in re.findall(r"pipx run (.+)", text):
        assert re.match(r"--spec [a-z-]+==[0-9.]+ ", command), command


def test_every_pinned_version_has_hashes_and_no_address_of_an_index():
    text = (ROOT / "constraints.txt").read_text()
    assert len(PIN.findall(text)) == text.count("==") > 100
    for name in ("constraints.txt", "pyproject.toml", "dev"):
        assert not re.search(r"index-url|find-links|pypi\.org|/simple", (ROOT / name).read_text()), name


def installed_with(*requirements: str) -> set[str]:
    """Return the names of the installed packages that these requirements need, directly or indirectly."""
    found, left = set[tuple[str, frozenset[str]]](), [Requirement(each) for each in requirements]
    while left:
        each = left.pop()
        key = (canonicalize_name(each.name), frozenset(each.extras))
        if key in found or not list(metadata.distributions(name=each.name)):
            continue
        found.add(key)
        for line in metadata.requires(each.name) or ():
            needed = Requirement(line)
            if needed.marker is None or any(needed.marker.evaluate({"extra": name}) for name in {"", *each.extras}):
                left.append(needed)
    return {name for name, _ in found}


def test_every_package_that_tests_install_is_pinned():
    """pip refuses a package without a hash, so that `./dev test` would fail where uv can't be downloaded."""
    pinned = {canonicalize_name(pin.split("==")[0]) for pin in PIN.findall((ROOT / "constraints.txt").read_text())}
    needed = installed_with("holdfast[dev,postgres]") - {"holdfast"}
    assert len(needed) > 100
    assert needed - pinned == set()


def test_dependencies_of_users_have_an_upper_bound_and_the_build_is_pinned():
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = pyproject["project"]["optional-dependencies"]
    required = [*pyproject["project"]["dependencies"]]
    for name in ("postgres", "dashboard", "otel", "prometheus"):
        required += extras[name]
    assert [each for each in required if "<" not in each] == ["tzdata"]  # its version is a date
    (build,) = pyproject["build-system"]["requires"]
    assert build in extras["dev"]
    assert f"{build} \\" in (ROOT / "constraints.txt").read_text()
