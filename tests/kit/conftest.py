"""Fixtures: the kit's tests use its own fixtures, on both databases."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.processes import run_python

Pytest = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(params=["sqlite", "postgres"])
def holdfast_database(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def holdfast_postgres(postgres_server_url: str) -> str:
    return postgres_server_url


@pytest.fixture
def run_pytest(tmp_path: Path, request: pytest.FixtureRequest) -> Pytest:
    """Runs pytest on files given by name and text, in a new folder, as a user would."""

    def run(*args: str, postgres: bool = False, fork: bool = True, **files: str) -> subprocess.CompletedProcess[str]:
        for name, text in files.items():
            (tmp_path / f"{name}.py").write_text(text)
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "PYTEST"))
        }
        environment["COLUMNS"] = "400"
        if postgres:
            environment["HOLDFAST_TEST_PG_DSN"] = request.getfixturevalue("postgres_server_url")
        options = ["-q", "-p", "no:cacheprovider", "-p", "no:schemathesis"]
        return run_python("-m", "pytest", *options, *args, cwd=tmp_path, env=environment, timeout=120, fork=fork)

    return run
