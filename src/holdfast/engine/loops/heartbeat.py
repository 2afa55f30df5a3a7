"""Keeps the session's lease, on a thread and a connection of its own, and compares accounts with the database.

A lease that has expired can't be renewed: the process goes on under a new session, and other workers take its runs
over. A blocked event loop doesn't stop the heartbeat (`stall_handler.py` handles that); holding the GIL does.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from holdfast.engine.attempt import Attempt
from holdfast.engine.event_loop import StallHandler
from holdfast.engine.loops.base import Loop
from holdfast.engine.runner import Runner
from holdfast.engine.session import Session, WorkerState
from holdfast.errors import StoreUnavailable
from holdfast.model.clock import MICROS_PER_SECOND
from holdfast.store import End, OwnedRun, Store
from holdfast.telemetry import log


class FreezeDetector:
    """Notices that no thread of this process got to run for a while: something holds the GIL (or the machine slept).
    Felt by heartbeat and lease_guard alike, so that the first to run again can still name what was in hand."""

    def __init__(self, state: WorkerState, lease: float) -> None:
        self._state = state
        self._longest = lease / 3
        self._last: float | None = None
        self._stood_still_until = 0.0
        self._in_hand: set[str] = set()
        self._lock = threading.Lock()

    def beat(self) -> None:
        """Record that the calling thread runs; report it if no thread did for a third of the lease."""
        now = time.monotonic()
        in_hand = {attempt.task.name for attempt in self._state.in_hand().values()}
        with self._lock:
            last, self._last = self._last, now
            before, self._in_hand = self._in_hand, in_hand
            stood_still = last is not None and now - last > self._longest
            if stood_still:
                self._stood_still_until = now
        if last is not None and stood_still:
            log.heartbeat_delayed(now - last, sorted(in_hand or before))

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
        state: WorkerState,
        runner: Runner,
        lease: float,
        freezes: FreezeDetector,
        new_session: Callable[[], Session],
        lose: Callable[[Session, str], None],
        status: Callable[[], str | None],
    ) -> None:
        super().__init__()
        self._store = store
        self._state = state
        self._runner = runner
        self._lease = lease
        self._new_session = new_session
        self._status = status
        self._lose = lose
        self._freezes = freezes
        self._unknown: set[tuple[str, int]] = set()
        self._cancellation = CancellationPoller(store, state, runner)
        self._renew_at = 0.0  # monotonic; stays in the past while renewals fail

    def tick(self) -> float:
        self._freezes.beat()
        session = self._state.session
        if session is None or time.monotonic() >= self._renew_at:
            self.renew()
        else:
            self._cancellation.poll(session)
        return max(min(CANCEL_POLL_INTERVAL_S, self._renew_at - time.monotonic()), 0.0)

    def renew(self) -> None:
        """Renew the lease now and reconcile the claimed runs, or open a session where there is none."""
        started_at = time.monotonic()
        session = self._state.session
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
        lost = self._state.last_lost
        if lost is not None and lost.excused:
            self._store.sessions.excuse(lost.id)
        session = self._new_session()
        sent_at = time.monotonic()
        self._store.sessions.open(
            session.id, session.name, int(self._lease * MICROS_PER_SECOND), session.info, self._status()
        )
        session.renewed(sent_at, self._lease)
        self._unknown = set()
        self._state.begin(session)

    def _renew(self, session: Session) -> None:
        sent_at = time.monotonic()
        if not self._store.sessions.renew(session.id, int(self._lease * MICROS_PER_SECOND), self._status()):
            session.excused = sent_at < session.good_until  # sent in time, so the database answered late
            self._lose(session, "its lease expired")
            self.wake()
            return
        session.renewed(sent_at, self._lease)
        before = self._state.in_hand()
        self._compare(session, before, self._store.claims.list_owned(session.id))

    def _compare(self, session: Session, before: dict[str, Attempt], owned: list[OwnedRun]) -> None:
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
        known = {(attempt.claim.id, attempt.claim.fence) for attempt in self._state.in_hand().values()}
        known |= {(attempt.claim.id, attempt.claim.fence) for attempt in before.values()}
        unknown = {(run.id, run.fence) for run in owned} - known
        lost_claims = unknown & self._unknown
        self._unknown = unknown
        if lost_claims:
            self._hand_back(session, lost_claims)

    def _hand_back(self, session: Session, runs: set[tuple[str, int]]) -> None:
        ends = [End(id, 0, fence, "handed_back", "ready", in_tree=True) for id, fence in sorted(runs)]
        counted = self._store.attempts.end(session.id, ends)
        ended = sorted(runs - counted)
        if ended:
            self._store.attempts.release(session.id, ended)
        log.unknown_runs_released(len(runs))


class LeaseGuard(Loop):
    """Stops author code before the lease ends when no heartbeat gets through, breaks calls that hang, and watches the
    event loop."""

    name = "lease_guard"

    def __init__(
        self,
        store: Store,
        state: WorkerState,
        lease: float,
        freezes: FreezeDetector,
        lose: Callable[[Session, str], None],
        stall_handler: StallHandler,
    ) -> None:
        super().__init__()
        self._store = store
        self._state = state
        self._lease = lease
        self._freezes = freezes
        self._lose = lose
        self._stall_handler = stall_handler

    def tick(self) -> float:
        self._freezes.beat()
        self._store.database.abort_stuck_calls(self._lease / 3)
        session = self._state.session
        margin = self._lease / 6
        if session is not None and session.seconds_left() < margin:
            session.excused = not self._freezes.stood_still_since(session.good_until - self._lease)
            self._lose(session, "the database didn't answer in time to renew the lease")
        interval = min(1.0, self._lease / 12)
        self._stall_handler.check(interval)
        return interval


# cancellation

CANCEL_POLL_INTERVAL_S = 0.4
"""An attempt is polled from the second interval after its claim on, so it is stopped within two intervals."""


class CancellationPoller:
    """Stops attempts whose run is no longer running in this session."""

    def __init__(self, store: Store, state: WorkerState, runner: Runner) -> None:
        self._store = store
        self._state = state
        self._runner = runner
        self._seen: dict[str, Attempt] = {}

    def poll(self, session: Session) -> None:
        """Look up the attempts that were already running at the last poll, and stop those that lost their run."""
        before, self._seen = self._seen, self._state.in_hand()
        running = [
            attempt
            for id, attempt in self._seen.items()
            if before.get(id) is attempt and attempt.session == session.id and _can_be_stopped(attempt)
        ]
        if not running:
            return
        try:
            held = self._store.claims.find_running(session.id, [attempt.claim.id for attempt in running])
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
