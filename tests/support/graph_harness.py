"""Create graphs directly in a store, and check the invariants of stored graphs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from holdfast.model.ids import new_id
from holdfast.store.enqueue import GRAPH_QUEUE
from holdfast.store.rows import NewGraph, NewNode, NewRun
from tests.support.store_harness import DAY, StoreHarness

FINAL = {"done", "failed", "cancelled", "skipped"}
AT_WORK = {"ready", "scheduled", "running", "waiting"}

RunQuery = Callable[[str], list[tuple[Any, ...]]]
"""Runs a query, in which `{}` is the prefix of table names."""


# Creation


def node(harness: StoreHarness, name: str, *needs: str, task: str = "task", **run: Any) -> NewNode:
    """Return a node that runs when all its dependencies have succeeded."""
    return NewNode(harness.new(task, **run), name, needs)


def gate(name: str, *needs: str, timeout: int | None = None, on_timeout: str = "fail") -> NewNode:
    run = NewRun(str(new_id()), GRAPH_QUEUE, "gate", "{}", 30 * DAY, deadline_in=timeout)
    return NewNode(
        run, name, needs, msgspec.Raw(msgspec.json.encode({"on_timeout": on_timeout, "schema": None})), "gate"
    )


def nested(name: str, *nodes: NewNode, needs: tuple[str, ...] = ()) -> NewNode:
    return NewNode(graph_run(), name, needs, None, "graph", NewGraph(nodes))


def graph_run(**more: Any) -> NewRun:
    """Return the run of a graph."""
    return NewRun(str(new_id()), GRAPH_QUEUE, "graph", "{}", 30 * DAY, **more)


class SubmittedGraph(NamedTuple):
    """A submitted graph: its id and the ids of its nodes by name, `outer/inner` for nested ones."""

    id: str
    nodes: dict[str, str]


def submit(harness: StoreHarness, *nodes: NewNode, **run: Any) -> SubmittedGraph:
    id = harness.store.graphs.submit(graph_run(**run), NewGraph(nodes))
    return SubmittedGraph(id, _ids(nodes))


def _ids(nodes: tuple[NewNode, ...], within: str = "") -> dict[str, str]:
    ids = {}
    for each in nodes:
        ids[within + each.name] = each.run.id
        if each.graph is not None:
            ids |= _ids(tuple(each.graph.nodes), f"{within}{each.name}/")
    return ids


# Checks


class Row(NamedTuple):
    """The checked columns of a run."""

    parent: str | None
    kind: str | None
    node: str | None
    state: str
    pending: int | None
    finished: bool
    undoing: bool


def check_graphs(run_query: RunQuery) -> Counter[str]:
    """Check all graphs of a database between transactions and return the number of nodes by state.

    Counters are correct, no node waits without a reason or runs too early, graphs end with their nodes, and each end
    has one history entry.
    """
    runs = {
        str(id): Row(None if parent is None else str(parent), kind, name, state, pending, finished == 1, undoing == 1)
        for id, parent, kind, name, state, pending, finished, undoing in run_query(
            "select id, parent, kind, node, state, pending, case when finished_at is null then 0 else 1 end,"
            " case when ending is null then 0 else 1 end from {}runs"
        )
    }
    open_needs: Counter[str] = Counter()
    for needs, name in run_query("select needs, node from {}edges"):
        if str(needs) in runs:
            open_needs[str(name)] += not runs[str(needs)].finished
    wrong = [f"{id} {run}: {fault}" for id, run in runs.items() if (fault := _node_fault(runs, open_needs, id, run))]
    wrong += _graph_faults(runs)
    wrong += _record_faults(run_query, runs)
    assert wrong == []
    return Counter(run.state for run in runs.values() if run.node is not None)


def _node_fault(runs: dict[str, Row], open_needs: Counter[str], id: str, run: Row) -> str | None:
    if run.node is None:
        return None
    assert run.parent is not None
    if run.finished != (run.state in FINAL):
        return "its state and its end don't fit"
    if run.undoing:
        return None
    if not run.finished and runs[run.parent].finished:
        return "its graph has ended without it"
    if run.state == "blocked" and (run.pending != open_needs[id] or not run.pending):
        return f"it waits for {open_needs[id]}"
    if run.state in AT_WORK and open_needs[id]:
        return f"it was released, but needs {open_needs[id]} that haven't ended"
    return None


def _graph_faults(runs: dict[str, Row]) -> list[str]:
    unfinished: Counter[str | None] = Counter()
    bad: Counter[str | None] = Counter()
    for run in runs.values():
        if run.node is not None:
            unfinished[run.parent] += not run.finished
            bad[run.parent] += run.state in ("failed", "cancelled")
    wrong = []
    for id, run in runs.items():
        if run.kind != "graph" or run.state == "blocked":
            continue
        left = unfinished[id]
        if run.state == "waiting" and (run.pending != left or not left):
            wrong.append(f"{id} {run}: {left} of its nodes are unfinished")
        if run.state == "done" and (left or bad[id]):
            wrong.append(f"{id} {run}: it is done, with {left} unfinished and {bad[id]} bad nodes")
        if run.state not in FINAL | {"waiting"}:
            wrong.append(f"{id} {run}: no state of a graph")
    return wrong


def _record_faults(run_query: RunQuery, runs: dict[str, Row]) -> list[str]:
    """Find runs whose number of ends differs from the retries, plus one if the run is finished."""
    ends: Counter[str] = Counter()
    for run, kind, count in run_query("select run, kind, count(*) from {}history group by run, kind"):
        id = str(run)
        if kind in FINAL | {"completed"} or (kind == "timed_out" and id in runs and runs[id].kind == "gate"):
            ends[id] += count
        elif kind == "retried":
            ends[id] -= count
    return [f"{id} {run}: ended {ends[id]} times" for id, run in runs.items() if ends[id] != run.finished]


def harness_query(harness: StoreHarness) -> RunQuery:
    return lambda text: harness.sql(text.replace("{}", "{schema}"))
