"""Find running attempts whose run another process cancelled or ended, between two renewals of the lease.

A renewal compares all claimed runs with the database, but only every third of the lease. Holdfast promises
to stop cancelled code within a second, whatever the lease is, so the heartbeat polls in between: one read-only
statement, by primary key, on the heartbeat's own connection. An idle worker runs no statement, and neither does
one whose attempts are all shorter than the interval.
"""

from __future__ import annotations

from holdfast.engine.attempt import Attempt
from holdfast.engine.runner import Runner
from holdfast.engine.session import Duty, Session
from holdfast.errors import StoreUnavailable
from holdfast.store import Store

CANCEL_POLL_INTERVAL_S = 0.4
"""An attempt is polled from the second interval after its claim on, so it is stopped within two intervals."""


class CancellationPoller:
    """Stops attempts whose run is no longer running in this session."""

    def __init__(self, store: Store, duty: Duty, runner: Runner) -> None:
        self._store = store
        self._duty = duty
        self._runner = runner
        self._seen: dict[str, Attempt] = {}

    def poll(self, session: Session) -> None:
        """Look up the attempts that were already running at the last poll, and stop those that lost their run."""
        before, self._seen = self._seen, self._duty.in_hand()
        running = [
            attempt
            for id, attempt in self._seen.items()
            if before.get(id) is attempt and attempt.session == session.id and _can_be_stopped(attempt)
        ]
        if not running:
            return
        try:
            held = self._store.claims.still_held(session.id, [attempt.claim.id for attempt in running])
        except StoreUnavailable:
            return  # the next renewal reports it, and retries with a pause of its own
        lost = [
            attempt
            for attempt in running
            if (attempt.claim.id, attempt.claim.fence) not in held and _can_be_stopped(attempt)
        ]
        self._runner.stop(lost, "lost")


def _can_be_stopped(attempt: Attempt) -> bool:
    """Return whether author code is running that has not been ordered to stop because its run was lost."""
    return not (attempt.ended or attempt.over or attempt.order == "lost")
