"""Counts of runs, and statistics: throughput, failure rate, wait and run times, by task or queue and interval."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar, cast

import msgspec

from holdfast.errors import ConfigError
from holdfast.model.clock import MICROS_PER_SECOND, Duration, to_datetime, to_micros
from holdfast.model.run import GRAPH_QUEUE
from holdfast.policy.histogram import Histogram, merge_histograms, percentile
from holdfast.store import Store
from holdfast.store.admin import LaneCounts
from holdfast.store.stats import HOUR_US, MINUTE_US, StatsBucket, merge_buckets

T = TypeVar("T")
GroupBy: TypeAlias = Literal["all", "task", "queue"]
Interval: TypeAlias = Literal["minute", "hour"]

INTERVALS_US: dict[Interval, int] = {"minute": MINUTE_US, "hour": HOUR_US}
MAX_INTERVAL_COUNT = 1500
MAX_PERIOD_COUNT = 16
"""How many periods keep their aggregates in memory: by lane and state, so that they are small."""
LIVE_WINDOW_US = 10 * MINUTE_US
"""Minutes that no worker has aggregated yet are aggregated on request, this far back."""


class Estimate(msgspec.Struct, frozen=True):
    """A count. An inexact one is a lower bound, or comes from the database's statistics."""

    value: int
    exact: bool = True


class Counts(msgspec.Struct, frozen=True):
    """Counts of runs. Large totals and counts of done runs are estimates."""

    total: Estimate
    states: dict[str, Estimate] = msgspec.field(default_factory=dict)
    """Runs by stored state: a run that is undoing counts as ready, running or waiting."""
    queues: dict[str, dict[str, Estimate]] = msgspec.field(default_factory=dict)
    """Unfinished runs by queue and state."""
    tasks: dict[str, dict[str, Estimate]] = msgspec.field(default_factory=dict)
    """Unfinished runs by task and state."""


class CountControl:
    """Counts runs while reading a bounded number of rows."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def by_lane(self) -> dict[str, LaneCounts]:
        """Count unfinished runs by stored state and by lane, for views and checks that share one count."""
        return self._store.counts.unfinished()

    def overview(self, by_lane: Mapping[str, LaneCounts] | None = None) -> Counts:
        """Count all runs by state, and the unfinished ones by queue and task."""
        lanes = self._store.lanes.refresh()
        total = self._store.counts.total()
        states: dict[str, Estimate] = {}
        queues: dict[str, dict[str, Estimate]] = {}
        tasks: dict[str, dict[str, Estimate]] = {}
        for state, counted in (self.by_lane() if by_lane is None else by_lane).items():
            states[state] = Estimate(sum(counted.by_lane.values()), counted.exact)
            for lane, runs in counted.by_lane.items():
                queue, task = lanes.get(lane, ("", ""))
                if queue != GRAPH_QUEUE:
                    _add(queues, queue, state, runs, counted.exact)
                    _add(tasks, task, state, runs, counted.exact)
        for state, (runs, exact) in self._store.counts.unsuccessful().items():
            states[state] = Estimate(runs, exact)
        known = sum(count.value for count in states.values())
        exact = total.exact and all(count.exact for count in states.values())
        states["done"] = Estimate(max(total.runs - known, 0), exact)
        return Counts(Estimate(max(total.runs, known), total.exact), states, queues, tasks)

    def unfinished(
        self, *, queue: str | None = None, task: str | None = None
    ) -> dict[tuple[str, str], dict[str, Estimate]]:
        """Count unfinished runs by queue, task and state."""
        lanes = self._store.lanes.refresh()
        found: dict[tuple[str, str], dict[str, Estimate]] = {}
        for state, counted in self._store.counts.unfinished().items():
            for lane, runs in counted.by_lane.items():
                named = lanes.get(lane, ("", ""))
                if named[0] != GRAPH_QUEUE and queue in (None, named[0]) and task in (None, named[1]):
                    found.setdefault(named, {})[state] = Estimate(runs, counted.exact)
        return found


def _add(into: dict[str, dict[str, Estimate]], name: str, state: str, runs: int, exact: bool) -> None:
    by_state = into.setdefault(name, {})
    before = by_state.get(state, Estimate(0))
    by_state[state] = Estimate(before.value + runs, before.exact and exact)


def sum_counts(some: Iterable[Mapping[str, Estimate]]) -> dict[str, Estimate]:
    """Add up counts by state."""
    found: dict[str, Estimate] = {}
    for states in some:
        for state, count in states.items():
            before = found.get(state, Estimate(0))
            found[state] = Estimate(before.value + count.value, before.exact and count.exact)
    return found


class Percentiles(msgspec.Struct, frozen=True):
    """Percentiles of durations in seconds, accurate to about 10%; None without measurements."""

    p50: float | None
    p95: float | None
    p99: float | None


class Stats(msgspec.Struct, frozen=True):
    """Runs that finished within a period. `name` is the task or queue; None for all."""

    name: str | None
    since: datetime
    seconds: float
    runs: int
    failed: int
    cancelled: int
    wait: Percentiles
    """How long runs were ready before a worker claimed them, without delays and dependencies. Counts the last start."""
    run: Percentiles
    """From first start to finish, including retries and waits."""
    partial: bool = False
    """Whether there are more: until workers have aggregated the latest minutes, at most 20,000 of their runs count. Of
    a tenant, the newest 10,000 do."""

    @property
    def throughput(self) -> float:
        """Runs per second."""
        return self.runs / self.seconds if self.seconds else 0.0

    @property
    def failure_rate(self) -> float:
        """The share of failed runs, from 0 to 1."""
        return self.failed / self.runs if self.runs else 0.0


class RecentStats(msgspec.Struct, frozen=True):
    """Statistics of a recent period: as a whole, by minute, by queue and by task."""

    whole: Stats
    minutes: list[Stats]
    queues: list[Stats]
    tasks: list[Stats]


class StatsSeries(msgspec.Struct, frozen=True):
    """Statistics of a period: as a whole, and all its intervals, oldest first."""

    whole: Stats
    intervals: list[Stats]
    created_since: datetime | None = None
    """Of a tenant with very many runs, only those that were created since then are counted; None if all are."""


class StatsTrend(msgspec.Struct, frozen=True):
    """Statistics of a task or queue in a period and in the one before, which is as long."""

    name: str
    now: Stats
    before: Stats

    @property
    def slowdown(self) -> float | None:
        """By which factor the p95 of durations has grown; None if one of the periods has none."""
        now, before = self.now.run.p95, self.before.run.p95
        return None if now is None or not before else now / before


class _Buckets(NamedTuple):
    """Aggregates. `partial_from`: from this time on, only the runs that ended last are counted; None if all are."""

    found: list[StatsBucket]
    partial_from: int | None = None


class _AggregatedPeriod(NamedTuple):
    """Aggregated minutes of a period, which no longer change: by lane and state, and by minute."""

    since: int
    until: int
    whole: list[StatsBucket]
    minutes: list[Stats]


class StatsControl:
    """Statistics from aggregates that workers maintain; the latest minutes are aggregated on request, up to a bound."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._past = _AggregatedPeriod(0, 0, [], [])
        self._hourly: dict[tuple[object, ...], tuple[int, Any]] = {}
        """Views of periods counted in hours, with the minute in which they were read."""
        self._periods: dict[tuple[int, ...], list[StatsBucket]] = {}
        """Aggregates of periods as a whole. They are read once, because aggregated minutes never change."""

    def over_time(
        self,
        *,
        last: Duration = timedelta(hours=1),
        span: Interval = "minute",
        by: GroupBy = "all",
        name: str | None = None,
    ) -> list[Stats]:
        """Return one entry per interval and task or queue, oldest first; with `name`, only that task or queue.

        With `by="all"`, intervals without finished runs are included.
        """
        size = INTERVALS_US[span]
        since, until = self._window(last, size)
        return self._spans(self._buckets(since, until, size), since, until, size, by, name)

    def summary(
        self, *, last: Duration = timedelta(hours=1), by: GroupBy = "all", name: str | None = None
    ) -> list[Stats]:
        """Return the statistics of the whole period, by name."""
        size = MINUTE_US if to_micros(last, "last") <= 24 * HOUR_US else HOUR_US
        since, until = self._window(last, size)
        return self._sums(self._totals(since, until, size), since, until, by, name)

    def series(self, *, last: Duration, by: GroupBy = "all", name: str | None = None) -> StatsSeries:
        """Return the statistics of a period, also by minute up to an hour and by hour for longer ones.

        Those of longer periods are read once a minute.
        """
        size = MINUTE_US if to_micros(last, "last") <= HOUR_US else HOUR_US
        since, until = self._window(last, size)
        key = "series", by, name, since, until
        return self._once_a_minute(size, key, lambda: self._series(since, until, size, by, name))

    def _series(self, since: int, until: int, size: int, by: GroupBy, name: str | None) -> StatsSeries:
        lanes = None if by == "all" else self._lanes_of(by, name)
        read, partial_from = self._buckets(since, until, size, lanes)
        found = [bucket for _, bucket in self._named(read, by, name)]
        at: dict[int, list[StatsBucket]] = {start: [] for start in range(since, until, size)}
        for bucket in found:
            at.setdefault(bucket.at // size * size, []).append(bucket)
        return StatsSeries(
            _stats(name, since, until - since, found, partial_from),
            [_stats(name, start, size, some, partial_from) for start, some in sorted(at.items())],
        )

    def of_tenant(self, tenant: str, *, last: Duration, span: Interval | None = None) -> StatsSeries:
        """Return the statistics of a tenant's runs, by minute up to an hour and by hour for longer periods.

        Workers don't aggregate by tenant, so these are computed on request from the newest ended runs of the tenant, up
        to a maximum. Those of longer periods are read once a minute.
        """
        default = MINUTE_US if to_micros(last, "last") <= HOUR_US else HOUR_US
        size = default if span is None else INTERVALS_US[span]
        since, until = self._window(last, size)
        key = "tenant", tenant, since, until, size
        return self._once_a_minute(size, key, lambda: self._of_tenant(tenant, since, until, size))

    def _of_tenant(self, tenant: str, since: int, until: int, size: int) -> StatsSeries:
        read, created_since = self._store.stats.ends_of_tenant(tenant, since, size)
        buckets = _Buckets(read, None if created_since is None else since)
        return StatsSeries(
            self._sums(buckets, since, until)[0],
            self._spans(buckets, since, until, size),
            None if created_since is None else to_datetime(created_since),
        )

    def trends(self, *, last: Duration, by: GroupBy = "task") -> list[StatsTrend]:
        """Compare a period with the one before, by name. Periods of more than an hour are read once a minute."""
        length = to_micros(last, "last")
        size = MINUTE_US if length <= HOUR_US else HOUR_US
        since, until = self._window(timedelta(microseconds=2 * length), size)
        key = "trends", by, since, until
        return self._once_a_minute(size, key, lambda: self._compare(since, until, size, by))

    def _once_a_minute(self, size: int, key: tuple[object, ...], read: Callable[[], T]) -> T:
        """Read a view that is counted in minutes always, and one in hours once a minute: it hardly changes."""
        if size == MINUTE_US:
            return read()
        minute = self._store.stats.now() // MINUTE_US
        known = self._hourly.get(key)
        if known is None or known[0] != minute:
            known = minute, read()
            fresh = {each: other for each, other in self._hourly.items() if other[0] == minute}
            self._hourly = {**fresh, key: known}
        return cast("T", known[1])

    def _compare(self, since: int, until: int, size: int, by: GroupBy) -> list[StatsTrend]:
        middle = (since + until) // 2
        before, now = (
            {each.name: each for each in self._sums(self._totals(at, end, size), at, end, by)}
            for at, end in ((since, middle), (middle, until))
        )
        names = sorted({name for name in (*before, *now) if name is not None})
        return [
            StatsTrend(name, now.get(name) or _stats(name, middle, until - middle, ()),
                       before.get(name) or _stats(name, since, middle - since, ()))
            for name in names
        ]  # fmt: skip

    def _lanes_of(self, by: GroupBy, name: str | None) -> list[int]:
        lanes = self._store.lanes.with_retired()
        return [id for id, (queue, task) in lanes.items() if name == (task if by == "task" else queue)]

    def lately(self, last: Duration = timedelta(hours=1)) -> RecentStats:
        """Return all views of a recent period with one read."""
        since, until = self._window(last, MINUTE_US)
        counted = min(max(self._store.stats.aggregated_until(MINUTE_US), since), until)
        past = self._counted(since, counted)
        live = self._live(counted, until, MINUTE_US)
        whole = _Buckets(merge_buckets(since, [*past.whole, *live.found]), live.partial_from)
        return RecentStats(
            self._sums(whole, since, until)[0],
            [*past.minutes, *self._spans(live, counted, until, MINUTE_US)],
            self._sums(whole, since, until, "queue"),
            self._sums(whole, since, until, "task"),
        )

    def _counted(self, since: int, until: int) -> _AggregatedPeriod:
        """Return the aggregated minutes; computed again only after a new minute."""
        past = self._past
        if (past.since, past.until) != (since, until):
            found = self._store.stats.read(MINUTE_US, since, until)
            self._past = past = _AggregatedPeriod(
                since, until, merge_buckets(since, found), self._spans(_Buckets(found), since, until, MINUTE_US)
            )
        return past

    def _spans(
        self,
        read: _Buckets,
        since: int,
        until: int,
        size: int,
        by: GroupBy = "all",
        name: str | None = None,
    ) -> list[Stats]:
        groups: dict[tuple[int, str | None], list[StatsBucket]] = {}
        if by == "all":
            groups = {(at, None): [] for at in range(since, until, size)}
        for key, bucket in self._named(read.found, by, name):
            groups.setdefault((bucket.at // size * size, key), []).append(bucket)
        ordered = sorted(groups, key=lambda key: (key[0], key[1] or ""))
        return [_stats(key, at, size, groups[at, key], read.partial_from) for at, key in ordered]

    def _sums(
        self, read: _Buckets, since: int, until: int, by: GroupBy = "all", name: str | None = None
    ) -> list[Stats]:
        groups: dict[str | None, list[StatsBucket]] = {None: []} if by == "all" else {}
        for key, bucket in self._named(read.found, by, name):
            groups.setdefault(key, []).append(bucket)
        names = sorted(groups, key=lambda key: key or "")
        return [_stats(key, since, until - since, groups[key], read.partial_from) for key in names]

    def _window(self, last: Duration, size: int) -> tuple[int, int]:
        """Return the start and end in whole intervals, including the current one."""
        length = to_micros(last, "last")
        spans = max(-(-length // size), 1)
        if spans > MAX_INTERVAL_COUNT:
            raise ConfigError(f"{spans:,} intervals are too many: request at most {MAX_INTERVAL_COUNT:,}, or use hours")
        until = (self._store.stats.now() // size + 1) * size
        return until - spans * size, until

    def _buckets(self, since: int, until: int, size: int, lanes: Sequence[int] | None = None) -> _Buckets:
        """Read the aggregates, only those of some lanes if given, and aggregate the minutes that are missing."""
        hours_until, counted = self._aggregated(since, until, size)
        live = self._live(counted, until, size)
        return live._replace(found=[*self._read(since, hours_until, counted, lanes), *live.found])

    def _totals(self, since: int, until: int, size: int) -> _Buckets:
        """Return the aggregates of a period as a whole, by lane and state; more than one for the latest minutes."""
        hours_until, counted = self._aggregated(since, until, size)
        key = since, hours_until, counted
        known = self._periods.get(key)
        if known is None:
            known = merge_buckets(since, self._read(since, hours_until, counted))
            latest = list(self._periods.items())[1 - MAX_PERIOD_COUNT :]
            self._periods = {**dict(latest), key: known}
        live = self._live(counted, until, size)
        return live._replace(found=[*known, *live.found])

    def _aggregated(self, since: int, until: int, size: int) -> tuple[int, int]:
        """Return up to which times a period is aggregated by hour, if it is counted in hours, and by minute."""
        stats = self._store.stats
        hours_until = since if size == MINUTE_US else min(max(stats.aggregated_until(HOUR_US), since), until)
        return hours_until, min(max(stats.aggregated_until(MINUTE_US), hours_until), until)

    def _read(
        self, since: int, hours_until: int, counted: int, lanes: Sequence[int] | None = None
    ) -> list[StatsBucket]:
        stats = self._store.stats
        hours = stats.read(HOUR_US, since, hours_until, lanes=lanes) if hours_until > since else ()
        return [*hours, *stats.read(MINUTE_US, hours_until, counted, lanes=lanes)]

    def _live(self, counted: int, until: int, size: int) -> _Buckets:
        """Aggregate the minutes that no worker has aggregated yet."""
        fresh = max(counted, until - size - LIVE_WINDOW_US)
        if fresh >= until:
            return _Buckets([])
        found, partial = self._store.stats.last_ends(fresh, until)
        return _Buckets(found, fresh if partial else None)

    def _named(
        self, found: Iterable[StatsBucket], by: GroupBy, name: str | None
    ) -> Sequence[tuple[str | None, StatsBucket]]:
        """Pair buckets with their task or queue, without those of graphs and gates."""
        lanes = self._store.lanes.with_retired()
        named: list[tuple[str | None, StatsBucket]] = []
        for bucket in found:
            queue, task = lanes.get(bucket.lane, (GRAPH_QUEUE, ""))
            key = {"all": None, "task": task, "queue": queue}[by]
            if queue != GRAPH_QUEUE and name in (None, key):
                named.append((key, bucket))
        return named


def _stats(
    name: str | None, at: int, length: int, some: Sequence[StatsBucket], partial_from: int | None = None
) -> Stats:
    by_state: dict[str, int] = {}
    for bucket in some:
        by_state[bucket.state] = by_state.get(bucket.state, 0) + bucket.runs
    return Stats(
        name=name,
        since=to_datetime(at),
        seconds=length / MICROS_PER_SECOND,
        runs=sum(by_state.values()),
        failed=by_state.get("failed", 0),
        cancelled=by_state.get("cancelled", 0),
        wait=_times(merge_histograms(bucket.waits for bucket in some)),
        run=_times(merge_histograms(bucket.takes for bucket in some)),
        partial=partial_from is not None and at + length > partial_from,
    )


def _times(histogram: Histogram) -> Percentiles:
    return Percentiles(*(percentile(histogram, percent) for percent in (50, 95, 99)))
