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
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw

from holdfast.database.base import PATIENCE, Connection, Database, Line, News, Row, Watch
from holdfast.database.dialect import SqliteDialect
from holdfast.database.faults import Refused, driver_error
from holdfast.database.file_guard import FileGuard, processes_on_deleted_files
from holdfast.database.fork import abandon, watch_over
from holdfast.database.memory import Memory
from holdfast.database.sqlite_connection import LONGEST_TRANSACTION, TRY_LATER, Ran, SqliteConnection, as_ours, expired
from holdfast.database.sqlite_watch import NoWatch, SqliteWatch
from holdfast.database.statements import Statement
from holdfast.database.write_queue import Holder, WriteQueue
from holdfast.errors import ConfigError, StoreError, StoreUnavailable

OLDEST = (3, 51, 3)  # older ones can lose committed data when a checkpoint races a commit of another process


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

    def describe(self, sql: str, values: Any = ()) -> Ran:
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
        self._memory: Memory | None = None  # made when it is needed
        self._path = path if self._in_memory else str(Path(path).absolute())
        self.shown = f"sqlite:///{path}"
        self._guard = None if self._in_memory else FileGuard(self._path)
        self._queues: dict[str, WriteQueue] = {}
        self._paused: list[Line] = []
        self._holder: int | None = None  # the thread that has a transaction of its own on the writer
        watch_over(self)

    def line(self, purpose: str, patience: float = PATIENCE) -> Line:  # noqa: ARG002 - no server to run out of it
        purpose = "read" if purpose == "look" else purpose
        apart = purpose.startswith(("heartbeat", "pick", "watch", "tally")) or (
            purpose == "read" and not self.in_callers_transaction()
        )
        name = "all" if self._in_memory else purpose if apart else "write"
        writer = self._lines.get("all" if self._in_memory else "write")
        if writer is not None and writer.is_revoked():
            raise expired(f"SQLite file {self._path}")
        return self._line(name, lambda: self._open(name))

    @contextmanager
    def transaction(self) -> Iterator[SqliteTransaction]:
        """The writer, for a caller's tables and our verbs together, on this thread, for at most five seconds. Then the
        transaction is rolled back, and the line goes to other threads, even if the caller's code never returns."""
        nested = self.in_callers_transaction()
        line = self.line("client")
        with line.hold() as connection:
            assert isinstance(connection, SqliteConnection)
            if nested:  # the outermost has the timer
                yield SqliteTransaction(connection)
                connection.refuse_if_over()
                return
            timer = threading.Timer(LONGEST_TRANSACTION, self._expire, (line, connection))
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

    def _expire(self, line: Line, connection: SqliteConnection) -> None:
        """End a caller's transaction that takes too long, and free the line from its thread. In a timer's thread."""
        connection.expire()
        connection.leave_queue()
        self._holder = None
        line.revoke()

    @contextmanager
    def authors_transaction(self, line: Line) -> Iterator[SqliteTransaction]:  # noqa: ARG002 - there is one writer
        with self.transaction() as connection:
            try:
                yield connection
            except Exception as error:
                if isinstance(found := driver_error(error), TRY_LATER):
                    raise as_ours(found, f"SQLite file {self._path}") from error
                raise

    def in_callers_transaction(self) -> bool:
        return self._holder == threading.get_ident()

    def watch(self, news: News = "work") -> Watch:
        return NoWatch() if self._in_memory else SqliteWatch(self.line(f"watch {news}"), self.line("commit"))

    def _open(self, name: str) -> SqliteConnection:
        longest = self.read_seconds if name == "read" else None
        guard = self._guard
        if guard is None:
            self._memory = self._memory or Memory()
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
            meaning = Refused if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS) else StoreUnavailable
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

    def migration_lock(self, connection: Connection) -> None:
        """Nothing to do: BEGIN IMMEDIATE has let no other process in."""

    def table_exists(self, connection: Connection, table: str) -> bool:
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
            self._paused = [line for line in self._lines.values() if line.pause()]

    def after_fork(self, *, in_child: bool) -> None:
        for line in self._paused:
            line.resume(in_child=in_child)
        self._paused = []
        if in_child:
            for queue in self._queues.values():
                queue.close()
            if self._guard is not None:
                self._guard.close_directory()
            self._queues, self._guard = {}, None if self._in_memory else FileGuard(self._path)
            abandon((self._lines, self._memory))
            self._lines, self._lock, self._holder, self._memory = {}, threading.Lock(), None, None
        elif not self._in_memory:
            self._lock.release()

    def close(self) -> None:
        super().close()
        for queue in self._queues.values():
            queue.close()
        if self._memory is not None:
            self._memory.close()
            self._memory = None

    def cut_stuck(self, longest: float) -> int:
        return sum(line.cut_if_stuck(longest) for line in list(self._lines.values()))


def _version() -> tuple[int, ...]:
    return tuple(int(part) for part in apsw.sqlitelibversion().split("."))
