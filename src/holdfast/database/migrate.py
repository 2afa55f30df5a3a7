"""Numbered migrations, applied once under a lock, whatever number of processes start together.

A migration is `migrations/NNNN_name.sql`, written once for both databases with the dialect's fragments. Migrations
only add; what they replace goes one release later. `meta` keeps `schema`, the last migration applied,
`oldest_code`, the lowest `CODE` that may still work on these tables, so that two releases can live side by side, and
`identity`, a random name by which these tables are known.
"""

from __future__ import annotations

import re
import secrets
from functools import cache

import msgspec

from holdfast.database.base import Database, DatabaseConnection
from holdfast.database.statements import Statement, StatementSource, render, sql_files
from holdfast.errors import SchemaAhead, SchemaBehind

CODE_VERSION = 4
"""The number of this code; a migration that old code can't live with says `-- oldest code: N`."""

_FILE = re.compile(r"(\d{4})_\w+\.sql")
_OLDEST = re.compile(r"^-- oldest code: *(\d+)", re.MULTILINE)


class Migration(msgspec.Struct, frozen=True):
    """One numbered file."""

    number: int
    name: str
    text: str

    @property
    def oldest_code(self) -> int | None:
        found = _OLDEST.search(self.text)
        return int(found[1]) if found else None


@cache
def migrations() -> tuple[Migration, ...]:
    """All migrations that this code knows, in order."""
    files = sql_files("holdfast.database.migrations")
    matched = [(file, match) for file in files if (match := _FILE.fullmatch(file.name))]
    return tuple(Migration(int(match[1]), file.name, file.read_text("utf-8")) for file, match in matched)


def newest_version() -> int:
    return migrations()[-1].number


def check_version(database: Database, connection: DatabaseConnection) -> int:
    """The version of the tables, 0 where there are none; refuses tables that need newer code."""
    if not database.table_exists(connection, "meta"):
        return 0
    rows = connection.execute(_statement(database, "select name, value from {schema}meta"), {})
    meta = {name: int(value) for name, value in rows if name in ("schema", "oldest_code")}
    if meta["oldest_code"] > CODE_VERSION:
        raise SchemaAhead(
            f"the tables in {database.display_url} require code version {meta['oldest_code']} or later, but this is"
            f" {CODE_VERSION}: upgrade holdfast"
        )
    return meta["schema"]


def prepare_schema(database: Database, connection: DatabaseConnection, *, migrate: bool) -> list[str]:
    """See to it that the tables fit this code; the names of the migrations that were applied now."""
    version = check_version(database, connection)
    if version >= newest_version():
        return []
    if not migrate:
        state = f"are at version {version}" if version else "don't exist yet"
        raise SchemaBehind(
            f"the tables in {database.display_url} {state}, this code needs {newest_version()}: run `holdfast migrate`"
        )
    with connection.transaction():
        database.lock_migrations(connection)
        version = check_version(database, connection)  # another process may have been first
        pending = [migration for migration in migrations() if migration.number > version]
        for migration in pending:
            connection.execute_script(database.dialect.fill(_without_comments(migration.text)))
            _write_meta(database, connection, "schema", migration.number)
            if migration.oldest_code is not None:
                _write_meta(database, connection, "oldest_code", migration.oldest_code)
        if version == 0:
            _write_meta(database, connection, "identity", secrets.token_hex(16))
    return [migration.name for migration in pending]


def _write_meta(database: Database, connection: DatabaseConnection, name: str, value: object) -> None:
    text = (
        "insert into {schema}meta (name, value) values (:name, :value)"
        " on conflict (name) do update set value = excluded.value"
    )
    connection.execute(_statement(database, text), {"name": name, "value": str(value)})


def _statement(database: Database, text: str) -> Statement:
    return render(StatementSource("migrate", None, "", text), database.dialect)


def _without_comments(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.startswith("--"))
