"""One connection to a SQLite file: settings, transactions and error translation."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, NamedTuple
from uuid import uuid4

import apsw
import msgspec

from holdfast.database.base import DatabaseConnection, Row
from holdfast.database.faults import (
    MOVED_PREFIX,
    TENANT_MOVED_PREFIX,
    AccessDenied,
    Conflict,
    ConnectionLost,
    DataFault,
    Expired,
    transaction_ended,
)
from holdfast.database.file_guard import FileGuard
from holdfast.database.sqlite_write_queue import SqliteWriteQueue
from holdfast.database.statements import Statement
from holdfast.errors import HoldfastError, StoreError, StoreMoved, StoreUnavailable, TenantMoved

BUSY_TIMEOUT_S = 5.0
ROLLBACK_RETRY_S = 0.005
BUSY_MIN_POLL_S, BUSY_MAX_POLL_S = 0.0002, 0.005
CHECK_INTERVAL_S = 1.0
"""How often a connection that only reads checks that the file wasn't replaced. Writes check it with each commit."""
WRITE_CHECK_S = 0.05
"""A write that begins within this time after a commit skips its first check, because the commit did one."""
PROGRESS_STEPS = 10_000
"""SQLite virtual machine instructions between two checks of a read's time limit."""
MAX_TRANSACTION_S = 5.0
PRAGMAS = (
    "synchronous = full", "cache_size = -16000", "journal_size_limit = 67108864", "trusted_schema = off",
    "wal_autocheckpoint = 4000",  # pages; rewritten pages are copied to the file less often (bench: jobs)
)  # fmt: skip

MAX_ROWID = 2**62
"""No table gets near. SQLite refuses new rows once one has the highest possible number."""

UNAVAILABLE_ERRORS = (apsw.FullError, apsw.IOError, apsw.CantOpenError, apsw.ReadOnlyError, apsw.NoMemError)
_BAD_VALUE = (apsw.ConstraintError, apsw.MismatchError, apsw.TooBigError, apsw.RangeError)


_unpack = msgspec.json.Decoder(list[tuple[Any, ...]]).decode


def translate_error(error: apsw.Error, what: str) -> StoreError:
    """Translate a driver error. This is the only place that decides which errors are transient."""
    if isinstance(error, apsw.BusyError | apsw.LockedError):
        return Conflict(f"{what}: another process is writing and didn't finish in time ({error})")
    if isinstance(error, apsw.ConstraintError) and str(error).startswith(MOVED_PREFIX):
        return StoreMoved(f"{what}: {str(error).removeprefix(MOVED_PREFIX)}")
    if isinstance(error, apsw.ConstraintError) and str(error).startswith(TENANT_MOVED_PREFIX):
        return TenantMoved(f"{what}: {str(error).removeprefix(TENANT_MOVED_PREFIX)}")
    if isinstance(error, _BAD_VALUE) or (isinstance(error, apsw.SQLError) and "JSON" in str(error)):
        return DataFault(f"{what}: {error}")
    if isinstance(error, UNAVAILABLE_ERRORS):
        kind = AccessDenied if isinstance(error, apsw.ReadOnlyError | apsw.CantOpenError) else StoreUnavailable
        return kind(f"{what} is not usable: {error}; check free disk space and permissions")
    if isinstance(error, apsw.NotADBError | apsw.CorruptError):
        return StoreError(f"{what} is not a SQLite database or is damaged: {error}; use another file")
    if isinstance(error, apsw.ConnectionClosedError):
        return ConnectionLost(f"{what} was closed")
    if isinstance(error, apsw.InterruptError):
        return ConnectionLost(f"{what}: the call took too long and was interrupted")
    return StoreError(f"{what}: {error}")


@contextmanager
def _translate_errors(what: str) -> Iterator[None]:
    try:
        yield
    except apsw.Error as error:
        raise translate_error(error, what) from error


_FLAGS = apsw.SQLITE_OPEN_URI | apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE


def _open_file(path: str, guard: FileGuard | None) -> apsw.Connection:
    """Open a file that `FileGuard.make_file` created. SQLite must not create it: it may have been removed since."""
    try:
        return apsw.Connection(path, flags=apsw.SQLITE_OPEN_READWRITE)
    except apsw.CantOpenError:
        if guard is not None:
            guard.find_file()
        raise


class MemoryFile:
    """An in-memory database that, like a file, outlives its connections: it keeps one open until `close`."""

    def __init__(self) -> None:
        self._uri = f"file:/{uuid4().hex}?vfs=memdb"
        self._kept = self.connect()

    def connect(self) -> apsw.Connection:
        return apsw.Connection(self._uri, flags=_FLAGS)

    def close(self) -> None:
        self._kept.close()


class StatementResult(NamedTuple):
    """The rows of a statement, their column names, the number of changed rows and the last inserted id."""

    rows: list[Row]
    columns: list[str]
    changed: int
    last_id: int


class SqliteConnection(DatabaseConnection):
    """One apsw connection."""

    _guard: FileGuard | None = None
    _queue: SqliteWriteQueue | None = None
    _next_check = 0.0
    _next_write_check = 0.0
    _renumbers = False

    def __init__(
        self,
        path: str,
        read_timeout_s: float | None = None,
        memory: MemoryFile | None = None,
        guard: FileGuard | None = None,
        queue: SqliteWriteQueue | None = None,
    ) -> None:
        self._what = f"SQLite file {path}"
        self._ended_early: Callable[[], HoldfastError] | None = None  # why a lent transaction ended before its block
        self._read_timeout_s = read_timeout_s
        self._queue = queue
        self._busy_until = 0.0
        with guard.open_lock if guard is not None else nullcontext(), _translate_errors(self._what):
            self._apsw = _open_file(path, guard) if memory is None else memory.connect()
            try:
                self._set_up()
                if guard is not None:
                    guard.opened()
            except BaseException:
                self._apsw.close(force=True)
                raise
        self._guard = guard

    def _set_up(self) -> None:
        self._apsw.set_busy_handler(self._on_busy)
        enable_wal(self._apsw)
        for pragma in PRAGMAS:
            self._apsw.execute(f"PRAGMA {pragma}")
        # Plans don't depend on the values of parameters. Otherwise SQLite would prepare most statements again for each
        # execution, which takes longer than the execution itself (bench: steps).
        self._apsw.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        self._apsw.execute("select 1 from sqlite_schema limit 1").fetchall()  # which creates the log
        if self._read_timeout_s is not None:
            self._apsw.set_progress_handler(self._is_over_time, PROGRESS_STEPS)

    def _on_busy(self, tries: int) -> bool:
        """Sleep before SQLite tries again to get a lock; False gives up.

        Of Holdfast's writers only the one that has the turn gets here, so another program or a checkpoint has the lock.
        """
        now = time.monotonic()
        if not tries:
            self._busy_until = now + BUSY_TIMEOUT_S
        if now >= self._busy_until:
            return False
        time.sleep(min(BUSY_MIN_POLL_S * 2 ** min(tries, 5), BUSY_MAX_POLL_S))
        return True

    def _begin_write(self) -> None:
        """Wait for the turn to write. Raise StoreReplaced if the file isn't the one that was opened."""
        if self._queue is not None:
            self._queue.acquire()
        guard = self._guard
        if guard is not None and (guard.failure is not None or time.monotonic() >= self._next_write_check):
            guard.check()

    def _write_error(self, error: apsw.Error, what: str) -> StoreError:
        """Translate the driver's error; name the process that has the write lock if it is known.

        After a wait in the queue that timed out, the error isn't a Conflict: callers retry conflicts.
        """
        if isinstance(error, apsw.FullError):
            with suppress(apsw.Error):
                self._renumbers = bool(self._exhausted_tables())
            if self._renumbers:
                return Conflict(f"{what}: a corrupt row has the highest possible number; its table is renumbered")
        if self._queue is None or not isinstance(error, apsw.BusyError):
            return translate_error(error, what)
        holder = self._queue.holder()
        whose = "another program has the write lock" if holder is None else f"the write lock is held by {holder}"
        waited = BUSY_TIMEOUT_S + self._queue.last_wait_s
        kind = StoreUnavailable if self._queue.is_overdue else Conflict
        return kind(f"{what}: another process is writing and didn't finish in {waited:.1f} s: {whose} ({error})")

    def _exhausted_tables(self) -> list[str]:
        """Return the tables that can't number new rows because a corrupt row has a number near the maximum."""
        tables: Any = self._apsw.execute(
            "select name, seq from sqlite_sequence where name glob 'holdfast_*'"
        ).fetchall()
        found = []
        for table, last in tables:
            highest: Any = self._apsw.execute(f"select coalesce(max(rowid), 0) from {table}").fetchall()[0][0]
            if max(last, highest) >= MAX_ROWID:
                found.append(str(table))
        return found

    def _renumber(self) -> None:
        """Give rows with numbers near the maximum the next ones behind the others, in the current transaction."""
        self._renumbers = False
        for table in self._exhausted_tables():
            last = f"(select coalesce(max(rowid), 0) from {table} where rowid < {MAX_ROWID})"
            for (rowid,) in self._apsw.execute(f"select rowid from {table} where rowid >= {MAX_ROWID}").fetchall():
                self._apsw.execute(f"update {table} set rowid = {last} + 1 where rowid = ?", (rowid,))
            self._apsw.execute(f"update sqlite_sequence set seq = {last} where name = ?", (table,))

    def _end_write(self) -> None:
        if self._queue is not None:
            self._queue.release()

    def execute(self, statement: Statement, values: Mapping[str, Any]) -> list[Row]:
        self.check_lent()
        if self._apsw_in_transaction() or not statement.writes or self._queue is None:
            return self._execute(statement, values)
        try:
            self._begin_write()
            if self._renumbers:
                with self._apsw:
                    self._renumber()
            rows = self._execute(statement, values)
            self._wrote()
            return rows
        finally:
            self._end_write()

    def _wrote(self) -> None:
        """Check after a commit that it didn't go into a file that was deleted or replaced."""
        if self._guard is not None:
            self._guard.check()
            self._next_write_check = time.monotonic() + WRITE_CHECK_S
        if self._queue is not None and self._queue.is_overdue:
            self._queue.wrote()

    def _apsw_in_transaction(self) -> bool:
        try:
            return self._apsw.in_transaction
        except apsw.Error as error:
            raise translate_error(error, self._what) from error

    def _execute(self, statement: Statement, values: Mapping[str, Any]) -> list[Row]:
        now = time.monotonic()
        if now >= self._next_check and self._guard is not None:
            self._next_check = now + CHECK_INTERVAL_S
            self._guard.check()
        self.busy_since = now
        try:
            rows: list[Row] = self._apsw.execute(statement.sql, values).fetchall()
            if statement.counted:
                return [(self._apsw.changes(),)]
            return _unpack(rows[0][0]) if statement.packed else rows
        except UnicodeDecodeError as error:
            if statement.writes:
                raise DataFault(f"{self._what} ({statement.name}): a stored text isn't UTF-8") from error
            return self._read_invalid_text(statement, values)
        except apsw.Error as error:
            if isinstance(error, apsw.InterruptError) and self._is_over_time():
                raise StoreUnavailable(
                    f"{self._what} ({statement.name}): the read exceeded {self._read_timeout_s:g} s and was interrupted"
                ) from error
            raise self._write_error(error, f"{self._what} ({statement.name})") from error
        finally:
            self.busy_since = None

    def _read_invalid_text(self, statement: Statement, values: Mapping[str, Any]) -> list[Row]:
        """Repeat a read whose text isn't UTF-8, as another program may have stored it, and replace the invalid bytes.

        apsw decodes text strictly, so the text of every column is read as bytes.
        """
        columns = _count_columns(self._apsw, statement.sql, values)
        names = [f"c{number}" for number in range(columns)]
        parts = (
            f"typeof({name}), case typeof({name}) when 'text' then cast({name} as blob) else {name} end"
            for name in names
        )
        sql = f"with found ({', '.join(names)}) as ({statement.sql}) select {', '.join(parts)} from found"
        with _translate_errors(f"{self._what} ({statement.name})"):
            found: list[Row] = self._apsw.execute(sql, values).fetchall()
        rows: list[Row] = [
            tuple(
                value.decode(errors="replace") if kind == "text" else value
                for kind, value in zip(row[::2], row[1::2], strict=True)
            )
            for row in found
        ]
        return _unpack(rows[0][0]) if statement.packed else rows

    def _is_over_time(self) -> bool:
        since = self.busy_since
        return (
            self._read_timeout_s is not None and since is not None and time.monotonic() - since > self._read_timeout_s
        )

    def execute_script(self, text: str) -> None:
        with _translate_errors(self._what):
            self._apsw.execute(text).fetchall()

    def begin(self) -> None:
        try:
            self._begin_write()
            self._apsw.execute("BEGIN IMMEDIATE")
            if self._renumbers:
                self._renumber()
        except apsw.Error as error:
            self._end_write()
            raise self._write_error(error, self._what) from error
        except BaseException:
            self._end_write()
            raise

    def commit(self) -> None:
        try:
            self.execute_script("COMMIT")
            self._wrote()
        except StoreError:
            self.rollback()
            raise
        self._end_write()

    def rollback(self) -> None:
        try:
            if self._apsw.in_transaction:
                self._apsw.execute("ROLLBACK")
        except apsw.ThreadingViolationError:
            raise
        except apsw.Error:
            self.close()
        self._end_write()

    def run(self, sql: str, values: Any) -> list[Row]:
        """Run a user's SQL. Errors reach the user unchanged."""
        with self._user_call():
            return self._apsw.execute(sql, values).fetchall()

    def run_described(self, sql: str, values: Any) -> StatementResult:
        """Run a user's SQL and describe the result."""
        columns: list[str] = []

        def describe(cursor: apsw.Cursor, sql: str, values: Any) -> bool:  # noqa: ARG001 - apsw gives them
            columns[:] = [name for name, _ in cursor.get_description()]  # a finished cursor has no description
            return True

        with self._user_call():
            cursor = self._apsw.cursor()
            cursor.exec_trace = describe
            before = self._apsw.total_changes()
            rows: list[Row] = cursor.execute(sql, values).fetchall()
            changed = self._apsw.changes() if self._apsw.total_changes() != before else 0
            return StatementResult(rows, columns, changed, self._apsw.last_insert_rowid())

    def run_many(self, sql: str, rows: Iterable[Any]) -> None:
        with self._user_call():
            self._apsw.executemany(sql, rows)

    @contextmanager
    def _user_call(self) -> Iterator[None]:
        self.check_lent()
        try:
            yield
        except (apsw.InterruptError, apsw.ThreadingViolationError):
            self.check_lent()
            raise
        self.check_lent()

    def expire(self) -> None:
        """Roll back a transaction that has held the only writer for too long. Called from another thread."""
        self._ended_early = self._expired
        while True:
            self.abort()
            with suppress(apsw.ThreadingViolationError):  # its own thread is in a call, which is interrupted
                self.rollback()
                return
            time.sleep(ROLLBACK_RETRY_S)

    def leave_queue(self) -> None:
        """Give the write queue to the connection that replaces this one."""
        self._queue = None

    def lend(self) -> None:
        """Lend the current transaction to user code until `end_lending`: reject its commits, detect its rollbacks."""
        if self._queue is not None:
            self._queue.note_holder()
        self._apsw.set_commit_hook(self._reject_commit)
        self._apsw.set_rollback_hook(self._note_rollback)

    def end_lending(self) -> None:
        with suppress(apsw.ConnectionClosedError):  # closed because its rollback failed
            self._apsw.set_commit_hook(None)
            self._apsw.set_rollback_hook(None)
        self._ended_early = None

    def check_lent(self) -> None:
        """Raise if the lent transaction has ended, by its time limit or by a statement of the user."""
        if self._ended_early is not None:
            raise self._ended_early()

    def _expired(self) -> HoldfastError:
        return transaction_expired(self._what)

    def _ended(self) -> HoldfastError:
        return transaction_ended(self._what)

    def _reject_commit(self) -> bool:
        raise self._ended()

    def _note_rollback(self) -> None:
        self._ended_early = self._ended_early or self._ended

    def data_version(self) -> int:
        """Return a number that changes whenever another connection of any process commits."""
        with _translate_errors(self._what):
            version: Any = self._apsw.execute("PRAGMA data_version").fetchall()[0][0]
            return int(version)

    def close(self) -> None:
        guard, self._guard = self._guard, None
        with guard.open_lock if guard is not None else nullcontext(), suppress(apsw.Error):
            if guard is not None:
                self._prepare_close(guard)
            try:
                self._apsw.set_rollback_hook(None)  # closing rolls back, but not by a statement of the user
                self._apsw.close(force=True)
            finally:
                if guard is not None:
                    guard.closed()
        self._end_write()

    def _prepare_close(self, guard: FileGuard) -> None:
        """Release the guard's locks, and skip SQLite's last checkpoint if the file or the log was replaced.

        The last connection copies the log into the file when it closes. It must not copy it into another file.
        """
        guard.closing()
        if not guard.is_intact():
            with suppress(apsw.Error):
                self._apsw.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)

    def abort(self) -> None:
        with suppress(apsw.Error):
            self._apsw.interrupt()


def _count_columns(connection: apsw.Connection, sql: str, values: Mapping[str, Any]) -> int:
    """Return the number of columns of a query, without running it."""
    found: list[int] = []

    def describe(cursor: apsw.Cursor, sql: str, values: Any) -> bool:  # noqa: ARG001 - apsw gives them
        found.append(len(cursor.get_description()))
        return False

    cursor = connection.cursor()
    cursor.exec_trace = describe
    with suppress(apsw.ExecTraceAbort):
        cursor.execute(sql, values)
    return found[0]


def transaction_expired(what: str) -> Expired:
    """Return the error of a user's transaction that was rolled back because it took too long."""
    return Expired(
        f"the transaction on {what} took longer than {MAX_TRANSACTION_S:g} s and was rolled back: it blocks all other"
        " writers, so do slow work before or after it"
    )


def enable_wal(connection: apsw.Connection) -> None:
    """Switch to WAL. Retry, because processes that start together conflict here and SQLite doesn't wait."""

    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = wal").fetchall()
            return
        except apsw.BusyError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
