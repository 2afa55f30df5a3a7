"""The store of the app: the one in the settings, or a private one in tests.

Tests must never touch real runs, whatever the `HOLDFAST` setting says. So from the first use in Django's test
environment on, a process uses a private store:

* If runs are stored in a database for which Django has created a test database, the tables in that test database.
* Otherwise, SQLite in memory.

Every test starts with an empty store. Nothing announces the start of a test, so each use checks for it.
"""

from __future__ import annotations

import os
import threading
from typing import Any

from django.db import DEFAULT_DB_ALIAS, connections

from holdfast.app import Holdfast
from holdfast.control.open import IN_MEMORY
from holdfast.database import Database, open_database
from holdfast.errors import ConfigError
from holdfast.integrations.django.connections import url_of
from holdfast.integrations.django.test_databases import (
    configured,
    current_test,
    runs_tests,
    share_with_children,
    test_names,
    was_started_by_test,
)
from holdfast.model.clock import Clock, database_clock
from holdfast.store import Store


def _alias_of(url: str) -> str | None:
    """Return the alias in `DATABASES` of the database behind a URL."""
    if not url.lower().startswith("postgres"):
        return None
    for alias, database in configured.items():
        if database["ENGINE"].startswith("django.db.backends.postgresql"):
            test_database = connections.settings[alias]
            if _place(url) in (_place(url_of(database)), _place(url_of(test_database))):
                return alias
    return None


def _place(url: str) -> tuple[object, ...]:
    from psycopg.conninfo import conninfo_to_dict

    parameters = conninfo_to_dict(url)
    return tuple(parameters.get(name) for name in ("dbname", "host", "port", "service"))


class InvalidStore(Store):
    """The store of an invalid setting, whose use raises the error."""

    clock = database_clock

    def __init__(self, error: ConfigError) -> None:
        self._error = error

    def __getattr__(self, name: str) -> Any:
        raise self._error

    def close(self) -> None:
        """Do nothing."""


class DjangoStore(Store):
    """Delegates to the store of the settings, or in tests to a private one.

    Args:
        app: The app whose store is replaced by this one.
        alias: The alias in `DATABASES` of the app's database, if it is one of Django's.
    """

    def __init__(self, app: Holdfast, alias: str | None) -> None:
        self._app = app
        self._alias = alias or _alias_of(app.url)
        self._real = app.store
        self._real.database.django_alias = self._alias or DEFAULT_DB_ALIAS
        self._private: Store | None = None
        self._databases: object = None
        self._test = -1
        self._switch_lock = threading.RLock()
        app._bind(self, app.url)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.current(), name)

    def current(self) -> Store:
        """Return the store to use now."""
        if not (runs_tests() or was_started_by_test()):
            return self._real
        names = test_names()
        databases, test = (os.getpid(), names), current_test()
        if self._private is None or self._databases != databases or self._test != test:
            with self._switch_lock:
                if self._private is None or self._databases != databases:
                    self._private = self._switch(names)
                    self._databases = databases
                    self._start_test(self._private, test)
                elif self._test != test:
                    self._start_test(self._private, test)
        return self._private

    @property
    def clock(self) -> Clock:
        return self._real.clock

    def close(self) -> None:
        """Close all connections, except that of an in-memory database, which would be lost."""
        if self.database.display_url != IN_MEMORY:
            super().close()

    def _switch(self, names: dict[str, str]) -> Store:
        schema = self._real.database.dialect.schema
        if self._alias in names:
            from holdfast.integrations.django.database import DjangoDatabase

            database: Database = DjangoDatabase(self._alias, schema)
            url = url_of(connections.settings[self._alias])
        elif was_started_by_test():
            raise ConfigError("the test that started this process stores its runs in memory, which only it can access")
        else:
            database, url = open_database(IN_MEMORY, schema), IN_MEMORY
        (self._private or self._real).close()
        self._app.url = url
        share_with_children(names)
        return self._real.with_database(database, migrate=True)

    def _start_test(self, private: Store, test: int) -> None:
        if runs_tests():
            private.retention.clear()
        self._test = test
        if self._app.store is self:
            self._app._client.bind(self)
