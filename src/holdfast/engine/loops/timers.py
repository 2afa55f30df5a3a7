"""Make scheduled, waiting and parked runs ready when they are due, and fail runs at their deadline."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.engine.attempt import deadline_error
from holdfast.engine.loops.base import Loop
from holdfast.model.clock import MICROS_PER_SECOND
from holdfast.model.failure import error_to_json
from holdfast.store import Store
from holdfast.store.timers import DueTimes
from holdfast.telemetry import log

SUCCESSOR_POLL_INTERVAL_S = 0.1
"""While runs wait for the end of another run of their unique name."""
MIN_INTERVAL_S = 0.001


class TimerLoop(Loop):
    """Handles everything that is due in small batches, then sleeps until the next due time."""

    name = "timers"

    def __init__(
        self,
        store: Store,
        on_ready: Callable[[], None],
        on_failed: Callable[[str], None],
        poll_interval_s: Callable[[], float],
    ) -> None:
        super().__init__()
        self._poll_interval_s = poll_interval_s
        self._store = store
        self._on_ready = on_ready
        self._on_failed = on_failed
        self._deadline_error = error_to_json(deadline_error())

    def tick(self) -> float:
        due = self._store.timers.due()
        overdue = self._fail_overdue(due)  # first, because an overdue run must not start
        late = self._store.timers.cancel_unstarted() if _is_due(due.starts) else []
        changed = self._make_ready(due)
        if changed:
            self._on_ready()
        for run in overdue:
            self._on_failed(run)
        for run in overdue:
            self._log_overdue(run)
        if changed or overdue or late:
            return 0.0
        left = due.next()
        longest_s = SUCCESSOR_POLL_INTERVAL_S if due.held or due.queued else self._poll_interval_s()
        return longest_s if left is None else min(max(left / MICROS_PER_SECOND, MIN_INTERVAL_S), longest_s)

    def _fail_overdue(self, due: DueTimes) -> list[str]:
        return self._store.timers.fail_overdue(self._deadline_error) if _is_due(due.deadlines) else []

    def _make_ready(self, due: DueTimes) -> int:
        """Make due runs ready and wake due waits; return how many."""
        timers = self._store.timers
        changed = timers.promote_due() if _is_due(due.scheduled) else 0
        changed += timers.resolve_due_waits() if _is_due(due.waits) else 0
        started = timers.start_queued() if due.queued else 0
        changed += timers.release_held() if due.held or started else 0
        changed += timers.unpark_due() if _is_due(due.limits) else 0
        changed += timers.wake_budget_waiters() if _is_due(due.budgets) else 0
        changed += self._store.pauses.release_resumed() if due.tenants else 0
        if due.paused or due.tenants:
            self._store.pauses.hold_ready()
        return changed + (timers.wake_event_waiters() if due.events else 0)

    def _log_overdue(self, run: str) -> None:
        found = self._store.queries.run(run)
        if found is not None and found.kind is None:
            log.deadline_exceeded(run, found.task, found.attempt)


def _is_due(left: int | None) -> bool:
    return left is not None and left <= 0
