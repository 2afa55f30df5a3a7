"""Private databases for tests on a PostgreSQL server: copies of one that has the tables already."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.database import open_database
from holdfast.store import Store
from holdfast.testing.server import create_on, database_of, drop_on, new_name, url_with_database

if TYPE_CHECKING:
    from psycopg import Connection


class Databases:
    """Those of one server, for one run of tests. All are made over one connection: to open one takes long, too."""

    def __init__(self, server_url: str) -> None:
        self._server = server_url
        self._templates: dict[str, str] = {}
        self._connection: Connection[Any] | None = None

    def create(self, schema: str) -> str:
        """The URL of a new one, with tables in that schema, and nothing in them."""
        if schema not in self._templates:
            url = self.create_empty()
            store = Store(open_database(url, schema))
            store.prepare()
            store.close()
            self._templates[schema] = database_of(url)
        return self.create_empty(self._templates[schema])

    def create_empty(self, template: str | None = None) -> str:
        """The URL of a new one that is a copy of the template, or has no tables."""
        name = new_name()
        create_on(self._connect(), name, template)
        return url_with_database(self._server, name)

    def drop(self, url: str) -> None:
        drop_on(self._connect(), database_of(url))

    def close(self) -> None:
        for name in self._templates.values():
            drop_on(self._connect(), name)
        if self._connection is not None:
            self._connection.close()

    def _connect(self) -> Connection[Any]:
        import psycopg

        if self._connection is None or self._connection.closed:
            self._connection = psycopg.connect(self._server, autocommit=True)
        return self._connection
