"""Lanes: pairs of queue and task, each with an id. They are never deleted, so processes may cache the ids."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TypeAlias

from holdfast.store.module import StoreContext, StoreModule, json_rows
from holdfast.store.rows import NewRun

LaneKey: TypeAlias = tuple[str, str]
"""Queue and task."""


class LaneStore(StoreModule):
    """Ids of lanes, cached."""

    def __init__(self, context: StoreContext) -> None:
        super().__init__(context)
        self._ids: dict[LaneKey, int] = {}
        self.limited: frozenset[int] = frozenset()
        """Lanes known to hold runs with limits. A claim without permits passes over such runs."""

    def for_runs(self, runs: Iterable[NewRun]) -> dict[LaneKey, int]:
        """Return the lanes of new runs, and mark those that get runs with limits."""
        keys: dict[LaneKey, bool] = {}
        for run in runs:
            key = run.queue, run.task
            keys[key] = keys.get(key, False) or run.limits is not None
        known = self.ids(keys)
        unmarked = {known[key] for key, limited in keys.items() if limited} - self.limited
        if unmarked:
            self._execute("client", "mark_lanes_limited", rows=json_rows({"id": lane} for lane in sorted(unmarked)))
            self.refresh()
        return known

    def mark_limited_heads(self, lanes: Collection[int]) -> bool:
        """Mark lanes whose first ready run has limits although the lane isn't marked; return whether there were any.

        That happens after a change by hand.
        """
        rows = json_rows({"lane": lane} for lane in lanes if lane not in self.limited)
        found = [{"id": int(lane)} for (lane,) in self._execute("claim", "find_limited_heads", lanes=rows)]
        if found:
            self._execute("claim", "mark_lanes_limited", rows=json_rows(found))
            self.refresh("claim")
        return bool(found)

    def ids(self, keys: Iterable[LaneKey]) -> dict[LaneKey, int]:
        """Return the ids of these lanes, creating missing ones in a transaction of its own."""
        known: dict[LaneKey, int] = self._ids
        missing = {key for key in keys if key not in known}
        if missing:
            known = lanes_by_key(self.refresh())
            missing = {key for key in missing if key not in known}
        if missing:
            rows = json_rows({"queue": queue, "task": task} for queue, task in sorted(missing))
            self._execute("client", "add_lanes", rows=rows)
            known = lanes_by_key(self.refresh())
        return known

    def refresh(self, purpose: str = "read") -> dict[int, LaneKey]:
        """Read all lanes and update the cache, unless a caller's open transaction may still roll lanes back."""
        rows = self._execute(purpose, "list_lanes")
        found = {int(id): (queue, task) for id, queue, task, _ in rows}
        if not self._context.database.in_user_transaction():
            self._ids.update(lanes_by_key(found))  # update in place: another thread may have read more
            self.limited |= {int(id) for id, _, _, limited in rows if limited}
        return found


def lanes_by_key(lanes: dict[int, LaneKey]) -> dict[LaneKey, int]:
    """Invert the result of `LaneStore.refresh`."""
    return {key: id for id, key in lanes.items()}
