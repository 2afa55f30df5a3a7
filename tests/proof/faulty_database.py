"""A database in memory that several processes seem to share, each by connections of its own that may fail.

Whoever calls it may be stopped before a transaction begins and after it has committed: to let others go first, for as
long as a fault wants, or for ever. A connection may be lost at both places; after the commit that means a lost answer.
Inside a transaction nobody is stopped: SQLite has one writer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import apsw
from greenlet import getcurrent, greenlet

from holdfast.database.base import IDLE_TIMEOUT_S, ManagedConnection
from holdfast.database.sqlite import SqliteDatabase, SqliteTransaction
from holdfast.database.sqlite_connection import SqliteConnection, enable_wal
from holdfast.database.statements import Statement


class ProcessHooks(Protocol):
    """The process that a connection belongs to. Both calls may stop it for a while, or raise."""

    name: str

    def before_transaction(self, what: str) -> None:
        """Before a transaction."""

    def before_reply(self, what: str) -> None:
        """After its commit."""

    def committed(self, hooks: ProcessHooks) -> None:
        """It has committed: rules may be checked."""

    def rolled_back(self) -> None: ...

    def pause(self, seconds: float | None) -> None:
        """Let others go on for so long, or until somebody says `go_on`."""

    def resume(self, stopped: greenlet) -> None: ...


class SharedDatabase:
    """The one real connection."""

    def __init__(self) -> None:
        self.apsw = apsw.Connection(":memory:", statementcachesize=1000)
        enable_wal(self.apsw)

    def clear(self, keep: tuple[str, ...]) -> None:
        """Empty all tables but these; numbers begin anew."""
        tables = [name for (name,) in self.apsw.execute("select name from sqlite_schema where type = 'table'")]
        with self.apsw:
            for table in tables:
                if table not in keep and not table.startswith("sqlite_"):
                    self.apsw.execute(f"delete from {table}")
            for table in tables:
                if table not in keep:
                    self.apsw.execute("delete from sqlite_sequence where name = ?", (table,))


class FaultyConnection(SqliteConnection):
    """A connection of one process to the shared database."""

    def __init__(self, shared: SharedDatabase, hooks: ProcessHooks, now: Callable[[], int]) -> None:
        self._now = now  # a statement's time is that of the database when it is carried out, not of the asking
        self._what = "the simulated database"
        self._ended_early = None
        self._read_timeout_s = None
        self._apsw = shared.apsw
        self._hooks = hooks
        self._names: list[str] = []
        self._begun = False  # the transaction that the shared connection is in, is ours

    def execute(self, statement: Statement, values: Mapping[str, Any]) -> list[Any]:
        if self._apsw.in_transaction:
            self._names.append(statement.name)
            return super().execute(statement, {**values, "now": self._now()})
        self._hooks.before_transaction(statement.name)
        rows = super().execute(statement, {**values, "now": self._now()})
        self._hooks.committed(self._hooks)
        self._hooks.before_reply(statement.name)
        return rows

    def begin(self) -> None:
        self._hooks.before_transaction("begin")
        self._names = []
        super().begin()
        self._begun = True

    def commit(self) -> None:
        super().commit()
        self._begun = False
        self._hooks.committed(self._hooks)
        self._hooks.before_reply(self._names[-1] if self._names else "nothing")

    def rollback(self) -> None:
        if self._begun:
            self._begun = False
            super().rollback()
            self._hooks.rolled_back()

    def close(self) -> None:
        """The real one stays."""

    def cut(self) -> None:
        """Nothing hangs for real."""


class GreenletLock:
    """A lock between calls that take turns on one thread, in the place of a line's own."""

    def __init__(self, hooks: ProcessHooks) -> None:
        self._hooks = hooks
        self._owner: greenlet | None = None
        self._depth = 0
        self._waiting: list[greenlet] = []

    def __enter__(self) -> None:
        me = getcurrent()
        while self._owner not in (None, me):
            self._waiting.append(me)
            self._hooks.pause(None)
        self._owner = me
        self._depth += 1

    def is_revoked(self) -> bool:
        """No: nobody hangs in a transaction here."""
        return False

    def __exit__(self, *raised: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._owner = None
            waiting, self._waiting = self._waiting, []
            for each in waiting:
                self._hooks.resume(each)


class FaultyDatabase(SqliteDatabase):
    """The shared database as one process sees it: a line for each purpose, as a server has it; but what an author's
    transaction may join has one for all."""

    def __init__(self, shared: SharedDatabase, hooks: ProcessHooks, now: Callable[[], int]) -> None:
        super().__init__(":memory:")
        self._now = now
        self._shared = shared
        self._hooks = hooks

    def connection(self, purpose: str, idle_timeout_s: float = IDLE_TIMEOUT_S) -> ManagedConnection:
        name = "write" if purpose in ("client", "commit") else purpose
        known = self._connections.get(name)
        if known is None:
            known = self._connections[name] = ManagedConnection(
                lambda: FaultyConnection(self._shared, self._hooks, self._now)
            )
            known._lock = GreenletLock(self._hooks)  # type: ignore[assignment]
        return known

    def forget_connections(self) -> None:
        """Its process has died."""
        self._connections = {}

    def in_user_transaction(self) -> bool:
        return False

    @contextmanager
    def transaction(self) -> Iterator[SqliteTransaction]:
        """Without the real one's timer."""
        with self.connection("client").transaction() as connection:
            assert isinstance(connection, FaultyConnection)
            yield SqliteTransaction(connection)
