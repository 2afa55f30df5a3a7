"""List runs that match a filter, newest first, a page at a time, in time that doesn't grow with the number of runs.

A page is made of *candidates*, ids from indexes, which are then filtered by primary key. Candidates come from two kinds
of sources:

- *Streams* yield ids in descending order: all runs; runs that ended unsuccessfully in one state; ended runs of a lane
  or a tenant; runs with a metadata value or a tag. A page reads at most `MAX_STREAM_CANDIDATES` of them. If that isn't
  enough, the page is partial and says where the next one continues. A *scan* is a stream that the database filters
  itself by the columns of its index: it returns few ids, so a page reads up to `MAX_SCANNED_RUNS` entries.
- *Heaps* have no order and are used only while they are small: unfinished runs by state; runs that ended within a time;
  runs with an idempotency key; children; a tree; runs given by id.

Where no index helps, a page scans up to `MAX_SCANNED_RUNS` of the newest runs.
`store/sorted_runs.py` lists runs in other orders.

An id starts with the time of its creation, so times bound ids.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from holdfast.database.faults import DataFault
from holdfast.model.clock import MICROS_PER_SECOND, time_to_micros
from holdfast.model.filters import RunFilter
from holdfast.model.metadata import INDEXED_CHARS, metadata_items
from holdfast.model.run import FINAL_STATES, GRAPH_QUEUE, RUN_STATES, RunState
from holdfast.model.text_search import TextSearch, like_pattern
from holdfast.store.enqueue import LaneStore
from holdfast.store.module import StoreContext, StoreModule, id_rows, json_rows
from holdfast.store.run_queries import RUN_ROWS, RunRow
from holdfast.store.text_check import TextCheck

MAX_STREAM_CANDIDATES = 4_000
MAX_STREAM_CANDIDATES_WITH_ERRORS = 1_500
"""The same if their errors must be read, which are long."""
FIRST_STREAM_CANDIDATES = 256
"""How many are read first, because they often suffice."""
MAX_HEAP_RUNS = 2_000
"""How many runs a small heap has."""
MAX_HEAP_RUNS_TOTAL = 4_000
"""How many runs several small heaps have together."""
MAX_LANE_STREAMS = 20
MAX_TAG_STREAMS = 20
MAX_TAG_LISTS = 500
"""How many different lists of tags are compared with a tag. With more of them, tags have no index."""
INDEXED_TAGS_CHARS = 200
"""How much of a list of tags the index of migration 42 has."""
MAX_SCANNED_RUNS = 20_000
SCAN_SIZES = (500, 1_500, 4_000)
"""How many runs are scanned at once: first a few, because they often suffice."""
FIRST_INDEX_SCAN = 2_000
"""How many entries of an index are scanned first."""
MAX_SCAN_S = 0.5
"""A scan ends after this time, between two portions: on a slow disk, it reads fewer runs."""
MIN_TEXT_PORTION = 250
MAX_CHECKED_RUNS = 1_000
"""How many runs that the database found by a text are checked for a page."""
PORTION_SIZES = (200, 1_000, 4_000)
"""How many candidates are filtered at once: first a few, because they often suffice."""
MAX_CLOCK_SKEW_US = 3600 * MICROS_PER_SECOND
"""How far the clocks of processes that create ids may be off."""

_FIRST, _LAST = UUID(int=0), UUID(int=2**128 - 1)
WAITING_GRAPHS = "some_waiting_graphs"
_HEAPS = {
    "ready": ("some_ready", "some_held"),
    "scheduled": ("some_scheduled",),
    "running": ("some_running", WAITING_GRAPHS),
    "waiting": ("some_suspended",),
    "blocked": ("some_suspended",),
    "undoing": ("some_ready", "some_held", "some_scheduled", "some_running", "some_suspended"),
}
_BY_LANE = {"some_ready": "some_ready_of_lane", "some_suspended": "some_suspended_of_lane"}
_FIELD_HEAPS = {
    "paused": "some_paused", "parent": "some_children", "family": "some_of_tree", "finished_from": "some_finished",
}  # fmt: skip
"""The heaps that have all runs which match a field of a filter."""
_UNSUCCESSFUL = FINAL_STATES - {"done"}
_UNFINISHED = ("ready", "scheduled", "running", "waiting", "blocked")
_STORED_STATES = {"running": ("running", "waiting"), "undoing": _UNFINISHED}
"""The stored states of runs that are shown in another one: graphs with running nodes, and runs that are undoing."""


class RunListPage(NamedTuple):
    """Rows of a page. `after`: where the next one continues, None behind the last. `partial`: it isn't full yet.

    `scanned`: how many runs were read to find them. Of a search for a text: `matches` has the fields that match, by
    run, and `hidden` says how many of the scanned runs have arguments that can't be searched.
    """

    rows: list[RunRow]
    after: str | None
    partial: bool
    scanned: int = 0
    hidden: int = 0
    matches: Mapping[str, tuple[str, ...]] = {}


class RunSelection(NamedTuple):
    """The newest runs that match a filter, and how many match: exactly, or at least so many."""

    newest: list[RunRow]
    matching: int
    exact: bool


class CandidateSource(NamedTuple):
    """A statement that yields candidates, and its values in addition to the filter.

    `scans`: it is a scan, which returns one row: the number of entries that it read, the lowest id, and a list of ids.
    """

    statement: str
    values: dict[str, Any] = {}  # noqa: RUF012 - never changed
    scans: bool = False


class CandidateSources(NamedTuple):
    """Where the candidates of a page come from. `all_match`: every run of the streams matches the filter."""

    streams: Sequence[CandidateSource]
    heaps: Sequence[CandidateSource] = ()
    all_match: bool = False


ALL_RUNS = CandidateSources([CandidateSource("newest_runs")])


class ScanPortion(NamedTuple):
    """Candidates from a part of a scan, and where the scan continues; None if it has read all runs."""

    ids: Sequence[str]
    scanned: int
    hidden: int
    end: str | None


class IdBounds(NamedTuple):
    """The range of ids to search, both ends excluded."""

    below: UUID
    above: UUID


class RunList(StoreModule):
    """Pages of runs."""

    def __init__(self, context: StoreContext, lanes: LaneStore) -> None:
        super().__init__(context)
        self._lanes = lanes

    def page(self, filters: RunFilter, size: int, after: str | None = None) -> RunListPage:
        """Return up to `size` runs that match, newest first, behind the end of the previous page."""
        bounds = bounds_of(filters, after)
        lanes = self.lanes_of(filters)
        if bounds.below <= bounds.above or (lanes is not None and not lanes):
            return RunListPage([], None, False)
        sources, heaped = self.choose(filters, lanes)
        if sources is ALL_RUNS:
            return self._scan(filters, lanes, bounds, size)
        candidates: list[str] = []
        rows: list[RunRow] = []
        check, end = self.text_check(filters), None
        for stream_size in _stream_sizes(filters, sources, size):
            check = self.text_check(filters)
            candidates, end = self._candidates(filters, sources, heaped, bounds, stream_size)
            rows, stopped = self.filter(filters, lanes, candidates, size + 1, check)
            end = stopped or end
            if len(rows) > size or end is None or stopped:
                break
        hidden = 0 if filters.search is None else self._count_hidden(candidates)
        more = len(candidates), hidden, check.matches
        if len(rows) > size:
            return RunListPage(rows[:size], rows[size - 1].id, False, *more)
        return RunListPage(rows, end, end is not None, *more)

    def select(self, filters: RunFilter, size: int, most: int) -> RunSelection:
        """Return the newest runs that match, and count up to `most` of those that match; reads a bounded number."""
        check = self.text_check(filters)
        if check.is_needed:  # What matches is decided by the displayed values.
            page = self.page(filters, MAX_CHECKED_RUNS)
            return RunSelection(page.rows[:size], len(page.rows), page.after is None)
        bounds, lanes = bounds_of(filters, None), self.lanes_of(filters)
        if bounds.below <= bounds.above or (lanes is not None and not lanes):
            return RunSelection([], 0, True)
        sources, heaped = self.choose(filters, lanes)
        candidates: list[str] = []
        end: str | None = None
        if sources is ALL_RUNS:
            for portion in self._scan_portions(filters, lanes, bounds):
                candidates, end = [*candidates, *portion.ids], portion.end
        else:
            stream_size = max(_stream_sizes(filters, sources, most))
            candidates, end = self._candidates(filters, sources, heaped, bounds, stream_size)
        if sources.all_match and not heaped:
            newest, _ = self.filter(filters, lanes, candidates[:size], size, check)
            return RunSelection(newest, min(len(candidates), most), end is None and len(candidates) <= most)
        checked = candidates[:MAX_STREAM_CANDIDATES]
        newest, _ = self.filter(filters, lanes, checked, size, check)
        count = self._count(filters, lanes, checked)
        return RunSelection(newest, count, end is None and len(checked) == len(candidates))

    def _count(self, filters: RunFilter, lanes: Sequence[int] | None, candidates: Sequence[str]) -> int:
        """Count the candidates that match. Runs whose tags or error the database can't parse don't."""
        values, count = self._values(filters, lanes), 0
        for portion in portions(candidates):
            try:
                count += self._execute("read", "count_matching_runs", rows=id_rows(portion), **values)[0][0]
            except DataFault:
                count += len(self._filter_portion(portion, len(portion), values))
        return count

    def _scan(self, filters: RunFilter, lanes: Sequence[int] | None, bounds: IdBounds, size: int) -> RunListPage:
        """Return a page from a bounded scan of the newest runs."""
        check = self.text_check(filters)
        rows: list[RunRow] = []
        scanned = hidden = 0
        end: str | None = None
        for portion in self._scan_portions(filters, lanes, bounds):
            scanned, hidden = scanned + portion.scanned, hidden + portion.hidden
            more, stopped = self.filter(filters, lanes, portion.ids, size + 1 - len(rows), check)
            rows += more
            if len(rows) > size:
                return RunListPage(rows[:size], rows[size - 1].id, False, scanned, hidden, check.matches)
            end = stopped or portion.end
            if stopped:
                break
        return RunListPage(rows, end, end is not None, scanned, hidden, check.matches)

    def _scan_portions(
        self, filters: RunFilter, lanes: Sequence[int] | None, bounds: IdBounds
    ) -> Iterator[ScanPortion]:
        """Scan the newest runs, until enough of them were read or may match."""
        values = scan_values(filters, lanes) | {"behind": str(bounds.above)}
        scanned = found = number = 0
        end: str | None = str(bounds.below)
        started = time.monotonic()
        while (
            end is not None
            and scanned < MAX_SCANNED_RUNS
            and found < MAX_STREAM_CANDIDATES
            and (not scanned or time.monotonic() - started < MAX_SCAN_S)
        ):
            limit = min(SCAN_SIZES[min(number, len(SCAN_SIZES) - 1)], MAX_SCANNED_RUNS - scanned)
            ((count, hidden, lowest, ids),) = self._execute("read", "scan_runs", limit=limit, before=end, **values)
            matching = sorted(msgspec.json.decode(ids or "[]"), reverse=True)
            end = lowest if count == limit else None
            scanned, found, number = scanned + count, found + len(matching), number + 1
            yield ScanPortion(matching, count, hidden, end)

    def text_check(self, filters: RunFilter) -> TextCheck:
        """Return the check of the rows of one page."""
        return TextCheck(self._autocommit("read"), filters.search, filters.error)

    def _count_hidden(self, ids: Sequence[str]) -> int:
        return int(self._execute("read", "count_hidden_args", rows=id_rows(ids))[0][0])

    def with_metadata_value(self, values: Sequence[str], size: int) -> list[str]:
        """Return the newest runs that have one of these values, as JSON text, in their metadata, whatever its name."""
        found = [
            str(run)
            for value in values
            for run, whole in self._execute("read", "some_with_metadata_value", limit=size, value=value[:INDEXED_CHARS])
            if whole == value
        ]
        return sorted(set(found), reverse=True)[:size]

    def _candidates(
        self, filters: RunFilter, sources: CandidateSources, heaped: set[str], bounds: IdBounds, stream_size: int
    ) -> tuple[list[str], str | None]:
        """Return candidates, newest first, and where the streams were cut off, None if they were read to the end."""
        streamed, bottom = self._read_streams(sources, bounds, filters.tenant, stream_size)
        lowest, highest = str(bottom or bounds.above), str(bounds.below)
        merged = {id for id in (*heaped, *streamed) if lowest < id < highest}
        end = None if bottom is None else str(UUID(int=bottom.int + 1))
        return sorted(merged, reverse=True), end

    def choose(self, filters: RunFilter, lanes: Sequence[int] | None) -> tuple[CandidateSources, set[str]]:
        """Return the first sources whose heaps are small, and the runs of these heaps."""
        if filters.ids:
            return CandidateSources(()), {str(id) for id in filters.ids}
        values = filter_values(filters)
        for sources in source_choices(filters, lanes, self._tag_lists(filters.tag)):
            heaped = self._read_heaps(sources, values)
            if heaped is not None:
                return sources, heaped
        return ALL_RUNS, set()

    def _tag_lists(self, tag: str | None) -> list[str] | None:
        """Return the lists of tags, as the index has them, that may contain a tag; None if there are too many."""
        if tag is None:
            return None
        found = [str(tags) for (tags,) in self._execute("read", "tag_lists", limit=MAX_TAG_LISTS + 1)]
        text = msgspec.json.encode(tag).decode()
        wanted = [tags for tags in found if text in tags or len(tags) >= INDEXED_TAGS_CHARS or "\\" in tags]
        return wanted if len(found) <= MAX_TAG_LISTS and len(wanted) <= MAX_TAG_STREAMS else None

    def lanes_of(self, filters: RunFilter) -> list[int] | None:
        """Return the lanes of the filter's queue, task and scope, None if it has neither."""
        if filters.task is None and filters.queue is None and not filters.scope.limits_lanes:
            return None
        return [
            id
            for id, (queue, task) in self._lanes.refresh().items()
            if filters.task in (None, task)
            and filters.queue in (None, queue)
            and filters.scope.covers_lane(queue, task)
        ]

    def _read_heaps(self, sources: CandidateSources, values: dict[str, Any]) -> set[str] | None:
        """Return all runs of the heaps, None if they aren't small."""
        found: set[str] = set()
        for statement, own, _ in sources.heaps:
            more = own | {"graph_lanes": self._graph_lanes()} if statement == WAITING_GRAPHS else own
            rows = self._execute("read", statement, limit=MAX_HEAP_RUNS + 1, **(values | more))
            if len(rows) > MAX_HEAP_RUNS:
                return None
            found.update(str(id) for (id,) in rows)
            if len(found) > MAX_HEAP_RUNS_TOTAL:
                return None
        return found

    def _graph_lanes(self) -> str:
        lanes = self._lanes.refresh().items()
        return json_rows({"lane": id} for id, (queue, _) in lanes if queue == GRAPH_QUEUE)

    def _read_streams(
        self, sources: CandidateSources, bounds: IdBounds, tenant: str | None, size: int
    ) -> tuple[list[str], UUID | None]:
        """Return the first ids of the streams, and the id above which these are complete."""
        found: list[str] = []
        bottom: UUID | None = None
        between = {"before": str(bounds.below), "behind": str(bounds.above), "tenant": tenant}
        for statement, own, scans in sources.streams:
            if scans:
                ((count, lowest, ids),) = self._execute("read", statement, limit=size, **(between | own))
                found += msgspec.json.decode(ids or "[]")
                if count == size:
                    below = UUID(int=UUID(lowest).int - 1)
                    bottom = below if bottom is None else max(bottom, below)
                continue
            rows = self._execute("read", statement, limit=size + 1, **(between | own))
            if len(rows) > size:
                last = UUID(str(rows.pop()[0]))
                bottom = last if bottom is None else max(bottom, last)
            found += [str(id) for (id,) in rows]
        return found, bottom

    def filter(
        self,
        filters: RunFilter,
        lanes: Sequence[int] | None,
        candidates: Sequence[str],
        wanted: int,
        check: TextCheck,
    ) -> tuple[list[RunRow], str | None]:
        """Return the first of the candidates that match, and where to continue if very many didn't contain the text."""
        values = self._values(filters, lanes)
        found: list[RunRow] = []
        for portion in portions(candidates):
            while portion:
                most = wanted - len(found)
                most = max(most, MIN_TEXT_PORTION) if check.is_needed else most
                rows = self._filter_portion(portion, most, values)
                found += check.accepted(rows)
                if len(found) >= wanted:
                    return found[:wanted], None
                if len(rows) < most:
                    break
                if check.count >= MAX_CHECKED_RUNS:
                    return found, rows[-1].id
                portion = portion[portion.index(rows[-1].id) + 1 :]
        return found, None

    def _values(self, filters: RunFilter, lanes: Sequence[int] | None) -> dict[str, Any]:
        """Return the values of the filter; its lanes only if a scope limits them, which names no task or queue."""
        return filter_values(filters) | {"lanes": _lane_rows(lanes) if filters.scope.limits_lanes else None}

    def _filter_portion(self, portion: Sequence[str], wanted: int, values: dict[str, Any]) -> list[RunRow]:
        """Return those of a portion that match. A run whose tags or error the database can't parse is skipped."""
        try:
            rows = self._execute("read", "filter_runs", rows=id_rows(portion), size=wanted, **values)
        except DataFault:
            if len(portion) == 1:
                return []
            half = len(portion) // 2
            found = self._filter_portion(portion[:half], wanted, values)
            if len(found) >= wanted:
                return found
            return found + self._filter_portion(portion[half:], wanted - len(found), values)
        return RUN_ROWS.read_all(rows)


def source_choices(
    filters: RunFilter, lanes: Sequence[int] | None, tag_lists: Sequence[str] | None = None
) -> Iterator[CandidateSources]:
    """Yield the sources that have all matching runs, the most selective first. The last resort is all runs."""
    yield from _by_value(filters)
    with_tag = [CandidateSource("newest_with_tags", {"tags": tags}) for tags in tag_lists or ()]
    if tag_lists is not None:
        whole = {"before": str(_LAST), "behind": str(_FIRST)}
        yield CandidateSources((), [source._replace(values=source.values | whole) for source in with_tag])
    for field, heap in _FIELD_HEAPS.items():
        if getattr(filters, field) is not None:
            yield CandidateSources((), [CandidateSource(heap)])
    states = states_of(filters)
    heaps = list(dict.fromkeys(heap for state in states for heap in _HEAPS.get(state, ())))
    if "some_suspended" in heaps:  # which has the graphs, too
        heaps = [heap for heap in heaps if heap != WAITING_GRAPHS]
    unfinished = [CandidateSource(heap) for heap in heaps]
    rest = filters.given() - {"id_prefix"}
    if "done" not in states:
        ended = sorted(_UNSUCCESSFUL.intersection(states))
        own = {"lanes": _lane_rows(lanes), "tenant": filters.tenant}
        streams = [CandidateSource("scan_unsuccessful", {"state": state, **own}, scans=True) for state in ended]
        indexed = {"states", "task", "queue", "tenant", "scope"}
        yield CandidateSources(streams, unfinished, "states" in rest and rest <= indexed)
    if tag_lists is not None:
        yield CandidateSources(with_tag)
    if filters.tenant is not None:
        yield CandidateSources([CandidateSource("newest_of_tenant")], unfinished, rest == {"tenant"})
    if lanes is not None and len(lanes) <= MAX_LANE_STREAMS:
        streams = [CandidateSource("newest_of_lane", {"lane": lane}) for lane in lanes]
        of_lanes = [
            CandidateSource(_BY_LANE[heap], {"lane": lane}) for heap in heaps if heap in _BY_LANE for lane in lanes
        ]
        others = [CandidateSource(heap) for heap in heaps if heap not in _BY_LANE]
        yield CandidateSources(streams, of_lanes + others, rest <= {"task", "queue"})
    if not rest:
        yield ALL_RUNS._replace(all_match=True)


def _by_value(filters: RunFilter) -> Iterator[CandidateSources]:
    """Yield the sources for what applications attach to runs to find them by."""
    if filters.key is not None:
        yield CandidateSources((), [CandidateSource("some_with_key")])
    if filters.metadata is not None:
        name, value = next(metadata_items(filters.metadata))
        term = f"{name} {value[:INDEXED_CHARS]}"
        yield CandidateSources([CandidateSource("newest_with_metadata", {"term": term})])


def states_of(filters: RunFilter) -> Sequence[RunState]:
    """Return the states that matching runs can have: done runs have no error, unfinished ones no end."""
    ended = filters.finished_from is not None or filters.finished_to is not None
    return [
        state
        for state in filters.states or RUN_STATES
        if not (state == "done" and filters.error is not None) and (state in FINAL_STATES or not ended)
    ]


def bounds_of(filters: RunFilter, after: str | None) -> IdBounds:
    """Return the ids between which matching runs are. No run ends before it was created."""
    below, above = [_LAST if after is None else UUID(after)], [0]
    if filters.id_prefix is not None:
        low, high = (int(filters.id_prefix.ljust(32, filler), 16) for filler in "0f")
        below.append(UUID(int=min(high + 1, _LAST.int)))
        above.append(max(low - 1, 0))
    below += [_id_at(time, MAX_CLOCK_SKEW_US) for time in (filters.created_to, filters.finished_to) if time is not None]
    if filters.created_from is not None:
        above.append(_id_at(filters.created_from, -MAX_CLOCK_SKEW_US).int)
    return IdBounds(min(below), UUID(int=max(above)))


def filter_values(filters: RunFilter) -> dict[str, Any]:
    """Return the filter as the values of `filter_runs`."""
    text = None if filters.search is None else TextSearch(filters.search)
    return {
        "states": msgspec.json.encode(filters.states).decode() if filters.states else None,
        "task": filters.task,
        "queue": filters.queue,
        "tenant": filters.tenant,
        "tag": filters.tag,
        "created_from": _micros(filters.created_from),
        "created_to": _micros(filters.created_to),
        "finished_from": _micros(filters.finished_from),
        "finished_to": _micros(filters.finished_to),
        "error": None if filters.error is None else like_pattern(filters.error),
        "key": filters.key,
        "metadata": None if filters.metadata is None else _metadata_rows(filters.metadata),
        "parent": None if filters.parent is None else str(filters.parent),
        "family": None if filters.family is None else str(filters.family),
        "paused": 1 if filters.paused else None,
        "top_level": 1 if filters.top_level else None,
        "search": None if text is None else text.pattern,
        "named": None if text is None else text.named_pattern,
        "lanes": None,
    }


def scan_values(filters: RunFilter, lanes: Sequence[int] | None) -> dict[str, Any]:
    """Return what a scan can tell of the filter by the stored columns of a run."""
    values = filter_values(filters)
    shown = filters.states or ()
    stored = sorted({state for each in shown for state in _STORED_STATES.get(each, (each,))})
    columns = ("tenant", "error", "top_level", "finished_from", "finished_to", "search", "named")
    return {name: values[name] for name in columns} | {
        "lanes": _lane_rows(lanes),
        "stored_states": msgspec.json.encode(stored).decode() if shown else None,
        "tag_text": None if filters.tag is None else like_pattern(msgspec.json.encode(filters.tag).decode()[1:-1]),
    }


def _lane_rows(lanes: Sequence[int] | None) -> str | None:
    return None if lanes is None else json_rows(map(str, lanes))


def portions(candidates: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield the candidates in growing portions."""
    at = number = 0
    while at < len(candidates):
        size = PORTION_SIZES[min(number, len(PORTION_SIZES) - 1)]
        yield candidates[at : at + size]
        at, number = at + size, number + 1


def _stream_sizes(filters: RunFilter, sources: CandidateSources, size: int) -> Sequence[int]:
    """Return how many candidates of each stream are read: first a few, then the maximum."""
    scans = any(source.scans for source in sources.streams)
    if sources.all_match and not (scans and filters.given() != {"states"}):
        # In a few sizes only, because each is a prepared statement of its own.
        return [next((few for few in (16, 128, 1024) if size + 1 <= few), size + 1)]
    if sources.all_match:
        return [max(total // len(sources.streams), 1) for total in (FIRST_INDEX_SCAN, MAX_SCANNED_RUNS)]
    most = MAX_STREAM_CANDIDATES
    if filters.error is not None or (filters.search is not None and "done" not in states_of(filters)):
        most = min(most, MAX_STREAM_CANDIDATES_WITH_ERRORS)
    return [max(total // max(len(sources.streams), 1), 1) for total in (min(FIRST_STREAM_CANDIDATES, most), most)]


def _metadata_rows(metadata: str) -> str:
    return json_rows({"name": name, "value": value} for name, value in metadata_items(metadata))


def _micros(time: datetime | None) -> int | None:
    return None if time is None else time_to_micros(time)


def _id_at(time: datetime, shift_us: int) -> UUID:
    """Return the lowest id that could be created `shift_us` after that time."""
    return UUID(int=max((time_to_micros(time) + shift_us) // 1000, 0) << 80)
