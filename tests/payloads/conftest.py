"""Fixtures for payload tests: apps with a codec, and a dump of everything stored."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from holdfast.model import codec
from tests.engine.conftest import clock, make_app  # noqa: F401


@pytest.fixture(autouse=True)
def largest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reset the process-wide size limit, which an app may raise, for later tests."""
    monkeypatch.setattr(codec, "_max_bytes", codec.MAX_PAYLOAD_BYTES)


@pytest.fixture
def stored(database_url: str) -> Callable[[], str]:
    """Return everything in the database as one text."""

    def look() -> str:
        if database_url.startswith("sqlite"):
            path = Path(database_url.removeprefix("sqlite:///"))
            files = [each for each in path.parent.iterdir() if each.name.startswith(path.name)]
            return "".join(each.read_bytes().decode("latin-1") for each in files)
        with psycopg.connect(database_url) as connection:
            tables = connection.execute("select tablename from pg_tables where schemaname = 'holdfast'").fetchall()
            return "".join(_rows(connection, name) for (name,) in tables)

    def _rows(connection: psycopg.Connection[Any], name: str) -> str:
        query = sql.SQL("select t::text from holdfast.{} t").format(sql.Identifier(name))
        return "".join(row[0] for row in connection.execute(query))

    return look
