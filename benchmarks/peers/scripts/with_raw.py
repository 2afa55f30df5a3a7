"""Handwritten SQL on PostgreSQL: one connection claims batches while another records completions.

A step is committed before the next one starts: one writer commits all pending rows with one statement. Every write is
fenced by `lease_until is not null` and not by the state, because a generic plan for the state would scan the index of
leases.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncpg

if TYPE_CHECKING:
    from benchmarks.peers.scripts.run import Arguments, PeerConfig

CHANNEL = "raw_job"
WORKER = os.getpid()
IDLE_WAIT_S = 5.0
MIN_CLAIM = 20

CLAIM = """
with ready as (
    select id from job where queue = 'default' and state = 0 and run_at <= now()
    order by priority, id limit $1 for update skip locked
), claimed as (
    update job set state = 1, attempt = attempt + 1, worker = $2, started_at = now(),
        lease_until = now() + interval '60 seconds'
    from ready where job.id = ready.id
    returning job.id, job.args, job.attempt
), recorded as (
    insert into event (job, kind, worker) select id, 1, $2 from claimed
)
select id, args, attempt from claimed
"""
FINISH = """
with given as (
    select * from unnest($1::bigint[], $2::smallint[], $3::jsonb[]) as each (id, attempt, result)
), done as (
    update job set state = 2, result = given.result, finished_at = now(), lease_until = null
    from given
    where job.id = given.id and job.attempt = given.attempt and job.worker = $4 and job.lease_until is not null
    returning job.id
)
insert into event (job, kind, worker) select id, 2, $4 from done
"""
RECORD = """
insert into step (job, n, name, result)
select given.id, given.n, given.name, given.result
from unnest($1::bigint[], $2::smallint[], $3::int[], $4::text[], $5::jsonb[]) as given (id, attempt, n, name, result)
join job on job.id = given.id and job.attempt = given.attempt and job.worker = $6 and job.lease_until is not null
"""
ENQUEUE = f"""
with added as (
    insert into job (name, args) select $2, args from unnest($1::jsonb[]) as each (args) returning id
), recorded as (
    insert into event (job, kind) select id, 0 from added
)
select count(*), pg_notify('{CHANNEL}', '') from added
"""


class BatchWriter:
    """Writes all pending rows with one statement; each caller waits until its row is durable."""

    def __init__(self, statement: Any, constant: Any) -> None:
        self._statement = statement
        self._constant = constant
        self._rows: list[tuple[Any, ...]] = []
        self._callers: list[asyncio.Future[None]] = []
        self._more = asyncio.Event()
        self._writing = asyncio.create_task(self._write())

    async def put(self, *row: Any) -> None:
        written = asyncio.get_running_loop().create_future()
        self._rows.append(row)
        self._callers.append(written)
        self._more.set()
        await written

    async def _write(self) -> None:
        while True:
            await self._more.wait()
            self._more.clear()
            rows, self._rows = self._rows, []
            callers, self._callers = self._callers, []
            try:
                await self._statement.fetch(*columns(rows), self._constant)
            except Exception as error:
                for caller in callers:
                    caller.set_exception(error)
            else:
                for caller in callers:
                    caller.set_result(None)


def columns(rows: Sequence[tuple[Any, ...]]) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)]


class Jobs:
    """A worker for no-op jobs, with a claim loop and a completion loop that wake each other."""

    def __init__(self, config: PeerConfig) -> None:
        self._config = config
        self._batch: int = config.settings["batch"]
        self._done: list[tuple[int, int, str]] = []
        self._any_done = asyncio.Event()
        self._wake = asyncio.Event()
        self._in_flight = 0
        self._running: set[asyncio.Task[None]] = set()

    def wake(self, *_: Any) -> None:
        self._wake.set()

    async def _run(self, row: Any) -> None:
        arguments = json.loads(row["args"])
        self._config.handle(arguments)
        self._done.append((row["id"], row["attempt"], json.dumps(arguments["number"])))
        self._any_done.set()

    async def claim(self, connection: Any) -> None:
        claim = await connection.prepare(CLAIM)
        while True:
            self._wake.clear()
            if self._in_flight >= 2 * self._batch:
                await self._wake.wait()
                continue
            rows = await claim.fetch(self._batch, WORKER)
            self._in_flight += len(rows)
            for row in rows:
                task = asyncio.create_task(self._run(row))
                self._running.add(task)
                task.add_done_callback(self._running.discard)
            if not rows:
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), IDLE_WAIT_S)

    async def finish(self, connection: Any) -> None:
        finish = await connection.prepare(FINISH)
        while True:
            await self._any_done.wait()
            self._any_done.clear()
            done, self._done = self._done, []
            await finish.fetch(*columns(done), WORKER)
            self._in_flight -= len(done)
            self._wake.set()


async def trivial() -> dict[str, int]:
    return {"ok": 1}


class Steps:
    """A worker for concurrent runs with steps."""

    def __init__(self, config: PeerConfig, claim: Any, ends: BatchWriter, steps: BatchWriter) -> None:
        self._config = config
        self._claim = claim
        self._ends = ends
        self._steps = steps

    async def _run(self, row: Any) -> None:
        self._config.mark_start()
        for number in range(self._config.steps):
            result = await trivial()
            await self._steps.put(row["id"], row["attempt"], number, f"step-{number}", json.dumps(result))
        await self._ends.put(row["id"], row["attempt"], "1")

    async def work(self) -> None:
        limit: int = self._config.settings["concurrency"]
        running: set[asyncio.Task[None]] = set()
        while True:
            free = limit - len(running)
            if free >= min(MIN_CLAIM, limit):
                running.update(asyncio.create_task(self._run(row)) for row in await self._claim.fetch(free, WORKER))
            if not running:
                await asyncio.sleep(IDLE_WAIT_S)
                continue
            ended, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in ended:
                task.result()


class Enqueuer:
    """Batches the jobs of concurrent callers."""

    def __init__(self, connection: Any, statement: Any, task: str) -> None:
        self._connection = connection
        self._statement = statement
        self._task = task
        self._writer = BatchWriter(statement, task)

    async def one(self, arguments: Arguments) -> None:
        await self._writer.put(json.dumps(arguments))

    async def many(self, arguments: Sequence[Arguments]) -> None:
        await self._statement.fetch([json.dumps(each) for each in arguments], self._task)

    async def close(self) -> None:
        await self._connection.close()


async def prepare(config: PeerConfig) -> None:
    connection = await asyncpg.connect(config.url)
    await connection.execute(Path(__file__).with_name("raw.sql").read_text())
    await connection.close()


async def work(config: PeerConfig) -> None:
    first, second, third = [await asyncpg.connect(config.url) for _ in range(3)]
    if config.task == "steps":
        ends, steps = (
            BatchWriter(await second.prepare(FINISH), WORKER),
            BatchWriter(await third.prepare(RECORD), WORKER),
        )
        await Steps(config, await first.prepare(CLAIM), ends, steps).work()
        return
    jobs = Jobs(config)
    await third.add_listener(CHANNEL, jobs.wake)
    await asyncio.gather(jobs.claim(first), jobs.finish(second))


async def open_enqueuer(config: PeerConfig) -> Enqueuer:
    connection = await asyncpg.connect(config.url)
    return Enqueuer(connection, await connection.prepare(ENQUEUE), config.task)
