"""SQLAlchemy sessions in `ctx.transaction`: what a session writes commits together with the checkpoint.

The session uses the connection of the transaction, which only Holdfast commits or rolls back. One engine per database
is cached, because SQLAlchemy inspects a database when an engine first connects; engines hold no connections.
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
from holdfast.task.functions import WRAPPED_FUNCTION, plain_function, refuse_async

P = ParamSpec("P")
R = TypeVar("R")

_REMOVE_IT = (
    "remove it: Holdfast commits when the function returns, together with the checkpoint, and rolls back when it "
    "raises. For a part that may fail use `with session.begin_nested():`"
)


def with_session(fn: Callable[Concatenate[Session, P], R]) -> Callable[Concatenate[Any, P], R]:
    """Wrap `fn(session, …)` for `ctx.transaction`.

    The session is flushed when the function returns, and committed together with the checkpoint.

    Args:
        fn: A plain function. Its first argument is a SQLAlchemy session.

    Example:
        ```python
        def save_order(session: Session, item: str) -> int:
            order = Order(item=item)
            session.add(order)
            session.flush()
            return order.id

        order_id = await ctx.transaction(with_session(save_order), "rope")
        ```
    """
    plain: Callable[..., R] = plain_function("transaction", fn)
    refuse_async("transaction", plain, "transactions run in a thread: write it as a plain def")

    @functools.wraps(plain)
    def in_session(connection: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with _session_on(connection) as session:
            return plain(session, *args, **kwargs)

    setattr(in_session, WRAPPED_FUNCTION, plain)
    return in_session


class _Session(Session):  # type: ignore[misc]  # SQLAlchemy is untyped here
    """A session that flushes but can't commit or roll back."""

    def commit(self) -> NoReturn:
        raise TaskError(f"session.commit() in ctx.transaction: {_REMOVE_IT}")

    def rollback(self) -> NoReturn:
        raise TaskError(f"session.rollback() in ctx.transaction: {_REMOVE_IT}")

    def begin(self, nested: bool = False) -> Any:
        if not nested:
            raise TaskError(f"session.begin() in ctx.transaction, which has already begun: {_REMOVE_IT}")
        return super().begin(nested=True)


@contextmanager
def _session_on(given: Any) -> Iterator[Session]:
    lent = sqlite_driver.DriverConnection(given) if isinstance(given, SqliteTransaction) else _PsycopgProxy(given)
    with _connected(lent) as connection, _Session(connection, join_transaction_mode="rollback_only") as session:
        yield session
        _refuse_failed(lent)
        session.flush()
        while nested := session.get_nested_transaction():  # Begun without a with block.
            nested.commit()
        _refuse_failed(lent)


def _refuse_failed(lent: _PsycopgProxy | sqlite_driver.DriverConnection) -> None:
    """Raise if a statement failed, even if the function caught the error: nothing may be committed."""
    if lent.rolled_back or (isinstance(lent, _PsycopgProxy) and lent.failed):
        raise TaskError(
            "the transaction failed: a statement raised an error that the function caught. Let the error propagate, or "
            "wrap the part that may fail in `with session.begin_nested():`"
        )


# Wrap the connection of ctx.transaction for SQLAlchemy

_lending: ContextVar[Any] = ContextVar("_lending")


@contextmanager
def _connected(lent: _PsycopgProxy | sqlite_driver.DriverConnection) -> Iterator[Connection]:
    engine = _postgres_engine(*lent.database_key) if isinstance(lent, _PsycopgProxy) else _sqlite_engine()
    token = _lending.set(lent)
    try:
        connection = engine.connect()
    finally:
        _lending.reset(token)
    with connection:
        connection.begin()
        lent.rolled_back = False  # SQLAlchemy rolls back after it has inspected a database.
        yield connection


@functools.cache
def _sqlite_engine() -> Engine:
    registry.register("sqlite.holdfast", __name__, "HoldfastSqliteDialect")
    return create_engine("sqlite+holdfast://", creator=_lending.get, poolclass=NullPool, pool_reset_on_return=None)


@functools.lru_cache(maxsize=16)
def _postgres_engine(*database_key: Any) -> Engine:  # noqa: ARG001 - the cache key
    return create_engine(
        "postgresql+psycopg://",
        creator=_lending.get,
        poolclass=NullPool,
        pool_reset_on_return=None,
        use_native_hstore=False,  # It would register types on each connection.
    )


class HoldfastSqliteDialect(SQLiteDialect_pysqlite):  # type: ignore[misc]  # SQLAlchemy is untyped here
    """SQLAlchemy's dialect for SQLite, through Holdfast's own transaction."""

    driver = "holdfast"
    supports_statement_cache = True

    @classmethod
    def import_dbapi(cls) -> Any:
        return sqlite_driver

    def on_connect(self) -> None:
        """Do nothing: the connection belongs to Holdfast."""


class _PsycopgProxy:
    """A psycopg connection whose transaction only Holdfast ends."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.rolled_back = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    @property
    def database_key(self) -> tuple[Any, ...]:
        """Identifies the database, user and settings of the connection."""
        info = self._connection.info
        return info.host, info.port, info.dbname, info.user, info.options

    @property
    def failed(self) -> bool:
        return bool(self._connection.info.transaction_status.name == "INERROR")

    def commit(self) -> None:
        raise TaskError(f"commit() in ctx.transaction: {_REMOVE_IT}")

    def rollback(self) -> None:
        self.rolled_back = True

    def close(self) -> None:
        """Do nothing: the connection belongs to Holdfast."""

    def add_notice_handler(self, callback: Any) -> None:
        """Do nothing: every session would add its own."""
