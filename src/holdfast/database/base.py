"""The interfaces that both drivers implement: connections, change listeners and the database itself."""

from __future__ import annotations

import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, Literal, TypeAlias, TypeVar

from holdfast.database.dialect import Dialect
from holdfast.database.fair_lock import FairLock
from holdfast.database.faults import Conflict, ConnectionLost
from holdfast.database.statements import Statement
from holdfast.errors import StoreError, StoreMoved, StoreUnavailable, TaskError

Row: TypeAlias = tuple[Any, ...]
T = TypeVar("T")
Topic: TypeAlias = Literal["work", "completions", "chunks"]
"""What a change listener waits for: new work (workers) or finished runs (clients that wait for results)."""

IDLE_TIMEOUT_S = 20.0
RECONNECT_DELAY_S = 1.0
MAX_CONFLICT_ATTEMPTS = 8
FORK_PAUSE_TIMEOUT_S = 5.0
MAX_LOSS_ATTEMPTS = 2
SLOW_CALL_S = 2.0
"""A small statement that takes longer than this says that the database doesn't answer."""
WORKER_CONNECTIONS = ("heartbeat", "claim", "pick", "write")
"""The connections of a worker, of either database, whose statements are small."""


class DatabaseConnection(ABC):
    """One open connection, used by one thread at a time."""

    _depth = 0
    busy_since: float | None = None
    """Monotonic start time of the call under way; the heartbeat aborts calls that hang."""

    @abstractmethod
    def execute(self, statement: Statement, values: Mapping[str, Any]) -> list[Row]:
        """Run one statement. Outside a transaction it commits on its own."""

    def queue(self, statement: Statement, values: Mapping[str, Any]) -> Callable[[], list[Row]]:
        """Queue one statement of a transaction behind the ones before; return a function that returns its rows.

        A driver may send it later, together with others: when rows are needed, or with the commit. This one executes it
        at once.
        """
        rows = self.execute(statement, values)
        return lambda: rows

    @abstractmethod
    def execute_script(self, text: str) -> None:
        """Run statements that return nothing, inside the current transaction."""

    @abstractmethod
    def begin(self) -> None: ...

    @abstractmethod
    def commit(self) -> None: ...

    @abstractmethod
    def rollback(self) -> None:
        """Roll back. Never raises."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection. Never raises."""

    @abstractmethod
    def abort(self) -> None:
        """Interrupt the call under way. Called from another thread."""

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Run the block in a transaction, or in a savepoint if this connection already has one."""
        if self._depth:
            with self._savepoint():
                yield
            return
        self._depth = 1
        try:  # includes begin and commit: an interrupt may arrive right after either of them
            self.begin()
            yield
            self.commit()
        except BaseException:
            self.rollback()
            raise
        finally:
            self._depth = 0

    @contextmanager
    def _savepoint(self) -> Iterator[None]:
        name = f"holdfast_{self._depth}"
        self.execute_script(f"SAVEPOINT {name}")
        self._depth += 1
        try:
            yield
        except BaseException:
            self._depth -= 1
            with suppress(StoreError):  # the outer transaction has ended, so there is nothing to roll back
                self.execute_script(f"ROLLBACK TO {name}")
            raise
        self._depth -= 1
        self.execute_script(f"RELEASE {name}")


class Availability:
    """What the last call of this process says about its database."""

    __slots__ = ("error", "moved")

    def __init__(self) -> None:
        self.error: StoreUnavailable | None = None
        """Why the last call failed, if the database was unavailable; None after a call that succeeded."""
        self.moved: StoreMoved | None = None
        """Set when a write was refused because the data was moved."""


class ManagedConnection:
    """A connection that opens on first use, reopens after a loss and is used by one thread at a time.

    A fair lock orders the waiting threads: a thread that uses the connection in a loop can't starve the others.
    """

    def __init__(self, connect: Callable[[], DatabaseConnection], availability: Availability | None = None) -> None:
        self._connect = connect
        self._availability = availability or Availability()
        self._connection: DatabaseConnection | None = None
        self._lock = FairLock()
        self._connect_failure: tuple[float, StoreUnavailable] | None = None
        self._is_reserved = False
        self.use_count = 0
        """Increases whenever a thread begins or ends a use."""
        self._unused_since: tuple[int, float] = (0, time.monotonic())  # a use count, and when it was seen first

    @contextmanager
    def transaction(self) -> Iterator[DatabaseConnection]:
        """Reserve the connection for this thread, in one transaction that every `run` of this thread joins.

        Nothing in the transaction is retried.
        """
        with self.exclusive() as connection, connection.transaction():
            yield connection

    @contextmanager
    def exclusive(self) -> Iterator[DatabaseConnection]:
        """Reserve the connection for this thread. A lost connection is reopened at the next use."""
        with self._lock:
            connection = self._open()
            outer, self._is_reserved = self._is_reserved, True
            self.use_count += 1
            try:
                yield connection
            except ConnectionLost:
                if not outer and not self._lock.is_revoked():
                    self.close()
                raise
            finally:
                if not self._lock.is_revoked():
                    self.use_count += 1
                    self._is_reserved = outer

    def revoke(self) -> None:
        """Free the lock from a thread that keeps it for too long, whose transaction has ended.

        That thread still closes the old connection; the next user opens a new one.
        """
        self._connection, self._is_reserved = None, False
        self.use_count += 1
        self._lock.revoke()

    def is_revoked(self) -> bool:
        """Return whether this thread lost the lock by `revoke` and hasn't left its block yet."""
        return self._lock.is_revoked()

    def run(self, work: Callable[[DatabaseConnection], T]) -> T:
        """Run `work`, again after a conflict and on a new connection after a loss. It must be safe to repeat."""
        try:
            done = self._run(work)
        except StoreUnavailable as error:
            self._availability.error = error
            if isinstance(error, StoreMoved):
                self._availability.moved = error
            raise
        self._availability.error = None
        return done

    def _run(self, work: Callable[[DatabaseConnection], T]) -> T:
        conflicts = losses = 0
        with self._lock:
            while True:
                connection = self._open()
                self.use_count += 1
                try:
                    return work(connection)
                except Conflict:
                    conflicts += 1
                    if self._is_reserved or self._lock.is_revoked() or conflicts == MAX_CONFLICT_ATTEMPTS:
                        raise
                    time.sleep(random.uniform(0, 0.002 * 2**conflicts))
                except ConnectionLost:
                    if self._is_reserved or self._lock.is_revoked():
                        raise
                    self.close()
                    losses += 1
                    if losses == MAX_LOSS_ATTEMPTS:
                        raise
                except Exception:
                    raise  # its transaction has been rolled back
                except BaseException:  # an interrupt leaves the connection in an unknown state
                    if not self._is_reserved and not self._lock.is_revoked():
                        self.close()
                    raise
                finally:
                    self.use_count += 1

    def _open(self) -> DatabaseConnection:
        """Return the connection. After a failed attempt the next one comes `RECONNECT_DELAY_S` later."""
        if self._connection is None:
            if self._connect_failure and time.monotonic() - self._connect_failure[0] < RECONNECT_DELAY_S:
                raise type(self._connect_failure[1])(str(self._connect_failure[1]))
            try:
                self._connection = self._connect()
            except StoreUnavailable as error:
                self._connect_failure = (time.monotonic(), error)
                raise
            self._connect_failure = None
        return self._connection

    def has(self, connection: DatabaseConnection) -> bool:
        """Return whether this is the open connection."""
        return self._connection is connection

    def pause(self) -> bool:
        """Close the connection and block its users until `resume`. Return False if a thread keeps it for too long."""
        if not self._lock.acquire(timeout=FORK_PAUSE_TIMEOUT_S):
            return False
        if not self._is_reserved:
            self.close()
        return True

    def resume(self, *, in_child: bool = False) -> None:
        if in_child:
            self._lock.reset_after_fork()
        self._lock.release()

    def close_if_unused(self, after_s: float) -> bool:
        """Close the connection if nothing has used it for this long, as far as regular calls can tell."""
        now, (seen, since) = time.monotonic(), self._unused_since
        if self.use_count != seen:
            self._unused_since = (self.use_count, now)
        elif self._connection is not None and now - since >= after_s and self._lock.acquire(timeout=0):
            try:
                if self.use_count == seen and not self._is_reserved:
                    self.close()
                    return True
            finally:
                self._lock.release()
        return False

    def busy_s(self) -> float:
        """Return for how many seconds the call under way has been waiting for the database; 0.0 if there is none."""
        connection = self._connection
        since = None if connection is None else connection.busy_since
        return 0.0 if since is None else time.monotonic() - since

    def abort_if_stuck(self, max_s: float) -> bool:
        """Abort a call that has taken longer than `max_s`; its caller sees a lost connection."""
        return abort_if_stuck(self._connection, max_s)

    def close(self) -> None:
        with self._lock:
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()


def abort_if_stuck(connection: DatabaseConnection | None, max_s: float) -> bool:
    """Abort the connection's call from another thread if it has taken longer than `max_s`."""
    since = connection.busy_since if connection else None
    if connection is None or since is None or time.monotonic() - since < max_s:
        return False
    connection.abort()
    return True


class ChangeListener(ABC):
    """Waits for changes by other processes. Only a hint: callers poll as well."""

    polling_only = False
    """Whether no notification ever arrives here, so that callers depend on polling."""

    @abstractmethod
    def wait(self, timeout_s: float, stop: threading.Event) -> bool:
        """Return True as soon as something may have changed; False after `timeout_s` or once `stop` is set."""

    def interrupt(self) -> None:  # noqa: B027 - a listener that polls notices `stop` by itself
        """End a wait at once after `stop` was set. Called from another thread."""

    @abstractmethod
    def close(self) -> None: ...


class Database(ABC):
    """One database and its managed connections."""

    dialect: Dialect
    display_url: str
    """The URL without its password, for messages."""
    read_timeout_s: float | None = None
    """The time limit of one read. If set, reads get a connection of their own. Set it before the first use."""
    can_listen = False
    """Whether notifications reach this process, as far as is known."""
    django_alias = "default"
    """The alias of this database in Django's settings, which `connection="django"` stands for."""

    @property
    def failure(self) -> StoreError | None:
        """The error that makes this database unusable for the rest of this process, if any."""
        return self._availability.moved

    def __init__(self) -> None:
        self._connections: dict[str, ManagedConnection] = {}
        self._availability = Availability()
        self._lock = threading.Lock()

    def unavailable_reason(self) -> str | None:
        """Return why this process can't use the database, as its last calls say, or None. Doesn't call the database.

        A call of the heartbeat or of a claim that has been waiting for `SLOW_CALL_S` counts as a failure, because a
        network that drops packets reports nothing.
        """
        error = self.failure or self._availability.error
        if error is not None:
            return str(error)
        waits = [found.busy_s() for name in WORKER_CONNECTIONS if (found := self._connections.get(name)) is not None]
        slowest_s = max(waits, default=0.0)
        return f"it hasn't answered for {slowest_s:.0f} s" if slowest_s > SLOW_CALL_S else None

    @abstractmethod
    def connection(self, purpose: str, idle_timeout_s: float = IDLE_TIMEOUT_S) -> ManagedConnection:
        """Return the connection for a purpose. Several purposes may share one.

        Writers are `client`, `claim`, `commit`, `heartbeat`, `housekeeping` and, for transactions of tasks,
        `transaction-1`, `transaction-2` and so on. Readers are `read`, `pick` (claims), `poll` and `stats`
        (housekeeping). The server ends transactions that stay idle for `idle_timeout_s`, except those of tasks.
        """

    def _managed(self, name: str, connect: Callable[[], DatabaseConnection]) -> ManagedConnection:
        """Return the connection of that name, the same one each time."""
        found = self._connections.get(name)
        if found is not None:
            return found
        with self._lock:
            return self._connections.setdefault(name, ManagedConnection(connect, self._availability))

    @abstractmethod
    def change_listener(self, topic: Topic = "work", channel: str | None = None) -> ChangeListener:
        """Return a new listener. Its first wait connects, and returns as soon as it listens.

        `channel`: where this listener alone is notified, besides the channel of the topic.
        """

    @abstractmethod
    def transaction(self) -> AbstractContextManager[Any]:
        """Open a transaction for the user, which Holdfast's calls on the same thread join (SQLite only)."""

    @abstractmethod
    def task_transaction(self, connection: ManagedConnection) -> AbstractContextManager[Any]:
        """Open a transaction for a task's SQL and the checkpoint of it; yield the connection for that SQL."""

    def in_user_transaction(self) -> bool:
        """Return whether this thread is inside `transaction()`, so that its writes may still be rolled back."""
        return False

    def is_user_transaction(self, connection: object) -> bool:  # noqa: ARG002 - only SQLite has any
        """Return whether it is the connection of a `transaction()` that this thread is inside."""
        return False

    def reject_wait_in_transaction(self, what: str) -> None:
        """Raise inside `transaction()`: it holds the only writer, so what is waited for can't be written."""
        if self.in_user_transaction():
            raise TaskError(
                f"{what} can't finish while this thread holds app.transaction(): wait for it after the block"
            )

    @abstractmethod
    def lock_migrations(self, connection: DatabaseConnection) -> None:
        """Keep other processes from migrating until the current transaction ends."""

    @abstractmethod
    def table_exists(self, connection: DatabaseConnection, table: str) -> bool: ...

    def close(self) -> None:
        """Close every connection."""
        with self._lock:
            connections, self._connections = self._connections, {}
        for connection in connections.values():
            connection.close()

    @abstractmethod
    def abort_stuck_calls(self, max_s: float) -> int:
        """Abort calls that have taken longer than `max_s`; return how many."""

    def close_unused(self, after_s: float) -> int:  # noqa: ARG002 - only a server's connections are expensive
        """Close connections that a worker doesn't need all the time and that were unused for `after_s`."""
        return 0
