"""What both drivers offer: a connection, a line that keeps one open, a watch for other processes' commits."""

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
from holdfast.errors import StoreError, StoreUnavailable, TaskError

Row: TypeAlias = tuple[Any, ...]
T = TypeVar("T")
Topic: TypeAlias = Literal["work", "completions"]
"""What a watch is for: new work, which workers hear of, or ends of runs, which those who wait for them do."""

IDLE_TIMEOUT_S = 20.0
RECONNECT_DELAY_S = 1.0
MAX_CONFLICT_ATTEMPTS = 8
FORK_PAUSE_TIMEOUT_S = 5.0
MAX_LOSS_ATTEMPTS = 2


class DatabaseConnection(ABC):
    """One open connection, used by one thread at a time."""

    _depth = 0
    busy_since: float | None = None
    """When the call under way began (monotonic), for whoever looks after stuck calls."""

    @abstractmethod
    def execute(self, statement: Statement, values: Mapping[str, Any]) -> list[Row]:
        """Run one statement; outside a transaction it commits by itself."""

    @abstractmethod
    def execute_script(self, text: str) -> None:
        """Run several statements that return nothing, inside the transaction under way."""

    @abstractmethod
    def begin(self) -> None: ...

    @abstractmethod
    def commit(self) -> None: ...

    @abstractmethod
    def rollback(self) -> None:
        """End the transaction without its writes; never raises."""

    @abstractmethod
    def close(self) -> None:
        """Close; never raises."""

    @abstractmethod
    def abort(self) -> None:
        """Break the call under way, from another thread."""

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing; inside another transaction of this connection a part of that one."""
        if self._depth:
            with self._savepoint():
                yield
            return
        self._depth = 1
        try:  # around begin and commit too: an interrupt may come right behind them
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
            with suppress(StoreError):  # the outer one is over: then there is nothing to take back
                self.execute_script(f"ROLLBACK TO {name}")
            raise
        self._depth -= 1
        self.execute_script(f"RELEASE {name}")


class ManagedConnection:
    """Keeps one connection for a purpose: opened when needed, opened anew when lost, used by one thread at a time.

    A fair lock orders the threads that wait for it: one that uses the connection in a loop can't starve the others.
    """

    def __init__(self, connect: Callable[[], DatabaseConnection]) -> None:
        self._connect = connect
        self._connection: DatabaseConnection | None = None
        self._lock = FairLock()
        self._refused: tuple[float, StoreUnavailable] | None = None
        self._held = False
        self.use_count = 0
        """Grows when somebody begins or ends to use it."""

    @contextmanager
    def transaction(self) -> Iterator[DatabaseConnection]:
        """Keep the line to this thread, inside one transaction: whatever this thread runs on it meanwhile is part of
        that, and is not repeated."""
        with self.exclusive() as connection, connection.transaction():
            yield connection

    @contextmanager
    def exclusive(self) -> Iterator[DatabaseConnection]:
        """Keep the line to this thread; whatever is lost meanwhile is opened anew the next time."""
        with self._lock:
            connection = self._open()
            outer, self._held = self._held, True
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
                    self._held = outer

    def revoke(self) -> None:
        """Take the line away from a thread that keeps it for too long. That thread keeps the connection, whose
        transaction has ended, and closes it; the next one opens another."""
        self._connection, self._held = None, False
        self.use_count += 1
        self._lock.revoke()

    def is_revoked(self) -> bool:
        """Whether the line was taken away from this thread, which hasn't left its block yet."""
        return self._lock.is_revoked()

    def run(self, work: Callable[[DatabaseConnection], T]) -> T:
        """Do the work, again after a conflict or on a new connection after a loss: work must be safe to repeat."""
        conflicts = losses = 0
        with self._lock:
            while True:
                connection = self._open()
                self.use_count += 1
                try:
                    return work(connection)
                except Conflict:
                    conflicts += 1
                    if self._held or self._lock.is_revoked() or conflicts == MAX_CONFLICT_ATTEMPTS:
                        raise
                    time.sleep(random.uniform(0, 0.002 * 2**conflicts))
                except ConnectionLost:
                    if self._held or self._lock.is_revoked():
                        raise
                    self.close()
                    losses += 1
                    if losses == MAX_LOSS_ATTEMPTS:
                        raise
                except Exception:
                    raise  # the transaction that it was in has been rolled back
                except BaseException:  # an interrupt: who knows where it left the connection
                    if not self._held and not self._lock.is_revoked():
                        self.close()
                    raise
                finally:
                    self.use_count += 1

    def _open(self) -> DatabaseConnection:
        """The connection; after a refusal the next try is made no sooner than a second later."""
        if self._connection is None:
            if self._refused and time.monotonic() - self._refused[0] < RECONNECT_DELAY_S:
                raise type(self._refused[1])(str(self._refused[1]))
            try:
                self._connection = self._connect()
            except StoreUnavailable as error:
                self._refused = (time.monotonic(), error)
                raise
            self._refused = None
        return self._connection

    def pause(self) -> bool:
        """Close the connection and let nobody open one until `resume`; False when someone keeps the line for long."""
        if not self._lock.acquire(timeout=FORK_PAUSE_TIMEOUT_S):
            return False
        if not self._held:
            self.close()
        return True

    def resume(self, *, in_child: bool = False) -> None:
        if in_child:
            self._lock.reset_after_fork()
        self._lock.release()

    def abort_if_stuck(self, longest: float) -> bool:
        """Break a call that has been under way for too long; it then counts as a lost connection."""
        return abort_if_stuck(self._connection, longest)

    def close(self) -> None:
        with self._lock:
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()


def abort_if_stuck(connection: DatabaseConnection | None, longest: float) -> bool:
    """Break a connection's call if it has been under way for so many seconds, from another thread."""
    since = connection.busy_since if connection else None
    if connection is None or since is None or time.monotonic() - since < longest:
        return False
    connection.abort()
    return True


class ChangeListener(ABC):
    """Learns that another process may have made news. A hint only: whoever uses it polls as well."""

    polling_only = False
    """Whether it never hears anything, so that only polling is left."""

    @abstractmethod
    def wait(self, longest: float, stop: threading.Event) -> bool:
        """True as soon as something happened; False after `longest` seconds or when told to stop."""

    def interrupt(self) -> None:  # noqa: B027 - most need none
        """From another thread, behind `stop`: let a wait notice it now. One that looks often needs no bell."""

    @abstractmethod
    def close(self) -> None: ...


class Database(ABC):
    """One database: makes connections of it."""

    dialect: Dialect
    display_url: str
    """The URL as it may be shown: without a password."""
    read_timeout_s: float | None = None
    """How long one read may take, for those who answer many askers: reads then have a connection of their own, and what
    takes longer is ended and refused. Set it before the first use."""

    @property
    def failure(self) -> StoreError | None:
        """The error that makes this database unusable for the rest of this process; None if there is none."""
        return None

    def __init__(self) -> None:
        self._connections: dict[str, ManagedConnection] = {}
        self._lock = threading.Lock()

    @abstractmethod
    def connection(self, purpose: str, idle_timeout_s: float = IDLE_TIMEOUT_S) -> ManagedConnection:
        """The line for a purpose: `client`, `claim`, `commit`, `heartbeat`, `housekeeping`, `author-1`, `author-2`, and
        for what only reads `read`, `pick` (for claims), `look` and `tally` (for the housekeeping), and those of
        watches. Several purposes may share a line. A transaction on it that stays idle for longer than `idle_timeout_s`
        seconds is ended by the server; but an author's may take its time."""

    def _managed(self, name: str, connect: Callable[[], DatabaseConnection]) -> ManagedConnection:
        """The line of that name, the same one each time."""
        found = self._connections.get(name)
        if found is not None:
            return found
        with self._lock:
            return self._connections.setdefault(name, ManagedConnection(connect))

    @abstractmethod
    def change_listener(self, news: Topic = "work") -> ChangeListener:
        """A watch for such news. The first wait opens what it needs, and returns as soon as it listens."""

    @abstractmethod
    def transaction(self) -> AbstractContextManager[Any]:
        """A transaction of the caller's that our verbs on the same thread join, where the driver has that."""

    @abstractmethod
    def task_transaction(self, line: ManagedConnection) -> AbstractContextManager[Any]:
        """A transaction for author code and our record of it, on a line of its own where the driver has several; what
        it gives is for the author's own SQL."""

    def in_user_transaction(self) -> bool:
        """Whether this thread is inside `transaction()`: what it writes may still be taken back."""
        return False

    def reject_wait_in_transaction(self, what: str) -> None:
        """Raise inside `transaction()`, which holds the only writer: nobody else can write what is waited for."""
        if self.in_user_transaction():
            raise TaskError(
                f"{what} can't end before the transaction that this thread holds: wait for it behind the block"
            )

    @abstractmethod
    def lock_migrations(self, connection: DatabaseConnection) -> None:
        """Inside a transaction: let no other process migrate until it ends."""

    @abstractmethod
    def table_exists(self, connection: DatabaseConnection, table: str) -> bool: ...

    def close(self) -> None:
        """Close every line."""
        with self._lock:
            lines, self._connections = self._connections, {}
        for line in lines.values():
            line.close()

    @abstractmethod
    def abort_stuck_calls(self, longest: float) -> int:
        """Break calls that hang for longer than so many seconds; how many."""
