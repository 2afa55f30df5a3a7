"""Run the suspects of a crash without other runs in the process, so that the next death identifies the culprit."""

from __future__ import annotations

import time

from holdfast.engine.attempt import Attempt, Session, WorkerState, new_attempts
from holdfast.engine.durable.history import load_history
from holdfast.engine.loops.known_lanes import KnownLanes
from holdfast.engine.runner import Runner
from holdfast.store import Claim, Store
from holdfast.telemetry import log

ISOLATION_POLL_INTERVAL_S = 0.5
ISOLATION_PATIENCE_S = 0.5
"""How long a worker with claimed runs leaves isolated ones to a worker without any."""
MAX_PAUSE_S = 1.0
"""How often the claimer checks whether a group may start, or has ended, unless it is woken before."""


class IsolatedRuns:
    """Claims and starts groups of isolated runs. Used by the claimer, on its thread.

    A worker without runs claims a group of isolated runs at once. A busy one first leaves them to others for a while.
    Then it reserves a group, claims nothing else, and starts the group when its other runs have ended, or after a third
    of the lease, so that long runs can't delay the group forever.
    """

    def __init__(self, store: Store, state: WorkerState, runner: Runner, lanes: KnownLanes, lease: float) -> None:
        self.is_active = True
        """Whether isolated runs exist, so that nothing else may be claimed, or soon. True before the first poll."""
        self._store = store
        self._state = state
        self._runner = runner
        self._lanes = lanes
        self._lease = lease
        self._next_poll_at = 0.0
        self._waiting_since: float | None = None
        self._reserved: list[Attempt] = []
        self._start_by = 0.0
        self._running: list[Attempt] = []

    @property
    def has_reserved(self) -> bool:
        """Whether this worker has claimed a group that it hasn't started."""
        return bool(self._reserved)

    def _update_active(self) -> None:
        self.is_active = bool(self._reserved or self._running or self._waiting_since is not None)

    def poll(self) -> bool:
        """Poll for isolated runs if that is due; return whether there are any.

        The claimer polls after a claim, because the claimed runs must not wait for it, and before its first claim,
        because a process that has just started has no runs.
        """
        now = time.monotonic()
        if now >= self._next_poll_at:
            self._next_poll_at = now + ISOLATION_POLL_INTERVAL_S
            if not self._store.claims.has_isolated(self._lanes.tasks):
                self._waiting_since = None
            elif self._waiting_since is None:
                self._waiting_since = now
            self._update_active()
        return self._waiting_since is not None

    def advance(self, session: Session) -> float | None:
        """Reserve or start isolated runs. Return the seconds for which nothing else may be claimed, or None."""
        if not self._next_poll_at:
            self.poll()
        if not self.is_active:
            return None
        try:
            return self._advance(session)
        finally:
            self._update_active()

    def _advance(self, session: Session) -> float | None:
        now = time.monotonic()
        was_running = bool(self._running)
        # Until its end is durable, a death of the process would be charged to a run that has stopped, too.
        self._running = [
            each
            for each in self._running
            if each.session == session.id and not each.abandoned and self._state.find(each.claim.id) is each
        ]
        self._reserved = [each for each in self._reserved if each.session == session.id]
        if self._reserved:
            if self._runner.busy_slots and now < self._start_by:
                return min(MAX_PAUSE_S, self._start_by - now)
            self._start()
        if self._running:
            return MAX_PAUSE_S
        if was_running:  # the next group of the same crash may be waiting
            self._next_poll_at = now
            self.poll()
        if self._waiting_since is None:
            return None
        if self._runner.busy_slots and now - self._waiting_since < ISOLATION_PATIENCE_S:
            return None
        self._reserve(session, now)
        return 0.0 if self._reserved else None

    def _reserve(self, session: Session, now: float) -> None:
        self._waiting_since = None
        claims = self._claim_group(session)
        attempts = new_attempts(claims, self._lanes.tasks, self._lanes.pools, session.id, isolated=True)
        if self._state.add(session, attempts):
            self._reserved = attempts
            self._start_by = now + self._lease / 3

    def _claim_group(self, session: Session) -> list[Claim]:
        """Claim a group. If queues have slots of their own, its runs get their slots from one pool."""
        claim, lanes = self._store.claims.claim_isolated, self._lanes
        for pool in self._runner.pools.values():
            if claims := claim(session.id, lanes.in_pool(lanes.tasks, pool), pool.slots):
                return claims
        return [] if self._runner.pools else claim(session.id, lanes.tasks, self._runner.concurrency)

    def _start(self) -> None:
        attempts, self._reserved = self._reserved, []
        log.isolated_runs_started(len(attempts), self._runner.busy_slots)
        try:
            load_history(self._store, attempts, self._runner.residents)
        except Exception:
            self._runner.stop(attempts, "release")
            self._runner.start(attempts)
            raise
        self._running = attempts
        self._runner.start(attempts)
