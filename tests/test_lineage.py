"""The pages about the lineage, the guarantees and the verification name tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
NAMED = re.compile(r"`([a-z_]+/test_[a-z_]+\.py)(?:::(test_\w+))?`")
ROWS = [line for line in (ROOT / "docs" / "lineage.md").read_text().splitlines() if line.startswith("| ")]

pytestmark = pytest.mark.no_tables


def test_every_named_test_exists():
    missing = []
    for row in ROWS:
        for path, name in NAMED.findall(row):
            file = ROOT / "tests" / path
            if not file.exists() or (name and not re.search(rf"def {name}\(", file.read_text())):
                missing.append(f"{path}::{name}")
    assert missing == []


@pytest.mark.parametrize("page", ["promises", "proof"])
def test_every_named_file_exists(page):
    text = (ROOT / "docs" / f"{page}.md").read_text()
    names = re.findall(r"`(?:tests/[a-z_/]*)?(test_[a-z_]+\.py)", text)
    known = {path.name for path in (ROOT / "tests").rglob("test_*.py")}
    assert names
    assert [name for name in names if name not in known] == []


def test_every_row_names_a_test():
    tables = [row for row in ROWS if not row.startswith(("| ---", "| Behavior"))]
    assert len(tables) > 60
    assert [row for row in tables if not NAMED.search(row)] == []
