"""Fixtures for the benchmarks: a durable server, and a way to call the command."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from benchmarks import cli
from holdfast.testing.server import PostgresServer

Measured = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def durable_server() -> Iterator[str]:
    """A server with fsync and synchronous_commit on, unlike that of the other tests."""
    with PostgresServer(port=0, settings={"max_connections": 100}) as server:
        yield server.url


@pytest.fixture(params=["SQLite", pytest.param("PostgreSQL", marks=pytest.mark.slow)])
def chosen(request: pytest.FixtureRequest) -> list[str]:
    """The options that choose a database."""
    if request.param == "SQLite":
        return ["--sqlite"]
    return ["--postgres", request.getfixturevalue("durable_server")]


@pytest.fixture
def measured(capsys: pytest.CaptureFixture[str]) -> Measured:
    """Call the command in this process and return the results of its one benchmark."""

    def call(*arguments: str, code: int = 0) -> dict[str, Any]:
        found = cli.main([*arguments, "--json"])
        output, errors = capsys.readouterr()
        assert found == code, errors
        results = json.loads(output)
        [benchmark] = results["benchmarks"]
        return {**results, **benchmark}

    return call
