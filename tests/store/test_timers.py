"""Timers: scheduled runs come due, deadlines pass, expired runs are pruned, held ones released."""

from __future__ import annotations

import pytest

from tests.support.world import CANCELLED, DAY, OVERDUE, SECOND


def test_scheduled_runs_become_ready_when_their_time_has_come(world, clock):
    soon, late = world.add(delay=SECOND), world.add(delay=2 * SECOND)
    assert world.store.timers.promote_due() == 0
    clock.advance(1)
    assert world.store.timers.promote_due() == 1
    assert (world.state(soon), world.row(soon)["due_at"], world.state(late)) == ("ready", None, "scheduled")
    clock.advance(1)
    assert world.store.timers.promote_due() == 1
    assert world.store.timers.promote_due() == 0


def test_due_runs_are_promoted_in_order_in_batches_of_500(world, clock):
    last = world.add(delay=2 * SECOND)
    world.add_many(500, delay=SECOND)
    clock.advance(10)
    assert world.store.timers.promote_due() == 500
    assert world.state(last) == "scheduled"
    assert world.store.timers.promote_due() == 1


def test_promoted_runs_are_claimed_by_priority_and_due_time(world, clock):
    ids = [world.add(delay=2 * SECOND), world.add(delay=SECOND), world.add(delay=SECOND, priority=1)]
    clock.advance(5)
    world.store.timers.promote_due()
    world.session("w")
    assert [claim.id for claim in world.claim("w", 4)] == [ids[2], ids[1], ids[0]]


def test_due_returns_the_earliest_due_time_and_deadline(world, clock):
    def next_due():
        return world.store.timers.due().next()

    assert next_due() is None
    world.add()
    assert next_due() is None
    world.add(deadline_in=50 * SECOND)
    assert next_due() == 50 * SECOND
    world.add(delay=30 * SECOND)
    assert next_due() == 30 * SECOND
    clock.advance(40)
    assert next_due() == -10 * SECOND
    world.store.timers.promote_due()
    assert next_due() == 10 * SECOND
    clock.advance(10)
    world.store.timers.fail_overdue(OVERDUE)
    assert next_due() is None


def overdue_in(world, state):
    """A run with a deadline in 10 seconds, in that state."""
    world.session("w")
    if state == "scheduled":
        return world.add(delay=3600 * SECOND, deadline_in=10 * SECOND)
    id = world.add(deadline_in=10 * SECOND)
    if state == "running":
        world.claim("w")
    elif state == "held":
        world.sql("update {schema}runs set held = 'limit'")
    elif state == "lingering":
        world.end("w", world.claim("w")[0], "timed_out", still_running=1)
    elif state in ("blocked", "waiting", "undoing"):
        world.sql("update {schema}runs set state = :state", state=state)
    return id


@pytest.mark.parametrize(
    "state", ["ready", "scheduled", "running", "held", "lingering", "blocked", "waiting", "undoing"]
)
def test_an_unfinished_run_past_its_deadline_fails_whatever_it_is_doing(world, clock, state):
    id = overdue_in(world, state)
    records = len(world.kinds(id))
    clock.advance(9.999999)
    assert world.store.timers.fail_overdue(OVERDUE) == []
    clock.advance(0.000001)
    assert world.store.timers.fail_overdue(OVERDUE) == [id]
    row = world.row(id)
    assert (row["state"], row["error"], row["held"], row["due_at"]) == ("failed", OVERDUE, None, None)
    assert (row["finished_at"], row["expires_at"]) == (clock.now, clock.now + row["keep"])
    assert world.kinds(id)[records:] == ["failed"]
    assert world.store.timers.fail_overdue(OVERDUE) == []


def test_an_overdue_run_keeps_its_session_until_the_worker_releases_it(world, clock):
    world.session("w")
    claim = world.running("w", deadline_in=10 * SECOND)
    started = clock.now
    clock.advance(10)
    world.store.timers.fail_overdue(OVERDUE)
    assert world.row(claim.id)["session"] == "w"
    assert world.store.queries.history(claim.id) == [(1, clock.now, "failed", 1, "w", started, OVERDUE)]
    assert world.store.attempts.release("w", [(claim.id, claim.fence)]) == 1


@pytest.mark.parametrize("kind", ["done", "failed"])
def test_a_finished_run_has_no_deadline_any_more(world, clock, kind):
    world.session("w")
    claim = world.running("w", deadline_in=10 * SECOND)
    world.end("w", claim, kind)
    clock.advance(20)
    assert world.store.timers.fail_overdue(OVERDUE) == []
    assert world.kinds(claim.id) == [kind]


# Pruning


def finished(world, keep):
    world.session("w")
    claim = world.running("w", keep=keep, key=str(keep))
    world.end("w", claim)
    return claim.id


def test_only_expired_runs_are_pruned_with_their_history(world, clock):
    old, young = finished(world, 1 * DAY), finished(world, 2 * DAY)
    unfinished = world.add(keep=1)
    clock.advance(86_400 - 0.000001)
    assert world.store.retention.prune() == (0, False)
    clock.advance(0.000001)
    assert world.store.retention.prune() == (1, False)
    assert world.store.queries.run(old) is None
    assert world.store.queries.history(old) == []
    assert world.store.queries.run(young) is not None
    assert world.kinds(young) == ["done"]
    assert world.state(unfinished) == "ready"
    assert world.rows("keys") == 2, "keys outlive their runs"


@pytest.mark.parametrize("verb", ["cancel", "overdue", "crash"])
def test_unsuccessful_runs_are_pruned_too(world, clock, verb):
    world.session("w")
    claim = world.running("w", keep=DAY, deadline_in=60 * SECOND, max_crashes=0)
    if verb == "cancel":
        world.store.actions.cancel(claim.id, CANCELLED)
    clock.advance(60)
    if verb == "overdue":
        world.store.timers.fail_overdue(OVERDUE)
    world.recover("w")
    clock.advance(86_400)
    assert world.store.retention.prune() == (1, False)
    assert world.rows("history") == 0


def test_a_run_that_a_session_still_owns_is_kept(world, clock):
    world.session("w", lease=10 * 86_400)
    claim = world.running("w", keep=DAY)
    world.store.actions.cancel(claim.id, CANCELLED)
    clock.advance(2 * 86_400)
    assert world.store.retention.prune() == (0, False)
    world.store.attempts.release("w", [(claim.id, claim.fence)])
    clock.advance(3600)  # it isn't looked at all the time
    assert world.store.retention.prune() == (1, False)


def test_a_retried_run_isnt_pruned(world, clock):
    id = world.add(keep=DAY)
    world.store.actions.cancel(id, CANCELLED)
    world.store.actions.retry(id)
    clock.advance(2 * 86_400)
    assert world.store.retention.prune() == (0, False)


def test_pruning_goes_in_batches_and_says_when_there_may_be_more(world, clock):
    world.add_many(501, keep=DAY)
    world.sql("update {schema}runs set state = 'done', finished_at = {now}, expires_at = {now} + keep")
    clock.advance(86_400)
    assert world.store.retention.prune() == (500, True)
    assert world.store.retention.prune() == (1, False)


# Runs that wait for a predecessor's worker


def test_a_successor_is_held_until_the_cancelled_predecessor_is_released(world):
    world.session("w")
    world.session("v")
    old = world.running("w", unique="u")
    world.store.actions.cancel(old.id, CANCELLED)
    successor = world.add(unique="u")
    assert successor != old.id
    assert world.row(successor)["held"] == "quiescing"
    assert world.store.timers.release_held() == 0
    assert world.claim("v") == []
    world.store.attempts.release("w", [(old.id, old.fence)])
    assert world.store.timers.release_held() == 1
    assert [claim.id for claim in world.claim("v")] == [successor]


def test_a_successor_is_released_when_the_predecessors_worker_is_dead(world, clock):
    world.session("w")
    old = world.running("w", unique="u")
    world.store.actions.cancel(old.id, CANCELLED)
    successor = world.add(unique="u")
    clock.advance(60)
    world.session("v")
    world.recover("w")
    assert world.store.timers.release_held() == 1
    assert [claim.id for claim in world.claim("v")] == [successor]


def test_a_successor_of_one_name_doesnt_wait_for_another(world):
    world.session("w")
    old = world.running("w", unique="u")
    world.store.actions.cancel(old.id, CANCELLED)
    assert world.row(world.add(unique="other"))["held"] is None
    assert world.row(world.add(unique="u", tenant="acme"))["held"] is None


def test_a_retry_waits_for_the_worker_of_another_run_of_its_unique_name(world):
    world.session("w")
    first = world.add(unique="u")
    world.store.actions.cancel(first, CANCELLED)
    second = world.running("w", unique="u")
    world.store.actions.cancel(second.id, CANCELLED)
    world.store.actions.retry(first)
    assert world.row(first)["held"] == "quiescing"
    assert world.store.timers.release_held() == 0
    world.store.attempts.release("w", [(second.id, second.fence)])
    assert world.store.timers.release_held() == 1


def test_runs_held_for_another_reason_are_not_released(world):
    id = world.add()
    world.sql("update {schema}runs set held = 'limit'")
    assert world.store.timers.release_held() == 0
    assert world.row(id)["held"] == "limit"
