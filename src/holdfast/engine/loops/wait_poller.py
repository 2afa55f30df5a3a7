"""Looks at the waits of runs that wait in memory: what others have settled, their code must hear of."""

from __future__ import annotations

import threading
import time

from holdfast.engine.loops.base import NOT_BEFORE_WOKEN, Loop
from holdfast.engine.services import ResidentWaiter
from holdfast.store import Store

SHORTEST = 0.002
SOONEST = 0.01
LATEST = 0.25


class WaitPoller(Loop):
    """Asks the database for all of them at once: soon after something happened, then less and less often."""

    name = "wait_poller"

    def __init__(self, store: Store) -> None:
        super().__init__()
        self._store = store
        self._watched: dict[int, ResidentWaiter] = {}
        self._lock = threading.Lock()
        self._pause = SOONEST
        self._last = 0.0

    def watch(self, waiting: ResidentWaiter) -> None:
        """Look at the waits of this attempt until it is over."""
        with self._lock:
            self._watched[id(waiting)] = waiting
        self._pause = SOONEST
        self.wake()

    def stir(self) -> None:
        """Something was written that may concern those who wait here."""
        if self._watched:
            self._pause = SOONEST
            self.wake()

    def tick(self) -> float:
        started = time.monotonic()
        if (left := self._last + SHORTEST - started) > 0:
            return left
        self._last = started
        with self._lock:
            over = [at for at, waiting in self._watched.items() if waiting.current.over or waiting.current.ended]
            for at in over:
                del self._watched[at]
            watched = list(self._watched.values())
        if not watched:
            return NOT_BEFORE_WOKEN
        by_run = {waiting.current.claim.id: waiting for waiting in watched}
        runs = [(waiting.current.claim.id, waiting.current.claim.generation) for waiting in watched]
        for run, key, _, outcome in self._store.journal.resolved_waits(runs):
            by_run[run].resolve_wait(key, outcome)
        self._pause = min(self._pause * 1.5, LATEST)
        return max(self._pause - (time.monotonic() - started), 0.001)
