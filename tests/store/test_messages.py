"""Messages to runs: each is received once, in order, by present and future receivers."""

from __future__ import annotations

import pytest

from holdfast.errors import RunFinished, RunNotFound
from holdfast.store.commands import RUN_LOST, WaitOutcome, WaitRegistered, WithdrawCommand, Written
from tests.support.world import CANCELLED, record_of, token_of, wait_of


@pytest.fixture
def claim(world):
    world.session("w")
    return world.running("w")


def receive(world, claim, topic="topic", number=1):
    return world.wait("w", claim, "message", topic, key=f"receive:{topic}#{number}", n=100 + number)


def test_messages_sent_before_are_received_in_order_and_once(world, claim):
    for number in range(3):
        world.store.actions.send(claim.id, "topic", str(number))
    got = [receive(world, claim, number=number) for number in range(1, 5)]
    assert got == [WaitOutcome("message", str(number)) for number in range(3)] + [WaitRegistered(None)]


def test_a_message_wakes_the_run_that_waits_for_it(world, claim):
    receive(world, claim)
    world.suspend("w", claim)
    world.store.actions.send(claim.id, "other topic", "0")
    assert world.state(claim.id) == "waiting"
    world.store.actions.send(claim.id, "topic", "null")
    assert world.state(claim.id) == "ready"
    world.store.actions.send(claim.id, "topic", "2")
    assert world.waits(claim.id) == {"receive:topic#1": ("message", "null")}
    (again,) = world.claim("w")
    assert receive(world, again, number=2) == WaitOutcome("message", "2")
    assert receive(world, again, "other topic") == WaitOutcome("message", "0")


def test_several_receivers_get_one_message_each_in_the_order_in_which_they_came(world, claim):
    keys = [f"receive:topic#{number}" for number in range(1, 13)]
    waits = [wait_of(claim, "message", "topic", key=key, n=n) for n, key in enumerate(keys, 1)]
    assert world.write("w", *waits) == [WaitRegistered(None)] * 12
    for number in range(12):
        world.store.actions.send(claim.id, "topic", str(number))
    assert world.waits(claim.id) == {key: ("message", str(number)) for number, key in enumerate(keys)}
    assert world.sql("select count(*) from {schema}messages where taken_by is null") == [(0,)]


def test_a_message_sent_while_the_run_is_being_recovered_is_received_by_the_next_attempt(world, claim, clock):
    world.store.actions.send(claim.id, "topic", "1")
    assert receive(world, claim) == WaitOutcome("message", "1")
    receive(world, claim, number=2)
    clock.advance(61)
    world.store.actions.send(claim.id, "topic", "2")
    world.recover("w")
    world.store.actions.send(claim.id, "topic", "3")
    world.session("v")
    (again,) = world.claim("v")
    kept = world.store.journal.load([(again.id, 0)])[again.id]
    assert [(step.kind, step.value) for step in kept.checkpoints] == [("message", "1")]
    assert [(wait.key, wait.outcome) for wait in kept.waits] == [("receive:topic#2", WaitOutcome("message", "2"))]
    assert world.wait("v", again, "message", "topic", key="receive:topic#3", n=5) == WaitOutcome("message", "3")


def test_a_receive_that_timed_out_leaves_the_message_to_the_next(world, claim, clock):
    world.wait("w", claim, "message", "topic", delay=5)
    clock.now += 5
    world.store.timers.resolve_due_waits()
    world.store.actions.send(claim.id, "topic", "1")
    assert world.waits(claim.id) == {"message": ("due", None)}
    assert receive(world, claim) == WaitOutcome("message", "1")


@pytest.mark.parametrize("state", ["done", "failed", "cancelled"])
def test_messages_to_finished_runs_are_refused(world, claim, state):
    if state == "cancelled":
        world.store.actions.cancel(claim.id, CANCELLED)
    else:
        world.end("w", claim, state)
    with pytest.raises(RunFinished, match=state):
        world.store.actions.send(claim.id, "topic", "1")
    assert world.rows("messages") == 0


@pytest.mark.parametrize("how", ["ready", "scheduled", "running", "waiting"])
def test_messages_to_unfinished_runs_are_kept(world, claim, how):
    if how == "ready":
        world.end("w", claim, "handed_back")
    elif how == "scheduled":
        world.end("w", claim, "retrying")
    elif how == "waiting":
        world.suspend("w", claim)
    before = world.row(claim.id)
    world.store.actions.send(claim.id, "topic", "1")
    assert world.row(claim.id) == before
    assert world.rows("messages") == 1


def test_messages_to_missing_runs_are_rejected(world):
    with pytest.raises(RunNotFound):
        world.store.actions.send("00000000-0000-7000-8000-000000000000", "topic", "1")


def test_messages_of_other_runs_arent_received(world, claim):
    other = world.running("w")
    world.store.actions.send(other.id, "topic", "1")
    assert receive(world, claim) == WaitRegistered(None)
    assert receive(world, other) == WaitOutcome("message", "1")


def withdraw(claim, number=1, n=200):
    return WithdrawCommand(token_of(claim), n, f"receive:topic#{number}")


@pytest.mark.parametrize("how", ["open", "given", "taken at once", "recorded"])
def test_the_message_of_a_withdrawn_receive_goes_to_the_next_in_order(world, claim, how):
    if how == "taken at once":
        world.store.actions.send(claim.id, "topic", "1")
    receive(world, claim)
    if how != "taken at once":
        if how != "open":
            world.store.actions.send(claim.id, "topic", "1")
        if how == "recorded":
            over = record_of(claim, 150, "receive:topic#1", kind="message", value="1", waited=True)
            world.write("w", over)
    if how == "open":
        assert world.write("w", withdraw(claim)) == [Written()]
        world.store.actions.send(claim.id, "topic", "1")
    world.store.actions.send(claim.id, "topic", "2")
    following = wait_of(claim, "message", "topic", key="receive:topic#2", n=201)
    replies = world.write("w", *([] if how == "open" else [withdraw(claim)]), following)
    assert replies[-1] == WaitOutcome("message", "1")
    assert receive(world, claim, number=3) == WaitOutcome("message", "2")
    assert world.waits(claim.id) == {}
    assert (200, "receive:topic#1", "withdrawn", None) in world.steps(claim.id)


def test_a_withdrawn_receive_gives_its_message_to_one_that_waits(world, claim):
    receive(world, claim)
    receive(world, claim, number=2)
    world.store.actions.send(claim.id, "topic", "1")
    world.write("w", withdraw(claim))
    assert world.waits(claim.id) == {"receive:topic#2": ("message", "1")}


def test_a_receive_withdrawn_in_its_own_batch_takes_nothing(world, claim):
    world.store.actions.send(claim.id, "topic", "1")
    group = [wait_of(claim, "message", "topic", key="receive:topic#1", n=1), withdraw(claim, n=2)]
    for _ in ("once", "again after a lost answer"):
        assert world.write("w", *group) == [WaitRegistered(None), Written()]
    assert world.waits(claim.id) == {}
    assert receive(world, claim, number=2) == WaitOutcome("message", "1")


def test_a_withdrawal_by_a_lost_attempt_changes_nothing(world, claim):
    receive(world, claim)
    world.suspend("w", claim)
    world.store.actions.send(claim.id, "topic", "1")
    (again,) = world.claim("w")
    assert world.write("w", withdraw(claim), wait_of(again, "message", "topic", key="receive:topic#1", n=3)) == [
        RUN_LOST,
        WaitOutcome("message", "1"),
    ]
