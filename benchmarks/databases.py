"""The databases that benchmarks run on, always with durable settings.

SQLite runs as Holdfast opens it, PostgreSQL with fsync and synchronous_commit on.
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
from benchmarks.tasks import BATCHED, NOOP, PAYLOAD_TEXT, QUEUE, SINGLE, TASKS, make_app
from holdfast.database import Row
from holdfast.database.sqlite_connection import SqliteConnection
from holdfast.database.statements import StatementSource, render
from holdfast.store import Store
from holdfast.testing.server import PostgresServer, create_database, database_of, drop_database

COMMIT_SAMPLES = 300
SHARED_BUFFERS = "1GB"
MAX_CONNECTIONS = 1500
"""For hundreds of workers, also of earlier releases, which held more connections."""
REPORTED_SETTINGS = ("server_version", "fsync", "synchronous_commit", "full_page_writes", "shared_buffers")
CHUNK_ROWS = 1000
READ_TIMEOUT_S = 600.0  # After ten minutes at full speed, many millions of rows are counted.

COUNT_DONE = "select count(*) from {schema}runs where seq > cast(:baseline as bigint) and state = 'done'"
COUNT_RECORDED = """
select count(*) from {schema}history h join {schema}runs r on r.id = h.run
where r.seq > cast(:baseline as bigint) and h.kind = 'done'
"""
SUM_RESULTS = "select coalesce(sum(cast(result as bigint)), 0) from {schema}runs where seq > cast(:baseline as bigint)"
NEWEST_SEQ = "select coalesce(max(seq), 0) from {schema}runs"
DELETE_HISTORY = """
delete from {schema}history where run in (select id from {schema}runs where seq > cast(:baseline as bigint))
"""
DELETE_RUNS = "delete from {schema}runs where seq > cast(:baseline as bigint)"


class BenchmarkError(Exception):
    """The benchmark can't run here; the message says why and what to do."""


def execute(store: Store, text: str, line: str = "client", **values: Any) -> list[Row]:
    """Execute a statement that uses the dialect's placeholders."""
    statement = render(StatementSource("bench", None, "", text), store.database.dialect)
    parameters = {"now": None, **values}
    return store.database.connection(line).run(lambda connection: connection.execute(statement, parameters))


class BenchmarkDatabase:
    """A database with Holdfast's tables, dropped on `close`. Counts include only runs after the baseline."""

    def __init__(self, url: str, settle: Callable[[], None], drop: Callable[[], None]) -> None:
        self.url = url
        self.settle = settle
        """Flush dirty pages, vacuum, and update the planner's statistics."""
        self._drop = drop
        self.app, _ = make_app(url)
        self.store = self.app.store
        self.store.database.read_timeout_s = READ_TIMEOUT_S
        self.store.prepare()
        lanes = self.store.lanes.ids({(QUEUE, task) for task in TASKS})
        self.lanes = {task: lane for (_, task), lane in lanes.items()}
        self._baseline = 0
        self._used: set[int] = set()  # lanes

    def query(self, text: str, line: str = "client", **values: Any) -> list[Row]:
        """Execute a statement that uses the dialect's placeholders."""
        return execute(self.store, text, line, **values)

    def number(self, text: str) -> int:
        return int(self.query(text, "read", baseline=self._baseline)[0][0])

    def set_baseline(self) -> None:
        """Leave the runs that exist now out of all counts."""
        self._baseline = self.number(NEWEST_SEQ)

    def replace_runs(self, count: int, task: str = NOOP) -> None:
        """Delete the runs after the baseline and enqueue `count` new ones."""
        self.query(DELETE_HISTORY, baseline=self._baseline)
        self.query(DELETE_RUNS, baseline=self._baseline)
        self.settle()
        self.enqueue(count, task)
        self.settle()

    def enqueue(self, count: int, task: str = NOOP) -> None:
        self._used.add(self.lanes[task])
        for first in range(0, count, CHUNK_ROWS):
            self.app.registry.get(task).enqueue_many(
                [
                    (number,) if task in (SINGLE, BATCHED) else (number, PAYLOAD_TEXT)
                    for number in range(first, min(count, first + CHUNK_ROWS))
                ]
            )

    def has_unfinished(self) -> bool:
        """Tell whether any run is ready or running.

        Polled during measurements, so it reads only the lanes to which `enqueue` has added runs, if there are any.
        """
        return self.store.claims.has_active(self._used or self.lanes.values())

    def count_done(self) -> int:
        return self.number(COUNT_DONE)

    def count_recorded(self) -> int:
        """Count the runs whose completion is in the history."""
        return self.number(COUNT_RECORDED)

    def sum_results(self) -> int:
        return self.number(SUM_RESULTS)

    def close(self) -> None:
        self.app.close()
        self._drop()


class Backend(ABC):
    """Creates databases."""

    name: str

    @abstractmethod
    def create_database(self) -> BenchmarkDatabase: ...

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return versions, settings and the cost of a commit."""


class SqliteBackend(Backend):
    """Creates SQLite files in a folder."""

    name = "SQLite"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._created = 0

    def create_database(self) -> BenchmarkDatabase:
        self._created += 1
        path = self._folder / f"{self._created}.db"
        return BenchmarkDatabase(f"sqlite:///{path}", lambda: _settle_sqlite(path), lambda: _remove_sqlite(path))

    def describe(self) -> dict[str, Any]:
        path = self._folder / "commits.db"
        connection = apsw.Connection(str(path))
        for pragma in ("journal_mode = wal", "synchronous = full"):
            connection.execute(f"pragma {pragma}").fetchall()
        connection.execute("create table commits (value int)")
        commit_us = _median_us(lambda: connection.execute("insert into commits values (1)"))
        connection.close()
        _remove_sqlite(path)
        return {"version": apsw.sqlitelibversion(), "synchronous": "full", "commit_microseconds": commit_us}


class PostgresBackend(Backend):
    """Creates databases on a PostgreSQL server."""

    name = "PostgreSQL"

    def __init__(self, url: str) -> None:
        self.url = url

    def create_database(self) -> BenchmarkDatabase:
        url = create_database(self.url)
        return BenchmarkDatabase(url, lambda: _settle_postgres(url), lambda: drop_database(self.url, database_of(url)))

    def describe(self) -> dict[str, Any]:
        import psycopg

        try:
            with psycopg.connect(self.url, autocommit=True) as connection:
                shown = {name: connection.execute(f"show {name}".encode()).fetchone() for name in REPORTED_SETTINGS}
        except psycopg.Error as error:
            raise BenchmarkError(f"cannot connect to PostgreSQL: {str(error).strip().splitlines()[0]}") from None
        facts: dict[str, Any] = {name: row[0] for name, row in shown.items() if row}
        for name in ("fsync", "synchronous_commit"):
            if facts[name] == "off":
                raise BenchmarkError(f"the PostgreSQL server has {name} off; turn it on to get meaningful results")
        facts["version"] = facts.pop("server_version")
        facts["psycopg"] = f"{psycopg.__version__} ({psycopg.pq.__impl__})"
        url = create_database(self.url)
        try:
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute("create table commits (value int)")
                facts["commit_microseconds"] = _median_us(lambda: connection.execute("insert into commits values (1)"))
        finally:
            drop_database(self.url, database_of(url))
        return facts


def open_backends(postgres: str | None, sqlite: bool, stack: ExitStack) -> list[Backend]:
    """Open the requested backends.

    `postgres` is the URL of a server, an empty string to start a temporary server, or None for no PostgreSQL.
    """
    backends: list[Backend] = []
    if postgres is not None:
        if importlib.util.find_spec("psycopg") is None:
            raise BenchmarkError("PostgreSQL needs psycopg: pip install 'holdfast[postgres]', or use --sqlite")
        backends.append(PostgresBackend(postgres or _start_server(stack)))
    if sqlite:
        folder = tempfile.TemporaryDirectory(prefix="holdfast-bench-", ignore_cleanup_errors=True)
        backends.append(SqliteBackend(Path(stack.enter_context(folder))))
    return backends


def describe_environment(backends: list[Backend]) -> dict[str, Any]:
    """Return versions, settings and the cost of a commit."""
    facts: dict[str, Any] = {
        "python": platform.python_version(),
        "holdfast": holdfast.__version__,
        "uvloop": version("uvloop") if importlib.util.find_spec("uvloop") else "not installed",
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
    }
    return facts | {backend.name: backend.describe() for backend in backends}


def _start_server(stack: ExitStack) -> str:
    """Start a temporary server that is reached by TCP, like a remote one. Peers reach it in the same way."""
    settings: dict[str, str | int] = {"synchronous_commit": "on", "max_connections": MAX_CONNECTIONS}
    server = PostgresServer(port=0, shared_buffers=SHARED_BUFFERS, settings=settings)
    try:
        return stack.enter_context(server).url
    except RuntimeError as error:
        raise BenchmarkError(f"cannot start a PostgreSQL server: {error}") from None


def _settle_postgres(url: str) -> None:
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("vacuum analyze holdfast.runs, holdfast.history, holdfast.waits, holdfast.messages")
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


def _median_us(commit: Callable[[], Any]) -> int:
    """Measure a durable write of one row."""
    elapsed = []
    for _ in range(COMMIT_SAMPLES):
        started = time.perf_counter()
        commit()
        elapsed.append(time.perf_counter() - started)
    return round(statistics.median(elapsed) * 1e6)
