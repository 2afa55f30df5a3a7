"""Waits: registered once, resolved once; a suspended run is woken only by what it waits for."""

from __future__ import annotations

import pytest

from holdfast.store.commands import EmitCommand, WaitOutcome, WaitRegistered, Written
from holdfast.store.waits import event_target
from tests.support.world import CANCELLED, SECOND, end_of, record_of, token_of, wait_of


@pytest.fixture
def claim(world):
    world.session("w")
    return world.running("w")


def settled(world, claim):
    return [row[1:] for row in world.store.journal.resolved_waits([(claim.id, claim.generation)])]


# Sleeping


def test_a_sleep_ends_by_the_databases_clock_and_keeps_its_attempt(world, claim, clock):
    assert world.wait("w", claim, "sleep", delay=10 * SECOND) == WaitRegistered(10 * SECOND)
    clock.advance(2)
    assert world.suspend("w", claim)
    row = world.row(claim.id)
    assert (row["state"], row["session"], row["spent"]) == ("waiting", None, 2 * SECOND)
    clock.advance(7.9)
    assert (world.store.timers.resolve_due_waits(), world.claim("w")) == (0, [])
    clock.advance(0.1)
    assert world.store.timers.resolve_due_waits() == 1
    assert world.store.timers.resolve_due_waits() == 0
    (again,) = world.claim("w")
    assert (again.id, again.attempt, again.fence, again.spent) == (claim.id, 1, 2, 2 * SECOND)
    (kept,) = world.store.journal.load([(claim.id, 0)])[claim.id].waits
    assert kept.outcome == WaitOutcome("due", None)


def test_registering_a_sleep_again_doesnt_extend_it(world, claim, clock):
    world.wait("w", claim, "sleep", delay=10 * SECOND)
    clock.advance(4)
    assert world.wait("w", claim, "sleep", n=11, delay=10 * SECOND) == WaitRegistered(6 * SECOND)
    world.end("w", claim, "handed_back", in_tree=True)
    (again,) = world.claim("w")
    assert world.wait("w", again, "sleep", delay=99 * SECOND) == WaitRegistered(6 * SECOND)


def test_a_sleep_until_a_time_ends_then_whenever_it_was_registered(world, claim, clock):
    assert world.wait("w", claim, "sleep", due_at=clock.now - 1) == WaitRegistered(-1)
    assert world.wait("w", claim, "sleep", key="later", due_at=clock.now + 5) == WaitRegistered(5)
    assert world.store.timers.due().next() == -1


def test_the_next_time_that_something_is_due_counts_waits(world, claim, clock):
    assert world.store.timers.due().next() is None
    world.wait("w", claim, "sleep", delay=10)
    world.add(delay=20)
    assert world.store.timers.due().next() == 10
    clock.now += 10
    world.store.timers.resolve_due_waits()
    assert world.store.timers.due().next() == 10


# Waking


def test_a_wait_resolved_while_its_run_is_running_does_not_change_the_run(world, claim, clock):
    world.wait("w", claim, "event", "x")
    world.store.events.emit(None, "x", "1")
    row = world.row(claim.id)
    assert (row["state"], row["session"], row["fence"]) == ("running", "w", 1)
    assert settled(world, claim) == [("event", "event", WaitOutcome("event", "1"))]


def test_a_run_that_suspends_with_a_resolved_wait_is_ready_at_once(world, claim):
    world.wait("w", claim, "event", "x")
    world.wait("w", claim, "sleep", delay=99)
    world.store.events.emit(None, "x", "1")
    assert world.suspend("w", claim)
    assert world.state(claim.id) == "ready"
    (again,) = world.claim("w")
    assert (again.id, again.attempt) == (claim.id, 1)


def test_a_run_with_several_waits_is_woken_by_the_first_and_keeps_the_others(world, claim, clock):
    world.wait("w", claim, "event", "x", delay=10)
    world.wait("w", claim, "message", "topic")
    world.wait("w", claim, "sleep", delay=5)
    world.suspend("w", claim)
    world.store.actions.send(claim.id, "topic", "7")
    assert world.state(claim.id) == "ready"
    clock.now += 10
    world.store.timers.resolve_due_waits()
    assert world.waits(claim.id) == {"event": ("due", None), "message": ("message", "7"), "sleep": ("due", None)}
    assert world.kinds(claim.id) == ["waiting"]


def test_recording_the_outcome_of_a_wait_deletes_it(world, claim, clock):
    world.wait("w", claim, "sleep", delay=1)
    world.wait("w", claim, "event", "x")
    clock.now += 1
    world.store.timers.resolve_due_waits()
    record = record_of(claim, 11, "sleep", kind="slept", value=None, waited=True)
    assert isinstance(world.write("w", record)[0], Written)
    assert isinstance(world.write("w", record)[0], Written), "and again after a lost answer"
    assert list(world.waits(claim.id)) == ["event"]
    assert settled(world, claim) == []
    world.suspend("w", claim)
    assert world.state(claim.id) == "waiting"


@pytest.mark.parametrize("state", ["ready", "scheduled", "running", "cancelled", "failed"])
def test_only_waiting_runs_are_woken(world, claim, state, clock):
    world.wait("w", claim, "event", "x")
    if state == "cancelled":
        world.store.actions.cancel(claim.id, CANCELLED)
    elif state != "running":
        kind = {"ready": "handed_back", "scheduled": "retrying", "failed": "failed"}[state]
        world.end("w", claim, kind, in_tree=True)
    before = world.row(claim.id)
    world.store.events.emit(None, "x", "1")
    assert world.row(claim.id) == before
    assert world.waits(claim.id) == {"event": ("event", "1")}


def test_a_retried_attempt_that_isnt_a_resumption_counts(world, claim):
    world.waiting("w", "event", "x")
    world.end("w", claim, "retrying", in_tree=True, delay=0)
    world.store.events.emit(None, "x", "1")
    world.clock.advance(1)
    world.store.timers.promote_due()
    assert {run.id == claim.id: run.attempt for run in world.claim("w", 2)} == {True: 2, False: 1}


def test_an_ended_run_has_no_waits(world, claim):
    world.wait("w", claim, "sleep", delay=1)
    world.end("w", claim, in_tree=True)
    assert world.rows("waits") == 0


def test_due_waits_are_resolved_in_small_batches(world, clock):
    world.session("w")
    ids = world.add_many(501)
    claims = world.claim("w", 512)
    claims += world.claim("w", 512)
    for some in (claims[:300], claims[300:]):
        world.write("w", *(wait_of(claim, "sleep", delay=1) for claim in some))
        world.store.attempts.end("w", [end_of(claim, "waiting", in_tree=True) for claim in some])
    clock.now += 1
    assert [world.store.timers.resolve_due_waits() for _ in range(3)] == [500, 1, 0]
    assert world.sql("select count(*) from {schema}runs where state = 'ready'") == [(len(ids),)]


# Timeouts


def test_a_timeout_stays_when_the_event_comes_later(world, claim, clock):
    world.wait("w", claim, "event", "x", delay=5)
    clock.now += 5
    world.store.timers.resolve_due_waits()
    world.store.events.emit(None, "x", "1")
    assert world.waits(claim.id) == {"event": ("due", None)}
    assert world.wait("w", claim, "event", "x", delay=5) in (WaitOutcome("due", None), WaitRegistered(0)), "said again"
    assert world.waits(claim.id) in ({"event": ("due", None)}, {}), "it never becomes the event"


def test_an_event_that_came_first_does_not_time_out_later(world, claim, clock):
    world.wait("w", claim, "event", "x", delay=5)
    world.store.events.emit(None, "x", "1")
    clock.now += 5
    assert world.store.timers.resolve_due_waits() == 0
    assert world.waits(claim.id) == {"event": ("event", "1")}


@pytest.mark.parametrize(
    ("kind", "value", "outcome"),
    [
        ("slept", None, WaitOutcome("due", None)),
        ("timeout", None, WaitOutcome("due", None)),
        ("event", "null", WaitOutcome("event", "null")),
        ("message", "7", WaitOutcome("message", "7")),
        ("join", None, WaitOutcome("children", None)),
        ("join", '"id"', WaitOutcome("failed", "id")),
    ],
)
def test_the_outcome_of_a_wait_is_read_back_from_its_checkpoint(world, claim, kind, value, outcome):
    world.record("w", claim, 10, "event", kind=kind, value=value)
    assert world.wait("w", claim, "event", "x") == outcome


# Said again


@pytest.mark.parametrize("came", ["event", "due", "message"])
def test_a_repeated_wait_returns_the_recorded_outcome(world, claim, clock, came):
    """The answer to the registration got lost; the outcome since then must be delivered exactly once."""
    wait = wait_of(claim, "message", "topic", delay=5) if came == "message" else wait_of(claim, "event", "x", delay=5)
    assert world.write("w", wait) == [WaitRegistered(5)]
    if came == "event":
        world.store.events.emit(None, "x", '"first"')
    elif came == "message":
        world.store.actions.send(claim.id, "topic", '"first"')
        world.store.actions.send(claim.id, "topic", '"second"')
    else:
        clock.now += 5
        world.store.timers.resolve_due_waits()
        world.store.events.emit(None, "x", '"late"')
    value = None if came == "due" else '"first"'
    (reply,) = world.write("w", wait)
    if isinstance(reply, WaitRegistered):  # then it is still to be heard
        assert settled(world, claim) == [(wait.key, wait.kind, WaitOutcome(came, value))]
        assert world.steps(claim.id) == []
    else:
        assert (reply, settled(world, claim)) == (WaitOutcome(came, value), [])
        assert world.write("w", wait) == [reply]
    if came == "message":
        assert world.wait("w", claim, "message", "topic", key="next", n=12) == WaitOutcome("message", '"second"')


def test_a_batch_that_emits_the_event_it_waits_for_resolves_the_wait(world, claim):
    other = world.running("w")
    emit = EmitCommand(token_of(other), 1, "emit", event_target(None, "x"), None, "x", "5")
    assert world.write("w", wait_of(claim, "event", "x"), emit) == [WaitOutcome("event", "5"), Written("true")]
