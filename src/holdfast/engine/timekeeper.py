"""Makes things happen by the clock: scheduled runs come due, deadlines pass."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.engine.attempt import deadline_error
from holdfast.engine.loop import Loop
from holdfast.model.clock import SECOND
from holdfast.model.failure import to_json
from holdfast.store import Store
from holdfast.telemetry import log

POLL = 1.0
SHORTEST = 0.001


class Timekeeper(Loop):
    """Promotes what is due, wakes who waited for it, fails what is overdue, in small batches, and then sleeps."""

    name = "timekeeper"

    def __init__(self, store: Store, promoted: Callable[[], None], failed: Callable[[str], None]) -> None:
        super().__init__()
        self._store = store
        self._promoted = promoted
        self._failed = failed
        self._overdue = to_json(deadline_error())

    def tick(self) -> float:
        timers = self._store.timers
        overdue = timers.fail_overdue(self._overdue)  # first: what is overdue must not begin
        changed = timers.promote_due() + timers.unhold() + timers.wake_due() + timers.wake_waiters()
        if changed:
            self._promoted()
        for run in overdue:
            self._failed(run)
        for run in overdue:
            self._log_overdue(run)
        if changed or overdue:
            return 0.0
        left = timers.next_due()
        return POLL if left is None else min(max(left / SECOND, SHORTEST), POLL)

    def _log_overdue(self, run: str) -> None:
        found = self._store.views.run(run)
        if found is not None:
            log.run_overdue(run, found.task, found.attempt)
