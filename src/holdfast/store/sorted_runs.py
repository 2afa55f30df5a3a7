"""List runs in other orders than newest first: oldest first, by end, by due time. Only columns with an index.

A page reads candidates in that order from the index and keeps those that match, up to `MAX_STREAM_CANDIDATES`. If that
isn't enough, the page is partial and says where the next one continues. A cursor is a time and an id, because many runs
may have the same time; of the oldest runs, it is an id.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from holdfast.errors import ConfigError
from holdfast.model.clock import time_to_micros
from holdfast.model.filters import RunFilter
from holdfast.store.module import StoreContext, StoreModule
from holdfast.store.run_list import MAX_STREAM_CANDIDATES, RunList, RunListPage, bounds_of, portions
from holdfast.store.run_queries import RunRow

FIRST_CANDIDATES = 256
_LAST = UUID(int=2**128 - 1)
_FIRST = UUID(int=0)


class _Order(NamedTuple):
    """How an order is read. `descending`: whether times fall from one run to the next."""

    statement: str
    descending: bool


_ORDERS = {
    "-finished": _Order("newest_finished", True),
    "finished": _Order("oldest_finished", False),
    "-due": _Order("last_due", True),
    "due": _Order("next_due", False),
}
MAX_TIME = 2**62


class Candidates(NamedTuple):
    """Ids in the order of the list, with the cursor behind each, and whether they are all that follow."""

    ids: Sequence[str]
    cursors: Sequence[str]
    complete: bool


class SortedRuns(StoreModule):
    """Pages of runs in another order."""

    def __init__(self, context: StoreContext, runs: RunList) -> None:
        super().__init__(context)
        self._runs = runs

    def page(self, filters: RunFilter, size: int, after: str | None, sort: str) -> RunListPage:
        """Return up to `size` runs that match, behind the end of the previous page."""
        lanes = self._runs.lanes_of(filters)
        if lanes is not None and not lanes:
            return RunListPage([], None, False)
        check, candidates, rows = self._runs.text_check(filters), Candidates((), (), True), list[RunRow]()
        for candidates in self._candidates(filters, lanes, after, sort):
            position = {id: number for number, id in enumerate(candidates.ids)}
            rows = []
            for portion in portions(candidates.ids):
                found, _ = self._runs.filter(filters, lanes, portion, len(portion), check)
                rows += sorted(found, key=lambda row: position[row.id])
                if len(rows) > size:
                    end = candidates.cursors[position[rows[size - 1].id]]
                    return RunListPage(rows[:size], end, False, len(position), 0, check.matches)
            if candidates.complete:
                break
        last = None if candidates.complete else candidates.cursors[-1]
        return RunListPage(rows, last, last is not None, len(candidates.ids), 0, check.matches)

    def _candidates(
        self, filters: RunFilter, lanes: Sequence[int] | None, after: str | None, sort: str
    ) -> Iterator[Candidates]:
        """Yield the candidates of a page: first a few, then the maximum."""
        if sort == "created":
            yield from self._oldest(filters, lanes, after)
            return
        order = _ORDERS[sort]
        at, id = _position(after, order.descending)
        values: dict[str, Any] = {"at": at, "id": id}
        if "finished" in sort:
            since = filters.finished_from
            values["finished_from"] = None if since is None else time_to_micros(since)
        for limit in (FIRST_CANDIDATES, MAX_STREAM_CANDIDATES):
            found = self._execute("read", order.statement, limit=limit + 1, **values)
            cut = found[:limit]
            yield Candidates(
                [str(id) for id, _ in cut], [f"{time}.{id}" for id, time in cut], complete=len(found) <= limit
            )

    def _oldest(self, filters: RunFilter, lanes: Sequence[int] | None, after: str | None) -> Iterator[Candidates]:
        bounds = bounds_of(filters, None)
        low = str(bounds.above if after is None else max(bounds.above, UUID(after)))
        high = str(bounds.below)
        sources, heaped = self._runs.choose(filters, lanes)
        if not sources.streams:
            ids = sorted(id for id in heaped if low < id < high)
            yield Candidates(ids, ids, complete=True)
            return
        for limit in (FIRST_CANDIDATES, MAX_STREAM_CANDIDATES):
            found = [
                str(id) for (id,) in self._execute("read", "oldest_runs", limit=limit + 1, behind=low, before=high)
            ]
            yield Candidates(found[:limit], found[:limit], complete=len(found) <= limit)


def _position(after: str | None, descending: bool) -> tuple[int, str]:
    """Return the time and the id behind which a page begins."""
    if after is None:
        return (MAX_TIME, str(_LAST)) if descending else (-MAX_TIME, str(_FIRST))
    time, _, id = after.partition(".")
    try:
        at, run = int(time), UUID(id)
    except ValueError:
        raise ConfigError(f"after must be that of the previous page in the same order, not {after[:60]!r}") from None
    if abs(at) > MAX_TIME:
        raise ConfigError(f"after must be that of the previous page in the same order, not {after[:60]!r}")
    return at, str(run)
