"""Runs that fit a filter, newest first, a page at a time, in time that doesn't grow with the number of runs.

A page is made of *candidates*, ids that come out of indexes, which are then looked at by key. Candidates come from
streams, which are in the order of ids (all runs; those that ended in one bad way; ended ones of a lane, of a tenant),
and from heaps, which have no order, but are used only while they are small (unfinished runs by state; those that ended
within a time; children; a family). No page looks at more than `WALK` candidates of streams: where it comes to that, it
is partial and says where the next one goes on. An id begins with the time at which it was made, so that times bound it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from holdfast.database.faults import DataFault
from holdfast.model.clock import MICROS_PER_SECOND, time_to_micros
from holdfast.model.filters import RunFilter
from holdfast.model.run import FINAL_STATES, RUN_STATES, RunState
from holdfast.store.family import ids
from holdfast.store.lanes import Lanes
from holdfast.store.part import Ground, Part
from holdfast.store.views import RunRow

WALK = 4_000
"""How many candidates of its streams a page looks at,"""
WALK_ERRORS = 1_500
"""where their errors must be read, which are long,"""
FIRST = 256
"""and how many at first, because they may do."""
FEW = 2_000
"""A heap is small while it has no more,"""
FEW_TOGETHER = 4_000
"""and several of them while they have no more together."""
MOST_LANES = 20
"""How many streams a page may be made of."""
PORTIONS = (200, 1_000, 4_000)
"""How many candidates are looked at at once: first a few, because they may do."""
SKEW = 3600 * MICROS_PER_SECOND
"""By how much the clocks of those who make ids may be off."""

_LAST = UUID(int=2**128 - 1)
_HEAPS = {
    "ready": ("some_ready", "some_held"),
    "scheduled": ("some_scheduled",),
    "running": ("some_running", "some_asleep"),
    "waiting": ("some_asleep",),
    "blocked": ("some_asleep",),
    "undoing": ("some_ready", "some_held", "some_scheduled", "some_running", "some_asleep"),
}
_BY_LANE = {"some_ready": "some_ready_of_lane", "some_asleep": "some_asleep_of_lane"}
_UNWELL = FINAL_STATES - {"done"}


class Listed(NamedTuple):
    """Rows of a page; where the next one goes on, None behind the last; whether very many others were passed over."""

    rows: list[RunRow]
    after: str | None
    partial: bool


class Source(NamedTuple):
    """A statement that gives candidates, and what it is asked with beyond the filter."""

    statement: str
    values: dict[str, Any] = {}  # noqa: RUF012 - nobody changes it


class Sources(NamedTuple):
    """Where the candidates of a page come from. `sure`: those of the streams all fit."""

    streams: Sequence[Source]
    heaps: Sequence[Source] = ()
    sure: bool = False


EVERYTHING = Sources([Source("newest_runs")])


class Bounds(NamedTuple):
    """Between which ids to look, both excluded."""

    before: UUID
    behind: UUID


class Listing(Part):
    """Pages of runs."""

    def __init__(self, ground: Ground, lanes: Lanes) -> None:
        super().__init__(ground)
        self._lanes = lanes

    def page(self, asked: RunFilter, size: int, after: str | None = None) -> Listed:
        """At most so many runs that fit, newest first, behind the end of the page before."""
        bounds = bounds_of(asked, after)
        lanes = self._lanes_of(asked)
        if bounds.before <= bounds.behind or (lanes is not None and not lanes):
            return Listed([], None, False)
        sources, heaped = self._choose(asked, lanes)
        rows: list[RunRow] = []
        end: str | None = None
        for walk in _walks(asked, sources, size):
            candidates, end = self._candidates(asked, sources, heaped, bounds, walk)
            rows = self._fitting(asked, candidates, size + 1)
            if len(rows) > size:
                return Listed(rows[:size], rows[size - 1].id, False)
            if end is None:
                break
        return Listed(rows, end, end is not None)

    def _candidates(
        self, asked: RunFilter, sources: Sources, heaped: set[str], bounds: Bounds, walk: int
    ) -> tuple[list[str], str | None]:
        """Ids of runs that may fit, newest first, and where the walk ended, if it did before the last."""
        streamed, bottom = self._streams(sources, bounds, asked.tenant, walk)
        lowest, highest = str(bottom or bounds.behind), str(bounds.before)
        merged = {id for id in (*heaped, *streamed) if lowest < id < highest}
        end = None if bottom is None else str(UUID(int=bottom.int + 1))
        return sorted(merged, reverse=True), end

    def _choose(self, asked: RunFilter, lanes: Sequence[int] | None) -> tuple[Sources, set[str]]:
        """The first place whose heaps are small, and what they have."""
        values = filter_values(asked)
        for sources in choices(asked, lanes):
            heaped = self._heaps(sources, values)
            if heaped is not None:
                return sources, heaped
        return EVERYTHING, set()

    def _lanes_of(self, asked: RunFilter) -> list[int] | None:
        """The lanes of the queue and the task; None when neither is asked for."""
        if asked.task is None and asked.queue is None:
            return None
        return [
            id
            for id, (queue, task) in self._lanes.refresh().items()
            if asked.task in (None, task) and asked.queue in (None, queue)
        ]

    def _heaps(self, sources: Sources, values: dict[str, Any]) -> set[str] | None:
        """All of the heaps; None when one of them isn't small."""
        found: set[str] = set()
        for statement, own in sources.heaps:
            rows = self._one("read", statement, limit=FEW + 1, **(values | own))
            if len(rows) > FEW:
                return None
            found.update(str(id) for (id,) in rows)
            if len(found) > FEW_TOGETHER:
                return None
        return found

    def _streams(
        self, sources: Sources, bounds: Bounds, tenant: str | None, most: int
    ) -> tuple[list[str], UUID | None]:
        """The first ids of the streams, and the id above which all that they have is among them."""
        found: list[str] = []
        bottom: UUID | None = None
        between = {"before": str(bounds.before), "behind": str(bounds.behind), "tenant": tenant}
        for statement, own in sources.streams:
            rows = self._one("read", statement, limit=most + 1, **(between | own))
            if len(rows) > most:
                last = UUID(str(rows.pop()[0]))
                bottom = last if bottom is None else max(bottom, last)
            found += [str(id) for (id,) in rows]
        return found, bottom

    def _fitting(self, asked: RunFilter, candidates: Sequence[str], wanted: int) -> list[RunRow]:
        """The first of the candidates that fit."""
        values = filter_values(asked)
        found: list[RunRow] = []
        for portion in portions(candidates):
            found += self._fitting_portion(portion, wanted - len(found), values)
            if len(found) >= wanted:
                break
        return found

    def _fitting_portion(self, portion: Sequence[str], wanted: int, values: dict[str, Any]) -> list[RunRow]:
        """Those of a portion that fit. A run whose tags or error the database can't read is passed over."""
        try:
            rows = self._one("read", "fitting_runs", rows=ids(portion), size=wanted, **values)
        except DataFault:
            if len(portion) == 1:
                return []
            half = len(portion) // 2
            found = self._fitting_portion(portion[:half], wanted, values)
            if len(found) >= wanted:
                return found
            return found + self._fitting_portion(portion[half:], wanted - len(found), values)
        return [RunRow._make(row) for row in rows]


def choices(asked: RunFilter, lanes: Sequence[int] | None) -> Iterator[Sources]:
    """Where the runs may be looked for, the best place first. The last resort is all runs."""
    if asked.parent is not None:
        yield Sources((), [Source("some_children")])
    if asked.family is not None:
        yield Sources((), [Source("some_of_family")])
    if asked.finished_from is not None:
        yield Sources((), [Source("some_finished")])
    states = states_of(asked)
    heaps = list(dict.fromkeys(heap for state in states for heap in _HEAPS.get(state, ())))
    unfinished = [Source(heap) for heap in heaps]
    rest = asked.given() - {"id_prefix"}
    if "done" not in states:
        bad = [Source("newest_unwell", {"state": state}) for state in sorted(_UNWELL.intersection(states))]
        yield Sources(bad, unfinished, rest == {"states"})
    if asked.tenant is not None:
        yield Sources([Source("newest_of_tenant")], unfinished, rest == {"tenant"})
    if lanes is not None and len(lanes) <= MOST_LANES:
        streams = [Source("newest_of_lane", {"lane": lane}) for lane in lanes]
        of_lanes = [Source(_BY_LANE[heap], {"lane": lane}) for heap in heaps if heap in _BY_LANE for lane in lanes]
        others = [Source(heap) for heap in heaps if heap not in _BY_LANE]
        yield Sources(streams, of_lanes + others, rest <= {"task", "queue"})
    if not rest:
        yield EVERYTHING._replace(sure=True)


def states_of(asked: RunFilter) -> Sequence[RunState]:
    """In which states runs that fit can be. None that is done has an error, and none that isn't ended has an end."""
    ended = asked.finished_from is not None or asked.finished_to is not None
    return [
        state
        for state in asked.states or RUN_STATES
        if not (state == "done" and asked.error is not None) and (state in FINAL_STATES or not ended)
    ]


def bounds_of(asked: RunFilter, after: str | None) -> Bounds:
    """Between which ids the runs are, as far as that can be known. None has ended before it was made."""
    before, behind = [_LAST if after is None else UUID(after)], [0]
    if asked.id_prefix is not None:
        low, high = (int(asked.id_prefix.ljust(32, filler), 16) for filler in "0f")
        before.append(UUID(int=min(high + 1, _LAST.int)))
        behind.append(max(low - 1, 0))
    before += [_id_at(time, SKEW) for time in (asked.created_to, asked.finished_to) if time is not None]
    if asked.created_from is not None:
        behind.append(_id_at(asked.created_from, -SKEW).int)
    return Bounds(min(before), UUID(int=max(behind)))


def filter_values(asked: RunFilter) -> dict[str, Any]:
    """The filter as the parameters of `fitting_runs`."""
    return {
        "states": msgspec.json.encode(asked.states).decode() if asked.states else None,
        "task": asked.task,
        "queue": asked.queue,
        "tenant": asked.tenant,
        "tag": asked.tag,
        "created_from": _micros(asked.created_from),
        "created_to": _micros(asked.created_to),
        "finished_from": _micros(asked.finished_from),
        "finished_to": _micros(asked.finished_to),
        "error": None if asked.error is None else _pattern(asked.error),
        "parent": None if asked.parent is None else str(asked.parent),
        "family": None if asked.family is None else str(asked.family),
    }


def portions(candidates: Sequence[str]) -> Iterator[Sequence[str]]:
    """The candidates in portions that grow."""
    at = number = 0
    while at < len(candidates):
        size = PORTIONS[min(number, len(PORTIONS) - 1)]
        yield candidates[at : at + size]
        at, number = at + size, number + 1


def _walks(asked: RunFilter, sources: Sources, size: int) -> Sequence[int]:
    """How many candidates of each stream are looked at, first and then at most."""
    if sources.sure:
        return [_size(size + 1)]
    most = WALK if asked.error is None else min(WALK, WALK_ERRORS)
    return [max(walk // max(len(sources.streams), 1), 1) for walk in (min(FIRST, most), most)]


def _size(wanted: int) -> int:
    """In a few sizes only, because each is a statement of its own."""
    return next((size for size in (16, 128, 1024) if wanted <= size), wanted)


def _micros(time: datetime | None) -> int | None:
    return None if time is None else time_to_micros(time)


def _id_at(time: datetime, shift: int) -> UUID:
    """The lowest id that could be made so long after that time."""
    return UUID(int=max((time_to_micros(time) + shift) // 1000, 0) << 80)


def _pattern(text: str) -> str:
    """For LIKE, of a text as it stands in an error."""
    return "%" + "".join("!" + c if c in "!%_" else c for c in text) + "%"
