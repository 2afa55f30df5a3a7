"""The page about the lineage names tests that exist."""

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


def test_every_row_names_a_test():
    tables = [row for row in ROWS if not row.startswith(("| ---", "| Behavior"))]
    assert len(tables) > 60
    assert [row for row in tables if not NAMED.search(row)] == []
