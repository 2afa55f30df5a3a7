"""One connection to a SQLite file: its settings, its transactions, and what the driver's errors mean."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, NamedTuple
from uuid import uuid4

import apsw
import msgspec

from holdfast.database.base import DatabaseConnection, Row
from holdfast.database.faults import AccessDenied, Conflict, ConnectionLost, DataFault, Expired, transaction_ended
from holdfast.database.file_guard import FileGuard
from holdfast.database.statements import Statement
from holdfast.database.write_queue import WriteQueue
from holdfast.errors import HoldfastError, StoreError, StoreUnavailable

BUSY_TIMEOUT_S = 5.0
ROLLBACK_RETRY_S = 0.005
BUSY_MIN_POLL_S, BUSY_MAX_POLL_S = 0.0002, 0.005
CHECK_INTERVAL_S = 1.0
"""How often a connection that only reads checks that the file wasn't replaced. Writes check it with each commit."""
WRITE_CHECK_S = 0.05
"""A write that begins within this time after a commit skips its first check, because the commit did one."""
LOOK_STEPS = 10_000  # of SQLite's machine, between two looks at how long a read has taken
MAX_TRANSACTION_S = 5.0
PRAGMAS = (
    "synchronous = full", "cache_size = -16000", "journal_size_limit = 67108864", "trusted_schema = off",
    "wal_autocheckpoint = 4000",  # pages: what is written again and again is copied to the file less often (bench jobs)
)  # fmt: skip

UNAVAILABLE_ERRORS = (apsw.FullError, apsw.IOError, apsw.CantOpenError, apsw.ReadOnlyError, apsw.NoMemError)
_BAD_VALUE = (apsw.ConstraintError, apsw.MismatchError, apsw.TooBigError, apsw.RangeError)


_unpack = msgspec.json.Decoder(list[tuple[Any, ...]]).decode


def translate_error(error: apsw.Error, what: str) -> StoreError:
    """A driver's error as ours. Which ones are final and which may pass is decided here and nowhere else."""
    if isinstance(error, apsw.BusyError | apsw.LockedError):
        return Conflict(f"{what}: another process is writing and didn't finish in time ({error})")
    if isinstance(error, _BAD_VALUE):
        return DataFault(f"{what}: {error}")
    if isinstance(error, UNAVAILABLE_ERRORS):
        meaning = AccessDenied if isinstance(error, apsw.ReadOnlyError | apsw.CantOpenError) else StoreUnavailable
        return meaning(f"{what} can't be used just now: {error}; is there room, and may it be written?")
    if isinstance(error, apsw.NotADBError | apsw.CorruptError):
        return StoreError(f"{what} is no SQLite database, or is damaged: {error}; give another file")
    if isinstance(error, apsw.ConnectionClosedError):
        return ConnectionLost(f"{what} was closed")
    if isinstance(error, apsw.InterruptError):
        return ConnectionLost(f"{what}: the call took too long and was interrupted")
    return StoreError(f"{what}: {error}")


@contextmanager
def _translated(what: str) -> Iterator[None]:
    try:
        yield
    except apsw.Error as error:
        raise translate_error(error, what) from error


_FLAGS = apsw.SQLITE_OPEN_URI | apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE


class MemoryFile:
    """The database. What is in it is gone when it is closed."""

    def __init__(self) -> None:
        self._uri = f"file:/{uuid4().hex}?vfs=memdb"
        self._kept = self.connect()

    def connect(self) -> apsw.Connection:
        return apsw.Connection(self._uri, flags=_FLAGS)

    def close(self) -> None:
        self._kept.close()


class StatementResult(NamedTuple):
    """What a statement came to: its rows, the names of their columns, how many rows it wrote, the last id it gave."""

    rows: list[Row]
    columns: list[str]
    changed: int
    last_id: int


class SqliteConnection(DatabaseConnection):
    """One apsw connection."""

    _guard: FileGuard | None = None
    _queue: WriteQueue | None = None
    _next_check = 0.0
    _next_write_check = 0.0

    def __init__(
        self,
        path: str,
        longest: float | None = None,
        memory: MemoryFile | None = None,
        guard: FileGuard | None = None,
        queue: WriteQueue | None = None,
    ) -> None:
        self._what = f"SQLite file {path}"
        self._over: Callable[[], HoldfastError] | None = None  # why a lent transaction is over before its end
        self._longest = longest
        self._queue = queue
        self._busy_until = 0.0
        with guard.open_lock if guard is not None else nullcontext(), _translated(self._what):
            self._apsw = apsw.Connection(path) if memory is None else memory.connect()
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
        self._apsw.execute("select 1 from sqlite_schema limit 1").fetchall()  # which creates the log
        if self._longest is not None:
            self._apsw.set_progress_handler(self._took_too_long, LOOK_STEPS)

    def _on_busy(self, tries: int) -> bool:
        """Sleep before SQLite tries again to get a lock; False gives up.

        Of Holdfast's own writers only the one that has the turn gets here, so the lock belongs to a writer of another
        program, or to a checkpoint.
        """
        now = time.monotonic()
        if not tries:
            self._busy_until = now + BUSY_TIMEOUT_S
        if now >= self._busy_until:
            return False
        time.sleep(min(BUSY_MIN_POLL_S * 2 ** min(tries, 5), BUSY_MAX_POLL_S))
        return True

    def _begin_write(self) -> None:
        """Wait for this connection's turn to write; raise StoreReplaced if the file isn't the one that was opened."""
        if self._queue is not None:
            self._queue.acquire()
        guard = self._guard
        if guard is not None and (guard.failure is not None or time.monotonic() >= self._next_write_check):
            guard.check()

    def _write_error(self, error: apsw.Error, what: str) -> StoreError:
        """Translate the driver's error; name the process that has the write lock if it is known.

        After a wait in the queue that timed out, the error isn't a Conflict: callers retry conflicts.
        """
        if self._queue is None or not isinstance(error, apsw.BusyError):
            return translate_error(error, what)
        holder = self._queue.holder()
        whose = "another program has the write lock" if holder is None else f"the write lock is held by {holder}"
        waited = BUSY_TIMEOUT_S + self._queue.last_wait_s
        kind = StoreUnavailable if self._queue.is_overdue else Conflict
        return kind(f"{what}: another process is writing and didn't finish in {waited:.1f} s: {whose} ({error})")

    def _end_write(self) -> None:
        if self._queue is not None:
            self._queue.release()

    def execute(self, statement: Statement, values: Mapping[str, Any]) -> list[Row]:
        self.refuse_if_over()
        if self._apsw_in_transaction() or not statement.writes or self._queue is None:
            return self._execute(statement, values)
        try:
            self._begin_write()
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
        except apsw.Error as error:
            if isinstance(error, apsw.InterruptError) and self._took_too_long():
                raise StoreUnavailable(
                    f"{self._what} ({statement.name}): it took longer than {self._longest:g} s and was ended"
                ) from error
            raise self._write_error(error, f"{self._what} ({statement.name})") from error
        finally:
            self.busy_since = None

    def _took_too_long(self) -> bool:
        since = self.busy_since
        return self._longest is not None and since is not None and time.monotonic() - since > self._longest

    def execute_script(self, text: str) -> None:
        with _translated(self._what):
            self._apsw.execute(text).fetchall()

    def begin(self) -> None:
        try:
            self._begin_write()
            self._apsw.execute("BEGIN IMMEDIATE")
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
        """A caller's own SQL, whose errors reach the caller as they are."""
        with self._callers_turn():
            return self._apsw.execute(sql, values).fetchall()

    def run_described(self, sql: str, values: Any) -> StatementResult:
        """A caller's own SQL, and what there is to know about it beside its rows."""
        columns: list[str] = []

        def describe(cursor: apsw.Cursor, sql: str, values: Any) -> bool:  # noqa: ARG001 - apsw gives them
            columns[:] = [name for name, _ in cursor.get_description()]  # later, a cursor without rows has none
            return True

        with self._callers_turn():
            cursor = self._apsw.cursor()
            cursor.exec_trace = describe
            before = self._apsw.total_changes()
            rows: list[Row] = cursor.execute(sql, values).fetchall()
            changed = self._apsw.changes() if self._apsw.total_changes() != before else 0
            return StatementResult(rows, columns, changed, self._apsw.last_insert_rowid())

    def run_many(self, sql: str, rows: Iterable[Any]) -> None:
        with self._callers_turn():
            self._apsw.executemany(sql, rows)

    @contextmanager
    def _callers_turn(self) -> Iterator[None]:
        self.refuse_if_over()
        try:
            yield
        except (apsw.InterruptError, apsw.ThreadingViolationError):
            self.refuse_if_over()
            raise
        self.refuse_if_over()

    def expire(self) -> None:
        """From another thread: the transaction under way has held the only writer for too long, and ends."""
        self._over = self._expired
        while True:
            self.abort()
            with suppress(apsw.ThreadingViolationError):  # its own thread is at it, and will be interrupted
                self.rollback()
                return
            time.sleep(ROLLBACK_RETRY_S)

    def leave_queue(self) -> None:
        """Write no more: another connection takes this one's place in the queue of writers."""
        self._queue = None

    def lend(self) -> None:
        """The transaction under way is a caller's, until `renew`: only we commit it, and one that was rolled back is
        noticed."""
        if self._queue is not None:
            self._queue.note_holder()
        self._apsw.set_commit_hook(self._refuse_commit)
        self._apsw.set_rollback_hook(self._note_rollback)

    def renew(self) -> None:
        with suppress(apsw.ConnectionClosedError):  # where not even a rollback was possible
            self._apsw.set_commit_hook(None)
            self._apsw.set_rollback_hook(None)
        self._over = None

    def refuse_if_over(self) -> None:
        """Raise when the transaction was ended: it took too long, or a statement in it did that."""
        if self._over is not None:
            raise self._over()

    def _expired(self) -> HoldfastError:
        return transaction_expired(self._what)

    def _ended(self) -> HoldfastError:
        return transaction_ended(self._what)

    def _refuse_commit(self) -> bool:
        raise self._ended()

    def _note_rollback(self) -> None:
        self._over = self._over or self._ended

    def data_version(self) -> int:
        """Changes whenever another connection, of any process, has committed."""
        with _translated(self._what):
            version: Any = self._apsw.execute("PRAGMA data_version").fetchall()[0][0]
            return int(version)

    def close(self) -> None:
        guard, self._guard = self._guard, None
        with guard.open_lock if guard is not None else nullcontext(), suppress(apsw.Error):
            if guard is not None:
                self._prepare_close(guard)
            try:
                self._apsw.set_rollback_hook(None)  # what is lost now, no statement has ended
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


def transaction_expired(what: str) -> Expired:
    """A caller's transaction was rolled back because it took too long."""
    return Expired(
        f"the transaction on {what} took longer than {MAX_TRANSACTION_S:g} s and was rolled back:"
        " it holds the only writer of all processes, so do slow work before or after it"
    )


def enable_wal(connection: apsw.Connection) -> None:
    """Switch to WAL; processes that start together get in each other's way here, and SQLite doesn't wait by itself."""
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = wal").fetchall()
            return
        except apsw.BusyError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
