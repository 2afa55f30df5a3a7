"""What both conductors know of the attempt that they play."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

if TYPE_CHECKING:
    from holdfast.engine.attempt import Attempt
    from holdfast.task.task import Task


class Player:
    """Plays one attempt of a durable function."""

    __slots__ = ()

    current: Attempt

    @property
    def task(self) -> Task[..., Any]:
        return self.current.task

    @property
    def run_id(self) -> UUID:
        return UUID(self.current.claim.id)

    @property
    def attempt(self) -> int:
        return self.current.claim.attempt

    @property
    def scheduled_for(self) -> datetime | None:
        return self.current.scheduled_for
