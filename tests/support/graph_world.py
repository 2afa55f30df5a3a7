"""Graphs made straight in a store, and what must hold of every graph whatever happened to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from holdfast.model.ids import new_id
from holdfast.store.enqueue import GRAPH_QUEUE
from holdfast.store.rows import NewGraph, NewNode, NewRun
from tests.support.world import DAY, World

FINAL = {"done", "failed", "cancelled", "skipped"}
AT_WORK = {"ready", "scheduled", "running", "waiting"}

Ask = Callable[[str], list[tuple[Any, ...]]]
"""Runs a query, in which `{}` stands before names of tables."""


# Making


def node(world: World, name: str, *needs: str, task: str = "task", **run: Any) -> NewNode:
    """A node that runs when all that it needs has ended well."""
    return NewNode(world.new(task, **run), name, needs)


def gate(name: str, *needs: str, timeout: int | None = None, on_timeout: str = "fail") -> NewNode:
    run = NewRun(str(new_id()), GRAPH_QUEUE, "gate", "{}", 30 * DAY, deadline_in=timeout)
    return NewNode(
        run, name, needs, msgspec.Raw(msgspec.json.encode({"on_timeout": on_timeout, "schema": None})), "gate"
    )


def nested(name: str, *nodes: NewNode, needs: tuple[str, ...] = ()) -> NewNode:
    return NewNode(graph_run(), name, needs, None, "graph", NewGraph(nodes))


def graph_run(**more: Any) -> NewRun:
    """The run of a graph."""
    return NewRun(str(new_id()), GRAPH_QUEUE, "graph", "{}", 30 * DAY, **more)


class Made(NamedTuple):
    """A graph that was submitted: its id, and those of its nodes by their names, `outer/inner` for nodes within."""

    id: str
    nodes: dict[str, str]


def submit(world: World, *nodes: NewNode, **run: Any) -> Made:
    id = world.store.graphs.submit(graph_run(**run), NewGraph(nodes))
    return Made(id, _ids(nodes))


def _ids(nodes: tuple[NewNode, ...], within: str = "") -> dict[str, str]:
    ids = {}
    for each in nodes:
        ids[within + each.name] = each.run.id
        if each.graph is not None:
            ids |= _ids(tuple(each.graph.nodes), f"{within}{each.name}/")
    return ids


# Checking


class Row(NamedTuple):
    """What is looked at of a run."""

    parent: str | None
    kind: str | None
    node: str | None
    state: str
    pending: int | None
    finished: bool
    undoing: bool


def check_graphs(ask: Ask) -> Counter[str]:
    """All graphs of a database, between transactions: counters are right, nobody waits for nothing or runs too early,
    graphs end with their nodes, and each end is on record once. How many nodes are in which state."""
    runs = {
        str(id): Row(None if parent is None else str(parent), kind, name, state, pending, finished == 1, undoing == 1)
        for id, parent, kind, name, state, pending, finished, undoing in ask(
            "select id, parent, kind, node, state, pending, case when finished_at is null then 0 else 1 end,"
            " case when ending is null then 0 else 1 end from {}runs"
        )
    }
    open_needs: Counter[str] = Counter()
    for needs, name in ask("select needs, node from {}edges"):
        if str(needs) in runs:
            open_needs[str(name)] += not runs[str(needs)].finished
    wrong = [f"{id} {run}: {fault}" for id, run in runs.items() if (fault := _node_fault(runs, open_needs, id, run))]
    wrong += _graph_faults(runs)
    wrong += _record_faults(ask, runs)
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


def _record_faults(ask: Ask, runs: dict[str, Row]) -> list[str]:
    """A run has ended once more than it was retried, or as often while it is unfinished."""
    ends: Counter[str] = Counter()
    for run, kind, count in ask("select run, kind, count(*) from {}history group by run, kind"):
        id = str(run)
        if kind in FINAL | {"completed"} or (kind == "timed_out" and id in runs and runs[id].kind == "gate"):
            ends[id] += count
        elif kind == "retried":
            ends[id] -= count
    return [f"{id} {run}: ended {ends[id]} times" for id, run in runs.items() if ends[id] != run.finished]


def asking(world: World) -> Ask:
    return lambda text: world.sql(text.replace("{}", "{schema}"))
