"""Poll the waits of resident runs and deliver the outcomes that other processes recorded.

A durable function that waits stays in memory for a while. If another process resolves its wait (a child ends, an event
is emitted), nothing wakes this process; the poller finds it.
"""

from __future__ import annotations

import threading
import time

from holdfast.engine.loops.base import UNTIL_WOKEN_S, Loop
from holdfast.engine.services import ResidentWaiter
from holdfast.store import Store

MIN_INTERVAL_S = 0.002
FIRST_INTERVAL_S = 0.01
MAX_INTERVAL_S = 0.25
BACKOFF_FACTOR = 1.5
MIN_PAUSE_S = 0.001


class WaitPoller(Loop):
    """Polls all resident waits with one query: soon after local activity, then with exponential backoff."""

    name = "wait_poller"

    def __init__(self, store: Store) -> None:
        super().__init__()
        self._store = store
        self.waiters: dict[int, ResidentWaiter] = {}
        self._lock = threading.Lock()
        self._interval_s = FIRST_INTERVAL_S
        self._last_poll = 0.0
        self._next_poll = 0.0

    def add(self, waiter: ResidentWaiter) -> None:
        """Poll the waits of this attempt until the attempt stops.

        Not at once: the transaction that registered the wait has looked for its outcome.
        """
        with self._lock:
            self.waiters[id(waiter)] = waiter
            self._interval_s = FIRST_INTERVAL_S
            first = time.monotonic() + FIRST_INTERVAL_S
            is_sooner = first < self._next_poll
            self._next_poll = min(self._next_poll, first)
        if is_sooner:
            self.wake()

    def poll_soon(self) -> None:
        """Poll now and reset the backoff, because a commit may have resolved a wait."""
        self._interval_s = FIRST_INTERVAL_S
        self._next_poll = 0.0
        self.wake()

    def tick(self) -> float:
        started = time.monotonic()
        if (left := max(self._last_poll + MIN_INTERVAL_S, self._next_poll) - started) > 0:
            return left
        self._last_poll = started
        with self._lock:
            done = [number for number, each in self.waiters.items() if each.current.stopped or each.current.reported]
            for number in done:
                del self.waiters[number]
            waiters = list(self.waiters.values())
            self._interval_s = min(self._interval_s * BACKOFF_FACTOR, MAX_INTERVAL_S)
            self._next_poll = started + self._interval_s if waiters else UNTIL_WOKEN_S + started
        if not waiters:
            return UNTIL_WOKEN_S
        by_run = {waiter.current.claim.id: waiter for waiter in waiters}
        runs = [(waiter.current.claim.id, waiter.current.claim.generation) for waiter in waiters]
        for run, key, _, outcome in self._store.journal.resolved_waits(runs):
            by_run[run].resolve_wait(key, outcome)
        return max(self._next_poll - time.monotonic(), MIN_PAUSE_S)
