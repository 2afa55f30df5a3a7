"""What a context needs of the engine: somebody who carries out operations for one attempt of one run."""

from __future__ import annotations

from collections.abc import Coroutine
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID

from holdfast.task.operations import Operation
from holdfast.task.task import Task


class Attempt(Protocol):
    """What is known about the attempt under way."""

    @property
    def run_id(self) -> UUID: ...
    @property
    def attempt(self) -> int: ...
    @property
    def scheduled_for(self) -> datetime | None: ...
    @property
    def task(self) -> Task[..., Any]: ...

    def check(self) -> None:
        """Raise when the run was cancelled or the lease is lost."""


class Conductor(Attempt, Protocol):
    """For `Context`. `perform` is called when the author calls, in the order of the code; its coroutine is awaited, or
    made a task of, when the author does that."""

    def perform(self, operation: Operation, /) -> Coroutine[Any, Any, Any]: ...


class BlockingConductor(Attempt, Protocol):
    """For `SyncContext`."""

    def perform(self, operation: Operation, /) -> Any: ...
