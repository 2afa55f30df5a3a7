"""What graphs cost: linear in their edges, independent of the number of nodes, and never quadratic.

Counted, not timed: on SQLite the steps of its virtual machine, over whole calls of the store; on PostgreSQL the rows
that pass through the plans of the hot statements, with and without statistics. `test_plans.py` checks the indexes.
"""

from __future__ import annotations

import apsw
import psycopg
import pytest

from holdfast.database import Statements
from holdfast.store.module import json_rows
from tests.store.test_plans import explain, walk
from tests.support.graph_harness import node, submit
from tests.support.store_harness import CANCELLED, StoreHarness, end_of

SLACK = 1.3
FEW, MANY = 40, 400
LOOKED_AT = ("Actual Rows", "Rows Removed by Filter", "Rows Removed by Join Filter", "Rows Removed by Index Recheck")


class Counting:
    """A store on SQLite that counts the steps of the virtual machine."""

    def __init__(self, harness):
        self.steps = 0
        self.store = harness.another_store()
        connect = self.store.database._open

        def connecting(*given):
            connection = connect(*given)
            connection._apsw.trace_v2(apsw.SQLITE_TRACE_PROFILE, self._count)
            return connection

        self.store.database._open = connecting

    def _count(self, event):
        self.steps += event["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"]

    def of(self, call):
        before = self.steps
        call(self.store)
        return self.steps - before


@pytest.fixture
def sqlite(sqlite_url):
    harness = StoreHarness(sqlite_url)
    harness.session("w", lease=1e6)
    yield harness
    harness.close()


def fan(harness, size, task="many"):
    """Submit a fan: one node, `width` nodes behind it, one behind all of those."""
    names = [f"n{n}" for n in range(size)]
    return submit(harness, node(harness, "a"), *(node(harness, name, "a", task=task) for name in names),
                  node(harness, "z", *names, task="last"))  # fmt: skip


def cost_of_ending(harness, counting, count, tasks=("task",)):
    claims = []
    while len(claims) < count:
        claims += harness.claim("w", count - len(claims), tasks)
    ends = [end_of(claim, in_tree=True) for claim in claims]
    return counting.of(lambda store: store.attempts.end("w", ends))


def test_the_end_of_a_node_costs_the_same_in_a_large_graph(sqlite):
    counting = Counting(sqlite)
    costs = []
    for size in (10, 10, 2_000):
        others = [node(sqlite, f"n{n}", task="other") for n in range(size)]
        submit(sqlite, *others, node(sqlite, "a"), node(sqlite, "b", "a", task="next"))
        costs.append(cost_of_ending(sqlite, counting, 1))
    assert costs[2] <= costs[1] * SLACK


def test_the_cost_of_a_release_grows_with_the_released_nodes(sqlite):
    counting = Counting(sqlite)
    costs = {}
    for size in (10, FEW, MANY):
        fan(sqlite, size, task=f"many {size}")
        costs[size] = cost_of_ending(sqlite, counting, 1)
    assert costs[MANY] <= costs[FEW] * MANY / FEW * SLACK


def test_the_cost_of_a_batch_of_ends_grows_with_its_size(sqlite):
    counting = Counting(sqlite)
    costs = {}
    for size in (10, FEW, MANY):
        fan(sqlite, size)
        cost_of_ending(sqlite, counting, 1)
        costs[size] = cost_of_ending(sqlite, counting, size, ["many"])
    assert costs[MANY] <= costs[FEW] * MANY / FEW * SLACK


def test_the_cost_of_cancel_and_retry_grows_with_the_nodes(sqlite):
    counting = Counting(sqlite)
    costs = {}
    for size in (10, FEW, MANY):
        graph = fan(sqlite, size)
        cancelled = counting.of(lambda store, id=graph.id: store.actions.cancel(id, CANCELLED))
        retried = counting.of(lambda store, id=graph.id: store.actions.retry(id))
        costs[size] = cancelled, retried
    for few, many in zip(costs[FEW], costs[MANY], strict=True):
        assert many <= few * MANY / FEW * SLACK


# PostgreSQL


@pytest.fixture
def postgres(postgres_url):
    harness = StoreHarness(postgres_url)
    harness.store.prepare()
    for table in ("runs", "edges"):
        harness.sql(f"alter table {{schema}}{table} set (autovacuum_enabled = off)")
    yield harness
    harness.close()


def rows_of(nodes):
    """Return how many rows pass through a plan, including filtered ones."""
    return sum(each["Actual Loops"] * sum(each.get(what, 0) for what in LOOKED_AT) for each in nodes)


def hot(graph, size):
    """Return the statements that end the nodes of a fan, with their values."""
    ids = [graph.nodes[f"n{n}"] for n in range(size)]
    ends = {"kind": "done", "state": "done", "failed": 0, "lingers": 0}
    wanted = [{"graph": graph.id, "node": f"n{n}", "wanted": 1} for n in range(size)]
    return {
        "decrement_nodes": json_rows([{"id": graph.nodes["a"]}]),
        "release_nodes": json_rows({"id": id, "state": "ready"} for id in ids),
        "end_without_attempt": json_rows({"id": id, "state": "skipped"} for id in ids),
        "end_tree_attempts": json_rows({"id": id, **ends} for id in ids),
        "read_node_ends": json_rows(wanted),
        "find_nodes": json_rows({"node": row["node"]} for row in wanted),
        "find_parents": json_rows({"id": id} for id in ids),
        "recount_nodes": None,
    }


@pytest.mark.parametrize("analyzed", [False, True])
@pytest.mark.parametrize("mode", ["force_generic_plan", "force_custom_plan"])
def test_rows_processed_by_plans_grow_only_with_the_batch(postgres, analyzed, mode):
    statements = Statements("holdfast.store.sql", postgres.store.database.dialect)
    graphs = {size: fan(postgres, size) for size in (FEW, MANY)}
    costs = {}
    with psycopg.connect(postgres.url, cursor_factory=psycopg.RawCursor) as connection:
        if analyzed:
            connection.execute("analyze holdfast.runs, holdfast.edges")
        connection.execute(f"set local plan_cache_mode = {mode}")
        for size, graph in graphs.items():
            for name, rows in hot(graph, size).items():
                values = {"rows": rows, "graph": graph.id, "now": postgres.clock(), "watcher": "c1"}
                with connection.transaction(force_rollback=True):
                    plan = explain(connection, statements.get(name), values, "analyze,")
                costs.setdefault(name, []).append(rows_of(walk(plan)))
        connection.rollback()
    too_dear = {name: (few, many) for name, (few, many) in costs.items() if many > few * MANY / FEW * SLACK}
    assert too_dear == {}
