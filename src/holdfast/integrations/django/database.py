"""Store runs in the PostgreSQL database that Django uses."""

from __future__ import annotations

from django.db import connections
from psycopg.conninfo import conninfo_to_dict

from holdfast.database.postgres import PostgresConnection, PostgresDatabase
from holdfast.integrations.django.connections import url_of


class DjangoDatabase(PostgresDatabase):
    """The PostgreSQL database of a Django alias.

    The URL is looked up at each connect, because Django switches to the test database after tasks are declared.
    """

    def __init__(self, alias: str, schema: str) -> None:
        self.django_alias = alias
        super().__init__(url_of(connections[alias].settings_dict), schema)

    def connect(self, purpose: str, idle_timeout_s: float) -> PostgresConnection:
        self._options = conninfo_to_dict(url_of(connections[self.django_alias].settings_dict))
        return super().connect(purpose, idle_timeout_s)
