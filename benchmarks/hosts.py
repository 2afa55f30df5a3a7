"""Where databases under measurement live: files in a temporary folder, or databases on a PostgreSQL server.

Durable settings only: SQLite as Holdfast opens it, PostgreSQL with fsync and synchronous_commit on.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import statistics
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import ExitStack, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import apsw

import holdfast
from benchmarks.tables import Tables
from holdfast.database.sqlite_connection import SqliteConnection
from holdfast.testing.server import PostgresServer, create_database, database_of, drop_database

COMMITS = 300
SHARED_BUFFERS = "1GB"
REPORTED = ("server_version", "fsync", "synchronous_commit", "full_page_writes", "shared_buffers")


class Unusable(Exception):
    """What was asked for can't be measured here, and what to do about it."""


class Host(ABC):
    """Makes databases on demand; each is dropped when it is closed."""

    name: str

    @abstractmethod
    def fresh(self) -> Tables:
        """A new database with Holdfast's tables."""

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """What the figures depend on."""


class SqliteHost(Host):
    """Files in a folder."""

    name = "SQLite"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made = 0

    def fresh(self) -> Tables:
        self._made += 1
        path = self._folder / f"{self._made}.db"
        return Tables(f"sqlite:///{path}", lambda: _settle_sqlite(path), lambda: _remove_sqlite(path))

    def facts(self) -> dict[str, Any]:
        path = self._folder / "commits.db"
        connection = apsw.Connection(str(path))
        for pragma in ("journal_mode = wal", "synchronous = full"):
            connection.execute(f"pragma {pragma}").fetchall()
        connection.execute("create table commits (value int)")
        micros = _median_micros(lambda: connection.execute("insert into commits values (1)"))
        connection.close()
        _remove_sqlite(path)
        return {"version": apsw.sqlitelibversion(), "synchronous": "full", "commit_microseconds": micros}


class PostgresHost(Host):
    """Databases on a server."""

    name = "PostgreSQL"

    def __init__(self, url: str) -> None:
        self.url = url

    def fresh(self) -> Tables:
        url = create_database(self.url)
        return Tables(url, lambda: _settle_postgres(url), lambda: drop_database(self.url, database_of(url)))

    def facts(self) -> dict[str, Any]:
        import psycopg

        try:
            with psycopg.connect(self.url, autocommit=True) as connection:
                shown = {name: connection.execute(f"show {name}".encode()).fetchone() for name in REPORTED}
        except psycopg.Error as error:
            raise Unusable(f"the PostgreSQL server can't be reached: {str(error).strip().splitlines()[0]}") from None
        facts: dict[str, Any] = {name: row[0] for name, row in shown.items() if row}
        for name in ("fsync", "synchronous_commit"):
            if facts[name] == "off":
                raise Unusable(f"the PostgreSQL server has {name} off: its figures would say nothing; turn it on")
        facts["version"] = facts.pop("server_version")
        facts["psycopg"] = f"{psycopg.__version__} ({psycopg.pq.__impl__})"
        url = create_database(self.url)
        try:
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute("create table commits (value int)")
                facts["commit_microseconds"] = _median_micros(
                    lambda: connection.execute("insert into commits values (1)")
                )
        finally:
            drop_database(self.url, database_of(url))
        return facts


def open_hosts(postgres: str | None, sqlite: bool, stack: ExitStack) -> list[Host]:
    """The hosts that are asked for: `postgres` is a server's URL, empty for a server of our own, None for neither."""
    hosts: list[Host] = []
    if postgres is not None:
        if importlib.util.find_spec("psycopg") is None:
            raise Unusable("PostgreSQL needs psycopg: pip install 'holdfast[postgres]', or measure with --sqlite")
        hosts.append(PostgresHost(postgres or _own_server(stack)))
    if sqlite:
        folder = tempfile.TemporaryDirectory(prefix="holdfast-bench-", ignore_cleanup_errors=True)
        hosts.append(SqliteHost(Path(stack.enter_context(folder))))
    return hosts


def about(hosts: list[Host]) -> dict[str, Any]:
    """Versions, settings and the cost of a commit."""
    facts: dict[str, Any] = {
        "python": platform.python_version(),
        "holdfast": holdfast.__version__,
        "uvloop": version("uvloop") if importlib.util.find_spec("uvloop") else "not installed",
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
    }
    return facts | {host.name: host.facts() for host in hosts}


def _own_server(stack: ExitStack) -> str:
    """Reached by TCP, as a server elsewhere would be; peers reach it in the same way."""
    server = PostgresServer(port=0, shared_buffers=SHARED_BUFFERS, settings={"synchronous_commit": "on"})
    try:
        return stack.enter_context(server).url
    except RuntimeError as error:
        raise Unusable(f"no PostgreSQL server of our own: {error}") from None


def _settle_postgres(url: str) -> None:
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("vacuum analyze holdfast.runs, holdfast.history, holdfast.waits")
        with suppress(psycopg.errors.InsufficientPrivilege):
            connection.execute("checkpoint")


def _settle_sqlite(path: Path) -> None:
    connection = SqliteConnection(str(path))
    connection.execute_script("analyze")
    connection.execute_script("pragma wal_checkpoint(truncate)")
    connection.close()


def _remove_sqlite(path: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def _median_micros(commit: Callable[[], Any]) -> int:
    """What a durable write of one row costs."""
    taken = []
    for _ in range(COMMITS):
        started = time.perf_counter()
        commit()
        taken.append(time.perf_counter() - started)
    return round(statistics.median(taken) * 1e6)
