"""Fixtures: the kit on both databases."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["sqlite", "postgres"])
def holdfast_database(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def holdfast_postgres(postgres_server_url: str) -> str:
    return postgres_server_url
