"""Deletes finished runs, and events, whose time to be kept is over; and counters of limits that nobody uses."""

from __future__ import annotations

import random
import time

from holdfast.engine.loops.base import Loop
from holdfast.store import Store
from holdfast.store.stats import MAX_MINUTES_PER_PASS
from holdfast.telemetry import log

EVERY = 60.0
LONGEST_PAUSE = 0.1


class Pruner(Loop):
    """Prunes in small batches, and rests for as long as each took: so nobody notices, and it keeps up with thousands of
    runs a second."""

    name = "pruner"

    def __init__(self, store: Store, keep_events: int) -> None:
        super().__init__()
        self._store = store
        self._keep_events = keep_events
        self._pruned = 0

    def tick(self) -> float:
        since = time.monotonic()
        pruned, more = self._store.retention.prune()
        self._pruned += pruned
        more = self._store.retention.prune_events(self._keep_events) or more
        more = self._store.retention.prune_limits() or more
        if more:
            return min(time.monotonic() - since, LONGEST_PAUSE)
        if self._pruned:
            log.runs_pruned(self._pruned)
            self._pruned = 0
        return EVERY * random.uniform(0.8, 1.2)


# stats

EVERY = 60.0
CATCHING_UP = 1.0
"""Seconds between portions while there is more to make up for."""


class StatsAggregator(Loop):
    """Counts each minute once, whatever number of workers there is: who comes later finds it counted."""

    name = "stats"

    def __init__(self, store: Store) -> None:
        super().__init__()
        self._store = store

    def tick(self) -> float:
        if self._store.stats.aggregate() >= MAX_MINUTES_PER_PASS:
            return CATCHING_UP
        return EVERY * random.uniform(0.8, 1.2)
