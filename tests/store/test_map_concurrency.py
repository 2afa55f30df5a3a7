"""The concurrency of a map: never more children are active, however others end."""

from __future__ import annotations

import pytest

from holdfast.store import Claim
from holdfast.store.commands import WaitOutcome
from tests.store.test_children import BAD, LAST_CRASH, finish, join
from tests.support.world import CANCELLED, OVERDUE, SECOND, end_of


@pytest.fixture
def parent(world):
    world.session("w")
    return world.running("w")


def let_go(world):
    """Return the children that are active."""
    found = world.sql(
        "select count(*) from {schema}runs where parent is not null and finished_at is null and state <> 'blocked'"
    )
    return found[0][0]


def test_only_as_many_children_as_the_concurrency_are_ready(world, parent):
    children = world.spawn("w", parent, 5, concurrency=2)
    assert world.states(children) == ["ready", "ready", "blocked", "blocked", "blocked"]


@pytest.mark.parametrize("how", ["done", *BAD])
def test_the_next_child_is_released_however_one_ends(world, parent, how):
    children = world.spawn("w", parent, 6, concurrency=2, run=LAST_CRASH)
    join(world, parent)
    for ended in range(1, 7):
        claims = world.claim("w", 8, ["child"])
        assert len(claims) == {1: 2, 6: 0}.get(ended, 1)
        running = [id for id in children if world.state(id) == "running"]
        (claim,) = [run for run in world.store.claims.list_owned("w") if run.id == running[0]]
        finish(world, _as_claim(claim), how)
        assert let_go(world) == min(2, 6 - ended)
    assert world.waits(parent.id) == {"$join:call#1#1": ("children", None)}


def _as_claim(owned):
    return Claim(owned.id, 0, 0, 0, 0, owned.fence, 1, 0, None, "", None)


def test_several_ends_release_as_many_children(world, parent):
    children = world.spawn("w", parent, 9, concurrency=4)
    claims = world.claim("w", 4, ["child"])
    world.store.attempts.end("w", [end_of(claim, in_tree=True) for claim in claims[:3]])
    assert world.states(children) == ["done"] * 3 + ["running"] + ["ready"] * 3 + ["blocked"] * 2


@pytest.mark.parametrize("how", ["cancelled", "overdue"])
def test_a_blocked_child_that_ends_releases_no_sibling(world, parent, how):
    children = world.spawn("w", parent, 5, concurrency=2)
    join(world, parent)
    if how == "cancelled":
        world.store.actions.cancel(children[3], CANCELLED)
    else:
        world.sql("update {schema}runs set deadline = 1 where place = 3")
        assert world.store.timers.fail_overdue(OVERDUE) == [children[3]]
    assert let_go(world) == 2
    for claim in world.claim("w", 2, ["child"]):
        finish(world, claim)
    assert world.states(children)[2:] == ["ready", world.state(children[3]), "ready"]


def test_a_retrying_child_counts_towards_the_concurrency(world, parent, clock):
    world.spawn("w", parent, 4, concurrency=2)
    one, other = world.claim("w", 2, ["child"])
    world.end("w", one, "retrying", in_tree=True)
    world.wait("w", other, "sleep", delay=9)
    world.suspend("w", other)
    assert (let_go(world), world.claim("w", 8, ["child"])) == (2, [])


def test_a_child_with_a_delay_is_scheduled_when_released(world, parent, clock):
    children = world.spawn("w", parent, 3, concurrency=1, run={"delay": 30 * SECOND})
    assert world.states(children) == ["scheduled", "blocked", "blocked"]
    clock.advance(30)
    world.store.timers.promote_due()
    finish(world, world.child("w"))
    assert world.states(children) == ["done", "ready", "blocked"], "its time has come meanwhile"


def test_maps_of_one_parent_are_limited_separately(world, parent):
    world.spawn("w", parent, 3, concurrency=1)
    others = world.spawn("w", parent, 3, concurrency=1, key="call#2", n=2)
    finish(world, world.child("w"))
    assert world.states(others) == ["ready", "blocked", "blocked"]
    assert let_go(world) == 2


@pytest.mark.parametrize("ended", [0, 1, 3])
def test_a_retried_parent_keeps_to_the_concurrency(world, parent, ended):
    children = world.spawn("w", parent, 6, concurrency=2)
    join(world, parent)
    for _ in range(ended):
        finish(world, world.child("w"))
    world.store.actions.cancel(parent.id, CANCELLED)
    assert let_go(world) == 0
    world.store.actions.retry(parent.id)
    assert let_go(world) == 2
    world.session("v")
    assert world.states(children) == ["done"] * ended + ["ready"] * 2 + ["blocked"] * (4 - ended)
    for _ in range(6 - ended):
        finish(world, world.child("w"))
        assert let_go(world) <= 2
    assert set(world.states(children)) == {"done"}


def test_a_retried_child_is_blocked_while_the_concurrency_is_used(world, parent):
    children = world.spawn("w", parent, 5, concurrency=2)
    join(world, parent)
    finish(world, world.child("w"), "failed")
    world.store.actions.retry(children[0])
    assert let_go(world) == 2
    finish(world, world.child("w"))
    assert world.state(children[0]) == "ready", "the first in order"
    for _ in range(4):
        finish(world, world.child("w"))
        assert let_go(world) <= 2
    assert set(world.states(children)) == {"done"}
    assert world.waits(parent.id) == {"$join:call#1#1": ("children", None)}


def test_a_parent_that_joins_after_all_ended_has_nothing_to_wait_for(world, parent):
    world.spawn("w", parent, 3, concurrency=1)
    for _ in range(3):
        finish(world, world.child("w"))
    assert join(world, parent) == WaitOutcome("children", None)
