"""Graphs for operators: their nodes in layers, what each waits for and why it was skipped; gates, and their ends."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

import msgspec

from holdfast.errors import ErrorInfo, GraphError
from holdfast.model.clock import to_datetime, to_datetime_or_none
from holdfast.model.failure import error_from_json
from holdfast.model.names import check_name
from holdfast.model.run import FINAL_STATES, RunState
from holdfast.policy.graph_rules import condition_text, dependency_modes
from holdfast.store import Store
from holdfast.store.gates import completed, failed
from holdfast.store.reader import Reader
from holdfast.store.views import GateRow, NodeRow

FEW_NODES = 20
"""A graph within a graph that has no more nodes is read with it,"""
MOST_GRAPHS = 20
"""but no more graphs than these."""


class NodeInfo(msgspec.Struct, frozen=True):
    """A node of a graph."""

    name: str
    id: UUID
    kind: Literal["task", "gate", "graph"]
    task: str
    """The name of the task, or of the graph."""
    state: RunState
    layer: int
    """Nodes that need nothing are in layer 1, others in the one behind the last that they need."""
    needs: dict[str, str]
    """The nodes that it needs, and how: they must be `done`, `failed` or `finished`, or a `condition` looks at them."""
    waits_for: list[str]
    """Those of them that are unfinished, while it is blocked."""
    conditions: str | None
    """What must be true beyond that others have ended, as it is written in code."""
    error: ErrorInfo | None
    """Why it failed, or was skipped."""
    attempt: int
    started_at: datetime | None
    finished_at: datetime | None
    due_at: datetime | None
    held: str | None
    counts: dict[str, int] | None = None
    """How many nodes a graph has, by state; none before it begins."""
    graph: GraphInfo | None = None
    """A graph itself, where it is small."""


class GateInfo(msgspec.Struct, frozen=True):
    """A gate of a graph, or of a graph within it."""

    name: str
    id: UUID
    graph: UUID
    """The run whose gate it is."""
    state: RunState
    since: datetime | None
    """Since when it is open."""
    until: datetime | None
    """When it times out,"""
    on_timeout: Literal["fail", "skip", "complete"]
    """and what becomes of it then."""
    early: str | None
    """How it will end when it opens, `done` or `failed`, where somebody has said so already."""
    schema: dict[str, Any] | None
    """What its output must be like, as JSON Schema."""


class GraphInfo(msgspec.Struct, frozen=True):
    """The nodes of a graph, in the order in which they were added."""

    id: UUID
    counts: dict[str, int]
    """How many nodes there are, by state."""
    nodes: list[NodeInfo] = msgspec.field(default_factory=list)
    gates: list[GateInfo] = msgspec.field(default_factory=list)
    """Its gates, and those of graphs within it."""


class GraphControl:
    """Runs whose nodes are runs."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._reader = Reader(store.views, store.graphs, store.listing)

    def read(self, id: UUID) -> GraphInfo:
        """A graph with its nodes and gates; GraphError when the run is none."""
        self._reader.graph_row(id)
        return self._read(id, self.gates(id), [MOST_GRAPHS])

    def gates(self, id: UUID) -> list[GateInfo]:
        """The gates of a graph and of graphs within it; GraphError when the run is none."""
        self._reader.graph_row(id)
        return [_gate(row) for row in self._store.views.gates(str(id))]

    def node(self, id: UUID, name: str) -> UUID:
        """The id of a node of a graph."""
        self._reader.graph_row(id)
        found = self._store.views.node_id(str(id), check_name(name, "the name of a node"))
        if found is None:
            raise GraphError(f"graph run {id} has no node {name!r}; `holdfast show {id}` shows those that it has")
        return UUID(found)

    def complete(self, id: UUID, gate: str, output: Any = None, by: str | None = None) -> bool:
        """Finish a gate with an output; False when that had been done before. `by` says who did it."""
        return self._store.graphs.conclude(str(id), _gate_name(gate), completed(gate, output, by))

    def fail(self, id: UUID, gate: str, error: str, by: str | None = None) -> bool:
        """Let a gate fail, with a message; False when that had been done before."""
        return self._store.graphs.conclude(str(id), _gate_name(gate), failed(gate, error, by))

    def _read(self, id: UUID, gates: list[GateInfo], left: list[int]) -> GraphInfo:
        """`left`: how many graphs within it may be read."""
        rows = self._store.views.overview(str(id))
        needs = _needs(rows, self._store.views.edges(str(id)))
        layers = layers_of(needs)
        unfinished = {row.node for row in rows if row.state not in FINAL_STATES}
        within = self._store.views.nodes_within(str(id)) if any(row.kind == "graph" for row in rows) else {}
        nodes = []
        for row in rows:
            counts = within.get(str(row.id), {})
            graph = None
            if row.kind == "graph" and 0 < sum(counts.values()) <= FEW_NODES and left[0] > 0:
                left[0] -= 1
                graph = self._read(UUID(str(row.id)), [], left)
            nodes.append(_node(row, layers[row.node], needs[row.node], unfinished, counts, graph))
        return GraphInfo(id, dict(Counter(row.state for row in rows)), nodes, gates)


def layers_of(needs: Mapping[str, Iterable[str]]) -> dict[str, int]:
    """The layer of each node: the longest way to it from a node that needs nothing."""
    behind: dict[str, list[str]] = {}
    left = {}
    for node, needed in needs.items():
        some = list(needed)
        left[node] = len(some)
        for each in some:
            behind.setdefault(each, []).append(node)
    layers: dict[str, int] = {}
    layer = [node for node, count in left.items() if count == 0]
    number = 1
    while layer:
        layers |= dict.fromkeys(layer, number)
        number += 1
        following = []
        for node in layer:
            for each in behind.get(node, ()):
                left[each] -= 1
                if left[each] == 0:
                    following.append(each)
        layer = following
    return layers


def _needs(rows: Sequence[NodeRow], edges: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    names = {str(row.id): row.node for row in rows}
    needs: dict[str, list[str]] = {row.node: [] for row in rows}
    for needed, node in edges:
        if needed in names and node in names:  # else it came between two looks
            needs[names[node]].append(names[needed])
    order = {name: place for place, name in enumerate(needs)}
    return {name: sorted(some, key=order.__getitem__) for name, some in needs.items()}


def _node(
    row: NodeRow, layer: int, needs: list[str], unfinished: set[str], counts: dict[str, int], graph: GraphInfo | None
) -> NodeInfo:
    rule = None if row.plan is None else msgspec.json.decode(row.plan).get("rule")
    said = dependency_modes(rule)
    otherwise = "done" if rule is None else "condition"  # its output has a default
    return NodeInfo(
        name=row.node,
        id=UUID(str(row.id)),
        kind="task" if row.kind is None else row.kind,  # type: ignore[arg-type]
        task=row.task,
        state=row.state,
        layer=layer,
        needs={name: said.get(name, otherwise) for name in needs},
        waits_for=[name for name in needs if name in unfinished] if row.state == "blocked" else [],
        conditions=condition_text(rule),
        error=None if row.error is None else error_from_json(row.error),
        attempt=row.attempt,
        started_at=to_datetime_or_none(row.started_at),
        finished_at=to_datetime_or_none(row.finished_at),
        due_at=to_datetime_or_none(row.due_at),
        held=row.held,
        counts=counts if row.kind == "graph" else None,
        graph=graph,
    )


def _gate(row: GateRow) -> GateInfo:
    plan = msgspec.json.decode(row.plan)
    opened = max(row.created_at, row.retried_at or 0, row.released_at or 0)
    is_open = row.state == "waiting"
    return GateInfo(
        name=row.node,
        id=UUID(str(row.id)),
        graph=UUID(str(row.graph)),
        state=row.state,
        since=to_datetime(opened) if is_open else None,
        until=to_datetime_or_none(row.deadline) if is_open else None,
        on_timeout=plan["on_timeout"],
        early=plan["early"]["state"] if row.state == "blocked" and "early" in plan else None,
        schema=plan.get("schema"),
    )


def _gate_name(name: str) -> str:
    return check_name(name, "the name of a gate")


def how_to_conclude(graph: UUID | str, gate: str, *, typed: bool = False) -> str:
    """The command that completes a gate."""
    return f"holdfast gate {graph} {shlex.quote(gate)} complete{' OUTPUT' if typed else ''}"


MOST = 1000


class OpenGate(msgspec.Struct, frozen=True):
    """A gate that somebody has to complete."""

    id: UUID
    name: str
    graph: UUID
    """The run whose gate it is,"""
    task: str
    """and the name of that graph."""
    tenant: str | None
    created_at: datetime
    until: datetime | None
    """When it times out."""
    schema: dict[str, Any] | None
    """What its output must be like, as JSON Schema."""


class GateControl:
    """What waits for people. How a gate is completed is in `graphs.py`."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def open(self, tenant: str | None = None, limit: int = 100) -> list[OpenGate]:
        """Gates that wait, of one tenant's graphs or all, the oldest first, but no more than that."""
        rows = self._store.views.open_gates(tenant, min(limit, MOST))
        return [
            OpenGate(
                id=UUID(str(id)),
                name=node,
                graph=UUID(str(graph)),
                task=task,
                tenant=of,
                created_at=to_datetime(created_at),
                until=to_datetime_or_none(deadline),
                schema=msgspec.json.decode(plan).get("schema"),
            )
            for id, node, graph, task, of, created_at, deadline, plan in rows
        ]
