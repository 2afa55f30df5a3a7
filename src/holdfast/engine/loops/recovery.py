"""Recovers the runs of dead sessions."""

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

LONGEST = 5.0
SHORTEST = 0.05


class RecoveryLoop(Loop):
    """Returns runs of dead sessions to ready, or fails those that crashed too often. Never touches finished ones.

    If this worker itself couldn't reach the database for a while, others couldn't renew their leases either. It doesn't
    charge the runs of sessions that it finds dead after that. A worker whose own threads stood still, because a run
    held the GIL, knows nothing about the database and excuses nobody.
    """

    name = "recovery"

    def __init__(self, store: Store, failed: Callable[[str], None], lease: float, freezes: FreezeDetector) -> None:
        super().__init__()
        self._store = store
        self._away_after = min(LONGEST, lease) + lease / 3
        self._last_tick: float | None = None
        self._failed = failed
        self._freezes = freezes
        self._crashed = error_to_json(crash_error())
        self._ended: deque[str] = deque()

    def session_ended(self, session: str) -> None:
        """Recover a session's runs now, because its process is known to have ended. From any thread."""
        self._ended.append(session)
        self.wake()

    def tick(self) -> float:
        self._freezes.beat()
        if self._ended:
            ended = list(self._ended)
            self._store.sessions.expire(ended)
            for _ in ended:
                self._ended.popleft()
        last_tick, began = self._last_tick, time.monotonic()
        dead = self._store.sessions.find_dead()
        if dead:
            self._freezes.beat()
            away = (
                last_tick is not None
                and began - last_tick > self._away_after
                and not self._freezes.stood_still_since(last_tick)
            )
            recovered = self._store.sessions.recover(dead, self._crashed, excused=away)
            for run in (*recovered.failed, *recovered.failed_graphs):
                self._failed(run)
            for run in recovered.failed:
                self._log_crashed(run)
            if recovered:
                log.worker_lost(recovered.sessions, recovered.requeued, len(recovered.failed))
                return 0.0
        self._last_tick = began
        left = self._store.sessions.next_expiry()
        return LONGEST if left is None else min(max(left / MICROS_PER_SECOND, SHORTEST), LONGEST)

    def _log_crashed(self, run: str) -> None:
        found = self._store.queries.run(run)
        if found is not None:
            log.attempt_crashed(run, found.task, found.attempt, crash_error(), final=True)
