"""Transactions of tasks on Django's own connection, so that the ORM takes part in them.

`ctx.transaction` calls its function in a thread. There, this opens Django's transaction, and Holdfast writes the
checkpoint as its last statement: what the ORM, raw SQL and the checkpoint write is committed together.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

import psycopg
from django.db import Error, connections, transaction
from psycopg.pq import TransactionStatus

from holdfast.database import ConnectionLost, DatabaseConnection, Row, Statement
from holdfast.database.caller_connection import pyformat
from holdfast.database.faults import transaction_ended, unwrap_driver_error
from holdfast.database.postgres import OUT_OF_RESOURCES, first_line, translate_error
from holdfast.errors import StoreUnavailable


@cache
def _checked(cursor_factory: Any) -> Any:
    """Return a class of cursors that detects SQL of a task that ended the transaction."""

    class CheckedCursor(cursor_factory):  # type: ignore[misc]  # Django chooses the base
        def execute(self, *args: Any, **kwargs: Any) -> Any:
            found = super().execute(*args, **kwargs)
            if self.connection.info.transaction_status == TransactionStatus.IDLE:
                raise transaction_ended(self.connection.info.dbname)
            return found

    return CheckedCursor


class DjangoTaskConnection(DatabaseConnection):
    """The connection that Django has for an alias in the current thread, while a task uses it."""

    def __init__(self, alias: str, what: str) -> None:
        self._alias = alias
        self._what = what
        self._lent: Any = None

    @contextmanager
    def lend(self) -> Iterator[Any]:
        """Open Django's transaction, and yield the psycopg connection that it uses.

        Errors of the task's SQL reach the task unchanged, except a broken connection and a server out of resources.
        Errors of the commit are translated.
        """
        django_connection = connections[self._alias]
        block = transaction.atomic(using=self._alias, durable=True)
        with self._translated():
            block.__enter__()
            self._require_read_committed(django_connection)
        self._lent = connection = django_connection.connection
        cursor_factory = connection.cursor_factory
        connection.cursor_factory = _checked(cursor_factory)
        try:
            yield connection
        except BaseException as error:
            self._lent, connection.cursor_factory = None, cursor_factory
            is_broken = connection.closed
            with suppress(Error):
                block.__exit__(type(error), error, error.__traceback__)
            if is_broken and isinstance(error, Exception):
                raise ConnectionLost(f"{self._what}: connection lost ({first_line(error)})") from error
            if isinstance(unwrap_driver_error(error), OUT_OF_RESOURCES):
                raise StoreUnavailable(f"{self._what} is out of resources: {first_line(error)}") from error
            raise
        self._lent, connection.cursor_factory = None, cursor_factory
        with self._translated():
            block.__exit__(None, None, None)

    @staticmethod
    def _require_read_committed(connection: Any) -> None:
        """With another isolation level, the checkpoint would conflict with every heartbeat of the worker."""
        if getattr(connection, "isolation_level", None) not in (None, psycopg.IsolationLevel.READ_COMMITTED):
            with connection.cursor() as cursor:
                cursor.execute("set transaction isolation level read committed")

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except Error as error:
            found = unwrap_driver_error(error)
            if not isinstance(found, psycopg.Error):
                raise
            raise translate_error(found, self._what) from error

    def execute(self, statement: Statement, values: Mapping[str, Any]) -> list[Row]:
        """Execute a statement of Holdfast in the transaction of the task."""
        assert self._lent is not None, "only a task's transaction uses this connection"
        with self._translated(), connections[self._alias].cursor() as cursor:
            cursor.execute(pyformat(statement), statement.by_name(values))
            return [tuple(row) for row in cursor.fetchall()] if cursor.description else []

    def execute_script(self, text: str) -> None:
        raise NotImplementedError("a task's transaction executes single statements")

    def begin(self) -> None:
        raise NotImplementedError("`lend` begins the transaction")

    def commit(self) -> None:
        raise NotImplementedError("`lend` commits the transaction")

    def rollback(self) -> None:
        """Do nothing: `lend` rolls back."""

    def close(self) -> None:
        """Do nothing: the connection belongs to Django and to the thread that uses it."""

    def abort(self) -> None:
        connection = self._lent
        if connection is not None:
            with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as wire:
                wire.shutdown(socket.SHUT_RDWR)
