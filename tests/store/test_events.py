"""Events: the first emit of a name wins and is kept, for present and future waiters."""

from __future__ import annotations

import pytest

from holdfast.store.commands import EmitCommand, WaitOutcome, WaitRegistered, Written
from holdfast.store.waits import MAX_WOKEN_RUNS, event_target
from tests.support.world import DAY, end_of, token_of, wait_of


@pytest.fixture
def claim(world):
    world.session("w")
    return world.running("w")


def emit_of(claim, name="x", payload="1", tenant=None, n=1, key="emit"):
    return EmitCommand(token_of(claim), n, key, event_target(tenant, name), tenant, name, payload)


def emitted(world):
    return world.sql("select tenant, name, payload from {schema}events where emitted_at is not null order by target")


def test_a_wait_for_an_event_that_was_emitted_before_is_resolved_at_once(world, claim):
    assert world.store.events.emit(None, "x", '{"a":1}') is True
    assert world.wait("w", claim, "event", "x") == WaitOutcome("event", '{"a":1}')
    assert world.rows("waits") == 0
    assert world.steps(claim.id) == [(10, "event", "event", '{"a":1}')]


def test_an_emit_wakes_all_its_waiters_and_no_other_runs(world):
    world.session("w")
    waiting = [world.waiting("w", "event", "x") for _ in range(3)]
    other = world.waiting("w", "event", "y")
    assert world.store.events.emit(None, "x", "1") is True
    assert {claim.id for claim in world.claim("w", 8)} == {claim.id for claim in waiting}
    assert world.state(other.id) == "waiting"
    assert {wait for claim in waiting for wait in world.waits(claim.id).values()} == {("event", "1")}


@pytest.mark.parametrize("before", [True, False])
def test_null_is_a_payload(world, claim, before):
    if before:
        world.store.events.emit(None, "x", "null")
        assert world.wait("w", claim, "event", "x") == WaitOutcome("event", "null")
        return
    assert world.wait("w", claim, "event", "x") == WaitRegistered(None)
    world.suspend("w", claim)
    world.store.events.emit(None, "x", "null")
    assert world.waits(claim.id) == {"event": ("event", "null")}
    assert world.state(claim.id) == "ready"


def test_the_first_emit_wins(world, claim):
    assert world.store.events.emit(None, "x", "1") is True
    assert world.store.events.emit(None, "x", "2") is False
    assert world.write("w", emit_of(claim, payload="3")) == [Written("false")]
    assert emitted(world) == [(None, "x", "1")]


def test_of_two_runs_that_emit_at_once_one_is_first(world, claim):
    other = world.running("w")
    assert world.write("w", emit_of(claim), emit_of(other, payload="2")) == [Written("true"), Written("false")]
    assert emitted(world) == [(None, "x", "1")]
    assert world.store.events.emit(None, "x", "3") is False


def test_an_emit_from_a_run_wakes_the_waiters(world, claim):
    waiting = world.waiting("w", "event", "x")
    assert world.write("w", emit_of(claim, payload='"hi"')) == [Written("true")]
    (woken,) = world.claim("w")
    assert woken.id == waiting.id
    assert world.waits(waiting.id) == {"event": ("event", '"hi"')}


@pytest.mark.parametrize("name", ["x", 'a"b', "a,b", "ünï", "[null"])
def test_events_of_different_tenants_are_separate(world, claim, name):
    tenants = [None, "acme", "null", ""]
    for number, tenant in enumerate(tenants):
        assert world.store.events.emit(tenant, name, str(number)) is True
    for number, tenant in enumerate(tenants):
        wait = wait_of(claim, "event", name, tenant=tenant, key=f"wait {number}", n=number)
        assert world.write("w", wait) == [WaitOutcome("event", str(number))]


def test_a_run_that_waits_twice_for_an_event_gets_it_twice(world, claim):
    world.wait("w", claim, "event", "x", key="one")
    world.wait("w", claim, "event", "x", key="two")
    world.suspend("w", claim)
    world.store.events.emit(None, "x", "1")
    assert world.waits(claim.id) == {"one": ("event", "1"), "two": ("event", "1")}
    assert len(world.claim("w", 2)) == 1


@pytest.mark.parametrize("by_a_run", [False, True])
def test_an_event_with_very_many_waiters_wakes_them_in_batches(world, by_a_run):
    world.session("w")
    count = 2 * MAX_WOKEN_RUNS + 1
    world.add_many(count)
    claims = []
    while len(claims) < count:
        claims += world.claim("w", 512)
    for at in range(0, count, MAX_WOKEN_RUNS):
        some = claims[at : at + MAX_WOKEN_RUNS]
        world.write("w", *(wait_of(claim, "event", "x") for claim in some))
        world.store.attempts.end("w", [end_of(claim, "waiting", in_tree=True) for claim in some])
    if by_a_run:
        assert world.write("w", emit_of(world.running("w"))) == [Written("true")]
    else:
        assert world.store.events.emit(None, "x", "1")
    ready = "select count(*) from {schema}runs where state = 'ready'"
    assert world.sql(ready) == [(MAX_WOKEN_RUNS,)]
    late = world.running("w", priority=9)
    assert world.wait("w", late, "event", "x") == WaitOutcome("event", "1"), "while others are still to be woken"
    assert world.store.timers.wake_event_waiters() == MAX_WOKEN_RUNS
    assert world.store.timers.wake_event_waiters() == 1
    assert world.store.timers.wake_event_waiters() == 0
    assert world.sql(ready) == [(count,)]
    assert world.sql("select distinct outcome, value from {schema}waits") == [("event", "1")]
    assert world.store.events.emit(None, "x", "2") is False


# Pruning


def test_old_events_are_pruned_unless_a_run_awaits_them(world, claim, clock):
    world.store.events.emit(None, "old", "1")
    world.wait("w", claim, "event", "awaited")
    clock.advance(9 * 86_400)
    world.store.events.emit(None, "new", "1")
    assert world.store.retention.prune_events(10 * DAY) is False
    assert world.rows("events") == 3, "none is so old"
    clock.advance(86_400)
    assert world.store.retention.prune_events(10 * DAY) is False
    assert [name for (name,) in world.sql("select name from {schema}events order by name")] == ["awaited", "new"]
    world.suspend("w", claim) or world.sql("update {schema}runs set state = 'waiting', session = null")
    world.store.events.emit(None, "awaited", "2")
    assert world.waits(claim.id) == {"event": ("event", "2")}


def test_pruning_of_an_awaited_event_is_postponed(world, claim, clock):
    world.wait("w", claim, "event", "awaited", delay=1)
    clock.advance(10)
    world.store.retention.prune_events(10)
    world.store.timers.resolve_due_waits()
    assert world.rows("events") == 1
    clock.advance(10)
    world.store.retention.prune_events(10)
    assert world.rows("events") == 0, "the wait is over by now"


def test_an_event_that_was_pruned_can_be_emitted_again(world, clock):
    world.store.events.emit(None, "x", "1")
    clock.advance(1)
    world.store.retention.prune_events(1)
    assert world.store.events.emit(None, "x", "2") is True


def test_events_are_pruned_in_small_batches(world, clock):
    for some in range(2):
        world.sql(
            "insert into {schema}events (target, name, touched_at)"
            " select 'e' || n, 'e', 1 from (" + _numbers(some * 300, 300) + ") numbers"
        )
    assert world.store.retention.prune_events(1) is True
    assert world.store.retention.prune_events(1) is False
    assert world.rows("events") == 0


def _numbers(start, count):
    return (
        f"with recursive c(n) as (select {start} union all select n + 1 from c where n < {start + count - 1})"
        " select n from c"
    )
