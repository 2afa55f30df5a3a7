"""Actions on runs from outside: cancel and retry, in every state."""

from __future__ import annotations

from uuid import UUID

import pytest

from holdfast.errors import KeyConflict, RunFinished, RunNotFound
from tests.support.store_harness import CANCELLED, SECOND

NOBODY = "00000000-0000-7000-8000-000000000000"


def run_in(harness, state, **more):
    """Create a run in that state; session `w` owns it if it is running."""
    harness.session("w")
    if state == "scheduled":
        return harness.add(delay=60 * SECOND, **more)
    id = harness.add(**more)
    if state in ("running", "done", "failed", "retrying"):
        (claim,) = harness.claim("w")
        if state != "running":
            harness.end("w", claim, state)
    elif state == "cancelled":
        harness.store.actions.cancel(id, CANCELLED)
    elif state != "ready":
        finished = "{now}" if state == "skipped" else "null"
        harness.sql(f"update {{schema}}runs set state = :state, finished_at = {finished}", state=state)
    return id


@pytest.mark.parametrize("state", ["ready", "scheduled", "running", "retrying", "blocked", "waiting", "undoing"])
def test_an_unfinished_run_is_cancelled_with_its_reason(harness, clock, state):
    id = run_in(harness, state)
    records = len(harness.kinds(id))
    assert harness.store.actions.cancel(id, CANCELLED) is True
    row = harness.row(id)
    assert (row["state"], row["error"], row["held"], row["due_at"]) == ("cancelled", CANCELLED, None, None)
    assert (row["finished_at"], row["expires_at"]) == (clock.now, clock.now + row["keep"])
    assert harness.kinds(id)[records:] == ["cancelled"]
    assert harness.claim("w") == []


@pytest.mark.parametrize("state", ["done", "failed", "cancelled", "skipped"])
def test_cancelling_a_finished_run_changes_nothing(harness, clock, state):
    id = run_in(harness, state)
    before, kinds = harness.row(id), harness.kinds(id)
    clock.advance(1)
    assert harness.store.actions.cancel(id, '{"code":"again"}') is False
    assert (harness.row(id), harness.kinds(id)) == (before, kinds)


def test_the_history_of_a_cancel_names_the_running_attempt(harness, clock):
    harness.session("w")
    claim = harness.running("w")
    started = clock.now
    clock.advance(3)
    harness.store.actions.cancel(claim.id, CANCELLED)
    assert harness.store.queries.history(claim.id) == [(1, clock.now, "cancelled", 1, "w", started, CANCELLED)]


def test_cancelling_leaves_other_runs_alone(harness):
    one, other = harness.add(), harness.add()
    harness.store.actions.cancel(one, CANCELLED)
    assert harness.state(other) == "ready"


@pytest.mark.parametrize("verb", ["cancel", "retry"])
def test_a_missing_run_is_not_found(harness, verb):
    arguments = [NOBODY, CANCELLED][: 2 if verb == "cancel" else 1]
    with pytest.raises(RunNotFound, match=NOBODY):
        getattr(harness.store.actions, verb)(*arguments)


@pytest.mark.parametrize("state", ["failed", "cancelled"])
def test_a_retried_run_is_ready_with_new_budgets(harness, clock, state):
    id = run_in(harness, state, deadline_in=60 * SECOND)
    harness.sql("update {schema}runs set crashes = 2, failures = 2")
    kinds = harness.kinds(id)
    clock.advance(3600)
    assert harness.store.actions.retry(id) is True
    row = harness.row(id)
    assert (row["state"], row["attempt"], row["failures"], row["crashes"]) == ("ready", 0, 0, 0)
    assert (row["error"], row["result"], row["held"]) == (None, None, None)
    assert (row["finished_at"], row["expires_at"], row["started_at"]) == (None, None, None)
    assert row["deadline"] == clock.now + 60 * SECOND
    assert harness.kinds(id) == [*kinds, "retried"]


def test_a_retried_run_keeps_its_fence_so_that_late_ends_are_refused(harness, clock):
    harness.session("w")
    claim = harness.running("w")
    harness.end("w", claim, "failed")
    harness.store.actions.retry(claim.id)
    (again,) = harness.claim("w")
    assert (again.attempt, again.fence) == (1, 2)


@pytest.mark.parametrize("state", ["ready", "scheduled", "running", "blocked", "waiting", "undoing"])
def test_retrying_an_unfinished_run_changes_nothing(harness, state):
    id = run_in(harness, state)
    before, kinds = harness.row(id), harness.kinds(id)
    assert harness.store.actions.retry(id) is False
    assert (harness.row(id), harness.kinds(id)) == (before, kinds)


@pytest.mark.parametrize("state", ["done", "skipped"])
def test_a_successful_run_can_not_be_retried(harness, state):
    id = run_in(harness, state)
    before = harness.row(id)
    with pytest.raises(RunFinished, match=f"{id} is {state}"):
        harness.store.actions.retry(id)
    assert harness.row(id) == before


def test_a_retry_is_held_while_the_cancelled_code_still_runs(harness):
    harness.session("w")
    harness.session("v")
    claim = harness.running("w")
    harness.store.actions.cancel(claim.id, CANCELLED)
    harness.store.actions.retry(claim.id)
    row = harness.row(claim.id)
    assert (row["state"], row["held"], row["session"]) == ("ready", "quiescing", "w")
    assert harness.store.timers.release_held() == 0
    assert harness.claim("v") == []
    assert harness.store.attempts.release("w", [(claim.id, claim.fence)]) == 1
    assert [again.id for again in harness.claim("v")] == [claim.id]


def test_a_held_retry_is_released_when_the_old_worker_is_dead(harness, clock):
    harness.session("w")
    claim = harness.running("w")
    harness.store.actions.cancel(claim.id, CANCELLED)
    harness.store.actions.retry(claim.id)
    clock.advance(60)
    harness.session("v")
    assert harness.recover("w").released == 1
    (again,) = harness.claim("v")
    assert (again.id, harness.row(claim.id)["crashes"]) == (claim.id, 0)


def test_a_late_end_does_not_end_the_held_retry(harness):
    harness.session("w")
    claim = harness.running("w")
    harness.store.actions.cancel(claim.id, CANCELLED)
    harness.store.actions.retry(claim.id)
    assert not harness.end("w", claim)
    assert harness.state(claim.id) == "ready"


def test_the_history_of_cancelling_a_held_retry_names_no_attempt(harness):
    harness.session("w")
    claim = harness.running("w")
    harness.store.actions.cancel(claim.id, CANCELLED)
    harness.store.actions.retry(claim.id)
    assert harness.store.actions.cancel(claim.id, CANCELLED)
    assert harness.store.queries.history(claim.id)[-1][5] is None


def test_a_retry_whose_unique_name_is_in_use_is_a_conflict_that_names_the_holder(harness):
    old = run_in(harness, "cancelled", unique="u")
    holder = harness.add(unique="u")
    before = harness.row(old)
    with pytest.raises(KeyConflict, match=holder) as caught:
        harness.store.actions.retry(old)
    assert caught.value.run_id == UUID(holder)
    assert harness.row(old) == before
    harness.store.actions.cancel(holder, CANCELLED)
    assert harness.store.actions.retry(old) is True
