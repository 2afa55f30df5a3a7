"""SQLite through apsw, which bundles a current SQLite.

Settings: WAL, `synchronous=FULL`, and `BEGIN IMMEDIATE` for every transaction. A deferred transaction that turns into a
write fails at once if another writer was first, regardless of the busy timeout.

One connection writes for the whole process. The heartbeat has a connection of its own, so that it never waits for
another thread. The other connections only read: for queries, for the claimer, for change detection, for statistics.

Writers of all processes take turns (`sqlite_write_queue.py`). `file_guard.py` detects that the file was replaced.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import apsw

from holdfast.database.base import (
    IDLE_TIMEOUT_S,
    ChangeListener,
    Database,
    DatabaseConnection,
    ManagedConnection,
    Row,
    Topic,
)
from holdfast.database.dialect import SqliteDialect
from holdfast.database.faults import AccessDenied, unwrap_driver_error
from holdfast.database.file_guard import FileGuard, processes_on_deleted_files
from holdfast.database.file_watch import FileWatch, open_watch
from holdfast.database.fork_safety import never_close, register_fork_hooks
from holdfast.database.planted_files import refuse_planted_files
from holdfast.database.sqlite_connection import (
    MAX_TRANSACTION_S,
    UNAVAILABLE_ERRORS,
    MemoryFile,
    SqliteConnection,
    StatementResult,
    transaction_expired,
    translate_error,
)
from holdfast.database.sqlite_write_queue import Holder, SqliteWriteQueue
from holdfast.database.statements import Statement
from holdfast.errors import ConfigError, StoreError, StoreUnavailable

MIN_SQLITE_VERSION = (3, 51, 3)  # older ones can lose commits when a checkpoint races another process's commit


POLL_INTERVAL_S = 0.005
WATCHED_POLL_INTERVAL_S = 0.25
"""Where the kernel reports writes to the log, polls in between only make up for reports that it doesn't send."""
COMMIT_POLL_INTERVAL_S = 0.0005
COMMIT_TIMEOUT_S = 0.05
"""SQLite writes the log, waits for the disk, and then makes the commit visible, which the kernel doesn't report."""
BUSY_POLL_INTERVAL_S = 0.05
"""While this process writes continuously, every change may be its own, so changes are reported at most this often."""
BUSY_POLLS = 4
"""After this many polls that each found writes of this process, the poller slows down: each poll takes the GIL."""


class DataVersionPoller(ChangeListener):
    """Polls `data_version`, which takes microseconds: when the log is written, or every few milliseconds.

    It changes with this process's own commits too. The use count of the writing connection tells whether there may
    have been any.
    """

    def __init__(self, connection: ManagedConnection, writer: ManagedConnection, log: str | None = None) -> None:
        self._connection = connection
        self._writer = writer
        self._log = log
        self._watch: FileWatch | None = None
        self._commit_expected_until = 0.0
        self._used = 0
        self._seen: tuple[DatabaseConnection, int] | None = None
        self._heard = 0.0
        self._busy = 0  # polls since this process last paused writing

    def wait(self, timeout_s: float, stop: threading.Event) -> bool:
        deadline = time.monotonic() + timeout_s
        while True:
            if self._watch is not None:
                self._watch.drain()
            version, used, now = self._connection.run(_data_version), self._writer.use_count, time.monotonic()
            is_ours, self._used = used != self._used, used
            self._busy = self._busy + 1 if is_ours else 0
            if version != self._seen and (not is_ours or now >= self._heard + BUSY_POLL_INTERVAL_S):
                self._seen, self._heard, self._commit_expected_until = version, now, 0.0
                return True
            if now >= deadline or self._pause(min(deadline - now, WATCHED_POLL_INTERVAL_S), stop):
                return False

    def _pause(self, max_s: float, stop: threading.Event) -> bool:
        """Pause before the next poll; return whether `stop` is set."""
        is_commit_expected = time.monotonic() < self._commit_expected_until
        may_be_a_read = is_commit_expected and self._busy == 1  # of this process, before the write that was reported
        if self._busy and not may_be_a_read:  # our own writes would end the wait for a write at once
            return stop.wait(POLL_INTERVAL_S if self._busy < BUSY_POLLS else BUSY_POLL_INTERVAL_S)
        if self._watch is None and self._log is not None:
            self._watch, self._log = open_watch(self._log), None
        if self._watch is None or not self._watch.is_watching():
            return stop.wait(POLL_INTERVAL_S)
        if is_commit_expected:
            return stop.wait(COMMIT_POLL_INTERVAL_S)
        if not stop.is_set() and self._watch.wait(max_s):
            self._commit_expected_until = time.monotonic() + COMMIT_TIMEOUT_S
        return stop.is_set()

    def interrupt(self) -> None:
        if self._watch is not None:
            self._watch.interrupt()

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        self._connection.close()


def _data_version(connection: DatabaseConnection) -> tuple[DatabaseConnection, int]:
    """Return the version with its connection: versions of different connections can't be compared."""
    return connection, cast("SqliteConnection", connection).data_version()


class NullChangeListener(ChangeListener):
    """For an in-memory database, which no other process uses; enqueues wake the worker directly."""

    polling_only = True

    def wait(self, timeout_s: float, stop: threading.Event) -> bool:
        return not stop.wait(min(timeout_s, 10 * POLL_INTERVAL_S))

    def close(self) -> None:
        pass


class SqliteTransaction:
    """The connection of `with app.transaction() as connection:`, for SQL on the user's own tables."""

    def __init__(self, connection: SqliteConnection) -> None:
        self._connection = connection

    def is_of(self, writer: ManagedConnection) -> bool:
        """Return whether it is the open connection of this writer."""
        return writer.has(self._connection)

    def execute(self, sql: str, values: Any = ()) -> list[Row]:
        """Run SQL and return its rows. Values are a sequence for `?` or a mapping for `:name`."""
        return self._connection.run(sql, values)

    def executemany(self, sql: str, rows: Iterable[Any]) -> None:
        """Run SQL once per row of values."""
        self._connection.run_many(sql, rows)

    def describe(self, sql: str, values: Any = ()) -> StatementResult:
        """Run SQL and return its rows with the metadata that DB-API drivers need."""
        return self._connection.run_described(sql, values)


class SqliteDatabase(Database):
    """One SQLite file, or `:memory:`, where all purposes share one connection."""

    def __init__(self, path: str) -> None:
        super().__init__()
        if _version() < MIN_SQLITE_VERSION:
            raise ConfigError(f"SQLite {apsw.sqlitelibversion()} can lose commits: install apsw 3.51.3 or later")
        self.dialect = SqliteDialect()
        self._in_memory = path == ":memory:"
        self._memory: MemoryFile | None = None
        self._path = path if self._in_memory else str(Path(path).absolute())
        self.display_url = f"sqlite:///{path}"
        self._guard = None if self._in_memory else FileGuard(self._path)
        self._queues: dict[str, SqliteWriteQueue] = {}
        self._paused: list[ManagedConnection] = []
        self._holder: int | None = None  # the thread that is inside `transaction()`
        register_fork_hooks(self)

    def connection(self, purpose: str, idle_timeout_s: float = IDLE_TIMEOUT_S) -> ManagedConnection:  # noqa: ARG002
        purpose = "read" if purpose == "poll" else purpose
        is_separate = purpose.startswith(("heartbeat", "pick", "watch", "stats")) or (
            purpose == "read" and not self.in_user_transaction()
        )
        name = "all" if self._in_memory else purpose if is_separate else "write"
        writer = self._connections.get("all" if self._in_memory else "write")
        if writer is not None and writer.is_revoked():
            raise transaction_expired(f"SQLite file {self._path}")
        return self._managed(name, lambda: self._open(name))

    @contextmanager
    def transaction(self) -> Iterator[SqliteTransaction]:
        """Reserve the writer for this thread, for the user's tables and Holdfast's calls together.

        After `MAX_TRANSACTION_S` the transaction is rolled back and other threads get the writer, even if the user's
        code never returns.
        """
        nested = self.in_user_transaction()
        writer = self.connection("client")
        with writer.transaction() as connection:
            assert isinstance(connection, SqliteConnection)
            if nested:  # the outermost transaction has the timer
                yield SqliteTransaction(connection)
                connection.check_lent()
                return
            timer = threading.Timer(MAX_TRANSACTION_S, self._expire, (writer, connection))
            timer.daemon = True
            self._holder = threading.get_ident()
            timer.start()
            try:
                connection.lend()
                yield SqliteTransaction(connection)
                timer.cancel()
                connection.check_lent()
            finally:
                timer.cancel()
                timer.join()
                if writer.is_revoked():
                    connection.close()
                else:
                    connection.end_lending()
                    self._holder = None

    def _expire(self, writer: ManagedConnection, connection: SqliteConnection) -> None:
        """Roll back a transaction that takes too long and free the writer. Runs in the timer's thread."""
        connection.expire()
        connection.leave_queue()
        self._holder = None
        writer.revoke()

    @contextmanager
    def task_transaction(self, connection: ManagedConnection) -> Iterator[SqliteTransaction]:  # noqa: ARG002
        with self.transaction() as transaction:
            try:
                yield transaction
            except Exception as error:
                if isinstance(found := unwrap_driver_error(error), UNAVAILABLE_ERRORS):
                    raise translate_error(found, f"SQLite file {self._path}") from error
                raise

    def in_user_transaction(self) -> bool:
        return self._holder == threading.get_ident()

    def is_user_transaction(self, connection: object) -> bool:
        return (
            isinstance(connection, SqliteTransaction)
            and self.in_user_transaction()
            and connection.is_of(self.connection("client"))
        )

    def change_listener(self, topic: Topic = "work", channel: str | None = None) -> ChangeListener:  # noqa: ARG002
        if self._in_memory:
            return NullChangeListener()
        log = f"{os.path.realpath(self._path)}-wal"
        return DataVersionPoller(self.connection(f"watch {topic}"), self.connection("commit"), log)

    def _open(self, name: str) -> SqliteConnection:
        timeout_s = self.read_timeout_s if name == "read" else None
        guard = self._guard
        if guard is None:
            self._memory = self._memory or MemoryFile()
            return SqliteConnection(self._path, timeout_s, self._memory)
        if guard.failure is not None:
            guard.check()
        self._make_file(guard)
        return SqliteConnection(self._path, timeout_s, None, guard, self._queue(name))

    def _queue(self, name: str) -> SqliteWriteQueue | None:
        """Return the write queue for connections that write; None for those that only read."""
        if name != "write" and not name.startswith("heartbeat"):
            return None
        found = self._queues.get(name)
        if found is None:
            found = SqliteWriteQueue(os.path.realpath(self._path), urgent=name != "write")
            self._queues[name] = found
        return found

    def _make_file(self, guard: FileGuard) -> None:
        refuse_planted_files(self._path)
        try:
            guard.make_file()
        except FileNotFoundError:
            raise ConfigError(
                f"the directory of {self._path} doesn't exist; create it or use another path in the URL"
            ) from None
        except IsADirectoryError:
            raise ConfigError(f"{self._path} is a directory; the URL must name a file: sqlite:///jobs.db") from None
        except OSError as error:
            kind = AccessDenied if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS) else StoreUnavailable
            raise kind(f"cannot open SQLite file {self._path}: {error.strerror}") from error

    @property
    def failure(self) -> StoreError | None:
        guard = self._guard
        return super().failure if guard is None or guard.failure is None else guard.failure

    def long_writer(self) -> Holder | None:
        """Return the process whose application code holds the write lock, if any."""
        return None if self._in_memory else SqliteWriteQueue(os.path.realpath(self._path)).holder()

    def processes_on_deleted_files(self) -> list[int]:
        """Return the processes that still use a deleted or replaced file or log."""
        return [] if self._in_memory else processes_on_deleted_files(self._path)

    def lock_migrations(self, connection: DatabaseConnection) -> None:
        """Do nothing: BEGIN IMMEDIATE excludes other processes."""

    def table_exists(self, connection: DatabaseConnection, table: str) -> bool:
        query = Statement(
            "table_exists",
            "select 1 from sqlite_schema where type = 'table' and name = :table",
            ("table",),
            writes=False,
        )
        return bool(connection.execute(query, {"table": f"holdfast_{table}"}))

    def before_fork(self) -> None:
        """Close all connections, except one with a transaction of this thread, and prevent new ones.

        The child's SQLite would believe that it holds locks on a file that is open now, and could lose writes.
        """

        if not self._in_memory:
            self._lock.acquire()
            self._paused = [each for each in self._connections.values() if each.pause()]

    def after_fork(self, *, in_child: bool) -> None:
        for connection in self._paused:
            connection.resume(in_child=in_child)
        self._paused = []
        if in_child:
            for queue in self._queues.values():
                queue.close()
            if self._guard is not None:
                self._guard.close_directory()
            self._queues, self._guard = {}, None if self._in_memory else FileGuard(self._path)
            never_close((self._connections, self._memory))
            self._connections, self._lock, self._holder, self._memory = {}, threading.Lock(), None, None
        elif not self._in_memory:
            self._lock.release()

    def close(self) -> None:
        super().close()
        for queue in self._queues.values():
            queue.close()
        if self._memory is not None:
            self._memory.close()
            self._memory = None

    def abort_stuck_calls(self, max_s: float) -> int:
        return sum(connection.abort_if_stuck(max_s) for connection in list(self._connections.values()))


def _version() -> tuple[int, ...]:
    return tuple(int(part) for part in apsw.sqlitelibversion().split("."))
