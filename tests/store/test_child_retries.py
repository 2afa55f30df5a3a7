"""Retries in trees: a parent retries the children it hasn't joined, and waits for them again."""

from __future__ import annotations

import pytest

from holdfast.store.commands import WaitOutcome, WaitRegistered
from tests.store.test_children import finish, join
from tests.support.world import CANCELLED, record_of


@pytest.fixture
def parent(world):
    world.session("w")
    return world.running("w")


def let_go(world):
    """Release everything that workers still ran."""
    world.store.attempts.release("w", [(run.id, run.fence) for run in world.store.claims.list_owned("w")])


def test_a_retry_of_a_parent_retries_descendants_that_ended_with_it(world, parent):
    (child,) = world.spawn("w", parent)
    done, _ = world.spawn("w", parent, 2, key="map#1", n=2)
    claims = {claim.id: claim for claim in world.claim("w", 2, ["child"])}
    (grandchild,) = world.spawn("w", claims[child])
    finish(world, claims[done])
    world.store.actions.cancel(parent.id, CANCELLED)
    let_go(world)
    assert world.store.actions.retry(parent.id) is True
    assert world.states([parent.id, child, grandchild, done]) == ["ready", "ready", "ready", "done"]
    assert world.kinds(grandchild)[-1] == "retried"


@pytest.mark.parametrize("eager", [0, 1])
@pytest.mark.parametrize("asleep", [True, False])
def test_a_retried_parent_waits_again_for_the_children_that_were_cancelled_with_it(world, parent, eager, asleep):
    """Their ends were counted, but the parent never read them."""
    children = world.spawn("w", parent, 3)
    join(world, parent, eager=eager)
    if asleep:
        world.suspend("w", parent)
    finish(world, world.child("w"))
    world.store.actions.cancel(parent.id, CANCELLED)
    let_go(world)
    world.store.actions.retry(parent.id)
    (again,) = world.claim("w")
    kept = world.store.journal.load([(again.id, 0)])[again.id]
    assert [wait.outcome for wait in kept.waits] in ([None], []), "nothing that it waited for has come"
    if not kept.waits:
        assert join(world, again, eager=eager) == WaitRegistered(None)
    world.suspend("w", again)
    assert world.states([parent.id, *children]) == ["waiting", "done", "ready", "ready"]
    finish(world, world.child("w"))
    assert world.state(parent.id) == "waiting"
    finish(world, world.child("w"))
    assert (world.state(parent.id), world.waits(parent.id)) == ("ready", {"$join:call#1#1": ("children", None)})


def test_joined_children_are_not_retried(world, parent):
    (seen,) = world.spawn("w", parent)
    finish(world, world.child("w"), "failed")
    assert join(world, parent) == WaitOutcome("children", None)
    (unseen,) = world.spawn("w", parent, key="call#2", n=2)
    world.end("w", parent, "failed", in_tree=True)
    world.store.actions.retry(parent.id)
    assert world.states([seen, unseen]) == ["failed", "ready"]


def test_children_whose_recorded_failure_was_deleted_are_retried(world, parent):
    (child,) = world.spawn("w", parent)
    finish(world, world.child("w"), "failed")
    join(world, parent)
    world.end("w", parent, "failed", in_tree=True, forget=(10,))
    world.store.actions.retry(parent.id)
    assert world.state(child) == "ready"


def test_children_from_before_a_restart_are_not_retried(world, parent):
    (old,) = world.spawn("w", parent)
    finish(world, world.child("w"), "failed")
    world.end("w", parent, "restarted", in_tree=True)
    (again,) = world.claim("w")
    (new,) = world.spawn("w", again)
    finish(world, world.child("w"), "failed")
    world.end("w", again, "failed", in_tree=True)
    world.store.actions.retry(parent.id)
    assert world.states([old, new]) == ["failed", "ready"]


@pytest.mark.parametrize("eager", [0, 1])
def test_the_parent_waits_again_for_a_child_that_is_retried_alone(world, parent, eager):
    """Its first end was counted before."""
    children = world.spawn("w", parent, 2)
    join(world, parent, eager=eager)
    world.suspend("w", parent)
    failed, other = world.claim("w", 2, ["child"])
    finish(world, failed, "failed")
    assert world.state(parent.id) == ("ready" if eager else "waiting")
    world.store.actions.retry(failed.id)
    assert world.waits(parent.id) == {"$join:call#1#1": (None, None)}
    finish(world, world.child("w"))
    assert world.waits(parent.id) == {"$join:call#1#1": (None, None)}, "the other one is still at work"
    finish(world, other)
    assert world.waits(parent.id) == {"$join:call#1#1": ("children", None)}
    assert world.state(parent.id) == "ready"
    assert world.states(children) == ["done", "done"]


def test_an_eager_join_ended_by_another_failure_stays_resolved_when_a_child_is_retried(world, parent):
    world.spawn("w", parent, 3)
    join(world, parent, eager=1)
    first, second, _ = world.claim("w", 2, ["child"]) + world.claim("w", 2, ["child"])
    finish(world, first, "failed")
    finish(world, second, "failed")
    world.store.actions.retry(second.id)
    assert world.waits(parent.id) == {"$join:call#1#1": ("failed", first.id)}


def test_a_child_retried_after_its_parent_ended_runs_alone(world, parent):
    world.spawn("w", parent)
    child = world.child("w")
    finish(world, child, "failed")
    world.end("w", parent, in_tree=True)
    before = world.row(parent.id)
    assert world.store.actions.retry(child.id) is True
    assert (world.row(parent.id), world.state(child.id)) == (before, "ready")


def test_a_retry_keeps_checkpoints_and_the_end_of_sleeps(world, parent, clock):
    world.record("w", parent, 1)
    world.wait("w", parent, "sleep", delay=50)
    world.end("w", parent, "failed", in_tree=True)
    clock.now += 20
    world.store.actions.retry(parent.id)
    (again,) = world.claim("w")
    assert again.attempt == 1
    kept = world.store.journal.load([(again.id, 0)])[again.id]
    assert [step.key for step in kept.checkpoints] == ["step 1"]
    assert [(wait.key, wait.due_in) for wait in kept.waits] == [("sleep", 30)]
    assert world.write("w", record_of(again, 2, waited=True))[0]
