"""Forks: new runs with the checkpoints of another, up to a step."""

from __future__ import annotations

import json

import pytest

from holdfast.errors import ConfigError, RunNotFound
from holdfast.store.commands import MarkUndosCommand, WriteCommand
from tests.store.test_children import finish, join
from tests.support.store_harness import CANCELLED, SECOND, record_of, token_of

FORK = "00000000-0000-7000-8000-00000000f0f0"
NOBODY = "00000000-0000-7000-8000-000000000000"


@pytest.fixture
def claim(harness):
    harness.session("w")
    claim = harness.running("w", tenant="acme", priority=3, tags='["a"]', deadline_in=100 * SECOND, unique="name")
    for n, name in enumerate(["charge", "ship", "mail"], 1):
        harness.record("w", claim, n, f"{name}-1:0123456789abcdef#1", took=5)
    return claim


def fork(harness, claim, from_step, args=None, id=FORK):
    harness.store.actions.fork(claim.id, id, from_step, args)
    return harness.steps(id)


@pytest.mark.parametrize("from_step", ["ship", "ship-1:0123456789abcdef#1"])
def test_a_fork_starts_with_the_checkpoints_before_the_step(harness, claim, from_step):
    steps = fork(harness, claim, from_step)
    assert steps == harness.steps(claim.id)[:1] == [(1, "charge-1:0123456789abcdef#1", "step", '"value 1"')]
    assert harness.kinds(FORK) == ["forked"]
    assert len(harness.steps(claim.id)) == 3


def test_a_fork_without_a_step_starts_from_the_beginning(harness, claim):
    assert fork(harness, claim, None) == []


@pytest.mark.parametrize("args", [None, "[[7],{}]"])
def test_a_fork_copies_the_settings_of_its_original(harness, claim, clock, args):
    clock.advance(10)
    fork(harness, claim, "mail", args)
    new, old = harness.row(FORK), harness.row(claim.id)
    for name in ("lane", "tenant", "priority", "tags", "keep", "max_crashes", "lifetime"):
        assert new[name] == old[name]
    assert (new["state"], new["args"]) == ("ready", args or old["args"])
    assert (new["deadline"], new["unique_name"], new["parent"]) == (clock.now + 100 * SECOND, None, None)
    (forked,) = harness.claim("w")
    assert (forked.id, forked.attempt, forked.generation) == (FORK, 1, 0)
    kept = harness.store.journal.load([(FORK, 0)])[FORK]
    assert [step.n for step in kept.checkpoints] == [1, 2]


def test_a_fork_repeated_after_a_lost_answer_is_the_same_run(harness, claim):
    fork(harness, claim, "mail")
    harness.record("w", claim, 4)
    assert len(fork(harness, claim, "mail", "[[9],{}]")) == 2
    assert harness.row(FORK)["args"] == harness.row(claim.id)["args"]
    assert harness.kinds(FORK) == ["forked"]


@pytest.mark.parametrize("end", ["done", "failed"])
def test_finished_runs_can_be_forked(harness, claim, end):
    harness.end("w", claim, end, in_tree=True)
    assert len(fork(harness, claim, "mail")) == 2
    assert harness.state(claim.id) == end


def test_an_unknown_step_is_rejected_with_the_known_ones(harness, claim):
    with pytest.raises(ConfigError, match="charge, ship, mail"):
        fork(harness, claim, "shop")
    with pytest.raises(ConfigError, match="nothing yet"):
        fork(harness, harness.running("w"), "ship")
    with pytest.raises(RunNotFound):
        harness.store.actions.fork(NOBODY, FORK, None, None)
    assert harness.rows("runs") == 2


def test_compensations_and_chunks_are_not_copied(harness, claim):
    harness.write("w", MarkUndosCommand(token_of(claim)), WriteCommand(token_of(claim), 4, "$write#1", 1, '"a"'))
    harness.record("w", claim, 5, "refund-1:0123456789abcdef#1", undo=1)
    harness.record("w", claim, 6, "last-1:0123456789abcdef#1")
    steps = fork(harness, claim, "last")
    assert [step[0] for step in steps] == [1, 2, 3, 5]
    assert harness.row(FORK)["undos"] == 0
    assert harness.sql("select max(undo) from {schema}checkpoints where run = cast(:id as {uuid})", id=FORK) == [(0,)]


def test_steps_that_were_undone_run_again_in_a_fork(harness, claim):
    harness.write("w", MarkUndosCommand(token_of(claim)))
    harness.record("w", claim, 4, "book-1:0123456789abcdef#1", undo=1)
    harness.record("w", claim, 5, "last-1:0123456789abcdef#1")
    harness.store.actions.cancel(claim.id, CANCELLED)
    harness.store.attempts.release("w", [(claim.id, claim.fence)])
    (undoing,) = harness.claim("w")
    harness.record("w", undoing, 6, "$undo:4#1", kind="undone", value="4")
    harness.end("w", undoing, "undone", state="cancelled", in_tree=True)
    assert [step[0] for step in fork(harness, claim, "last")] == [1, 2, 3]


def family(harness, claim):
    """Children of which one call is joined, one map failed, and one call isn't joined; then a step."""
    harness.spawn("w", claim, key="one-1:fedcba9876543210#1", n=4)
    finish(harness, harness.child("w"))
    join(harness, claim, "one-1:fedcba9876543210#1", n=5)
    harness.spawn("w", claim, 3, key="many-1:fedcba9876543210#1", n=6)
    first, second = harness.claim("w", 2, ["child"])
    finish(harness, first)
    finish(harness, second, "failed")
    join(harness, claim, "many-1:fedcba9876543210#1", eager=1, n=7)
    harness.spawn("w", claim, key="later-1:fedcba9876543210#1", n=8)
    harness.record("w", claim, 9, "last-1:0123456789abcdef#1")
    return second.id


def test_joined_results_are_copied_and_unjoined_children_spawned_again(harness, claim):
    failed = family(harness, claim)
    steps = {key: (kind, value) for _, key, kind, value in fork(harness, claim, "last")}
    assert [key for key in steps if "later" in key] == []
    assert steps["one-1:fedcba9876543210#1"][0] == "spawn"
    kind, value = steps["$join:one-1:fedcba9876543210#1#1"]
    assert kind == "joined"
    assert [end[1:3] for end in json.loads(value)["ends"]] == [["done", '"ok"']]
    kind, value = steps["$join:many-1:fedcba9876543210#1#1"]
    assert json.loads(value)["eager"] is True
    assert [end[:2] for end in json.loads(value)["ends"]] == [[failed, "failed"]]


def test_a_fork_keeps_results_after_the_original_tree_was_pruned(harness, claim):
    family(harness, claim)
    fork(harness, claim, "last")
    harness.sql("delete from {schema}runs where parent is not null")
    assert "ok" in {key: value for _, key, _, value in harness.steps(FORK)}["$join:one-1:fedcba9876543210#1#1"]
    assert harness.sql("select count(*) from {schema}runs where parent is not null") == [(0,)]


def test_a_fork_of_a_fork_has_all_checkpoints(harness, claim):
    family(harness, claim)
    first = fork(harness, claim, "last")
    (forked,) = (run for run in harness.claim("w", 8) if run.id == FORK)
    harness.record("w", forked, 20, "last-1:0123456789abcdef#1")
    second = fork(harness, forked, "last", id=FORK.replace("f0f0", "f1f1"))
    assert second == first


def test_all_children_of_a_large_map_are_copied(harness, claim):
    harness.spawn("w", claim, 1100, key="many-1:fedcba9876543210#1", n=4)
    harness.sql("update {schema}runs set state = 'done', finished_at = 1, result = place where parent is not null")
    join(harness, claim, "many-1:fedcba9876543210#1", n=5)
    harness.record("w", claim, 6, "last-1:0123456789abcdef#1")
    (value,) = (value for _, _, kind, value in fork(harness, claim, "last") if kind == "joined")
    assert [int(end[2]) for end in json.loads(value)["ends"]] == list(range(1100))


def test_more_steps_than_a_batch_are_copied(harness, claim):
    for at in (0, 400, 800):
        harness.store.journal.record("w", [record_of(claim, n) for n in range(at + 10, at + 410)])
    harness.record("w", claim, 5000, "last-1:0123456789abcdef#1")
    assert len(fork(harness, claim, "last")) == 1203
