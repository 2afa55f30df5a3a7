"""Absurd: its tables and functions come with its command `absurdctl`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import psycopg
from absurd_sdk import AsyncAbsurd
from absurdctl import BUNDLED_SCHEMA_SQL

if TYPE_CHECKING:
    from benchmarks.peers.scripts.run import Arguments, Told


def make_app(told: Told) -> Any:
    app = AsyncAbsurd(told.url)

    async def trivial() -> dict[str, int]:
        return {"ok": 1}

    @app.register_task("noop")
    async def noop(arguments: Arguments, _: Any) -> int:
        told.handle(arguments)
        return 1

    @app.register_task("steps")
    async def steps(_: Arguments, task: Any) -> int:
        told.started()
        for number in range(told.steps):
            await task.step(f"step-{number}", trivial)
        return 1

    return app


class Enqueuer:
    """It has no call for many: a pipeline on its own connection is the nearest."""

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


async def prepare(told: Told) -> None:
    with psycopg.connect(told.url, autocommit=True) as connection:
        connection.execute(BUNDLED_SCHEMA_SQL.encode())
    app = AsyncAbsurd(told.url)
    await app.create_queue("default")
    await app.close()


async def work(told: Told) -> None:
    await make_app(told).start_worker(concurrency=told.settings["concurrency"], poll_interval=told.settings["poll"])


async def open_enqueuer(told: Told) -> Enqueuer:
    app = make_app(told)
    await app._ensure_connected()
    return Enqueuer(app, told.task)
