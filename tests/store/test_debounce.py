"""Debounced enqueues: calls that are collected into one run until it starts."""

from __future__ import annotations

from holdfast.store.claims import ScanRange
from holdfast.store.module import json_rows
from tests.support.manual_transaction import BlockedCall, ManualTransaction
from tests.support.store_harness import CANCELLED, SECOND, StoreHarness

LIMITS = '["[\\"few\\",\\"\\"]"]'


def call(harness: StoreHarness, number: int, **more: object) -> str:
    """Enqueue a debounced run with a delay of 5 s."""
    given = {"debounce": "user-7", "delay": 5 * SECOND, "args": f"[[{number}],{{}}]", **more}
    return harness.add(**given)


def test_calls_are_collected_until_none_came_for_the_delay_and_the_newest_arguments_run(harness, clock):
    first = call(harness, 1)
    for number in (2, 3):
        clock.advance(4)
        assert call(harness, number, priority=number, options='{"timeout":1}') == first
    row = harness.row(first)
    assert (row["state"], row["due_at"], row["args"]) == ("scheduled", clock.now + 5 * SECOND, "[[3],{}]")
    assert (row["priority"], row["options"]) == (3, '{"timeout":1}')
    clock.advance(4.9)
    assert harness.store.timers.promote_due() == 0
    clock.advance(0.1)
    assert harness.store.timers.promote_due() == 1
    harness.session("w")
    (claim,) = harness.claim("w", 8)
    assert (claim.id, claim.args) == (first, "[[3],{}]")


def test_calls_postpone_a_run_at_most_until_max_delay_after_the_first(harness, clock):
    first = call(harness, 1, max_delay=8 * SECOND)
    clock.advance(4)
    assert call(harness, 2, max_delay=8 * SECOND) == first
    assert harness.row(first)["due_at"] == clock.now + 4 * SECOND


def test_a_run_whose_time_has_come_gets_the_newest_arguments_until_it_starts(harness, clock):
    first = call(harness, 1, max_delay=5 * SECOND)
    clock.advance(5)
    harness.store.timers.promote_due()
    assert call(harness, 2, max_delay=5 * SECOND) == first
    assert harness.state(first) == "ready"
    assert call(harness, 3) == first  # without a bound, the call postpones it again
    assert (harness.state(first), harness.row(first)["due_at"]) == ("scheduled", clock.now + 5 * SECOND)
    assert harness.rows("runs") == 1


def test_a_claim_that_picked_the_run_before_a_call_sees_the_newest_arguments(harness, clock):
    first = call(harness, 1, max_delay=5 * SECOND)
    clock.advance(5)
    harness.store.timers.promote_due()
    harness.session("w")
    claims = harness.store.claims
    if not harness.on_postgres:  # between the two statements of a claim
        execute = claims._execute

        def execute_with_call(purpose, name, **values):
            rows = execute(purpose, name, **values)
            if name == "pick_claimable":
                call(harness, 2, max_delay=5 * SECOND)
            return rows

        claims._execute = execute_with_call
    else:
        call(harness, 2, max_delay=5 * SECOND)
    (claim,) = harness.claim("w")
    assert (claim.id, claim.args) == (first, "[[2],{}]")


def test_a_call_while_the_run_is_running_creates_the_next_one(harness, clock):
    first = call(harness, 1)
    clock.advance(5)
    harness.store.timers.promote_due()
    harness.session("w")
    (claim,) = harness.claim("w")
    second = call(harness, 2)
    assert second != first
    assert harness.end("w", claim, "retrying")  # scheduled again, but it has started
    assert call(harness, 3) == second
    assert (harness.row(first)["args"], harness.row(second)["args"]) == ("[[1],{}]", "[[3],{}]")


def test_a_cancelled_run_collects_no_calls_and_a_retried_one_neither(harness):
    first = call(harness, 1)
    harness.store.actions.cancel(first, CANCELLED)
    second = call(harness, 2)
    assert second != first
    harness.store.actions.retry(first)
    assert call(harness, 3) == second
    assert harness.row(first)["args"] == "[[1],{}]"


def test_names_are_apart_for_each_tenant_and_task(harness):
    ids = {call(harness, 1), call(harness, 1, tenant="acme"), call(harness, 1, task="other")}
    assert len(ids) == 3
    assert call(harness, 2, tenant="acme") in ids


def test_a_batch_keeps_the_last_call_of_each_name(harness):
    runs = [
        harness.new(debounce=name, delay=SECOND, args=f"[[{number}],{{}}]")
        for number, name in enumerate(["a", "b", "a", "b", "c", "a"])
    ]
    ids = harness.store.enqueuer.enqueue(runs)
    assert ids == [runs[5].id, runs[3].id, runs[5].id, runs[3].id, runs[4].id, runs[5].id]
    assert {harness.row(id)["args"] for id in ids} == {"[[5],{}]", "[[3],{}]", "[[4],{}]"}
    again = [harness.new(debounce=name, delay=SECOND, args="[[9],{}]") for name in ("c", "a", "d")]
    assert harness.store.enqueuer.enqueue(again) == [runs[4].id, runs[5].id, again[2].id]
    assert harness.row(runs[5].id)["args"] == "[[9],{}]"


def test_a_repeated_key_neither_postpones_the_run_nor_brings_old_arguments_back(harness, clock):
    first = call(harness, 1, key="one")
    due = clock.now + 5 * SECOND
    assert call(harness, 2, key="two") == first
    clock.advance(1)
    assert call(harness, 1, key="one") == call(harness, 2, key="two") == first
    assert (harness.row(first)["args"], harness.row(first)["due_at"]) == ("[[2],{}]", due)


def test_a_parked_run_takes_the_limits_of_the_newest_call(harness, clock):
    harness.store.limits.declare([("few", 1, None)])
    harness.session("w")
    blocker = harness.add("limited", limits=LIMITS)
    first = call(harness, 1, task="limited", limits=LIMITS, max_delay=5 * SECOND)
    clock.advance(5)
    harness.store.timers.promote_due()
    assert [claim.id for claim in harness.store.claims.claim_limited("w", [harness.lane("limited")], 8)] == [blocker]
    assert harness.row(first)["held"] == "full"
    assert call(harness, 2, task="limited", limits=None, max_delay=5 * SECOND) == first
    assert [claim.id for claim in harness.store.claims.claim_limited("w", [harness.lane("limited")], 8)] == [first]


def test_a_call_waits_for_a_transaction_that_creates_the_run_and_then_replaces_its_arguments(postgres_url):
    harness = StoreHarness(postgres_url)
    harness.store.prepare()
    for commits in (True, False):
        name = f"race {commits}"
        other = ManualTransaction(harness)
        first = other.enqueue(harness.new(debounce=name, delay=SECOND))
        waiter = BlockedCall(harness, lambda name=name: call(harness, 2, debounce=name))
        (other.commit if commits else other.rollback)()
        assert (waiter.result() == first) is commits
        assert harness.row(waiter.result())["args"] == "[[2],{}]"
    harness.close()


def test_a_call_that_meets_the_start_of_the_run_creates_the_next_one(postgres_url):
    harness = StoreHarness(postgres_url)
    first = call(harness, 1)
    harness.clock.advance(5)
    harness.store.timers.promote_due()
    harness.session("w")
    starting = ManualTransaction(harness)
    ranges = json_rows([ScanRange(harness.lane())])
    assert [row[0] for row in starting.do("claim", limit=1, session="w", ranges=ranges)] == [first]
    waiter = BlockedCall(harness, lambda: call(harness, 2))
    starting.commit()
    assert waiter.result() != first
    harness.close()


def test_a_call_that_is_repeated_after_a_lost_reply_creates_no_second_run(harness):
    created, merged = (harness.new(debounce="x", delay=SECOND) for _ in range(2))
    for run in (created, merged):
        assert harness.store.enqueuer.enqueue([run]) == harness.store.enqueuer.enqueue([run]) == [created.id]
    assert harness.rows("runs") == 1
