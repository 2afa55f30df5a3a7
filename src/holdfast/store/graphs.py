"""Graphs: made in one transaction with their nodes, grown, and their gates."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import count
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from holdfast.database.caller_connection import AsyncCallerConnection, CallerConnection
from holdfast.errors import GraphError, KeyConflict, RunFinished, RunNotFound
from holdfast.model.codec import decode
from holdfast.model.run import FINAL_STATES
from holdfast.store.family import HeldRun, hold_with_parents
from holdfast.store.gates import Outcome, conclude
from holdfast.store.graph_rows import Above, add_rows, graph_row, insert, node_rows
from holdfast.store.intake import Intake, Plan, carry_out, take_keys
from holdfast.store.lanes import Lanes, Pair
from holdfast.store.part import Do, Ground, Part, batch, record
from holdfast.store.releasing import cause_of, decide_waiting, graph_output
from holdfast.store.rows import NewGraph, NewRun
from holdfast.store.settling import settle
from holdfast.store.turns import give_turns, take_turns

SHOWN_GATES = 20


class NodeState(NamedTuple):
    """A node of a graph that is there."""

    id: str
    state: str
    kind: str | None
    plan: str | None
    error: str | None
    unfinished: int


class Graphs(Part):
    """Runs whose nodes are runs."""

    def __init__(self, ground: Ground, lanes: Lanes, intake: Intake) -> None:
        super().__init__(ground)
        self._lanes = lanes
        self._intake = intake

    # Making them

    def submit(self, run: NewRun, graph: NewGraph) -> str:
        """Make a graph with all its nodes, or none; the id of the run that stands for it: its own, or the one that has
        its key. Raises KeyConflict when that was used for another graph."""
        lanes = self._lanes.of([run, *graph.runs()])
        return self._together("client", lambda do: carry_out(submit_steps(run, graph, lanes), do))[0]

    def submit_on(self, connection: CallerConnection, run: NewRun, graph: NewGraph) -> str:
        """The same inside the transaction of a caller's connection."""
        return self._intake.on(connection, [run, *graph.runs()], lambda lanes: submit_steps(run, graph, lanes))[0]

    async def asubmit_on(self, connection: AsyncCallerConnection, run: NewRun, graph: NewGraph) -> str:
        """The same inside the transaction of a caller's connection."""
        return (
            await self._intake.aon(connection, [run, *graph.runs()], lambda lanes: submit_steps(run, graph, lanes))
        )[0]

    def append(
        self, id: str, key: str, digests: tuple[str, str | None], graph: NewGraph, outside: Collection[str]
    ) -> None:
        """Add nodes to an unfinished graph, once by their key; `outside` are the nodes of the run that they need."""
        lanes = self._lanes.of(graph.runs())

        def work(do: Do) -> None:
            if self._appended(do, id, key, digests):
                return
            run = _hold_graph(do, id)
            if run.state in FINAL_STATES:
                raise RunFinished(f"graph run {id} is {run.state}: nodes can be appended to unfinished graphs only")
            if run.state == "blocked":
                raise GraphError(
                    f"graph run {id} hasn't begun yet, as nodes before it aren't done: append to it when it has"
                )
            known = _known(do, id, [*outside, *(node.name for node in graph.nodes)])
            _refuse_names(id, graph, outside, known)
            above = Above(id, run.root or id, run.tenant, {name: known[name].id for name in outside})
            give_turns(do, graph.runs(), run.tenant)
            rows = node_rows(graph, lanes, above)
            _count_what_is_over(graph, rows["nodes"], known)
            add_rows(do, rows)
            n, pending = do("grow_graph", id=id, count=len(graph.nodes))[0]
            data = msgspec.json.encode({"key": key, "nodes": len(graph.nodes)}).decode()
            do("add_history", rows=batch([record(id, n, "appended", 0, data=data)]))
            settle(do, [], decide_waiting(do, id, pending))

        self._together("client", work)

    def _appended(self, do: Do, id: str, key: str, digests: tuple[str, str | None]) -> bool:
        """Take the key of nodes to be appended; whether they were appended before."""
        scope = msgspec.json.encode(["append", id]).decode()
        row = {"scope": scope, "key": key, "digest": digests[0], "run": id}
        if do("add_keys", rows=batch([row])):
            return False
        if do("find_keys", rows=batch([row]))[0][2] not in digests:
            raise KeyConflict(f"key {key!r} was used to append other nodes to run {id}: use another key", UUID(id))
        return True

    # Gates

    def conclude(self, id: str, name: str, outcome: Outcome) -> bool:
        """Complete a gate, or let it fail; False when that had been done in the same way before."""
        tries = count()

        def work(do: Do) -> bool:
            found = _known(do, id, [name]).get(name)
            if found is None or found.kind != "gate":
                raise _no_gate(do, id, name, found)
            gate = hold_with_parents(do, [found.id])[found.id]
            was_this, ends = conclude(do, gate, outcome, again=next(tries) > 0)
            settle(do, ends)
            return was_this

        return self._together("client", work)

    # Reading

    def result(self, id: str, options: str | None) -> tuple[str | None, str]:
        """The result of a graph that is done: the task whose result it is, where it is one's, and its JSON text."""
        task = None if options is None else decode(options, dict[str, Any]).get("task")
        return task, graph_output(self._reading("read"), id, options)


def submit_steps(run: NewRun, graph: NewGraph, lanes: dict[Pair, int]) -> Plan:
    """The steps of a submit."""
    if run.key is not None:
        stands_for = yield from take_keys([run])
        if run.id in stands_for:
            return [stands_for[run.id]]
    yield from take_turns(graph.runs(), run.tenant)
    yield from insert({"nodes": [graph_row(run, lanes, graph)], "edges": [], "begun": []})
    yield from insert(node_rows(graph, lanes, Above(run.id, run.id, run.tenant)))
    return [run.id]


def _hold_graph(do: Do, id: str) -> HeldRun:
    found = hold_with_parents(do, [id])
    if not found:
        raise RunNotFound.of(id)
    if found[id].kind != "graph":
        run = found[id]
        raise GraphError(
            f"run {id} is no graph" + (f", but node {run.node} of graph run {run.parent}" if run.node else "")
        )
    return found[id]


def _known(do: Do, graph: str, names: Sequence[str]) -> dict[str, NodeState]:
    if not names:
        return {}
    rows = do("named_nodes", graph=graph, rows=batch({"node": name} for name in names))
    return {name: NodeState(str(id), *rest) for name, id, *rest in rows}


def _refuse_names(id: str, graph: NewGraph, outside: Collection[str], known: dict[str, NodeState]) -> None:
    missing = sorted(name for name in outside if name not in known)
    if missing:
        raise GraphError(f"graph run {id} has no node {missing[0]!r}, which appended nodes need")
    twice = [node.name for node in graph.nodes if node.name in known]
    if twice:
        raise GraphError(f"graph run {id} has a node {twice[0]!r} already: give the appended one another name")


def _count_what_is_over(graph: NewGraph, rows: Sequence[dict[str, Any]], known: dict[str, NodeState]) -> None:
    """Nodes that are appended don't wait for those of the run that have ended."""
    for node, row in zip(graph.nodes, rows, strict=True):
        over = [(name, known[name]) for name in node.needs if name in known and not known[name].unfinished]
        row["pending"] = row.get("pending", 0) - len(over) if node.needs else row.get("pending")
        causes = [cause_of(end.state, name, end.error) for name, end in over]
        row["cause"] = max((cause for cause in causes if cause is not None), default=None)


def _no_gate(do: Do, id: str, name: str, found: NodeState | None) -> GraphError:
    """Why nobody can conclude a gate of that name."""
    if found is not None:
        return GraphError(f"node {name!r} of run {id} is no gate")
    if _hold_graph(do, id).state == "blocked":
        return GraphError(f"graph run {id} hasn't begun yet, and has no gates before it has")
    gates = [(node, str(graph)) for _, graph, node, *_ in do("graph_gates", graph=id)]
    within = [graph for node, graph in gates if node == name]
    if within:
        return GraphError(
            f"gate {name!r} is one of graph run {within[0]}, which is within graph run {id}: name that run"
        )
    own = [node for node, graph in gates if graph == id]
    known = f"it has {', '.join(own[:SHOWN_GATES])}" if own else "it has none"
    return GraphError(f"graph run {id} has no gate {name!r}: {known}")
