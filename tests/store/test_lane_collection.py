"""Lanes without runs are collected, and nothing that still needs a lane loses it."""

from __future__ import annotations

import pytest

from holdfast.control import Control
from holdfast.store import lane_collection
from holdfast.store.enqueue import LANE_CACHE_S
from holdfast.store.lane_collection import RETIRE_AFTER_US

LONG_S = RETIRE_AFTER_US / 1_000_000 + 1


@pytest.fixture(autouse=True)
def few_lanes(monkeypatch):
    monkeypatch.setattr(lane_collection, "MIN_LANES", 0)


def queues(harness):
    return {queue for queue, _ in harness.store.lanes.refresh().values()}


def empty_lane(harness, queue="invented"):
    """Create a lane whose only run was pruned."""
    (id,) = harness.store.enqueuer.enqueue([harness.new(queue=queue)])
    harness.sql("delete from {schema}runs where id = cast(:id as {uuid})", id=id)


def collect(harness, passes=2):
    for _ in range(passes):
        harness.store.lane_collector.collect()
        harness.clock.advance(LONG_S)
    return harness.store.lane_collector.collect()


def test_unused_lane_is_collected_after_a_while(harness):
    empty_lane(harness)
    assert harness.store.lane_collector.collect() == 0
    harness.clock.advance(LONG_S - 2)
    assert harness.store.lane_collector.collect() == 0
    assert queues(harness) == {"invented"}
    harness.clock.advance(2)
    assert harness.store.lane_collector.collect() == 1
    assert queues(harness) == set()
    assert Control(harness.store).queues.list() == []


def test_few_lanes_are_kept(harness, monkeypatch):
    monkeypatch.setattr(lane_collection, "MIN_LANES", 1)
    empty_lane(harness)
    collect(harness)
    assert queues(harness) == {"invented"}


@pytest.mark.parametrize(
    "state",
    [
        "state = 'ready'",
        "state = 'ready', held = 'full'",
        "state = 'scheduled', due_at = 1",
        "state = 'running', session = 's'",
        "state = 'waiting'",
        "state = 'blocked'",
        "state = 'done', finished_at = 1",
        "state = 'failed', finished_at = 1",
    ],
)
def test_lane_with_a_run_is_kept(harness, state):
    harness.store.enqueuer.enqueue([harness.new(queue="used")])
    harness.sql(f"update {{schema}}runs set {state}")
    collect(harness)
    assert queues(harness) == {"used"}


def test_lane_of_a_schedule_is_kept(harness):
    empty_lane(harness)
    harness.sql(
        "insert into {schema}schedules (name, kind, app, queue, task, timing, rules, template, declared_at)"
        " values ('nightly', 'schedule', 'a', 'invented', 't', '{}', '{}', '{}', 1)"
    )
    harness.sql("update {schema}lanes set task = 't'")
    collect(harness)
    assert queues(harness) == {"invented"}


def test_lane_that_is_used_again_is_kept(harness):
    empty_lane(harness)
    harness.store.lane_collector.collect()
    harness.clock.advance(LONG_S)
    fresh = harness.another_store()  # a process that has not cached the lane
    fresh.enqueuer.enqueue([harness.new(queue="invented")])
    assert harness.store.lane_collector.collect() == 0
    assert harness.sql("select unused_since from {schema}lanes") == [(None,)]


def test_process_that_has_cached_a_lane_reads_it_again_in_time(harness):
    """Before the lane can be collected."""
    now = [0.0]
    store = harness.store
    store.lanes._monotonic = lambda: now[0]
    store.enqueuer.enqueue([harness.new(queue="invented")])
    ((id,),) = harness.sql("select id from {schema}lanes")
    harness.sql("update {schema}lanes set unused_since = 1")
    now[0] = LANE_CACHE_S
    store.enqueuer.enqueue([harness.new(queue="invented")])
    assert harness.sql("select unused_since from {schema}lanes") == [(1,)]
    now[0] = LANE_CACHE_S + 1.0
    store.enqueuer.enqueue([harness.new(queue="invented")])
    assert harness.sql("select id, unused_since from {schema}lanes") == [(id, None)]
    assert RETIRE_AFTER_US / 1_000_000 >= 2 * LANE_CACHE_S


def test_collected_lane_gets_a_new_id_with_its_next_run(harness):
    empty_lane(harness)
    ((old,),) = harness.sql("select id from {schema}lanes")
    collect(harness)
    harness.store.lanes._read_at = -1e9  # as after some time
    harness.store.enqueuer.enqueue([harness.new(queue="invented")])
    ((new, lane),) = harness.sql("select l.id, r.lane from {schema}lanes l, {schema}runs r")
    assert new == lane != old


@pytest.mark.parametrize("state", ["ready", "waiting", "blocked"])
def test_late_run_in_a_collected_lane_is_moved(harness, state):
    """Such as from a transaction that was open all the time."""
    empty_lane(harness)
    ((old,),) = harness.sql("select id from {schema}lanes")
    collect(harness)
    (id,) = harness.store.enqueuer.enqueue([harness.new(queue="other")])
    harness.sql("update {schema}runs set lane = :old, state = :state", old=old, state=state)
    unmoved = harness.store.queries.run(id)
    assert (unmoved.queue, unmoved.corrupt) == ("invented", ())  # it is in no lane, but its name is known
    harness.store.lane_collector.collect()
    run = harness.store.queries.run(id)
    assert (run.queue, run.state) == ("invented", state)


def test_many_runs_without_an_index_by_lane_stop_the_collection(harness, monkeypatch):
    empty_lane(harness)
    harness.store.enqueuer.enqueue([harness.new(queue="later", delay=10**15) for _ in range(3)])
    monkeypatch.setattr(lane_collection, "MAX_SCATTERED_RUNS", 3)
    collect(harness)
    assert queues(harness) == {"invented", "later"}
    monkeypatch.setattr(lane_collection, "MAX_SCATTERED_RUNS", 4)
    collect(harness)
    assert queues(harness) == {"later"}


def test_passes_take_turns_through_all_lanes(harness, monkeypatch):
    monkeypatch.setattr(lane_collection, "MAX_CHECKED_LANES", 2)
    for n in range(5):
        empty_lane(harness, f"queue {n}")
    for _ in range(3):
        harness.store.lane_collector.collect()
    assert harness.sql("select count(*) from {schema}lanes where unused_since is null") == [(0,)]
    harness.clock.advance(LONG_S)
    assert [harness.store.lane_collector.collect() for _ in range(3)] == [2, 2, 1]


def test_statistics_keep_the_names_of_collected_lanes(harness, monkeypatch):
    empty_lane(harness)
    ((lane,),) = harness.sql("select id from {schema}lanes")
    minute = harness.clock() // 60_000_000 * 60_000_000
    harness.sql(
        "insert into {schema}tallies (span, at, lane, state, runs, waits, takes)"
        " values (60000000, :at, :lane, 'done', 3, '[]', '[]')",
        at=minute - 120_000_000, lane=lane,
    )  # fmt: skip
    harness.sql("update {schema}lanes set unused_since = 1")
    assert harness.store.lane_collector.collect() == 1
    assert harness.store.lanes.with_retired()[lane][0] == "invented"
    harness.clock.advance(92 * 86_400)
    monkeypatch.setattr(lane_collection, "MIN_KEPT_NAMES", 0)
    harness.store.lane_collector.collect()
    assert harness.rows("retired_lanes") == 1  # the newest
    harness.sql("insert into {schema}retired_lanes (id, queue, task, retired_at) values (99, 'q', 't', :at)", at=10**17)
    harness.store.lane_collector.collect()
    assert harness.sql("select id from {schema}retired_lanes") == [(99,)]


def late_run(harness, queue="invented"):
    """Collect a lane, then put a run into it; return the run and the lane."""
    empty_lane(harness, queue)
    ((old,),) = harness.sql("select id from {schema}lanes where queue = :queue", queue=queue)
    collect(harness)
    (id,) = harness.store.enqueuer.enqueue([harness.new(queue="other")])
    harness.sql("update {schema}runs set lane = :old where id = cast(:id as {uuid})", old=old, id=id)
    return id, old


def test_late_run_that_a_worker_claims_meanwhile_is_left_to_it(harness, monkeypatch):
    """The worker knew the lane before it was collected. With another fence it would lose the run."""
    id, old = late_run(harness)
    collector = harness.store.lane_collector
    execute = collector._execute

    def claim_before_move(purpose, name, **values):
        if name == "move_runs":
            session = harness.session("w")
            assert [claim.id for claim in harness.store.claims.claim(session, [old], 1)] == [id]
        return execute(purpose, name, **values)

    monkeypatch.setattr(collector, "_execute", claim_before_move)
    collector.collect()
    assert harness.sql("select lane, fence, state from {schema}runs") == [(old, 1, "running")]


def test_late_run_is_found_among_very_many_collected_lanes(harness, monkeypatch):
    id, _ = late_run(harness)
    for n in range(5):
        harness.sql(
            "insert into {schema}retired_lanes (id, queue, task, retired_at) values (:id, 'q', 't', :at)",
            id=10**6 + n, at=10**17,
        )  # fmt: skip
    monkeypatch.setattr(lane_collection, "MAX_SEARCHED_LANES", 2)
    for _ in range(4):
        harness.store.lane_collector.collect()
    assert harness.store.queries.run(id).queue == "invented"
    assert harness.rows("lanes") >= 1


def test_names_of_collected_lanes_are_kept_while_they_are_few(harness):
    """A nested graph may start after a year, with the lanes that were known when it was created."""
    id, _ = late_run(harness)
    harness.sql("update {schema}runs set state = 'scheduled', due_at = 1 where id = cast(:id as {uuid})", id=id)
    harness.clock.advance(400 * 86_400)
    harness.store.lane_collector.collect()
    harness.sql("update {schema}runs set state = 'ready' where id = cast(:id as {uuid})", id=id)
    harness.store.lane_collector.collect()
    assert harness.store.queries.run(id).queue == "invented"


@pytest.mark.parametrize(
    "state",
    [
        "state = 'ready'",
        "state = 'ready', held = 'full'",
        "state = 'scheduled', due_at = 1",
        "state = 'running', session = 's'",
        "state = 'waiting'",
        "state = 'done', finished_at = 1",
    ],
)
def test_lane_whose_run_changed_while_it_was_checked_is_kept(harness, monkeypatch, state):
    """A run that is ready in one read and running in the next is in neither of the lists of lanes in use."""
    harness.store.enqueuer.enqueue([harness.new(queue="used")])
    harness.sql(f"update {{schema}}runs set {state}")
    harness.sql("update {schema}lanes set unused_since = 1")
    collector = harness.store.lane_collector
    monkeypatch.setattr(collector, "_busy_lanes", set)
    monkeypatch.setattr(collector, "_without_runs", list)
    assert collector.collect() == 0
    assert queues(harness) == {"used"}
