"""Throughput, failures and durations by minute and hour, aggregated or live."""

from __future__ import annotations

from datetime import timedelta

import pytest

from holdfast.engine.loops.maintenance import CATCH_UP_INTERVAL_S, INTERVAL_S, StatsAggregator
from holdfast.errors import ConfigError
from holdfast.model.clock import to_datetime
from holdfast.policy.histogram import bucket_midpoint_s, bucket_of, merge_histograms, percentile
from holdfast.store import stats as store_stats
from holdfast.store.stats import HOUR_US, MAX_MINUTES_PER_PASS, MINUTE_US


def ended(harness, clock, kind="done", task="task", wait=1.0, took=2.0):
    """Create a run with this wait and run time."""
    harness.add(task)
    clock.advance(wait)
    (claim,) = harness.claim("w", 1, [task])
    clock.advance(took)
    assert harness.end("w", claim, kind, state=kind)


def count_all(harness):
    """Aggregate until nothing is left."""
    while harness.store.stats.aggregate():
        pass


@pytest.fixture
def session(harness):
    return harness.session("w", lease=1e6)


def test_minutes_include_runs_that_are_not_aggregated_yet(control, harness, clock, session):
    clock.now -= clock.now % MINUTE_US
    for kind in ("done", "done", "failed"):
        ended(harness, clock, kind)
    clock.advance(120)
    ended(harness, clock)
    live = control.stats.over_time(last=300)
    assert [stats.runs for stats in live] == [0, 0, 3, 0, 1]
    assert (live[2].failed, live[2].failure_rate, live[2].throughput) == (1, 1 / 3, 3 / 60)
    assert live[2].wait.p50 == pytest.approx(1, rel=0.12)
    assert live[2].run.p99 == pytest.approx(2, rel=0.12)
    assert live[1].run.p50 is None
    count_all(harness)
    assert control.stats.over_time(last=300) == live
    assert harness.rows("tallies") > 0


def of_tenant(harness, clock, kind, tenant, took=2.0):
    harness.add(tenant=tenant)
    (claim,) = harness.claim("w", 1)
    clock.advance(took)
    assert harness.end("w", claim, kind, state=kind)


def test_a_tenant_has_statistics_of_its_own(control, harness, clock, session):
    clock.now -= clock.now % MINUTE_US
    for kind, tenant in (("done", "acme"), ("failed", "acme"), ("failed", "other"), ("done", None)):
        of_tenant(harness, clock, kind, tenant)
    clock.advance(60)
    of_tenant(harness, clock, "done", "acme", took=10)
    harness.add(tenant="acme")  # hasn't ended
    series = control.stats.of_tenant("acme", last=180)
    assert [(each.runs, each.failed) for each in series.intervals] == [(0, 0), (2, 1), (1, 0)]
    assert (series.whole.runs, series.whole.failed, series.whole.partial) == (3, 1, False)
    assert series.whole.run.p99 == pytest.approx(10, rel=0.12)
    assert series.created_since is None
    assert control.stats.of_tenant("nobody", last=180).whole.runs == 0
    day = control.stats.of_tenant("acme", last=24 * 3600)
    assert (len(day.intervals), day.whole.runs) == (24, 3)
    clock.advance(3600)
    assert control.stats.of_tenant("acme", last=180).whole.runs == 0, "they ended before"


def test_only_the_newest_runs_of_a_tenant_are_counted_and_the_series_says_so(
    control, harness, clock, session, monkeypatch
):
    for _ in range(4):
        of_tenant(harness, clock, "done", "acme")
    monkeypatch.setattr(store_stats, "MAX_TENANT_ENDS", 3)
    series = control.stats.of_tenant("acme", last=300)
    assert (series.whole.runs, series.whole.partial) == (3, True)
    assert series.created_since == to_datetime(clock() - 6_000_000)


def test_a_view_counts_a_bounded_number_of_the_latest_runs_and_says_so(control, harness, clock, session, monkeypatch):
    clock.now -= clock.now % MINUTE_US
    for _ in range(2):
        for _ in range(3):
            ended(harness, clock)
        clock.advance(60)
    monkeypatch.setattr(store_stats, "MAX_LAST_ENDS", 4)
    assert [(each.runs, each.partial) for each in control.stats.over_time(last=240)] == [
        (0, True), (1, True), (3, True), (0, True),
    ]  # fmt: skip
    assert (control.stats.summary(last=240)[0].runs, control.stats.lately().whole.partial) == (4, True)
    assert control.stats.series(last=240).whole.partial
    (trend,) = control.stats.trends(last=240)
    assert (trend.now.runs, trend.now.partial, trend.before.partial) == (4, True, False)
    clock.advance(60)
    count_all(harness)
    assert [(each.runs, each.partial) for each in control.stats.over_time(last=240)] == [
        (3, False), (3, False), (0, False), (0, False),
    ]  # fmt: skip
    assert not control.stats.lately().whole.partial


def test_aggregation_does_not_block_writers(harness, clock, session, monkeypatch):
    """A busy minute has a million runs, which take seconds to read."""
    ended(harness, clock)
    clock.advance(180)
    database, live, lines = harness.store.database, harness.store.stats.live, []

    def noting(since, until, line="read"):
        lines.append(database.connection(line))
        return live(since, until, line)

    monkeypatch.setattr(harness.store.stats, "live", noting)
    count_all(harness)
    assert lines
    assert database.connection("commit") not in lines


def test_counting_twice_changes_nothing_and_minutes_are_counted_once(harness, clock, session):
    ended(harness, clock)
    clock.advance(180)
    count_all(harness)
    kept = harness.sql("select * from {schema}tallies")
    assert harness.store.stats.aggregate() == 0
    assert harness.sql("select * from {schema}tallies") == kept


def test_one_tick_aggregates_a_bounded_portion(harness, clock, session):
    ended(harness, clock)
    clock.advance(3600)
    aggregator = StatsAggregator(harness.store)
    ticks = [aggregator.tick() for _ in range(60 // MAX_MINUTES_PER_PASS + 1)]
    assert ticks[:-1] == [CATCH_UP_INTERVAL_S] * (60 // MAX_MINUTES_PER_PASS)
    assert ticks[-1] >= INTERVAL_S / 2
    assert harness.sql("select sum(runs) from {schema}tallies where span = :span", span=MINUTE_US) == [(1,)]


def test_recent_stats_match_separate_queries(control, harness, clock, session):
    """Also after more runs were aggregated or have finished."""
    for tasks in (["task", "task", "other"], [], ["other"], ["task"]):
        for task in tasks:
            ended(harness, clock, task=task)
        clock.advance(80)
        for counted in (False, True):
            if counted:
                count_all(harness)
            lately = control.stats.lately(600)
            assert [lately.whole] == control.stats.summary(last=600)
            assert lately.minutes == control.stats.over_time(last=600)
            assert lately.queues == control.stats.summary(last=600, by="queue")
            assert lately.tasks == control.stats.summary(last=600, by="task")
    assert [each.runs for each in lately.tasks] == [2, 3]


def test_minute_is_aggregated_after_late_commits(harness, clock, session):
    clock.now -= clock.now % MINUTE_US
    ended(harness, clock)
    clock.advance(60)
    count_all(harness)
    assert harness.sql("select runs from {schema}tallies where runs > 0") == []
    clock.advance(60)
    count_all(harness)
    assert harness.sql("select runs from {schema}tallies where runs > 0") == [(1,)]


def test_hours_are_made_of_minutes_and_outlive_them(control, harness, clock, session):
    clock.now -= clock.now % HOUR_US
    for _ in range(3):
        ended(harness, clock)
        clock.advance(600)
        while StatsAggregator(harness.store).tick() == CATCH_UP_INTERVAL_S:
            pass
    clock.advance(3600)
    count_all(harness)
    harness.sql("delete from {schema}runs")
    hours = control.stats.over_time(last=timedelta(hours=3), span="hour")
    assert [stats.runs for stats in hours] == [0, 3, 0]
    clock.advance(4 * 24 * 3600)
    count_all(harness)
    assert harness.sql("select 1 from {schema}tallies where span = :span and runs > 0", span=MINUTE_US) == []
    (week,) = control.stats.summary(last=timedelta(days=7))
    assert week.runs == 3


def test_hours_in_which_nothing_happened_are_looked_at_once(harness, clock, monkeypatch):
    clock.now -= clock.now % HOUR_US
    clock.advance(600)
    reads = []
    read = harness.store.stats.read

    def noting(span, since, until, line):
        reads.append((until - since) // HOUR_US)
        return read(span, since, until, line)

    monkeypatch.setattr(harness.store.stats, "read", noting)
    for seconds in (0, 60, 60, 3600):
        clock.advance(seconds)
        count_all(harness)
    assert reads == [72, 1, 1], "once while making up for an hour, then when it is over"


def test_tasks_and_queues_are_told_apart(control, harness, clock, session):
    ended(harness, clock, task="a")
    ended(harness, clock, "failed", task="b")
    ended(harness, clock, task="b")
    by_task = {stats.name: (stats.runs, stats.failed) for stats in control.stats.summary(by="task")}
    assert by_task == {"a": (1, 0), "b": (2, 1)}
    assert [(stats.name, stats.runs) for stats in control.stats.summary(by="queue")] == [("default", 3)]
    assert [stats.runs for stats in control.stats.summary(by="task", name="b")] == [2]


def test_a_series_has_all_intervals_of_one_task_or_queue(control, harness, clock, session):
    clock.now -= clock.now % HOUR_US
    ended(harness, clock, task="a", took=100)
    clock.advance(120)
    count_all(harness)
    clock.advance(3 * 3600 - 300)
    ended(harness, clock, "failed", task="a", took=7)
    ended(harness, clock, task="b")
    for _ in range(2):
        hour, day = (control.stats.series(last=3600 * hours, by="task", name="a") for hours in (1, 24))
        assert (len(hour.intervals), hour.whole.runs, hour.whole.failed) == (60, 1, 1)
        assert (len(day.intervals), [each.runs for each in day.intervals if each.runs]) == (24, [1, 1])
        assert day.whole.run.p99 == pytest.approx(100, rel=0.12)
        assert control.stats.series(last=86400).whole.runs == 3
        assert control.stats.series(last=86400, by="queue", name="default").whole.runs == 3
        clock.advance(120)
        count_all(harness)


def test_a_trend_compares_a_period_with_the_one_before(control, harness, clock, session):
    clock.now -= clock.now % HOUR_US
    ended(harness, clock, task="a", took=2)
    ended(harness, clock, task="old")
    clock.advance(120)
    count_all(harness)
    clock.advance(3600 - 120)
    ended(harness, clock, task="a", took=20)
    ended(harness, clock, task="new")
    a, new, old = control.stats.trends(last=3600)
    assert (a.now.runs, a.before.runs, a.slowdown) == (1, 1, pytest.approx(10, rel=0.25))
    assert (new.name, new.now.runs, new.before.runs, new.slowdown) == ("new", 1, 0, None)
    assert (old.name, old.now.runs, old.before.runs, old.slowdown) == ("old", 0, 1, None)
    assert [each.now.runs for each in control.stats.trends(last=86400, by="queue")] == [4]
    ended(harness, clock, task="new")
    assert [each.now.runs for each in control.stats.trends(last=86400, by="queue")] == [4], "read once a minute"
    clock.advance(60)
    assert [each.now.runs for each in control.stats.trends(last=86400, by="queue")] == [5]


def test_empty_period_has_no_stats(control, harness):
    assert control.stats.summary(by="task") == []
    (all_of_it,) = control.stats.summary()
    assert (all_of_it.runs, all_of_it.failure_rate, all_of_it.wait.p50) == (0, 0.0, None)
    with pytest.raises(ConfigError, match="too many"):
        control.stats.over_time(last=timedelta(days=30))


@pytest.mark.parametrize("micros", [0, 1, 999, 1000, 1500, 10_000, 1_000_000, 61_000_000, 86_400_000_000])
def test_the_database_counts_by_the_steps_of_the_policy(harness, micros):
    text = "select cast(floor(5 * ln(1 + cast(:took as bigint) / 1000.0)) as int)"
    ((step,),) = harness.sql(text, took=micros)
    assert step == bucket_of(micros)


def test_percentiles_are_accurate_to_ten_percent():
    durations = [n * 10_000 for n in range(1, 1001)]
    histogram = merge_histograms({bucket_of(micros): 1} for micros in durations)
    for percent in (50, 95, 99):
        assert percentile(histogram, percent) == pytest.approx(percent / 10, rel=0.12)
    assert bucket_midpoint_s(0) < 0.001
