"""Retries in trees: a parent retries the children it hasn't joined, and waits for them again."""

from __future__ import annotations

import pytest

from holdfast.store.commands import WaitOutcome, WaitRegistered
from tests.store.test_children import finish, join
from tests.support.store_harness import CANCELLED, record_of


@pytest.fixture
def parent(harness):
    harness.session("w")
    return harness.running("w")


def let_go(harness):
    """Release everything that workers still ran."""
    harness.store.attempts.release("w", [(run.id, run.fence) for run in harness.store.claims.list_owned("w")])


def test_a_retry_of_a_parent_retries_descendants_that_ended_with_it(harness, parent):
    (child,) = harness.spawn("w", parent)
    done, _ = harness.spawn("w", parent, 2, key="map#1", n=2)
    claims = {claim.id: claim for claim in harness.claim("w", 2, ["child"])}
    (grandchild,) = harness.spawn("w", claims[child])
    finish(harness, claims[done])
    harness.store.actions.cancel(parent.id, CANCELLED)
    let_go(harness)
    assert harness.store.actions.retry(parent.id) is True
    assert harness.states([parent.id, child, grandchild, done]) == ["ready", "ready", "ready", "done"]
    assert harness.kinds(grandchild)[-1] == "retried"


@pytest.mark.parametrize("eager", [0, 1])
@pytest.mark.parametrize("asleep", [True, False])
def test_a_retried_parent_waits_again_for_the_children_that_were_cancelled_with_it(harness, parent, eager, asleep):
    """Their ends were counted, but the parent never read them."""
    children = harness.spawn("w", parent, 3)
    join(harness, parent, eager=eager)
    if asleep:
        harness.suspend("w", parent)
    finish(harness, harness.child("w"))
    harness.store.actions.cancel(parent.id, CANCELLED)
    let_go(harness)
    harness.store.actions.retry(parent.id)
    (again,) = harness.claim("w")
    kept = harness.store.journal.load([(again.id, 0)])[again.id]
    assert [wait.outcome for wait in kept.waits] in ([None], []), "nothing that it waited for has come"
    if not kept.waits:
        assert join(harness, again, eager=eager) == WaitRegistered(None)
    harness.suspend("w", again)
    assert harness.states([parent.id, *children]) == ["waiting", "done", "ready", "ready"]
    finish(harness, harness.child("w"))
    assert harness.state(parent.id) == "waiting"
    finish(harness, harness.child("w"))
    assert (harness.state(parent.id), harness.waits(parent.id)) == ("ready", {"$join:call#1#1": ("children", None)})


def test_joined_children_are_not_retried(harness, parent):
    (seen,) = harness.spawn("w", parent)
    finish(harness, harness.child("w"), "failed")
    assert join(harness, parent) == WaitOutcome("children", None)
    (unseen,) = harness.spawn("w", parent, key="call#2", n=2)
    harness.end("w", parent, "failed", in_tree=True)
    harness.store.actions.retry(parent.id)
    assert harness.states([seen, unseen]) == ["failed", "ready"]


def test_children_whose_recorded_failure_was_deleted_are_retried(harness, parent):
    (child,) = harness.spawn("w", parent)
    finish(harness, harness.child("w"), "failed")
    join(harness, parent)
    harness.end("w", parent, "failed", in_tree=True, forget=(10,))
    harness.store.actions.retry(parent.id)
    assert harness.state(child) == "ready"


def test_children_from_before_a_restart_are_not_retried(harness, parent):
    (old,) = harness.spawn("w", parent)
    finish(harness, harness.child("w"), "failed")
    harness.end("w", parent, "restarted", in_tree=True)
    (again,) = harness.claim("w")
    (new,) = harness.spawn("w", again)
    finish(harness, harness.child("w"), "failed")
    harness.end("w", again, "failed", in_tree=True)
    harness.store.actions.retry(parent.id)
    assert harness.states([old, new]) == ["failed", "ready"]


@pytest.mark.parametrize("eager", [0, 1])
def test_the_parent_waits_again_for_a_child_that_is_retried_alone(harness, parent, eager):
    """Its first end was counted before."""
    children = harness.spawn("w", parent, 2)
    join(harness, parent, eager=eager)
    harness.suspend("w", parent)
    failed, other = harness.claim("w", 2, ["child"])
    finish(harness, failed, "failed")
    assert harness.state(parent.id) == ("ready" if eager else "waiting")
    harness.store.actions.retry(failed.id)
    assert harness.waits(parent.id) == {"$join:call#1#1": (None, None)}
    finish(harness, harness.child("w"))
    assert harness.waits(parent.id) == {"$join:call#1#1": (None, None)}, "the other one is still at work"
    finish(harness, other)
    assert harness.waits(parent.id) == {"$join:call#1#1": ("children", None)}
    assert harness.state(parent.id) == "ready"
    assert harness.states(children) == ["done", "done"]


def test_an_eager_join_ended_by_another_failure_stays_resolved_when_a_child_is_retried(harness, parent):
    harness.spawn("w", parent, 3)
    join(harness, parent, eager=1)
    first, second, _ = harness.claim("w", 2, ["child"]) + harness.claim("w", 2, ["child"])
    finish(harness, first, "failed")
    finish(harness, second, "failed")
    harness.store.actions.retry(second.id)
    assert harness.waits(parent.id) == {"$join:call#1#1": ("failed", first.id)}


def test_a_child_retried_after_its_parent_ended_runs_alone(harness, parent):
    harness.spawn("w", parent)
    child = harness.child("w")
    finish(harness, child, "failed")
    harness.end("w", parent, in_tree=True)
    before = harness.row(parent.id)
    assert harness.store.actions.retry(child.id) is True
    assert (harness.row(parent.id), harness.state(child.id)) == (before, "ready")


def test_a_retry_keeps_checkpoints_and_the_end_of_sleeps(harness, parent, clock):
    harness.record("w", parent, 1)
    harness.wait("w", parent, "sleep", delay=50)
    harness.end("w", parent, "failed", in_tree=True)
    clock.now += 20
    harness.store.actions.retry(parent.id)
    (again,) = harness.claim("w")
    assert again.attempt == 1
    kept = harness.store.journal.load([(again.id, 0)])[again.id]
    assert [step.key for step in kept.checkpoints] == ["step 1"]
    assert [(wait.key, wait.due_in) for wait in kept.waits] == [("sleep", 30)]
    assert harness.write("w", record_of(again, 2, waited=True))[0]
