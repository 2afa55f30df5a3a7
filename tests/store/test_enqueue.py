"""Enqueues: order, times, batches, repeats. Keys and unique names have files of their own."""

from __future__ import annotations

import pytest

from holdfast.database import DataFault
from holdfast.errors import KeyConflict
from holdfast.store.enqueue import MAX_PLAIN_ROWS
from tests.support.store_harness import SECOND


def test_runs_are_claimed_in_the_order_in_which_they_arrived(harness):
    ids = [harness.add() for _ in range(3)] + harness.add_many(3)
    harness.session("w")
    assert [claim.id for claim in harness.claim("w", 8)] == ids


def test_a_larger_priority_goes_first_and_equal_ones_in_order_of_arrival(harness):
    low, first, second, high = [harness.add(priority=priority) for priority in (-1, 0, 0, 7)]
    harness.session("w")
    assert [claim.id for claim in harness.claim("w", 8)] == [high, first, second, low]


def test_order_holds_over_several_lanes(harness):
    ids = [harness.add("a", priority=1), harness.add("b", priority=2), harness.add("a", priority=3), harness.add("b")]
    harness.session("w")
    claimed = [harness.claim("w", 1, ["a", "b"])[0].id for _ in range(4)]
    assert claimed == [ids[2], ids[1], ids[0], ids[3]]


def test_a_new_run_is_ready_and_carries_what_it_was_given(harness, clock):
    id = harness.add(args='[[1],{"é":"\\u0000"}]', tenant="acme", options='{"timeout":1}', tags='["x","y"]', priority=4)
    row = harness.row(id)
    assert (row["state"], row["held"], row["due_at"], row["attempt"], row["fence"]) == ("ready", None, None, 0, 0)
    assert (row["args"], row["tenant"], row["options"]) == ('[[1],{"é":"\\u0000"}]', "acme", '{"timeout":1}')
    assert (row["tags"], row["priority"], row["created_at"]) == ('["x","y"]', 4, clock.now)


def test_a_delay_makes_a_run_scheduled_by_the_databases_clock(harness, clock):
    row = harness.row(harness.add(delay=90 * SECOND))
    assert (row["state"], row["due_at"]) == ("scheduled", clock.now + 90 * SECOND)


def test_a_time_to_start_makes_a_run_scheduled_and_one_in_the_past_makes_it_ready(harness, clock):
    assert harness.state(harness.add(run_at=clock.now + 1)) == "scheduled"
    assert harness.state(harness.add(run_at=clock.now)) == "ready"
    assert harness.state(harness.add(run_at=clock.now - 1)) == "ready"
    assert harness.state(harness.add(delay=0)) == "ready"


def test_a_deadline_is_counted_from_the_enqueue_or_given_as_a_time(harness, clock):
    row = harness.row(harness.add(deadline_in=60 * SECOND))
    assert (row["deadline"], row["lifetime"]) == (clock.now + 60 * SECOND, 60 * SECOND)
    row = harness.row(harness.add(deadline_at=clock.now + 5 * SECOND))
    assert (row["deadline"], row["lifetime"]) == (clock.now + 5 * SECOND, 5 * SECOND)
    assert harness.row(harness.add())["deadline"] is None


def test_a_claim_tells_how_long_the_deadline_is_away(harness, clock):
    harness.session("w")
    harness.add(deadline_in=60 * SECOND)
    clock.advance(20)
    assert harness.claim("w")[0].deadline_in == 40 * SECOND


def test_a_repeat_with_the_same_ids_creates_no_second_run(harness):
    runs = [harness.new(), harness.new(key="k"), harness.new(unique="u"), harness.new(key="k2", unique="u2")]
    first = harness.store.enqueuer.enqueue(runs)
    before = [harness.row(id) for id in first]
    assert harness.store.enqueuer.enqueue(runs) == first == [run.id for run in runs]
    assert [harness.row(id) for id in first] == before
    assert (harness.rows("runs"), harness.rows("keys")) == (4, 2)


def test_a_repeat_of_a_finished_unique_run_is_still_that_run(harness):
    run = harness.new(unique="u")
    harness.store.enqueuer.enqueue([run])
    harness.session("w")
    harness.end("w", harness.claim("w")[0])
    assert harness.store.enqueuer.enqueue([run]) == [run.id]
    assert (harness.rows("runs"), harness.state(run.id)) == (1, "done")


def test_an_empty_enqueue_creates_nothing(harness):
    assert harness.store.enqueuer.enqueue([]) == []
    assert harness.rows("runs") == 0


def test_more_runs_than_one_statement_takes_are_created_together_in_order(harness):
    ids = harness.add_many(1203)
    assert [row[0] for row in harness.sql("select cast(id as text) from {schema}runs order by seq")] == ids


def test_more_bytes_than_one_statement_takes_are_created_together(harness):
    text = '"' + "x" * (3 * 1024 * 1024) + '"'
    ids = harness.add_many(4, args=text)
    kept = harness.sql("select cast(id as text), length(args) from {schema}runs order by seq")
    assert kept == [(id, len(text)) for id in ids]


def test_a_large_batch_is_all_or_none(harness):
    harness.add(key="taken", digest="other")
    runs = [harness.new() for _ in range(600)] + [harness.new(key="taken", digest="mine")]
    with pytest.raises(KeyConflict):
        harness.store.enqueuer.enqueue(runs)
    assert harness.rows("runs") == 1


def test_a_batch_keeps_its_order_of_arrival_also_with_unique_names(harness):
    runs = [harness.new(unique="b"), harness.new(), harness.new(unique="a"), harness.new()]
    ids = harness.store.enqueuer.enqueue(runs)
    assert [row[0] for row in harness.sql("select cast(id as text) from {schema}runs order by seq")] == ids


def test_lanes_are_interned_once_for_all_stores(harness):
    peer = harness.another_store()
    lane = harness.lane("t", "q")
    assert peer.lanes.ids([("q", "t")])["q", "t"] == lane
    assert harness.lane("t", "other") != lane
    assert harness.rows("lanes") == 2


def test_names_with_quotes_and_semicolons_are_only_names(harness):
    evil = "x'; drop table holdfast_runs; --\""
    id = harness.add(evil, queue=evil, tenant=evil, key=evil, unique=evil, tags='["' + "x'; --" + '"]')
    info = harness.store.queries.run(id)
    assert (info.task, info.queue, info.tenant) == (evil, evil, evil)


def test_a_bulk_of_several_statements_is_all_or_none(harness):
    runs = [harness.new() for _ in range(2 * MAX_PLAIN_ROWS + 1)]
    runs[-1].keep = None
    with pytest.raises(DataFault):
        harness.store.enqueuer.enqueue(runs)
    assert harness.rows("runs") == 0
    assert harness.store.enqueuer.enqueue(runs[:-1]) == [run.id for run in runs[:-1]]
    assert harness.rows("runs") == 2 * MAX_PLAIN_ROWS
