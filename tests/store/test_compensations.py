"""Runs with compensations: every failure undoes first, and others see the run finished only afterwards."""

from __future__ import annotations

import pytest

from holdfast.store.commands import RUN_LOST, MarkUndosCommand
from tests.store.test_children import join
from tests.support.world import CANCELLED, CRASHED, OVERDUE, token_of

CAUSES = {"failed": '{"code":"error"}', "cancelled": CANCELLED, "overdue": OVERDUE, "crashed": CRASHED}


@pytest.fixture
def claim(world):
    """A run with two steps that have compensations, and one that has none."""
    world.session("w")
    claim = world.running("w", max_crashes=0, deadline_in=50_000_000)
    prepare(world, claim)
    return claim


def prepare(world, claim):
    world.write("w", MarkUndosCommand(token_of(claim)))
    world.record("w", claim, 1, undo=1)
    world.record("w", claim, 2)
    world.record("w", claim, 3, undo=1)


def fail(world, claim, how):
    """Fail or cancel a run and release it."""
    if how == "failed":
        assert world.end("w", claim, "undoing", in_tree=True)
    elif how == "cancelled":
        assert world.store.actions.cancel(claim.id, CANCELLED)
    elif how == "overdue":
        world.clock.advance(50)
        assert world.store.timers.fail_overdue(OVERDUE) == []
    elif how == "crashed":
        world.clock.advance(60)
        assert world.recover("w").failed == []
        world.session("w")
    world.store.attempts.release("w", [(claim.id, claim.fence)])


def shown(world, id):
    return world.store.queries.outcome(id)[0]


@pytest.mark.parametrize("how", CAUSES)
def test_a_run_with_compensations_undoes_before_it_ends(world, claim, how):
    fail(world, claim, how)
    row = world.row(claim.id)
    ending = "cancelled" if how == "cancelled" else "failed"
    assert (row["state"], row["ending"], row["cause"], row["finished_at"]) == ("ready", ending, CAUSES[how], None)
    assert (row["deadline"], row["crashes"], row["failures"], row["held"]) == (None, 0, 0, None)
    assert shown(world, claim.id) == "undoing"
    (undoing,) = world.claim("w")
    assert (undoing.id, undoing.ending, undoing.undos) == (claim.id, ending, 1)
    assert shown(world, claim.id) == "undoing"
    assert world.end("w", undoing, "undone", state=ending, in_tree=True)
    row = world.row(claim.id)
    assert (row["state"], row["error"], row["ending"], row["cause"]) == (ending, CAUSES[how], None, None)
    assert world.kinds(claim.id)[-1] == ending
    assert row["expires_at"] == row["finished_at"] + row["keep"]


@pytest.mark.parametrize("how", ["cancelled", "overdue"])
def test_compensations_wait_until_the_old_attempt_is_released(world, claim, how):
    world.session("v", lease=1000)
    if how == "cancelled":
        world.store.actions.cancel(claim.id, CANCELLED)
    else:
        world.clock.advance(50)
        world.store.timers.fail_overdue(OVERDUE)
    row = world.row(claim.id)
    assert (row["held"], row["session"]) == ("quiescing", "w")
    assert world.claim("v") == []
    world.store.attempts.release("w", [(claim.id, claim.fence)])
    assert [run.id for run in world.claim("v")] == [claim.id]


def test_compensations_start_when_the_session_of_the_old_attempt_expires(world, claim):
    world.store.actions.cancel(claim.id, CANCELLED)
    world.clock.advance(60)
    world.recover("w")
    world.session("v")
    (undoing,) = world.claim("v")
    assert (undoing.id, world.row(claim.id)["crashes"]) == (claim.id, 0)


@pytest.mark.parametrize("state", ["waiting", "scheduled", "ready"])
def test_a_cancelled_run_that_is_not_running_undoes_at_once(world, claim, state):
    if state == "waiting":
        world.wait("w", claim, "sleep", delay=99)
        world.suspend("w", claim)
    else:
        world.end("w", claim, {"scheduled": "retrying", "ready": "handed_back"}[state], in_tree=True)
    assert world.store.actions.cancel(claim.id, CANCELLED) is True
    assert (shown(world, claim.id), world.kinds(claim.id)[-1]) == ("undoing", "undoing")
    (undoing,) = world.claim("w")
    assert undoing.ending == "cancelled"


def test_a_step_running_when_its_run_was_cancelled_is_still_recorded(world, claim):
    world.store.actions.cancel(claim.id, CANCELLED)
    assert world.record("w", claim, 4, undo=1) is RUN_LOST, (
        "it is kept, so that it can be undone; but nothing may follow"
    )
    assert world.record("w", claim, 7) is RUN_LOST
    assert world.write("w", MarkUndosCommand(token_of(claim))) == [RUN_LOST], "anything else is refused"
    assert world.wait("w", claim, "sleep", delay=1) is RUN_LOST
    world.store.attempts.release("w", [(claim.id, claim.fence)])
    assert world.record("w", claim, 5, undo=1) is RUN_LOST
    world.claim("w")
    assert world.record("w", claim, 6, undo=1) is RUN_LOST
    assert [step[0] for step in world.steps(claim.id)] == [1, 2, 3, 4]


@pytest.mark.parametrize("again", ["cancelled", "overdue"])
def test_an_undoing_run_is_not_ended_again(world, claim, again):
    fail(world, claim, "failed")
    before = world.row(claim.id)
    if again == "cancelled":
        assert world.store.actions.cancel(claim.id, CANCELLED) is False
    else:
        world.clock.advance(50)
        world.store.timers.fail_overdue(OVERDUE)
    assert world.row(claim.id) == before


def test_an_undoing_run_that_crashes_too_often_fails_and_a_retry_continues_undoing(world, claim):
    fail(world, claim, "cancelled")
    world.claim("w")
    world.clock.advance(60)
    assert world.recover("w").failed == [claim.id]
    row = world.row(claim.id)
    assert (row["state"], row["error"], row["ending"], row["cause"]) == ("failed", CRASHED, "cancelled", CANCELLED)
    world.store.actions.retry(claim.id)
    assert (shown(world, claim.id), world.row(claim.id)["ending"]) == ("undoing", "cancelled")


def test_the_children_of_a_run_that_undoes_are_cancelled_and_its_parent_waits(world):
    world.session("w")
    parent = world.running("w")
    world.spawn("w", parent)
    join(world, parent)
    world.suspend("w", parent)
    child = world.child("w")
    prepare(world, child)
    (grandchild,) = world.spawn("w", child, n=4)
    assert world.end("w", child, "undoing", in_tree=True)
    assert world.states([grandchild, parent.id]) == ["cancelled", "waiting"]
    undoing = world.child("w")
    assert world.end("w", undoing, "undone", state="failed", in_tree=True)
    assert world.states([child.id, parent.id]) == ["failed", "ready"]


def test_children_with_compensations_undo_when_their_parent_is_cancelled(world):
    world.session("w")
    parent = world.running("w")
    world.spawn("w", parent)
    child = world.child("w")
    prepare(world, child)
    world.store.actions.cancel(parent.id, CANCELLED)
    assert world.state(parent.id) == "cancelled"
    assert (shown(world, child.id), world.row(child.id)["held"]) == ("undoing", "quiescing")


# Retrying


def undo(world, claim, n):
    return world.record("w", claim, n, f"$undo:{n}", kind="undone", value=str({5: 3, 6: 1}[n]))


def test_a_retry_of_an_undone_run_runs_the_undone_steps_again(world, claim):
    fail(world, claim, "failed")
    (undoing,) = world.claim("w")
    undo(world, undoing, 5)
    undo(world, undoing, 6)
    world.end("w", undoing, "undone", state="failed", in_tree=True)
    assert world.store.actions.retry(claim.id) is True
    kept = [step[0] for step in world.steps(claim.id)]
    assert kept == [2, 5, 6], "what wasn't undone is kept, and what says that the others were"
    row = world.row(claim.id)
    assert (row["state"], row["ending"], row["error"], row["undos"]) == ("ready", None, None, 1)
    assert row["deadline"] == world.clock.now + row["lifetime"]


def test_a_retry_of_a_failed_undo_continues_with_the_rest(world, claim):
    fail(world, claim, "cancelled")
    (undoing,) = world.claim("w")
    undo(world, undoing, 5)
    world.end("w", undoing, "failed", in_tree=True, error='{"code":"undo"}')
    row = world.row(claim.id)
    assert (row["state"], row["error"], row["ending"]) == ("failed", '{"code":"undo"}', "cancelled")
    assert shown(world, claim.id) == "failed"
    assert world.store.actions.retry(claim.id) is True
    row = world.row(claim.id)
    assert (row["state"], row["ending"], row["error"], row["deadline"]) == ("ready", "cancelled", CANCELLED, None)
    assert [step[0] for step in world.steps(claim.id)] == [1, 2, 3, 5]
    (again,) = world.claim("w")
    world.end("w", again, "undone", state="cancelled", in_tree=True)
    assert (world.state(claim.id), world.row(claim.id)["error"]) == ("cancelled", CANCELLED)


def test_children_stay_cancelled_when_only_the_undo_is_retried(world, claim):
    (child,) = world.spawn("w", claim, n=4)
    fail(world, claim, "cancelled")
    (undoing,) = world.claim("w")
    world.end("w", undoing, "failed", in_tree=True)
    world.store.actions.retry(claim.id)
    assert world.states([claim.id, child]) == ["ready", "cancelled"]


def test_a_run_without_compensations_ends_at_once(world):
    world.session("w")
    claim = world.running("w")
    world.record("w", claim, 1)
    world.store.actions.cancel(claim.id, CANCELLED)
    assert (world.state(claim.id), world.row(claim.id)["ending"]) == ("cancelled", None)
    assert world.record("w", claim, 2) is RUN_LOST
