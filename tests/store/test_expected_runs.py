"""Transactions that expect a worker's claims to hold write nothing if they don't, and then find out what is so.

On PostgreSQL only; on SQLite, the same writes read the rows that they lock.
"""

from __future__ import annotations

import pytest

from holdfast.store.commands import RUN_LOST, MarkUndosCommand, Written
from holdfast.store.rows import AttemptEnd, Claim
from holdfast.store.run_tree import LockedRun, expected_graph, expected_run, lock_runs
from tests.support.graph_harness import node, submit
from tests.support.store_harness import CANCELLED, StoreHarness, end_of, record_of, spawn_of, token_of, wait_of


@pytest.fixture
def harness(database_url):
    harness = StoreHarness(database_url)
    harness.session("w")
    yield harness
    harness.close()


@pytest.fixture
def statements(harness, monkeypatch) -> list[str]:
    """Collect the names of the statements that the store executes."""
    names: list[str] = []
    known = harness.store._context.statements
    get = known.get
    monkeypatch.setattr(known, "get", lambda name, limit=None: names.append(name) or get(name, limit))
    return names


def end(claim: Claim, kind: str = "done", **more: object) -> AttemptEnd:
    """Return the end that a worker reports for a run in a tree."""
    parents = () if claim.parent is None else (str(claim.parent),)
    return end_of(claim, kind, in_tree=True, parents=parents, **more)


def ended(harness, *ends: AttemptEnd) -> set[tuple[str, int]]:
    return harness.store.attempts.end("w", ends, claims=harness.claims)


def lose_lease(harness, claim):
    harness.clock.advance(3600)


def cancel(harness, claim):
    harness.store.actions.cancel(claim.id, CANCELLED)


def claim_again(harness, claim):
    """Let another worker have the run."""
    harness.clock.advance(3600)
    harness.recover("w")
    harness.session("v")
    (again,) = harness.store.claims.claim("v", [harness.lane()], 1)
    assert again.id == claim.id


LOSSES = pytest.mark.parametrize("lose", [lose_lease, cancel, claim_again])


@LOSSES
def test_the_end_of_a_lost_run_writes_nothing(harness, lose):
    claim = harness.running("w")
    lose(harness, claim)
    before = harness.row(claim.id)
    assert ended(harness, end(claim)) == set()
    assert harness.row(claim.id) == before


@LOSSES
def test_the_command_of_a_lost_run_writes_nothing(harness, lose):
    claim = harness.running("w")
    lose(harness, claim)
    command = spawn_of(claim, [harness.new()])
    assert harness.write("w", command) == [RUN_LOST]
    assert (harness.rows("runs"), harness.rows("checkpoints")) == (1, 0)


def test_a_lost_run_leaves_the_others_of_its_batch(harness, statements):
    lost, kept = harness.running("w"), harness.running("w")
    cancel(harness, lost)
    statements.clear()
    assert ended(harness, end(lost), end(kept)) == {(kept.id, kept.fence)}
    assert statements.count("lock_runs") == 1
    assert (harness.state(lost.id), harness.kinds(kept.id)) == ("cancelled", ["done"])
    kept = harness.running("w")
    commands = [spawn_of(each, [harness.new()]) for each in (lost, kept)]
    assert harness.write("w", *commands) == [RUN_LOST, Written(commands[1].value)]


def test_an_earlier_claim_of_the_same_session_writes_nothing(harness):
    claim = harness.running("w")
    assert ended(harness, end(claim, "handed_back"))
    (again,) = harness.store.claims.claim("w", [harness.lane()], 1)
    assert (again.id, again.fence) == (claim.id, claim.fence + 1)
    assert harness.claims[claim.id] is claim, "the worker doesn't know of the later claim yet"
    assert harness.write("w", spawn_of(claim, [harness.new()])) == [RUN_LOST]
    assert harness.write("w", MarkUndosCommand(token_of(claim))) == [RUN_LOST]
    assert (harness.row(claim.id)["undos"], harness.rows("runs")) == (0, 1)


def test_a_command_that_was_carried_out_before_is_found_by_its_number(harness, statements):
    claim = harness.running("w")
    commands = MarkUndosCommand(token_of(claim)), record_of(claim, 1)
    harness.write("w", *commands)
    statements.clear()
    assert harness.write("w", *commands) == [Written(), Written(commands[1].value)]
    assert "read_recorded" in statements


def test_an_end_and_a_command_that_were_written_before_count_again(harness):
    claim = harness.running("w")
    command = spawn_of(claim, [harness.new("child")])
    assert harness.write("w", command) == harness.write("w", command) == [Written(command.value)]
    assert (harness.rows("runs"), harness.rows("checkpoints")) == (2, 1)
    for _ in range(2):
        assert ended(harness, end(claim)) == {(claim.id, claim.fence)}
    assert harness.kinds(claim.id) == ["done"]


def test_the_end_of_a_child_wakes_a_parent_that_is_suspended(harness):
    claim = harness.running("w")
    harness.spawn("w", claim)
    harness.wait("w", claim, "children", "call#1")
    child = harness.child("w")
    assert harness.suspend("w", claim)
    assert ended(harness, end(child)) == {(child.id, child.fence)}
    assert harness.state(claim.id) == "ready"
    assert harness.waits(claim.id) == {"children": ("children", None)}


def test_the_next_node_is_released_and_the_last_one_ends_the_graph(harness):
    graph = submit(harness, node(harness, "a"), node(harness, "b", "a"))
    for name in "ab":
        (claim,) = harness.claim("w")
        assert claim.id == graph.nodes[name]
        assert ended(harness, end(claim)) == {(claim.id, claim.fence)}
    assert harness.state(graph.id) == "done"


def test_a_node_of_a_graph_that_was_cancelled_releases_nothing(harness):
    graph = submit(harness, node(harness, "a"), node(harness, "b", "a"))
    (claim,) = harness.claim("w")
    harness.store.actions.cancel(graph.id, CANCELLED)
    ended(harness, end(claim))
    assert harness.states(graph.nodes.values()) == ["cancelled", "cancelled"]


def test_permits_return_although_the_claim_tells_of_none(harness):
    """The limits of a run count as they are stored."""
    claim = harness.running("w")
    harness.sql("update {schema}runs set limits = :limits where id = cast(:id as {uuid})", limits="[]", id=claim.id)
    assert ended(harness, end(claim)) == {(claim.id, claim.fence)}
    assert harness.state(claim.id) == "done"


def test_what_the_claim_tells_is_what_the_row_has(harness, statements):
    """Positions in maps, in graphs and under grandparents."""
    if not harness.on_postgres:
        pytest.skip("SQLite reads the rows")
    parent = harness.running("w", tenant="acme")
    harness.spawn("w", parent, 2)
    child = harness.child("w")
    harness.spawn("w", child, key="inner#1")
    harness.child("w")
    grandchild = harness.child("w")
    assert (str(child.parent), str(grandchild.parent)) == (parent.id, child.id)
    graph = submit(harness, node(harness, "a"))
    (first,) = harness.claim("w")
    claims = {claim.id: claim for claim in (parent, child, grandchild, first)}
    locked = harness.store.claims._transaction("commit", lambda tx: lock_runs(tx, [*claims, graph.id]))
    for id, claim in claims.items():
        assert expected_run(claim, "w") == locked[id]
    expected = expected_graph(locked[first.id])
    assert isinstance(expected, LockedRun)
    assert [getattr(expected, name) for name in ("id", "state", "kind", "parent")] == [
        graph.id, "waiting", "graph", None,
    ]  # fmt: skip


def test_a_wait_is_registered_once_and_found_by_a_repeat(harness):
    claim = harness.running("w")
    first = harness.write("w", wait_of(claim, "message", "go"))
    assert harness.write("w", wait_of(claim, "message", "go")) == first
    assert harness.waits(claim.id) == {"message": (None, None)}
