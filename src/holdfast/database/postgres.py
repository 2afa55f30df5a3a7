"""PostgreSQL 14 and later through psycopg 3, blocking, autocommit, server-side parameters.

Every connection has timeouts of its own, on both sides: a server or a network that stops answering must not keep a
worker from noticing that its lease runs out.
"""

from __future__ import annotations

import os
import re
import select
import socket
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, Self

import psycopg
from psycopg import errors as pg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import TransactionStatus
from psycopg.types.string import TextLoader

from holdfast.database.base import (
    IDLE_TIMEOUT_S,
    ChangeListener,
    Database,
    DatabaseConnection,
    ManagedConnection,
    Row,
    Topic,
    abort_if_stuck,
)
from holdfast.database.dialect import PostgresDialect
from holdfast.database.faults import (
    AccessDenied,
    Conflict,
    ConnectionLost,
    DataFault,
    Duplicate,
    transaction_ended,
    unwrap_driver_error,
)
from holdfast.database.fork_safety import never_close, register_fork_hooks
from holdfast.database.statements import Statement
from holdfast.database.url import check_ports, check_postgres_url, redact_password
from holdfast.errors import ConfigError, StoreError, StoreUnavailable

CONNECT_TIMEOUT_S = 5
STATEMENT_TIMEOUT_S = 30
LOCK_TIMEOUT_S = 10
LISTENER_CHECK_INTERVAL_S = 10.0
PREPARE_AFTER = 2
SHARED_CONNECTIONS = {"read": "client", "pick": "claim", "look": "housekeeping", "tally": "housekeeping"}
"""By whose line goes what only reads: nobody waits for a writer here, and connections are dear."""

_NO_ROOM = (pg.InsufficientResources, pg.DiskFull, pg.OutOfMemory, pg.TooManyConnections, pg.ConfigurationLimitExceeded)
_TOO_MUCH = (pg.ProgramLimitExceeded, pg.StatementTooComplex)
_MEANINGS: tuple[tuple[tuple[type[psycopg.Error], ...], type[StoreError]], ...] = (
    ((pg.SerializationFailure, pg.DeadlockDetected), Conflict),
    ((pg.AdminShutdown, pg.CrashShutdown, pg.CannotConnectNow, pg.IdleInTransactionSessionTimeout), ConnectionLost),
    ((pg.ReadOnlySqlTransaction,), ConnectionLost),  # a server that was the primary until a moment ago
    ((pg.LockNotAvailable, *_NO_ROOM, pg.OperatorIntervention, pg.QueryCanceled), StoreUnavailable),
    ((pg.UniqueViolation,), Duplicate),
    ((psycopg.DataError, psycopg.IntegrityError, *_TOO_MUCH), DataFault),
)
_REFUSAL = re.compile(
    "does not exist|no such (database|user)|authentication failed|no password supplied|pg_hba.conf|permission denied"
    "|server does not support SSL|certificate"
)


_NO_OPTIONS = "unsupported startup parameter"


class OptionsRefused(AccessDenied):
    """A pooler takes no settings at the start of a connection."""


def _as_ours(error: psycopg.Error, what: str) -> StoreError:
    """A driver's error as ours. Which ones are final and which may pass is decided here and nowhere else."""
    for kinds, meaning in _MEANINGS:
        if isinstance(error, kinds):
            return meaning(f"{what}: {error}")
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return ConnectionLost(f"{what}: the connection was lost ({_first_line(error)})")
    return StoreError(f"{what}: {error}")


@contextmanager
def _translated(what: str) -> Iterator[None]:
    try:
        yield
    except psycopg.Error as error:
        raise _as_ours(error, what) from error


class LentCursor(psycopg.Cursor[Any]):
    """Author code's cursor, inside a transaction that is ours to end. psycopg refuses `connection.commit()` there by
    itself; that SQL ended it is noticed behind the statement."""

    def execute(self, *args: Any, **kwargs: Any) -> Self:
        super().execute(*args, **kwargs)
        if _idle(self.connection):
            raise transaction_ended(self.connection.info.dbname)
        return self


def _idle(connection: psycopg.Connection[Any]) -> bool:
    return connection.pgconn.transaction_status == TransactionStatus.IDLE


class PostgresConnection(DatabaseConnection):
    """One psycopg connection."""

    _lent = False

    def __init__(self, conninfo: str, shown: str) -> None:
        self._what = shown
        try:
            self._psycopg = psycopg.connect(
                conninfo, autocommit=True, cursor_factory=psycopg.RawCursor, prepare_threshold=PREPARE_AFTER
            )
        except psycopg.Error as error:
            reason = _first_line(error)
            if _REFUSAL.search(reason):
                reason = reason.rpartition("FATAL:")[2].strip()
                raise AccessDenied(
                    f"{shown} refused us: {reason}; check the URL's database, user and password"
                ) from error
            if _NO_OPTIONS in reason:
                raise OptionsRefused(
                    f"{shown} refused the options of the URL; let pgbouncer ignore_startup_parameters = options"
                ) from error
            raise StoreUnavailable(f"{shown} can't be reached: {reason}; is the server up?") from error
        self.pooled = self._is_pooled()
        if self.pooled:
            self._psycopg.prepare_threshold = None
        self._cursor = self._psycopg.cursor()
        self._cursor.adapters.register_loader("uuid", TextLoader)  # here only: authors, who borrow it, get UUIDs

    def _is_pooled(self) -> bool:
        """Whether somebody stands between us and the server, such as pgbouncer, who may give each of our transactions
        to another of its connections: then what answers isn't the process that we were told of at the start."""
        with _translated(self._what):
            row = self._psycopg.execute("select pg_backend_pid()", prepare=False).fetchone()
        return row is not None and row[0] != self._psycopg.info.backend_pid

    def execute(self, statement: Statement, values: Mapping[str, Any]) -> list[Row]:
        if self._lent and _idle(self._psycopg):
            raise transaction_ended(self._what)
        self.busy_since = time.monotonic()
        try:
            cursor = self._cursor
            cursor.execute(statement.sql, statement.texts(values))
            result = cursor.pgresult  # asked for its columns, the cursor would describe them all
            return cursor.fetchall() if result is not None and result.nfields else []
        except psycopg.Error as error:
            raise _as_ours(error, f"{self._what} ({statement.name})") from error
        finally:
            self.busy_since = None

    def execute_script(self, text: str) -> None:
        self.busy_since = time.monotonic()
        try:
            with _translated(self._what):
                self._psycopg.execute(text.encode())
        finally:
            self.busy_since = None

    def begin(self) -> None:
        self.execute_script("BEGIN ISOLATION LEVEL READ COMMITTED")

    def commit(self) -> None:
        self.execute_script("COMMIT")

    def rollback(self) -> None:
        with suppress(psycopg.Error):
            self._psycopg.execute("ROLLBACK")

    @contextmanager
    def lent(self) -> Iterator[psycopg.Connection[Any]]:
        """The connection for author code, inside a transaction. Its errors reach the author as they are; that the
        connection broke, or the server has no room, and those of the commit, are ours."""
        connection = self._psycopg
        connection.cursor_factory = LentCursor
        block = connection.transaction()
        try:
            with _translated(self._what):
                block.__enter__()
            self._depth, self._lent = 1, True
            try:
                yield connection
            except BaseException as error:
                self._depth, self._lent = 0, False
                with suppress(psycopg.Error):
                    block.__exit__(type(error), error, error.__traceback__)
                if connection.broken and isinstance(error, Exception):
                    raise ConnectionLost(f"{self._what}: the connection was lost ({_first_line(error)})") from error
                if isinstance(unwrap_driver_error(error), _NO_ROOM):
                    raise StoreUnavailable(f"{self._what} can't be used just now: {_first_line(error)}") from error
                raise
            self._depth, self._lent = 0, False
            with _translated(self._what):
                block.__exit__(None, None, None)
        finally:
            connection.cursor_factory = psycopg.RawCursor

    def close(self) -> None:
        with suppress(psycopg.Error):
            self._psycopg.close()

    def abort(self) -> None:
        with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(self._psycopg.fileno())) as wire:
            wire.shutdown(socket.SHUT_RDWR)

    def listen(self, channel: str) -> None:
        self.execute_script(f'LISTEN "{channel}"')

    def notified(self) -> bool:
        """Whether notifications have come."""
        with _translated(self._what):
            return any(True for _ in self._psycopg.notifies(timeout=0))

    def fileno(self) -> int:
        """What can be waited for."""
        with _translated(self._what):
            return self._psycopg.fileno()


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


class PostgresListener(ChangeListener):
    """LISTEN on a connection of its own. A silent connection is asked now and then whether it still lives. Behind a
    pooler nothing would be heard, so that the others only poll."""

    def __init__(self, database: PostgresDatabase, purpose: str, channel: str) -> None:
        self._database = database
        self._purpose = purpose
        self._channel = channel
        self._connection: PostgresConnection | None = None
        self._checked = 0.0
        self._bell: tuple[socket.socket, socket.socket] | None = None  # a byte into the second ends a wait on the first

    def wait(self, longest: float, stop: threading.Event) -> bool:
        if self.polling_only:
            stop.wait(longest)
            return False
        try:
            if self._connection is None:
                self._connection = self._database.connect(self._purpose, IDLE_TIMEOUT_S)
                if self._connection.pooled:
                    self.polling_only = True
                    self._hang_up()
                    return False
                self._connection.listen(self._channel)
                self._checked = time.monotonic()
                return True  # what came before the LISTEN was not heard
            return self._listen(longest, stop)
        except StoreError:
            self._hang_up()
            raise

    def _listen(self, longest: float, stop: threading.Event) -> bool:
        connection = self._connection
        assert connection is not None
        self._bell = self._bell or socket.socketpair()
        deadline = time.monotonic() + longest
        while not stop.is_set() and (left := deadline - time.monotonic()) > 0:
            if connection.notified():
                self._checked = time.monotonic()
                return True
            if time.monotonic() - self._checked > LISTENER_CHECK_INTERVAL_S:
                connection.listen(self._channel)  # once more changes nothing, and tells the doctor
                self._checked = time.monotonic()
            poll = select.poll()
            poll.register(connection, select.POLLIN)
            poll.register(self._bell[0], select.POLLIN)
            poll.poll(min(left, LISTENER_CHECK_INTERVAL_S) * 1000)
        return False

    def interrupt(self) -> None:
        bell = self._bell
        if bell is not None:
            with suppress(OSError):  # closed: then nobody waits
                bell[1].send(b"!")

    def abort_if_stuck(self, longest: float) -> bool:
        return abort_if_stuck(self._connection, longest)

    def close(self) -> None:
        self._hang_up()
        for end in self._bell or ():
            end.close()
        self._bell = None

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class PostgresDatabase(Database):
    """One schema of one PostgreSQL database."""

    dialect: PostgresDialect

    def __init__(self, url: str, schema: str) -> None:
        super().__init__()
        self.dialect = PostgresDialect(schema)
        check_postgres_url(url)
        self.display_url = redact_password(url)
        try:
            self._given = conninfo_to_dict(url)
        except psycopg.ProgrammingError as error:
            reason = _first_line(error).replace(url, self.display_url)
            raise ConfigError(f"{self.display_url} is no PostgreSQL URL: {reason}") from None
        except UnicodeDecodeError:
            raise ConfigError(f"{self.display_url} is no PostgreSQL URL: an escaped part of it isn't UTF-8") from None
        check_ports(self._given.get("port"), self.display_url)
        self._watches: weakref.WeakSet[PostgresListener] = weakref.WeakSet()
        self._takes_options = True  # pgbouncer may refuse them: then what the server's own settings say holds
        register_fork_hooks(self)

    def connection(self, purpose: str, idle_timeout_s: float = IDLE_TIMEOUT_S) -> ManagedConnection:
        alone = purpose == "read" and self.read_timeout_s is not None
        name = purpose if alone else SHARED_CONNECTIONS.get(purpose, purpose)
        return self._managed(name, lambda: self.connect(name, idle_timeout_s))

    def change_listener(self, news: Topic = "work") -> ChangeListener:
        of_work = news == "work"
        channel = self.dialect.channel if of_work else self.dialect.ends_channel
        watch = PostgresListener(self, "listener" if of_work else "ends", channel)
        self._watches.add(watch)
        return watch

    def transaction(self) -> AbstractContextManager[Any]:
        raise ConfigError(
            "app.transaction() is for SQLite; on PostgreSQL enqueue in your own transaction: task.options(connection=…)"
        )

    @contextmanager
    def task_transaction(self, line: ManagedConnection) -> Iterator[Any]:
        """Author code gets the psycopg connection, with its usual cursors; `commit` and `rollback` are ours."""
        with line.exclusive() as connection:
            assert isinstance(connection, PostgresConnection)
            with connection.lent() as theirs:
                yield theirs

    def connect(self, purpose: str, idle_timeout_s: float) -> PostgresConnection:
        """A new connection with our settings; what the URL says comes before our defaults, except what we rely on."""
        milliseconds = {
            "statement_timeout": STATEMENT_TIMEOUT_S * 1000,
            "lock_timeout": LOCK_TIMEOUT_S * 1000,
            "idle_in_transaction_session_timeout": int(idle_timeout_s * 1000),
        }
        if purpose.startswith("author"):  # its time is the author's
            milliseconds = dict.fromkeys(milliseconds, 0)
        if purpose == "read" and self.read_timeout_s is not None:
            milliseconds["statement_timeout"] = int(self.read_timeout_s * 1000)
        settings = ["-c default_transaction_isolation=read\\ committed", "-c jit=off"]
        if purpose == "claim":  # lanes are read in their order, as far as wanted; sorted, they would be read to the end
            settings.append("-c enable_bitmapscan=off")
        settings += [f"-c {name}={value}" for name, value in milliseconds.items()]
        defaults = {
            "application_name": f"holdfast {purpose}",
            "connect_timeout": CONNECT_TIMEOUT_S,
            "tcp_user_timeout": int(idle_timeout_s * 1000),
            "keepalives_idle": 10,
            "keepalives_interval": 5,
            "keepalives_count": 3,
        }
        given: dict[str, Any] = {**defaults, **self._given}
        if self._takes_options:
            options = " ".join([str(self._given.get("options") or ""), *settings]).strip()
            try:
                return PostgresConnection(make_conninfo(**{**given, "options": options}), self.display_url)
            except OptionsRefused:
                if "options" in self._given:
                    raise  # what the URL asks for isn't ours to leave out
                self._takes_options = False
        return PostgresConnection(make_conninfo(**given), self.display_url)

    def lock_migrations(self, connection: DatabaseConnection) -> None:
        """An index may take its time, and so may another process that makes it. A lock on a table isn't waited for for
        long: everybody else would wait behind us."""
        connection.execute_script("set local statement_timeout = 0")
        connection.execute_script("set local lock_timeout = 0")
        lock = Statement("migration_lock", "select pg_advisory_xact_lock(hashtextextended($1, 0))", ("name",))
        connection.execute(lock, {"name": f"holdfast migration {self.dialect.schema}"})
        connection.execute_script(f"set local lock_timeout = {LOCK_TIMEOUT_S * 1000}")
        known = Statement("schema_exists", "select 1 from pg_namespace where nspname = $1", ("name",))
        if not connection.execute(known, {"name": self.dialect.schema}):
            connection.execute_script(f'create schema "{self.dialect.schema}"')

    def table_exists(self, connection: DatabaseConnection, table: str) -> bool:
        query = Statement("table_exists", "select to_regclass($1) is not null", ("table",))
        return bool(connection.execute(query, {"table": f'"{self.dialect.schema}".{table}'})[0][0])

    def before_fork(self) -> None:
        """Nothing: the child leaves our connections alone."""

    def after_fork(self, *, in_child: bool) -> None:
        if in_child:
            never_close((self._connections, list(self._watches)))
            self._connections, self._watches, self._lock = {}, weakref.WeakSet(), threading.Lock()

    def abort_stuck_calls(self, longest: float) -> int:
        stuck: list[ManagedConnection | PostgresListener] = [*self._connections.values(), *self._watches]
        return sum(each.abort_if_stuck(longest) for each in stuck)
