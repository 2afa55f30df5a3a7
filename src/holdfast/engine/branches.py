"""The tasks that author code makes beside a durable function's own, and that take part in it."""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast.engine.deliveries import Deliveries


class Branches:
    """Tells the deliveries whether there are any."""

    __slots__ = ("_deliveries", "_tasks")

    def __init__(self, deliveries: Deliveries) -> None:
        self._deliveries = deliveries
        self._tasks: set[asyncio.Task[Any]] = set()

    def add(self, task: asyncio.Task[Any]) -> None:
        """A task takes part from now on, until it ends."""
        if task not in self._tasks:
            self._tasks.add(task)
            task.add_done_callback(self._leaves)
            self._deliveries.several = True

    def _leaves(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        self._deliveries.several = bool(self._tasks)

    def cancel(self) -> None:
        """Cancel all of them but the one that says so."""
        current = asyncio.current_task()
        for task in list(self._tasks):
            if task is not current and not task.done():
                task.cancel()
