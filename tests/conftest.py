"""Fixtures for all tests: a private, empty database on SQLite and on PostgreSQL.

A test with the fixture `database_url` runs once per database. The first test that needs PostgreSQL starts a server for
the whole run. With several test processes, the controller holds the server; the others get its URL through a socket.
`HOLDFAST_TEST_PG_DSN` names a server to use instead.
"""

from __future__ import annotations

import gc
import math
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.connection import Client, Listener
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.store import claims
from holdfast.testing.server import DatabaseFactory, PostgresServer
from tests.support.store_harness import Clock, StoreHarness

DSN = "HOLDFAST_TEST_PG_DSN"


class SharedServer:
    """The PostgreSQL server of a test run, started on first use."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._server: PostgresServer | None = None
        self._folder = ""
        self._listener: Listener | None = None

    def url(self) -> str:
        if DSN in os.environ:
            return os.environ[DSN]
        with self._lock:
            if self._server is None:
                settings = {"max_connections": 300, "full_page_writes": "off", "synchronous_commit": "off"}
                self._server = PostgresServer(fsync=False, settings=settings)
            return self._server.start().url

    def address(self) -> str:
        """Return the socket at which other test processes get the URL."""
        if self._listener is None:
            self._folder = tempfile.mkdtemp(prefix="holdfast-tests-")
            self._listener = Listener(str(Path(self._folder) / "ask"))
            threading.Thread(target=self._answer, args=(self._listener,), daemon=True).start()
        return str(self._listener.address)

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
            shutil.rmtree(self._folder, ignore_errors=True)
        if self._server is not None:
            self._server.close()

    def _answer(self, listener: Listener) -> None:
        while True:
            try:
                client = listener.accept()
            except OSError:
                return  # The run has ended.
            with client:
                try:
                    answer = "url " + self.url()
                except Exception as error:
                    answer = f"error {error}"
                client.send_bytes(answer.encode())


def ask(address: str) -> str:
    """Get the URL of the server that another process holds."""
    with Client(address) as connection:
        kind, _, answer = connection.recv_bytes().decode().partition(" ")
    if kind == "error":
        raise RuntimeError(answer)
    return answer


SERVER = pytest.StashKey[SharedServer]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the tests marked slow too")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[SERVER] = SharedServer()
    gc.disable()  # Until all tests are collected: their modules and items stay, and collecting garbage took a third.


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Called by xdist for each test process that it starts."""
    node.workerinput["postgres_address"] = node.config.stash[SERVER].address()


def pytest_unconfigure(config: pytest.Config) -> None:
    if SERVER in config.stash:
        config.stash[SERVER].close()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip slow tests with a reason, so that the summary counts them."""
    if config.getoption("--slow"):
        return
    repeated = _repeated_variants(items)
    for item in items:
        if item in repeated:
            item.add_marker(pytest.mark.skip(reason="slow: this variant runs on the other database, here with --slow"))
        elif item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.skip(reason="slow: runs with --slow"))


def _repeated_variants(items: list[pytest.Item]) -> set[pytest.Item]:
    """Return the tests marked `variants` whose variant runs on the other database.

    Their parameters other than the database are variants of author code or of a fault, which the store doesn't see. The
    first one runs on both databases, the others on one each, in turn.
    """
    repeated, seen = set(), dict[str, list[str]]()
    for item in items:
        if item.get_closest_marker("variants") is None or not isinstance(item, pytest.Function):
            continue
        parameters = dict(item.callspec.params)
        database = parameters.pop("database_url", None)
        variants = seen.setdefault(item.nodeid.partition("[")[0], [])
        if (variant := repr(parameters)) not in variants:
            variants.append(variant)
        number = variants.index(variant)
        if number and database is not None and database != ("sqlite", "postgres")[number % 2]:
            repeated.add(item)
    return repeated


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
def claims_scan_from_the_head() -> Iterator[None]:
    """Keep a busy machine from changing where claims start their scan."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(claims, "SCAN_POLICY", replace(claims.SCAN_POLICY, slow_scan_s=math.inf))
        yield


@pytest.fixture(scope="session")
def postgres_server_url(request: pytest.FixtureRequest) -> str:
    """A PostgreSQL server where databases may be created."""
    given = getattr(request.config, "workerinput", None)
    if given is not None and DSN not in os.environ:
        return ask(given["postgres_address"])
    return request.config.stash[SERVER].url()


@pytest.fixture(scope="session")
def databases(postgres_server_url: str) -> Iterator[DatabaseFactory]:
    """Creates databases as copies of a template, which takes a quarter of the time of creating the tables."""
    databases = DatabaseFactory(postgres_server_url)
    yield databases
    databases.close()


@pytest.fixture
def postgres_url(databases: DatabaseFactory, request: pytest.FixtureRequest) -> Iterator[str]:
    """A new PostgreSQL database with tables, or without for tests marked `no_tables`; dropped after the test."""
    url = databases.create_empty() if request.node.get_closest_marker("no_tables") else databases.create("holdfast")
    yield url
    databases.drop(url)


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file with tables, to be copied."""
    file = tmp_path_factory.mktemp("template") / "holdfast.db"
    with Holdfast(f"sqlite:///{file}") as app:
        app.store.prepare()
    return file


@pytest.fixture
def sqlite_url(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """A new SQLite file with tables; for tests marked `no_tables`, the file does not exist yet."""
    file = tmp_path / "holdfast.db"
    if not request.node.get_closest_marker("no_tables"):
        shutil.copyfile(request.getfixturevalue("sqlite_template"), file)
    return f"sqlite:///{file}"


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest) -> str:
    """A new database without runs, once on SQLite and once on PostgreSQL."""
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture
def harness(database_url: str) -> Iterator[StoreHarness]:
    """A store on an empty database with a manual clock, once per database."""
    harness = StoreHarness(database_url)
    yield harness
    harness.close()


@pytest.fixture
def clock(harness: StoreHarness) -> Clock:
    return harness.clock
