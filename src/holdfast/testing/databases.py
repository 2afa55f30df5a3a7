"""Private databases for tests on a PostgreSQL server: copies of one that has the tables already."""

from __future__ import annotations

from holdfast.database import open_database
from holdfast.store import Store
from holdfast.testing.server import create_database, database_of, drop_database


class Databases:
    """Those of one server, for one run of tests."""

    def __init__(self, server_url: str) -> None:
        self._server = server_url
        self._templates: dict[str, str] = {}

    def create(self, schema: str) -> str:
        """The URL of a new one, with tables in that schema, and nothing in them."""
        if schema not in self._templates:
            url = create_database(self._server)
            store = Store(open_database(url, schema))
            store.prepare()
            store.close()
            self._templates[schema] = database_of(url)
        return create_database(self._server, template=self._templates[schema])

    def drop(self, url: str) -> None:
        drop_database(self._server, database_of(url))

    def close(self) -> None:
        for name in self._templates.values():
            drop_database(self._server, name)
