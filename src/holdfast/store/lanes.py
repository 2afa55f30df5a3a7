"""Lanes: queue and task together, interned. Never deleted, so ids may be remembered."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TypeAlias

from holdfast.store.part import Ground, Part, batch
from holdfast.store.rows import NewRun

Pair: TypeAlias = tuple[str, str]
"""Queue and task."""


class Lanes(Part):
    """Pairs of queue and task, by id."""

    def __init__(self, ground: Ground) -> None:
        super().__init__(ground)
        self._ids: dict[Pair, int] = {}
        self.limited: frozenset[int] = frozenset()
        """The lanes into which runs with limits were put, as far as it is known."""

    def of(self, runs: Iterable[NewRun]) -> dict[Pair, int]:
        """The lanes of new runs, by queue and task. Those of runs with limits are marked."""
        pairs: dict[Pair, bool] = {}
        for run in runs:
            pair = run.queue, run.task
            pairs[pair] = pairs.get(pair, False) or run.limits is not None
        known = self.ids(pairs)
        unmarked = {known[pair] for pair, limited in pairs.items() if limited} - self.limited
        if unmarked:
            self._one("client", "limit_lanes", rows=batch({"id": lane} for lane in sorted(unmarked)))
            self.refresh()
        return known

    def mark_limited(self, lanes: Collection[int]) -> bool:
        """Mark those of these lanes whose first ready run has limits though its lane isn't known to have any, as after
        a change by hand: other claims pass over such runs. Whether there were any."""
        rows = batch({"lane": lane} for lane in lanes if lane not in self.limited)
        found = [{"id": int(lane)} for (lane,) in self._one("claim", "limited_heads", lanes=rows)]
        if found:
            self._one("claim", "limit_lanes", rows=batch(found))
            self.refresh("claim")
        return bool(found)

    def ids(self, pairs: Iterable[Pair]) -> dict[Pair, int]:
        """The lanes of these pairs, made where they are new: in a transaction of its own, unless the caller has one."""
        known: dict[Pair, int] = self._ids
        missing = {pair for pair in pairs if pair not in known}
        if missing:
            known = _by_pair(self.refresh())
            missing = {pair for pair in missing if pair not in known}
        if missing:
            self._one("client", "add_lanes", rows=batch({"queue": q, "task": t} for q, t in sorted(missing)))
            known = _by_pair(self.refresh())
        return known

    def refresh(self, line: str = "read") -> dict[int, Pair]:
        """All lanes there are, by id, read on a line of the caller's choice. Those of a transaction that may still be
        taken back are not remembered."""
        rows = self._one(line, "all_lanes")
        found = {int(id): (queue, task) for id, queue, task, _ in rows}
        if not self._ground.database.in_user_transaction():
            self._ids.update(_by_pair(found))  # never replaced: another thread may know more
            self.limited |= {int(id) for id, _, _, limited in rows if limited}
        return found


def _by_pair(lanes: dict[int, Pair]) -> dict[Pair, int]:
    return {pair: id for id, pair in lanes.items()}
