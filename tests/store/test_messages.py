"""Messages to runs: each is received once, in order, by present and future receivers."""

from __future__ import annotations

import pytest

from holdfast.errors import MessageNotFound, RunFinished, RunNotFound
from holdfast.store.commands import RUN_LOST, SetAsideCommand, WaitOutcome, WaitRegistered, WithdrawCommand, Written
from tests.support.store_harness import CANCELLED, record_of, token_of, wait_of


@pytest.fixture
def claim(harness):
    harness.session("w")
    return harness.running("w")


def receive(harness, claim, topic="topic", number=1):
    return harness.wait("w", claim, "message", topic, key=f"receive:{topic}#{number}", n=100 + number)


def test_messages_sent_before_are_received_in_order_and_once(harness, claim):
    for number in range(3):
        harness.store.actions.send(claim.id, "topic", str(number))
    got = [receive(harness, claim, number=number) for number in range(1, 5)]
    assert got == [WaitOutcome("message", str(number)) for number in range(3)] + [WaitRegistered(None)]


def test_a_message_wakes_the_run_that_waits_for_it(harness, claim):
    receive(harness, claim)
    harness.suspend("w", claim)
    harness.store.actions.send(claim.id, "other topic", "0")
    assert harness.state(claim.id) == "waiting"
    harness.store.actions.send(claim.id, "topic", "null")
    assert harness.state(claim.id) == "ready"
    harness.store.actions.send(claim.id, "topic", "2")
    assert harness.waits(claim.id) == {"receive:topic#1": ("message", "null")}
    (again,) = harness.claim("w")
    assert receive(harness, again, number=2) == WaitOutcome("message", "2")
    assert receive(harness, again, "other topic") == WaitOutcome("message", "0")


def test_a_message_is_set_aside_once_and_the_receiver_waits_again_under_its_key(harness, claim):
    harness.store.actions.send(claim.id, "topic", '"bad"')
    assert receive(harness, claim) == WaitOutcome("message", '"bad"')
    command = SetAsideCommand(token_of(claim), "receive:topic#1", "not a number")
    assert harness.write("w", command) == [Written()]
    assert harness.write("w", command) == [Written()], "a repeat after a lost answer"
    assert harness.kinds(claim.id) == ["set_aside"]
    again = harness.wait("w", claim, "message", "topic", key="receive:topic#1", n=102)
    assert again == WaitRegistered(None)
    assert [row[:2] for row in harness.store.queries.set_aside_messages(claim.id)] == [(1, "topic")]
    assert harness.store.queries.message_payloads(claim.id, [1]) == {1: '"bad"'}
    harness.store.actions.resend(claim.id, 1, "7")
    assert harness.waits(claim.id) == {"receive:topic#1": ("message", "7")}
    with pytest.raises(MessageNotFound):
        harness.store.actions.resend(claim.id, 1)
    assert harness.store.queries.set_aside_messages(claim.id) == []


def test_a_batch_that_records_and_sets_aside_is_safe_to_repeat(harness, claim):
    receive(harness, claim)
    harness.store.actions.send(claim.id, "topic", '"bad"')
    outcome = record_of(claim, 5, "receive:topic#1", kind="message", value='"bad"', waited=True)
    batch = (outcome, SetAsideCommand(token_of(claim), "receive:topic#1", "not a number"))
    assert harness.write("w", *batch) == [Written(), Written()]
    assert harness.write("w", *batch) == [Written('"bad"'), Written()]
    assert [(step.n, step.generation < 0) for step in harness.store.queries.step_outline(claim.id)] == [(5, True)]
    assert harness.kinds(claim.id) == ["set_aside"]


def test_a_set_aside_of_a_lost_run_changes_nothing(harness, claim):
    harness.store.actions.send(claim.id, "topic", "1")
    receive(harness, claim)
    harness.store.actions.cancel(claim.id, CANCELLED)
    assert harness.write("w", SetAsideCommand(token_of(claim), "receive:topic#1", "late")) == [RUN_LOST]
    assert harness.store.queries.set_aside_messages(claim.id) == []


def test_several_receivers_get_one_message_each_in_the_order_in_which_they_came(harness, claim):
    keys = [f"receive:topic#{number}" for number in range(1, 13)]
    waits = [wait_of(claim, "message", "topic", key=key, n=n) for n, key in enumerate(keys, 1)]
    assert harness.write("w", *waits) == [WaitRegistered(None)] * 12
    for number in range(12):
        harness.store.actions.send(claim.id, "topic", str(number))
    assert harness.waits(claim.id) == {key: ("message", str(number)) for number, key in enumerate(keys)}
    assert harness.sql("select count(*) from {schema}messages where taken_by is null") == [(0,)]


def test_a_message_sent_while_the_run_is_being_recovered_is_received_by_the_next_attempt(harness, claim, clock):
    harness.store.actions.send(claim.id, "topic", "1")
    assert receive(harness, claim) == WaitOutcome("message", "1")
    receive(harness, claim, number=2)
    clock.advance(61)
    harness.store.actions.send(claim.id, "topic", "2")
    harness.recover("w")
    harness.store.actions.send(claim.id, "topic", "3")
    harness.session("v")
    (again,) = harness.claim("v")
    kept = harness.store.journal.load([(again.id, 0)])[again.id]
    assert [(step.kind, step.value) for step in kept.checkpoints] == [("message", "1")]
    assert [(wait.key, wait.outcome) for wait in kept.waits] == [("receive:topic#2", WaitOutcome("message", "2"))]
    assert harness.wait("v", again, "message", "topic", key="receive:topic#3", n=5) == WaitOutcome("message", "3")


def test_a_receive_that_timed_out_leaves_the_message_to_the_next(harness, claim, clock):
    harness.wait("w", claim, "message", "topic", delay=5)
    clock.now += 5
    harness.store.timers.resolve_due_waits()
    harness.store.actions.send(claim.id, "topic", "1")
    assert harness.waits(claim.id) == {"message": ("due", None)}
    assert receive(harness, claim) == WaitOutcome("message", "1")


@pytest.mark.parametrize("state", ["done", "failed", "cancelled"])
def test_messages_to_finished_runs_are_refused(harness, claim, state):
    if state == "cancelled":
        harness.store.actions.cancel(claim.id, CANCELLED)
    else:
        harness.end("w", claim, state)
    with pytest.raises(RunFinished, match=state):
        harness.store.actions.send(claim.id, "topic", "1")
    assert harness.rows("messages") == 0


@pytest.mark.parametrize("how", ["ready", "scheduled", "running", "waiting"])
def test_messages_to_unfinished_runs_are_kept(harness, claim, how):
    if how == "ready":
        harness.end("w", claim, "handed_back")
    elif how == "scheduled":
        harness.end("w", claim, "retrying")
    elif how == "waiting":
        harness.suspend("w", claim)
    before = harness.row(claim.id)
    harness.store.actions.send(claim.id, "topic", "1")
    assert harness.row(claim.id) == before
    assert harness.rows("messages") == 1


def test_messages_to_missing_runs_are_rejected(harness):
    with pytest.raises(RunNotFound):
        harness.store.actions.send("00000000-0000-7000-8000-000000000000", "topic", "1")


def test_messages_of_other_runs_arent_received(harness, claim):
    other = harness.running("w")
    harness.store.actions.send(other.id, "topic", "1")
    assert receive(harness, claim) == WaitRegistered(None)
    assert receive(harness, other) == WaitOutcome("message", "1")


def withdraw(claim, number=1, n=200):
    return WithdrawCommand(token_of(claim), n, f"receive:topic#{number}")


@pytest.mark.parametrize("how", ["open", "given", "taken at once", "recorded"])
def test_the_message_of_a_withdrawn_receive_goes_to_the_next_in_order(harness, claim, how):
    if how == "taken at once":
        harness.store.actions.send(claim.id, "topic", "1")
    receive(harness, claim)
    if how != "taken at once":
        if how != "open":
            harness.store.actions.send(claim.id, "topic", "1")
        if how == "recorded":
            over = record_of(claim, 150, "receive:topic#1", kind="message", value="1", waited=True)
            harness.write("w", over)
    if how == "open":
        assert harness.write("w", withdraw(claim)) == [Written()]
        harness.store.actions.send(claim.id, "topic", "1")
    harness.store.actions.send(claim.id, "topic", "2")
    following = wait_of(claim, "message", "topic", key="receive:topic#2", n=201)
    replies = harness.write("w", *([] if how == "open" else [withdraw(claim)]), following)
    assert replies[-1] == WaitOutcome("message", "1")
    assert receive(harness, claim, number=3) == WaitOutcome("message", "2")
    assert harness.waits(claim.id) == {}
    assert (200, "receive:topic#1", "withdrawn", None) in harness.steps(claim.id)


def test_a_withdrawn_receive_gives_its_message_to_one_that_waits(harness, claim):
    receive(harness, claim)
    receive(harness, claim, number=2)
    harness.store.actions.send(claim.id, "topic", "1")
    harness.write("w", withdraw(claim))
    assert harness.waits(claim.id) == {"receive:topic#2": ("message", "1")}


def test_a_receive_withdrawn_in_its_own_batch_takes_nothing(harness, claim):
    harness.store.actions.send(claim.id, "topic", "1")
    group = [wait_of(claim, "message", "topic", key="receive:topic#1", n=1), withdraw(claim, n=2)]
    for _ in ("once", "again after a lost answer"):
        assert harness.write("w", *group) == [WaitRegistered(None), Written()]
    assert harness.waits(claim.id) == {}
    assert receive(harness, claim, number=2) == WaitOutcome("message", "1")


def test_a_withdrawal_by_a_lost_attempt_changes_nothing(harness, claim):
    receive(harness, claim)
    harness.suspend("w", claim)
    harness.store.actions.send(claim.id, "topic", "1")
    (again,) = harness.claim("w")
    assert harness.write("w", withdraw(claim), wait_of(again, "message", "topic", key="receive:topic#1", n=3)) == [
        RUN_LOST,
        WaitOutcome("message", "1"),
    ]
