"""How many runs there are: exact where that is quick, an estimate where it would not be, and it says which."""

from __future__ import annotations

import msgspec

from holdfast.model.filters import RunFilter
from holdfast.model.run import GRAPH_QUEUE
from holdfast.store import Store

MOST_COUNTED = 10_000
"""Runs that fit a filter are counted so far."""
MOST_PAGES = 20


class Estimate(msgspec.Struct, frozen=True):
    """A count. Where it isn't exact, counting went only so far, or the database's own statistics were asked."""

    value: int
    exact: bool = True


class Counts(msgspec.Struct, frozen=True):
    """How many runs there are. Those that are done, and the total, are always estimates where there are many."""

    total: Estimate
    states: dict[str, Estimate] = msgspec.field(default_factory=dict)
    """By state; unfinished ones as they are stored: a run that undoes counts by what it is doing."""
    queues: dict[str, dict[str, Estimate]] = msgspec.field(default_factory=dict)
    """Unfinished runs by queue and state."""
    tasks: dict[str, dict[str, Estimate]] = msgspec.field(default_factory=dict)
    """Unfinished runs by task and state."""


class Counting:
    """Counts runs, without ever reading very many rows."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def overview(self) -> Counts:
        """All runs by state, and the unfinished ones by queue and by task."""
        lanes = self._store.lanes.refresh()
        total = self._store.counting.total()
        states: dict[str, Estimate] = {}
        queues: dict[str, dict[str, Estimate]] = {}
        tasks: dict[str, dict[str, Estimate]] = {}
        for state, counted in self._store.counting.unfinished().items():
            states[state] = Estimate(sum(counted.by_lane.values()), counted.exact)
            for lane, runs in counted.by_lane.items():
                queue, task = lanes.get(lane, ("", ""))
                if queue != GRAPH_QUEUE:
                    _add(queues, queue, state, runs, counted.exact)
                    _add(tasks, task, state, runs, counted.exact)
        for state, (runs, exact) in self._store.counting.unwell().items():
            states[state] = Estimate(runs, exact)
        known = sum(count.value for count in states.values())
        exact = total.exact and all(count.exact for count in states.values())
        states["done"] = Estimate(max(total.runs - known, 0), exact)
        return Counts(Estimate(max(total.runs, known), total.exact), states, queues, tasks)

    def fitting(self, asked: RunFilter) -> Estimate:
        """How many runs fit a filter: counted up to a bound, beyond which there are at least so many."""
        count, after = 0, None
        for _ in range(MOST_PAGES):
            page = self._store.listing.page(asked, 1000, after)
            count, after = count + len(page.rows), page.after
            if after is None or count >= MOST_COUNTED:
                break
        return Estimate(count, after is None)


def _add(into: dict[str, dict[str, Estimate]], name: str, state: str, runs: int, exact: bool) -> None:
    by_state = into.setdefault(name, {})
    before = by_state.get(state, Estimate(0))
    by_state[state] = Estimate(before.value + runs, before.exact and exact)
