"""Graphs: nodes in layers with their dependencies and errors; decide their gates."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import Any, Literal, NamedTuple
from uuid import UUID

import msgspec
from msgspec import structs

from holdfast.control.audit import audited
from holdfast.control.gates import GateInfo, gate_info
from holdfast.errors import ErrorInfo, GraphError
from holdfast.model.clock import to_datetime_or_none
from holdfast.model.failure import error_from_json
from holdfast.model.names import check_name
from holdfast.model.run import FINAL_STATES, RunState
from holdfast.policy.graph_rules import condition_text, dependency_modes
from holdfast.store import Store
from holdfast.store.graph_progress import read_plan
from holdfast.store.graphs import gate_completed, gate_failed
from holdfast.store.run_queries import NodeRow
from holdfast.store.run_reader import RunReader

MAX_NESTED_NODES = 20
"""Nested graphs with at most this many nodes are read with their parent."""
MAX_NESTED_GRAPHS = 20
PAGE_NODES = 1000
"""The details of a run have the first nodes of a graph; `GraphControl.page` reads others."""
MAX_CACHED_NODES = 300_000
"""Of so many nodes names, layers and dependencies are kept, which are the same for every page."""


class NodeInfo(msgspec.Struct, frozen=True):
    """A node of a graph."""

    name: str
    id: UUID
    kind: Literal["task", "gate", "graph"]
    task: str
    """The name of the task, or of the graph."""
    state: RunState
    layer: int
    """Nodes without dependencies are in layer 1, others one layer after their last dependency."""
    needs: dict[str, str]
    """Its dependencies, and how: they must be `done`, `failed` or `finished`, or a `condition` evaluates them."""
    waits_for: list[str]
    """The unfinished dependencies, while it is blocked."""
    conditions: str | None
    """Its condition, as written in code."""
    error: ErrorInfo | None
    """Why it failed or was skipped."""
    attempt: int
    started_at: datetime | None
    finished_at: datetime | None
    due_at: datetime | None
    held: str | None
    counts: dict[str, int] | None = None
    """The number of nodes of a nested graph, by state; empty before it starts."""
    graph: GraphInfo | None = None
    """The nested graph itself, if it is small."""


class GraphInfo(msgspec.Struct, frozen=True):
    """The nodes of a graph, in the order in which they were added."""

    id: UUID
    counts: dict[str, int]
    """The number of nodes, by state."""
    nodes: list[NodeInfo] = msgspec.field(default_factory=list)
    gates: list[GateInfo] = msgspec.field(default_factory=list)
    """Its gates, including those of nested graphs."""
    more_nodes: int = 0
    """How many nodes follow the listed ones."""


class _GraphShape(NamedTuple):
    """What doesn't change while a graph runs, unless it gets nodes: ids by name in order, dependencies, layers."""

    total: int
    ids: dict[str, str]
    needs: dict[str, list[str]]
    layers: dict[str, int]


class GraphControl:
    """Reads graphs and decides gates."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._reader = RunReader(store)
        self._shapes: dict[UUID, _GraphShape] = {}

    def read(self, id: UUID) -> GraphInfo:
        """Read a graph with all its nodes and gates; GraphError if the run isn't a graph."""
        self._reader.graph_row(id)
        return self._read(id, self.gates(id), [MAX_NESTED_GRAPHS])

    def page(self, id: UUID, start: int = 0, size: int = PAGE_NODES) -> GraphInfo:
        """Read a graph with some of its nodes, in the order in which they were added, and its gates."""
        self._reader.graph_row(id)
        counts = self._store.queries.count_nodes(str(id))
        total = sum(counts.values())
        if total <= PAGE_NODES:
            graph = self._read(id, self.gates(id), [MAX_NESTED_GRAPHS])
            nodes = graph.nodes[start : start + size]
            return structs.replace(graph, nodes=nodes, more_nodes=max(len(graph.nodes) - start - len(nodes), 0))
        shape = self._shape(id, total)
        nodes = self._some_nodes(id, shape, islice(shape.ids.values(), start, start + size))
        return GraphInfo(id, counts, nodes, self.gates(id), max(total - start - len(nodes), 0))

    def page_by_state(self, id: UUID, states: Sequence[str], start: int, size: int) -> list[NodeInfo]:
        """Read some nodes of a graph that are in these states, those of the first state first."""
        counts = self._store.queries.count_nodes(str(id))
        ids: list[str] = []
        for state in states:
            if start < counts.get(state, 0) and len(ids) < size:
                ids += self._store.queries.nodes_in_state(str(id), state, start, size - len(ids))
            start = max(start - counts.get(state, 0), 0)
        found = {str(node.id): node for node in self._some_nodes(id, self._shape(id, sum(counts.values())), ids)}
        return [found[each] for each in ids if each in found]

    def _shape(self, id: UUID, total: int) -> _GraphShape:
        """Return the shape of a graph, read once until it gets more nodes."""
        shape = self._shapes.pop(id, None)
        if shape is None or shape.total != total:
            ids = {name: node for _, node, name in self._store.queries.node_names(str(id))}
            names = {node: name for name, node in ids.items()}
            needs = _needs(names, self._store.queries.edges(str(id)))
            shape = _GraphShape(total, ids, needs, layers_of(needs))
        self._shapes[id] = shape  # the most recently used is the last
        shapes = list(self._shapes.items())
        while len(shapes) > 1 and sum(each.total for _, each in shapes) > MAX_CACHED_NODES:
            self._shapes.pop(shapes.pop(0)[0], None)  # another thread may have removed it
        return shape

    def _some_nodes(self, id: UUID, shape: _GraphShape, ids: Iterable[str]) -> list[NodeInfo]:
        rows = [row for row in self._store.queries.some_nodes(ids) if row.node in shape.ids]
        waiting = any(row.state == "blocked" for row in rows)
        unfinished = self._store.queries.unfinished_nodes(str(id)) if waiting else set()
        within = self._store.queries.count_nested_nodes(str(id)) if any(row.kind == "graph" for row in rows) else {}
        return [
            _node(row, shape.layers[row.node], shape.needs[row.node], unfinished, within.get(str(row.id), {}), None)
            for row in rows
        ]

    def gates(self, id: UUID) -> list[GateInfo]:
        """List the gates of a graph and its nested graphs, or those that a durable function and its graphs opened.

        GraphError if the run is neither a graph nor has gates.
        """
        rows = self._store.queries.gates(str(id))
        if not rows:
            self._reader.graph_row(id)
        return [gate_info(row) for row in rows]

    def node(self, id: UUID, name: str) -> UUID:
        """Return the run id of a node, or of the last gate of this name that a durable function opened."""
        opened = self._store.graphs.function_gate(str(id), check_name(name, "the name of a gate"))
        if opened is not None:
            return UUID(opened)
        self._reader.graph_row(id)
        found = self._store.queries.node_id(str(id), check_name(name, "the name of a node"))
        if found is None:
            raise GraphError(f"graph run {id} has no node {name!r}; `holdfast show {id}` lists its nodes")
        return UUID(found)

    @audited("complete gate", "id")
    def complete(self, id: UUID, gate: str, output: Any = None, by: str | None = None) -> bool:
        """Complete a gate with an output; False if it had already been completed so. `by` names the operator."""
        return self._store.graphs.conclude_gate(str(id), _gate_name(gate), gate_completed(gate, output, by))

    @audited("fail gate", "id")
    def fail(self, id: UUID, gate: str, error: str, by: str | None = None) -> bool:
        """Fail a gate with a message; False if it had already failed so."""
        return self._store.graphs.conclude_gate(str(id), _gate_name(gate), gate_failed(gate, error, by))

    def _read(self, id: UUID, gates: list[GateInfo], budget: list[int]) -> GraphInfo:
        """Read a graph. `budget` holds the number of nested graphs that may still be read."""
        rows = self._store.queries.node_overview(str(id))
        needs = _needs({str(row.id): row.node for row in rows}, self._store.queries.edges(str(id)))
        layers = layers_of(needs)
        unfinished = {row.node for row in rows if row.state not in FINAL_STATES}
        within = self._store.queries.count_nested_nodes(str(id)) if any(row.kind == "graph" for row in rows) else {}
        nodes = []
        for row in rows:
            counts = within.get(str(row.id), {})
            graph = None
            if row.kind == "graph" and 0 < sum(counts.values()) <= MAX_NESTED_NODES and budget[0] > 0:
                budget[0] -= 1
                graph = self._read(UUID(str(row.id)), [], budget)
            nodes.append(_node(row, layers[row.node], needs[row.node], unfinished, counts, graph))
        return GraphInfo(id, dict(Counter(row.state for row in rows)), nodes, gates)


def layers_of(needs: Mapping[str, Iterable[str]]) -> dict[str, int]:
    """Compute the layer of each node: the length of the longest path from a node without dependencies."""
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


def _needs(names: Mapping[str, str], edges: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Return the dependencies of each node by name. `names`: by id, in order."""
    needs: dict[str, list[str]] = {name: [] for name in names.values()}
    for needed, node in edges:
        if needed in names and node in names:  # else it was added between the two reads
            needs[names[node]].append(names[needed])
    order = {name: at for at, name in enumerate(needs)}
    return {name: sorted(some, key=order.__getitem__) for name, some in needs.items()}


def _node(
    row: NodeRow, layer: int, needs: list[str], unfinished: set[str], counts: dict[str, int], graph: GraphInfo | None
) -> NodeInfo:
    rule = None if row.plan is None else read_plan(row.plan).get("rule")
    modes = dependency_modes(rule)
    default = "done" if rule is None else "condition"  # an output with a default
    return NodeInfo(
        name=row.node,
        id=UUID(str(row.id)),
        kind="task" if row.kind is None else row.kind,  # type: ignore[arg-type]
        task=row.task,
        state=row.state,
        layer=layer,
        needs={name: modes.get(name, default) for name in needs},
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


def _gate_name(name: str) -> str:
    return check_name(name, "the name of a gate")


def complete_command(graph: UUID | str, gate: str, *, typed: bool = False) -> str:
    """Return the command that completes a gate."""
    return f"holdfast gate {graph} {shlex.quote(gate)} complete{' OUTPUT' if typed else ''}"
