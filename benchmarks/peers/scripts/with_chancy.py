"""Chancy, with its asynchronous executor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from chancy import Chancy, Queue, Worker, job

if TYPE_CHECKING:
    from benchmarks.peers.scripts.run import Arguments, PeerConfig

QUEUE = "bench"
handlers: list[Callable[[Arguments], None]] = []
"""Called by the job. A global, because workers import the job's function by the name of its module."""


@job(queue=QUEUE)
async def noop(*, arguments: Arguments) -> None:
    for handle in handlers:
        handle(arguments)


class Enqueuer:
    """Uses Chancy's calls for one job and for many."""

    def __init__(self, chancy: Any, opened: AsyncExitStack) -> None:
        self._chancy = chancy
        self._opened = opened

    async def one(self, arguments: Arguments) -> None:
        await self._chancy.push(noop.job.with_kwargs(arguments=arguments))

    async def many(self, arguments: Sequence[Arguments]) -> None:
        async for _ in self._chancy.push_many([noop.job.with_kwargs(arguments=each) for each in arguments]):
            pass

    async def close(self) -> None:
        await self._opened.aclose()


async def prepare(config: PeerConfig) -> None:
    queue = Queue(
        QUEUE,
        concurrency=config.settings["concurrency"],
        executor=Chancy.Executor.Async,
        eager_polling=True,
        polling_interval=1,
    )
    async with Chancy(config.url) as chancy:
        await chancy.migrate()
        await chancy.declare(queue, upsert=True)


async def work(config: PeerConfig) -> None:
    handlers.append(config.handle)
    async with Chancy(config.url) as chancy, Worker(chancy) as worker:
        await worker.wait_for_shutdown()


async def open_enqueuer(config: PeerConfig) -> Enqueuer:
    opened = AsyncExitStack()
    return Enqueuer(await opened.enter_async_context(Chancy(config.url)), opened)
