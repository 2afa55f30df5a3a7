"""Runs in the PostgreSQL database that Django uses. Needs psycopg, as all of Holdfast on PostgreSQL does."""

from __future__ import annotations

from django.db import connections
from psycopg.conninfo import conninfo_to_dict

from holdfast.database.postgres import PostgresConnection, PostgresDatabase
from holdfast.integrations.django.connections import url_of


class DjangoDatabase(PostgresDatabase):
    """The PostgreSQL database that Django uses under a name: a test's own while tests run, which Django decides after
    tasks were declared. So it is looked up at each connect."""

    def __init__(self, alias: str, schema: str) -> None:
        self._alias = alias
        super().__init__(url_of(connections[alias].settings_dict), schema)

    def connect(self, purpose: str, idle_timeout_s: float) -> PostgresConnection:
        self._options = conninfo_to_dict(url_of(connections[self._alias].settings_dict))
        return super().connect(purpose, idle_timeout_s)
