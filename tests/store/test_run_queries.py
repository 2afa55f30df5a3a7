"""Queries: one run, pages of runs, history."""

from __future__ import annotations

import pytest

from holdfast.model.filters import RunFilter
from tests.support.store_harness import CANCELLED, SECOND


def page(harness, size=100, after=None, **filters):
    return [row.id for row in harness.store.run_list.page(RunFilter.of(filters), size, after).rows]


def test_a_page_has_the_newest_first(harness):
    ids = [harness.add() for _ in range(3)]
    assert page(harness) == ids[::-1]


def test_pages_have_no_gaps_or_repeats(harness):
    ids = harness.add_many(25)
    seen, after = [], None
    for size in (7, 7, 7, 4):
        got = page(harness, size=7, after=after)
        assert len(got) == size
        seen += got
        after = got[-1]
    assert page(harness, size=7, after=after) == []
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
def test_filters_narrow_the_page(harness, filters, expected):
    ids = {
        "a": harness.add("t1", tags='["red","blue"]'),
        "b": harness.add("t1", queue="q2", tags='["blue"]'),
        "c": harness.add("t2", tenant="acme", tags='["it\'s","red"]'),
    }
    harness.store.actions.cancel(ids["a"], CANCELLED)
    assert page(harness, **filters) == [ids[name] for name in sorted(expected, reverse=True)]


def test_a_run_is_shown_with_its_names_and_times(harness, clock):
    id = harness.add("t", queue="q", tenant="acme", priority=3, tags='["x"]', delay=5 * SECOND)
    row = harness.store.queries.run(id)
    assert (row.id, row.task, row.queue, row.tenant, row.priority, row.tags) == (id, "t", "q", "acme", 3, '["x"]')
    assert (row.state, row.created_at, row.due_at) == ("scheduled", clock.now, clock.now + 5 * SECOND)
    assert (row.session, row.started_at, row.finished_at, row.result, row.error) == (None, None, None, None, None)


def test_a_page_shows_a_run_as_it_is_shown_alone(harness):
    harness.session("w")
    claim = harness.running("w", tenant="acme")
    assert harness.store.run_list.page(RunFilter(), 100).rows == [harness.store.queries.run(claim.id)]
    assert harness.store.queries.run(claim.id).session == "w"


def test_the_outcome_of_a_run_is_its_state_result_and_error(harness):
    harness.session("w")
    claim = harness.running("w")
    assert harness.store.outcomes.read(claim.id) == ("running", None, None, None, None, None)
    harness.end("w", claim, result="[1]")
    assert harness.store.outcomes.read(claim.id) == ("done", "[1]", None, None, None, None)


def test_a_missing_run_is_none(harness):
    nobody = "00000000-0000-7000-8000-000000000000"
    assert harness.store.queries.run(nobody) is None
    assert harness.store.outcomes.read(nobody) is None
    assert harness.store.queries.history(nobody) == []


def test_history_is_in_order_and_only_the_runs_own(harness, clock):
    harness.session("w")
    other = harness.running("w")
    harness.end("w", other)
    claim = harness.running("w")
    harness.end("w", claim, "retrying")
    clock.advance(10)
    harness.store.actions.cancel(claim.id, CANCELLED)
    harness.store.actions.retry(claim.id)
    records = harness.store.queries.history(claim.id)
    assert [(n, kind) for n, _, kind, *_ in records] == [(1, "retrying"), (2, "cancelled"), (3, "retried")]
    assert harness.kinds(other.id) == ["done"]


@pytest.mark.parametrize("view", ["readable_runs", "readable_history", "readable_workers"])
def test_the_views_for_people_can_be_read(harness, view):
    harness.session("w")
    harness.end("w", harness.running("w"))
    text = str(harness.sql(f"select * from {{schema}}{view}")[0])
    assert "2027" in text, "times are written out"
