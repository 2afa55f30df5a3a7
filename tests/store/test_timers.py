"""Timers: scheduled runs come due, deadlines pass, expired runs are pruned, held ones released."""

from __future__ import annotations

import pytest

from tests.support.store_harness import CANCELLED, DAY, OVERDUE, SECOND


def test_scheduled_runs_become_ready_when_their_time_has_come(harness, clock):
    soon, late = harness.add(delay=SECOND), harness.add(delay=2 * SECOND)
    assert harness.store.timers.promote_due() == 0
    clock.advance(1)
    assert harness.store.timers.promote_due() == 1
    assert (harness.state(soon), harness.row(soon)["due_at"], harness.state(late)) == ("ready", None, "scheduled")
    clock.advance(1)
    assert harness.store.timers.promote_due() == 1
    assert harness.store.timers.promote_due() == 0


def test_due_runs_are_promoted_in_order_in_batches_of_500(harness, clock):
    last = harness.add(delay=2 * SECOND)
    harness.add_many(500, delay=SECOND)
    clock.advance(10)
    assert harness.store.timers.promote_due() == 500
    assert harness.state(last) == "scheduled"
    assert harness.store.timers.promote_due() == 1


def test_promoted_runs_are_claimed_by_priority_and_due_time(harness, clock):
    ids = [harness.add(delay=2 * SECOND), harness.add(delay=SECOND), harness.add(delay=SECOND, priority=1)]
    clock.advance(5)
    harness.store.timers.promote_due()
    harness.session("w")
    assert [claim.id for claim in harness.claim("w", 4)] == [ids[2], ids[1], ids[0]]


def test_due_returns_the_earliest_due_time_and_deadline(harness, clock):
    def next_due():
        return harness.store.timers.due().next()

    assert next_due() is None
    harness.add()
    assert next_due() is None
    harness.add(deadline_in=50 * SECOND)
    assert next_due() == 50 * SECOND
    harness.add(delay=30 * SECOND)
    assert next_due() == 30 * SECOND
    clock.advance(40)
    assert next_due() == -10 * SECOND
    harness.store.timers.promote_due()
    assert next_due() == 10 * SECOND
    clock.advance(10)
    harness.store.timers.fail_overdue(OVERDUE)
    assert next_due() is None


def overdue_in(harness, state):
    """A run with a deadline in 10 seconds, in that state."""
    harness.session("w")
    if state == "scheduled":
        return harness.add(delay=3600 * SECOND, deadline_in=10 * SECOND)
    id = harness.add(deadline_in=10 * SECOND)
    if state == "running":
        harness.claim("w")
    elif state == "held":
        harness.sql("update {schema}runs set held = 'limit'")
    elif state == "lingering":
        harness.end("w", harness.claim("w")[0], "timed_out", still_running=1)
    elif state in ("blocked", "waiting", "undoing"):
        harness.sql("update {schema}runs set state = :state", state=state)
    return id


@pytest.mark.parametrize(
    "state", ["ready", "scheduled", "running", "held", "lingering", "blocked", "waiting", "undoing"]
)
def test_an_unfinished_run_past_its_deadline_fails_whatever_it_is_doing(harness, clock, state):
    id = overdue_in(harness, state)
    records = len(harness.kinds(id))
    clock.advance(9.999999)
    assert harness.store.timers.fail_overdue(OVERDUE) == []
    clock.advance(0.000001)
    assert harness.store.timers.fail_overdue(OVERDUE) == [id]
    row = harness.row(id)
    assert (row["state"], row["error"], row["held"], row["due_at"]) == ("failed", OVERDUE, None, None)
    assert (row["finished_at"], row["expires_at"]) == (clock.now, clock.now + row["keep"])
    assert harness.kinds(id)[records:] == ["failed"]
    assert harness.store.timers.fail_overdue(OVERDUE) == []


def test_an_overdue_run_keeps_its_session_until_the_worker_releases_it(harness, clock):
    harness.session("w")
    claim = harness.running("w", deadline_in=10 * SECOND)
    started = clock.now
    clock.advance(10)
    harness.store.timers.fail_overdue(OVERDUE)
    assert harness.row(claim.id)["session"] == "w"
    assert harness.store.queries.history(claim.id) == [(1, clock.now, "failed", 1, "w", started, OVERDUE)]
    assert harness.store.attempts.release("w", [(claim.id, claim.fence)]) == 1


@pytest.mark.parametrize("kind", ["done", "failed"])
def test_a_finished_run_has_no_deadline_any_more(harness, clock, kind):
    harness.session("w")
    claim = harness.running("w", deadline_in=10 * SECOND)
    harness.end("w", claim, kind)
    clock.advance(20)
    assert harness.store.timers.fail_overdue(OVERDUE) == []
    assert harness.kinds(claim.id) == [kind]


# Pruning


def finished(harness, keep):
    harness.session("w")
    claim = harness.running("w", keep=keep, key=str(keep))
    harness.end("w", claim)
    return claim.id


def test_only_expired_runs_are_pruned_with_their_history(harness, clock):
    old, young = finished(harness, 1 * DAY), finished(harness, 2 * DAY)
    unfinished = harness.add(keep=1)
    clock.advance(86_400 - 0.000001)
    assert harness.store.retention.prune() == (0, False)
    clock.advance(0.000001)
    assert harness.store.retention.prune() == (1, False)
    assert harness.store.queries.run(old) is None
    assert harness.store.queries.history(old) == []
    assert harness.store.queries.run(young) is not None
    assert harness.kinds(young) == ["done"]
    assert harness.state(unfinished) == "ready"
    assert harness.rows("keys") == 2, "keys outlive their runs"


@pytest.mark.parametrize("keep_failed", [None, 3 * DAY])
@pytest.mark.parametrize("verb", ["cancel", "overdue", "crash", "fail", "fail in a tree", "done", "done in a tree"])
def test_unsuccessful_runs_have_a_retention_of_their_own(harness, clock, verb, keep_failed):
    harness.session("w")
    claim = harness.running("w", keep=DAY, keep_failed=keep_failed, deadline_in=60 * SECOND, max_crashes=0)
    if verb in ("fail", "done"):
        harness.end("w", claim, "failed" if verb == "fail" else verb)
    elif verb.endswith("in a tree"):
        harness.end("w", claim, "failed" if verb.startswith("fail") else "done", in_tree=True)
    elif verb == "cancel":
        harness.store.actions.cancel(claim.id, CANCELLED)
    ended_at = clock()
    clock.advance(60)
    if verb == "overdue":
        harness.store.timers.fail_overdue(OVERDUE)
    harness.recover("w")
    if verb in ("overdue", "crash"):
        ended_at = clock()
    ((expires_at,),) = harness.sql("select expires_at from {schema}runs")
    assert expires_at == ended_at + (DAY if verb.startswith("done") or keep_failed is None else keep_failed)


@pytest.mark.parametrize("verb", ["cancel", "overdue", "crash"])
def test_unsuccessful_runs_are_pruned_too(harness, clock, verb):
    harness.session("w")
    claim = harness.running("w", keep=DAY, deadline_in=60 * SECOND, max_crashes=0)
    if verb == "cancel":
        harness.store.actions.cancel(claim.id, CANCELLED)
    clock.advance(60)
    if verb == "overdue":
        harness.store.timers.fail_overdue(OVERDUE)
    harness.recover("w")
    clock.advance(86_400)
    assert harness.store.retention.prune() == (1, False)
    assert harness.rows("history") == 0


def test_a_run_that_a_session_still_owns_is_kept(harness, clock):
    harness.session("w", lease=10 * 86_400)
    claim = harness.running("w", keep=DAY)
    harness.store.actions.cancel(claim.id, CANCELLED)
    clock.advance(2 * 86_400)
    assert harness.store.retention.prune() == (0, False)
    harness.store.attempts.release("w", [(claim.id, claim.fence)])
    clock.advance(3600)  # it isn't looked at all the time
    assert harness.store.retention.prune() == (1, False)


def test_a_retried_run_isnt_pruned(harness, clock):
    id = harness.add(keep=DAY)
    harness.store.actions.cancel(id, CANCELLED)
    harness.store.actions.retry(id)
    clock.advance(2 * 86_400)
    assert harness.store.retention.prune() == (0, False)


def test_pruning_goes_in_batches_and_says_when_there_may_be_more(harness, clock):
    harness.add_many(501, keep=DAY)
    harness.sql("update {schema}runs set state = 'done', finished_at = {now}, expires_at = {now} + keep")
    clock.advance(86_400)
    assert harness.store.retention.prune() == (500, True)
    assert harness.store.retention.prune() == (1, False)


# Runs that wait for a predecessor's worker


def test_a_successor_is_held_until_the_cancelled_predecessor_is_released(harness):
    harness.session("w")
    harness.session("v")
    old = harness.running("w", unique="u")
    harness.store.actions.cancel(old.id, CANCELLED)
    successor = harness.add(unique="u")
    assert successor != old.id
    assert harness.row(successor)["held"] == "quiescing"
    assert harness.store.timers.release_held() == 0
    assert harness.claim("v") == []
    harness.store.attempts.release("w", [(old.id, old.fence)])
    assert harness.store.timers.release_held() == 1
    assert [claim.id for claim in harness.claim("v")] == [successor]


def test_a_successor_is_released_when_the_predecessors_worker_is_dead(harness, clock):
    harness.session("w")
    old = harness.running("w", unique="u")
    harness.store.actions.cancel(old.id, CANCELLED)
    successor = harness.add(unique="u")
    clock.advance(60)
    harness.session("v")
    harness.recover("w")
    assert harness.store.timers.release_held() == 1
    assert [claim.id for claim in harness.claim("v")] == [successor]


def test_a_successor_of_one_name_doesnt_wait_for_another(harness):
    harness.session("w")
    old = harness.running("w", unique="u")
    harness.store.actions.cancel(old.id, CANCELLED)
    assert harness.row(harness.add(unique="other"))["held"] is None
    assert harness.row(harness.add(unique="u", tenant="acme"))["held"] is None


def test_a_retry_waits_for_the_worker_of_another_run_of_its_unique_name(harness):
    harness.session("w")
    first = harness.add(unique="u")
    harness.store.actions.cancel(first, CANCELLED)
    second = harness.running("w", unique="u")
    harness.store.actions.cancel(second.id, CANCELLED)
    harness.store.actions.retry(first)
    assert harness.row(first)["held"] == "quiescing"
    assert harness.store.timers.release_held() == 0
    harness.store.attempts.release("w", [(second.id, second.fence)])
    assert harness.store.timers.release_held() == 1


def test_runs_held_for_another_reason_are_not_released(harness):
    id = harness.add()
    harness.sql("update {schema}runs set held = 'limit'")
    assert harness.store.timers.release_held() == 0
    assert harness.row(id)["held"] == "limit"
