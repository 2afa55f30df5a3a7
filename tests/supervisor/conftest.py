"""Fixtures for tests of several worker processes under one supervisor."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast import Holdfast
from tests.support.ledger import Ledger
from tests.support.processes import Process, Processes
from tests.support.session_processes import running
from tests.support.wait_until import wait_until

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger")


@pytest.fixture
def app(sqlite_url: str) -> Iterator[Holdfast]:
    """The test's own door to the database that the workers work on."""
    with Holdfast(sqlite_url) as app:
        yield app


@pytest.fixture
def start(tmp_path: Path, sqlite_url: str, ledger: Ledger) -> Iterator[Callable[..., Process]]:
    """Start Python with these arguments, where `shop` is the app; nothing of it outlives the test."""
    processes = Processes(tmp_path)
    sessions: list[int] = []

    def start(*arguments: object, **env: str) -> Process:
        settings = {"HOLDFAST_URL": sqlite_url, "LEDGER": str(ledger.path), "PYTHONPATH": str(ROOT), **env}
        process = processes.start(*arguments, cwd=HERE / "apps", env=settings)
        sessions.append(process.pid)
        return process

    yield start
    processes.close()
    for session in sessions:
        for pid in running(session):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def supervise(start: Callable[..., Process]) -> Callable[..., Process]:
    """`holdfast worker --processes N`, once its workers work."""

    def supervise(processes: int = 2, *options: str, wait: bool = True, **env: str) -> Process:
        command = ["-m", "holdfast.cli", "worker", "--app", "shop:app", "--processes", processes, *options]
        process = start(*command, **env)
        if wait:
            wait_until(lambda: process.log.count("worker started") == processes, 60, "its workers at work")
        return process

    return supervise
