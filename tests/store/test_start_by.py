"""Runs that are cancelled unless they start in time, and idempotency keys that expire."""

from __future__ import annotations

import pytest

from holdfast.errors import KeyConflict
from tests.support.store_harness import CANCELLED, SECOND

LIMITS = '["[\\"few\\",\\"\\"]"]'


def test_a_run_that_has_not_started_in_time_is_cancelled(harness, clock):
    late = harness.add(start_in=5 * SECOND)
    delayed = harness.add(start_in=5 * SECOND, delay=60 * SECOND)
    other = harness.add(start_by_at=clock.now + 6 * SECOND)
    assert harness.store.timers.due().starts == 5 * SECOND
    clock.advance(4.9)
    assert harness.store.timers.cancel_unstarted() == []
    clock.advance(0.1)
    assert sorted(harness.store.timers.cancel_unstarted()) == sorted([late, delayed])
    assert harness.states([late, delayed, other]) == ["cancelled", "cancelled", "ready"]
    assert "not started in time" in harness.row(late)["error"]
    assert harness.kinds(late) == ["cancelled"]


@pytest.mark.parametrize("task", ["task", "limited"])
def test_a_run_that_is_late_is_not_claimed_although_no_timer_has_cancelled_it(harness, clock, task):
    limits = LIMITS if task == "limited" else None
    harness.store.limits.declare([("few", 8, None)])
    late = harness.add(task, start_in=SECOND, limits=limits)
    others = [harness.add(task, limits=limits) for _ in range(2)]
    clock.advance(1)
    harness.session("w")
    claims = harness.store.claims
    call = claims.claim_limited if task == "limited" else claims.claim
    claimed = [claim.id for _ in range(2) for claim in call("w", [harness.lane(task)], 4)]
    assert claimed == others
    assert harness.state(late) == "ready"


def test_a_run_that_has_started_in_time_goes_on(harness, clock):
    harness.session("w", lease=600)
    claim = harness.running("w", start_in=SECOND)
    clock.advance(5)
    assert harness.store.timers.due().starts is None
    assert harness.store.timers.cancel_unstarted() == []
    assert harness.end("w", claim, "retrying")
    clock.advance(60)
    assert harness.store.timers.cancel_unstarted() == []
    harness.store.timers.promote_due()
    assert [again.id for again in harness.claim("w")] == [claim.id]


def test_a_retried_run_may_start_at_any_time(harness, clock):
    run = harness.add(start_in=SECOND)
    harness.store.actions.cancel(run, CANCELLED)
    harness.store.actions.retry(run)
    clock.advance(60)
    assert harness.store.timers.cancel_unstarted() == []
    assert harness.state(run) == "ready"


def test_a_key_can_be_used_again_once_it_has_expired(harness, clock):
    first = harness.add(key="k", key_ttl=60 * SECOND, digest="one")
    clock.advance(59)
    assert harness.add(key="k", digest="one") == first
    with pytest.raises(KeyConflict):
        harness.add(key="k", digest="two")
    clock.advance(1)
    second = harness.add(key="k", digest="two")
    assert second != first
    clock.advance(10**6)
    assert harness.add(key="k", digest="two") == second, "the second call set no time"


def test_expired_keys_are_deleted(harness, clock):
    harness.add_many(1, key="kept", digest="x")
    harness.add(key="k", key_ttl=SECOND)
    clock.advance(1)
    assert harness.store.retention.prune_expired_keys() is False
    assert harness.sql("select key from {schema}keys") == [("kept",)]


def test_a_batch_takes_expired_and_free_keys(harness, clock):
    old = harness.add(key="a", key_ttl=SECOND)
    clock.advance(1)
    runs = [harness.new(key=key, key_ttl=SECOND) for key in ("a", "b", "a")]
    assert harness.store.enqueuer.enqueue(runs) == [runs[0].id, runs[1].id, runs[0].id]
    assert old not in [run.id for run in runs]
