"""Oban, the one in Python."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from oban import Oban, worker
from oban.schema import install
from psycopg_pool import AsyncConnectionPool

if TYPE_CHECKING:
    from benchmarks.peers.scripts.run import Arguments, Told

QUEUE = "bench"
handlers: list[Callable[[Arguments], None]] = []
"""What is done with arguments in this process: its workers find a job's class by the name of its module."""


@worker(queue=QUEUE)
class Noop:
    """The job that does nothing but be handled."""

    async def process(self, job: Any) -> None:
        for handle in handlers:
            handle(job.args)


NOOP: Any = Noop
"""With what the decorator adds to it."""


def make_pool(told: Told) -> Any:
    return AsyncConnectionPool(told.url, open=False, min_size=2, max_size=told.settings["pool"])


class Enqueuer:
    """Its own calls, for one and for many."""

    def __init__(self, oban: Any, opened: AsyncExitStack) -> None:
        self._oban = oban
        self._opened = opened

    async def one(self, arguments: Arguments) -> None:
        await self._oban.enqueue(NOOP.new(arguments))

    async def many(self, arguments: Sequence[Arguments]) -> None:
        await self._oban.enqueue_many([NOOP.new(each) for each in arguments])

    async def close(self) -> None:
        await self._opened.aclose()


async def prepare(told: Told) -> None:
    async with make_pool(told) as pool:
        await install(pool)


async def work(told: Told) -> None:
    handlers.append(told.handle)
    async with make_pool(told) as pool, Oban(pool=pool, queues={QUEUE: told.settings["concurrency"]}):
        await asyncio.Event().wait()


async def open_enqueuer(told: Told) -> Enqueuer:
    opened = AsyncExitStack()
    pool = await opened.enter_async_context(make_pool(told))
    return Enqueuer(await opened.enter_async_context(Oban(pool=pool)), opened)
