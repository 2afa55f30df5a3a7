"""Queries: one run, pages of runs, history."""

from __future__ import annotations

import pytest

from holdfast.model.filters import RunFilter
from tests.support.world import CANCELLED, SECOND


def page(world, size=100, after=None, **filters):
    return [row.id for row in world.store.run_list.page(RunFilter.of(filters), size, after).rows]


def test_a_page_has_the_newest_first(world):
    ids = [world.add() for _ in range(3)]
    assert page(world) == ids[::-1]


def test_pages_have_no_gaps_or_repeats(world):
    ids = world.add_many(25)
    seen, after = [], None
    for size in (7, 7, 7, 4):
        got = page(world, size=7, after=after)
        assert len(got) == size
        seen += got
        after = got[-1]
    assert page(world, size=7, after=after) == []
    assert seen == ids[::-1]


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({"state": "ready"}, "bc"),
        ({"state": "cancelled"}, "a"),
        ({"state": "done"}, ""),
        ({"task": "t1"}, "ab"),
        ({"queue": "q2"}, "b"),
        ({"tenant": "acme"}, "c"),
        ({"tag": "red"}, "ac"),
        ({"tag": "re"}, ""),
        ({"tag": "it's"}, "c"),
        ({"tag": "red", "task": "t1"}, "a"),
        ({"tag": "red", "state": "ready", "tenant": "acme", "queue": "default", "task": "t2"}, "c"),
        ({}, "abc"),
    ],
    ids=str,
)
def test_filters_narrow_the_page(world, filters, expected):
    ids = {
        "a": world.add("t1", tags='["red","blue"]'),
        "b": world.add("t1", queue="q2", tags='["blue"]'),
        "c": world.add("t2", tenant="acme", tags='["it\'s","red"]'),
    }
    world.store.actions.cancel(ids["a"], CANCELLED)
    assert page(world, **filters) == [ids[name] for name in sorted(expected, reverse=True)]


def test_a_run_is_shown_with_its_names_and_times(world, clock):
    id = world.add("t", queue="q", tenant="acme", priority=3, tags='["x"]', delay=5 * SECOND)
    row = world.store.queries.run(id)
    assert (row.id, row.task, row.queue, row.tenant, row.priority, row.tags) == (id, "t", "q", "acme", 3, '["x"]')
    assert (row.state, row.created_at, row.due_at) == ("scheduled", clock.now, clock.now + 5 * SECOND)
    assert (row.session, row.started_at, row.finished_at, row.result, row.error) == (None, None, None, None, None)


def test_a_page_shows_a_run_as_it_is_shown_alone(world):
    world.session("w")
    claim = world.running("w", tenant="acme")
    assert world.store.run_list.page(RunFilter(), 100).rows == [world.store.queries.run(claim.id)]
    assert world.store.queries.run(claim.id).session == "w"


def test_the_outcome_of_a_run_is_its_state_result_and_error(world):
    world.session("w")
    claim = world.running("w")
    assert world.store.queries.outcome(claim.id) == ("running", None, None, None, None)
    world.end("w", claim, result="[1]")
    assert world.store.queries.outcome(claim.id) == ("done", "[1]", None, None, None)


def test_a_missing_run_is_none(world):
    nobody = "00000000-0000-7000-8000-000000000000"
    assert world.store.queries.run(nobody) is None
    assert world.store.queries.outcome(nobody) is None
    assert world.store.queries.history(nobody) == []


def test_history_is_in_order_and_only_the_runs_own(world, clock):
    world.session("w")
    other = world.running("w")
    world.end("w", other)
    claim = world.running("w")
    world.end("w", claim, "retrying")
    clock.advance(10)
    world.store.actions.cancel(claim.id, CANCELLED)
    world.store.actions.retry(claim.id)
    records = world.store.queries.history(claim.id)
    assert [(n, kind) for n, _, kind, *_ in records] == [(1, "retrying"), (2, "cancelled"), (3, "retried")]
    assert world.kinds(other.id) == ["done"]


@pytest.mark.parametrize("view", ["readable_runs", "readable_history", "readable_workers"])
def test_the_views_for_people_can_be_read(world, view):
    world.session("w")
    world.end("w", world.running("w"))
    text = str(world.sql(f"select * from {{schema}}{view}")[0])
    assert "2027" in text, "times are written out"
