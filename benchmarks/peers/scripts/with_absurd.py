"""Absurd. Its schema is part of the package `absurdctl`."""

from __future__ import annotations

import asyncio
import importlib
import statistics
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import psycopg
from absurd_sdk import AsyncAbsurd
from absurdctl import BUNDLED_SCHEMA_SQL

if TYPE_CHECKING:
    from benchmarks.peers.scripts.run import Arguments, PeerConfig


c: Any = importlib.import_module("continuations")  # beside this script, which has no package


def make_app(config: PeerConfig) -> Any:
    app = AsyncAbsurd(config.url)

    async def trivial() -> dict[str, int]:
        return {"ok": 1}

    @app.register_task("noop")
    async def noop(arguments: Arguments, _: Any) -> int:
        config.handle(arguments)
        return 1

    @app.register_task("steps")
    async def steps(_: Arguments, task: Any) -> int:
        config.mark_start()
        for number in range(config.steps):
            await task.step(f"step-{number}", trivial)
        return 1

    return app


class Enqueuer:
    """Enqueues through Absurd's client. It has no bulk call; a pipeline on its connection comes closest."""

    def __init__(self, app: Any, task: str) -> None:
        self._app = app
        self._task = task

    async def one(self, arguments: Arguments) -> None:
        await self._app.spawn(self._task, arguments)

    async def many(self, arguments: Sequence[Arguments]) -> None:
        async with self._app._conn.pipeline():
            await asyncio.gather(*[self._app.spawn(self._task, each) for each in arguments])

    async def close(self) -> None:
        await self._app.close()


async def prepare(config: PeerConfig) -> None:
    with psycopg.connect(config.url, autocommit=True) as connection:
        connection.execute(BUNDLED_SCHEMA_SQL.encode())
    app = AsyncAbsurd(config.url)
    await app.create_queue("default")
    await app.close()


async def work(config: PeerConfig) -> None:
    await make_app(config).start_worker(
        concurrency=config.settings["concurrency"], poll_interval=config.settings["poll"]
    )


async def open_enqueuer(config: PeerConfig) -> Enqueuer:
    app = make_app(config)
    await app._ensure_connected()
    return Enqueuer(app, config.task)


async def measure_continuations(config: PeerConfig) -> dict[str, float]:
    """Measure how fast work continues, with the worker in this process; return milliseconds by operation."""
    app, caller = AsyncAbsurd(config.url), AsyncAbsurd(config.url)
    received: asyncio.Queue[int] = asyncio.Queue()
    add_continuation_tasks(app, received)
    worker = asyncio.create_task(app.start_worker(concurrency=10, poll_interval=config.settings["poll"]))
    await call(caller, "count_steps", c.WARM_UP)
    one, many = await call(caller, "count_steps", 1), await call(caller, "count_steps", 1 + config.count)
    results = [await call(caller, "job", 0) for _ in range(config.count)]
    found = {
        c.STEP: (many - one) / config.count * 1000,
        c.ASYNC_RESULT: statistics.median(results) * 1000,
        c.WAKE: await wake(caller, config.count, received) * 1000,
    }
    worker.cancel()
    return found


def add_continuation_tasks(app: Any, received: asyncio.Queue[int]) -> None:
    async def trivial() -> dict[str, int]:
        return {"ok": 1}

    @app.register_task("job")
    async def job(_: Arguments, __: Any) -> int:
        return 1

    @app.register_task("count_steps")
    async def count_steps(arguments: Arguments, task: Any) -> None:
        for number in range(arguments["count"]):
            await task.step(f"step-{number}", trivial)

    @app.register_task("waits")
    async def waits(arguments: Arguments, task: Any) -> None:
        for number in range(arguments["count"]):
            received.put_nowait(await task.await_event(f"event-{number}"))


async def call(caller: Any, name: str, count: int) -> float:
    """Return the seconds until a task has its result."""
    started = time.perf_counter()
    spawned = await caller.spawn(name, {"count": count}, queue="default")
    await caller.await_task_result(spawned["task_id"], queue_name="default")
    return time.perf_counter() - started


async def wake(caller: Any, count: int, received: asyncio.Queue[int]) -> float:
    """Return the median seconds from an emit until the waiting task has received it."""
    await caller.spawn("waits", {"count": count}, queue="default")
    times = []
    for number in range(count):
        await asyncio.sleep(c.PAUSE_S)
        started = time.perf_counter()
        await caller.emit_event(f"event-{number}", number, queue_name="default")
        while await received.get() != number:  # a replay repeats earlier numbers
            pass
        times.append(time.perf_counter() - started)
    return statistics.median(times)
