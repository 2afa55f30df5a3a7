"""PostgreSQL 14 and later through psycopg 3: blocking, autocommit, server-side parameters.

Every connection has timeouts on both sides: a server or network that stops responding must not keep a worker from
noticing that its lease expires.
"""

from __future__ import annotations

import os
import re
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, Self

import psycopg
from psycopg import errors as pg
from psycopg.adapt import Transformer
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import ConnStatus, ExecStatus, TransactionStatus
from psycopg.types.string import TextLoader

from holdfast.database.base import (
    IDLE_TIMEOUT_S,
    ChangeListener,
    Database,
    DatabaseConnection,
    ManagedConnection,
    Row,
    Topic,
)
from holdfast.database.dialect import PostgresDialect
from holdfast.database.faults import (
    MOVED_SQLSTATE,
    TENANT_MOVED_SQLSTATE,
    UNEXPECTED,
    AccessDenied,
    Conflict,
    ConnectionLost,
    DataFault,
    Duplicate,
    ExpectationFailed,
    transaction_ended,
    unwrap_driver_error,
)
from holdfast.database.fork_safety import never_close, register_fork_hooks
from holdfast.database.statements import Statement
from holdfast.database.url import check_ports, check_postgres_url, redact_password
from holdfast.errors import ConfigError, StoreError, StoreMoved, StoreUnavailable, TenantMoved

CONNECT_TIMEOUT_S = 5
STATEMENT_TIMEOUT_S = 30
LOCK_TIMEOUT_S = 10
LISTENER_CHECK_INTERVAL_S = 10.0
PREPARE_AFTER = 2
"""Executions of a statement on one connection before it is prepared."""
MAX_PREPARED = 200
SEARCH_PATH = "pg_catalog,pg_temp"
"""Only built-in functions and operators. A role that may create objects in another schema, such as `public`, could
otherwise make the worker call an overloaded operator. Tables are named with their schema."""
SHARED_CONNECTIONS = {"read": "client", "pick": "claim", "poll": "claim", "stats": "housekeeping"}
"""Reads share a writer's connection: they don't block each other here, and connections are expensive."""
PERMANENT_CONNECTIONS = ("heartbeat", "claim")
"""What an idle worker uses. It opens the others when it needs them."""

OUT_OF_RESOURCES = (
    pg.InsufficientResources,
    pg.DiskFull,
    pg.OutOfMemory,
    pg.TooManyConnections,
    pg.ConfigurationLimitExceeded,
)
_TOO_COMPLEX = (pg.ProgramLimitExceeded, pg.StatementTooComplex)
_ERROR_TYPES: tuple[tuple[tuple[type[psycopg.Error], ...], type[StoreError]], ...] = (
    ((pg.SerializationFailure, pg.DeadlockDetected), Conflict),
    ((pg.AdminShutdown, pg.CrashShutdown, pg.CannotConnectNow, pg.IdleInTransactionSessionTimeout), ConnectionLost),
    ((pg.ReadOnlySqlTransaction,), ConnectionLost),  # the server was the primary until a failover
    ((pg.LockNotAvailable, *OUT_OF_RESOURCES, pg.OperatorIntervention, pg.QueryCanceled), StoreUnavailable),
    ((pg.UniqueViolation,), Duplicate),
    ((psycopg.DataError, psycopg.IntegrityError, *_TOO_COMPLEX), DataFault),
)
_REJECTION = re.compile(
    "does not exist|no such (database|user)|authentication failed|no password supplied|pg_hba.conf|permission denied"
    "|server does not support SSL|certificate"
)


_READ_SESSION = """select pg_catalog.pg_backend_pid(), pg_catalog.current_setting('search_path'),
    cast(pg_catalog.current_schemas(true) as text[])"""
_OPTIONS_REJECTED = "unsupported startup parameter"
_NO_CONNECTIONS = re.compile("too many (clients|connections)|remaining connection slots|no more connections allowed")
_MORE_CONNECTIONS = "close unneeded connections, raise max_connections, or use pgbouncer"


class OptionsRejected(AccessDenied):
    """A pooler rejects startup options."""


def translate_error(error: psycopg.Error, what: str) -> StoreError:
    """Translate a driver error. This is the only place that decides which errors are transient."""
    if error.sqlstate == MOVED_SQLSTATE:
        return StoreMoved(f"{what}: {error.diag.message_primary}")
    if error.sqlstate == TENANT_MOVED_SQLSTATE:
        return TenantMoved(f"{what}: {error.diag.message_primary}")
    if isinstance(error, pg.InsufficientPrivilege):
        return AccessDenied(f"{what}: {first_line(error)}; `holdfast roles` shows what each role may do")
    if isinstance(error, pg.InvalidTextRepresentation) and UNEXPECTED in str(error.diag.message_primary):
        return ExpectationFailed(f"{what}: {UNEXPECTED}")
    for kinds, meaning in _ERROR_TYPES:
        if isinstance(error, kinds):
            return meaning(f"{what}: {error}")
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return ConnectionLost(f"{what}: connection lost ({first_line(error)})")
    return StoreError(f"{what}: {error}")


@contextmanager
def _translate_errors(what: str) -> Iterator[None]:
    try:
        yield
    except psycopg.Error as error:
        raise translate_error(error, what) from error


class TaskCursor(psycopg.Cursor[Any]):
    """A cursor for SQL of tasks, in a transaction that only Holdfast may end.

    psycopg itself rejects `connection.commit()` there; this cursor detects SQL that ended the transaction.
    """

    def execute(self, *args: Any, **kwargs: Any) -> Self:
        super().execute(*args, **kwargs)
        if _idle(self.connection):
            raise transaction_ended(self.connection.info.dbname)
        return self


def _idle(connection: psycopg.Connection[Any]) -> bool:
    return connection.pgconn.transaction_status == TransactionStatus.IDLE


class _Call:
    """A statement for the server, and its result."""

    __slots__ = ("name", "parameters", "result", "sql")

    def __init__(self, name: str, sql: str, parameters: Sequence[bytes | None] = ()) -> None:
        self.name = name
        self.sql = sql
        self.parameters = parameters
        self.result: Any = None


class PostgresConnection(DatabaseConnection):
    """One psycopg connection.

    Statements go through psycopg's wrapper of libpq instead of its cursors, which take longer than the server for a
    small statement. Several statements of a transaction share a round trip: `begin` is sent with the first one, and
    those that were queued with the next one whose rows are needed, or with the commit (decision 26).
    """

    _is_lent = False

    def __init__(self, conninfo: str, display_url: str, *, for_tasks: bool = False) -> None:
        """Connect. `for_tasks` keeps the user's own `search_path`, because SQL of tasks depends on it."""
        self._what = display_url
        self._queued: list[_Call] = []
        try:
            self._psycopg = psycopg.connect(
                conninfo, autocommit=True, cursor_factory=psycopg.RawCursor,
                prepare_threshold=PREPARE_AFTER if for_tasks else None,
            )  # fmt: skip
        except psycopg.Error as error:
            reason = first_line(error)
            if _REJECTION.search(reason):
                reason = reason.rpartition("FATAL:")[2].strip()
                raise AccessDenied(
                    f"{display_url} rejected the connection: {reason}; check the URL's database, user and password"
                ) from error
            if _OPTIONS_REJECTED in reason:
                raise OptionsRejected(
                    f"{display_url} rejected the URL's options; set ignore_startup_parameters = options in pgbouncer"
                ) from error
            hint = _MORE_CONNECTIONS if _NO_CONNECTIONS.search(reason) else "is the server running?"
            raise StoreUnavailable(f"cannot connect to {display_url}: {reason}; {hint}") from error
        with _translate_errors(self._what):
            pid, path, schemas = self._psycopg.execute(_READ_SESSION, prepare=False).fetchone() or (0, "", [])
        self.pooled = pid != self._psycopg.info.backend_pid
        """Whether a pooler such as pgbouncer may run each transaction on another server connection.

        If so, the backend that answers isn't the one that was announced at the start.
        """
        self._begin = "BEGIN ISOLATION LEVEL READ COMMITTED"
        if self.pooled:
            self._psycopg.prepare_threshold = None
        if not for_tasks and path != SEARCH_PATH:
            self._restrict_search_path(path, schemas)
        self._cursor = self._psycopg.cursor()
        self._cursor.adapters.register_loader("uuid", TextLoader)  # on this cursor only: SQL of tasks gets UUIDs
        self._loader = Transformer(self._cursor)
        self._encoding = self._psycopg.info.encoding
        self._pipelines = not (self.pooled or for_tasks) and psycopg.Pipeline.is_supported()
        self._uses: dict[str, int] = {}  # by SQL, of statements that aren't prepared
        self._prepared: dict[str, bytes] = {}  # the names of prepared statements, by SQL
        self._last_name = 0
        self._is_listening = False
        self.changed_rows = 0
        """How many rows the last statement has changed or returned."""
        self._readable, self._writable = select.poll(), select.poll()
        self._readable.register(self._psycopg.fileno(), select.POLLIN)
        self._writable.register(self._psycopg.fileno(), select.POLLIN | select.POLLOUT)

    def _restrict_search_path(self, path: str, schemas: list[str]) -> None:
        """Let names resolve to built-in objects only, because the server or a pooler ignored the startup options.

        Behind a pooler only transactions can be restricted: a setting of the session would reach other clients. A
        statement on its own relies on `PostgresDialect.fill`, which holds while `pg_catalog` comes first.
        """
        if not self.pooled:
            self.execute_script(f"SET search_path = {SEARCH_PATH}")
            return
        self._begin += f"; SET LOCAL search_path = {SEARCH_PATH}"
        if [schema for schema in schemas if not schema.startswith("pg_temp")][:1] != ["pg_catalog"]:
            self.close()
            raise AccessDenied(
                f"{self._what}: the search_path ({path}) of this user has a schema before pg_catalog, whose functions"
                " could replace built-in ones; remove pg_catalog from it, so that it comes first"
            )

    def execute(self, statement: Statement, values: Mapping[str, Any]) -> list[Row]:
        if self._is_lent:
            return self._execute_lent(statement, values)
        call = self._call(statement, values)
        self._flush(call)
        return self._rows_of(call)

    def _execute_lent(self, statement: Statement, values: Mapping[str, Any]) -> list[Row]:
        """Execute with psycopg's cursor, because the task that uses the connection does so, too."""
        if _idle(self._psycopg):
            raise transaction_ended(self._what)
        self.busy_since = time.monotonic()
        try:
            with _translate_errors(f"{self._what} ({statement.name})"):
                self._cursor.execute(statement.sql, statement.texts(values))
                self.changed_rows = self._cursor.rowcount
                return self._cursor.fetchall() if self._cursor.description else []
        finally:
            self.busy_since = None

    def queue(self, statement: Statement, values: Mapping[str, Any]) -> Callable[[], list[Row]]:
        if not self._pipelines or self._is_lent or not self._depth:
            return super().queue(statement, values)
        call = self._call(statement, values)
        self._queued.append(call)

        def rows() -> list[Row]:
            if call.result is None:
                self._flush()
            return self._rows_of(call)

        return rows

    def _call(self, statement: Statement, values: Mapping[str, Any]) -> _Call:
        encoding = self._encoding
        encoded = [None if text is None else text.encode(encoding) for text in statement.texts(values)]
        for text in encoded:
            if text is not None and b"\0" in text:
                what = f"{self._what} ({statement.name})"
                raise DataFault(f"{what}: PostgreSQL text can't contain NUL (0x00) characters")
        return _Call(statement.name, statement.sql, encoded)

    def _rows_of(self, call: _Call) -> list[Row]:
        result = call.result
        if not result.nfields:
            return []
        loader = self._loader
        loader.set_pgresult(result)
        rows = loader.load_rows(0, result.ntuples, tuple)
        loader.set_pgresult(None)  # it may be large
        return rows

    def _flush(self, *more: _Call) -> None:
        """Send the queued statements and these in one round trip, and wait for their results."""
        calls, self._queued = [*self._queued, *more], []
        self.busy_since = time.monotonic()
        try:
            if len(calls) == 1 and (calls[0].sql in self._prepared or not self._pipelines):
                self._exchange(calls[0])
            elif calls:
                self._exchange_all(calls)
            if calls:
                self.changed_rows = calls[-1].result.command_tuples or 0
            if self._is_listening:
                self._call_notification_handler()
        finally:
            self.busy_since = None

    def _exchange(self, call: _Call) -> None:
        """Execute one statement that is prepared already, or that must not be prepared."""
        connection = self._psycopg.pgconn
        try:
            name = self._prepared.get(call.sql)
            if name is None:
                connection.send_query_params(call.sql.encode(), call.parameters)
            else:
                connection.send_query_prepared(name, call.parameters)
            self._send()
            self._receive_result(call)
        except psycopg.Error as error:
            raise self._failed(call, error) from error

    def _exchange_all(self, calls: Sequence[_Call]) -> None:
        """Execute statements in one round trip. If one fails, the server skips the rest, and its error is raised."""
        connection = self._psycopg.pgconn
        failure: StoreError | None = None
        failed: psycopg.Error | None = None
        call = calls[0]
        try:
            connection.enter_pipeline_mode()
            try:
                expected = [each for call in calls for each in self._send_in_pipeline(call)]
                connection.pipeline_sync()
                self._send()
                for call, new_name in expected:
                    try:
                        self._receive_result(call)
                        if new_name is not None:
                            self._prepared[call.sql] = new_name
                    except psycopg.Error as error:
                        if connection.status != ConnStatus.OK:
                            raise
                        if failure is None:
                            failure, failed = self._failed(call, error), error
                self._receive()  # the reply to `pipeline_sync`
            finally:
                with suppress(psycopg.Error):  # an interrupt leaves results; the connection is closed then
                    connection.exit_pipeline_mode()
        except psycopg.Error as error:
            raise self._failed(call, error) from error
        if failure is not None:
            raise failure from failed

    def _send_in_pipeline(self, call: _Call) -> list[tuple[_Call, bytes | None]]:
        """Send a statement. Return a pair per expected result: the statement, and its name if that prepares it."""
        connection = self._psycopg.pgconn
        sql = call.sql
        name = self._prepared.get(sql)
        if name is not None:
            connection.send_query_prepared(name, call.parameters)
            return [(call, None)]
        uses = self._uses[sql] = self._uses.get(sql, 0) + 1
        if uses <= PREPARE_AFTER or len(self._prepared) >= MAX_PREPARED:
            connection.send_query_params(sql.encode(), call.parameters)
            return [(call, None)]
        self._last_name += 1
        name = f"holdfast_{self._last_name}".encode()
        connection.send_prepare(name, sql.encode())
        connection.send_query_prepared(name, call.parameters)
        return [(call, name), (call, None)]

    def _send(self) -> None:
        connection = self._psycopg.pgconn
        while connection.flush():
            self._writable.poll()
            connection.consume_input()

    def _receive(self) -> Any:
        """Wait for the next result; None after the last one of a statement."""
        connection = self._psycopg.pgconn
        while connection.is_busy():
            self._readable.poll()
            connection.consume_input()
        return connection.get_result()

    def _receive_result(self, call: _Call) -> None:
        """Wait for a statement. Raise its error."""
        result = self._receive()
        while self._receive() is not None:
            pass
        if result is None or result.status not in (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK):
            if result is None:
                raise psycopg.OperationalError("the server closed the connection")
            raise pg.error_from_result(result, encoding=self._encoding)
        call.result = result

    def _failed(self, call: _Call, error: psycopg.Error) -> StoreError:
        failure = translate_error(error, f"{self._what} ({call.name})")
        if not isinstance(failure, ExpectationFailed):
            self._prepared.pop(call.sql, None)  # its plan may be the reason
        return failure

    def execute_script(self, text: str) -> None:
        if self._queued:
            self._flush()
        self.busy_since = time.monotonic()
        try:
            with _translate_errors(self._what):
                self._psycopg.execute(text.encode())
        finally:
            self.busy_since = None

    def begin(self) -> None:
        if self._pipelines:
            self._queued = [_Call("begin", self._begin)]
        else:
            self.execute_script(self._begin)

    def commit(self) -> None:
        if not self._pipelines:
            self.execute_script("COMMIT")
        elif [call.name for call in self._queued] == ["begin"]:
            self._queued = []  # nothing was executed
        else:
            self._flush(_Call("commit", "COMMIT"))

    def rollback(self) -> None:
        has_begun = not any(call.name == "begin" for call in self._queued)
        self._queued = []
        if has_begun:
            with suppress(psycopg.Error):
                self._psycopg.execute("ROLLBACK")

    @contextmanager
    def lend(self) -> Iterator[psycopg.Connection[Any]]:
        """Lend the connection to a task, in a transaction.

        Errors of the task's SQL reach the task unchanged, except a broken connection and a server out of resources.
        Errors of the commit are translated.
        """
        connection = self._psycopg
        connection.cursor_factory = TaskCursor
        block = connection.transaction()
        try:
            with _translate_errors(self._what):
                block.__enter__()
            self._depth, self._is_lent = 1, True
            try:
                yield connection
            except BaseException as error:
                self._depth, self._is_lent = 0, False
                with suppress(psycopg.Error):
                    block.__exit__(type(error), error, error.__traceback__)
                if connection.broken and isinstance(error, Exception):
                    raise ConnectionLost(f"{self._what}: connection lost ({first_line(error)})") from error
                if isinstance(unwrap_driver_error(error), OUT_OF_RESOURCES):
                    raise StoreUnavailable(f"{self._what} is out of resources: {first_line(error)}") from error
                raise
            self._depth, self._is_lent = 0, False
            with _translate_errors(self._what):
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

    def on_notification(self, call: Callable[[], None]) -> None:
        """Call this for each notification, in the thread that reads it: `read_notifications`, or any statement."""
        self._is_listening = True
        self._psycopg.add_notify_handler(lambda _: call())

    def read_notifications(self) -> None:
        """Read the notifications that have arrived, without waiting."""
        with _translate_errors(self._what):
            self._psycopg.pgconn.consume_input()
            self._call_notification_handler()

    def _call_notification_handler(self) -> None:
        connection = self._psycopg.pgconn
        while (notification := connection.notifies()) is not None:
            if connection.notify_handler is not None:
                connection.notify_handler(notification)

    def fileno(self) -> int:
        with _translate_errors(self._what):
            return self._psycopg.fileno()


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


class PostgresListener(ChangeListener):
    """Waits for notifications on a managed connection, whose owner goes on using it: no statement waits for this.

    A worker listens on the connection of its heartbeat, clients that wait for results on one of their own. The
    connection is checked periodically while it is silent. Behind a pooler no notification arrives, so callers depend on
    polling.
    """

    def __init__(self, database: PostgresDatabase, purpose: str, channels: Sequence[str], *, is_owner: bool) -> None:
        self._database = database
        self._purpose = purpose
        self._channels = channels
        self._is_owner = is_owner
        self._connection: PostgresConnection | None = None  # the one that listens
        self._checked = 0.0
        self._is_notified = False
        self._thread = 0  # the one that waits
        self._wakeup: tuple[socket.socket, socket.socket] | None = None  # a byte sent to the second ends a wait

    def wait(self, timeout_s: float, stop: threading.Event) -> bool:
        if self.polling_only:
            stop.wait(timeout_s)
            return False
        try:
            return self._listen(timeout_s, stop)
        except StoreError:
            self._connection = None
            raise

    def _listen(self, timeout_s: float, stop: threading.Event) -> bool:
        self._wakeup = self._wakeup or socket.socketpair()
        self._thread = threading.get_ident()
        deadline = time.monotonic() + timeout_s
        while not stop.is_set():
            self._database.connection(self._purpose).run(self._read)
            if self.polling_only:
                return False
            if self._is_notified:
                self._is_notified = False
                return True
            if (left := deadline - time.monotonic()) <= 0:
                return False
            self._wait_for_input(left)
        return False

    def _read(self, connection: DatabaseConnection) -> None:
        """Read notifications, or listen first if the connection is new: changes before that were not notified."""
        assert isinstance(connection, PostgresConnection)
        if connection is not self._connection:
            if connection.pooled:
                self.polling_only = True
                return
            self._connection = connection
            connection.on_notification(self._notify)
            self._check(connection)
            self._is_notified = True
        elif time.monotonic() - self._checked > LISTENER_CHECK_INTERVAL_S and self._is_owner:
            self._check(connection)
        else:
            connection.read_notifications()

    def _check(self, connection: PostgresConnection) -> None:
        """Listen. Repeated, it has no effect, but finds out that the connection is dead."""
        for channel in self._channels:
            connection.listen(channel)
        self._checked = time.monotonic()

    def _wait_for_input(self, timeout_s: float) -> None:
        assert self._connection is not None
        assert self._wakeup is not None
        poll = select.poll()
        poll.register(self._connection, select.POLLIN)
        poll.register(self._wakeup[0], select.POLLIN)
        ready = poll.poll(min(timeout_s, LISTENER_CHECK_INTERVAL_S) * 1000)
        if any(fd == self._wakeup[0].fileno() for fd, _ in ready):
            self._wakeup[0].recv(64)

    def _notify(self) -> None:
        self._is_notified = True
        if threading.get_ident() != self._thread:
            self.interrupt()

    def interrupt(self) -> None:
        wakeup = self._wakeup
        if wakeup is not None:
            with suppress(OSError):  # closed, so no thread waits
                wakeup[1].send(b"!", socket.MSG_DONTWAIT)

    def close(self) -> None:
        self._connection = None
        if self._is_owner:
            self._database.connection(self._purpose).close()
        for end in self._wakeup or ():
            end.close()
        self._wakeup = None


class PostgresDatabase(Database):
    """One schema of one PostgreSQL database."""

    dialect: PostgresDialect
    can_listen = True

    def __init__(self, url: str, schema: str) -> None:
        super().__init__()
        self.dialect = PostgresDialect(schema)
        check_postgres_url(url)
        self.display_url = redact_password(url)
        try:
            self._options = conninfo_to_dict(url)
        except psycopg.ProgrammingError as error:
            reason = first_line(error).replace(url, self.display_url)
            raise ConfigError(f"invalid PostgreSQL URL {self.display_url}: {reason}") from None
        except UnicodeDecodeError:
            raise ConfigError(f"invalid PostgreSQL URL {self.display_url}: an escaped part isn't UTF-8") from None
        check_ports(self._options.get("port"), self.display_url)
        self._takes_options = True  # False once pgbouncer rejected them; then the server's own settings apply
        register_fork_hooks(self)

    def connection(self, purpose: str, idle_timeout_s: float = IDLE_TIMEOUT_S) -> ManagedConnection:
        alone = purpose == "read" and self.read_timeout_s is not None
        name = purpose if alone else SHARED_CONNECTIONS.get(purpose, purpose)
        return self._managed(name, lambda: self.connect(name, idle_timeout_s))

    def change_listener(self, topic: Topic = "work", channel: str | None = None) -> ChangeListener:
        dialect = self.dialect
        purpose, *channels = {
            "work": ("heartbeat", dialect.channel),
            "completions": ("ends", dialect.ends_channel),
            "chunks": ("chunks", dialect.chunks_channel, dialect.ends_channel),
        }[topic]
        channels = channels if channel is None else [channel, *channels]
        return PostgresListener(self, purpose, channels, is_owner=topic != "work")

    def transaction(self) -> AbstractContextManager[Any]:
        raise ConfigError(
            "app.transaction() requires SQLite; on PostgreSQL enqueue in your own transaction with"
            " task.options(connection=…)"
        )

    @contextmanager
    def task_transaction(self, connection: ManagedConnection) -> Iterator[Any]:
        """Yield the psycopg connection with its usual cursors. Only Holdfast commits or rolls back."""
        with connection.exclusive() as opened:
            assert isinstance(opened, PostgresConnection)
            with opened.lend() as psycopg_connection:
                yield psycopg_connection

    def connect(self, purpose: str, idle_timeout_s: float) -> PostgresConnection:
        """Open a connection. Options in the URL override the defaults, but not the settings that Holdfast requires."""
        milliseconds = {
            "statement_timeout": STATEMENT_TIMEOUT_S * 1000,
            "lock_timeout": LOCK_TIMEOUT_S * 1000,
            "idle_in_transaction_session_timeout": int(idle_timeout_s * 1000),
        }
        if purpose.startswith("transaction"):  # tasks have timeouts of their own
            milliseconds = dict.fromkeys(milliseconds, 0)
        if purpose == "read" and self.read_timeout_s is not None:
            milliseconds["statement_timeout"] = int(self.read_timeout_s * 1000)
        settings = ["-c default_transaction_isolation=read\\ committed", "-c jit=off"]
        if purpose == "claim":  # a bitmap scan reads the whole lane and sorts it; claims read only its head
            settings.append("-c enable_bitmapscan=off")
        settings += [f"-c {name}={value}" for name, value in milliseconds.items()]
        for_tasks = purpose.startswith("transaction")
        if not for_tasks:
            settings.append(f"-c search_path={SEARCH_PATH}")
        defaults = {
            "application_name": f"holdfast {purpose}",
            "connect_timeout": CONNECT_TIMEOUT_S,
            "tcp_user_timeout": int(idle_timeout_s * 1000),
            "keepalives_idle": 10,
            "keepalives_interval": 5,
            "keepalives_count": 3,
        }
        given: dict[str, Any] = {**defaults, **self._options}
        if self._takes_options:
            options = " ".join([str(self._options.get("options") or ""), *settings]).strip()
            try:
                conninfo = make_conninfo(**{**given, "options": options})
                return self._connected(PostgresConnection(conninfo, self.display_url, for_tasks=for_tasks))
            except OptionsRejected:
                if "options" in self._options:
                    raise  # options in the URL must not be dropped silently
                self._takes_options = False
        return self._connected(PostgresConnection(make_conninfo(**given), self.display_url, for_tasks=for_tasks))

    def _connected(self, connection: PostgresConnection) -> PostgresConnection:
        self.can_listen = not connection.pooled
        return connection

    def lock_migrations(self, connection: DatabaseConnection) -> None:
        """Lock without timeouts, because another process may be building an index.

        Waits for table locks stay short: every other statement would queue behind the waiting migration.
        """
        connection.execute_script("set local statement_timeout = 0")
        connection.execute_script("set local lock_timeout = 0")
        lock = Statement(
            "migration_lock", "select pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended($1, 0))", ("name",)
        )
        connection.execute(lock, {"name": f"holdfast migration {self.dialect.schema}"})
        connection.execute_script(f"set local lock_timeout = {LOCK_TIMEOUT_S * 1000}")
        known = Statement("schema_exists", "select 1 from pg_catalog.pg_namespace where nspname = $1", ("name",))
        if not connection.execute(known, {"name": self.dialect.schema}):
            connection.execute_script(f'create schema "{self.dialect.schema}"')

    def table_exists(self, connection: DatabaseConnection, table: str) -> bool:
        query = Statement("table_exists", "select pg_catalog.to_regclass($1) is not null", ("table",))
        return bool(connection.execute(query, {"table": f'"{self.dialect.schema}".{table}'})[0][0])

    def before_fork(self) -> None:
        """Do nothing: the child leaves the parent's connections alone."""

    def after_fork(self, *, in_child: bool) -> None:
        if in_child:
            never_close(self._connections)
            self._connections, self._lock = {}, threading.Lock()

    def abort_stuck_calls(self, max_s: float) -> int:
        return sum(each.abort_if_stuck(max_s) for each in list(self._connections.values()))

    def close_unused(self, after_s: float) -> int:
        some = [each for name, each in list(self._connections.items()) if name not in PERMANENT_CONNECTIONS]
        return sum(each.close_if_unused(after_s) for each in some)
