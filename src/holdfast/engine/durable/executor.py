"""How long a run that only waits stays in memory before it is suspended."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from holdfast.model.clock import MICROS_PER_SECOND

if TYPE_CHECKING:
    from holdfast.engine.attempt import Attempt
    from holdfast.task.task import Task


class Executor:
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


QUIET_ITERATIONS = 20  # turns of the loop without any movement before a run is suspended
SUSPEND_DELAY_S = 0.05  # how long it stays when something may come soon: most children, and many events, do
BUSY_SUSPEND_DELAY_S = 0.005  # the same when others want its slot, or only the clock is waited for
MAX_BUSY_RESUMES = 50
"""After this many waits that ended while it stayed in memory, a run on a full worker is suspended at its next wait.

Otherwise a function whose waits are all shorter than `BUSY_SUSPEND_DELAY_S`, such as sleeps of a millisecond, would
keep its slot, and runs that became ready earlier would starve."""


class SuspendDelay:
    """What one attempt waits for, as far as that says how soon it may come."""

    __slots__ = ("_due", "_others_move", "_resumes")

    def __init__(self) -> None:
        self._due = float("inf")
        self._others_move = False
        self._resumes = 0

    def opened(self, kind: str, due_in: int | None, now: float) -> None:
        """Another wait; `now` is the loop's time."""
        if due_in is not None:
            self._due = min(self._due, now + due_in / MICROS_PER_SECOND)
        if kind != "sleep":
            self._others_move = True

    def resumed(self) -> None:
        """Count a wait that ended while the run stayed in memory."""
        self._resumes += 1

    def seconds(self, now: float, has_room: bool) -> float:
        """How long to stay."""
        return self.wait_s(soon=self._others_move or self._due < now + SUSPEND_DELAY_S, has_room=has_room)

    def wait_s(self, *, soon: bool, has_room: bool) -> float:
        """Return how long the run stays in memory for a wait that may end soon, or only much later."""
        if not has_room and self._resumes >= MAX_BUSY_RESUMES:
            return 0.0
        return SUSPEND_DELAY_S if soon and has_room else BUSY_SUSPEND_DELAY_S
