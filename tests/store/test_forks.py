"""Forks: new runs with the checkpoints of another, up to a step."""

from __future__ import annotations

import json

import pytest

from holdfast.errors import ConfigError, RunNotFound
from holdfast.store.commands import MarkUndosCommand, WriteCommand
from tests.store.test_children import finish, join
from tests.support.world import CANCELLED, SECOND, record_of, token_of

FORK = "00000000-0000-7000-8000-00000000f0f0"
NOBODY = "00000000-0000-7000-8000-000000000000"


@pytest.fixture
def claim(world):
    world.session("w")
    claim = world.running("w", tenant="acme", priority=3, tags='["a"]', deadline_in=100 * SECOND, unique="name")
    for n, name in enumerate(["charge", "ship", "mail"], 1):
        world.record("w", claim, n, f"{name}-1:0123456789abcdef#1", took=5)
    return claim


def fork(world, claim, from_step, args=None, id=FORK):
    world.store.actions.fork(claim.id, id, from_step, args)
    return world.steps(id)


@pytest.mark.parametrize("from_step", ["ship", "ship-1:0123456789abcdef#1"])
def test_a_fork_starts_with_the_checkpoints_before_the_step(world, claim, from_step):
    steps = fork(world, claim, from_step)
    assert steps == world.steps(claim.id)[:1] == [(1, "charge-1:0123456789abcdef#1", "step", '"value 1"')]
    assert world.kinds(FORK) == ["forked"]
    assert len(world.steps(claim.id)) == 3


def test_a_fork_without_a_step_starts_from_the_beginning(world, claim):
    assert fork(world, claim, None) == []


@pytest.mark.parametrize("args", [None, "[[7],{}]"])
def test_a_fork_copies_the_settings_of_its_original(world, claim, clock, args):
    clock.advance(10)
    fork(world, claim, "mail", args)
    new, old = world.row(FORK), world.row(claim.id)
    for name in ("lane", "tenant", "priority", "tags", "keep", "max_crashes", "lifetime"):
        assert new[name] == old[name]
    assert (new["state"], new["args"]) == ("ready", args or old["args"])
    assert (new["deadline"], new["unique_name"], new["parent"]) == (clock.now + 100 * SECOND, None, None)
    (forked,) = world.claim("w")
    assert (forked.id, forked.attempt, forked.generation) == (FORK, 1, 0)
    kept = world.store.journal.load([(FORK, 0)])[FORK]
    assert [step.n for step in kept.checkpoints] == [1, 2]


def test_a_fork_repeated_after_a_lost_answer_is_the_same_run(world, claim):
    fork(world, claim, "mail")
    world.record("w", claim, 4)
    assert len(fork(world, claim, "mail", "[[9],{}]")) == 2
    assert world.row(FORK)["args"] == world.row(claim.id)["args"]
    assert world.kinds(FORK) == ["forked"]


@pytest.mark.parametrize("end", ["done", "failed"])
def test_finished_runs_can_be_forked(world, claim, end):
    world.end("w", claim, end, in_tree=True)
    assert len(fork(world, claim, "mail")) == 2
    assert world.state(claim.id) == end


def test_an_unknown_step_is_rejected_with_the_known_ones(world, claim):
    with pytest.raises(ConfigError, match="charge, ship, mail"):
        fork(world, claim, "shop")
    with pytest.raises(ConfigError, match="nothing yet"):
        fork(world, world.running("w"), "ship")
    with pytest.raises(RunNotFound):
        world.store.actions.fork(NOBODY, FORK, None, None)
    assert world.rows("runs") == 2


def test_compensations_and_chunks_are_not_copied(world, claim):
    world.write("w", MarkUndosCommand(token_of(claim)), WriteCommand(token_of(claim), 4, "$write#1", 1, '"a"'))
    world.record("w", claim, 5, "refund-1:0123456789abcdef#1", undo=1)
    world.record("w", claim, 6, "last-1:0123456789abcdef#1")
    steps = fork(world, claim, "last")
    assert [step[0] for step in steps] == [1, 2, 3, 5]
    assert world.row(FORK)["undos"] == 0
    assert world.sql("select max(undo) from {schema}checkpoints where run = cast(:id as {uuid})", id=FORK) == [(0,)]


def test_steps_that_were_undone_run_again_in_a_fork(world, claim):
    world.write("w", MarkUndosCommand(token_of(claim)))
    world.record("w", claim, 4, "book-1:0123456789abcdef#1", undo=1)
    world.record("w", claim, 5, "last-1:0123456789abcdef#1")
    world.store.actions.cancel(claim.id, CANCELLED)
    world.store.attempts.release("w", [(claim.id, claim.fence)])
    (undoing,) = world.claim("w")
    world.record("w", undoing, 6, "$undo:4#1", kind="undone", value="4")
    world.end("w", undoing, "undone", state="cancelled", in_tree=True)
    assert [step[0] for step in fork(world, claim, "last")] == [1, 2, 3]


def family(world, claim):
    """Children of which one call is joined, one map failed, and one call isn't joined; then a step."""
    world.spawn("w", claim, key="one-1:fedcba9876543210#1", n=4)
    finish(world, world.child("w"))
    join(world, claim, "one-1:fedcba9876543210#1", n=5)
    world.spawn("w", claim, 3, key="many-1:fedcba9876543210#1", n=6)
    first, second = world.claim("w", 2, ["child"])
    finish(world, first)
    finish(world, second, "failed")
    join(world, claim, "many-1:fedcba9876543210#1", eager=1, n=7)
    world.spawn("w", claim, key="later-1:fedcba9876543210#1", n=8)
    world.record("w", claim, 9, "last-1:0123456789abcdef#1")
    return second.id


def test_joined_results_are_copied_and_unjoined_children_spawned_again(world, claim):
    failed = family(world, claim)
    steps = {key: (kind, value) for _, key, kind, value in fork(world, claim, "last")}
    assert [key for key in steps if "later" in key] == []
    assert steps["one-1:fedcba9876543210#1"][0] == "spawn"
    kind, value = steps["$join:one-1:fedcba9876543210#1#1"]
    assert kind == "joined"
    assert [end[1:3] for end in json.loads(value)["ends"]] == [["done", '"ok"']]
    kind, value = steps["$join:many-1:fedcba9876543210#1#1"]
    assert json.loads(value)["eager"] is True
    assert [end[:2] for end in json.loads(value)["ends"]] == [[failed, "failed"]]


def test_a_fork_keeps_results_after_the_original_tree_was_pruned(world, claim):
    family(world, claim)
    fork(world, claim, "last")
    world.sql("delete from {schema}runs where parent is not null")
    assert "ok" in {key: value for _, key, _, value in world.steps(FORK)}["$join:one-1:fedcba9876543210#1#1"]
    assert world.sql("select count(*) from {schema}runs where parent is not null") == [(0,)]


def test_a_fork_of_a_fork_has_all_checkpoints(world, claim):
    family(world, claim)
    first = fork(world, claim, "last")
    (forked,) = (run for run in world.claim("w", 8) if run.id == FORK)
    world.record("w", forked, 20, "last-1:0123456789abcdef#1")
    second = fork(world, forked, "last", id=FORK.replace("f0f0", "f1f1"))
    assert second == first


def test_all_children_of_a_large_map_are_copied(world, claim):
    world.spawn("w", claim, 1100, key="many-1:fedcba9876543210#1", n=4)
    world.sql("update {schema}runs set state = 'done', finished_at = 1, result = place where parent is not null")
    join(world, claim, "many-1:fedcba9876543210#1", n=5)
    world.record("w", claim, 6, "last-1:0123456789abcdef#1")
    (value,) = (value for _, _, kind, value in fork(world, claim, "last") if kind == "joined")
    assert [int(end[2]) for end in json.loads(value)["ends"]] == list(range(1100))


def test_more_steps_than_a_batch_are_copied(world, claim):
    for at in (0, 400, 800):
        world.store.journal.record("w", [record_of(claim, n) for n in range(at + 10, at + 410)])
    world.record("w", claim, 5000, "last-1:0123456789abcdef#1")
    assert len(fork(world, claim, "last")) == 1203
