"""Procrastinate, by its psycopg connector."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from procrastinate import App, PsycopgConnector

if TYPE_CHECKING:
    from benchmarks.peers.scripts.run import Arguments, Told

POOL_FOR_MANY = 10


def make_app(told: Told) -> tuple[Any, Any]:
    """The app and its task."""
    size = told.settings["pool"] if told.callers == 1 else POOL_FOR_MANY
    app = App(connector=PsycopgConnector(conninfo=told.url, min_size=size, max_size=size))

    @app.task(name="noop")
    async def noop(arguments: Arguments) -> None:
        told.handle(arguments)

    return app, noop


class Enqueuer:
    """Its own calls, for one and for many."""

    def __init__(self, app: Any, task: Any) -> None:
        self._app = app
        self._task = task

    async def one(self, arguments: Arguments) -> None:
        await self._task.defer_async(arguments=arguments)

    async def many(self, arguments: Sequence[Arguments]) -> None:
        await self._task.batch_defer_async(*[{"arguments": each} for each in arguments])

    async def close(self) -> None:
        await self._app.close_async()


async def prepare(told: Told) -> None:
    app, _ = make_app(told)
    async with app.open_async():
        await app.schema_manager.apply_schema_async()


async def work(told: Told) -> None:
    app, _ = make_app(told)
    async with app.open_async():
        await app.run_worker_async(
            concurrency=told.settings["concurrency"], wait=True, install_signal_handlers=False, delete_jobs="never"
        )


async def open_enqueuer(told: Told) -> Enqueuer:
    app, task = make_app(told)
    await app.open_async()
    return Enqueuer(app, task)
