"""Keeps the session's lease, on a thread and a connection of its own, and compares accounts with the database.

A lease that has expired can't be renewed: the process goes on under a new session, and other workers take its runs
over. A blocked event loop doesn't stop the heartbeat (`stall_guard.py` handles that); holding the GIL does.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from holdfast.engine.attempt import Attempt
from holdfast.engine.cancellation import CANCEL_POLL_INTERVAL_S, CancellationPoller
from holdfast.engine.loop import Loop
from holdfast.engine.runner import Runner
from holdfast.engine.session import Duty, Session
from holdfast.engine.stall_guard import StallGuard
from holdfast.model.clock import MICROS_PER_SECOND
from holdfast.store import End, Owned, Store
from holdfast.telemetry import log


class Pulse:
    """Notices that no thread of this process got to run for a while: something holds the GIL (or the machine slept).
    Felt by heartbeat and warden alike, so that the first to run again can still name what was in hand."""

    def __init__(self, duty: Duty, lease: float) -> None:
        self._duty = duty
        self._longest = lease / 3
        self._last: float | None = None
        self._stood_still_until = 0.0
        self._in_hand: set[str] = set()
        self._lock = threading.Lock()

    def beat(self) -> None:
        """Record that the calling thread runs; report it if no thread did for a third of the lease."""
        now = time.monotonic()
        in_hand = {attempt.task.name for attempt in self._duty.in_hand().values()}
        with self._lock:
            last, self._last = self._last, now
            before, self._in_hand = self._in_hand, in_hand
            stood_still = last is not None and now - last > self._longest
            if stood_still:
                self._stood_still_until = now
        if last is not None and stood_still:
            log.late_heartbeat(now - last, sorted(in_hand or before))

    def stood_still_since(self, moment: float) -> bool:
        """Whether a pause of all threads ended after this moment (monotonic)."""
        with self._lock:
            return self._stood_still_until > moment


class Heartbeat(Loop):
    """Renew the lease every third of it, poll for cancelled runs in between, open a new session after a loss."""

    name = "heartbeat"

    def __init__(
        self,
        store: Store,
        duty: Duty,
        runner: Runner,
        lease: float,
        pulse: Pulse,
        new_session: Callable[[], Session],
        lose: Callable[[Session, str], None],
        status: Callable[[], str | None],
    ) -> None:
        super().__init__()
        self._store = store
        self._duty = duty
        self._runner = runner
        self._lease = lease
        self._new_session = new_session
        self._status = status
        self._lose = lose
        self._pulse = pulse
        self._unknown: set[tuple[str, int]] = set()
        self._cancellation = CancellationPoller(store, duty, runner)
        self._renew_at = 0.0  # monotonic; stays in the past while renewals fail

    def tick(self) -> float:
        self._pulse.beat()
        session = self._duty.session
        if session is None or time.monotonic() >= self._renew_at:
            self.renew()
        else:
            self._cancellation.poll(session)
        return max(min(CANCEL_POLL_INTERVAL_S, self._renew_at - time.monotonic()), 0.0)

    def renew(self) -> None:
        """Renew the lease now and reconcile the claimed runs, or open a session where there is none."""
        started_at = time.monotonic()
        session = self._duty.session
        if session is None:
            self._open()
        else:
            self._renew(session)
        self._renew_at = started_at + self._lease / 3

    def renew_soon(self) -> None:
        """Start the next tick now, and renew the lease in it. From any thread."""
        self._renew_at = 0.0
        self.wake()

    def _open(self) -> None:
        lost = self._duty.last_lost
        if lost is not None and lost.excused:
            self._store.workers.excuse(lost.id)
        session = self._new_session()
        sent_at = time.monotonic()
        self._store.workers.open(
            session.id, session.name, int(self._lease * MICROS_PER_SECOND), session.info, self._status()
        )
        session.renewed(sent_at, self._lease)
        self._unknown = set()
        self._duty.begin(session)

    def _renew(self, session: Session) -> None:
        sent_at = time.monotonic()
        if not self._store.workers.renew(session.id, int(self._lease * MICROS_PER_SECOND), self._status()):
            session.excused = sent_at < session.good_until  # sent in time, so the database answered late
            self._lose(session, "its lease expired")
            self.wake()
            return
        session.renewed(sent_at, self._lease)
        before = self._duty.in_hand()
        self._compare(session, before, self._store.claims.owned(session.id))

    def _compare(self, session: Session, before: dict[str, Attempt], owned: list[Owned]) -> None:
        """What we have in hand and the database doesn't know as ours, or knows as ended, is stopped. What is ours only
        by the database's account, twice in a row, is the claim whose answer was lost: it is handed back."""
        ours = {(run.id, run.fence): run.state for run in owned}
        gone = [
            attempt
            for attempt in before.values()
            if attempt.session == session.id
            and not attempt.ended
            and ours.get((attempt.claim.id, attempt.claim.fence)) != "running"
        ]
        self._runner.stop(gone, "lost")
        known = {(attempt.claim.id, attempt.claim.fence) for attempt in self._duty.in_hand().values()}
        known |= {(attempt.claim.id, attempt.claim.fence) for attempt in before.values()}
        unknown = {(run.id, run.fence) for run in owned} - known
        lost_claims = unknown & self._unknown
        self._unknown = unknown
        if lost_claims:
            self._hand_back(session, lost_claims)

    def _hand_back(self, session: Session, runs: set[tuple[str, int]]) -> None:
        ends = [End(id, 0, fence, "handed_back", "ready", family=True) for id, fence in sorted(runs)]
        counted = self._store.attempts.end(session.id, ends)
        ended = sorted(runs - counted)
        if ended:
            self._store.attempts.let_go(session.id, ended)
        log.handed_back_unknown(len(runs))


class Warden(Loop):
    """Stops author code before the lease ends when no heartbeat gets through, breaks calls that hang, and watches the
    event loop."""

    name = "warden"

    def __init__(
        self,
        store: Store,
        duty: Duty,
        lease: float,
        pulse: Pulse,
        lose: Callable[[Session, str], None],
        stall_guard: StallGuard,
    ) -> None:
        super().__init__()
        self._store = store
        self._duty = duty
        self._lease = lease
        self._pulse = pulse
        self._lose = lose
        self._stall_guard = stall_guard

    def tick(self) -> float:
        self._pulse.beat()
        self._store.database.abort_stuck_calls(self._lease / 3)
        session = self._duty.session
        margin = self._lease / 6
        if session is not None and session.seconds_left() < margin:
            session.excused = not self._pulse.stood_still_since(session.good_until - self._lease)
            self._lose(session, "the database didn't answer in time to renew the lease")
        interval = min(1.0, self._lease / 12)
        self._stall_guard.check(interval)
        return interval
