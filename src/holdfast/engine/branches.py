"""The tasks that take part in one durable function: its own, and those that author code makes beside it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from holdfast.engine.deliveries import Deliveries

if TYPE_CHECKING:
    from holdfast.engine.attempt import Attempt


class Branches:
    """Tells the deliveries whether there are several."""

    __slots__ = ("_attempt", "_deliveries", "tasks")

    def __init__(self, attempt: Attempt, deliveries: Deliveries) -> None:
        self._attempt = attempt
        self._deliveries = deliveries
        self.tasks: set[asyncio.Task[Any]] = set()

    def add(self, task: asyncio.Task[Any]) -> None:
        """A task takes part from now on, until it ends."""
        self.tasks.add(task)
        task.add_done_callback(self._leaves)
        self._count()

    def _leaves(self, task: asyncio.Task[Any]) -> None:
        self.tasks.discard(task)
        self._count()

    def _count(self) -> None:
        self._deliveries.several = len(self.tasks) > (self._attempt.handle in self.tasks)

    def cancel(self) -> None:
        """Cancel all but the function's own task, and the one that says so."""
        current = asyncio.current_task()
        for task in list(self.tasks):
            if task is not current and task is not self._attempt.handle and not task.done():
                task.cancel()
