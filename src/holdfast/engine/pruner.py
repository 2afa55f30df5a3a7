"""Deletes finished runs, and events, whose time to be kept is over."""

from __future__ import annotations

import random

from holdfast.engine.loop import Loop
from holdfast.store import Store
from holdfast.telemetry import log

EVERY = 60.0
BETWEEN_BATCHES = 0.1


class Pruner(Loop):
    """Prunes in small batches with pauses, so that nobody notices."""

    name = "pruner"

    def __init__(self, store: Store, keep_events: int) -> None:
        super().__init__()
        self._store = store
        self._keep_events = keep_events
        self._pruned = 0

    def tick(self) -> float:
        pruned, more = self._store.timers.prune()
        self._pruned += pruned
        more = self._store.timers.prune_events(self._keep_events) or more
        if more:
            return BETWEEN_BATCHES
        self._store.timers.prune_limits()
        if self._pruned:
            log.pruned(self._pruned)
            self._pruned = 0
        return EVERY * random.uniform(0.8, 1.2)
