"""Procrastinate, with its psycopg connector."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from procrastinate import App, PsycopgConnector

if TYPE_CHECKING:
    from benchmarks.peers.scripts.run import Arguments, PeerConfig

CONCURRENT_POOL_SIZE = 10


def make_app(config: PeerConfig) -> tuple[Any, Any]:
    """Return the app and its task."""
    size = config.settings["pool"] if config.callers == 1 else CONCURRENT_POOL_SIZE
    app = App(connector=PsycopgConnector(conninfo=config.url, min_size=size, max_size=size))

    @app.task(name="noop")
    async def noop(arguments: Arguments) -> None:
        config.handle(arguments)

    return app, noop


class Enqueuer:
    """Uses Procrastinate's calls for one job and for many."""

    def __init__(self, app: Any, task: Any) -> None:
        self._app = app
        self._task = task

    async def one(self, arguments: Arguments) -> None:
        await self._task.defer_async(arguments=arguments)

    async def many(self, arguments: Sequence[Arguments]) -> None:
        await self._task.batch_defer_async(*[{"arguments": each} for each in arguments])

    async def close(self) -> None:
        await self._app.close_async()


async def prepare(config: PeerConfig) -> None:
    app, _ = make_app(config)
    async with app.open_async():
        await app.schema_manager.apply_schema_async()


async def work(config: PeerConfig) -> None:
    app, _ = make_app(config)
    async with app.open_async():
        await app.run_worker_async(
            concurrency=config.settings["concurrency"], wait=True, install_signal_handlers=False, delete_jobs="never"
        )


async def open_enqueuer(config: PeerConfig) -> Enqueuer:
    app, task = make_app(config)
    await app.open_async()
    return Enqueuer(app, task)
