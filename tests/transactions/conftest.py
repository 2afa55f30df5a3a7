"""Fixtures: an app on PostgreSQL, and its database through every supported library."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.testing.server import create_database, database_of, drop_database
from tests.transactions.libraries import BLOCKING, Library


@pytest.fixture
def app(postgres_url):
    with Holdfast(postgres_url) as app:
        app.store.prepare()
        yield app


@pytest.fixture
def note(app):
    @app.task(name="note")
    def note(text: str) -> str:
        return text

    return note


@pytest.fixture(params=list(BLOCKING), ids=lambda kind: kind.name)
def library(request, postgres_url) -> Any:
    opened: Library = request.param(postgres_url)
    yield opened
    opened.close()


@pytest.fixture
def other_url(postgres_server_url):
    """A second database on the same server."""
    url = create_database(postgres_server_url)
    yield url
    drop_database(postgres_server_url, database_of(url))
