"""Actions on runs from outside: cancel and retry, in every state."""

from __future__ import annotations

from uuid import UUID

import pytest

from holdfast.errors import KeyConflict, RunFinished, RunNotFound
from tests.support.world import CANCELLED, SECOND

NOBODY = "00000000-0000-7000-8000-000000000000"


def run_in(world, state, **more):
    """Create a run in that state; session `w` owns it if it is running."""
    world.session("w")
    if state == "scheduled":
        return world.add(delay=60 * SECOND, **more)
    id = world.add(**more)
    if state in ("running", "done", "failed", "retrying"):
        (claim,) = world.claim("w")
        if state != "running":
            world.end("w", claim, state)
    elif state == "cancelled":
        world.store.actions.cancel(id, CANCELLED)
    elif state != "ready":
        finished = "{now}" if state == "skipped" else "null"
        world.sql(f"update {{schema}}runs set state = :state, finished_at = {finished}", state=state)
    return id


@pytest.mark.parametrize("state", ["ready", "scheduled", "running", "retrying", "blocked", "waiting", "undoing"])
def test_an_unfinished_run_is_cancelled_with_its_reason(world, clock, state):
    id = run_in(world, state)
    records = len(world.kinds(id))
    assert world.store.actions.cancel(id, CANCELLED) is True
    row = world.row(id)
    assert (row["state"], row["error"], row["held"], row["due_at"]) == ("cancelled", CANCELLED, None, None)
    assert (row["finished_at"], row["expires_at"]) == (clock.now, clock.now + row["keep"])
    assert world.kinds(id)[records:] == ["cancelled"]
    assert world.claim("w") == []


@pytest.mark.parametrize("state", ["done", "failed", "cancelled", "skipped"])
def test_cancelling_a_finished_run_changes_nothing(world, clock, state):
    id = run_in(world, state)
    before, kinds = world.row(id), world.kinds(id)
    clock.advance(1)
    assert world.store.actions.cancel(id, '{"code":"again"}') is False
    assert (world.row(id), world.kinds(id)) == (before, kinds)


def test_the_history_of_a_cancel_names_the_running_attempt(world, clock):
    world.session("w")
    claim = world.running("w")
    started = clock.now
    clock.advance(3)
    world.store.actions.cancel(claim.id, CANCELLED)
    assert world.store.queries.history(claim.id) == [(1, clock.now, "cancelled", 1, "w", started, CANCELLED)]


def test_cancelling_leaves_other_runs_alone(world):
    one, other = world.add(), world.add()
    world.store.actions.cancel(one, CANCELLED)
    assert world.state(other) == "ready"


@pytest.mark.parametrize("verb", ["cancel", "retry"])
def test_a_missing_run_is_not_found(world, verb):
    arguments = [NOBODY, CANCELLED][: 2 if verb == "cancel" else 1]
    with pytest.raises(RunNotFound, match=NOBODY):
        getattr(world.store.actions, verb)(*arguments)


@pytest.mark.parametrize("state", ["failed", "cancelled"])
def test_a_retried_run_is_ready_with_new_budgets(world, clock, state):
    id = run_in(world, state, deadline_in=60 * SECOND)
    world.sql("update {schema}runs set crashes = 2, failures = 2")
    kinds = world.kinds(id)
    clock.advance(3600)
    assert world.store.actions.retry(id) is True
    row = world.row(id)
    assert (row["state"], row["attempt"], row["failures"], row["crashes"]) == ("ready", 0, 0, 0)
    assert (row["error"], row["result"], row["held"]) == (None, None, None)
    assert (row["finished_at"], row["expires_at"], row["started_at"]) == (None, None, None)
    assert row["deadline"] == clock.now + 60 * SECOND
    assert world.kinds(id) == [*kinds, "retried"]


def test_a_retried_run_keeps_its_fence_so_that_late_ends_are_refused(world, clock):
    world.session("w")
    claim = world.running("w")
    world.end("w", claim, "failed")
    world.store.actions.retry(claim.id)
    (again,) = world.claim("w")
    assert (again.attempt, again.fence) == (1, 2)


@pytest.mark.parametrize("state", ["ready", "scheduled", "running", "blocked", "waiting", "undoing"])
def test_retrying_an_unfinished_run_changes_nothing(world, state):
    id = run_in(world, state)
    before, kinds = world.row(id), world.kinds(id)
    assert world.store.actions.retry(id) is False
    assert (world.row(id), world.kinds(id)) == (before, kinds)


@pytest.mark.parametrize("state", ["done", "skipped"])
def test_a_successful_run_can_not_be_retried(world, state):
    id = run_in(world, state)
    before = world.row(id)
    with pytest.raises(RunFinished, match=f"{id} is {state}"):
        world.store.actions.retry(id)
    assert world.row(id) == before


def test_a_retry_is_held_while_the_cancelled_code_still_runs(world):
    world.session("w")
    world.session("v")
    claim = world.running("w")
    world.store.actions.cancel(claim.id, CANCELLED)
    world.store.actions.retry(claim.id)
    row = world.row(claim.id)
    assert (row["state"], row["held"], row["session"]) == ("ready", "quiescing", "w")
    assert world.store.timers.release_held() == 0
    assert world.claim("v") == []
    assert world.store.attempts.release("w", [(claim.id, claim.fence)]) == 1
    assert [again.id for again in world.claim("v")] == [claim.id]


def test_a_held_retry_is_released_when_the_old_worker_is_dead(world, clock):
    world.session("w")
    claim = world.running("w")
    world.store.actions.cancel(claim.id, CANCELLED)
    world.store.actions.retry(claim.id)
    clock.advance(60)
    world.session("v")
    assert world.recover("w").released == 1
    (again,) = world.claim("v")
    assert (again.id, world.row(claim.id)["crashes"]) == (claim.id, 0)


def test_a_late_end_does_not_end_the_held_retry(world):
    world.session("w")
    claim = world.running("w")
    world.store.actions.cancel(claim.id, CANCELLED)
    world.store.actions.retry(claim.id)
    assert not world.end("w", claim)
    assert world.state(claim.id) == "ready"


def test_the_history_of_cancelling_a_held_retry_names_no_attempt(world):
    world.session("w")
    claim = world.running("w")
    world.store.actions.cancel(claim.id, CANCELLED)
    world.store.actions.retry(claim.id)
    assert world.store.actions.cancel(claim.id, CANCELLED)
    assert world.store.queries.history(claim.id)[-1][5] is None


def test_a_retry_whose_unique_name_is_in_use_is_a_conflict_that_names_the_holder(world):
    old = run_in(world, "cancelled", unique="u")
    holder = world.add(unique="u")
    before = world.row(old)
    with pytest.raises(KeyConflict, match=holder) as caught:
        world.store.actions.retry(old)
    assert caught.value.run_id == UUID(holder)
    assert world.row(old) == before
    world.store.actions.cancel(holder, CANCELLED)
    assert world.store.actions.retry(old) is True
