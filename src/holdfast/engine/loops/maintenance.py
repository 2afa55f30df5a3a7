"""Maintenance loops: deletion of expired runs, events, messages and keys, and aggregation of statistics."""

from __future__ import annotations

import random
import time

from holdfast.engine.loops.base import Loop
from holdfast.model.clock import to_micros
from holdfast.model.keep import DEFAULT_KEEP_AUDIT
from holdfast.store import Store
from holdfast.store.module import MAX_BATCH_ROWS
from holdfast.store.stats import MAX_MINUTES_PER_PASS
from holdfast.telemetry import log

INTERVAL_S = 60.0
BUSY_INTERVAL_S = 5.0
"""The interval after a pass that deleted more than one batch: as many runs may expire in the next minute."""
MAX_PRUNE_PAUSE_S = 0.1
LARGE_BATCH_RUNS = 4000
"""How many runs a batch deletes while more have expired than one batch can delete. Larger batches need fewer
round trips, which are assumed, not measured, to take about half of the time with 500 runs a batch."""
KEEP_AUDIT_MICROS = to_micros(DEFAULT_KEEP_AUDIT, "keep_audit")
CATCH_UP_INTERVAL_S = 1.0
"""The interval between portions while statistics lag behind."""


def _jittered(interval_s: float) -> float:
    return interval_s * random.uniform(0.8, 1.2)


class Pruner(Loop):
    """Deletes finished runs, events, messages, keys and audit entries whose retention has expired, and unused counters.

    It deletes runs in batches. On PostgreSQL, batches are larger while more runs have expired, and follow each other
    without a pause, so that it keeps up with tens of thousands of runs per second. On SQLite, where a batch keeps
    others from writing, batches are small, and it pauses for as long as each took.
    """

    name = "pruner"

    def __init__(
        self, store: Store, keep_events: int, keep_audit: int = KEEP_AUDIT_MICROS, keep_keys: int | None = None
    ) -> None:
        super().__init__()
        self._store = store
        self._keep_events = keep_events
        self._keep_audit = keep_audit
        self._keep_keys = keep_keys
        self._batches = 0  # of this pass
        self._others_at = 0.0  # when what isn't a run is pruned, even if more runs have expired
        self._pruned = 0
        self._pruned_events = 0

    def tick(self) -> float:
        started_at = time.monotonic()
        delays_others = self._store.database.dialect.single_writer
        size = MAX_BATCH_ROWS if delays_others or not self._batches else LARGE_BATCH_RUNS
        pruned, more = self._store.retention.prune(size)
        self._pruned += pruned
        if not more or started_at >= self._others_at:
            more_others = self._prune_others()
            self._others_at = started_at if more_others else started_at + INTERVAL_S
            more = more or more_others
        if more:
            self._batches += 1
            return min(time.monotonic() - started_at, MAX_PRUNE_PAUSE_S) if delays_others else 0.0
        was_busy, self._batches = self._pruned > MAX_BATCH_ROWS, 0
        self._finish_pass()
        return _jittered(BUSY_INTERVAL_S if was_busy else INTERVAL_S)

    def _prune_others(self) -> bool:
        """Delete a batch of events, counters and keys; return whether there may be more."""
        retention = self._store.retention
        events, more = retention.prune_events(self._keep_events)
        self._pruned_events += events
        more = retention.prune_topics(self._keep_events) or more
        more = retention.prune_limits() or more
        more = self._store.audit.prune(self._keep_audit) or more
        more = retention.prune_expired_keys() or more
        if self._keep_keys is not None:
            more = retention.prune_keys(self._keep_keys) or more
        return more

    def _finish_pass(self) -> None:
        """Report what was deleted, and collect unused lanes."""
        if self._pruned:
            log.runs_pruned(self._pruned)
            self._pruned = 0
        if self._pruned_events:
            log.events_pruned(self._pruned_events)
            self._pruned_events = 0
        if retired := self._store.lane_collector.collect():
            log.lanes_retired(retired)


class StatsAggregator(Loop):
    """Aggregates the statistics of each past minute once, however many workers there are."""

    name = "stats"

    def __init__(self, store: Store) -> None:
        super().__init__()
        self._store = store

    def tick(self) -> float:
        if self._store.stats.aggregate() >= MAX_MINUTES_PER_PASS:
            return CATCH_UP_INTERVAL_S
        return _jittered(INTERVAL_S)
