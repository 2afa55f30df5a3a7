"""Fixtures for the benchmarks: a server that is as durable as they ask for, and a way to call the command."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from benchmarks import command
from holdfast.testing.server import PostgresServer

Measured = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def durable_server() -> Iterator[str]:
    """Unlike the server of the other tests, with fsync and synchronous_commit on."""
    with PostgresServer(port=0, settings={"max_connections": 100}) as server:
        yield server.url


@pytest.fixture(params=["SQLite", pytest.param("PostgreSQL", markers=pytest.mark.slow)])
def chosen(request: pytest.FixtureRequest) -> list[str]:
    """The options that choose a database."""
    if request.param == "SQLite":
        return ["--sqlite"]
    return ["--postgres", request.getfixturevalue("durable_server")]


@pytest.fixture
def measured(capsys: pytest.CaptureFixture[str]) -> Measured:
    """Calls the command in this process; what it found of its one measure."""

    def call(*arguments: str, code: int = 0) -> dict[str, Any]:
        found = command.main([*arguments, "--json"])
        output, errors = capsys.readouterr()
        assert found == code, errors
        results = json.loads(output)
        [benchmark] = results["measures"]
        return {**results, **benchmark}

    return call
