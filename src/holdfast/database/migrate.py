"""Apply numbered migrations, each once, under a lock.

A migration is `migrations/NNNN_name.sql`, written once for both databases with the dialect's fragments; `-- only:
postgres` marks one for what SQLite doesn't have. Migrations only add; what they replace is removed one release later.
The table `meta` holds `schema` (the last applied migration), `oldest_code` (the lowest `CODE_VERSION` that may use
these tables, so that two releases can run side by side) and `identity` (a random id of these tables).
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
"""Version of this code. A migration that older code can't work with says `-- oldest code: N`."""

_FILE = re.compile(r"(\d{4})_\w+\.sql")
_TABLE = re.compile(r"^create table \{schema\}(\w+)", re.MULTILINE)
_ONLY = re.compile(r"^-- only: *(\w+)", re.MULTILINE)
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

    def applies_to(self, dialect: str) -> bool:
        """Return whether the file has statements for this database."""
        found = _ONLY.search(self.text)
        return found is None or found[1] == dialect


@cache
def migrations() -> tuple[Migration, ...]:
    """Return all migrations of this code, in order."""
    files = sql_files("holdfast.database.migrations")
    matched = [(file, match) for file in files if (match := _FILE.fullmatch(file.name))]
    return tuple(Migration(int(match[1]), file.name, file.read_text("utf-8")) for file, match in matched)


def table_names() -> list[str]:
    """Return the names of all tables, without the schema."""
    return [name for migration in migrations() for name in _TABLE.findall(migration.text)]


def newest_version() -> int:
    return migrations()[-1].number


def check_version(database: Database, connection: DatabaseConnection) -> int:
    """Return the version of the tables, 0 if there are none. Raise SchemaAhead if they require newer code."""
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
    """Apply pending migrations and return their names; without `migrate`, raise SchemaBehind if there are any."""
    version = check_version(database, connection)
    if version >= newest_version():
        return []
    if not migrate:
        state = f"are at version {version}" if version else "don't exist yet"
        raise SchemaBehind(
            f"the tables in {database.display_url} {state}, but this code needs version {newest_version()}:"
            " run `holdfast migrate`"
        )
    with connection.transaction():
        database.lock_migrations(connection)
        version = check_version(database, connection)  # another process may have migrated meanwhile

        pending = [migration for migration in migrations() if migration.number > version]
        for migration in pending:
            if migration.applies_to(database.dialect.name):
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
