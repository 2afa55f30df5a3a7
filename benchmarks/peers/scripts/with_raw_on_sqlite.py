"""Handwritten SQL on SQLite: one thread writes all pending rows in one transaction, with `synchronous = full`."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from typing import TYPE_CHECKING, Any

import apsw

if TYPE_CHECKING:
    from benchmarks.peers.scripts.run import PeerConfig

WORKER = os.getpid()
LEASE_SECONDS = 60
MIN_CLAIM = 20

TABLES = """
create table job (
    id integer primary key, queue text not null default 'default', name text not null, args text not null,
    state int not null default 0, priority int not null default 0, run_at real not null default 0,
    attempt int not null default 0, worker int, lease_until real, result text, created_at real, started_at real,
    finished_at real
);
create index job_ready on job (queue, priority, id) where state = 0;
create index job_lease on job (lease_until) where state = 1;
create table event (id integer primary key, job int not null, kind int not null, at real not null, worker int);
create index event_job on event (job);
create table step (
    job int not null, n int not null, name text not null, result text, at real, primary key (job, n)
) without rowid;
"""
CLAIM = """
update job set state = 1, attempt = attempt + 1, worker = ?1, lease_until = ?2 + ?3, started_at = ?2
where id in (
    select id from job where queue = 'default' and state = 0 and run_at <= ?2 order by priority, id limit ?4
)
returning id, args, attempt
"""
FINISH = """
update job set state = 2, result = ?, finished_at = ?, lease_until = null
where id = ? and attempt = ? and worker = ? and lease_until is not null
"""
RECORD_STEP = """
insert into step (job, n, name, result, at) select ?, ?, ?, ?, ?
where exists (select 1 from job where id = ? and attempt = ? and worker = ? and lease_until is not null)
"""
RECORD_EVENT = "insert into event (job, kind, at, worker) values (?, ?, ?, ?)"

Row = tuple[int, str, int]


class Writer(threading.Thread):
    """The only thread that writes. It notifies the event loop once per transaction."""

    def __init__(self, connection: apsw.Connection, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(daemon=True)
        self._connection = connection
        self._loop = loop
        self._writes: list[tuple[str, tuple[Any, ...], asyncio.Future[Any]]] = []
        self._pending = threading.Condition()

    def submit(self, kind: str, *values: Any) -> asyncio.Future[Any]:
        """Submit a write: `claim` up to a number of jobs, `finish` a job, or `record` a step."""
        written = self._loop.create_future()
        with self._pending:
            self._writes.append((kind, values, written))
            self._pending.notify()
        return written

    def run(self) -> None:
        while True:
            with self._pending:
                self._pending.wait_for(lambda: self._writes)
                writes, self._writes = self._writes, []
            self._connection.execute("begin immediate")
            results = self._apply(writes)
            self._connection.execute("commit")
            self._loop.call_soon_threadsafe(self._resolve, results)

    def _apply(self, writes: list[tuple[str, tuple[Any, ...], asyncio.Future[Any]]]) -> list[tuple[Any, Any]]:
        now = time.time()
        steps: list[tuple[Any, ...]] = []
        ends: list[tuple[Any, ...]] = []
        events: list[tuple[Any, ...]] = []
        results: list[tuple[Any, Any]] = []
        for kind, values, future in writes:
            rows: list[Any] | None = None
            if kind == "claim":
                rows = self._connection.execute(CLAIM, (WORKER, now, LEASE_SECONDS, values[0])).fetchall()
                events.extend((row[0], 1, now, WORKER) for row in rows)
            elif kind == "finish":
                row, result = values
                ends.append((result, now, row[0], row[2], WORKER))
                events.append((row[0], 2, now, WORKER))
            else:
                row, number, result = values
                steps.append((row[0], number, f"step-{number}", result, now, row[0], row[2], WORKER))
            results.append((future, rows))
        for statement, batch in ((FINISH, ends), (RECORD_STEP, steps), (RECORD_EVENT, events)):
            if batch:
                self._connection.executemany(statement, batch)
        return results

    @staticmethod
    def _resolve(results: list[tuple[Any, Any]]) -> None:
        for future, rows in results:
            future.set_result(rows)


async def run_jobs(writer: Writer, batch: int) -> None:
    """Run jobs in batches and claim the next batch meanwhile."""

    async def run(row: Row) -> None:
        number = json.loads(row[1])["number"]
        await writer.submit("finish", row, json.dumps(number))

    running: set[asyncio.Task[None]] = set()
    next_rows = writer.submit("claim", batch)
    while rows := await next_rows:
        next_rows = writer.submit("claim", batch)
        running.update(asyncio.create_task(run(row)) for row in rows)
        if len(running) > 2 * batch:
            await asyncio.wait(running)
            running = set()
    if running:
        await asyncio.wait(running)


async def run_steps(writer: Writer, limit: int, steps: int) -> None:
    async def run(row: Row) -> None:
        for number in range(steps):
            await writer.submit("record", row, number, '{"ok": 1}')
        await writer.submit("finish", row, "1")

    running: set[asyncio.Task[None]] = set()
    more = True
    while more or running:
        free = limit - len(running)
        if more and free >= min(MIN_CLAIM, limit):
            rows = await writer.submit("claim", free)
            more = bool(rows)
            running.update(asyncio.create_task(run(row)) for row in rows)
        if running:
            _, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)


def fill(connection: apsw.Connection, config: PeerConfig) -> None:
    connection.execute(TABLES)
    with connection:
        rows = [(config.task, json.dumps(arguments)) for arguments in config.payloads()]
        connection.executemany("insert into job (name, args) values (?, ?)", rows)
    connection.execute("analyze")


async def direct(config: PeerConfig) -> dict[str, float]:
    """Measure from the first claim to the last completion."""
    connection = apsw.Connection(str(config.file))
    for pragma in ("journal_mode = wal", "synchronous = full", "busy_timeout = 5000", "cache_size = -64000"):
        connection.execute(f"pragma {pragma}").fetchall()
    fill(connection, config)
    writer = Writer(connection, asyncio.get_running_loop())
    writer.start()
    started = time.perf_counter()
    if config.task == "steps":
        await run_steps(writer, config.settings["concurrency"], config.steps)
    else:
        await run_jobs(writer, config.settings["batch"])
    seconds = time.perf_counter() - started

    def number(query: str) -> int:
        found: Any = connection.execute(query).fetchall()[0][0]
        return int(found)

    done = number("select count(*) from job where state = 2")
    return {"rate": config.count / seconds, "done": done, "steps": number("select count(*) from step")}
