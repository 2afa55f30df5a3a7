"""Oban for Python."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from oban import Oban, worker
from oban.schema import install
from psycopg_pool import AsyncConnectionPool

if TYPE_CHECKING:
    from benchmarks.peers.scripts.run import Arguments, PeerConfig

QUEUE = "bench"
handlers: list[Callable[[Arguments], None]] = []
"""Called by the job. A global, because workers import the job's class by the name of its module."""


@worker(queue=QUEUE)
class Noop:
    """The no-op job."""

    async def process(self, job: Any) -> None:
        for handle in handlers:
            handle(job.args)


NOOP: Any = Noop
"""The class with the attributes that the decorator adds."""


def make_pool(config: PeerConfig) -> Any:
    return AsyncConnectionPool(config.url, open=False, min_size=2, max_size=config.settings["pool"])


class Enqueuer:
    """Uses Oban's calls for one job and for many."""

    def __init__(self, oban: Any, opened: AsyncExitStack) -> None:
        self._oban = oban
        self._opened = opened

    async def one(self, arguments: Arguments) -> None:
        await self._oban.enqueue(NOOP.new(arguments))

    async def many(self, arguments: Sequence[Arguments]) -> None:
        await self._oban.enqueue_many([NOOP.new(each) for each in arguments])

    async def close(self) -> None:
        await self._opened.aclose()


async def prepare(config: PeerConfig) -> None:
    async with make_pool(config) as pool:
        await install(pool)


async def work(config: PeerConfig) -> None:
    handlers.append(config.handle)
    async with make_pool(config) as pool, Oban(pool=pool, queues={QUEUE: config.settings["concurrency"]}):
        await asyncio.Event().wait()


async def open_enqueuer(config: PeerConfig) -> Enqueuer:
    opened = AsyncExitStack()
    pool = await opened.enter_async_context(make_pool(config))
    return Enqueuer(await opened.enter_async_context(Oban(pool=pool)), opened)
