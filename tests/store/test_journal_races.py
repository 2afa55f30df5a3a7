"""Writers of durable functions that race: the second sees what the first did.

On PostgreSQL, with two connections. One transaction is advanced by hand up to a point, the other is shown to wait for
it; then the first commits.
"""

from __future__ import annotations

import threading
from functools import partial

import pytest

from holdfast.store.commands import RUN_LOST, MarkUndosCommand, WaitOutcome, WaitRegistered, Written
from holdfast.store.module import json_rows
from tests.store.test_children import finish, join
from tests.support.manual_transaction import BlockedCall, ManualTransaction
from tests.support.store_harness import (
    CANCELLED,
    StoreHarness,
    end_of,
    record_of,
    spawn_of,
    steps_of,
    token_of,
    wait_of,
)


@pytest.fixture
def harness(postgres_url):
    harness = StoreHarness(postgres_url)
    harness.session("w")
    yield harness
    harness.close()


class Stopped:
    """A call of the store that stops before a statement, inside its transaction, until `result` is called."""

    def __init__(self, store, call, before):
        self._there, self._go = threading.Event(), threading.Event()
        self._result = []
        connect = store.database.connect

        def connecting(*given):
            connection = connect(*given)
            execute = connection.execute

            def executing(statement, values):
                if statement.name == before:
                    self._there.set()
                    assert self._go.wait(30)
                return execute(statement, values)

            connection.execute = executing
            connection.queue = lambda statement, values: partial(list, executing(statement, values))
            return connection

        store.database.connect = connecting
        self._thread = threading.Thread(target=lambda: self._result.append(call(store)))
        self._thread.start()
        assert self._there.wait(30), f"{before} wasn't reached"

    def result(self):
        self._go.set()
        self._thread.join(30)
        return self._result[0]


def stopped(harness, call, before):
    return Stopped(harness.another_store(), call, before)


# Events


def test_an_event_emitted_while_a_wait_registers_finds_it(harness):
    """Between the read of the event and the registration."""
    claim = harness.running("w")
    waiter = stopped(harness, lambda store: store.journal.write("w", [wait_of(claim, "event", "x")]), "add_waits")
    emitter = BlockedCall(harness, lambda: harness.store.events.emit(None, "x", "1"))
    assert waiter.result() == [WaitRegistered(None)]
    assert emitter.result() is True
    assert harness.waits(claim.id) == {"event": ("event", "1")}
    harness.suspend("w", claim)
    assert harness.state(claim.id) == "ready"


@pytest.mark.parametrize("before", ["find_event_waiters", "emit_events", "clear_more_waiters"])
def test_a_wait_that_registers_while_the_event_is_emitted_finds_it(harness, before):
    if before == "clear_more_waiters":
        before = "emit_events"
        harness.waiting("w", "event", "x")
    claim = harness.running("w")
    emitter = stopped(harness, lambda store: store.events.emit(None, "x", "1"), before)
    waiter = BlockedCall(harness, lambda: harness.wait("w", claim, "event", "x"))
    assert emitter.result() is True
    assert waiter.result() == WaitOutcome("event", "1")


def test_of_two_concurrent_emits_one_wins(harness):
    first = stopped(harness, lambda store: store.events.emit(None, "x", "1"), "emit_events")
    second = BlockedCall(harness, lambda: harness.store.events.emit(None, "x", "2"))
    assert (first.result(), second.result()) == (True, False)
    assert harness.sql("select payload from {schema}events") == [("1",)]


@pytest.mark.parametrize("verb", ["wait", "emit"])
def test_an_event_pruned_while_a_wait_registers_is_created_again(harness, verb):
    """Otherwise there would be no row to lock, and a wait and an emit could miss each other."""
    claim = harness.running("w")
    harness.store.events.emit(None, "x", "1")
    harness.clock.advance(5)
    pruner = stopped(harness, lambda store: store.retention.prune_events(1), "delete_unawaited_events")
    calls = {
        "wait": lambda: harness.wait("w", claim, "event", "x"),
        "emit": lambda: harness.store.events.emit(None, "x", "2"),
    }
    late = BlockedCall(harness, calls[verb])
    pruner.result()
    assert late.result() == {"wait": WaitRegistered(None), "emit": True}[verb]
    assert harness.rows("events") == 1


def test_a_wait_that_registers_while_old_events_are_pruned_keeps_its_event(harness):
    claim = harness.running("w")
    harness.wait("w", claim, "event", "x")
    harness.clock.advance(5)
    other = harness.running("w")
    waiter = stopped(harness, lambda store: store.journal.write("w", [wait_of(other, "event", "x")]), "add_waits")
    harness.sql("delete from {schema}waits")
    harness.store.retention.prune_events(1)
    assert harness.rows("events") == 1, "it is locked by someone who comes for it"
    waiter.result()


def test_a_concurrent_timeout_and_event_resolve_a_wait_once(harness):
    claim = harness.waiting("w", "event", "x", delay=5)
    harness.clock.now += 5
    waker = stopped(harness, lambda store: store.timers.resolve_due_waits(), "resolve_due_waits")
    emitter = BlockedCall(harness, lambda: harness.store.events.emit(None, "x", "1"))
    assert (waker.result(), emitter.result()) == (1, True)
    assert harness.waits(claim.id) == {"event": ("due", None)}
    assert harness.state(claim.id) == "ready"


def test_a_run_that_suspends_while_its_event_is_emitted_is_ready(harness):
    claim = harness.running("w")
    harness.wait("w", claim, "event", "x")
    emitter = stopped(harness, lambda store: store.events.emit(None, "x", "1"), "resolve_waits")
    suspending = BlockedCall(harness, lambda: harness.suspend("w", claim))
    assert emitter.result() is True
    assert suspending.result() is True
    assert harness.state(claim.id) == "ready"


def test_an_event_emitted_while_its_waiter_suspends_wakes_it(harness):
    claim = harness.running("w")
    harness.wait("w", claim, "event", "x")
    suspending = stopped(
        harness, lambda store: store.attempts.end("w", [end_of(claim, "waiting", in_tree=True)]), "end_tree_attempts"
    )
    emitter = BlockedCall(harness, lambda: harness.store.events.emit(None, "x", "1"))
    assert suspending.result() == {end_of(claim).claim}
    assert emitter.result() is True
    assert harness.state(claim.id) == "ready"


# Messages


@pytest.mark.parametrize("before", ["find_waits", "first_unread_message", "add_waits"])
def test_a_message_sent_while_a_receive_registers_reaches_it(harness, before):
    claim = harness.running("w")
    receiver = stopped(harness, lambda store: store.journal.write("w", [wait_of(claim, "message", "topic")]), before)
    sender = BlockedCall(harness, lambda: harness.store.actions.send(claim.id, "topic", "1"))
    assert receiver.result() == [WaitRegistered(None)]
    sender.result()
    assert harness.waits(claim.id) == {"message": ("message", "1")}


@pytest.mark.parametrize("before", ["first_waiting_receiver", "add_message"])
def test_a_receive_that_registers_while_a_message_is_sent_gets_it(harness, before):
    claim = harness.running("w")
    sender = stopped(harness, lambda store: store.actions.send(claim.id, "topic", "1"), before)
    receiver = BlockedCall(harness, lambda: harness.wait("w", claim, "message", "topic"))
    sender.result()
    assert receiver.result() == WaitOutcome("message", "1")


def test_messages_sent_at_once_are_numbered_one_after_the_other(harness):
    claim = harness.running("w")
    first = stopped(harness, lambda store: store.actions.send(claim.id, "topic", "1"), "add_message")
    second = BlockedCall(harness, lambda: harness.store.actions.send(claim.id, "topic", "2"))
    first.result()
    second.result()
    assert harness.sql("select n, payload from {schema}messages order by n") == [(1, "1"), (2, "2")]


# Children


def test_a_child_that_ends_while_its_join_registers_is_counted(harness):
    parent = harness.running("w")
    harness.spawn("w", parent, 2)
    one, other = harness.claim("w", 2, ["child"])
    joining = stopped(
        harness,
        lambda store: store.journal.write("w", [wait_of(parent, "children", "call#1", key="$join:call#1#1")]),
        "add_waits",
    )
    ending = BlockedCall(harness, lambda: finish(harness, one))
    assert joining.result() == [WaitRegistered(None)]
    ending.result()
    assert harness.sql("select pending from {schema}waits") == [(1,)]
    finish(harness, other)
    assert harness.waits(parent.id) == {"$join:call#1#1": ("children", None)}


@pytest.mark.parametrize("before", ["end_tree_attempts", "resolve_child_waits"])
def test_a_join_that_registers_while_the_child_ends_sees_it_ended(harness, before):
    parent = harness.running("w")
    harness.spawn("w", parent)
    child = harness.child("w")
    ending = stopped(harness, lambda store: store.attempts.end("w", [end_of(child, in_tree=True)]), before)
    joining = BlockedCall(harness, lambda: join(harness, parent))
    assert ending.result() == {end_of(child).claim}
    assert joining.result() == WaitOutcome("children", None)


def test_children_that_end_at_once_wake_their_parent_once_with_all(harness):
    parent = harness.running("w")
    harness.spawn("w", parent, 2)
    join(harness, parent)
    harness.suspend("w", parent)
    one, other = harness.claim("w", 2, ["child"])
    first = stopped(harness, lambda store: store.attempts.end("w", [end_of(one, in_tree=True)]), "resolve_child_waits")
    second = BlockedCall(harness, lambda: harness.end("w", other, in_tree=True))
    assert first.result() == {end_of(one).claim}
    assert second.result() is True
    assert harness.waits(parent.id) == {"$join:call#1#1": ("children", None)}
    (again,) = harness.claim("w")
    assert (again.id, again.attempt, again.fence) == (parent.id, 1, 2)
    assert harness.claim("w") == []


def test_children_of_a_map_that_end_concurrently_release_as_many(harness):
    parent = harness.running("w")
    children = harness.spawn("w", parent, 4, concurrency=2)
    one, other = harness.claim("w", 2, ["child"])
    first = stopped(harness, lambda store: store.attempts.end("w", [end_of(one, in_tree=True)]), "release_map_children")
    second = BlockedCall(harness, lambda: harness.end("w", other, in_tree=True))
    first.result()
    second.result()
    assert harness.states(children) == ["done", "done", "ready", "ready"]


# Cancelling


def test_a_spawn_that_waited_for_the_cancel_of_its_run_creates_no_child(harness):
    parent = harness.running("w")
    cancel = stopped(harness, lambda store: store.actions.cancel(parent.id, CANCELLED), "lock_unfinished_children")
    spawning = BlockedCall(harness, lambda: harness.write("w", spawn_of(parent, [harness.new("child")])))
    assert cancel.result() is True
    assert spawning.result() == [RUN_LOST]
    assert harness.rows("runs") == 1


def test_a_cancel_that_waited_for_a_spawn_cancels_the_child(harness):
    parent = harness.running("w")
    child = harness.new("child")
    spawning = stopped(harness, lambda store: store.journal.write("w", [spawn_of(parent, [child])]), "add_checkpoints")
    cancel = BlockedCall(harness, lambda: harness.store.actions.cancel(parent.id, CANCELLED))
    assert isinstance(spawning.result()[0], Written)
    assert cancel.result() is True
    assert harness.states([parent.id, child.id]) == ["cancelled", "cancelled"]


def test_a_cancel_of_the_root_cancels_runs_that_a_child_spawns_meanwhile(harness):
    parent = harness.running("w")
    harness.spawn("w", parent)
    child, grandchild = harness.child("w"), harness.new("child")
    spawning = stopped(
        harness, lambda store: store.journal.write("w", [spawn_of(child, [grandchild])]), "add_checkpoints"
    )
    cancel = BlockedCall(harness, lambda: harness.store.actions.cancel(parent.id, CANCELLED))
    spawning.result()
    assert cancel.result() is True
    assert harness.states([parent.id, child.id, grandchild.id]) == ["cancelled"] * 3


def test_a_child_that_ends_while_its_parent_is_cancelled_ends_one_way(harness):
    parent = harness.running("w")
    harness.spawn("w", parent)
    child = harness.child("w")
    cancel = stopped(harness, lambda store: store.actions.cancel(parent.id, CANCELLED), "lock_unfinished_children")
    ending = BlockedCall(harness, lambda: harness.end("w", child, in_tree=True))
    assert cancel.result() is True
    assert ending.result() is False
    assert (harness.state(child.id), harness.kinds(child.id)) == ("cancelled", ["cancelled"])


@pytest.mark.parametrize("undo", [0, 1])
def test_a_checkpoint_that_waited_for_a_cancel_is_kept_only_where_it_is_to_be_undone(harness, undo):
    claim = harness.running("w")
    if undo:
        harness.write("w", MarkUndosCommand(token_of(claim)))
    cancel = stopped(harness, lambda store: store.actions.cancel(claim.id, CANCELLED), "add_history")
    late = BlockedCall(harness, lambda: harness.record("w", claim, 1, undo=undo))
    assert cancel.result() is True
    assert late.result() is RUN_LOST, "nothing may follow it"
    assert len(harness.steps(claim.id)) == undo


def test_a_cancel_that_waited_for_a_checkpoint_undoes_it(harness):
    claim = harness.running("w")
    harness.write("w", MarkUndosCommand(token_of(claim)))
    hand = ManualTransaction(harness)
    row = {"run": claim.id, "seq": claim.seq, "fence": claim.fence, "generation": 0, "n": 1, "key": "s",
           "kind": "step", "value": "1", "undo": 1}  # fmt: skip
    assert hand.do("record_checkpoints", session="w", rows=json_rows([row]))
    cancel = BlockedCall(harness, lambda: harness.store.actions.cancel(claim.id, CANCELLED))
    hand.commit()
    assert cancel.result() is True
    assert (len(harness.steps(claim.id)), harness.row(claim.id)["ending"]) == (1, "cancelled")


# Leases


@pytest.mark.parametrize("kind", ["plain", "group", "steps"])
def test_a_checkpoint_that_waited_for_the_recovery_of_its_session_is_refused(harness, kind):
    claim = harness.running("w")
    harness.clock.advance(60)
    recovery = stopped(harness, lambda store: store.sessions.recover(["w"], "{}"), "crash_runs")
    harness.clock.advance(-1)  # as if the writer had looked at the clock just before
    journal, records = harness.store.journal, [record_of(claim, 1)]
    write = {
        "plain": lambda: journal.record("w", records),
        "group": lambda: journal.write("w", records),
        "steps": lambda: [RUN_LOST] if journal.record_steps("w", *steps_of([claim], 1)) is False else [],
    }
    late = BlockedCall(harness, write[kind])
    assert recovery.result().requeued == 1
    assert late.result() == [RUN_LOST]
    assert harness.rows("checkpoints") == 0


def test_a_checkpoint_that_waited_for_another_change_of_its_run_counts(harness):
    claim = harness.running("w")
    hand = ManualTransaction(harness)
    hand.do("set_progress", rows=json_rows([{"id": claim.id, "progress": "1"}]))
    late = BlockedCall(harness, lambda: harness.record("w", claim, 1))
    hand.commit()
    assert isinstance(late.result(), Written)
    assert len(harness.steps(claim.id)) == 1
