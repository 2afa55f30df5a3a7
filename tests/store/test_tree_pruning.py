"""Trees are pruned as a whole, with their root and everything that belongs to them."""

from __future__ import annotations

import pytest

from holdfast.store.commands import WriteCommand
from tests.store.test_children import finish
from tests.support.world import CANCELLED, DAY, record_of, token_of

TABLES = ("history", "checkpoints", "waits", "messages", "chunks")


@pytest.fixture
def parent(world):
    world.session("w", lease=10**9)
    return world.running("w")


def prune(world):
    pruned = 0
    for _ in range(20):
        count, more = world.store.retention.prune()
        pruned += count
        if not more:
            return pruned
    raise AssertionError("it doesn't come to an end")


def prune_older(world):
    pruned, after = 0, "00000000-0000-0000-0000-000000000000"
    for _ in range(20):
        count, after = world.store.retention.prune_older(DAY, after)
        pruned += count
        if after is None:
            return pruned
    raise AssertionError("it doesn't come to an end")


BOTH = pytest.mark.parametrize("prune", [prune, prune_older])


@BOTH
def test_a_tree_is_pruned_with_its_root_and_all_its_rows(world, parent, clock, prune):
    (child,) = world.spawn("w", parent)
    claim = world.child("w")
    (grandchild,) = world.spawn("w", claim)
    world.record("w", claim, 2)
    world.wait("w", claim, "event", "x", delay=1)
    world.store.actions.send(child, "topic", "1")
    world.write("w", WriteCommand(token_of(claim), None, "step", 1, '"a"'))
    world.store.actions.cancel(parent.id, CANCELLED)
    for run in world.store.claims.list_owned("w"):
        world.store.attempts.release("w", [(run.id, run.fence)])
    assert all(world.rows(table) for table in TABLES)
    stranger = world.add()
    assert prune(world) == 0
    clock.advance(31 * 86_400)
    assert prune(world) == 3
    assert world.sql("select cast(id as text) from {schema}runs") == [(stranger,)]
    assert [table for table in TABLES if world.rows(table)] == []
    assert grandchild


@BOTH
@pytest.mark.parametrize("state", ["running", "ready", "lingering"])
def test_a_tree_with_a_running_member_is_kept(world, parent, clock, state, prune):
    world.spawn("w", parent, 2)
    child = world.child("w")
    finish(world, world.child("w"))
    world.end("w", parent, in_tree=True)
    if state == "ready":
        world.end("w", child, "handed_back", in_tree=True)
    elif state == "lingering":
        world.store.actions.cancel(child.id, CANCELLED)
    other = world.running("w")
    world.end("w", other)
    clock.advance(31 * 86_400)
    assert prune(world) == 1, "the other one"
    if state == "ready":
        child = world.child("w")
    if state == "lingering":
        world.store.attempts.release("w", [(child.id, child.fence)])
    else:
        finish(world, child)
    clock.advance(2 * 86_400)
    assert prune(world) == 3
    assert world.rows("runs") == 0


@BOTH
def test_a_tree_larger_than_a_batch_is_pruned_in_several(world, parent, clock, prune):
    world.spawn("w", parent, 1200)
    world.sql("update {schema}runs set state = 'done', finished_at = {now} where parent is not null")
    world.end("w", parent, in_tree=True)
    clock.advance(31 * 86_400)
    assert prune(world) == 1201
    assert world.rows("runs") == 0


@BOTH
def test_many_trees_and_many_single_runs_are_all_pruned(world, parent, clock, prune):
    parents = [parent] + [world.running("w") for _ in range(120)]
    for claim in parents:
        world.spawn("w", claim, 2)
    world.sql("update {schema}runs set state = 'done', finished_at = {now} where parent is not null")
    for claim in parents[::2]:
        world.end("w", claim, in_tree=True)
    world.add_many(300)
    alone = world.claim("w", 256) + world.claim("w", 256)
    for claim in alone:
        world.end("w", claim)
    for claim in parents[1::2]:
        world.end("w", claim, in_tree=True)
    clock.advance(31 * 86_400)
    assert prune(world) == 3 * len(parents) + 300
    assert world.rows("runs") == 0


def test_trees_that_are_kept_do_not_block_pruning_of_later_ones(world, parent, clock):
    """However many come first."""
    world.spawn("w", parent)
    child = world.child("w")
    world.end("w", parent, in_tree=True)
    world.add_many(600)
    claims = [claim for _ in range(2) for claim in world.claim("w", 512)]
    claims += world.claim("w", 512)
    world.sql(
        "insert into {schema}runs (id, lane, priority, state, max_crashes, args, keep, created_at, parent, root)"
        " select " + _id(world) + ", lane, 0, 'waiting', 3, '', 1, 1, id, id from {schema}runs where state = 'running'"
        " and parent is null"
    )
    for claim in claims:
        assert world.end("w", claim, in_tree=True)
    clock.advance(1)
    late = world.running("w")
    world.end("w", late)
    clock.advance(31 * 86_400)
    assert prune(world) == 1
    assert (world.sql("select count(*) from {schema}runs where parent is null"), world.state(child.id)) == (
        [(601,)],
        "running",
    )


def _id(world):
    new = "'1' || substr(cast(id as text), 2)"
    return f"cast({new} as uuid)" if world.on_postgres else new


def test_a_failed_child_that_is_retried_is_kept_with_its_finished_root(world, parent, clock):
    world.spawn("w", parent)
    child = world.child("w")
    finish(world, child, "failed")
    world.end("w", parent, in_tree=True)
    clock.advance(31 * 86_400)
    world.store.actions.retry(child.id)
    assert prune(world) == 0
    finish(world, world.child("w"))
    clock.advance(2 * 86_400)
    assert prune(world) == 2


def test_a_root_that_is_retried_is_kept(world, parent, clock):
    world.spawn("w", parent)
    world.write("w", record_of(parent, 3))
    world.store.actions.cancel(parent.id, CANCELLED)
    world.store.attempts.release("w", [(parent.id, parent.fence)])
    clock.advance(31 * 86_400)
    world.store.actions.retry(parent.id)
    assert prune(world) == 0
    assert world.rows("runs") == 2
