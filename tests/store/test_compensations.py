"""Runs with compensations: every failure undoes first, and others see the run finished only afterwards."""

from __future__ import annotations

import pytest

from holdfast.store.commands import RUN_LOST, MarkUndosCommand
from tests.store.test_children import join
from tests.support.store_harness import CANCELLED, CRASHED, OVERDUE, token_of

CAUSES = {"failed": '{"code":"error"}', "cancelled": CANCELLED, "overdue": OVERDUE, "crashed": CRASHED}


@pytest.fixture
def claim(harness):
    """A run with two steps that have compensations, and one that has none."""
    harness.session("w")
    claim = harness.running("w", max_crashes=0, deadline_in=50_000_000)
    prepare(harness, claim)
    return claim


def prepare(harness, claim):
    harness.write("w", MarkUndosCommand(token_of(claim)))
    harness.record("w", claim, 1, undo=1)
    harness.record("w", claim, 2)
    harness.record("w", claim, 3, undo=1)


def fail(harness, claim, how):
    """Fail or cancel a run and release it."""
    if how == "failed":
        assert harness.end("w", claim, "undoing", in_tree=True)
    elif how == "cancelled":
        assert harness.store.actions.cancel(claim.id, CANCELLED)
    elif how == "overdue":
        harness.clock.advance(50)
        assert harness.store.timers.fail_overdue(OVERDUE) == []
    elif how == "crashed":
        harness.clock.advance(60)
        assert harness.recover("w").failed == []
        harness.session("w")
    harness.store.attempts.release("w", [(claim.id, claim.fence)])


def shown(harness, id):
    return harness.store.outcomes.read(id)[0]


@pytest.mark.parametrize("how", CAUSES)
def test_a_run_with_compensations_undoes_before_it_ends(harness, claim, how):
    fail(harness, claim, how)
    row = harness.row(claim.id)
    ending = "cancelled" if how == "cancelled" else "failed"
    assert (row["state"], row["ending"], row["cause"], row["finished_at"]) == ("ready", ending, CAUSES[how], None)
    assert (row["deadline"], row["crashes"], row["failures"], row["held"]) == (None, 0, 0, None)
    assert shown(harness, claim.id) == "undoing"
    (undoing,) = harness.claim("w")
    assert (undoing.id, undoing.ending, undoing.undos) == (claim.id, ending, 1)
    assert shown(harness, claim.id) == "undoing"
    assert harness.end("w", undoing, "undone", state=ending, in_tree=True)
    row = harness.row(claim.id)
    assert (row["state"], row["error"], row["ending"], row["cause"]) == (ending, CAUSES[how], None, None)
    assert harness.kinds(claim.id)[-1] == ending
    assert row["expires_at"] == row["finished_at"] + row["keep"]


@pytest.mark.parametrize("how", ["cancelled", "overdue"])
def test_compensations_wait_until_the_old_attempt_is_released(harness, claim, how):
    harness.session("v", lease=1000)
    if how == "cancelled":
        harness.store.actions.cancel(claim.id, CANCELLED)
    else:
        harness.clock.advance(50)
        harness.store.timers.fail_overdue(OVERDUE)
    row = harness.row(claim.id)
    assert (row["held"], row["session"]) == ("quiescing", "w")
    assert harness.claim("v") == []
    harness.store.attempts.release("w", [(claim.id, claim.fence)])
    assert [run.id for run in harness.claim("v")] == [claim.id]


def test_compensations_start_when_the_session_of_the_old_attempt_expires(harness, claim):
    harness.store.actions.cancel(claim.id, CANCELLED)
    harness.clock.advance(60)
    harness.recover("w")
    harness.session("v")
    (undoing,) = harness.claim("v")
    assert (undoing.id, harness.row(claim.id)["crashes"]) == (claim.id, 0)


@pytest.mark.parametrize("state", ["waiting", "scheduled", "ready"])
def test_a_cancelled_run_that_is_not_running_undoes_at_once(harness, claim, state):
    if state == "waiting":
        harness.wait("w", claim, "sleep", delay=99)
        harness.suspend("w", claim)
    else:
        harness.end("w", claim, {"scheduled": "retrying", "ready": "handed_back"}[state], in_tree=True)
    assert harness.store.actions.cancel(claim.id, CANCELLED) is True
    assert (shown(harness, claim.id), harness.kinds(claim.id)[-1]) == ("undoing", "undoing")
    (undoing,) = harness.claim("w")
    assert undoing.ending == "cancelled"


def test_a_step_running_when_its_run_was_cancelled_is_still_recorded(harness, claim):
    harness.store.actions.cancel(claim.id, CANCELLED)
    assert harness.record("w", claim, 4, undo=1) is RUN_LOST, (
        "it is kept, so that it can be undone; but nothing may follow"
    )
    assert harness.record("w", claim, 7) is RUN_LOST
    assert harness.write("w", MarkUndosCommand(token_of(claim))) == [RUN_LOST], "anything else is refused"
    assert harness.wait("w", claim, "sleep", delay=1) is RUN_LOST
    harness.store.attempts.release("w", [(claim.id, claim.fence)])
    assert harness.record("w", claim, 5, undo=1) is RUN_LOST
    harness.claim("w")
    assert harness.record("w", claim, 6, undo=1) is RUN_LOST
    assert [step[0] for step in harness.steps(claim.id)] == [1, 2, 3, 4]


@pytest.mark.parametrize("again", ["cancelled", "overdue"])
def test_an_undoing_run_is_not_ended_again(harness, claim, again):
    fail(harness, claim, "failed")
    before = harness.row(claim.id)
    if again == "cancelled":
        assert harness.store.actions.cancel(claim.id, CANCELLED) is False
    else:
        harness.clock.advance(50)
        harness.store.timers.fail_overdue(OVERDUE)
    assert harness.row(claim.id) == before


def test_an_undoing_run_that_crashes_too_often_fails_and_a_retry_continues_undoing(harness, claim):
    fail(harness, claim, "cancelled")
    harness.claim("w")
    harness.clock.advance(60)
    assert harness.recover("w").failed == [claim.id]
    row = harness.row(claim.id)
    assert (row["state"], row["error"], row["ending"], row["cause"]) == ("failed", CRASHED, "cancelled", CANCELLED)
    harness.store.actions.retry(claim.id)
    assert (shown(harness, claim.id), harness.row(claim.id)["ending"]) == ("undoing", "cancelled")


def test_the_children_of_a_run_that_undoes_are_cancelled_and_its_parent_waits(harness):
    harness.session("w")
    parent = harness.running("w")
    harness.spawn("w", parent)
    join(harness, parent)
    harness.suspend("w", parent)
    child = harness.child("w")
    prepare(harness, child)
    (grandchild,) = harness.spawn("w", child, n=4)
    assert harness.end("w", child, "undoing", in_tree=True)
    assert harness.states([grandchild, parent.id]) == ["cancelled", "waiting"]
    undoing = harness.child("w")
    assert harness.end("w", undoing, "undone", state="failed", in_tree=True)
    assert harness.states([child.id, parent.id]) == ["failed", "ready"]


def test_children_with_compensations_undo_when_their_parent_is_cancelled(harness):
    harness.session("w")
    parent = harness.running("w")
    harness.spawn("w", parent)
    child = harness.child("w")
    prepare(harness, child)
    harness.store.actions.cancel(parent.id, CANCELLED)
    assert harness.state(parent.id) == "cancelled"
    assert (shown(harness, child.id), harness.row(child.id)["held"]) == ("undoing", "quiescing")


# Retrying


def undo(harness, claim, n):
    return harness.record("w", claim, n, f"$undo:{n}", kind="undone", value=str({5: 3, 6: 1}[n]))


def test_a_retry_of_an_undone_run_runs_the_undone_steps_again(harness, claim):
    fail(harness, claim, "failed")
    (undoing,) = harness.claim("w")
    undo(harness, undoing, 5)
    undo(harness, undoing, 6)
    harness.end("w", undoing, "undone", state="failed", in_tree=True)
    assert harness.store.actions.retry(claim.id) is True
    kept = [step.n for step in harness.store.queries.steps(claim.id)]
    assert kept == [5, 6], "that steps were undone; what was recorded from the first of them on runs again"
    everything = harness.store.queries.step_outline(claim.id)
    assert [(step.n, step.generation < 0) for step in everything] == [
        (1, True), (2, True), (3, True), (5, False), (6, False),
    ]  # fmt: skip
    assert harness.kinds(claim.id)[-1] == "retried"
    row = harness.row(claim.id)
    assert (row["state"], row["ending"], row["error"], row["undos"]) == ("ready", None, None, 1)
    assert row["deadline"] == harness.clock.now + row["lifetime"]


def test_a_retry_of_a_failed_undo_continues_with_the_rest(harness, claim):
    fail(harness, claim, "cancelled")
    (undoing,) = harness.claim("w")
    undo(harness, undoing, 5)
    harness.end("w", undoing, "failed", in_tree=True, error='{"code":"undo"}')
    row = harness.row(claim.id)
    assert (row["state"], row["error"], row["ending"]) == ("failed", '{"code":"undo"}', "cancelled")
    assert shown(harness, claim.id) == "failed"
    assert harness.store.actions.retry(claim.id) is True
    row = harness.row(claim.id)
    assert (row["state"], row["ending"], row["error"], row["deadline"]) == ("ready", "cancelled", CANCELLED, None)
    assert [step[0] for step in harness.steps(claim.id)] == [1, 2, 3, 5]
    (again,) = harness.claim("w")
    harness.end("w", again, "undone", state="cancelled", in_tree=True)
    assert (harness.state(claim.id), harness.row(claim.id)["error"]) == ("cancelled", CANCELLED)


def test_children_stay_cancelled_when_only_the_undo_is_retried(harness, claim):
    (child,) = harness.spawn("w", claim, n=4)
    fail(harness, claim, "cancelled")
    (undoing,) = harness.claim("w")
    harness.end("w", undoing, "failed", in_tree=True)
    harness.store.actions.retry(claim.id)
    assert harness.states([claim.id, child]) == ["ready", "cancelled"]


def test_a_run_without_compensations_ends_at_once(harness):
    harness.session("w")
    claim = harness.running("w")
    harness.record("w", claim, 1)
    harness.store.actions.cancel(claim.id, CANCELLED)
    assert (harness.state(claim.id), harness.row(claim.id)["ending"]) == ("cancelled", None)
    assert harness.record("w", claim, 2) is RUN_LOST
