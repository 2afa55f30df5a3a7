"""The concurrency of a map: never more children are active, however others end."""

from __future__ import annotations

import pytest

from holdfast.store import Claim
from holdfast.store.commands import WaitOutcome
from tests.store.test_children import BAD, LAST_CRASH, finish, join
from tests.support.store_harness import CANCELLED, OVERDUE, SECOND, end_of


@pytest.fixture
def parent(harness):
    harness.session("w")
    return harness.running("w")


def let_go(harness):
    """Return the children that are active."""
    found = harness.sql(
        "select count(*) from {schema}runs where parent is not null and finished_at is null and state <> 'blocked'"
    )
    return found[0][0]


def test_only_as_many_children_as_the_concurrency_are_ready(harness, parent):
    children = harness.spawn("w", parent, 5, concurrency=2)
    assert harness.states(children) == ["ready", "ready", "blocked", "blocked", "blocked"]


@pytest.mark.parametrize("how", ["done", *BAD])
def test_the_next_child_is_released_however_one_ends(harness, parent, how):
    children = harness.spawn("w", parent, 6, concurrency=2, run=LAST_CRASH)
    join(harness, parent)
    for ended in range(1, 7):
        claims = harness.claim("w", 8, ["child"])
        assert len(claims) == {1: 2, 6: 0}.get(ended, 1)
        running = [id for id in children if harness.state(id) == "running"]
        (claim,) = [run for run in harness.store.claims.list_owned("w") if run.id == running[0]]
        finish(harness, _as_claim(claim), how)
        assert let_go(harness) == min(2, 6 - ended)
    assert harness.waits(parent.id) == {"$join:call#1#1": ("children", None)}


def _as_claim(owned):
    return Claim(owned.id, 0, 0, 0, 0, owned.fence, 1, 0, None, "", None)


def test_several_ends_release_as_many_children(harness, parent):
    children = harness.spawn("w", parent, 9, concurrency=4)
    claims = harness.claim("w", 4, ["child"])
    harness.store.attempts.end("w", [end_of(claim, in_tree=True) for claim in claims[:3]])
    assert harness.states(children) == ["done"] * 3 + ["running"] + ["ready"] * 3 + ["blocked"] * 2


@pytest.mark.parametrize("how", ["cancelled", "overdue"])
def test_a_blocked_child_that_ends_releases_no_sibling(harness, parent, how):
    children = harness.spawn("w", parent, 5, concurrency=2)
    join(harness, parent)
    if how == "cancelled":
        harness.store.actions.cancel(children[3], CANCELLED)
    else:
        harness.sql("update {schema}runs set deadline = 1 where place = 3")
        assert harness.store.timers.fail_overdue(OVERDUE) == [children[3]]
    assert let_go(harness) == 2
    for claim in harness.claim("w", 2, ["child"]):
        finish(harness, claim)
    assert harness.states(children)[2:] == ["ready", harness.state(children[3]), "ready"]


def test_a_retrying_child_counts_towards_the_concurrency(harness, parent, clock):
    harness.spawn("w", parent, 4, concurrency=2)
    one, other = harness.claim("w", 2, ["child"])
    harness.end("w", one, "retrying", in_tree=True)
    harness.wait("w", other, "sleep", delay=9)
    harness.suspend("w", other)
    assert (let_go(harness), harness.claim("w", 8, ["child"])) == (2, [])


def test_a_child_with_a_delay_is_scheduled_when_released(harness, parent, clock):
    children = harness.spawn("w", parent, 3, concurrency=1, run={"delay": 30 * SECOND})
    assert harness.states(children) == ["scheduled", "blocked", "blocked"]
    clock.advance(30)
    harness.store.timers.promote_due()
    finish(harness, harness.child("w"))
    assert harness.states(children) == ["done", "ready", "blocked"], "its time has come meanwhile"


def test_maps_of_one_parent_are_limited_separately(harness, parent):
    harness.spawn("w", parent, 3, concurrency=1)
    others = harness.spawn("w", parent, 3, concurrency=1, key="call#2", n=2)
    finish(harness, harness.child("w"))
    assert harness.states(others) == ["ready", "blocked", "blocked"]
    assert let_go(harness) == 2


@pytest.mark.parametrize("ended", [0, 1, 3])
def test_a_retried_parent_keeps_to_the_concurrency(harness, parent, ended):
    children = harness.spawn("w", parent, 6, concurrency=2)
    join(harness, parent)
    for _ in range(ended):
        finish(harness, harness.child("w"))
    harness.store.actions.cancel(parent.id, CANCELLED)
    assert let_go(harness) == 0
    harness.store.actions.retry(parent.id)
    assert let_go(harness) == 2
    harness.session("v")
    assert harness.states(children) == ["done"] * ended + ["ready"] * 2 + ["blocked"] * (4 - ended)
    for _ in range(6 - ended):
        finish(harness, harness.child("w"))
        assert let_go(harness) <= 2
    assert set(harness.states(children)) == {"done"}


def test_a_retried_child_is_blocked_while_the_concurrency_is_used(harness, parent):
    children = harness.spawn("w", parent, 5, concurrency=2)
    join(harness, parent)
    finish(harness, harness.child("w"), "failed")
    harness.store.actions.retry(children[0])
    assert let_go(harness) == 2
    finish(harness, harness.child("w"))
    assert harness.state(children[0]) == "ready", "the first in order"
    for _ in range(4):
        finish(harness, harness.child("w"))
        assert let_go(harness) <= 2
    assert set(harness.states(children)) == {"done"}
    assert harness.waits(parent.id) == {"$join:call#1#1": ("children", None)}


def test_a_parent_that_joins_after_all_ended_has_nothing_to_wait_for(harness, parent):
    harness.spawn("w", parent, 3, concurrency=1)
    for _ in range(3):
        finish(harness, harness.child("w"))
    assert join(harness, parent) == WaitOutcome("children", None)
