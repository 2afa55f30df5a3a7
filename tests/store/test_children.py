"""Parents and children: a join is one wait with a counter, and a failed parent cancels its children."""

from __future__ import annotations

import pytest

from holdfast.store.commands import RUN_LOST, SpawnCommand, WaitOutcome, WaitRegistered, Written
from tests.support.store_harness import CANCELLED, CRASHED, OVERDUE, SECOND, end_of, spawn_of, token_of


@pytest.fixture
def parent(harness):
    harness.session("w")
    return harness.running("w")


def join(harness, claim, key="call#1", eager=0, n=10):
    return harness.wait("w", claim, "children", key, key=f"$join:{key}#1", n=n, eager=eager)


def finish(harness, claim, how="done"):
    """End a child in the given way."""
    if how in ("done", "failed"):
        assert harness.end("w", claim, how, in_tree=True)
    elif how == "cancelled":
        assert harness.store.actions.cancel(claim.id, CANCELLED)
    elif how == "process crashed":
        assert harness.store.attempts.crash("w", [end_of(claim, "handed_back", error=CRASHED)]) == (
            {(claim.id, claim.fence)},
            [claim.id],
        )
    elif how == "worker crashed":
        harness.sql("update {schema}runs set session = 'dead' where id = cast(:id as {uuid})", id=claim.id)
        assert harness.recover("dead").failed == [claim.id]
    elif how == "overdue":
        harness.sql("update {schema}runs set deadline = 1 where id = cast(:id as {uuid})", id=claim.id)
        assert harness.store.timers.fail_overdue(OVERDUE) == [claim.id]
    else:
        raise AssertionError(how)


BAD = ["failed", "cancelled", "process crashed", "worker crashed", "overdue"]
LAST_CRASH = {"max_crashes": 0}


# Spawning


def test_children_store_their_parent_and_root(harness, parent):
    (child,) = harness.spawn("w", parent, run={"tenant": None})
    row = harness.row(child)
    assert (str(row["root"]), str(row["parent"]), row["spawn_key"], row["place"]) == (
        parent.id,
        parent.id,
        "0:call#1",
        None,
    )
    (claim,) = harness.claim("w", 1, ["child"])
    assert (claim.id, claim.parent) == (child, parent.id)
    (grandchild,) = harness.spawn("w", claim)
    assert str(harness.row(grandchild)["root"]) == parent.id


def test_children_are_of_their_parents_tenant_unless_told_otherwise(harness):
    harness.session("w")
    parent = harness.running("w", tenant="acme")
    (one,) = harness.spawn("w", parent)
    (other,) = harness.spawn("w", parent, key="call#2", n=2, run={"tenant": "umbrella"})
    assert (harness.row(one)["tenant"], harness.row(other)["tenant"]) == ("acme", "umbrella")


def test_a_spawn_repeated_after_a_lost_answer_creates_no_second_child(harness, parent):
    command = spawn_of(parent, [harness.new("child") for _ in range(3)], concurrency=2)
    command.kind = "map"
    first = harness.write("w", command)
    repeat = spawn_of(parent, [harness.new("child") for _ in range(3)], concurrency=2)
    repeat.kind = "map"
    assert harness.write("w", repeat) == first
    assert isinstance(first[0], Written)
    assert harness.rows("runs") == 4


def test_more_children_than_a_batch_are_created_at_once(harness, parent):
    children = harness.spawn("w", parent, 1201)
    assert join(harness, parent) == WaitRegistered(None)
    found = harness.store.journal.child_results(parent.id, "0:call#1")
    assert [str(row[0]) for row in found] == children
    assert [row[1] for row in found] == list(range(1201))


# Joining


def test_a_join_of_an_ended_child_is_resolved_at_once(harness, parent):
    harness.spawn("w", parent)
    finish(harness, harness.child("w"))
    assert join(harness, parent) == WaitOutcome("children", None)
    assert harness.steps(parent.id)[-1] == (10, "$join:call#1#1", "join", None)
    assert join(harness, parent) == WaitOutcome("children", None), "said again"


@pytest.mark.parametrize("how", ["done", *BAD])
def test_a_child_that_ends_wakes_the_parent_that_waits_for_it(harness, parent, how):
    (id,) = harness.spawn("w", parent, run=LAST_CRASH)
    assert join(harness, parent) == WaitRegistered(None)
    child = harness.child("w")
    harness.suspend("w", parent)
    finish(harness, child, how)
    assert harness.state(parent.id) == "ready"
    assert harness.waits(parent.id) == {"$join:call#1#1": ("children", None)}
    (end,) = harness.store.journal.child_results(parent.id, "0:call#1")
    assert (str(end[0]), end[2]) == (id, harness.state(id))
    assert harness.store.journal.spawned_results(parent.id)["0:call#1"][2] == harness.state(id)
    assert harness.row(id)["expires_at"] is None, "children are kept as long as their root"


def test_a_map_wakes_its_parent_once_with_the_last_child(harness, parent):
    harness.spawn("w", parent, 4)
    join(harness, parent)
    harness.suspend("w", parent)
    children = harness.claim("w", 4, ["child"])
    finish(harness, children[0], "failed")
    harness.store.attempts.end("w", [end_of(child, in_tree=True) for child in children[1:3]])
    assert (harness.state(parent.id), harness.waits(parent.id)) == ("waiting", {"$join:call#1#1": (None, None)})
    assert harness.sql("select pending from {schema}waits") == [(1,)]
    finish(harness, children[3])
    assert (harness.state(parent.id), harness.waits(parent.id)) == ("ready", {"$join:call#1#1": ("children", None)})
    states = [row[2] for row in harness.store.journal.child_results(parent.id, "0:call#1")]
    assert states == ["failed", "done", "done", "done"]


@pytest.mark.parametrize("how", BAD)
def test_an_eager_join_ends_with_the_first_child_that_fails(harness, parent, how):
    harness.spawn("w", parent, 3, run=LAST_CRASH)
    join(harness, parent, eager=1)
    harness.suspend("w", parent)
    children = harness.claim("w", 4, ["child"])
    finish(harness, children[0])
    assert harness.state(parent.id) == "waiting"
    finish(harness, children[1], how)
    assert harness.state(parent.id) == "ready"
    assert harness.waits(parent.id) == {"$join:call#1#1": ("failed", children[1].id)}
    finish(harness, children[2], "failed")
    assert harness.waits(parent.id) == {"$join:call#1#1": ("failed", children[1].id)}, "the first one stays"


def test_an_eager_join_registered_after_a_failure_is_resolved_at_once(harness, parent, clock):
    harness.spawn("w", parent, 3)
    children = harness.claim("w", 4, ["child"])
    finish(harness, children[2], "failed")
    clock.advance(1)
    finish(harness, children[0], "failed")
    assert join(harness, parent, eager=1) == WaitOutcome("failed", children[2].id)
    assert join(harness, parent, eager=1) == WaitOutcome("failed", children[2].id), "said again"


def test_an_eager_join_without_failures_ends_with_the_last_child(harness, parent):
    harness.spawn("w", parent, 2)
    join(harness, parent, eager=1)
    for child in harness.claim("w", 2, ["child"]):
        finish(harness, child)
    assert harness.waits(parent.id) == {"$join:call#1#1": ("children", None)}


def test_children_of_other_calls_dont_count(harness, parent):
    harness.spawn("w", parent)
    harness.spawn("w", parent, key="call#2", n=2)
    join(harness, parent, "call#2")
    harness.suspend("w", parent)
    finish(harness, harness.child("w"))
    assert harness.state(parent.id) == "waiting"
    finish(harness, harness.child("w"))
    assert harness.state(parent.id) == "ready"


def test_a_child_that_suspends_or_is_retried_has_not_ended(harness, parent, clock):
    harness.spawn("w", parent)
    join(harness, parent)
    harness.suspend("w", parent)
    child = harness.child("w")
    assert harness.end("w", child, "retrying", in_tree=True)
    clock.advance(10)
    harness.store.timers.promote_due()
    child = harness.child("w")
    harness.wait("w", child, "sleep", delay=1)
    assert harness.suspend("w", child)
    assert harness.state(parent.id) == "waiting"


def test_children_from_before_a_restart_do_not_count(harness, parent):
    harness.spawn("w", parent)
    old = harness.child("w")
    harness.end("w", parent, "restarted", in_tree=True)
    (again,) = harness.claim("w")
    harness.spawn("w", again)
    assert join(harness, again) == WaitRegistered(None)
    finish(harness, old)
    assert harness.waits(parent.id) == {"$join:call#1#1": (None, None)}
    finish(harness, harness.child("w"))
    assert harness.waits(parent.id) == {"$join:call#1#1": ("children", None)}


def test_how_very_many_spawned_children_ended_is_read_by_pages(harness, parent):
    spawns = []
    for number in range(1, 1004):
        command = spawn_of(parent, [harness.new("child")], n=number, key=f"call#{number}")
        spawns.append(
            SpawnCommand(token_of(parent), number, f"call#{number}", "spawn", command.children, command.value)
        )
    harness.write("w", *spawns)
    harness.spawn("w", parent, 3, key="map#1", n=2000)
    harness.sql("update {schema}runs set state = 'done', finished_at = 1, result = '1' where parent is not null")
    ends = harness.store.journal.spawned_results(parent.id)
    assert {key: str(row[0]) for key, row in ends.items()} == {
        f"0:{spawn.key}": spawn.children[0].id for spawn in spawns
    }
    assert {row[1:] for row in ends.values()} == {(0, "done", "1", None)}


# A bad end


def tree(harness, parent):
    """Three children in different states, a grandchild of the second, and one below that."""
    harness.spawn("w", parent, 3)
    _, child = harness.claim("w", 2, ["child"])
    children = harness.store.journal.child_results(parent.id, "0:call#1")
    (grandchild,) = harness.spawn("w", child)
    (claim,) = (run for run in harness.claim("w", 8, ["child"]) if run.id == grandchild)
    (great,) = harness.spawn("w", claim)
    harness.wait("w", claim, "sleep", delay=99 * SECOND)
    harness.suspend("w", claim)
    return [str(row[0]) for row in children] + [grandchild, great]


@pytest.mark.parametrize("how", BAD)
def test_a_failure_or_cancel_cancels_descendants_at_any_depth(harness, how):
    harness.session("w")
    parent = harness.running("w", **LAST_CRASH)
    below = tree(harness, parent)
    stranger = harness.add("child")
    finish(harness, parent, how)
    assert set(harness.states(below)) == {"cancelled"}
    assert {harness.kinds(id)[-1] for id in below} == {"cancelled"}
    assert "its parent ended" in harness.row(below[-1])["error"]
    assert harness.state(stranger) != "cancelled"


def test_cancelled_children_keep_their_session_until_their_worker_releases_them(harness, parent):
    below = tree(harness, parent)
    harness.store.actions.cancel(parent.id, CANCELLED)
    assert harness.row(below[0])["session"] == "w"
    assert harness.row(below[4])["session"] is None
    owned = {run.id: run for run in harness.store.claims.list_owned("w")}
    harness.store.attempts.release("w", [(owned[below[0]].id, owned[below[0]].fence)])
    assert harness.row(below[0])["session"] is None


@pytest.mark.parametrize("kind", ["done", "waiting", "retrying", "restarted", "handed_back"])
def test_any_other_end_leaves_the_children_running(harness, parent, kind):
    below = tree(harness, parent)
    before = harness.states(below)
    assert harness.end("w", parent, kind, in_tree=True)
    assert harness.states(below) == before


def test_children_of_a_cancelled_parent_that_had_ended_stay_as_they_are(harness, parent):
    harness.spawn("w", parent, 2)
    child = harness.child("w")
    finish(harness, child)
    harness.store.actions.cancel(parent.id, CANCELLED)
    assert harness.state(child.id) == "done"
    assert harness.kinds(child.id) == ["done"]


def test_a_late_spawn_of_a_cancelled_parent_creates_no_child(harness, parent):
    harness.store.actions.cancel(parent.id, CANCELLED)
    assert harness.write("w", spawn_of(parent, [harness.new("child")])) == [RUN_LOST]
    assert harness.rows("runs") == 1
