"""Absurd. Its schema is part of the package `absurdctl`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import psycopg
from absurd_sdk import AsyncAbsurd
from absurdctl import BUNDLED_SCHEMA_SQL

if TYPE_CHECKING:
    from benchmarks.peers.scripts.run import Arguments, PeerConfig


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
