"""Hand-written SQL on SQLite: one thread writes, all that wait in one transaction, `synchronous = full`."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from typing import TYPE_CHECKING, Any

import apsw

if TYPE_CHECKING:
    from benchmarks.peers.scripts.run import Told

WORKER = os.getpid()
LEASE_SECONDS = 60
SMALLEST_REFILL = 20

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
RECORD = """
insert into step (job, n, name, result, at) select ?, ?, ?, ?, ?
where exists (select 1 from job where id = ? and attempt = ? and worker = ? and lease_until is not null)
"""
TELL = "insert into event (job, kind, at, worker) values (?, ?, ?, ?)"

Row = tuple[int, str, int]


class Writer(threading.Thread):
    """The only one who writes. The event loop learns of a whole transaction in one call."""

    def __init__(self, connection: apsw.Connection, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(daemon=True)
        self._connection = connection
        self._loop = loop
        self._wishes: list[tuple[str, tuple[Any, ...], asyncio.Future[Any]]] = []
        self._any = threading.Condition()

    def wish(self, kind: str, *values: Any) -> asyncio.Future[Any]:
        """`claim` so many, `finish` a row with a result, `record` a step of a row."""
        granted = self._loop.create_future()
        with self._any:
            self._wishes.append((kind, values, granted))
            self._any.notify()
        return granted

    def run(self) -> None:
        while True:
            with self._any:
                self._any.wait_for(lambda: self._wishes)
                wishes, self._wishes = self._wishes, []
            self._connection.execute("begin immediate")
            granted = self._grant(wishes)
            self._connection.execute("commit")
            self._loop.call_soon_threadsafe(self._tell, granted)

    def _grant(self, wishes: list[tuple[str, tuple[Any, ...], asyncio.Future[Any]]]) -> list[tuple[Any, Any]]:
        now = time.time()
        steps: list[tuple[Any, ...]] = []
        ends: list[tuple[Any, ...]] = []
        events: list[tuple[Any, ...]] = []
        granted: list[tuple[Any, Any]] = []
        for kind, values, future in wishes:
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
            granted.append((future, rows))
        for statement, batch in ((FINISH, ends), (RECORD, steps), (TELL, events)):
            if batch:
                self._connection.executemany(statement, batch)
        return granted

    @staticmethod
    def _tell(granted: list[tuple[Any, Any]]) -> None:
        for future, rows in granted:
            future.set_result(rows)


async def run_jobs(writer: Writer, batch: int) -> None:
    """The next batch is claimed while this one runs."""

    async def run(row: Row) -> None:
        number = json.loads(row[1])["number"]
        await writer.wish("finish", row, json.dumps(number))

    running: set[asyncio.Task[None]] = set()
    coming = writer.wish("claim", batch)
    while rows := await coming:
        coming = writer.wish("claim", batch)
        running.update(asyncio.create_task(run(row)) for row in rows)
        if len(running) > 2 * batch:
            await asyncio.wait(running)
            running = set()
    if running:
        await asyncio.wait(running)


async def run_steps(writer: Writer, most: int, steps: int) -> None:
    async def run(row: Row) -> None:
        for number in range(steps):
            await writer.wish("record", row, number, '{"ok": 1}')
        await writer.wish("finish", row, "1")

    running: set[asyncio.Task[None]] = set()
    more = True
    while more or running:
        free = most - len(running)
        if more and free >= min(SMALLEST_REFILL, most):
            rows = await writer.wish("claim", free)
            more = bool(rows)
            running.update(asyncio.create_task(run(row)) for row in rows)
        if running:
            _, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)


def fill(connection: apsw.Connection, told: Told) -> None:
    connection.execute(TABLES)
    with connection:
        rows = [(told.task, json.dumps(arguments)) for arguments in told.payloads()]
        connection.executemany("insert into job (name, args) values (?, ?)", rows)
    connection.execute("analyze")


async def direct(told: Told) -> dict[str, float]:
    """From the first claim to the last end."""
    connection = apsw.Connection(str(told.file))
    for pragma in ("journal_mode = wal", "synchronous = full", "busy_timeout = 5000", "cache_size = -64000"):
        connection.execute(f"pragma {pragma}").fetchall()
    fill(connection, told)
    writer = Writer(connection, asyncio.get_running_loop())
    writer.start()
    since = time.perf_counter()
    if told.task == "steps":
        await run_steps(writer, told.settings["concurrency"], told.steps)
    else:
        await run_jobs(writer, told.settings["batch"])
    seconds = time.perf_counter() - since

    def number(query: str) -> int:
        found: Any = connection.execute(query).fetchall()[0][0]
        return int(found)

    done = number("select count(*) from job where state = 2")
    return {"rate": told.count / seconds, "done": done, "steps": number("select count(*) from step")}
