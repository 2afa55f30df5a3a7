"""Counts what ended in the last minutes, for whoever wants to see how things went."""

from __future__ import annotations

import random

from holdfast.engine.loop import Loop
from holdfast.store import Store
from holdfast.store.tallies import PORTION

EVERY = 60.0
CATCHING_UP = 1.0
"""Seconds between portions while there is more to make up for."""


class Tallier(Loop):
    """Counts each minute once, whatever number of workers there is: who comes later finds it counted."""

    name = "tallier"

    def __init__(self, store: Store) -> None:
        super().__init__()
        self._store = store

    def tick(self) -> float:
        if self._store.tallies.count() >= PORTION:
            return CATCHING_UP
        return EVERY * random.uniform(0.8, 1.2)
