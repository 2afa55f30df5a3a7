"""The base of every part of the store: runs named statements on a line, with the clock filled in."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, TypeVar

import msgspec

from holdfast.database import Database, DatabaseConnection, ManagedConnection, Row, Statements
from holdfast.database.base import IDLE_TIMEOUT_S
from holdfast.database.fork_safety import register_fork_hooks
from holdfast.database.migrate import check_version, prepare_schema
from holdfast.model.clock import Clock
from holdfast.model.payloads import Payloads

T = TypeVar("T")
BATCH = 500
BATCH_BYTES = 8 * 1024 * 1024

_encode = msgspec.json.Encoder().encode


def batch(rows: Iterable[Any]) -> str:
    """A batch as the one JSON parameter that statements take."""
    return _encode(list(rows)).decode()


def bounded(rows: Iterable[T], size: Callable[[T], int], most: int = BATCH) -> Iterator[list[T]]:
    """Rows in batches of bounded number and size, whose own is about the bytes of its payload: PostgreSQL takes no more
    than 256 MB at once."""
    some: list[T] = []
    total = 0
    for row in rows:
        its = size(row)
        total += its
        if some and (len(some) == most or total > BATCH_BYTES):
            yield some
            some, total = [], its
        some.append(row)
    if some:
        yield some


class Do(Protocol):
    """Runs a statement by name inside the work under way. `payloads` says how those of the app are stored."""

    payloads: Payloads

    def __call__(self, name: str, /, *, limit: int | None = None, **values: Any) -> list[Row]: ...


class Doing:
    """A `Do` that has each statement carried out by a function."""

    __slots__ = ("_execute", "payloads")

    def __init__(self, execute: Callable[..., list[Row]], payloads: Payloads) -> None:
        self._execute = execute
        self.payloads = payloads

    def __call__(self, name: str, /, *, limit: int | None = None, **values: Any) -> list[Row]:
        return self._execute(name, limit, values)


class Ground:
    """What the parts of a store share. The first line that is asked for makes or checks the tables."""

    def __init__(self, database: Database, clock: Clock, payloads: Payloads, *, migrate: bool) -> None:
        self.database = database
        self.payloads = payloads
        self.statements = Statements("holdfast.store.sql", database.dialect)
        self.clock = clock
        self.patience = IDLE_TIMEOUT_S
        self._migrate = migrate
        self._prepared = False
        self._identity: str | None = None
        self._preparing = threading.Lock()
        register_fork_hooks(self)

    def before_fork(self) -> None:
        """Nothing."""

    @property
    def migrates(self) -> bool:
        """Whether tables that aren't up to date are brought so."""
        return self._migrate

    def after_fork(self, *, in_child: bool) -> None:
        if in_child:  # where the thread that may have held it isn't any more
            self._preparing = threading.Lock()

    def line(self, purpose: str) -> ManagedConnection:
        if not self._prepared:
            self.prepare()
        return self.database.connection(purpose, self.patience)

    def identity(self) -> str:
        """What tells these tables from those of another database or schema."""
        if self._identity is None:
            statement = self.statements.get("read_identity")
            rows = self.line("client").run(lambda connection: connection.execute(statement, {}))
            self._identity = str(rows[0][0])
        return self._identity

    def prepare(self) -> list[str]:
        """Make or check the tables, once; the migrations that were applied now."""
        with self._preparing:
            if self._prepared:
                return []
            line = self.database.connection("client", self.patience)
            applied = line.run(lambda connection: prepare_schema(self.database, connection, migrate=self._migrate))
            self._prepared = True
            return applied

    def migrate(self) -> list[str]:
        """Bring the tables up to date, also where they are otherwise only checked."""
        self._migrate = True
        return self.prepare()

    def version(self) -> int:
        """The version of the tables as they are, 0 where there are none."""
        return self.database.connection("client", self.patience).run(
            lambda connection: check_version(self.database, connection)
        )


class Part:
    """One subject of the store."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground

    def _one(self, purpose: str, name: str, /, *, limit: int | None = None, **values: Any) -> list[Row]:
        """One statement that commits by itself."""
        ground = self._ground
        statement = ground.statements.get(name, limit)
        values["now"] = ground.clock()
        return ground.line(purpose).run(lambda connection: connection.execute(statement, values))

    def _reading(self, purpose: str) -> Do:
        """Statements that each commit by themselves, for those who only read."""
        return Doing(lambda name, limit, values: self._one(purpose, name, limit=limit, **values), self._ground.payloads)

    def _together(self, purpose: str, work: Callable[[Do], T]) -> T:
        """Several statements in one transaction; after a conflict or a lost connection all of them again."""

        def attempt(connection: DatabaseConnection) -> T:
            with connection.transaction():
                return work(self._doer(connection))

        return self._ground.line(purpose).run(attempt)

    def _doer(self, connection: DatabaseConnection) -> Do:
        ground = self._ground

        def execute(name: str, limit: int | None, values: dict[str, Any]) -> list[Row]:
            values["now"] = ground.clock()
            return connection.execute(ground.statements.get(name, limit), values)

        return Doing(execute, ground.payloads)


def record(run: str, n: int, kind: str, attempt: int, **more: Any) -> dict[str, Any]:
    """One history row for `add_history`. `fence` is given by a run's holder only: it marks what the holder did."""
    return {"run": run, "n": n, "kind": kind, "attempt": attempt, **more}
