"""Recover the runs of sessions whose lease has expired."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from holdfast.engine.attempt import crash_error
from holdfast.engine.loops.base import Loop
from holdfast.engine.loops.heartbeat import FreezeDetector
from holdfast.model.clock import MICROS_PER_SECOND
from holdfast.model.failure import error_to_json
from holdfast.store import Store
from holdfast.telemetry import log

MAX_INTERVAL_S = 5.0
MIN_INTERVAL_S = 0.05


class RecoveryLoop(Loop):
    """Returns running runs of expired sessions to ready, or fails those that crashed too often.

    If this worker itself couldn't reach the database for a while, other workers couldn't renew their leases either, so
    it doesn't charge the runs of sessions that expired meanwhile. If its own threads were frozen instead, because a run
    held the GIL, it knows nothing about the database and excuses no session.
    """

    name = "recovery"

    def __init__(self, store: Store, on_failed: Callable[[str], None], lease: float, freezes: FreezeDetector) -> None:
        super().__init__()
        self._store = store
        self._unreachable_after_s = min(MAX_INTERVAL_S, lease) + lease / 3
        self._last_tick: float | None = None
        self._on_failed = on_failed
        self._freezes = freezes
        self._crash_error = error_to_json(crash_error())
        self._ended_sessions: deque[str] = deque()

    def session_ended(self, session: str) -> None:
        """Recover a session's runs now, because its process is known to have ended. From any thread."""
        self._ended_sessions.append(session)
        self.wake()

    def tick(self) -> float:
        self._freezes.record_progress()
        if self._ended_sessions:
            ended = list(self._ended_sessions)
            self._store.sessions.expire(ended)
            for _ in ended:
                self._ended_sessions.popleft()
        last_tick, started_at = self._last_tick, time.monotonic()
        dead = self._store.sessions.find_dead()
        if dead:
            self._freezes.record_progress()
            was_unreachable = (
                last_tick is not None
                and started_at - last_tick > self._unreachable_after_s
                and not self._freezes.was_frozen_since(last_tick)
            )
            recovered = self._store.sessions.recover(dead, self._crash_error, excused=was_unreachable)
            for run in (*recovered.failed, *recovered.failed_graphs):
                self._on_failed(run)
            for run in recovered.failed:
                self._log_crashed(run)
            for lost in recovered.lost:
                log.worker_lost(lost.session, lost.name, lost.requeued, lost.failed, excused=lost.excused)
            if recovered:
                return 0.0
        self._last_tick = started_at
        left = self._store.sessions.next_expiry()
        return MAX_INTERVAL_S if left is None else min(max(left / MICROS_PER_SECOND, MIN_INTERVAL_S), MAX_INTERVAL_S)

    def _log_crashed(self, run: str) -> None:
        found = self._store.queries.run(run)
        if found is not None:
            log.attempt_crashed(run, found.task, found.attempt, crash_error(), final=True)
