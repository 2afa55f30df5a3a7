"""Fixtures for fault tests: worker processes, a ledger, and apps of the test on the same database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.testing.server import PostgresServer
from tests.support.ledger import Ledger
from tests.support.processes import Process, Processes

APPS = Path(__file__).resolve().parent / "apps"


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    started = Processes(tmp_path)
    yield started
    started.close()


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger")


@pytest.fixture
def start_worker(processes: Processes, ledger: Ledger) -> Callable[..., Process]:
    """Start `apps/work.py` on a database and, by default, wait until it is ready."""

    def start(url: str, *flags: str, wait: bool = True, **settings: object) -> Process:
        options = [part for name, value in settings.items() for part in (f"--{name.replace('_', '-')}", value)]
        process = processes.start(APPS / "work.py", url, ledger.path, *flags, *options)
        if wait:
            process.wait_for("worker started", timeout=60)
        return process

    return start


@pytest.fixture
def start_durable(processes: Processes, ledger: Ledger) -> Callable[..., Process]:
    """Start `apps/durable.py` on a database and wait until it is ready."""

    def start(url: str, **settings: object) -> Process:
        options = [part for name, value in settings.items() for part in (f"--{name.replace('_', '-')}", value)]
        process = processes.start(APPS / "durable.py", url, ledger.path, *options)
        process.wait_for("worker started", timeout=60)
        return process

    return start


@pytest.fixture
def connect() -> Iterator[Callable[[str], Holdfast]]:
    """Create apps in the test process; they are closed at the end of the test."""
    made: list[Holdfast] = []

    def make(url: str) -> Holdfast:
        made.append(Holdfast(url))
        return made[-1]

    yield make
    for app in made:
        app.close()


@pytest.fixture
def app(database_url: str, connect: Callable[[str], Holdfast]) -> Holdfast:
    return connect(database_url)


@pytest.fixture
def durable_server() -> Iterator[PostgresServer]:
    """Return a separate server that keeps acknowledged commits through a crash."""
    with PostgresServer(fsync=True) as server:
        yield server
