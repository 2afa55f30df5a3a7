"""One interface (begin, commit, roll back) for the connections of every supported library."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any

import asyncpg
import django
import psycopg
import sqlalchemy
from django.conf import settings
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session


class RolledBack(Exception):
    """Ends a transaction so that nothing of it stays."""


def _engine_url(url: str, driver: str) -> sqlalchemy.URL:
    parts = conninfo_to_dict(url)
    query = {"host": str(parts["host"]), **({"port": str(parts["port"])} if "port" in parts else {})}
    if driver == "asyncpg" and "port" in query:
        query = {"host": query["host"], "port": query["port"]}
    return sqlalchemy.URL.create(
        f"postgresql+{driver}", username=str(parts["user"]), database=str(parts["dbname"]), query=query
    )


class Library:
    """A library whose verbs block."""

    name: str

    def __init__(self, url: str) -> None:
        self.url = url

    def transaction(self) -> Any:
        """A context manager that gives what goes into `connection=` and commits, or rolls back when it raises."""
        raise NotImplementedError

    def close(self) -> None:
        pass


class Psycopg(Library):
    name = "psycopg"

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        with psycopg.connect(self.url) as connection:
            yield connection


class _SqlAlchemy(Library):
    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.engine = sqlalchemy.create_engine(_engine_url(url, "psycopg"))

    def close(self) -> None:
        self.engine.dispose()


class SqlAlchemyConnection(_SqlAlchemy):
    name = "sqlalchemy-connection"

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        with self.engine.begin() as connection:
            yield connection


class SqlAlchemySession(_SqlAlchemy):
    name = "sqlalchemy-session"

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        with Session(self.engine) as session, session.begin():
            yield session


class Django(Library):
    name = "django"

    def __init__(self, url: str) -> None:
        super().__init__(url)
        parts = conninfo_to_dict(url)
        from django.db import connections

        if not settings.configured:
            settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.postgresql"}})
            django.setup()
        connections["default"].close()
        connections["default"].settings_dict.update(
            NAME=parts["dbname"], USER=parts["user"], HOST=parts["host"], PORT=str(parts.get("port", ""))
        )

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        from django.db import transaction

        with transaction.atomic():
            yield "django"

    def close(self) -> None:
        from django.db import connections

        connections["default"].close()


BLOCKING = (Psycopg, SqlAlchemyConnection, SqlAlchemySession, Django)
THREADED = (Psycopg, SqlAlchemyConnection, SqlAlchemySession)


@asynccontextmanager
async def async_psycopg(url: str) -> AsyncIterator[Any]:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        yield connection


@asynccontextmanager
async def async_asyncpg(url: str) -> AsyncIterator[Any]:
    parts = conninfo_to_dict(url)
    connection = await asyncpg.connect(
        host=parts["host"], port=parts.get("port"), user=parts["user"], database=parts["dbname"]
    )
    try:
        async with connection.transaction():
            yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def async_sqlalchemy_connection(url: str) -> AsyncIterator[Any]:
    engine = create_async_engine(_engine_url(url, "psycopg"))
    try:
        async with engine.begin() as connection:
            yield connection
    finally:
        await engine.dispose()


@asynccontextmanager
async def async_sqlalchemy_session(url: str) -> AsyncIterator[Any]:
    engine = create_async_engine(_engine_url(url, "asyncpg"))
    try:
        async with AsyncSession(engine) as session, session.begin():
            yield session
    finally:
        await engine.dispose()


ASYNC: dict[str, Any] = {
    "psycopg": async_psycopg,
    "asyncpg": async_asyncpg,
    "sqlalchemy-connection": async_sqlalchemy_connection,
    "sqlalchemy-session": async_sqlalchemy_session,
}


def open_async(name: str, url: str) -> AbstractAsyncContextManager[Any]:
    opened: AbstractAsyncContextManager[Any] = ASYNC[name](url)
    return opened
