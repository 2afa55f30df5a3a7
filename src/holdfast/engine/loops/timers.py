"""Makes things happen by the clock: scheduled runs and waits come due, deadlines pass."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.engine.attempt import deadline_error
from holdfast.engine.loops.base import Loop
from holdfast.model.clock import MICROS_PER_SECOND
from holdfast.model.failure import error_to_json
from holdfast.store import Store
from holdfast.store.timers import DueTimes
from holdfast.telemetry import log

POLL = 1.0
SHORTEST = 0.001


class TimerLoop(Loop):
    """Promotes what is due, wakes who waited for it, fails what is overdue, in small batches, and then sleeps."""

    name = "timers"

    def __init__(self, store: Store, promoted: Callable[[], None], failed: Callable[[str], None]) -> None:
        super().__init__()
        self._store = store
        self._promoted = promoted
        self._failed = failed
        self._overdue = error_to_json(deadline_error())

    def tick(self) -> float:
        due = self._store.timers.due()
        overdue = self._fail_overdue(due)  # first: what is overdue must not begin
        changed = self._let_begin(due)
        if changed:
            self._promoted()
        for run in overdue:
            self._failed(run)
        for run in overdue:
            self._log_overdue(run)
        if changed or overdue:
            return 0.0
        left = due.next()
        return POLL if left is None else min(max(left / MICROS_PER_SECOND, SHORTEST), POLL)

    def _fail_overdue(self, due: DueTimes) -> list[str]:
        return self._store.timers.fail_overdue(self._overdue) if _now(due.deadlines) else []

    def _let_begin(self, due: DueTimes) -> int:
        """Whatever may begin or go on now; how many."""
        timers = self._store.timers
        changed = timers.promote_due() if _now(due.scheduled) else 0
        changed += timers.resolve_due_waits() if _now(due.waits) else 0
        changed += timers.release_held() if due.held else 0
        changed += timers.unpark_due() if _now(due.limits) else 0
        return changed + (timers.wake_event_waiters() if due.events else 0)

    def _log_overdue(self, run: str) -> None:
        found = self._store.queries.run(run)
        if found is not None and found.kind is None:
            log.deadline_exceeded(run, found.task, found.attempt)


def _now(left: int | None) -> bool:
    return left is not None and left <= 0
