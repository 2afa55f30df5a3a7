"""What the executors of async and sync durable functions have in common."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

if TYPE_CHECKING:
    from holdfast.engine.attempt import Attempt
    from holdfast.task.task import Task

SUSPEND_DELAY_S = 0.05
"""How long a run that only waits stays in memory if a wait may be resolved soon: most children and many events are."""
BUSY_SUSPEND_DELAY_S = 0.005
"""The same when other runs need its slot, or when it only waits for a time far ahead."""
MAX_BUSY_RESUMES = 50
"""After this many waits that were resolved in memory, a run on a full worker is suspended without delay.

Otherwise a function whose waits are all shorter than `BUSY_SUSPEND_DELAY_S`, such as sleeps of 1 ms, would keep its
slot, and runs that became ready earlier would starve."""


class Executor:
    """Performs the operations of one attempt of a durable function."""

    __slots__ = ()

    current: Attempt
    """The attempt that is executed; `attempt` is only its number, as contexts show it."""

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


def suspend_delay_s(*, due_in_s: float, waits_for_others: bool, has_free_slots: bool, resumes: int) -> float:
    """Return how long a run that only waits stays in memory before it is suspended.

    `due_in_s` is the time until its next wait is due. `waits_for_others` says whether it waits for more than time.
    `resumes` counts the waits of this attempt that were resolved while the run was in memory.
    """
    if has_free_slots:
        return SUSPEND_DELAY_S if waits_for_others or due_in_s < SUSPEND_DELAY_S else BUSY_SUSPEND_DELAY_S
    return BUSY_SUSPEND_DELAY_S if resumes < MAX_BUSY_RESUMES else 0.0
