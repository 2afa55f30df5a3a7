"""Waits: registered once, resolved once; a suspended run is woken only by what it waits for."""

from __future__ import annotations

import pytest

from holdfast.store.commands import EmitCommand, WaitOutcome, WaitRegistered, Written
from holdfast.store.waits import event_target
from tests.support.store_harness import CANCELLED, SECOND, end_of, record_of, token_of, wait_of


@pytest.fixture
def claim(harness):
    harness.session("w")
    return harness.running("w")


def settled(harness, claim):
    return [row[1:] for row in harness.store.journal.resolved_waits([(claim.id, claim.generation)])]


# Sleeping


def test_a_sleep_ends_by_the_databases_clock_and_keeps_its_attempt(harness, claim, clock):
    assert harness.wait("w", claim, "sleep", delay=10 * SECOND) == WaitRegistered(10 * SECOND)
    clock.advance(2)
    assert harness.suspend("w", claim)
    row = harness.row(claim.id)
    assert (row["state"], row["session"], row["spent"]) == ("waiting", None, 2 * SECOND)
    clock.advance(7.9)
    assert (harness.store.timers.resolve_due_waits(), harness.claim("w")) == (0, [])
    clock.advance(0.1)
    assert harness.store.timers.resolve_due_waits() == 1
    assert harness.store.timers.resolve_due_waits() == 0
    (again,) = harness.claim("w")
    assert (again.id, again.attempt, again.fence, again.spent) == (claim.id, 1, 2, 2 * SECOND)
    (kept,) = harness.store.journal.load([(claim.id, 0)])[claim.id].waits
    assert kept.outcome == WaitOutcome("due", None)


def test_registering_a_sleep_again_doesnt_extend_it(harness, claim, clock):
    harness.wait("w", claim, "sleep", delay=10 * SECOND)
    clock.advance(4)
    assert harness.wait("w", claim, "sleep", n=11, delay=10 * SECOND) == WaitRegistered(6 * SECOND)
    harness.end("w", claim, "handed_back", in_tree=True)
    (again,) = harness.claim("w")
    assert harness.wait("w", again, "sleep", delay=99 * SECOND) == WaitRegistered(6 * SECOND)


def test_a_sleep_until_a_time_ends_then_whenever_it_was_registered(harness, claim, clock):
    assert harness.wait("w", claim, "sleep", due_at=clock.now - 1) == WaitRegistered(-1)
    assert harness.wait("w", claim, "sleep", key="later", due_at=clock.now + 5) == WaitRegistered(5)
    assert harness.store.timers.due().next() == -1


def test_the_next_time_that_something_is_due_counts_waits(harness, claim, clock):
    assert harness.store.timers.due().next() is None
    harness.wait("w", claim, "sleep", delay=10)
    harness.add(delay=20)
    assert harness.store.timers.due().next() == 10
    clock.now += 10
    harness.store.timers.resolve_due_waits()
    assert harness.store.timers.due().next() == 10


# Waking


def test_a_wait_resolved_while_its_run_is_running_does_not_change_the_run(harness, claim, clock):
    harness.wait("w", claim, "event", "x")
    harness.store.events.emit(None, "x", "1")
    row = harness.row(claim.id)
    assert (row["state"], row["session"], row["fence"]) == ("running", "w", 1)
    assert settled(harness, claim) == [("event", "event", WaitOutcome("event", "1"))]


def test_a_run_that_suspends_with_a_resolved_wait_is_ready_at_once(harness, claim):
    harness.wait("w", claim, "event", "x")
    harness.wait("w", claim, "sleep", delay=99)
    harness.store.events.emit(None, "x", "1")
    assert harness.suspend("w", claim)
    assert harness.state(claim.id) == "ready"
    (again,) = harness.claim("w")
    assert (again.id, again.attempt) == (claim.id, 1)


def test_a_run_with_several_waits_is_woken_by_the_first_and_keeps_the_others(harness, claim, clock):
    harness.wait("w", claim, "event", "x", delay=10)
    harness.wait("w", claim, "message", "topic")
    harness.wait("w", claim, "sleep", delay=5)
    harness.suspend("w", claim)
    harness.store.actions.send(claim.id, "topic", "7")
    assert harness.state(claim.id) == "ready"
    clock.now += 10
    harness.store.timers.resolve_due_waits()
    assert harness.waits(claim.id) == {"event": ("due", None), "message": ("message", "7"), "sleep": ("due", None)}
    assert harness.kinds(claim.id) == ["waiting"]


def test_recording_the_outcome_of_a_wait_deletes_it(harness, claim, clock):
    harness.wait("w", claim, "sleep", delay=1)
    harness.wait("w", claim, "event", "x")
    clock.now += 1
    harness.store.timers.resolve_due_waits()
    record = record_of(claim, 11, "sleep", kind="slept", value=None, waited=True)
    assert isinstance(harness.write("w", record)[0], Written)
    assert isinstance(harness.write("w", record)[0], Written), "and again after a lost answer"
    assert list(harness.waits(claim.id)) == ["event"]
    assert settled(harness, claim) == []
    harness.suspend("w", claim)
    assert harness.state(claim.id) == "waiting"


@pytest.mark.parametrize("state", ["ready", "scheduled", "running", "cancelled", "failed"])
def test_only_waiting_runs_are_woken(harness, claim, state, clock):
    harness.wait("w", claim, "event", "x")
    if state == "cancelled":
        harness.store.actions.cancel(claim.id, CANCELLED)
    elif state != "running":
        kind = {"ready": "handed_back", "scheduled": "retrying", "failed": "failed"}[state]
        harness.end("w", claim, kind, in_tree=True)
    before = harness.row(claim.id)
    harness.store.events.emit(None, "x", "1")
    assert harness.row(claim.id) == before
    assert harness.waits(claim.id) == {"event": ("event", "1")}


def test_a_retried_attempt_that_isnt_a_resumption_counts(harness, claim):
    harness.waiting("w", "event", "x")
    harness.end("w", claim, "retrying", in_tree=True, delay=0)
    harness.store.events.emit(None, "x", "1")
    harness.clock.advance(1)
    harness.store.timers.promote_due()
    assert {run.id == claim.id: run.attempt for run in harness.claim("w", 2)} == {True: 2, False: 1}


def test_an_ended_run_has_no_waits(harness, claim):
    harness.wait("w", claim, "sleep", delay=1)
    harness.end("w", claim, in_tree=True)
    assert harness.rows("waits") == 0


def test_due_waits_are_resolved_in_small_batches(harness, clock):
    harness.session("w")
    ids = harness.add_many(501)
    claims = harness.claim("w", 512)
    claims += harness.claim("w", 512)
    for some in (claims[:300], claims[300:]):
        harness.write("w", *(wait_of(claim, "sleep", delay=1) for claim in some))
        harness.store.attempts.end("w", [end_of(claim, "waiting", in_tree=True) for claim in some])
    clock.now += 1
    assert [harness.store.timers.resolve_due_waits() for _ in range(3)] == [500, 1, 0]
    assert harness.sql("select count(*) from {schema}runs where state = 'ready'") == [(len(ids),)]


# Timeouts


def test_a_timeout_stays_when_the_event_comes_later(harness, claim, clock):
    harness.wait("w", claim, "event", "x", delay=5)
    clock.now += 5
    harness.store.timers.resolve_due_waits()
    harness.store.events.emit(None, "x", "1")
    assert harness.waits(claim.id) == {"event": ("due", None)}
    assert harness.wait("w", claim, "event", "x", delay=5) in (WaitOutcome("due", None), WaitRegistered(0)), "repeated"
    assert harness.waits(claim.id) in ({"event": ("due", None)}, {}), "it never becomes the event"


def test_an_event_that_came_first_does_not_time_out_later(harness, claim, clock):
    harness.wait("w", claim, "event", "x", delay=5)
    harness.store.events.emit(None, "x", "1")
    clock.now += 5
    assert harness.store.timers.resolve_due_waits() == 0
    assert harness.waits(claim.id) == {"event": ("event", "1")}


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
def test_the_outcome_of_a_wait_is_read_back_from_its_checkpoint(harness, claim, kind, value, outcome):
    harness.record("w", claim, 10, "event", kind=kind, value=value)
    assert harness.wait("w", claim, "event", "x") == outcome


# Said again


@pytest.mark.parametrize("came", ["event", "due", "message"])
def test_a_repeated_wait_returns_the_recorded_outcome(harness, claim, clock, came):
    """The answer to the registration got lost; the outcome since then must be delivered exactly once."""
    wait = wait_of(claim, "message", "topic", delay=5) if came == "message" else wait_of(claim, "event", "x", delay=5)
    assert harness.write("w", wait) == [WaitRegistered(5)]
    if came == "event":
        harness.store.events.emit(None, "x", '"first"')
    elif came == "message":
        harness.store.actions.send(claim.id, "topic", '"first"')
        harness.store.actions.send(claim.id, "topic", '"second"')
    else:
        clock.now += 5
        harness.store.timers.resolve_due_waits()
        harness.store.events.emit(None, "x", '"late"')
    value = None if came == "due" else '"first"'
    (reply,) = harness.write("w", wait)
    if isinstance(reply, WaitRegistered):  # then it is still to be heard
        assert settled(harness, claim) == [(wait.key, wait.kind, WaitOutcome(came, value))]
        assert harness.steps(claim.id) == []
    else:
        assert (reply, settled(harness, claim)) == (WaitOutcome(came, value), [])
        assert harness.write("w", wait) == [reply]
    if came == "message":
        assert harness.wait("w", claim, "message", "topic", key="next", n=12) == WaitOutcome("message", '"second"')


def test_a_batch_that_emits_the_event_it_waits_for_resolves_the_wait(harness, claim):
    other = harness.running("w")
    emit = EmitCommand(token_of(other), 1, "emit", event_target(None, "x"), None, "x", "5")
    assert harness.write("w", wait_of(claim, "event", "x"), emit) == [WaitOutcome("event", "5"), Written("true")]
