"""Parents and children: a join is one wait with a counter, and a failed parent cancels its children."""

from __future__ import annotations

import pytest

from holdfast.store.commands import RUN_LOST, SpawnCommand, WaitOutcome, WaitRegistered, Written
from tests.support.world import CANCELLED, CRASHED, OVERDUE, SECOND, end_of, spawn_of, token_of


@pytest.fixture
def parent(world):
    world.session("w")
    return world.running("w")


def join(world, claim, key="call#1", eager=0, n=10):
    return world.wait("w", claim, "children", key, key=f"$join:{key}#1", n=n, eager=eager)


def finish(world, claim, how="done"):
    """End a child in the given way."""
    if how in ("done", "failed"):
        assert world.end("w", claim, how, in_tree=True)
    elif how == "cancelled":
        assert world.store.actions.cancel(claim.id, CANCELLED)
    elif how == "process crashed":
        assert world.store.attempts.crash("w", [end_of(claim, "handed_back", error=CRASHED)]) == (
            {(claim.id, claim.fence)},
            [claim.id],
        )
    elif how == "worker crashed":
        world.sql("update {schema}runs set session = 'dead' where id = cast(:id as {uuid})", id=claim.id)
        assert world.recover("dead").failed == [claim.id]
    elif how == "overdue":
        world.sql("update {schema}runs set deadline = 1 where id = cast(:id as {uuid})", id=claim.id)
        assert world.store.timers.fail_overdue(OVERDUE) == [claim.id]
    else:
        raise AssertionError(how)


BAD = ["failed", "cancelled", "process crashed", "worker crashed", "overdue"]
LAST_CRASH = {"max_crashes": 0}


# Spawning


def test_children_store_their_parent_and_root(world, parent):
    (child,) = world.spawn("w", parent, run={"tenant": None})
    row = world.row(child)
    assert (str(row["root"]), str(row["parent"]), row["spawn_key"], row["place"]) == (
        parent.id,
        parent.id,
        "0:call#1",
        None,
    )
    (claim,) = world.claim("w", 1, ["child"])
    assert (claim.id, claim.parent) == (child, parent.id)
    (grandchild,) = world.spawn("w", claim)
    assert str(world.row(grandchild)["root"]) == parent.id


def test_children_are_of_their_parents_tenant_unless_told_otherwise(world):
    world.session("w")
    parent = world.running("w", tenant="acme")
    (one,) = world.spawn("w", parent)
    (other,) = world.spawn("w", parent, key="call#2", n=2, run={"tenant": "umbrella"})
    assert (world.row(one)["tenant"], world.row(other)["tenant"]) == ("acme", "umbrella")


def test_a_spawn_repeated_after_a_lost_answer_creates_no_second_child(world, parent):
    command = spawn_of(parent, [world.new("child") for _ in range(3)], concurrency=2)
    command.kind = "map"
    first = world.write("w", command)
    repeat = spawn_of(parent, [world.new("child") for _ in range(3)], concurrency=2)
    repeat.kind = "map"
    assert world.write("w", repeat) == first
    assert isinstance(first[0], Written)
    assert world.rows("runs") == 4


def test_more_children_than_a_batch_are_created_at_once(world, parent):
    children = world.spawn("w", parent, 1201)
    assert join(world, parent) == WaitRegistered(None)
    found = world.store.journal.child_results(parent.id, "0:call#1")
    assert [str(row[0]) for row in found] == children
    assert [row[1] for row in found] == list(range(1201))


# Joining


def test_a_join_of_an_ended_child_is_resolved_at_once(world, parent):
    world.spawn("w", parent)
    finish(world, world.child("w"))
    assert join(world, parent) == WaitOutcome("children", None)
    assert world.steps(parent.id)[-1] == (10, "$join:call#1#1", "join", None)
    assert join(world, parent) == WaitOutcome("children", None), "said again"


@pytest.mark.parametrize("how", ["done", *BAD])
def test_a_child_that_ends_wakes_the_parent_that_waits_for_it(world, parent, how):
    (id,) = world.spawn("w", parent, run=LAST_CRASH)
    assert join(world, parent) == WaitRegistered(None)
    child = world.child("w")
    world.suspend("w", parent)
    finish(world, child, how)
    assert world.state(parent.id) == "ready"
    assert world.waits(parent.id) == {"$join:call#1#1": ("children", None)}
    (end,) = world.store.journal.child_results(parent.id, "0:call#1")
    assert (str(end[0]), end[2]) == (id, world.state(id))
    assert world.store.journal.spawned_results(parent.id)["0:call#1"][2] == world.state(id)
    assert world.row(id)["expires_at"] is None, "children are kept as long as their root"


def test_a_map_wakes_its_parent_once_with_the_last_child(world, parent):
    world.spawn("w", parent, 4)
    join(world, parent)
    world.suspend("w", parent)
    children = world.claim("w", 4, ["child"])
    finish(world, children[0], "failed")
    world.store.attempts.end("w", [end_of(child, in_tree=True) for child in children[1:3]])
    assert (world.state(parent.id), world.waits(parent.id)) == ("waiting", {"$join:call#1#1": (None, None)})
    assert world.sql("select pending from {schema}waits") == [(1,)]
    finish(world, children[3])
    assert (world.state(parent.id), world.waits(parent.id)) == ("ready", {"$join:call#1#1": ("children", None)})
    states = [row[2] for row in world.store.journal.child_results(parent.id, "0:call#1")]
    assert states == ["failed", "done", "done", "done"]


@pytest.mark.parametrize("how", BAD)
def test_an_eager_join_ends_with_the_first_child_that_fails(world, parent, how):
    world.spawn("w", parent, 3, run=LAST_CRASH)
    join(world, parent, eager=1)
    world.suspend("w", parent)
    children = world.claim("w", 4, ["child"])
    finish(world, children[0])
    assert world.state(parent.id) == "waiting"
    finish(world, children[1], how)
    assert world.state(parent.id) == "ready"
    assert world.waits(parent.id) == {"$join:call#1#1": ("failed", children[1].id)}
    finish(world, children[2], "failed")
    assert world.waits(parent.id) == {"$join:call#1#1": ("failed", children[1].id)}, "the first one stays"


def test_an_eager_join_registered_after_a_failure_is_resolved_at_once(world, parent, clock):
    world.spawn("w", parent, 3)
    children = world.claim("w", 4, ["child"])
    finish(world, children[2], "failed")
    clock.advance(1)
    finish(world, children[0], "failed")
    assert join(world, parent, eager=1) == WaitOutcome("failed", children[2].id)
    assert join(world, parent, eager=1) == WaitOutcome("failed", children[2].id), "said again"


def test_an_eager_join_without_failures_ends_with_the_last_child(world, parent):
    world.spawn("w", parent, 2)
    join(world, parent, eager=1)
    for child in world.claim("w", 2, ["child"]):
        finish(world, child)
    assert world.waits(parent.id) == {"$join:call#1#1": ("children", None)}


def test_children_of_other_calls_dont_count(world, parent):
    world.spawn("w", parent)
    world.spawn("w", parent, key="call#2", n=2)
    join(world, parent, "call#2")
    world.suspend("w", parent)
    finish(world, world.child("w"))
    assert world.state(parent.id) == "waiting"
    finish(world, world.child("w"))
    assert world.state(parent.id) == "ready"


def test_a_child_that_suspends_or_is_retried_has_not_ended(world, parent, clock):
    world.spawn("w", parent)
    join(world, parent)
    world.suspend("w", parent)
    child = world.child("w")
    assert world.end("w", child, "retrying", in_tree=True)
    clock.advance(10)
    world.store.timers.promote_due()
    child = world.child("w")
    world.wait("w", child, "sleep", delay=1)
    assert world.suspend("w", child)
    assert world.state(parent.id) == "waiting"


def test_children_from_before_a_restart_do_not_count(world, parent):
    world.spawn("w", parent)
    old = world.child("w")
    world.end("w", parent, "restarted", in_tree=True)
    (again,) = world.claim("w")
    world.spawn("w", again)
    assert join(world, again) == WaitRegistered(None)
    finish(world, old)
    assert world.waits(parent.id) == {"$join:call#1#1": (None, None)}
    finish(world, world.child("w"))
    assert world.waits(parent.id) == {"$join:call#1#1": ("children", None)}


def test_how_very_many_spawned_children_ended_is_read_by_pages(world, parent):
    spawns = []
    for number in range(1, 1004):
        command = spawn_of(parent, [world.new("child")], n=number, key=f"call#{number}")
        spawns.append(
            SpawnCommand(token_of(parent), number, f"call#{number}", "spawn", command.children, command.value)
        )
    world.write("w", *spawns)
    world.spawn("w", parent, 3, key="map#1", n=2000)
    world.sql("update {schema}runs set state = 'done', finished_at = 1, result = '1' where parent is not null")
    ends = world.store.journal.spawned_results(parent.id)
    assert {key: str(row[0]) for key, row in ends.items()} == {
        f"0:{spawn.key}": spawn.children[0].id for spawn in spawns
    }
    assert {row[1:] for row in ends.values()} == {(0, "done", "1", None)}


# A bad end


def tree(world, parent):
    """Three children in different states, a grandchild of the second, and one below that."""
    world.spawn("w", parent, 3)
    _, child = world.claim("w", 2, ["child"])
    children = world.store.journal.child_results(parent.id, "0:call#1")
    (grandchild,) = world.spawn("w", child)
    (claim,) = (run for run in world.claim("w", 8, ["child"]) if run.id == grandchild)
    (great,) = world.spawn("w", claim)
    world.wait("w", claim, "sleep", delay=99 * SECOND)
    world.suspend("w", claim)
    return [str(row[0]) for row in children] + [grandchild, great]


@pytest.mark.parametrize("how", BAD)
def test_a_failure_or_cancel_cancels_descendants_at_any_depth(world, how):
    world.session("w")
    parent = world.running("w", **LAST_CRASH)
    below = tree(world, parent)
    stranger = world.add("child")
    finish(world, parent, how)
    assert set(world.states(below)) == {"cancelled"}
    assert {world.kinds(id)[-1] for id in below} == {"cancelled"}
    assert "its parent ended" in world.row(below[-1])["error"]
    assert world.state(stranger) != "cancelled"


def test_cancelled_children_keep_their_session_until_their_worker_releases_them(world, parent):
    below = tree(world, parent)
    world.store.actions.cancel(parent.id, CANCELLED)
    assert world.row(below[0])["session"] == "w"
    assert world.row(below[4])["session"] is None
    owned = {run.id: run for run in world.store.claims.list_owned("w")}
    world.store.attempts.release("w", [(owned[below[0]].id, owned[below[0]].fence)])
    assert world.row(below[0])["session"] is None


@pytest.mark.parametrize("kind", ["done", "waiting", "retrying", "restarted", "handed_back"])
def test_any_other_end_leaves_the_children_running(world, parent, kind):
    below = tree(world, parent)
    before = world.states(below)
    assert world.end("w", parent, kind, in_tree=True)
    assert world.states(below) == before


def test_children_of_a_cancelled_parent_that_had_ended_stay_as_they_are(world, parent):
    world.spawn("w", parent, 2)
    child = world.child("w")
    finish(world, child)
    world.store.actions.cancel(parent.id, CANCELLED)
    assert world.state(child.id) == "done"
    assert world.kinds(child.id) == ["done"]


def test_a_late_spawn_of_a_cancelled_parent_creates_no_child(world, parent):
    world.store.actions.cancel(parent.id, CANCELLED)
    assert world.write("w", spawn_of(parent, [world.new("child")])) == [RUN_LOST]
    assert world.rows("runs") == 1
