"""Run Holdfast's statements inside a caller's transaction, on the caller's own connection.

The statements commit or roll back with that transaction. Nothing is retried, and the driver's errors reach the caller
unchanged, because only the caller can repeat the transaction. A closed connection, a failed transaction or a missing
one is rejected beforehand. No driver is imported: the module of its class identifies a connection.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from holdfast.database.base import Row
from holdfast.database.dialect import PARAMETER
from holdfast.database.statements import Statement
from holdfast.errors import ConfigError, StoreUnavailable

if TYPE_CHECKING:
    import asyncio

P = ParamSpec("P")
R = TypeVar("R")

SUPPORTED = (
    "connection= accepts a psycopg connection (sync or async), an asyncpg connection, a SQLAlchemy Connection, Session,"
    ' AsyncConnection or AsyncSession, or "django"'
)
NO_TRANSACTION = "connection=: the connection is not in a transaction, so nothing would be committed together: {}"
FAILED = "connection=: the transaction has failed; roll it back first"
CLOSED = "connection=: the connection is closed"
FOREIGN_SQLITE = (
    "SQLite: pass the connection from `with app.transaction() as connection:`, inside the block, and use it for"
    " your own tables too; other connections aren't supported, because two SQLite libraries in one process break each"
    " other's file locks"
)


class _CallerConnectionBase(ABC):
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    @abstractmethod
    def check(self) -> None:
        """Raise ConfigError for a connection that can't be written to or has no transaction."""

    @property
    def target(self) -> object:
        """An object that identifies the database behind the connection: the connection itself, or its engine."""
        return self._connection


class CallerConnection(_CallerConnectionBase):
    """A caller's synchronous connection."""

    @abstractmethod
    def execute(self, statement: Statement, values: Mapping[str, Any]) -> list[Row]: ...


class AsyncCallerConnection(_CallerConnectionBase):
    """A caller's asynchronous connection."""

    @abstractmethod
    async def execute(self, statement: Statement, values: Mapping[str, Any]) -> list[Row]: ...


class BridgedConnection(CallerConnection):
    """A caller's asynchronous connection for blocking code in another thread, while the caller awaits that code."""

    _connection: AsyncCallerConnection

    def __init__(self, connection: AsyncCallerConnection, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(connection)
        self._loop = loop
        self._is_closed = False

    def close(self) -> None:
        """Refuse statements from now on, except the one that undoes those before, because the call was cancelled."""
        self._is_closed = True

    def check(self) -> None:
        self._connection.check()

    @property
    def target(self) -> object:
        return self._connection.target

    def execute(self, statement: Statement, values: Mapping[str, Any]) -> list[Row]:
        import asyncio

        if self._is_closed and statement.name != "rollback_enqueue":
            raise StoreUnavailable("the call was cancelled: roll its transaction back")
        return asyncio.run_coroutine_threadsafe(self._connection.execute(statement, values), self._loop).result()


def wrap_connection(connection: Any, django_alias: str = "default") -> CallerConnection | AsyncCallerConnection:
    """Wrap a connection of any supported library. `django_alias` is the alias that "django" stands for."""
    kinds = {f"{kind.__module__.split('.')[0]}.{kind.__name__}" for kind in type(connection).__mro__}
    if connection == "django":
        return DjangoConnection(django_alias)
    if kinds & {"django.BaseDatabaseWrapper", "django.ConnectionProxy"}:
        return DjangoConnection(connection.alias)
    for known, wrapper in _WRAPPERS.items():
        if known in kinds:
            return wrapper(connection)
    if kinds & {"sqlite3.Connection", "apsw.Connection", "aiosqlite.Connection"}:
        raise ConfigError(FOREIGN_SQLITE)
    raise ConfigError(f"{SUPPORTED}, not {type(connection).__module__}.{type(connection).__name__}")


def _check_psycopg(connection: Any) -> None:
    if connection.closed:
        raise ConfigError(CLOSED)
    status = connection.info.transaction_status.name
    if status == "INERROR":
        raise ConfigError(FAILED)
    if status == "IDLE" and connection.autocommit:
        raise ConfigError(NO_TRANSACTION.format("it is in autocommit mode; write `with connection.transaction():`"))


class _PsycopgConnection(CallerConnection):
    def check(self) -> None:
        _check_psycopg(self._connection)

    def execute(self, statement: Statement, values: Mapping[str, Any]) -> list[Row]:
        import psycopg

        with psycopg.RawCursor(self._connection, row_factory=psycopg.rows.tuple_row) as cursor:
            cursor.execute(statement.sql.encode(), statement.texts(values))
            return cursor.fetchall() if cursor.description else []


class _AsyncPsycopgConnection(AsyncCallerConnection):
    def check(self) -> None:
        _check_psycopg(self._connection)

    async def execute(self, statement: Statement, values: Mapping[str, Any]) -> list[Row]:
        import psycopg

        async with psycopg.AsyncRawCursor(self._connection, row_factory=psycopg.rows.tuple_row) as cursor:
            await cursor.execute(statement.sql.encode(), statement.texts(values))
            return await cursor.fetchall() if cursor.description else []


class _AsyncpgConnection(AsyncCallerConnection):
    def check(self) -> None:
        if self._connection.is_closed():
            raise ConfigError(CLOSED)
        if not self._connection.is_in_transaction():
            raise ConfigError(NO_TRANSACTION.format("write `async with connection.transaction():`"))

    async def execute(self, statement: Statement, values: Mapping[str, Any]) -> list[Row]:
        rows = await self._connection.fetch(statement.sql, *[values[name] for name in statement.parameters])
        return [tuple(row) for row in rows]


def _bind(connection: Any) -> Any:
    """Return the synchronous connection or engine behind a SQLAlchemy connection or session."""
    connection = getattr(connection, "sync_session", None) or getattr(connection, "sync_connection", None) or connection
    return connection.get_bind() if hasattr(connection, "get_bind") else connection


def _check_sqlalchemy(connection: Any) -> None:
    """Check a connection or session, which begins a transaction by itself unless it is in autocommit mode."""
    if getattr(connection, "closed", False):
        raise ConfigError(CLOSED)
    bind = _bind(connection)
    dialect = bind.dialect.name
    if dialect == "sqlite":
        raise ConfigError(FOREIGN_SQLITE)
    if dialect != "postgresql":
        raise ConfigError(f"connection=: the connection is to {dialect}, but the app's database is PostgreSQL")
    options = bind.get_execution_options() if hasattr(bind, "get_execution_options") else {}
    if options.get("isolation_level") == "AUTOCOMMIT":
        raise ConfigError(NO_TRANSACTION.format("its isolation level is AUTOCOMMIT"))


class _SqlAlchemyConnection(CallerConnection):
    def check(self) -> None:
        _check_sqlalchemy(self._connection)

    @property
    def target(self) -> object:
        return _bind(self._connection).engine

    def execute(self, statement: Statement, values: Mapping[str, Any]) -> list[Row]:
        from sqlalchemy import text

        result = self._connection.execute(text(statement.named), statement.by_name(values))
        return [tuple(row) for row in result.fetchall()] if result.returns_rows else []


class _AsyncSqlAlchemyConnection(AsyncCallerConnection):
    def check(self) -> None:
        _check_sqlalchemy(self._connection)

    @property
    def target(self) -> object:
        return _bind(self._connection).engine

    async def execute(self, statement: Statement, values: Mapping[str, Any]) -> list[Row]:
        from sqlalchemy import text

        result = await self._connection.execute(text(statement.named), statement.by_name(values))
        return [tuple(row) for row in result.fetchall()] if result.returns_rows else []


class DjangoConnection(CallerConnection):
    """The connection that Django has for an alias in the current thread."""

    def __init__(self, alias: str) -> None:
        super().__init__(alias)

    async def in_its_thread(self, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Make a call where Django executes blocking code for async code, with the transaction that is open there."""
        from asgiref.sync import sync_to_async

        called: R = await sync_to_async(call)(*args, **kwargs)
        return called

    @property
    def target(self) -> object:
        from django.db import connections

        return connections[self._connection]

    def check(self) -> None:
        connection: Any = self.target
        if connection.vendor == "sqlite":
            raise ConfigError(FOREIGN_SQLITE)
        if connection.vendor != "postgresql":
            raise ConfigError(
                f"Django's database {self._connection!r} is {connection.vendor}, but the app's database is PostgreSQL"
            )
        if connection.needs_rollback:
            raise ConfigError(FAILED)
        if not connection.in_atomic_block and connection.get_autocommit():
            using = "" if self._connection == "default" else f"using={self._connection!r}"
            raise ConfigError(NO_TRANSACTION.format(f"write `with transaction.atomic({using}):`"))

    def execute(self, statement: Statement, values: Mapping[str, Any]) -> list[Row]:
        connection: Any = self.target
        with connection.cursor() as cursor:
            cursor.execute(pyformat(statement), statement.by_name(values))
            return [tuple(row) for row in cursor.fetchall()] if cursor.description else []


def pyformat(statement: Statement) -> str:
    """Return the SQL with its parameters as `%(name)s`."""

    return PARAMETER.sub(r"%(\1)s", re.sub("%", "%%", statement.named))


_WRAPPERS: dict[str, type[CallerConnection] | type[AsyncCallerConnection]] = {
    "psycopg.Connection": _PsycopgConnection,
    "psycopg.AsyncConnection": _AsyncPsycopgConnection,
    "asyncpg.Connection": _AsyncpgConnection,
    "asyncpg.PoolConnectionProxy": _AsyncpgConnection,
    "sqlalchemy.Connection": _SqlAlchemyConnection,
    "sqlalchemy.Session": _SqlAlchemyConnection,
    "sqlalchemy.scoped_session": _SqlAlchemyConnection,
    "sqlalchemy.AsyncConnection": _AsyncSqlAlchemyConnection,
    "sqlalchemy.AsyncSession": _AsyncSqlAlchemyConnection,
    "sqlalchemy.async_scoped_session": _AsyncSqlAlchemyConnection,
}
