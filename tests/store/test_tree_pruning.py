"""Trees are pruned as a whole, with their root and everything that belongs to them."""

from __future__ import annotations

import pytest

from holdfast.database.migrate import table_names
from holdfast.store.commands import WriteCommand
from tests.store.test_children import finish
from tests.support.store_harness import CANCELLED, DAY, record_of, token_of

TABLES = ("history", "checkpoints", "waits", "messages", "chunks")


@pytest.fixture
def parent(harness):
    harness.session("w", lease=10**9)
    return harness.running("w")


def prune(harness):
    pruned = 0
    for _ in range(20):
        count, more = harness.store.retention.prune()
        pruned += count
        if not more:
            return pruned
    raise AssertionError("it doesn't come to an end")


def prune_older(harness):
    pruned, after = 0, "00000000-0000-0000-0000-000000000000"
    for _ in range(20):
        count, after = harness.store.retention.prune_older(DAY, after)
        pruned += count
        if after is None:
            return pruned
    raise AssertionError("it doesn't come to an end")


BOTH = pytest.mark.parametrize("prune", [prune, prune_older])

DETAILS = {
    "checkpoints": "run", "waits": "run", "messages": "run", "chunks": "run", "edges": "needs", "metadata": "run",
    "logs": "run", "run_values": "run", "budget_totals": "run", "listeners": "run", "langgraph_checkpoints": "thread",
    "langgraph_values": "thread", "langgraph_writes": "thread",
}  # fmt: skip
"""The tables whose rows belong to runs, and the column that names the run."""


def add_details(harness, run):
    """Write a row of a run into every table."""
    for table, owner in DETAILS.items():
        if harness.on_postgres:
            found = harness.sql(
                "select column_name, data_type from information_schema.columns where table_schema = 'holdfast'"
                f" and table_name = '{table}' and is_nullable = 'NO' and is_identity = 'NO'"
            )
        else:
            found = harness.sql(
                f"select name, type from pragma_table_info('holdfast_{table}') where \"notnull\" = 1 or pk > 0"
            )
        kinds = {str(name): str(kind).lower() for name, kind in found} | {owner: "uuid"}
        values = {name: "1" if "int" in kind else f"'{run}'" for name, kind in kinds.items()}
        values |= {"kind": "'sleep'"} if table == "waits" else {}
        harness.sql(f"insert into {{schema}}{table} ({', '.join(values)}) values ({', '.join(values.values())})")


def ended(harness, session="w"):
    claim = harness.running(session)
    harness.end(session, claim)
    return claim.id


@BOTH
def test_a_tree_is_pruned_with_its_root_and_all_its_rows(harness, parent, clock, prune):
    (child,) = harness.spawn("w", parent)
    claim = harness.child("w")
    (grandchild,) = harness.spawn("w", claim)
    harness.record("w", claim, 2)
    harness.wait("w", claim, "event", "x", delay=1)
    harness.store.actions.send(child, "topic", "1")
    harness.write("w", WriteCommand(token_of(claim), None, "step", 1, '"a"'))
    harness.store.actions.cancel(parent.id, CANCELLED)
    for run in harness.store.claims.list_owned("w"):
        harness.store.attempts.release("w", [(run.id, run.fence)])
    assert all(harness.rows(table) for table in TABLES)
    stranger = harness.add()
    assert prune(harness) == 0
    clock.advance(31 * 86_400)
    assert prune(harness) == 3
    assert harness.sql("select cast(id as text) from {schema}runs") == [(stranger,)]
    assert [table for table in TABLES if harness.rows(table)] == []
    assert grandchild


def test_all_rows_of_the_first_the_last_and_any_other_run_of_a_batch_are_deleted(harness, clock):
    harness.session("w", lease=10**9)
    for number in range(3):
        runs = [ended(harness) for _ in range(3)]
        add_details(harness, runs[number])
        assert all(harness.rows(table) == 1 for table in DETAILS)
        clock.advance(31 * 86_400)
        assert prune(harness) == 3
        assert [table for table in DETAILS if harness.rows(table)] == [], f"rows of run {number} of 3"


def test_rows_of_a_run_between_those_of_a_batch_are_kept(harness, clock):
    harness.session("w", lease=10**9)
    first, kept, last = ended(harness), harness.running("w").id, ended(harness)
    for run in (first, kept, last):
        add_details(harness, run)
    clock.advance(31 * 86_400)
    assert prune(harness) == 2
    for table, owner in DETAILS.items():
        assert harness.sql(f"select cast({owner} as text) from {{schema}}{table}") == [(kept,)]


@BOTH
@pytest.mark.parametrize("state", ["running", "ready", "lingering"])
def test_a_tree_with_a_running_member_is_kept(harness, parent, clock, state, prune):
    harness.spawn("w", parent, 2)
    child = harness.child("w")
    finish(harness, harness.child("w"))
    harness.end("w", parent, in_tree=True)
    if state == "ready":
        harness.end("w", child, "handed_back", in_tree=True)
    elif state == "lingering":
        harness.store.actions.cancel(child.id, CANCELLED)
    other = harness.running("w")
    harness.end("w", other)
    clock.advance(31 * 86_400)
    assert prune(harness) == 1, "the other one"
    if state == "ready":
        child = harness.child("w")
    if state == "lingering":
        harness.store.attempts.release("w", [(child.id, child.fence)])
    else:
        finish(harness, child)
    clock.advance(2 * 86_400)
    assert prune(harness) == 3
    assert harness.rows("runs") == 0


@BOTH
def test_a_tree_larger_than_a_batch_is_pruned_in_several(harness, parent, clock, prune):
    harness.spawn("w", parent, 1200)
    harness.sql("update {schema}runs set state = 'done', finished_at = {now} where parent is not null")
    harness.end("w", parent, in_tree=True)
    clock.advance(31 * 86_400)
    assert prune(harness) == 1201
    assert harness.rows("runs") == 0


@BOTH
def test_many_trees_and_many_single_runs_are_all_pruned(harness, parent, clock, prune):
    parents = [parent] + [harness.running("w") for _ in range(120)]
    for claim in parents:
        harness.spawn("w", claim, 2)
    harness.sql("update {schema}runs set state = 'done', finished_at = {now} where parent is not null")
    for claim in parents[::2]:
        harness.end("w", claim, in_tree=True)
    harness.add_many(300)
    alone = harness.claim("w", 256) + harness.claim("w", 256)
    for claim in alone:
        harness.end("w", claim)
    for claim in parents[1::2]:
        harness.end("w", claim, in_tree=True)
    clock.advance(31 * 86_400)
    assert prune(harness) == 3 * len(parents) + 300
    assert harness.rows("runs") == 0


def test_trees_that_are_kept_do_not_block_pruning_of_later_ones(harness, parent, clock):
    """However many come first."""
    harness.spawn("w", parent)
    child = harness.child("w")
    harness.end("w", parent, in_tree=True)
    harness.add_many(600)
    claims = [claim for _ in range(2) for claim in harness.claim("w", 512)]
    claims += harness.claim("w", 512)
    harness.sql(
        "insert into {schema}runs (id, lane, priority, state, max_crashes, args, keep, created_at, parent, root)"
        " select "
        + _id(harness)
        + ", lane, 0, 'waiting', 3, '', 1, 1, id, id from {schema}runs where state = 'running'"
        " and parent is null"
    )
    for claim in claims:
        assert harness.end("w", claim, in_tree=True)
    clock.advance(1)
    late = harness.running("w")
    harness.end("w", late)
    clock.advance(31 * 86_400)
    assert prune(harness) == 1
    assert (harness.sql("select count(*) from {schema}runs where parent is null"), harness.state(child.id)) == (
        [(601,)],
        "running",
    )


def _id(harness):
    new = "'1' || substr(cast(id as text), 2)"
    return f"cast({new} as uuid)" if harness.on_postgres else new


def test_a_failed_child_that_is_retried_is_kept_with_its_finished_root(harness, parent, clock):
    harness.spawn("w", parent)
    child = harness.child("w")
    finish(harness, child, "failed")
    harness.end("w", parent, in_tree=True)
    clock.advance(31 * 86_400)
    harness.store.actions.retry(child.id)
    assert prune(harness) == 0
    finish(harness, harness.child("w"))
    clock.advance(2 * 86_400)
    assert prune(harness) == 2


def test_a_root_that_is_retried_is_kept(harness, parent, clock):
    harness.spawn("w", parent)
    harness.write("w", record_of(parent, 3))
    harness.store.actions.cancel(parent.id, CANCELLED)
    harness.store.attempts.release("w", [(parent.id, parent.fence)])
    clock.advance(31 * 86_400)
    harness.store.actions.retry(parent.id)
    assert prune(harness) == 0
    assert harness.rows("runs") == 2


def test_clearing_deletes_everything_but_sessions_and_lanes(harness, parent):
    harness.record("w", parent, 2)
    harness.wait("w", parent, "event", "x", delay=1)
    harness.add(key="once", unique="one", tags='["red"]')
    harness.store.events.emit(None, "happened", "1")
    harness.store.queues.pause(["default"])
    harness.store.retention.clear()
    left = {table for table in table_names() if harness.rows(table)}
    assert left == {"meta", "lanes", "workers"}
    assert not harness.end("w", parent)
    harness.store.queues.resume(["default"])
    assert harness.running("w", key="once", unique="one")
