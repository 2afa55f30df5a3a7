"""One of the two databases of a move: its connection and what every move asks it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from holdfast.database import Database, DatabaseConnection, ManagedConnection, Row
from holdfast.database.migrate import prepare_schema
from holdfast.database.statements import Statement, StatementSource, render
from holdfast.database.url import sqlite_path

T = TypeVar("T")

TENANT_MOVE = "tenant_move"
"""The row of `meta` with the state of a move of a tenant that is under way, in both databases: one at a time."""
TENANT_MOVED = "tenant_moved:"
"""How the row of `meta` begins that says where a tenant went; the tenant follows."""

FIRST_BATCH_ROWS = 100
MAX_BATCH_ROWS = 5000
BATCH_BYTES = 4 * 1024 * 1024
"""About how much a batch contains; rows that are larger than this are copied a few at a time."""


class DatabaseSide:
    """One of the two databases."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.url = database.display_url

    @property
    def connection(self) -> ManagedConnection:
        return self.database.connection("client")

    def transaction(self, work: Callable[[DatabaseConnection], T]) -> T:
        """Run `work` in a transaction, again after a conflict or a lost connection."""

        def attempt(connection: DatabaseConnection) -> T:
            with connection.transaction():
                return work(connection)

        return self.connection.run(attempt)

    def ask(self, text: str, **values: Any) -> list[Row]:
        statement = move_statement(self.database, text)
        return self.connection.run(lambda connection: connection.execute(statement, {"now": None, **values}))

    def check_migrated(self) -> None:
        self.connection.run(lambda connection: prepare_schema(self.database, connection, migrate=False))

    def migrate(self) -> None:
        self.connection.run(lambda connection: prepare_schema(self.database, connection, migrate=True))

    def has_tables(self) -> bool:
        """Return whether there are tables, without creating a SQLite file."""
        if self.database.dialect.name == "sqlite" and not Path(sqlite_path(self.url)).exists():
            return False
        return self.connection.run(lambda connection: self.database.table_exists(connection, "meta"))

    def identity(self) -> str:
        return str(self.ask("select value from {schema}meta where name = 'identity'")[0][0])


def next_limit(limit: int, rows: Sequence[Row]) -> int:
    """Return how many rows the next batch has, so that it contains about `BATCH_BYTES`."""
    size = sum(len(value) for row in rows for value in row if isinstance(value, str))
    fits = MAX_BATCH_ROWS if not size else BATCH_BYTES * len(rows) // size
    return max(1, min(2 * limit, fits, MAX_BATCH_ROWS))


def move_statement(database: Database, text: str) -> Statement:
    return render(StatementSource("move", None, "", text), database.dialect)
