"""PgQueuer, with its asyncpg driver."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import asyncpg
from pgqueuer import PgQueuer, Queries
from pgqueuer.db import AsyncpgDriver, AsyncpgPoolDriver

if TYPE_CHECKING:
    from benchmarks.peers.scripts.run import Arguments, PeerConfig

POOL_SIZE = 10


class Enqueuer:
    """Uses one connection for one caller and a pool for many."""

    def __init__(self, queries: Any, connection: Any) -> None:
        self._queries = queries
        self._connection = connection

    async def one(self, arguments: Arguments) -> None:
        await self._queries.enqueue("noop", json.dumps(arguments).encode())

    async def many(self, arguments: Sequence[Arguments]) -> None:
        payloads = [json.dumps(each).encode() for each in arguments]
        await self._queries.enqueue(["noop"] * len(payloads), payloads, [0] * len(payloads))

    async def close(self) -> None:
        await self._connection.close()


async def prepare(config: PeerConfig) -> None:
    connection = await asyncpg.connect(config.url)
    await Queries(AsyncpgDriver(connection)).install()
    await connection.close()


async def work(config: PeerConfig) -> None:
    queuer = PgQueuer(AsyncpgDriver(await asyncpg.connect(config.url)))

    @queuer.entrypoint("noop")
    async def noop(job: Any) -> None:
        config.handle(json.loads(job.payload))

    await queuer.run(batch_size=config.settings["batch"])


async def open_enqueuer(config: PeerConfig) -> Enqueuer:
    if config.callers == 1:
        connection = await asyncpg.connect(config.url)
        return Enqueuer(Queries(AsyncpgDriver(connection)), connection)
    pool = await asyncpg.create_pool(config.url, min_size=POOL_SIZE, max_size=POOL_SIZE)
    return Enqueuer(Queries(AsyncpgPoolDriver(pool)), pool)
