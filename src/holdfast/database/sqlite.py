"""SQLite through apsw, which brings its own, current SQLite.

WAL, `synchronous=FULL`, and `BEGIN IMMEDIATE` for every transaction (a deferred one that turns into a write fails at
once when another writer was first, whatever the busy timeout). One connection writes for the whole process, the
heartbeat has its own so that it never waits for a thread of ours, and others only read: one for whoever asks, one for
the claimer, one that watches the file, one that counts what ended.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import msgspec

from holdfast.database.base import PATIENCE, Connection, Database, Line, News, Row, Watch
from holdfast.database.dialect import SqliteDialect
from holdfast.database.faults import Conflict, ConnectionLost, DataFault, Expired, Refused, driver_error, ended
from holdfast.database.fork import abandon, watch_over
from holdfast.database.memory import Memory
from holdfast.database.sqlite_watch import LOOK_SECONDS, NoWatch, SqliteWatch
from holdfast.database.statements import Statement
from holdfast.errors import ConfigError, HoldfastError, StoreError, StoreUnavailable

BUSY_MILLISECONDS = 5000
LOOK_STEPS = 10_000  # of SQLite's machine, between two looks at how long a read has taken
LONGEST_TRANSACTION = 5.0
OLDEST = (3, 51, 3)  # older ones can lose committed data when a checkpoint races a commit of another process
PRAGMAS = (
    "synchronous = full", "cache_size = -16000", "journal_size_limit = 67108864", "trusted_schema = off",
    "wal_autocheckpoint = 4000",  # pages: what is written again and again is copied to the file less often (bench jobs)
)  # fmt: skip

_TRY_LATER = (apsw.FullError, apsw.IOError, apsw.CantOpenError, apsw.ReadOnlyError, apsw.NoMemError)
_BAD_VALUE = (apsw.ConstraintError, apsw.MismatchError, apsw.TooBigError, apsw.RangeError)


_unpack = msgspec.json.Decoder(list[tuple[Any, ...]]).decode


def _as_ours(error: apsw.Error, what: str) -> StoreError:
    """A driver's error as ours. Which ones are final and which may pass is decided here and nowhere else."""
    if isinstance(error, apsw.BusyError | apsw.LockedError):
        return Conflict(f"{what}: another process is writing and didn't finish in time ({error})")
    if isinstance(error, _BAD_VALUE):
        return DataFault(f"{what}: {error}")
    if isinstance(error, _TRY_LATER):
        meaning = Refused if isinstance(error, apsw.ReadOnlyError | apsw.CantOpenError) else StoreUnavailable
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
        raise _as_ours(error, what) from error


class Ran(NamedTuple):
    """What a statement came to: its rows, the names of their columns, how many rows it wrote, the last id it gave."""

    rows: list[Row]
    columns: list[str]
    changed: int
    last_id: int


class SqliteConnection(Connection):
    """One apsw connection."""

    def __init__(self, path: str, longest: float | None = None, memory: Memory | None = None) -> None:
        self._what = f"SQLite file {path}"
        self._over: Callable[[], HoldfastError] | None = None  # why a lent transaction is over before its end
        self._longest = longest
        with _translated(self._what):
            self._apsw = apsw.Connection(path) if memory is None else memory.connect()
            self._apsw.set_busy_timeout(BUSY_MILLISECONDS)
            _use_wal(self._apsw)
            for pragma in PRAGMAS:
                self._apsw.execute(f"PRAGMA {pragma}")
            if longest is not None:
                self._apsw.set_progress_handler(self._took_too_long, LOOK_STEPS)

    def execute(self, statement: Statement, values: Mapping[str, Any]) -> list[Row]:
        self.refuse_if_over()
        self.busy_since = time.monotonic()
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
            raise _as_ours(error, f"{self._what} ({statement.name})") from error
        finally:
            self.busy_since = None

    def _took_too_long(self) -> bool:
        since = self.busy_since
        return self._longest is not None and since is not None and time.monotonic() - since > self._longest

    def script(self, text: str) -> None:
        with _translated(self._what):
            self._apsw.execute(text).fetchall()

    def begin(self) -> None:
        self.script("BEGIN IMMEDIATE")

    def commit(self) -> None:
        try:
            self.script("COMMIT")
        except StoreError:
            self.rollback()
            raise

    def rollback(self) -> None:
        try:
            if self._apsw.in_transaction:
                self._apsw.execute("ROLLBACK")
        except apsw.ThreadingViolationError:
            raise
        except apsw.Error:
            self.close()

    def run(self, sql: str, values: Any) -> list[Row]:
        """A caller's own SQL, whose errors reach the caller as they are."""
        with self._callers_turn():
            return self._apsw.execute(sql, values).fetchall()

    def run_described(self, sql: str, values: Any) -> Ran:
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
            return Ran(rows, columns, changed, self._apsw.last_insert_rowid())

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
            self.cut()
            with suppress(apsw.ThreadingViolationError):  # its own thread is at it, and will be interrupted
                self.rollback()
                return
            time.sleep(LOOK_SECONDS)

    def lend(self) -> None:
        """The transaction under way is a caller's, until `renew`: only we commit it, and one that was rolled back is
        noticed."""
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
        return Expired(
            f"the transaction on {self._what} took longer than {LONGEST_TRANSACTION:g} s and was rolled back:"
            " it holds the only writer of all processes, so do slow work before or after it"
        )

    def _ended(self) -> HoldfastError:
        return ended(self._what)

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
        with suppress(apsw.Error):
            self._apsw.set_rollback_hook(None)  # what is lost now, no statement has ended
            self._apsw.close(force=True)

    def cut(self) -> None:
        with suppress(apsw.Error):
            self._apsw.interrupt()


def _use_wal(connection: apsw.Connection) -> None:
    """Switch to WAL; processes that start together get in each other's way here, and SQLite doesn't wait by itself."""
    deadline = time.monotonic() + BUSY_MILLISECONDS / 1000
    while True:
        try:
            connection.execute("PRAGMA journal_mode = wal").fetchall()
            return
        except apsw.BusyError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


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
        self._paused: list[Line] = []
        self._holder: int | None = None  # the thread that has a transaction of its own on the writer
        watch_over(self)

    def line(self, purpose: str, patience: float = PATIENCE) -> Line:  # noqa: ARG002 - no server to run out of it
        purpose = "read" if purpose == "look" else purpose
        apart = purpose.startswith(("heartbeat", "pick", "watch", "tally")) or (
            purpose == "read" and not self.in_callers_transaction()
        )
        name = "all" if self._in_memory else purpose if apart else "write"
        longest = self.read_seconds if name == "read" else None
        return self._line(name, lambda: self._open(longest))

    @contextmanager
    def transaction(self) -> Iterator[SqliteTransaction]:
        """The writer, for a caller's tables and our verbs together, on this thread, for at most five seconds."""
        nested = self.in_callers_transaction()
        with self.line("client").hold() as connection:
            assert isinstance(connection, SqliteConnection)
            if nested:  # the outermost has the timer
                yield SqliteTransaction(connection)
                connection.refuse_if_over()
                return
            timer = threading.Timer(LONGEST_TRANSACTION, connection.expire)
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
                connection.renew()
                self._holder = None

    @contextmanager
    def authors_transaction(self, line: Line) -> Iterator[SqliteTransaction]:  # noqa: ARG002 - there is one writer
        with self.transaction() as connection:
            try:
                yield connection
            except Exception as error:
                if isinstance(found := driver_error(error), _TRY_LATER):
                    raise _as_ours(found, f"SQLite file {self._path}") from error
                raise

    def in_callers_transaction(self) -> bool:
        return self._holder == threading.get_ident()

    def watch(self, news: News = "work") -> Watch:
        return NoWatch() if self._in_memory else SqliteWatch(self.line(f"watch {news}"), self.line("commit"))

    def _open(self, longest: float | None) -> SqliteConnection:
        if self._in_memory:
            self._memory = self._memory or Memory()
        else:
            self._make_file()
        return SqliteConnection(self._path, longest, self._memory)

    def _make_file(self) -> None:
        """A new file is for its owner only; SQLite gives its -wal and -shm the same mode."""
        try:
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600))
        except FileNotFoundError:
            raise ConfigError(
                f"the folder of {self._path} doesn't exist; make it, or give another path in the URL"
            ) from None
        except IsADirectoryError:
            raise ConfigError(f"{self._path} is a folder; name a file in the URL, like sqlite:///jobs.db") from None
        except OSError as error:
            meaning = Refused if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS) else StoreUnavailable
            raise meaning(f"SQLite file {self._path} can't be opened: {error.strerror}") from error

    def migration_lock(self, connection: Connection) -> None:
        """Nothing to do: BEGIN IMMEDIATE has let no other process in."""

    def table_exists(self, connection: Connection, table: str) -> bool:
        query = Statement(
            "table_exists", "select 1 from sqlite_schema where type = 'table' and name = :table", ("table",)
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
            line.resume()
        self._paused = []
        if in_child:
            abandon((self._lines, self._memory))
            self._lines, self._lock, self._holder, self._memory = {}, threading.Lock(), None, None
        elif not self._in_memory:
            self._lock.release()

    def close(self) -> None:
        super().close()
        if self._memory is not None:
            self._memory.close()
            self._memory = None

    def cut_stuck(self, longest: float) -> int:
        return sum(line.cut_if_stuck(longest) for line in list(self._lines.values()))


def _version() -> tuple[int, ...]:
    return tuple(int(part) for part in apsw.sqlitelibversion().split("."))
