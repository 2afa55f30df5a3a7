"""Recover the runs of sessions whose lease has expired."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from holdfast.engine.attempt import WorkerState, crash_error
from holdfast.engine.loops.base import Loop
from holdfast.engine.loops.heartbeat import FreezeDetector, OutageDetector
from holdfast.errors import StoreUnavailable
from holdfast.model.clock import MICROS_PER_SECOND
from holdfast.model.failure import error_to_json
from holdfast.store import Store
from holdfast.telemetry import log

MAX_INTERVAL_S = 5.0
MIN_INTERVAL_S = 0.05


class RecoveryLoop(Loop):
    """Returns running runs of expired sessions to ready, or fails those that crashed too often.

    While this worker couldn't reach the database, other workers couldn't renew their leases either, so the runs of
    sessions that expired in that time aren't charged, except those of processes that are known to have exited. The
    session of this process is left to its heartbeat and lease guard until they have ended it and know why.
    """

    name = "recovery"

    def __init__(
        self,
        store: Store,
        state: WorkerState,
        on_failed: Callable[[str], None],
        freezes: FreezeDetector,
        outages: OutageDetector,
    ) -> None:
        super().__init__()
        self._store = store
        self._state = state
        self._on_failed = on_failed
        self._freezes = freezes
        self._outages = outages
        self._crash_error = error_to_json(crash_error())
        self._ended_sessions: deque[str] = deque()
        self._exited: set[str] = set()

    def session_ended(self, session: str) -> None:
        """Recover a session's runs now, because its process is known to have ended. From any thread."""
        self._ended_sessions.append(session)
        self.wake()

    def tick(self) -> float:
        self._freezes.record_progress()
        try:
            return self._recover()
        except StoreUnavailable:
            self._outages.record_failure()
            raise

    def _recover(self) -> float:
        sessions = self._store.sessions
        if self._ended_sessions:
            ended = list(self._ended_sessions)
            sessions.expire(ended)
            self._exited.update(ended)
            for _ in ended:
                self._ended_sessions.popleft()
        own, lost = self._state.session_id(), self._state.last_lost
        if own is None and lost is not None and lost.excused:
            sessions.excuse(
                lost.id
            )  # the heartbeat does so when it opens the next session, perhaps after this recovery
        dead = {session: micros for session, micros in sessions.find_dead().items() if session != own}
        self._exited.intersection_update(dead)
        self._freezes.record_progress()
        self._outages.record_answer()
        excused = [session for session, expired_for in dead.items() if self._is_excused(session, expired_for)]
        charged = [session for session in dead if session not in excused]
        if (excused and self._recover_sessions(excused, excused=True)) or (
            charged and self._recover_sessions(charged, excused=False)
        ):
            return 0.0
        left = sessions.next_expiry()
        return MAX_INTERVAL_S if left is None else min(max(left / MICROS_PER_SECOND, MIN_INTERVAL_S), MAX_INTERVAL_S)

    def _is_excused(self, session: str, expired_for: int) -> bool:
        expired_at = time.monotonic() - expired_for / MICROS_PER_SECOND
        return session not in self._exited and self._outages.may_explain(expired_at)

    def _recover_sessions(self, dead: list[str], *, excused: bool) -> bool:
        """Recover runs of these sessions; return whether there may be more."""
        recovered = self._store.sessions.recover(dead, self._crash_error, excused=excused)
        for run in (*recovered.failed, *recovered.failed_graphs):
            self._on_failed(run)
        for run in recovered.failed:
            self._log_crashed(run)
        for lost in recovered.lost:
            log.worker_lost(lost.session, lost.name, lost.requeued, lost.failed, excused=lost.excused)
        return bool(recovered)

    def _log_crashed(self, run: str) -> None:
        found = self._store.queries.run(run)
        if found is not None:
            log.attempt_crashed(run, found.task, found.attempt, crash_error(), final=True)
