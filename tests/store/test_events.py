"""Events: the first emit of a name wins and is kept, for present and future waiters."""

from __future__ import annotations

import pytest

from holdfast.store.commands import EmitCommand, WaitOutcome, WaitRegistered, Written
from holdfast.store.waits import MAX_WOKEN_RUNS, event_target
from tests.support.store_harness import DAY, end_of, token_of, wait_of


@pytest.fixture
def claim(harness):
    harness.session("w")
    return harness.running("w")


def emit_of(claim, name="x", payload="1", tenant=None, n=1, key="emit"):
    return EmitCommand(token_of(claim), n, key, event_target(tenant, name), tenant, name, payload)


def emitted(harness):
    return harness.sql("select tenant, name, payload from {schema}events where emitted_at is not null order by target")


def test_a_wait_for_an_event_that_was_emitted_before_is_resolved_at_once(harness, claim):
    assert harness.store.events.emit(None, "x", '{"a":1}') is True
    assert harness.wait("w", claim, "event", "x") == WaitOutcome("event", '{"a":1}')
    assert harness.rows("waits") == 0
    assert harness.steps(claim.id) == [(10, "event", "event", '{"a":1}')]


def test_an_emit_wakes_all_its_waiters_and_no_other_runs(harness):
    harness.session("w")
    waiting = [harness.waiting("w", "event", "x") for _ in range(3)]
    other = harness.waiting("w", "event", "y")
    assert harness.store.events.emit(None, "x", "1") is True
    assert {claim.id for claim in harness.claim("w", 8)} == {claim.id for claim in waiting}
    assert harness.state(other.id) == "waiting"
    assert {wait for claim in waiting for wait in harness.waits(claim.id).values()} == {("event", "1")}


@pytest.mark.parametrize("before", [True, False])
def test_null_is_a_payload(harness, claim, before):
    if before:
        harness.store.events.emit(None, "x", "null")
        assert harness.wait("w", claim, "event", "x") == WaitOutcome("event", "null")
        return
    assert harness.wait("w", claim, "event", "x") == WaitRegistered(None)
    harness.suspend("w", claim)
    harness.store.events.emit(None, "x", "null")
    assert harness.waits(claim.id) == {"event": ("event", "null")}
    assert harness.state(claim.id) == "ready"


def test_the_first_emit_wins(harness, claim):
    assert harness.store.events.emit(None, "x", "1") is True
    assert harness.store.events.emit(None, "x", "2") is False
    assert harness.write("w", emit_of(claim, payload="3")) == [Written("false")]
    assert emitted(harness) == [(None, "x", "1")]


def test_of_two_runs_that_emit_at_once_one_is_first(harness, claim):
    other = harness.running("w")
    assert harness.write("w", emit_of(claim), emit_of(other, payload="2")) == [Written("true"), Written("false")]
    assert emitted(harness) == [(None, "x", "1")]
    assert harness.store.events.emit(None, "x", "3") is False


def test_an_emit_from_a_run_wakes_the_waiters(harness, claim):
    waiting = harness.waiting("w", "event", "x")
    assert harness.write("w", emit_of(claim, payload='"hi"')) == [Written("true")]
    (woken,) = harness.claim("w")
    assert woken.id == waiting.id
    assert harness.waits(waiting.id) == {"event": ("event", '"hi"')}


@pytest.mark.parametrize("name", ["x", 'a"b', "a,b", "ünï", "[null"])
def test_events_of_different_tenants_are_separate(harness, claim, name):
    tenants = [None, "acme", "null", ""]
    for number, tenant in enumerate(tenants):
        assert harness.store.events.emit(tenant, name, str(number)) is True
    for number, tenant in enumerate(tenants):
        wait = wait_of(claim, "event", name, tenant=tenant, key=f"wait {number}", n=number)
        assert harness.write("w", wait) == [WaitOutcome("event", str(number))]


def test_a_run_that_waits_twice_for_an_event_gets_it_twice(harness, claim):
    harness.wait("w", claim, "event", "x", key="one")
    harness.wait("w", claim, "event", "x", key="two")
    harness.suspend("w", claim)
    harness.store.events.emit(None, "x", "1")
    assert harness.waits(claim.id) == {"one": ("event", "1"), "two": ("event", "1")}
    assert len(harness.claim("w", 2)) == 1


@pytest.mark.parametrize("by_a_run", [False, True])
def test_an_event_with_very_many_waiters_wakes_them_in_batches(harness, by_a_run):
    harness.session("w")
    count = 2 * MAX_WOKEN_RUNS + 1
    harness.add_many(count)
    claims = []
    while len(claims) < count:
        claims += harness.claim("w", 512)
    for at in range(0, count, MAX_WOKEN_RUNS):
        some = claims[at : at + MAX_WOKEN_RUNS]
        harness.write("w", *(wait_of(claim, "event", "x") for claim in some))
        harness.store.attempts.end("w", [end_of(claim, "waiting", in_tree=True) for claim in some])
    if by_a_run:
        assert harness.write("w", emit_of(harness.running("w"))) == [Written("true")]
    else:
        assert harness.store.events.emit(None, "x", "1")
    ready = "select count(*) from {schema}runs where state = 'ready'"
    assert harness.sql(ready) == [(MAX_WOKEN_RUNS,)]
    late = harness.running("w", priority=9)
    assert harness.wait("w", late, "event", "x") == WaitOutcome("event", "1"), "while others are still to be woken"
    assert harness.store.timers.wake_event_waiters() == MAX_WOKEN_RUNS
    assert harness.store.timers.wake_event_waiters() == 1
    assert harness.store.timers.wake_event_waiters() == 0
    assert harness.sql(ready) == [(count,)]
    assert harness.sql("select distinct outcome, value from {schema}waits") == [("event", "1")]
    assert harness.store.events.emit(None, "x", "2") is False


# Pruning


def test_old_events_are_pruned_unless_a_run_awaits_them(harness, claim, clock):
    harness.store.events.emit(None, "old", "1")
    harness.wait("w", claim, "event", "awaited")
    clock.advance(9 * 86_400)
    harness.store.events.emit(None, "new", "1")
    assert harness.store.retention.prune_events(10 * DAY) == (0, False)
    assert harness.rows("events") == 3, "none is so old"
    assert harness.store.retention.events_pruned_before() is None
    clock.advance(86_400)
    assert harness.store.retention.prune_events(10 * DAY) == (1, False)
    assert harness.store.retention.events_pruned_before() == clock() - 10 * DAY
    assert [name for (name,) in harness.sql("select name from {schema}events order by name")] == ["awaited", "new"]
    harness.suspend("w", claim) or harness.sql("update {schema}runs set state = 'waiting', session = null")
    harness.store.events.emit(None, "awaited", "2")
    assert harness.waits(claim.id) == {"event": ("event", "2")}


def test_pruning_of_an_awaited_event_is_postponed(harness, claim, clock):
    harness.wait("w", claim, "event", "awaited", delay=1)
    clock.advance(10)
    harness.store.retention.prune_events(10)
    harness.store.timers.resolve_due_waits()
    assert harness.rows("events") == 1
    clock.advance(10)
    harness.store.retention.prune_events(10)
    assert harness.rows("events") == 0, "the wait is over by now"


def test_an_event_that_was_pruned_can_be_emitted_again(harness, clock):
    harness.store.events.emit(None, "x", "1")
    clock.advance(1)
    harness.store.retention.prune_events(1)
    assert harness.store.events.emit(None, "x", "2") is True


def test_events_are_pruned_in_small_batches(harness, clock):
    for some in range(2):
        harness.sql(
            "insert into {schema}events (target, name, touched_at)"
            " select 'e' || n, 'e', 1 from (" + _numbers(some * 300, 300) + ") numbers"
        )
    assert harness.store.retention.prune_events(1) == (0, True)
    assert harness.store.retention.prune_events(1) == (0, False)
    assert harness.rows("events") == 0


def _numbers(start, count):
    return (
        f"with recursive c (n) as (select {start} union all select n + 1 from c where n < {start + count - 1})"
        " select n from c"
    )


# Clear


def test_a_cleared_event_is_awaited_and_emitted_anew(harness, claim):
    assert harness.store.events.clear(None, "x") is False
    harness.store.events.emit(None, "x", "1")
    harness.store.events.emit("acme", "x", "1")
    assert harness.wait("w", claim, "event", "x") == WaitOutcome("event", "1")
    assert (harness.store.events.clear(None, "x"), harness.store.events.clear(None, "x")) == (True, False)
    assert emitted(harness) == [("acme", "x", "1")]
    assert harness.steps(claim.id) == [(10, "event", "event", "1")]  # what a run received stays
    other = harness.waiting("w", "event", "x")
    assert harness.state(other.id) == "waiting"
    assert harness.store.events.emit(None, "x", "2") is True
    assert harness.waits(other.id) == {"event": ("event", "2")}


def test_an_event_that_is_awaited_but_not_emitted_cannot_be_cleared(harness):
    harness.session("w")
    waiting = harness.waiting("w", "event", "x")
    assert harness.store.events.clear(None, "x") is False
    harness.store.events.emit(None, "x", "1")
    assert harness.state(waiting.id) == "ready"


def test_waiters_that_were_not_woken_yet_get_an_event_before_it_is_cleared(harness, monkeypatch):
    monkeypatch.setattr("holdfast.store.waits.MAX_WOKEN_RUNS", 2)
    harness.session("w")
    waiting = [harness.waiting("w", "event", "x") for _ in range(7)]
    harness.store.events.emit(None, "x", "1")
    assert [harness.state(claim.id) for claim in waiting].count("waiting") == 5
    assert harness.store.events.clear(None, "x") is True
    assert {wait for claim in waiting for wait in harness.waits(claim.id).values()} == {("event", "1")}
    assert {harness.state(claim.id) for claim in waiting} == {"ready"}
    assert harness.store.events.emit(None, "x", "2") is True


@pytest.mark.parametrize("by_run", [False, True], ids=["client", "run"])
def test_a_wait_whose_run_is_missing_keeps_no_other_from_being_woken(harness, claim, by_run):
    lost, waiting = [harness.waiting("w", "event", "x") for _ in range(2)]
    harness.sql(f"delete from {{schema}}runs where id = '{lost.id}'")
    if by_run:
        assert harness.store.journal.write("w", [emit_of(claim)]) == [Written("true")]
    else:
        assert harness.store.events.emit(None, "x", "1") is True
    assert [claim.id for claim in harness.claim("w", 8)] == [waiting.id]
