"""Databases with rows in every table, and moves that are killed at their commits."""

from __future__ import annotations

from uuid import UUID

from holdfast.database import open_database
from holdfast.database.base import DatabaseConnection
from holdfast.database.migrate import prepare_schema
from holdfast.database.postgres import PostgresConnection
from holdfast.database.sqlite_connection import SqliteConnection
from holdfast.database.transfer import COPIED, TableCopy

DIRECTIONS = ["sqlite to postgres", "postgres to sqlite", "sqlite to sqlite", "postgres to postgres"]

VALUES = {
    "runs.state": "waiting", "runs.finished_at": None, "runs.kind": None, "runs.ending": None, "runs.session": None,
    "budgets.per": "run", "budgets.on_exceeded": "wait", "schedules.kind": "schedule", "schedules.poller": None,
    "schedules.poll_until": None, "messages.answer": None, "waits.kind": "event", "waits.outcome": None,
    "waits.settled_at": None, "pauses.kind": "task", "tokens.may": "read", "audit.outcome": "done",
    "queues.paused": 1, "runs.lane": 1,
    "runs.options": '{"text": "naïve\\u0000 🦀"}', "runs.turn": -(2**60),
    "runs.args": "[]", "runs.result": None, "runs.error": None, "runs.tags": None,
    "runs.plan": None, "runs.limits": None, "runs.progress": None, "runs.debounce": None, "slots.id": 7, "polls.id": 8,
}  # fmt: skip
"""What the constraints of the tables allow, and some values that are easily changed on the way."""


class Opened:
    """A database with its tables, for tests that look at rows."""

    def __init__(self, url):
        self.database = open_database(url, "holdfast")
        self.connection = self.database.connect("client", 20) if "postgres" in url else self.database._open("write")
        prepare_schema(self.database, self.connection, migrate=True)

    def copy(self, table):
        return TableCopy.of(table, self.database, self.connection)

    def rows(self):
        return {table.name: self.copy(table).read(self.connection, None, 1000) for table in COPIED}

    def close(self):
        self.connection.close()
        self.database.close()


def fill(url, rows=3):
    """Write rows into every table."""
    opened = Opened(url)
    with opened.connection.transaction():
        for table in COPIED:
            copy = opened.copy(table)
            found = [
                tuple(value(table, name, kind, number) for name, kind in copy._columns.items())
                for number in range(1, rows + 1)
            ]
            copy.write(opened.connection, found)
            if table.counter is not None:
                copy.adjust_counter(opened.connection)
    got = opened.rows()
    opened.close()
    return got


def value(table, name, kind, number):
    own = f"{table.name}.{name}"
    if own in VALUES and name not in table.key:
        return VALUES[own]
    if name in ("run", "root", "parent", "needs", "node") or (name == "id" and table.name in ("runs", "publications")):
        return str(UUID(int=number if name != "node" else number + 100))
    is_number = kind in ("bigint", "integer", "int", "smallint")
    if is_number:
        return number * 1000 if name.endswith(("_at", "_until")) else number
    return VALUES.get(own, f"{name} {number}")


def rows_of(url):
    opened = Opened(url)
    got = opened.rows()
    opened.close()
    return got


class Killed(BaseException):
    """The process that moves was killed."""


class Killer:
    """Kills a move before or after its nth commit."""

    def __init__(self, monkeypatch):
        self.left: int | None = None
        self.after = False
        for kind in (SqliteConnection, PostgresConnection):
            monkeypatch.setattr(kind, "commit", self.wrapped(kind.commit))

    def wrapped(self, real):
        def commit(connection: DatabaseConnection) -> None:
            if self.left is None:
                real(connection)
                return
            self.left -= 1
            if self.left == 0 and not self.after:
                raise Killed
            real(connection)
            if self.left == 0:
                raise Killed

        return commit
