"""Kills its own process with SIGKILL right before or after the Nth commit that wrote something.

Counting starts with the first claim that finds a run. Heartbeats and statements without effect aren't counted, so that
the same number means about the same point each time. Before the kill, the killer records which commit it was.
"""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from holdfast.database.base import DatabaseConnection
from holdfast.database.postgres import PostgresConnection
from holdfast.database.sqlite_connection import SqliteConnection
from tests.support.ledger import Ledger

WRITING = re.compile(r'\b(insert into|update|delete from)\s+("|holdfast_)')
UNCOUNTED_STATEMENTS = {
    "open_session",
    "renew_session",
    "mark_idle",
    "close_session",
    "add_lanes",
    "release_ended_runs",
}


class CommitKiller:
    """Kills before or after the Nth commit, or the Nth one with a certain statement.

    It writes the names of that commit's statements to `commits`.
    """

    def __init__(self, at: int, when: str, commits: Ledger, statement: str | None = None) -> None:
        self._at = at
        self._when = when
        self._statement = statement
        self._commits = commits
        self._lock = threading.Lock()
        self._counting = False
        self._count = 0
        self._written: dict[int, list[str]] = {}

    def install(self) -> None:
        """Patch both kinds of connections in this process."""
        for kind in (SqliteConnection, PostgresConnection):
            self._wrap(kind)
        lent = PostgresConnection.lend
        killer = self

        @contextmanager
        def watched(connection: PostgresConnection) -> Iterator[Any]:
            killer._written[id(connection)] = []
            with lent(connection) as theirs:
                yield theirs
                killer.before(connection)
            killer.after(connection)

        PostgresConnection.lend = watched  # type: ignore[method-assign]

    def _wrap(self, kind: Any) -> None:
        execute, begin, commit = kind.execute, kind.begin, kind.commit
        killer = self

        def watched_execute(connection: Any, statement: Any, values: Mapping[str, Any]) -> Any:
            if not WRITING.search(statement.sql):
                return execute(connection, statement, values)
            if connection._depth:
                rows = execute(connection, statement, values)
                killer.wrote(connection, statement.name)
                return rows
            begin(connection)  # An explicit transaction instead of autocommit, to stop right before the commit.
            try:
                killer._written[id(connection)] = []
                rows = execute(connection, statement, values)
                killer.wrote(connection, statement.name)
                killer.before(connection)
                commit(connection)
            except BaseException:
                connection.rollback()
                raise
            killer.after(connection)
            return rows

        def watched_begin(connection: Any) -> None:
            killer._written[id(connection)] = []
            begin(connection)

        def watched_commit(connection: Any) -> None:
            killer.before(connection)
            commit(connection)
            killer.after(connection)

        kind.execute, kind.begin, kind.commit = watched_execute, watched_begin, watched_commit
        kind.queue = DatabaseConnection.queue  # which executes

    def wrote(self, connection: Any, name: str) -> None:
        """Note a statement, if it changed something."""
        if name in UNCOUNTED_STATEMENTS or not _changed(connection):
            return
        self._counting = self._counting or name == "claim"
        if self._counting:
            self._written.setdefault(id(connection), []).append(name)

    def before(self, connection: Any) -> None:
        if self._when == "before":
            self._reach(connection)

    def after(self, connection: Any) -> None:
        if self._when == "after":
            self._reach(connection)
        self._written[id(connection)] = []

    def _reach(self, connection: Any) -> None:
        names = self._written.get(id(connection))
        if not names or (self._statement or names[0]) not in names:
            return
        with self._lock:
            self._count += 1
            if self._count == self._at:
                self._commits.write(self._at, self._when, ",".join(names))
                os.kill(os.getpid(), signal.SIGKILL)


def _changed(connection: Any) -> bool:
    if isinstance(connection, SqliteConnection):
        return connection._apsw.changes() > 0
    return bool(connection.changed_rows > 0)
