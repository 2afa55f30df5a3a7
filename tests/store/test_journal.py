"""What durable functions record: fenced, in batches, and once however often it is repeated."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from holdfast.errors import KeyConflict
from holdfast.store.commands import (
    RUN_LOST,
    EmitCommand,
    EnqueueCommand,
    MarkUndosCommand,
    ProgressCommand,
    WaitRegistered,
    WithdrawCommand,
    WriteCommand,
    Written,
)
from holdfast.store.waits import event_target
from tests.support.world import CANCELLED, record_of, spawn_of, steps_of, token_of, wait_of


@pytest.fixture
def claim(world):
    world.session("w")
    return world.running("w")


def lose(world, claim, how):
    """Let worker `w` lose a run; return the session with which it continues regardless."""
    if how == "taken over":
        world.clock.advance(61)
        world.recover("w")
        world.session("w")
        world.session("v")
        world.claim("v")
    elif how == "lease over":
        world.clock.advance(60)
    elif how == "cancelled":
        world.store.actions.cancel(claim.id, CANCELLED)
    elif how == "of another session":
        world.session("v")
        return "v"
    elif how == "pruned":
        world.sql("delete from {schema}runs")
    else:
        kind, _, again = how.partition(" and ")
        assert world.end("w", claim, kind, in_tree=True)
        if again:
            world.claim("w")
    return "w"


HOWS = ["taken over", "lease over", "done", "cancelled", "waiting", "handed_back and claimed", "restarted",
        "restarted and claimed", "of another session", "pruned"]  # fmt: skip


def commands_for(world, claim):
    """One command of each kind."""
    return {
        "outcome of a wait": record_of(claim, 2, waited=True),
        "sleep": wait_of(claim, "sleep", delay=1),
        "event": wait_of(claim, "event", "happened"),
        "message": wait_of(claim, "message", "topic"),
        "children": wait_of(claim, "children", "call#1"),
        "withdraw": WithdrawCommand(token_of(claim), 7, "given up"),
        "emit": EmitCommand(token_of(claim), 3, "emit", event_target(None, "mine"), None, "mine", "1"),
        "spawn": spawn_of(claim, [world.new("child")], n=4),
        "enqueue": EnqueueCommand(token_of(claim), 5, "enqueue", world.new("other")),
        "write": WriteCommand(token_of(claim), 6, "write", 1, '"text"'),
        "progress": ProgressCommand(token_of(claim), "{}"),
        "mark": MarkUndosCommand(token_of(claim)),
    }


def traces(world):
    tables = ("runs", "checkpoints", "waits", "messages", "chunks")
    marks = world.sql("select count(*) from {schema}runs where progress is not null or undos = 1")
    emitted = world.sql("select count(*) from {schema}events where emitted_at is not null")
    return {table: world.rows(table) for table in tables}, marks, emitted


@pytest.mark.parametrize("how", HOWS)
def test_a_checkpoint_of_a_lost_run_is_rejected(world, claim, how):
    session = lose(world, claim, how)
    assert world.record(session, claim, 1) is RUN_LOST
    assert world.rows("checkpoints") == 0


@pytest.mark.parametrize("how", HOWS)
def test_record_steps_reports_if_one_of_the_runs_is_lost(world, claim, how):
    other = world.running("w")
    session = lose(world, claim, how)
    assert world.store.journal.record_steps(session, *steps_of([claim, other], 1)) is False
    assert world.steps(claim.id) == []


def test_recorded_steps_are_ordinary_checkpoints(world, claim):
    assert world.end("w", claim, "restarted", in_tree=True)
    one, other = world.claim("w")[0], world.running("w")
    assert one.generation == 1
    assert world.store.journal.record_steps("w", *steps_of([one, other], 1)) is True
    written = world.sql("select * from {schema}checkpoints order by generation desc")
    world.sql("delete from {schema}checkpoints")
    world.store.journal.record("w", [record_of(one, 1, took=7), record_of(other, 1, took=7)])
    assert world.sql("select * from {schema}checkpoints order by generation desc") == written


def test_record_steps_reports_a_repeat(world, claim):
    other = world.running("w")
    assert world.store.journal.record_steps("w", *steps_of([claim], 1)) is True
    assert world.store.journal.record_steps("w", *steps_of([claim, other], 1)) is False
    assert len(world.steps(claim.id)) == 1


@pytest.mark.parametrize("how", HOWS)
def test_every_command_for_a_lost_run_is_rejected_and_writes_nothing(world, claim, how):
    world.store.actions.send(claim.id, "topic", "1")
    session = lose(world, claim, how)
    commands = commands_for(world, claim)
    before = traces(world)
    replies = world.write(session, *commands.values())
    assert [name for name, reply in zip(commands, replies, strict=True) if reply is not RUN_LOST] == []
    assert traces(world) == before
    untaken = world.sql("select count(*) from {schema}messages where taken_by is null")
    assert untaken == [(1,)]


@pytest.mark.parametrize("how", HOWS)
def test_an_enqueue_with_a_key_by_a_lost_run_creates_nothing(world, claim, how):
    session = lose(world, claim, how)
    runs = world.rows("runs")
    assert (
        world.store.journal.enqueue(session, EnqueueCommand(token_of(claim), 1, "e", world.new("other", key="k")))
        is RUN_LOST
    )
    assert (world.rows("runs"), world.rows("keys"), world.rows("checkpoints")) == (runs, 0, 0)


def test_a_command_for_a_lost_run_does_not_affect_its_batch(world, claim):
    lost = world.running("w")
    lose(world, lost, "cancelled")
    wrong = commands_for(world, lost)
    right = commands_for(world, claim)
    wrong["emit"].name, wrong["emit"].target = "mine", right["emit"].target
    replies = world.write("w", *wrong.values(), *right.values())
    assert set(replies[: len(wrong)]) == {RUN_LOST}
    assert RUN_LOST not in replies[len(wrong) :]
    emitted = replies[len(wrong) + list(right).index("emit")]
    assert emitted == Written("true"), "the refused emit of the same event wasn't the first"
    assert world.rows("chunks") == world.rows("waits") - 2 == 1  # the children's wait came at once: there are none


def test_checkpoints_of_lost_runs_do_not_affect_others_in_the_batch(world, claim):
    lost = world.running("w")
    lose(world, lost, "done")
    replies = world.store.journal.record("w", [record_of(lost, 1), record_of(claim, 1), record_of(lost, 2)])
    assert [reply is RUN_LOST for reply in replies] == [True, False, True]
    assert [key for _, key, _, _ in world.steps(claim.id)] == ["step 1"]


def test_a_checkpoint_that_is_written_again_counts_and_changes_nothing(world, claim):
    world.record("w", claim, 1, value='"first"')
    assert world.record("w", claim, 1, value='"second"') == Written('"first"')
    assert world.steps(claim.id) == [(1, "step 1", "step", '"first"')]


def test_a_checkpoint_of_another_claim_is_not_read_back(world, claim):
    world.record("w", claim, 1)
    lose(world, claim, "taken over")
    (again,) = world.store.claims.list_owned("v")
    assert world.record("v", replace(claim, fence=again.fence), 1) is RUN_LOST, "same number and key, another fence"
    assert world.record("w", claim, 1) == Written('"value 1"'), "it was written while it was its own"


def test_a_recorded_time_is_the_database_time_and_stays(world, claim, clock):
    asked = clock.now
    assert world.record("w", claim, 1, kind="now", value="") == Written(str(asked))
    clock.advance(5)
    assert world.record("w", claim, 1, kind="now", value="") == Written(str(asked))


def test_every_command_repeated_after_a_lost_answer_reads_back_its_outcome(world, claim, clock):
    world.store.actions.send(claim.id, "topic", '"hello"')
    world.store.events.emit(None, "happened", '"yes"')
    commands = list(commands_for(world, claim).values())
    for number, command in enumerate(commands):
        if hasattr(command, "n"):
            command.n = 100 + number
    first = world.write("w", *commands)
    before = traces(world)
    clock.advance(1)
    again = world.write("w", *commands)
    assert traces(world) == before
    for one, other in zip(first, again, strict=True):
        if isinstance(one, Written) and one.value is None:
            assert isinstance(other, Written)
        elif isinstance(one, WaitRegistered):
            assert other == WaitRegistered(one.due_in - 1_000_000)
        else:
            assert one == other


@pytest.mark.parametrize("more", [{}, {"key": "k"}, {"unique": "u"}, {"key": "k", "unique": "u"}])
def test_an_enqueue_that_is_written_again_gives_the_same_run(world, claim, more):
    command = EnqueueCommand(token_of(claim), 1, "enqueue", world.new("other", **more))
    reply = world.store.journal.enqueue("w", command)
    assert reply == Written(f'"{command.request.id}"')
    later = EnqueueCommand(token_of(claim), 1, "enqueue", world.new("other", **more))
    assert world.store.journal.enqueue("w", later) == reply
    assert world.rows("runs") == 2
    assert [step[:3] for step in world.steps(claim.id)] == [(1, "enqueue", "enqueue")]


def test_an_enqueue_with_a_key_in_use_gives_its_run_or_a_conflict(world, claim):
    there = world.add("other", key="k")
    same = EnqueueCommand(token_of(claim), 1, "one", world.new("other", key="k"))
    assert world.store.journal.enqueue("w", same) == Written(f'"{there}"')
    other = EnqueueCommand(token_of(claim), 2, "two", world.new("other", key="k", digest="else"))
    conflict = world.store.journal.enqueue("w", other)
    assert isinstance(conflict, KeyConflict)
    assert there in str(conflict)
    assert [step[1] for step in world.steps(claim.id)] == ["one"]


def test_chunks_are_numbered_in_order(world, claim):
    def piece(n, text):
        return WriteCommand(token_of(claim), n, f"write {n}", 1, text)

    world.write("w", piece(1, "a"), piece(None, "b"))
    world.write("w", piece(2, "c"))
    assert world.sql("select n, data from {schema}chunks order by n") == [(1, "a"), (2, "b"), (3, "c")]
    assert len(world.steps(claim.id)) == 2


def test_the_last_progress_wins(world, claim):
    world.write("w", ProgressCommand(token_of(claim), "1"), ProgressCommand(token_of(claim), "2"))
    assert world.row(claim.id)["progress"] == "2"


# Loading


def loaded(world, claim):
    return world.store.journal.load([(claim.id, claim.generation)])[claim.id]


@pytest.mark.parametrize("numbers", [range(1, 3), range(1, 1205), [1, 200, 201, 202, 900, 2000], [300, 301], []])
def test_all_checkpoints_are_loaded_in_order_by_pages(world, claim, numbers):
    records = [record_of(claim, n) for n in reversed(numbers)]
    for at in range(0, len(records), 500):
        world.store.journal.record("w", records[at : at + 500])
    assert [(kept.n, kept.key) for kept in loaded(world, claim).checkpoints] == [(n, f"step {n}") for n in numbers]


def test_large_values_are_loaded_by_pages_of_their_own(world, claim):
    large = '"' + "x" * (3 * 1024 * 1024) + '"'
    for n in range(1, 6):
        world.record("w", claim, n, value=large if n in (2, 3, 4) else f'"{n}"')
    kept = loaded(world, claim).checkpoints
    assert [(checkpoint.n, len(checkpoint.value)) for checkpoint in kept] == [
        (1, 3), (2, len(large)), (3, len(large)), (4, len(large)), (5, 3)]  # fmt: skip


def test_many_runs_are_loaded_at_once_each_with_its_own(world, claim):
    other, empty = world.running("w"), world.running("w")
    for n in range(1, 4):
        world.record("w", claim, n, undo=n % 2)
        world.record("w", other, n, value=None)
    world.wait("w", other, "sleep", delay=7)
    kept = world.store.journal.load([(run.id, 0) for run in (claim, other, empty)])
    assert [step.undo for step in kept[claim.id].checkpoints] == [1, 0, 1]
    assert [step.value for step in kept[other.id].checkpoints] == [None] * 3
    assert [(wait.key, wait.outcome, wait.due_in) for wait in kept[other.id].waits] == [("sleep", None, 7)]
    assert (kept[empty.id].checkpoints, kept[empty.id].waits, kept[claim.id].waits) == ([], [], [])


# Restarting


def test_a_restart_deletes_checkpoints_and_keeps_messages(world, claim):
    world.record("w", claim, 1)
    world.wait("w", claim, "event", "x")
    world.write("w", MarkUndosCommand(token_of(claim)))
    world.store.actions.send(claim.id, "topic", "1")
    assert world.end("w", claim, "restarted", in_tree=True, args="[[2],{}]")
    row = world.row(claim.id)
    assert (row["state"], row["generation"], row["attempt"], row["undos"]) == ("ready", 1, 0, 0)
    assert (world.rows("checkpoints"), world.rows("waits"), world.rows("messages")) == (0, 0, 1)
    (again,) = world.claim("w")
    assert (again.id, again.generation, again.args, again.attempt) == (claim.id, 1, "[[2],{}]", 1)
    assert world.wait("w", again, "message", "topic").value == "1"


def test_a_message_taken_but_not_seen_is_available_after_a_restart(world, claim):
    world.store.actions.send(claim.id, "topic", '"seen"')
    assert world.wait("w", claim, "message", "topic", key="receive#1").value == '"seen"'
    assert world.end("w", claim, "restarted", in_tree=True)
    (second,) = world.claim("w")
    world.wait("w", second, "message", "topic", key="receive#1", n=1)
    world.store.actions.send(claim.id, "topic", '"unseen"')
    assert world.waits(claim.id) == {"receive#1": ("message", '"unseen"')}
    assert world.end("w", second, "restarted", in_tree=True)
    (third,) = world.claim("w")
    assert world.wait("w", third, "message", "topic", key="receive#1", n=1).value == '"unseen"'


def test_failures_that_ended_an_attempt_are_deleted_with_it(world, claim):
    world.record("w", claim, 1)
    world.record("w", claim, 2, kind="failed")
    world.end("w", claim, "retrying", in_tree=True, forget=(2,))
    assert [step[0] for step in world.steps(claim.id)] == [1]
