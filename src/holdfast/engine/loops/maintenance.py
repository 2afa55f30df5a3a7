"""Maintenance loops: deletion of expired runs, events and keys, and aggregation of statistics."""

from __future__ import annotations

import random
import time

from holdfast.engine.loops.base import Loop
from holdfast.store import Store
from holdfast.store.stats import MAX_MINUTES_PER_PASS
from holdfast.telemetry import log

INTERVAL_S = 60.0
MAX_PRUNE_PAUSE_S = 0.1
CATCH_UP_INTERVAL_S = 1.0
"""The interval between portions while statistics lag behind."""


def _jittered_interval_s() -> float:
    return INTERVAL_S * random.uniform(0.8, 1.2)


class Pruner(Loop):
    """Deletes finished runs, events and idempotency keys whose retention has expired, and unused counters of limits.

    It deletes small batches and pauses for as long as each took. So it doesn't disturb other work, but keeps up with
    thousands of runs per second.
    """

    name = "pruner"

    def __init__(self, store: Store, keep_events: int, keep_keys: int | None = None) -> None:
        super().__init__()
        self._store = store
        self._keep_events = keep_events
        self._keep_keys = keep_keys
        self._pruned = 0
        self._pruned_events = 0

    def tick(self) -> float:
        started_at = time.monotonic()
        pruned, more = self._store.retention.prune()
        self._pruned += pruned
        events, more_events = self._store.retention.prune_events(self._keep_events)
        self._pruned_events += events
        more = more_events or more
        more = self._store.retention.prune_limits() or more
        more = self._store.retention.prune_expired_keys() or more
        if self._keep_keys is not None:
            more = self._store.retention.prune_keys(self._keep_keys) or more
        if more:
            return min(time.monotonic() - started_at, MAX_PRUNE_PAUSE_S)
        if self._pruned:
            log.runs_pruned(self._pruned)
            self._pruned = 0
        if self._pruned_events:
            log.events_pruned(self._pruned_events)
            self._pruned_events = 0
        if retired := self._store.lane_collector.collect():
            log.lanes_retired(retired)
        return _jittered_interval_s()


class StatsAggregator(Loop):
    """Aggregates the statistics of each past minute once, however many workers there are."""

    name = "stats"

    def __init__(self, store: Store) -> None:
        super().__init__()
        self._store = store

    def tick(self) -> float:
        if self._store.stats.aggregate() >= MAX_MINUTES_PER_PASS:
            return CATCH_UP_INTERVAL_S
        return _jittered_interval_s()
