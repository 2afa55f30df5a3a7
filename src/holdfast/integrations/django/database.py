"""Store runs in the PostgreSQL database that Django uses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connections
from psycopg.conninfo import conninfo_to_dict

from holdfast.database import ManagedConnection
from holdfast.database.base import IDLE_TIMEOUT_S
from holdfast.database.postgres import PostgresConnection, PostgresDatabase
from holdfast.integrations.django.connections import url_of
from holdfast.integrations.django.task_connection import DjangoTaskConnection


class DjangoDatabase(PostgresDatabase):
    """The PostgreSQL database of a Django alias.

    The URL is looked up at each connect, because Django switches to the test database after tasks are declared.
    """

    def __init__(self, alias: str, schema: str) -> None:
        self.django_alias = alias
        super().__init__(url_of(connections[alias].settings_dict), schema)

    def connection(self, purpose: str, idle_timeout_s: float = IDLE_TIMEOUT_S) -> ManagedConnection:
        if purpose.startswith("transaction"):
            return self._managed(purpose, lambda: DjangoTaskConnection(self.django_alias, self.display_url))
        return super().connection(purpose, idle_timeout_s)

    @contextmanager
    def task_transaction(self, connection: ManagedConnection) -> Iterator[Any]:
        """Yield the psycopg connection of Django, so that the ORM takes part in the transaction."""
        with connection.exclusive() as opened:
            assert isinstance(opened, DjangoTaskConnection)
            with opened.lend() as psycopg_connection:
                yield psycopg_connection

    def connect(self, purpose: str, idle_timeout_s: float) -> PostgresConnection:
        self._options = conninfo_to_dict(url_of(connections[self.django_alias].settings_dict))
        return super().connect(purpose, idle_timeout_s)
