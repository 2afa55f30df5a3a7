"""Callers' own connections: our statements run inside their transaction, and commit or roll back with it.

Nothing here is retried, and a driver's errors reach the caller as they are: it is the caller's transaction, and the
caller's place to repeat it. What can be seen beforehand (a closed connection, a failed transaction, none at all) is
refused with words. No driver is imported: a connection is known by the module of its class.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from holdfast.database.base import Row
from holdfast.database.dialect import PARAMETER
from holdfast.database.statements import Statement
from holdfast.errors import ConfigError

TAKEN = (
    "connection= takes a psycopg connection (sync or async), an asyncpg connection, a SQLAlchemy Connection, Session,"
    ' AsyncConnection or AsyncSession, or "django"'
)
NO_TRANSACTION = "the connection given as connection= is in no transaction, so there is nothing to commit with: {}"
FAILED = "the transaction of the connection given as connection= has failed: roll it back before you enqueue"
CLOSED = "the connection given as connection= is closed"
FOREIGN_SQLITE = (
    "a SQLite connection of your own can't be used: two SQLite libraries in one process lose each other's locks."
    " Write `with app.transaction() as connection:` and use that connection for your tables, too"
)


class _Lent(ABC):
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    @abstractmethod
    def check(self) -> None:
        """Refuse a connection on which nothing can be written, or nothing would be held together."""

    @property
    def leads_to(self) -> object:
        """What stays the same for as long as it leads to the same database: the connection, or its engine."""
        return self._connection


class CallerConnection(_Lent):
    """A caller's connection whose verbs block."""

    @abstractmethod
    def execute(self, statement: Statement, values: Mapping[str, Any]) -> list[Row]: ...


class AsyncCallerConnection(_Lent):
    """A caller's connection whose verbs are awaited."""

    @abstractmethod
    async def execute(self, statement: Statement, values: Mapping[str, Any]) -> list[Row]: ...


def wrap_connection(connection: object) -> CallerConnection | AsyncCallerConnection:
    """The caller's connection, whatever library it is of."""
    kinds = {f"{kind.__module__.split('.')[0]}.{kind.__name__}" for kind in type(connection).__mro__}
    if connection == "django" or kinds & {"django.BaseDatabaseWrapper", "django.ConnectionProxy"}:
        return _Django(connection)
    for known, wrapper in _KNOWN.items():
        if known in kinds:
            return wrapper(connection)
    if kinds & {"sqlite3.Connection", "apsw.Connection", "aiosqlite.Connection"}:
        raise ConfigError(FOREIGN_SQLITE)
    raise ConfigError(f"{TAKEN}; this is a {type(connection).__module__}.{type(connection).__name__}")


def _check_psycopg(connection: Any) -> None:
    if connection.closed:
        raise ConfigError(CLOSED)
    status = connection.info.transaction_status.name
    if status == "INERROR":
        raise ConfigError(FAILED)
    if status == "IDLE" and connection.autocommit:
        raise ConfigError(NO_TRANSACTION.format("it is in autocommit mode; write `with connection.transaction():`"))


class _Psycopg(CallerConnection):
    def check(self) -> None:
        _check_psycopg(self._connection)

    def execute(self, statement: Statement, values: Mapping[str, Any]) -> list[Row]:
        import psycopg

        with psycopg.RawCursor(self._connection, row_factory=psycopg.rows.tuple_row) as cursor:
            cursor.execute(statement.sql.encode(), statement.texts(values))
            return cursor.fetchall() if cursor.description else []


class _AsyncPsycopg(AsyncCallerConnection):
    def check(self) -> None:
        _check_psycopg(self._connection)

    async def execute(self, statement: Statement, values: Mapping[str, Any]) -> list[Row]:
        import psycopg

        async with psycopg.AsyncRawCursor(self._connection, row_factory=psycopg.rows.tuple_row) as cursor:
            await cursor.execute(statement.sql.encode(), statement.texts(values))
            return await cursor.fetchall() if cursor.description else []


class _Asyncpg(AsyncCallerConnection):
    def check(self) -> None:
        if self._connection.is_closed():
            raise ConfigError(CLOSED)
        if not self._connection.is_in_transaction():
            raise ConfigError(NO_TRANSACTION.format("write `async with connection.transaction():`"))

    async def execute(self, statement: Statement, values: Mapping[str, Any]) -> list[Row]:
        rows = await self._connection.fetch(statement.sql, *[values[name] for name in statement.parameters])
        return [tuple(row) for row in rows]


def _bind(connection: Any) -> Any:
    """What a SQLAlchemy connection or session, sync or async, sends its SQL to."""
    connection = getattr(connection, "sync_session", None) or getattr(connection, "sync_connection", None) or connection
    return connection.get_bind() if hasattr(connection, "get_bind") else connection


def _check_sqlalchemy(connection: Any) -> None:
    """Connections and sessions begin a transaction by themselves, unless they are in autocommit mode."""
    if getattr(connection, "closed", False):
        raise ConfigError(CLOSED)
    bind = _bind(connection)
    dialect = bind.dialect.name
    if dialect == "sqlite":
        raise ConfigError(FOREIGN_SQLITE)
    if dialect != "postgresql":
        raise ConfigError(f"the connection given as connection= is to {dialect}; the app's database is PostgreSQL")
    options = bind.get_execution_options() if hasattr(bind, "get_execution_options") else {}
    if options.get("isolation_level") == "AUTOCOMMIT":
        raise ConfigError(NO_TRANSACTION.format("its isolation level is AUTOCOMMIT"))


class _SqlAlchemy(CallerConnection):
    def check(self) -> None:
        _check_sqlalchemy(self._connection)

    @property
    def leads_to(self) -> object:
        return _bind(self._connection).engine

    def execute(self, statement: Statement, values: Mapping[str, Any]) -> list[Row]:
        from sqlalchemy import text

        result = self._connection.execute(text(statement.named), statement.by_name(values))
        return [tuple(row) for row in result.fetchall()] if result.returns_rows else []


class _AsyncSqlAlchemy(AsyncCallerConnection):
    def check(self) -> None:
        _check_sqlalchemy(self._connection)

    @property
    def leads_to(self) -> object:
        return _bind(self._connection).engine

    async def execute(self, statement: Statement, values: Mapping[str, Any]) -> list[Row]:
        from sqlalchemy import text

        result = await self._connection.execute(text(statement.named), statement.by_name(values))
        return [tuple(row) for row in result.fetchall()] if result.returns_rows else []


class _Django(CallerConnection):
    """A connection of Django, or the default one."""

    def __init__(self, connection: Any) -> None:
        from django.db import connections

        super().__init__(connections["default" if connection == "django" else connection.alias])

    def check(self) -> None:
        if self._connection.vendor == "sqlite":
            raise ConfigError(FOREIGN_SQLITE)
        if self._connection.vendor != "postgresql":
            raise ConfigError(f"Django's database is {self._connection.vendor}; the app's database is PostgreSQL")
        if self._connection.needs_rollback:
            raise ConfigError(FAILED)
        if not self._connection.in_atomic_block and self._connection.get_autocommit():
            raise ConfigError(NO_TRANSACTION.format("write `with transaction.atomic():`"))

    def execute(self, statement: Statement, values: Mapping[str, Any]) -> list[Row]:
        with self._connection.cursor() as cursor:
            cursor.execute(pyformat(statement), statement.by_name(values))
            return [tuple(row) for row in cursor.fetchall()] if cursor.description else []


def pyformat(statement: Statement) -> str:
    """The statement with `%(name)s` in place of its parameters."""
    return PARAMETER.sub(r"%(\1)s", re.sub("%", "%%", statement.named))


_KNOWN: dict[str, type[CallerConnection] | type[AsyncCallerConnection]] = {
    "psycopg.Connection": _Psycopg,
    "psycopg.AsyncConnection": _AsyncPsycopg,
    "asyncpg.Connection": _Asyncpg,
    "asyncpg.PoolConnectionProxy": _Asyncpg,
    "sqlalchemy.Connection": _SqlAlchemy,
    "sqlalchemy.Session": _SqlAlchemy,
    "sqlalchemy.scoped_session": _SqlAlchemy,
    "sqlalchemy.AsyncConnection": _AsyncSqlAlchemy,
    "sqlalchemy.AsyncSession": _AsyncSqlAlchemy,
    "sqlalchemy.async_scoped_session": _AsyncSqlAlchemy,
}
