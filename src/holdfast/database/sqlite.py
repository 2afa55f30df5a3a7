"""SQLite through apsw, which brings its own, current SQLite.

WAL, `synchronous=FULL`, and `BEGIN IMMEDIATE` for every transaction (a deferred one that turns into a write fails at
once when another writer was first, whatever the busy timeout). One connection writes for the whole process, the
heartbeat has its own so that it never waits for a thread of ours, and others only read: one for whoever asks, one for
the claimer, one that watches the file, one that counts what ended.

Writers of all processes take turns (`write_queue.py`). `file_guard.py` notices that the file was replaced.
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
from holdfast.database.fork_safety import never_close, register_fork_hooks
from holdfast.database.sqlite_connection import (
    MAX_TRANSACTION_S,
    UNAVAILABLE_ERRORS,
    MemoryFile,
    SqliteConnection,
    StatementResult,
    transaction_expired,
    translate_error,
)
from holdfast.database.statements import Statement
from holdfast.database.write_queue import Holder, WriteQueue
from holdfast.errors import ConfigError, StoreError, StoreUnavailable

OLDEST = (3, 51, 3)  # older ones can lose committed data when a checkpoint races a commit of another process


POLL_INTERVAL_S = 0.005
BUSY_POLL_INTERVAL_S = 0.05
"""While this process writes without a pause, any change may be its own: then one counts only so often."""
BUSY_POLLS = 4
"""After so many looks at which it had written, we look only so often too: each takes the interpreter from those who
have work to do."""


class DataVersionPoller(ChangeListener):
    """Looks at `data_version`, which costs microseconds. That tells of this process's own commits too; whether it may
    have been one of those, says the use of the line on which it writes."""

    def __init__(self, line: ManagedConnection, writer: ManagedConnection) -> None:
        self._line = line
        self._writer = writer
        self._used = 0
        self._seen: tuple[DatabaseConnection, int] | None = None
        self._heard = 0.0
        self._busy = 0  # looks since this process last paused

    def wait(self, longest: float, stop: threading.Event) -> bool:
        deadline = time.monotonic() + longest
        while True:
            version, used, now = self._line.run(_data_version), self._writer.use_count, time.monotonic()
            ours, self._used = used != self._used, used
            self._busy = self._busy + 1 if ours else 0
            if version != self._seen and (not ours or now >= self._heard + BUSY_POLL_INTERVAL_S):
                self._seen, self._heard = version, now
                return True
            if now >= deadline or stop.wait(POLL_INTERVAL_S if self._busy < BUSY_POLLS else BUSY_POLL_INTERVAL_S):
                return False

    def close(self) -> None:
        self._line.close()


def _data_version(connection: DatabaseConnection) -> tuple[DatabaseConnection, int]:
    """Each connection counts for itself: what another one counted says nothing about this one."""
    return connection, cast("SqliteConnection", connection).data_version()


class NullChangeListener(ChangeListener):
    """A database in memory has no other processes; its own enqueues wake the worker directly."""

    polling_only = True

    def wait(self, longest: float, stop: threading.Event) -> bool:
        return not stop.wait(min(longest, 10 * POLL_INTERVAL_S))

    def close(self) -> None:
        pass


class SqliteTransaction:
    """What `with app.transaction() as connection:` gives: SQL for the caller's own tables."""

    def __init__(self, connection: SqliteConnection) -> None:
        self._connection = connection

    def execute(self, sql: str, values: Any = ()) -> list[Row]:
        """Run SQL; its rows. Values are a sequence for `?`, or a mapping for `:name`."""
        return self._connection.run(sql, values)

    def executemany(self, sql: str, rows: Iterable[Any]) -> None:
        """Run SQL once for each row of values."""
        self._connection.run_many(sql, rows)

    def describe(self, sql: str, values: Any = ()) -> StatementResult:
        """Run SQL; its rows, and what other libraries want to know beside them."""
        return self._connection.run_described(sql, values)


class SqliteDatabase(Database):
    """One file, or `:memory:`, where everything shares one connection."""

    def __init__(self, path: str) -> None:
        super().__init__()
        if _version() < OLDEST:
            raise ConfigError(f"SQLite {apsw.sqlitelibversion()} can lose committed data: install apsw 3.51.3 or later")
        self.dialect = SqliteDialect()
        self._in_memory = path == ":memory:"
        self._memory: MemoryFile | None = None  # made when it is needed
        self._path = path if self._in_memory else str(Path(path).absolute())
        self.display_url = f"sqlite:///{path}"
        self._guard = None if self._in_memory else FileGuard(self._path)
        self._queues: dict[str, WriteQueue] = {}
        self._paused: list[ManagedConnection] = []
        self._holder: int | None = None  # the thread that has a transaction of its own on the writer
        register_fork_hooks(self)

    def connection(self, purpose: str, idle_timeout_s: float = IDLE_TIMEOUT_S) -> ManagedConnection:  # noqa: ARG002 - no server to run out of it
        purpose = "read" if purpose == "look" else purpose
        apart = purpose.startswith(("heartbeat", "pick", "watch", "tally")) or (
            purpose == "read" and not self.in_user_transaction()
        )
        name = "all" if self._in_memory else purpose if apart else "write"
        writer = self._connections.get("all" if self._in_memory else "write")
        if writer is not None and writer.is_revoked():
            raise transaction_expired(f"SQLite file {self._path}")
        return self._managed(name, lambda: self._open(name))

    @contextmanager
    def transaction(self) -> Iterator[SqliteTransaction]:
        """The writer, for a caller's tables and our verbs together, on this thread, for at most five seconds. Then the
        transaction is rolled back, and the line goes to other threads, even if the caller's code never returns."""
        nested = self.in_user_transaction()
        line = self.connection("client")
        with line.transaction() as connection:
            assert isinstance(connection, SqliteConnection)
            if nested:  # the outermost has the timer
                yield SqliteTransaction(connection)
                connection.refuse_if_over()
                return
            timer = threading.Timer(MAX_TRANSACTION_S, self._expire, (line, connection))
            timer.daemon = True
            self._holder = threading.get_ident()
            timer.start()
            try:
                connection.lend()
                yield SqliteTransaction(connection)
                timer.cancel()
                connection.refuse_if_over()
            finally:
                timer.cancel()
                timer.join()
                if line.is_revoked():
                    connection.close()
                else:
                    connection.renew()
                    self._holder = None

    def _expire(self, line: ManagedConnection, connection: SqliteConnection) -> None:
        """End a caller's transaction that takes too long, and free the line from its thread. In a timer's thread."""
        connection.expire()
        connection.leave_queue()
        self._holder = None
        line.revoke()

    @contextmanager
    def task_transaction(self, line: ManagedConnection) -> Iterator[SqliteTransaction]:  # noqa: ARG002 - there is one writer
        with self.transaction() as connection:
            try:
                yield connection
            except Exception as error:
                if isinstance(found := unwrap_driver_error(error), UNAVAILABLE_ERRORS):
                    raise translate_error(found, f"SQLite file {self._path}") from error
                raise

    def in_user_transaction(self) -> bool:
        return self._holder == threading.get_ident()

    def change_listener(self, news: Topic = "work") -> ChangeListener:
        return (
            NullChangeListener()
            if self._in_memory
            else DataVersionPoller(self.connection(f"watch {news}"), self.connection("commit"))
        )

    def _open(self, name: str) -> SqliteConnection:
        longest = self.read_timeout_s if name == "read" else None
        guard = self._guard
        if guard is None:
            self._memory = self._memory or MemoryFile()
            return SqliteConnection(self._path, longest, self._memory)
        if guard.failure is not None:
            guard.check()
        self._make_file(guard)
        return SqliteConnection(self._path, longest, None, guard, self._queue(name))

    def _queue(self, name: str) -> WriteQueue | None:
        """Return the access to the queue of writers for lines that write; None for those that only read."""
        if name != "write" and not name.startswith("heartbeat"):
            return None
        found = self._queues.get(name)
        if found is None:
            found = WriteQueue(os.path.realpath(self._path), urgent=name != "write")
            self._queues[name] = found
        return found

    def _make_file(self, guard: FileGuard) -> None:
        try:
            guard.make_file()
        except FileNotFoundError:
            raise ConfigError(
                f"the folder of {self._path} doesn't exist; make it, or give another path in the URL"
            ) from None
        except IsADirectoryError:
            raise ConfigError(f"{self._path} is a folder; name a file in the URL, like sqlite:///jobs.db") from None
        except OSError as error:
            meaning = AccessDenied if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS) else StoreUnavailable
            raise meaning(f"SQLite file {self._path} can't be opened: {error.strerror}") from error

    @property
    def failure(self) -> StoreError | None:
        return None if self._guard is None else self._guard.failure

    def long_writer(self) -> Holder | None:
        """Return the process whose application code has the write lock, and for how long."""
        return None if self._in_memory else WriteQueue(os.path.realpath(self._path)).holder()

    def processes_on_deleted_files(self) -> list[int]:
        """Return the processes that still use a file or a log that was deleted or replaced."""
        return [] if self._in_memory else processes_on_deleted_files(self._path)

    def lock_migrations(self, connection: DatabaseConnection) -> None:
        """Nothing to do: BEGIN IMMEDIATE has let no other process in."""

    def table_exists(self, connection: DatabaseConnection, table: str) -> bool:
        query = Statement(
            "table_exists",
            "select 1 from sqlite_schema where type = 'table' and name = :table",
            ("table",),
            writes=False,
        )
        return bool(connection.execute(query, {"table": f"holdfast_{table}"}))

    def before_fork(self) -> None:
        """Close everything, but for what this very thread has in a transaction, and let no thread make a new line: a
        file that is opened now would be believed to be locked in the child, whose writes could then be lost."""
        if not self._in_memory:
            self._lock.acquire()
            self._paused = [line for line in self._connections.values() if line.pause()]

    def after_fork(self, *, in_child: bool) -> None:
        for line in self._paused:
            line.resume(in_child=in_child)
        self._paused = []
        if in_child:
            for queue in self._queues.values():
                queue.close()
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

    def abort_stuck_calls(self, longest: float) -> int:
        return sum(line.abort_if_stuck(longest) for line in list(self._connections.values()))


def _version() -> tuple[int, ...]:
    return tuple(int(part) for part in apsw.sqlitelibversion().split("."))
