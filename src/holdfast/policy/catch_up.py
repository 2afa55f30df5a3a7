"""Which slots of a schedule get a run when a worker looks, and which is the next one to look for."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

from holdfast.model.clock import SECOND
from holdfast.policy.cron import Timing

CatchUp: TypeAlias = Literal["skip", "latest", "all"]

MISSED_AFTER = 60 * SECOND
"""A slot that nobody has looked at for so long was missed. Less than that is only late."""
MOST_MISSED = 1000
"""Of more missed slots than these the oldest are passed over, also with `all`."""
AT_ONCE = 100
"""So many are made in one transaction."""


class Due(NamedTuple):
    """Slots to be made now, and the next one; None when there is none any more."""

    slots: list[int]
    next: int | None


def due_slots(timing: Timing, catch_up: CatchUp, next_at: int, now: int) -> Due:
    """What is due of a schedule whose next slot was to be at `next_at`."""
    if catch_up == "all":
        slots = timing.newest(next_at - 1, now, MOST_MISSED)[:AT_ONCE]
        return Due(slots, timing.next_after(slots[-1] if slots else now))
    slots = timing.newest(next_at - 1, now, 1)
    if catch_up == "skip":
        slots = [slot for slot in slots if now - slot <= MISSED_AFTER]
    return Due(slots, timing.next_after(now))
