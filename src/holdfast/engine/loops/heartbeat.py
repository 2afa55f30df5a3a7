"""Keep the session's lease, and reconcile the claimed runs with the database.

The heartbeat has a thread and a connection of its own. It can't renew a lease that has expired: then the process
continues under a new session, and other workers take its runs over. A blocked event loop doesn't stop the heartbeat
(`event_loop.py` handles that); holding the GIL does.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from holdfast.engine.attempt import Attempt, Session, WorkerState
from holdfast.engine.event_loop import StallHandler
from holdfast.engine.loops.base import MAX_RETRY_PAUSE_S, Loop
from holdfast.engine.runner import Runner
from holdfast.errors import StoreUnavailable
from holdfast.model.clock import MICROS_PER_SECOND
from holdfast.store import AttemptEnd, OwnedRun, Store
from holdfast.telemetry import log

CANCEL_POLL_INTERVAL_S = 0.4
"""An attempt is polled from the second interval after its claim on, so it is stopped within two intervals."""

CLOSE_UNUSED_AFTER_S = 10.0
"""When a worker closes a connection to PostgreSQL that it doesn't need all the time."""

MIN_SILENCE_S = 2.0
"""A slow answer is no outage, however short the lease is. A silence of less than two thirds of it costs no lease."""


class FreezeDetector:
    """Detects that no thread of this process ran for a while: something held the GIL, or the machine was suspended.

    Several loops record their progress, so that the first to run again can still name the tasks that were running.
    """

    def __init__(self, state: WorkerState, lease: float) -> None:
        self._state = state
        self._threshold_s = lease / 3
        self._last: float | None = None
        self._frozen_until = 0.0
        self._running: set[str] = set()
        self._lock = threading.Lock()

    def record_progress(self) -> None:
        """Note that the calling thread runs; log a warning if no thread did for a third of the lease."""
        now = time.monotonic()
        running = {attempt.task.name for attempt in self._state.claimed().values()}
        with self._lock:
            last, self._last = self._last, now
            before, self._running = self._running, running
            was_frozen = last is not None and now - last > self._threshold_s
            if was_frozen:
                self._frozen_until = now
        if last is not None and was_frozen:
            log.heartbeat_delayed(now - last, sorted(running or before))

    def was_frozen_since(self, moment: float) -> bool:
        """Return whether a freeze ended after this moment (monotonic)."""
        with self._lock:
            return self._frozen_until > moment


class OutageDetector:
    """Detects that this process can't reach the database: then other workers couldn't renew their leases either.

    The heartbeat and the recovery record when the database answered them, and when it didn't.
    """

    def __init__(self, lease: float, freezes: FreezeDetector) -> None:
        self._freezes = freezes
        self._longest_gap_s = max(min(lease * 2 / 3, lease / 3 + MAX_RETRY_PAUSE_S), MIN_SILENCE_S)
        self._aftermath_s = lease / 3 + MAX_RETRY_PAUSE_S  # a hanging call is aborted, and retried after a pause
        self._last_answer: float | None = None
        self._began_at: float | None = None  # of the last outage; the times are monotonic
        self._ended_at: float | None = None
        self._lock = threading.Lock()

    def record_failure(self) -> None:
        """Note that the database didn't answer."""
        with self._lock:
            self._begin(time.monotonic() if self._last_answer is None else self._last_answer)

    def record_answer(self) -> None:
        """Note that the database answered; after a long silence of a process that wasn't frozen, it was unreachable."""
        now = time.monotonic()
        with self._lock:
            last, self._last_answer = self._last_answer, now
            if last is not None and now - last > self._longest_gap_s and not self._freezes.was_frozen_since(last):
                self._begin(last)
            if self._ended_at is None:
                self._ended_at = now

    def _begin(self, moment: float) -> None:
        if self._began_at is None or (self._ended_at is not None and moment > self._ended_at + self._aftermath_s):
            self._began_at = moment
        self._ended_at = None

    def may_explain(self, moment: float) -> bool:
        """Return whether a live worker's lease may have expired at this moment (monotonic) because of an outage.

        Other workers notice its end a little later: their heartbeats pause after a failure.
        """
        with self._lock:
            began_at, ended_at = self._began_at, self._ended_at
        return began_at is not None and began_at <= moment <= (ended_at or moment) + self._aftermath_s


class CancellationPoller:
    """Stops attempts whose run another process cancelled or ended, between two renewals of the lease.

    A renewal compares all claimed runs with the database, but only every third of the lease. Cancelled code has to stop
    within a second, whatever the lease is, so the heartbeat polls in between: one read-only statement, by primary key,
    on the heartbeat's own connection. An idle worker runs no statement, and neither does one whose attempts are all
    shorter than the interval.
    """

    def __init__(self, store: Store, state: WorkerState, runner: Runner) -> None:
        self._store = store
        self._state = state
        self._runner = runner
        self._seen: dict[str, Attempt] = {}

    def poll(self, session: Session) -> None:
        """Look up the attempts that were already running at the last poll, and stop those that lost their run."""
        before, self._seen = self._seen, self._state.claimed()
        running = [
            attempt
            for id, attempt in self._seen.items()
            if before.get(id) is attempt and attempt.session == session.id and _can_be_stopped(attempt)
        ]
        if not running:
            return
        try:
            held = self._store.claims.find_running(session.id, [attempt.claim.id for attempt in running])
            for attempt in running:
                attempt.pause_requested = held.get((attempt.claim.id, attempt.claim.fence), False)
        except StoreUnavailable:
            return  # the next renewal reports it, and retries with a pause of its own
        lost = [
            attempt
            for attempt in running
            if (attempt.claim.id, attempt.claim.fence) not in held and _can_be_stopped(attempt)
        ]
        self._runner.stop(lost, "lost")


def _can_be_stopped(attempt: Attempt) -> bool:
    """Return whether user code is running that was not yet asked to stop because its run was lost."""
    return not (attempt.reported or attempt.stopped or attempt.stop_reason == "lost")


class Heartbeat(Loop):
    """Renews the lease every third of it, polls for cancelled runs in between, opens a new session after a loss."""

    name = "heartbeat"

    def __init__(
        self,
        store: Store,
        state: WorkerState,
        runner: Runner,
        lease: float,
        freezes: FreezeDetector,
        outages: OutageDetector,
        new_session: Callable[[], Session],
        lose_session: Callable[[Session, str], None],
        status: Callable[[], str | None],
    ) -> None:
        super().__init__()
        self._store = store
        self._state = state
        self._runner = runner
        self._lease = lease
        self._new_session = new_session
        self._status = status
        self._lose_session = lose_session
        self._freezes = freezes
        self._outages = outages
        self._unknown: set[tuple[str, int]] = set()
        self._cancellation = CancellationPoller(store, state, runner)
        self._renew_at = 0.0  # monotonic; stays in the past while renewals fail
        self.on_missed_renewal: Callable[[], None] = lambda: None
        """Called for each renewal that fails, or that comes so late that the next one would be due."""

    def tick(self) -> float:
        self._freezes.record_progress()
        session = self._state.session
        if session is None or time.monotonic() >= self._renew_at:
            self.renew()
        else:
            self._cancellation.poll(session)
        return max(min(CANCEL_POLL_INTERVAL_S, self._renew_at - time.monotonic()), 0.0)

    def renew(self) -> None:
        """Renew the lease now and reconcile the claimed runs, or open a session if there is none."""
        started_at = time.monotonic()
        session = self._state.session
        try:
            if session is None:
                self._open()
            else:
                if self._renew_at and not self.is_failing and started_at - self._renew_at > self._lease / 3:
                    self.on_missed_renewal()
                self._renew(session)
        except StoreUnavailable:
            self._outages.record_failure()
            if session is not None:
                self.on_missed_renewal()
            raise
        self._outages.record_answer()
        self._renew_at = started_at + self._lease / 3

    def renew_soon(self) -> None:
        """Start the next tick now, and renew the lease in it. From any thread."""
        self._renew_at = 0.0
        self.wake()

    def _open(self) -> None:
        lost = self._state.last_lost
        if lost is not None and lost.excused:
            self._store.sessions.excuse(lost.id)
        session = self._new_session()
        sent_at = time.monotonic()
        lease_micros = int(self._lease * MICROS_PER_SECOND)
        self._store.sessions.open(session.id, session.name, lease_micros, session.info, self._status(), session.wake)
        session.renewed(sent_at, self._lease)
        self._unknown = set()
        self._state.begin(session)

    def _renew(self, session: Session) -> None:
        sent_at = time.monotonic()
        if not self._store.sessions.renew(session.id, int(self._lease * MICROS_PER_SECOND), self._status()):
            session.excused = sent_at < session.valid_until  # sent in time, so the database answered late
            self.on_missed_renewal()
            self._lose_session(session, "its lease expired")
            self.wake()
            return
        session.renewed(sent_at, self._lease)
        before = self._state.claimed()
        self._reconcile(session, before, self._store.claims.list_owned(session.id))
        self._runner.residents.retain(self._store.claims.find_suspended)

    def _reconcile(self, session: Session, before: dict[str, Attempt], owned: list[OwnedRun]) -> None:
        """Stop attempts that the database doesn't attribute to this session, and release runs without an attempt here.

        A run that the database attributes to this session, twice in a row without an attempt here, was claimed by a
        statement whose response was lost.
        """
        owned_states = {(run.id, run.fence): run.state for run in owned}
        lost = [
            attempt
            for attempt in before.values()
            if attempt.session == session.id
            and not attempt.reported
            and owned_states.get((attempt.claim.id, attempt.claim.fence)) != "running"
        ]
        self._runner.stop(lost, "lost")
        known = {(attempt.claim.id, attempt.claim.fence) for attempt in self._state.claimed().values()}
        known |= {(attempt.claim.id, attempt.claim.fence) for attempt in before.values()}
        unknown = {(run.id, run.fence) for run in owned} - known
        lost_claims = unknown & self._unknown
        self._unknown = unknown
        if lost_claims:
            self._release(session, lost_claims)

    def _release(self, session: Session, runs: set[tuple[str, int]]) -> None:
        ends = [AttemptEnd(id, 0, fence, "handed_back", "ready", in_tree=True) for id, fence in sorted(runs)]
        recorded = self._store.attempts.end(session.id, ends)
        ended = sorted(runs - recorded)
        if ended:
            self._store.attempts.release(session.id, ended)
        log.unknown_runs_released(len(runs))


class LeaseGuard(Loop):
    """Stops user code before the lease expires if no heartbeat succeeds.

    It also aborts database calls that hang, closes unused connections, and checks the event loop for stalls.
    """

    name = "lease_guard"

    def __init__(
        self,
        store: Store,
        state: WorkerState,
        lease: float,
        freezes: FreezeDetector,
        lose_session: Callable[[Session, str], None],
        stall_handler: StallHandler,
        report_progress: Callable[[], None],
    ) -> None:
        super().__init__()
        self._store = store
        self._state = state
        self._lease = lease
        self._freezes = freezes
        self._lose_session = lose_session
        self._stall_handler = stall_handler
        self._report_progress = report_progress

    def tick(self) -> float:
        self._freezes.record_progress()
        self._report_progress()
        self._store.database.abort_stuck_calls(self._lease / 3)
        self._store.database.close_unused(CLOSE_UNUSED_AFTER_S)
        session = self._state.session
        margin_s = self._lease / 6
        if session is not None and session.seconds_left() < margin_s:
            session.excused = not self._freezes.was_frozen_since(session.valid_until - self._lease)
            self._lose_session(session, "the database did not answer in time to renew the lease")
        interval_s = min(1.0, self._lease / 12)
        self._stall_handler.check(interval_s)
        return interval_s
