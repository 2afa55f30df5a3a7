"""What type checkers say about users' code: the code in the README and the docs, the examples and `tests/typing`.

All of it is checked together, once by mypy and once by pyright, both strict. basedpyright is pyright in a wheel: the
original downloads itself and Node.js when it starts.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
CACHE = ROOT / ".cache" / "mypy-users"
BLOCK = re.compile(r"^```python(?P<note>[^\n]*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
TITLE = re.compile(r'title="(\w+)\.py"')
MODULES = {
    "README.md": ["orders", "app", "send", "release"],
    "docs/quickstart.md": ["orders", "tasks", "send"],
    "docs/testing.md": ["shop", "conftest", *["test_shop"] * 5, "conftest"],
}
"""The modules that the blocks of a page belong to, if they aren't one program. Blocks with a title name their own."""
ASSUMED = {
    "README.md": {
        "shop": """
def charge(order: int) -> str:
    return "paid"

def ship(order: int, payment: str) -> str:
    return "shipped"
"""
    }
}
"""Modules that a page imports without showing them."""


def pages() -> Iterator[tuple[str, dict[str, str]]]:
    """Yield each page with its modules. Blocks that are marked `notest` aren't complete programs."""
    for path in [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]:
        page = path.relative_to(ROOT).as_posix()
        blocks = [match for match in BLOCK.finditer(path.read_text()) if "notest" not in match["note"]]
        names = MODULES.get(page) or [_title(match["note"]) for match in blocks]
        modules = dict(ASSUMED.get(page, {}))
        for name, match in zip(names, blocks, strict=True):
            modules[name] = modules.get(name, "") + "\n" + match["code"]
        if blocks:
            yield page, modules


INTERNAL = [
    "beartype", "cryptography", "dns", "fastmcp", "griffe", "IPython", "joserfc", "key_value", "langsmith", "logfire",
    "markdown_it", "openai", "opentelemetry", "prompt_toolkit", "rich", "tornado", "websockets", "werkzeug",
]  # fmt: skip
"""Libraries that only other libraries import. mypy doesn't read them, which takes a third off its time."""


def _title(note: str) -> str:
    found = TITLE.search(note)
    return "program" if found is None else found[1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All code to check, with a package per page."""
    folder = tmp_path_factory.mktemp("typing")
    for page, modules in pages():
        package = folder / re.sub(r"\W", "_", page.removesuffix(".md"))
        package.mkdir()
        (package / "__init__.py").touch()
        local = re.compile(rf"^(?:from ({'|'.join(modules)}) import|import ({'|'.join(modules)})$)", re.MULTILINE)
        for name, code in modules.items():
            (package / f"{name}.py").write_text(_without_unknown_types(local.sub(_relative_import, code)))
    for source in ("examples", "tests/typing"):
        for path in (ROOT / source).glob("*.py"):
            (folder / path.name).write_text(_without_unknown_types(path.read_text()))
    return folder


def _without_unknown_types(code: str) -> str:
    """Accept the partly unknown types of a framework that a page or an example uses."""
    rules = "reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false"
    return f"# pyright: {rules}\n{code}" if "from langgraph" in code else code


def _relative_import(match: re.Match[str]) -> str:
    return f"from .{match[1]} import" if match[1] else f"from . import {match[2]}"


def check(folder: Path, *command: str | Path) -> None:
    """Run a checker, which keeps what it knows about Holdfast and other libraries for the next time."""
    environment = {**os.environ, "MYPYPATH": str(ROOT / "src")}
    answer = subprocess.run(
        [sys.executable, "-m", *command], capture_output=True, text=True, cwd=folder, env=environment, timeout=300
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr


def test_the_folder_contains_every_page_and_example(folder):
    assert {"README", "docs_graphs", "docs_integrations_sqlalchemy", "checkout.py", "examples.py"} <= {
        path.name for path in folder.iterdir()
    }
    assert len(list(folder.rglob("*.py"))) > 60


def test_a_strict_mypy_accepts_the_code_in_the_docs_and_examples(folder, tmp_path):
    """With no settings but its own strict ones, and none of ours."""
    internal = ",".join(f"{name}.*" for name in INTERNAL)
    (tmp_path / "mypy.ini").write_text(f"[mypy]\nstrict = true\n[mypy-{internal}]\nfollow_imports = skip\n")
    check(folder, "mypy", "--config-file", tmp_path / "mypy.ini", "--cache-dir", CACHE, ".")


def test_a_strict_pyright_accepts_the_code_in_the_docs_and_examples(folder, tmp_path):
    settings = {
        "include": [str(folder)],
        "extraPaths": [str(ROOT / "src")],
        "typeCheckingMode": "strict",
        "reportDeprecated": False,  # asynccontextmanager with AsyncIterator, which FastAPI's docs use
        "pythonVersion": "3.11",
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    check(folder, "basedpyright", "--project", tmp_path, "--pythonpath", sys.executable, "--level", "error")
