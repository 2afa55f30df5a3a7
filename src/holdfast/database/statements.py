"""Read named statements from .sql files and render them for a dialect.

A file contains statements in this form; the comment below the name describes the statement:

    -- name: promote_due
    -- Make scheduled runs ready whose time has come.
    update …

Directives below the name: `-- only: postgres` (or sqlite) restricts a statement to one dialect. `-- packed` means that
it returns all its rows as one JSON array, `-- counted` that it returns the number of changed rows. Both exist for
SQLite, where a thread can lose the GIL at each row that it fetches.

SQL that several statements of a file share is written once, after `-- part: NAME`; `{part(NAME)}` includes it.
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

_NAME = re.compile(r"^-- (name|part): *(\w+) *$", re.MULTILINE)
_PART = re.compile(r"\{part\((\w+)\)\}")
_ONLY = re.compile(r"^-- only: *(\w+)", re.MULTILINE)
_WRITES = re.compile(r"\b(insert\s+(or\s+\w+\s+)?into|update|delete\s+from|replace\s+into)\b", re.IGNORECASE)


class Statement(msgspec.Struct, frozen=True):
    """A statement in the driver's syntax."""

    name: str
    sql: str
    parameters: tuple[str, ...]
    named: str = ""
    """The SQL with `:name` parameters, for connections of other libraries."""
    packed: bool = False
    counted: bool = False
    writes: bool = True

    def texts(self, values: Mapping[str, Any]) -> list[str | None]:
        """Return the parameters in order, as text of unknown type: one plan then serves numbers of any size."""
        given = [values[name] for name in self.parameters]
        return [value if value is None or isinstance(value, str) else str(value) for value in given]

    def by_name(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of this statement's parameters only."""
        return {name: values[name] for name in self.parameters}


class StatementSource(msgspec.Struct, frozen=True):
    """A statement as written in its file."""

    name: str
    only: str | None
    purpose: str
    text: str
    packed: bool = False
    counted: bool = False


class Statements:
    """The statements of a package's .sql files, rendered for one dialect on first use."""

    def __init__(self, package: str, dialect: Dialect) -> None:
        self._dialect = dialect
        self._sources = {source.name: source for source in read_sources(package) if source.only in (None, dialect.name)}
        self._rendered: dict[tuple[str, int | None], Statement] = {}

    def get(self, name: str, limit: int | None = None) -> Statement:
        """Return the statement, with `limit` as a literal in place of `{limit}`."""
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
    """Return the statements in the .sql files of a package, in the order of the files."""
    return tuple(source for file in sql_files(package) for source in parse_statements(file.read_text("utf-8")))


def sql_files(package: str) -> list[Path]:
    """Return the .sql files of a package, sorted. importlib.resources would take longer to import than this takes."""
    spec = find_spec(package)
    folders = spec.submodule_search_locations or () if spec else ()
    return sorted(file for folder in folders for file in Path(folder).glob("*.sql"))


def parse_statements(text: str) -> list[StatementSource]:
    """Parse the statements of one file."""
    _, *found = _NAME.split(text)
    sources, parts = [], dict[str, str]()
    for kind, name, body in zip(found[::3], found[1::3], found[2::3], strict=True):
        lines = body.strip().splitlines()
        comments = [line for line in lines if line.startswith("--")]
        sql = "\n".join(line for line in lines if not line.lstrip().startswith("--")).strip().rstrip(";")
        sql = _PART.sub(lambda part: parts[part[1]], sql)
        if kind == "part":
            parts[name] = sql
            continue
        only = _ONLY.search(body)
        directives = {line.strip() for line in comments} & {"-- packed", "-- counted"}
        prose = [line for line in comments if not _ONLY.match(line) and line.strip() not in directives]
        purpose = " ".join(line.removeprefix("--").strip() for line in prose)
        packed, counted = "-- packed" in directives, "-- counted" in directives
        sources.append(StatementSource(name, only[1] if only else None, purpose, sql, packed, counted))
    return sources
