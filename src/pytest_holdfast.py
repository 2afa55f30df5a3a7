"""The pytest plugin of Holdfast: the `kit` fixture and the `@crash_at_every_step` marker.

A module outside the package, so that loading the plugin doesn't import Holdfast. Override the fixtures `holdfast_app`
and `holdfast_database` in your tests.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from holdfast import Holdfast
    from holdfast.testing.kit import Kit
    from holdfast.testing.server import DatabaseFactory

DSN = "HOLDFAST_TEST_PG_DSN"
MARK = "crash_at_every_step"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"{MARK}: repeat the test with a worker crash at each write (holdfast.testing)")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    if item.get_closest_marker(MARK) is None:
        return None
    from holdfast.testing.crash_test_runner import run_crash_test

    run_crash_test(item, nextitem)
    return True


def pytest_runtest_setup() -> None:
    """Give each test of a Django project an empty store."""
    django = sys.modules.get("holdfast.integrations.django.test_databases")
    if django is not None:
        django.start_test()


@pytest.fixture
def holdfast_app() -> Holdfast | None:
    """The app under test. Override it to return yours; by default each test gets a new app."""
    return None


@pytest.fixture
def holdfast_database() -> str:
    """The database of the tests: "sqlite" (in memory) or "postgres". Override it, with params to use both."""
    return "sqlite"


@pytest.fixture(scope="session")
def holdfast_postgres() -> Iterator[str]:
    """The URL of a PostgreSQL server for tests: $HOLDFAST_TEST_PG_DSN, or else a temporary server."""
    if DSN in os.environ:
        yield os.environ[DSN]
        return
    from holdfast.testing.server import PostgresServer

    with PostgresServer(fsync=False, settings={"full_page_writes": "off", "synchronous_commit": "off"}) as server:
        yield server.url


@pytest.fixture(scope="session")
def _holdfast_databases(holdfast_postgres: str) -> Iterator[DatabaseFactory]:
    from holdfast.testing.server import DatabaseFactory

    databases = DatabaseFactory(holdfast_postgres)
    yield databases
    databases.close()


@pytest.fixture
def kit(request: pytest.FixtureRequest, holdfast_app: Holdfast | None, holdfast_database: str) -> Iterator[Kit]:
    """The app on a private store, with a virtual clock."""
    from holdfast.database.dialect import Dialect
    from holdfast.errors import ConfigError
    from holdfast.testing.kit import Kit

    if holdfast_database not in ("sqlite", "postgres"):
        raise ConfigError(f'holdfast_database must return "sqlite" or "postgres", not {holdfast_database!r}')
    if holdfast_database == "sqlite":
        with Kit(holdfast_app) as kit:
            yield kit
        return
    databases: DatabaseFactory = request.getfixturevalue("_holdfast_databases")
    url = databases.create(Dialect.schema if holdfast_app is None else holdfast_app.store.database.dialect.schema)
    with Kit(holdfast_app, url=url) as kit:
        yield kit
    databases.drop(url)
