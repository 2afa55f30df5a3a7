"""Reads named statements from .sql files and renders them for a dialect.

A file holds statements like this; the comment lines below the name are its purpose:

    -- name: promote_due
    -- Scheduled runs whose time has come become ready.
    update …

`-- only: postgres` (or sqlite) below the name makes it that dialect's own version. With SQLite each row and each
statement is a chance to lose the GIL to a busy thread, so there: `-- packed` says that it answers with one row of JSON
that has all its rows, and `-- counted` that its answer is how many rows it wrote.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec

from holdfast.database.dialect import PARAMETER, Dialect

_NAME = re.compile(r"^-- name: *(\w+) *$", re.MULTILINE)
_ONLY = re.compile(r"^-- only: *(\w+)", re.MULTILINE)
_WRITES = re.compile(r"\b(insert\s+(or\s+\w+\s+)?into|update|delete\s+from|replace\s+into)\b", re.IGNORECASE)


class Statement(msgspec.Struct, frozen=True):
    """One statement, ready for a driver."""

    name: str
    sql: str
    parameters: tuple[str, ...]
    named: str = ""
    """The same with `:name` parameters, for other libraries' connections."""
    packed: bool = False
    """Whether it answers with all its rows in one, as JSON."""
    counted: bool = False
    """Whether its answer is how many rows it wrote."""
    writes: bool = True
    """Whether it may write."""

    def texts(self, values: Mapping[str, Any]) -> list[str | None]:
        """The values of the parameters in order. They go as text of unknown type, so that a statement has one plan
        whatever size its numbers have."""
        given = [values[name] for name in self.parameters]
        return [value if value is None or isinstance(value, str) else str(value) for value in given]

    def by_name(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The values of the parameters, and no others."""
        return {name: values[name] for name in self.parameters}


class StatementSource(msgspec.Struct, frozen=True):
    """One statement as it stands in its file."""

    name: str
    only: str | None
    purpose: str
    text: str
    packed: bool = False
    counted: bool = False


class Statements:
    """All statements of a package's .sql files, rendered for one dialect when first asked for."""

    def __init__(self, package: str, dialect: Dialect) -> None:
        self._dialect = dialect
        self._sources = {source.name: source for source in read_sources(package) if source.only in (None, dialect.name)}
        self._rendered: dict[tuple[str, int | None], Statement] = {}

    def get(self, name: str, limit: int | None = None) -> Statement:
        """The statement; `limit` is written into it as a literal where it says `{limit}`."""
        found = self._rendered.get((name, limit))
        if found is None:
            found = self._rendered[name, limit] = render(self._sources[name], self._dialect, limit)
        return found


def render(source: StatementSource, dialect: Dialect, limit: int | None = None) -> Statement:
    filled = dialect.fill(source.text, limit)
    parameters = tuple(dict.fromkeys(PARAMETER.findall(filled)))
    sql = dialect.number_parameters(filled, parameters)
    writes = _WRITES.search(sql) is not None
    return Statement(source.name, sql, parameters, filled, source.packed, source.counted, writes)


@cache
def read_sources(package: str) -> tuple[StatementSource, ...]:
    """Every statement in the .sql files of a package, in the order of the files."""
    return tuple(source for file in sql_files(package) for source in parse_statements(file.read_text("utf-8")))


def sql_files(package: str) -> list[Path]:
    """The .sql files of a package, by name. Not by importlib.resources, which takes longer to import than to read."""
    spec = find_spec(package)
    folders = spec.submodule_search_locations or () if spec else ()
    return sorted(file for folder in folders for file in Path(folder).glob("*.sql"))


def parse_statements(text: str) -> list[StatementSource]:
    """The statements of one file."""
    _, *parts = _NAME.split(text)
    sources = []
    for name, body in zip(parts[::2], parts[1::2], strict=True):
        lines = body.strip().splitlines()
        comments = [line for line in lines if line.startswith("--")]
        sql = "\n".join(line for line in lines if not line.lstrip().startswith("--")).strip().rstrip(";")
        only = _ONLY.search(body)
        said = {line.strip() for line in comments} & {"-- packed", "-- counted"}
        told = [line for line in comments if not _ONLY.match(line) and line.strip() not in said]
        purpose = " ".join(line.removeprefix("--").strip() for line in told)
        packed, counted = "-- packed" in said, "-- counted" in said
        sources.append(StatementSource(name, only[1] if only else None, purpose, sql, packed, counted))
    return sources
