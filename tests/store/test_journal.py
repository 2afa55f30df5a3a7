"""What durable functions record: fenced, in batches, and once however often it is repeated."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from holdfast.errors import KeyConflict
from holdfast.store.commands import (
    RUN_LOST,
    EmitCommand,
    EnqueueCommand,
    FailedTryCommand,
    MarkUndosCommand,
    ProgressCommand,
    WaitRegistered,
    WithdrawCommand,
    WriteCommand,
    Written,
)
from holdfast.store.waits import event_target
from tests.support.store_harness import CANCELLED, record_of, spawn_of, steps_of, token_of, wait_of


@pytest.fixture
def claim(harness):
    harness.session("w")
    return harness.running("w")


def lose(harness, claim, how):
    """Let worker `w` lose a run; return the session with which it continues regardless."""
    if how == "taken over":
        harness.clock.advance(61)
        harness.recover("w")
        harness.session("w")
        harness.session("v")
        harness.claim("v")
    elif how == "lease over":
        harness.clock.advance(60)
    elif how == "cancelled":
        harness.store.actions.cancel(claim.id, CANCELLED)
    elif how == "of another session":
        harness.session("v")
        return "v"
    elif how == "pruned":
        harness.sql("delete from {schema}runs")
    else:
        kind, _, again = how.partition(" and ")
        assert harness.end("w", claim, kind, in_tree=True)
        if again:
            harness.claim("w")
    return "w"


HOWS = ["taken over", "lease over", "done", "cancelled", "waiting", "handed_back and claimed", "restarted",
        "restarted and claimed", "of another session", "pruned"]  # fmt: skip


def commands_for(harness, claim):
    """One command of each kind."""
    return {
        "outcome of a wait": record_of(claim, 2, waited=True),
        "sleep": wait_of(claim, "sleep", delay=1),
        "event": wait_of(claim, "event", "happened"),
        "message": wait_of(claim, "message", "topic"),
        "children": wait_of(claim, "children", "call#1"),
        "withdraw": WithdrawCommand(token_of(claim), 7, "given up"),
        "emit": EmitCommand(token_of(claim), 3, "emit", event_target(None, "mine"), None, "mine", "1"),
        "spawn": spawn_of(claim, [harness.new("child")], n=4),
        "enqueue": EnqueueCommand(token_of(claim), 5, "enqueue", harness.new("other")),
        "write": WriteCommand(token_of(claim), 6, "write", 1, '"text"'),
        "progress": ProgressCommand(token_of(claim), "{}"),
        "mark": MarkUndosCommand(token_of(claim)),
        "failed try": FailedTryCommand(token_of(claim), "step", '{"try": 1}'),
    }


def traces(harness):
    tables = ("runs", "checkpoints", "waits", "messages", "chunks")
    marks = harness.sql("select count(*) from {schema}runs where progress is not null or undos = 1")
    emitted = harness.sql("select count(*) from {schema}events where emitted_at is not null")
    tries = harness.sql("select count(*) from {schema}history where kind = 'step_retrying'")
    return {table: harness.rows(table) for table in tables}, marks, emitted, tries


@pytest.mark.parametrize("how", HOWS)
def test_a_checkpoint_of_a_lost_run_is_rejected(harness, claim, how):
    session = lose(harness, claim, how)
    assert harness.record(session, claim, 1) is RUN_LOST
    assert harness.rows("checkpoints") == 0


@pytest.mark.parametrize("how", HOWS)
def test_record_steps_reports_if_one_of_the_runs_is_lost(harness, claim, how):
    other = harness.running("w")
    session = lose(harness, claim, how)
    assert harness.store.journal.record_steps(session, *steps_of([claim, other], 1)) is False
    assert harness.steps(claim.id) == []


def test_recorded_steps_are_ordinary_checkpoints(harness, claim):
    assert harness.end("w", claim, "restarted", in_tree=True)
    one, other = harness.claim("w")[0], harness.running("w")
    assert one.generation == 1
    assert harness.store.journal.record_steps("w", *steps_of([one, other], 1)) is True
    written = harness.sql("select * from {schema}checkpoints order by generation desc")
    harness.sql("delete from {schema}checkpoints")
    harness.store.journal.record("w", [record_of(one, 1, took=7), record_of(other, 1, took=7)])
    assert harness.sql("select * from {schema}checkpoints order by generation desc") == written


def test_record_steps_reports_a_repeat(harness, claim):
    other = harness.running("w")
    assert harness.store.journal.record_steps("w", *steps_of([claim], 1)) is True
    assert harness.store.journal.record_steps("w", *steps_of([claim, other], 1)) is False
    assert len(harness.steps(claim.id)) == 1


@pytest.mark.parametrize("how", HOWS)
def test_every_command_for_a_lost_run_is_rejected_and_writes_nothing(harness, claim, how):
    harness.store.actions.send(claim.id, "topic", "1")
    session = lose(harness, claim, how)
    commands = commands_for(harness, claim)
    before = traces(harness)
    replies = harness.write(session, *commands.values())
    assert [name for name, reply in zip(commands, replies, strict=True) if reply is not RUN_LOST] == []
    assert traces(harness) == before
    untaken = harness.sql("select count(*) from {schema}messages where taken_by is null")
    assert untaken == [(1,)]


@pytest.mark.parametrize("how", HOWS)
def test_an_enqueue_with_a_key_by_a_lost_run_creates_nothing(harness, claim, how):
    session = lose(harness, claim, how)
    runs = harness.rows("runs")
    assert (
        harness.store.journal.enqueue(session, EnqueueCommand(token_of(claim), 1, "e", harness.new("other", key="k")))
        is RUN_LOST
    )
    assert (harness.rows("runs"), harness.rows("keys"), harness.rows("checkpoints")) == (runs, 0, 0)


def test_a_command_for_a_lost_run_does_not_affect_its_batch(harness, claim):
    lost = harness.running("w")
    lose(harness, lost, "cancelled")
    wrong = commands_for(harness, lost)
    right = commands_for(harness, claim)
    wrong["emit"].name, wrong["emit"].target = "mine", right["emit"].target
    replies = harness.write("w", *wrong.values(), *right.values())
    assert set(replies[: len(wrong)]) == {RUN_LOST}
    assert RUN_LOST not in replies[len(wrong) :]
    emitted = replies[len(wrong) + list(right).index("emit")]
    assert emitted == Written("true"), "the refused emit of the same event wasn't the first"
    assert harness.rows("chunks") == harness.rows("waits") - 2 == 1  # the children's wait came at once: there are none


def test_checkpoints_of_lost_runs_do_not_affect_others_in_the_batch(harness, claim):
    lost = harness.running("w")
    lose(harness, lost, "done")
    replies = harness.store.journal.record("w", [record_of(lost, 1), record_of(claim, 1), record_of(lost, 2)])
    assert [reply is RUN_LOST for reply in replies] == [True, False, True]
    assert [key for _, key, _, _ in harness.steps(claim.id)] == ["step 1"]


def test_a_checkpoint_that_is_written_again_counts_and_changes_nothing(harness, claim):
    harness.record("w", claim, 1, value='"first"')
    assert harness.record("w", claim, 1, value='"second"') == Written('"first"')
    assert harness.steps(claim.id) == [(1, "step 1", "step", '"first"')]


def test_a_checkpoint_of_another_claim_is_not_read_back(harness, claim):
    harness.record("w", claim, 1)
    lose(harness, claim, "taken over")
    (again,) = harness.store.claims.list_owned("v")
    assert harness.record("v", replace(claim, fence=again.fence), 1) is RUN_LOST, "same number and key, another fence"
    assert harness.record("w", claim, 1) == Written('"value 1"'), "it was written while it was its own"


def test_a_recorded_time_is_the_database_time_and_stays(harness, claim, clock):
    asked = clock.now
    assert harness.record("w", claim, 1, kind="now", value="") == Written(str(asked))
    clock.advance(5)
    assert harness.record("w", claim, 1, kind="now", value="") == Written(str(asked))


def test_every_command_repeated_after_a_lost_answer_reads_back_its_outcome(harness, claim, clock):
    harness.store.actions.send(claim.id, "topic", '"hello"')
    harness.store.events.emit(None, "happened", '"yes"')
    commands = list(commands_for(harness, claim).values())
    for number, command in enumerate(commands):
        if isinstance(getattr(command, "n", None), int):
            command.n = 100 + number
    first = harness.write("w", *commands)
    before = traces(harness)
    clock.advance(1)
    again = harness.write("w", *commands)
    assert traces(harness) == before
    for one, other in zip(first, again, strict=True):
        if isinstance(one, Written) and one.value is None:
            assert isinstance(other, Written)
        elif isinstance(one, WaitRegistered):
            assert other == WaitRegistered(one.due_in - 1_000_000)
        else:
            assert one == other


@pytest.mark.parametrize("more", [{}, {"key": "k"}, {"unique": "u"}, {"key": "k", "unique": "u"}])
def test_an_enqueue_that_is_written_again_gives_the_same_run(harness, claim, more):
    command = EnqueueCommand(token_of(claim), 1, "enqueue", harness.new("other", **more))
    reply = harness.store.journal.enqueue("w", command)
    assert reply == Written(f'"{command.request.id}"')
    later = EnqueueCommand(token_of(claim), 1, "enqueue", harness.new("other", **more))
    assert harness.store.journal.enqueue("w", later) == reply
    assert harness.rows("runs") == 2
    assert [step[:3] for step in harness.steps(claim.id)] == [(1, "enqueue", "enqueue")]


def test_an_enqueue_with_a_key_in_use_gives_its_run_or_a_conflict(harness, claim):
    there = harness.add("other", key="k")
    same = EnqueueCommand(token_of(claim), 1, "one", harness.new("other", key="k"))
    assert harness.store.journal.enqueue("w", same) == Written(f'"{there}"')
    other = EnqueueCommand(token_of(claim), 2, "two", harness.new("other", key="k", digest="else"))
    conflict = harness.store.journal.enqueue("w", other)
    assert isinstance(conflict, KeyConflict)
    assert there in str(conflict)
    assert [step[1] for step in harness.steps(claim.id)] == ["one"]


def test_chunks_are_numbered_in_order(harness, claim):
    def piece(n, text):
        return WriteCommand(token_of(claim), n, f"write {n}", 1, text)

    harness.write("w", piece(1, "a"), piece(None, "b"))
    harness.write("w", piece(2, "c"))
    assert harness.sql("select n, data from {schema}chunks order by n") == [(1, "a"), (2, "b"), (3, "c")]
    assert len(harness.steps(claim.id)) == 2


def test_the_last_progress_wins(harness, claim):
    harness.write("w", ProgressCommand(token_of(claim), "1"), ProgressCommand(token_of(claim), "2"))
    assert harness.row(claim.id)["progress"] == "2"


# Loading


def loaded(harness, claim):
    return harness.store.journal.load([(claim.id, claim.generation)])[claim.id]


@pytest.mark.parametrize("numbers", [range(1, 3), range(1, 1205), [1, 200, 201, 202, 900, 2000], [300, 301], []])
def test_all_checkpoints_are_loaded_in_order_by_pages(harness, claim, numbers):
    records = [record_of(claim, n) for n in reversed(numbers)]
    for at in range(0, len(records), 500):
        harness.store.journal.record("w", records[at : at + 500])
    assert [(kept.n, kept.key) for kept in loaded(harness, claim).checkpoints] == [(n, f"step {n}") for n in numbers]


def test_large_values_are_loaded_by_pages_of_their_own(harness, claim):
    large = '"' + "x" * (3 * 1024 * 1024) + '"'
    for n in range(1, 6):
        harness.record("w", claim, n, value=large if n in (2, 3, 4) else f'"{n}"')
    kept = loaded(harness, claim).checkpoints
    assert [(checkpoint.n, len(checkpoint.value)) for checkpoint in kept] == [
        (1, 3), (2, len(large)), (3, len(large)), (4, len(large)), (5, 3)]  # fmt: skip


def test_many_runs_are_loaded_at_once_each_with_its_own(harness, claim):
    other, empty = harness.running("w"), harness.running("w")
    for n in range(1, 4):
        harness.record("w", claim, n, undo=n % 2)
        harness.record("w", other, n, value=None)
    harness.wait("w", other, "sleep", delay=7)
    kept = harness.store.journal.load([(run.id, 0) for run in (claim, other, empty)])
    assert [step.undo for step in kept[claim.id].checkpoints] == [1, 0, 1]
    assert [step.value for step in kept[other.id].checkpoints] == [None] * 3
    assert [(wait.key, wait.outcome, wait.due_in) for wait in kept[other.id].waits] == [("sleep", None, 7)]
    assert (kept[empty.id].checkpoints, kept[empty.id].waits, kept[claim.id].waits) == ([], [], [])


# Restarting


def test_a_restart_deletes_checkpoints_and_keeps_messages(harness, claim):
    harness.record("w", claim, 1)
    harness.wait("w", claim, "event", "x")
    harness.write("w", MarkUndosCommand(token_of(claim)))
    harness.store.actions.send(claim.id, "topic", "1")
    assert harness.end("w", claim, "restarted", in_tree=True, args="[[2],{}]")
    row = harness.row(claim.id)
    assert (row["state"], row["generation"], row["attempt"], row["undos"]) == ("ready", 1, 0, 0)
    assert (harness.rows("checkpoints"), harness.rows("waits"), harness.rows("messages")) == (0, 0, 1)
    (again,) = harness.claim("w")
    assert (again.id, again.generation, again.args, again.attempt) == (claim.id, 1, "[[2],{}]", 1)
    assert harness.wait("w", again, "message", "topic").value == "1"


def test_a_message_taken_but_not_seen_is_available_after_a_restart(harness, claim):
    harness.store.actions.send(claim.id, "topic", '"seen"')
    assert harness.wait("w", claim, "message", "topic", key="receive#1").value == '"seen"'
    assert harness.end("w", claim, "restarted", in_tree=True)
    (second,) = harness.claim("w")
    harness.wait("w", second, "message", "topic", key="receive#1", n=1)
    harness.store.actions.send(claim.id, "topic", '"unseen"')
    assert harness.waits(claim.id) == {"receive#1": ("message", '"unseen"')}
    assert harness.end("w", second, "restarted", in_tree=True)
    (third,) = harness.claim("w")
    assert harness.wait("w", third, "message", "topic", key="receive#1", n=1).value == '"unseen"'


def test_failures_that_ended_an_attempt_are_superseded_with_it(harness, claim):
    harness.record("w", claim, 1)
    harness.record("w", claim, 2, kind="failed")
    harness.end("w", claim, "retrying", in_tree=True, forget=(2,))
    assert [step.n for step in harness.store.queries.steps(claim.id)] == [1]
    harness.clock.advance(15)
    harness.store.timers.promote_due()
    (again,) = harness.claim("w")
    harness.record("w", again, 2, kind="failed")
    harness.end("w", again, "failed", in_tree=True, forget=(2,))
    steps = harness.store.queries.step_outline(claim.id)
    assert [(step.n, step.kind, step.generation < 0) for step in steps] == [
        (1, "step", False), (2, "failed", True), (2, "failed", True),
    ]  # fmt: skip


# Failed tries of steps


def tries_of(harness, claim):
    return [(n, data) for n, _, kind, *_, data in harness.store.queries.history(claim.id) if kind == "step_retrying"]


def failed_try(claim, number, **more):
    return FailedTryCommand(token_of(claim), "step", f'{{"try": {number}}}', **more)


def test_failed_tries_are_history_entries_in_order_and_written_once(harness, claim):
    other = harness.running("w")
    first = harness.write("w", failed_try(claim, 1), failed_try(other, 1), failed_try(claim, 2))
    assert first == [Written(1), Written(1), Written(2)]
    again = harness.write("w", failed_try(claim, 2), failed_try(claim, 3), failed_try(other, 1))
    assert again == [Written(2), Written(3), Written(1)]
    assert tries_of(harness, claim) == [(1, '{"try": 1}'), (2, '{"try": 2}'), (3, '{"try": 3}')]
    assert tries_of(harness, other) == [(1, '{"try": 1}')]
    assert [harness.row(each.id)["records"] for each in (claim, other)] == [3, 1], "a repeat takes no numbers"
    harness.end("w", claim, in_tree=True)
    assert harness.kinds(claim.id) == ["step_retrying"] * 3 + ["done"]


def test_a_failed_try_may_replace_an_earlier_one(harness, claim):
    (reply,) = harness.write("w", failed_try(claim, 1))
    assert harness.write("w", failed_try(claim, 2, replaces=reply.value)) == [Written(2)]
    assert harness.write("w", failed_try(claim, 2, replaces=reply.value)) == [Written(2)]
    assert tries_of(harness, claim) == [(2, '{"try": 2}')]


def test_a_failed_try_is_not_the_end_of_its_claim(harness, claim):
    harness.write("w", failed_try(claim, 1))
    assert harness.end("w", claim, "handed_back")
    (again,) = harness.claim("w")
    harness.write("w", failed_try(again, 2))
    assert harness.end("w", again)
    assert harness.kinds(claim.id) == ["step_retrying", "handed_back", "step_retrying", "done"]
