"""Statistics of finished runs: how many, how long they waited and ran, by minute and by hour.

Each minute is aggregated once, by the index of ends, some time after its end, so that late commits are included. An
hour is aggregated from its minutes. Workers that aggregate the same span write the same rows; the first ones stay.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from holdfast.database import Row
from holdfast.model.clock import MICROS_PER_SECOND
from holdfast.policy.histogram import Histogram, merge_histograms
from holdfast.store.module import StoreModule, in_chunks, json_rows

MINUTE_US = 60 * MICROS_PER_SECOND
HOUR_US = 60 * MINUTE_US
SETTLE_DELAY_US = MINUTE_US
"""How long after its end a minute is aggregated. No statement of Holdfast takes longer to commit."""
MAX_CATCH_UP_US = HOUR_US
"""How far back minutes are aggregated that were missed."""
MAX_MINUTES_PER_PASS = 5
"""After a pause there may be very many runs to catch up with."""
MAX_LAST_ENDS = 20_000
"""How many ends of the latest minutes are aggregated for one view: those of some seconds under the highest load."""
MAX_TENANT_ENDS = 10_000
"""How many of the newest ended runs of a tenant are aggregated for one view: each is read from the table."""
LOST_WORKERS_SPAN = 0
"""The span of rows that don't count runs of a time, but name lost workers."""
RETENTION_US = {MINUTE_US: 72 * HOUR_US, HOUR_US: 90 * 24 * HOUR_US, LOST_WORKERS_SPAN: 7 * 24 * HOUR_US}


_FIRST, _LAST = UUID(int=0), UUID(int=2**128 - 1)
_decode_histogram = msgspec.json.Decoder(list[tuple[int, int]]).decode


class StatsBucket(NamedTuple):
    """Runs of a lane that ended in one state within the span that starts at `at`."""

    at: int
    lane: int
    state: str
    runs: int
    waits: Histogram
    takes: Histogram


class StatsStore(StoreModule):
    """Aggregated statistics."""

    def aggregate(self) -> int:
        """Aggregate the next minutes that have passed, and hours that are complete; return how many minutes."""
        now = self.now("poll")
        settled = (now - SETTLE_DELAY_US) // MINUTE_US * MINUTE_US
        since = max(self._next("poll", MINUTE_US), settled - MAX_CATCH_UP_US)
        until = min(settled, since + MAX_MINUTES_PER_PASS * MINUTE_US)
        if since >= until:
            return 0
        self._add(MINUTE_US, self.live(since, until, "stats"))
        self._add(MINUTE_US, [_empty_bucket(until - MINUTE_US)])
        self._aggregate_hours(until)
        for span, age in RETENTION_US.items():
            self._execute("housekeeping", "prune_stats", span=span, age=age)
        return (until - since) // MINUTE_US

    def _aggregate_hours(self, until: int) -> None:
        """Aggregate hours whose minutes are all aggregated."""
        end = until // HOUR_US * HOUR_US
        since = max(self._next("housekeeping", HOUR_US), end - RETENTION_US[MINUTE_US]) // HOUR_US * HOUR_US
        if since >= end:
            return
        hours: dict[int, list[StatsBucket]] = {}
        for minute in self.read(MINUTE_US, since, end, "housekeeping"):
            hours.setdefault(minute.at // HOUR_US * HOUR_US, []).append(minute)
        self._add(HOUR_US, [bucket for at, minutes in hours.items() for bucket in merge_buckets(at, minutes)])
        self._add(HOUR_US, [_empty_bucket(end - HOUR_US)])

    def _next(self, purpose: str, span: int) -> int:
        """Return where the first span starts that isn't aggregated."""
        ((last,),) = self._execute(purpose, "last_stats", span=span)
        return last + span if isinstance(last, int) else 0

    def aggregated_until(self, span: int) -> int:
        """Return up to which time all spans are aggregated."""
        return self._next("read", span)

    def now(self, purpose: str = "read") -> int:
        """Return the database time."""
        return int(self._execute(purpose, "read_clock")[0][0])

    def live(self, since: int, until: int, purpose: str = "read") -> list[StatsBucket]:
        """Aggregate minutes now, from the runs themselves."""
        return _minutes(self._execute(purpose, "aggregate_ended", span=MINUTE_US, since=since, until=until))

    def last_ends(self, since: int, until: int) -> tuple[list[StatsBucket], bool]:
        """Aggregate minutes now, from the runs that ended last; return whether there were more than are read."""
        values = {"span": MINUTE_US, "since": since, "until": until}
        found = _minutes(self._execute("read", "aggregate_last_ended", limit=MAX_LAST_ENDS, **values))
        return found, sum(bucket.runs for bucket in found) >= MAX_LAST_ENDS

    def ends_of_tenant(self, tenant: str, since: int, span: int) -> tuple[list[StatsBucket], int | None]:
        """Aggregate the newest runs of a tenant that ended since a time.

        Return also since when the runs were created that are read, if there may be older ones; None if all are.
        """
        values = {"span": span, "since": since, "tenant": tenant, "before": str(_LAST), "behind": str(_FIRST)}
        rows = self._execute("read", "aggregate_ends_of_tenant", limit=MAX_TENANT_ENDS, **values)
        counted = sum(row[5] for row in rows)
        oldest = min((row[6] for row in rows if isinstance(row[6], int)), default=since)
        found = [bucket for bucket in _minutes(row[:6] for row in rows) if bucket.at >= since]
        return found, oldest if counted >= MAX_TENANT_ENDS else None

    def read(
        self, span: int, since: int, until: int, purpose: str = "read", lanes: Iterable[int] | None = None
    ) -> list[StatsBucket]:
        """Return the aggregated spans that start within that time; with `lanes`, only those of these lanes."""
        if lanes is None:
            rows = self._execute(purpose, "read_stats", span=span, since=since, until=until)
        else:
            given = json_rows([{"lane": lane} for lane in lanes])
            rows = self._execute(purpose, "read_stats_of_lanes", span=span, since=since, until=until, rows=given)
        return [bucket for row in rows if row[1] and (bucket := _bucket(row)) is not None]

    def _add(self, span: int, buckets: Iterable[StatsBucket]) -> None:
        rows: list[dict[str, Any]] = [
            {
                "span": span, "at": bucket.at, "lane": bucket.lane, "state": bucket.state, "runs": bucket.runs,
                "waits": _encode(bucket.waits), "takes": _encode(bucket.takes),
            }
            for bucket in buckets
        ]  # fmt: skip
        for chunk in in_chunks(rows):
            self._execute("housekeeping", "add_stats", rows=json_rows(chunk))


def _minutes(rows: Iterable[Row]) -> list[StatsBucket]:
    """Return the buckets of minutes from counts by bucket of wait and duration."""
    found: dict[tuple[int, int, str], tuple[list[int], Histogram, Histogram]] = {}
    for at, lane, state, waited, took, runs in rows:
        if not (isinstance(at, int) and isinstance(lane, int)):
            continue  # of a corrupt row
        key = (at, lane, state)
        counted = found.get(key)
        if counted is None:
            counted = found[key] = ([], {}, {})
        counts, waits, takes = counted
        counts.append(runs)
        if waited is not None:
            waits[waited] = waits.get(waited, 0) + runs
        if took is not None:
            takes[took] = takes.get(took, 0) + runs
    return [StatsBucket(*key, sum(counts), waits, takes) for key, (counts, waits, takes) in found.items()]


def _empty_bucket(at: int) -> StatsBucket:
    """Return a bucket, with a lane that doesn't exist, that marks a span without runs as aggregated."""
    return StatsBucket(at, 0, "done", 0, {}, {})


def merge_buckets(at: int, buckets: Sequence[StatsBucket]) -> list[StatsBucket]:
    """Merge buckets of the same lane and state into one that starts at `at`."""
    groups: dict[tuple[int, str], list[StatsBucket]] = {}
    for bucket in buckets:
        groups.setdefault((bucket.lane, bucket.state), []).append(bucket)
    return [
        StatsBucket(
            at, lane, state, sum(each.runs for each in group),
            merge_histograms(each.waits for each in group), merge_histograms(each.takes for each in group),
        )
        for (lane, state), group in groups.items()
    ]  # fmt: skip


def _encode(histogram: Histogram) -> str:
    return msgspec.json.encode(sorted(histogram.items())).decode()


def _bucket(row: Row) -> StatsBucket | None:
    """Decode a row: a corrupt histogram counts as empty; a row with a corrupt number counts as none."""
    at, lane, state, runs, waits, takes = row
    if not (isinstance(at, int) and isinstance(lane, int) and isinstance(runs, int)):
        return None
    return StatsBucket(at, lane, str(state), runs, _histogram(waits), _histogram(takes))


def _histogram(text: str) -> Histogram:
    try:
        return dict(_decode_histogram(text))
    except (msgspec.MsgspecError, TypeError):
        return {}
