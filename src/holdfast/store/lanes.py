"""Lanes: queue and task together, interned. Never deleted, so ids may be remembered."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from holdfast.store.part import Ground, Part, batch

Pair: TypeAlias = tuple[str, str]
"""Queue and task."""


class Lanes(Part):
    """Pairs of queue and task, by id."""

    def __init__(self, ground: Ground) -> None:
        super().__init__(ground)
        self._ids: dict[Pair, int] = {}

    def ids(self, pairs: Iterable[Pair]) -> dict[Pair, int]:
        """The lanes of these pairs, made where they are new. Makes them in a transaction of its own."""
        missing = {pair for pair in pairs if pair not in self._ids}
        if missing:
            self.refresh()
            missing = {pair for pair in missing if pair not in self._ids}
        if missing:
            self._one("client", "add_lanes", rows=batch({"queue": q, "task": t} for q, t in sorted(missing)))
            self.refresh()
        return self._ids

    def refresh(self) -> dict[int, Pair]:
        """All lanes there are, by id."""
        found = {int(id): (queue, task) for id, queue, task in self._one("read", "all_lanes")}
        self._ids.update((pair, id) for id, pair in found.items())  # never replaced: another thread may know more
        return found
