"""Counts what ended in the last minutes, for whoever wants to see how things went."""

from __future__ import annotations

import random

from holdfast.engine.loop import Loop
from holdfast.store import Store

EVERY = 60.0


class Tallier(Loop):
    """Counts each minute once, whatever number of workers there is: who comes later finds it counted."""

    name = "tallier"

    def __init__(self, store: Store) -> None:
        super().__init__()
        self._store = store

    def tick(self) -> float:
        self._store.tallies.count()
        return EVERY * random.uniform(0.8, 1.2)
