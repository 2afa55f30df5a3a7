"""An in-memory database that simulated processes share, each through its own connections, which may fail.

A caller can be suspended before a transaction begins and after it has committed: to let others run first, for the
duration of a fault, or forever. A connection can be lost at both points; after the commit only the reply is lost. No
caller is suspended inside a transaction, because SQLite has one writer.
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
    """Hooks of the process that owns a connection. Those around a transaction may suspend the caller or raise."""

    name: str

    def before_transaction(self, what: str) -> None:
        """Run before a transaction."""

    def before_reply(self, what: str) -> None:
        """Run after the commit, before the caller gets the reply."""

    def committed(self, hooks: ProcessHooks) -> None:
        """Run after the commit, to check the invariants."""

    def rolled_back(self) -> None: ...

    def pause(self, seconds: float | None) -> None:
        """Suspend the caller for this long, or until `resume` is called."""

    def resume(self, stopped: greenlet) -> None: ...


class SharedDatabase:
    """The only real connection."""

    def __init__(self) -> None:
        self.apsw = apsw.Connection(":memory:", statementcachesize=1000)
        enable_wal(self.apsw)

    def clear(self, keep: tuple[str, ...]) -> None:
        """Empty all tables except these and reset their sequences."""
        tables = [name for (name,) in self.apsw.execute("select name from sqlite_schema where type = 'table'")]
        with self.apsw:
            for table in tables:
                if table not in keep and not table.startswith("sqlite_"):
                    self.apsw.execute(f"delete from {table}")
            for table in tables:
                if table not in keep:
                    self.apsw.execute("delete from sqlite_sequence where name = ?", (table,))


class FaultyConnection(SqliteConnection):
    """A connection of one simulated process to the shared database."""

    def __init__(self, shared: SharedDatabase, hooks: ProcessHooks, now: Callable[[], int]) -> None:
        self._now = now  # the time of a statement is read when it executes, not when it is requested
        self._what = "the simulated database"
        self._ended_early = None
        self._read_timeout_s = None
        self._apsw = shared.apsw
        self._hooks = hooks
        self._names: list[str] = []
        self._begun = False  # whether this connection began the open transaction of the shared one

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
        """Keep the real connection open."""

    def cut(self) -> None:
        """Do nothing, because no call really hangs."""


class GreenletLock:
    """A reentrant lock between greenlets of one thread; replaces the lock of a managed connection."""

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
        """Return False, because no transaction hangs in the simulation."""
        return False

    def __exit__(self, *raised: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._owner = None
            waiting, self._waiting = self._waiting, []
            for each in waiting:
                self._hooks.resume(each)


class FaultyDatabase(SqliteDatabase):
    """The shared database as one process sees it, with a connection per purpose, as on a server.

    Purposes that can join a user transaction share one connection.
    """

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
        """Drop all connections, because the process has died."""
        self._connections = {}

    def in_user_transaction(self) -> bool:
        return False

    @contextmanager
    def transaction(self) -> Iterator[SqliteTransaction]:
        """Open a user transaction, without the timer of the real database."""
        with self.connection("client").transaction() as connection:
            assert isinstance(connection, FaultyConnection)
            yield SqliteTransaction(connection)
