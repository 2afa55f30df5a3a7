"""SQLAlchemy sessions in `ctx.transaction`: what a session writes commits together with the checkpoint, exactly once.

    def save_order(session: Session, item: str) -> int: ...

    number = await ctx.transaction(with_session(save_order), "rope")

The session works on the very connection of the transaction, which Holdfast commits or rolls back: the session does
neither. An engine is kept for each database, so that SQLAlchemy looks at a database once, not at each call; it holds no
connections.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Concatenate, NoReturn, ParamSpec, TypeVar

from sqlalchemy import Connection, Engine, create_engine
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from holdfast.database.sqlite import SqliteTransaction
from holdfast.errors import TaskError
from holdfast.integrations import sqlite_driver
from holdfast.task.functions import own_name, plain_function, refuse_async

P = ParamSpec("P")
R = TypeVar("R")

_WHO_ENDS_IT = (
    "leave it out: Holdfast commits when the function returns, together with the checkpoint, and rolls back when it "
    "raises. For a part that may fail write `with session.begin_nested():`"
)


def with_session(fn: Callable[Concatenate[Session, P], R]) -> Callable[Concatenate[Any, P], R]:
    """`fn(session, …)` as a function for `ctx.transaction`, by the same name.

    What the session has is flushed when the function returns. It is a plain def: the transaction is held by a thread.
    """
    plain: Callable[..., R] = plain_function("transaction", fn)
    own_name("transaction", plain)  # of a partial or a lambda there would be none
    refuse_async("transaction", plain, "a transaction is held open by a thread: write it as a plain def")

    @functools.wraps(plain)
    def in_session(connection: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with _session_on(connection) as session:
            return plain(session, *args, **kwargs)

    return in_session


class _Session(Session):  # type: ignore[misc]  # it is seen as Any here
    """A session that flushes, and leaves the end of its transaction to Holdfast."""

    def commit(self) -> NoReturn:
        raise TaskError(f"session.commit() in ctx.transaction: {_WHO_ENDS_IT}")

    def rollback(self) -> NoReturn:
        raise TaskError(f"session.rollback() in ctx.transaction: {_WHO_ENDS_IT}")

    def begin(self, nested: bool = False) -> Any:
        if not nested:
            raise TaskError(f"session.begin() in ctx.transaction, which has begun: {_WHO_ENDS_IT}")
        return super().begin(nested=True)


@contextmanager
def _session_on(given: Any) -> Iterator[Session]:
    lent = sqlite_driver.DriverConnection(given) if isinstance(given, SqliteTransaction) else _PsycopgProxy(given)
    with _connected(lent) as connection, _Session(connection, join_transaction_mode="rollback_only") as session:
        yield session
        _refuse_failed(lent)
        session.flush()
        while nested := session.get_nested_transaction():  # begun without a block
            nested.commit()
        _refuse_failed(lent)


def _refuse_failed(lent: _PsycopgProxy | sqlite_driver.DriverConnection) -> None:
    """Of a transaction that failed in the middle nothing may be kept, although the function caught the error."""
    if lent.rolled_back or (isinstance(lent, _PsycopgProxy) and lent.failed):
        raise TaskError(
            "the session's transaction has failed: a statement did, and the error was caught. Let it through, so that "
            "all is rolled back; or write `with session.begin_nested():` around the part that may fail"
        )


# From the connection that ctx.transaction gives to one of SQLAlchemy

_lending: ContextVar[Any] = ContextVar("_lending")


@contextmanager
def _connected(lent: _PsycopgProxy | sqlite_driver.DriverConnection) -> Iterator[Connection]:
    engine = _sqlite_engine() if isinstance(lent, sqlite_driver.DriverConnection) else _postgres_engine(*lent.leads_to)
    token = _lending.set(lent)
    try:
        connection = engine.connect()
    finally:
        _lending.reset(token)
    with connection:
        connection.begin()
        lent.rolled_back = False  # SQLAlchemy rolls back after its first look at a database
        yield connection


@functools.cache
def _sqlite_engine() -> Engine:
    registry.register("sqlite.holdfast", __name__, "HoldfastSqliteDialect")
    return create_engine("sqlite+holdfast://", creator=_lending.get, poolclass=NullPool, pool_reset_on_return=None)


@functools.lru_cache(maxsize=16)
def _postgres_engine(*leads_to: Any) -> Engine:  # noqa: ARG001 - what SQLAlchemy learns holds for one database
    return create_engine(
        "postgresql+psycopg://",
        creator=_lending.get,
        poolclass=NullPool,
        pool_reset_on_return=None,
        use_native_hstore=False,  # would need types registered with each connection
    )


class HoldfastSqliteDialect(SQLiteDialect_pysqlite):  # type: ignore[misc]  # it is seen as Any here
    """SQLAlchemy's dialect for SQLite, through Holdfast's own transaction."""

    driver = "holdfast"
    supports_statement_cache = True

    @classmethod
    def import_dbapi(cls) -> Any:
        return sqlite_driver

    def on_connect(self) -> None:
        """Nothing is to be changed on the connection: it is Holdfast's."""


class _PsycopgProxy:
    """A psycopg connection whose transaction is Holdfast's to end."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.rolled_back = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    @property
    def leads_to(self) -> tuple[Any, ...]:
        """The same for connections to the same database, by the same user, with the same settings."""
        info = self._connection.info
        return info.host, info.port, info.dbname, info.user, info.options

    @property
    def failed(self) -> bool:
        return bool(self._connection.info.transaction_status.name == "INERROR")

    def commit(self) -> None:
        raise TaskError(f"commit() in ctx.transaction: {_WHO_ENDS_IT}")

    def rollback(self) -> None:
        self.rolled_back = True

    def close(self) -> None:
        """Nothing: it goes on being Holdfast's."""

    def add_notice_handler(self, callback: Any) -> None:
        """Nothing: it would be added again with each session."""
