"""Render a graph for `show`, as a tree of layers or as a Mermaid flowchart.

Small graphs are shown completely; large ones with the nodes that aren't done, and counts of the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import TYPE_CHECKING

from holdfast.cli.output import TreeNode, format_ago, format_duration, format_timestamp
from holdfast.cli.render_history import MAX_FAILURE_CHARS, cut, one_line
from holdfast.model.names import counted

if TYPE_CHECKING:
    from uuid import UUID

    from holdfast.control.gates import GateInfo
    from holdfast.control.graphs import GraphInfo, NodeInfo


SMALL_GRAPH_NODES = 40
"""Graphs up to this size are shown completely."""
MAX_LAYER_NODES = 5
MAX_LAYERS = 20
MAX_NAME_CHARS = 28
MAX_NAMES = 4
MAX_CONDITION_CHARS = 120
URGENCY = ("failed", "cancelled", "undoing", "running", "waiting", "ready", "scheduled", "skipped", "blocked", "done")
"""States in the order in which people want to see them."""


def graph_tree(graph: GraphInfo) -> list[TreeNode]:
    small = len(graph.nodes) <= SMALL_GRAPH_NODES
    gates = {gate.id: gate for gate in graph.gates}
    width = min(max((len(node.name) for node in graph.nodes), default=0), MAX_NAME_CHARS)
    layers = [
        (number, list(nodes))
        for number, nodes in groupby(sorted(graph.nodes, key=lambda node: node.layer), lambda node: node.layer)
    ]
    lines = []
    for group in _grouped(layers) if not small else [[layer] for layer in layers]:
        nodes = [node for _, some in group for node in some]
        shown = nodes if small else _most_urgent(nodes) if len(group) == 1 else []
        below = [_node(node, width, gates, small=small) for node in shown]
        if 0 < len(shown) < len(nodes):
            below.append(TreeNode([f"… and {_format_states(_states(nodes) - _states(shown))}"]))
        lines.append(TreeNode(_heading(group, nodes), below))
    if not small and len(lines) > MAX_LAYERS:
        left = len(lines) - MAX_LAYERS
        lines = [*_first(lines), TreeNode([f"… and {left:,} more (--json has all)"])]
    return lines


def _grouped(layers: Sequence[tuple[int, list[NodeInfo]]]) -> list[list[tuple[int, list[NodeInfo]]]]:
    """Combine adjacent layers that are all done, all blocked or all skipped, if there are many layers."""
    if len(layers) <= MAX_LAYERS:
        return [[layer] for layer in layers]

    def same(layer: tuple[int, list[NodeInfo]]) -> object:
        states = {node.state for node in layer[1]}
        return states.pop() if states in ({"done"}, {"blocked"}, {"skipped"}) else layer[0]

    return [list(group) for _, group in groupby(layers, same)]


def _first(lines: Sequence[TreeNode]) -> list[TreeNode]:
    """Keep layers with visible nodes first, in order."""
    kept = sorted(range(len(lines)), key=lambda at: (not lines[at].below, at))[:MAX_LAYERS]
    return [lines[at] for at in sorted(kept)]


def _most_urgent(nodes: Sequence[NodeInfo]) -> list[NodeInfo]:
    urgent = sorted((node for node in nodes if node.state != "done"), key=lambda node: URGENCY.index(node.state))
    if not urgent and len(nodes) <= MAX_LAYER_NODES:
        return list(nodes)
    return urgent[:MAX_LAYER_NODES]


def _heading(group: Sequence[tuple[int, list[NodeInfo]]], nodes: Sequence[NodeInfo]) -> list[str]:
    first, last = group[0][0], group[-1][0]
    name = f"layer {first:,}" if first == last else f"layers {first:,} to {last:,}"
    return [name] if len(nodes) == 1 and len(group) == 1 else [name, format_node_counts(_states(nodes))]


def _states(nodes: Iterable[NodeInfo]) -> Counter[str]:
    return Counter(node.state for node in nodes)


def format_node_counts(counts: Mapping[str, int]) -> str:
    """Format counts by state: `7 nodes: 1 waiting, 3 blocked, 3 done`."""
    total = sum(counts.values())
    return f"{counted(total, 'node')}: {_format_states(counts)}"


def _format_states(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{counts[state]:,} {state}" for state in URGENCY if counts.get(state))


# One node


def _node(node: NodeInfo, width: int, gates: Mapping[UUID, GateInfo], *, small: bool) -> TreeNode:
    cells = [f"{node.name:<{width}}", f"{node.state:<9}"]
    run = f"run {node.id}" if node.state in ("failed", "cancelled", "undoing") else ""
    cells += [cell for cell in (_kind(node), _time(node), _why(node, gates.get(node.id), small=small), run) if cell]
    return TreeNode(cells, [*_below(node), *_within(node, gates)])


def _kind(node: NodeInfo) -> str:
    if node.kind == "gate":
        return "gate"
    if node.kind == "task":
        return ""
    shown = f", {format_node_counts(node.counts)}" if node.graph is None and node.counts else ""
    return f"graph {node.task}{shown}"


def _time(node: NodeInfo) -> str:
    if node.started_at is None:
        return ""
    until = node.finished_at or datetime.now(UTC)
    took = format_duration(max((until - node.started_at).total_seconds(), 0))
    return took if node.attempt <= 1 else f"{took}, attempt {node.attempt}"


def _why(node: NodeInfo, gate: GateInfo | None, *, small: bool) -> str:
    """Say what the node waits for or depends on."""
    if gate is not None and node.state == "waiting":
        return format_gate(gate)
    if node.state == "blocked":
        early = ""
        if gate is not None and gate.early is not None:
            early = f"; {_EARLY[gate.early]} when it opens, {format_decision(gate)}"
        return f"waits for {_names(node.waits_for)}{early}"
    if gate is not None and gate.decided_at is not None:
        return format_decision(gate)
    if node.state == "scheduled" and node.due_at is not None:
        return f"due {format_ago(node.due_at)}"
    if node.state == "ready" and node.held is not None:
        return f"held: {node.held}"
    if node.state == "skipped" and node.error is not None:
        own = node.error.message == f"the condition of node {node.name} wasn't true"
        return "its condition wasn't true" if own else one_line(node.error.message)
    return f"after {_names(map(_needed, node.needs.items()))}" if small and node.needs else ""


def _needed(need: tuple[str, str]) -> str:
    name, mode = need
    return f"{name}.{mode}" if mode in ("failed", "finished") else name


_EARLY = {"done": "will be completed", "failed": "will fail"}


def _names(names: Iterable[str]) -> str:
    some = list(names)
    shown = ", ".join(some[:MAX_NAMES])
    return shown if len(some) <= MAX_NAMES else f"{shown} and {len(some) - MAX_NAMES:,} more"


def format_gate(gate: GateInfo) -> str:
    """Format when a gate opened and when it times out."""
    text = (
        f"open since {format_timestamp(gate.since)[:-4]} ({format_ago(gate.since)})"
        if gate.since is not None
        else gate.state
    )
    if gate.until is not None:
        end = {"fail": "fails", "skip": "is skipped", "complete": "is completed"}[gate.on_timeout]
        text += f", {end} {format_ago(gate.until)}"
    return text


def format_decision(gate: GateInfo) -> str:
    """Format who decided a gate and when; empty if it is undecided."""
    if gate.decided_at is None:
        return ""
    how = "timed out" if gate.decided_by is None else f"decided by {gate.decided_by}"
    return f"{how} {format_ago(gate.decided_at)}"


def _below(node: NodeInfo) -> list[TreeNode]:
    lines = []
    if node.conditions is not None and node.state in ("blocked", "skipped"):
        lines.append(TreeNode([f"only if {cut(node.conditions, MAX_CONDITION_CHARS)}"], whole=True))
    if node.state in ("failed", "cancelled", "undoing") and node.error is not None:
        lines.append(TreeNode([cut(one_line(str(node.error)), MAX_FAILURE_CHARS)], whole=True))
    return lines


def _within(node: NodeInfo, gates: Mapping[UUID, GateInfo]) -> list[TreeNode]:
    """Render the nodes of a small nested graph, without layers."""
    if node.graph is None:
        return []
    nodes = sorted(node.graph.nodes, key=lambda each: each.layer)
    width = min(max(len(each.name) for each in nodes), MAX_NAME_CHARS)
    return [_node(each, width, gates, small=True) for each in nodes]


MAX_MERMAID_EDGES = 500
"""Mermaid's default limit."""

CLASSES = {
    "blocked": "fill:#eeeeee,stroke:#999999,color:#333333",
    "scheduled": "fill:#f3e5f5,stroke:#8e24aa,color:#333333",
    "ready": "fill:#e0f7fa,stroke:#00838f,color:#333333",
    "running": "fill:#bbdefb,stroke:#1565c0,color:#333333,stroke-width:3px",
    "waiting": "fill:#e8eaf6,stroke:#3949ab,color:#333333,stroke-dasharray:4 3",
    "undoing": "fill:#fff9c4,stroke:#f9a825,color:#333333",
    "done": "fill:#c8e6c9,stroke:#2e7d32,color:#333333",
    "failed": "fill:#ffcdd2,stroke:#c62828,color:#333333,stroke-width:3px",
    "cancelled": "fill:#fff9c4,stroke:#f9a825,color:#333333",
    "skipped": "fill:#fafafa,stroke:#bbbbbb,color:#777777,stroke-dasharray:2 2",
}
_SHAPES = {"task": ("[", "]"), "gate": ("{{", "}}"), "graph": ("[[", "]]")}
_ARROWS = {"done": "-->", "failed": "-->|failed|", "finished": "-->|finished|", "condition": "-.->"}
_SAFE_CHARS = " _-.,/'"


def flowchart(graph: GraphInfo) -> str:
    """Render the graph as a Mermaid flowchart."""
    lines = ["flowchart TD", *_nodes(graph, "n", "    "), *_edges(graph, "n")]
    states = {node.state for node in _all(graph)}
    lines += [f"    classDef {state} {style}" for state, style in CLASSES.items() if state in states]
    return "\n".join(lines)


def count_edges(graph: GraphInfo) -> int:
    return sum(len(node.needs) for node in _all(graph))


def _all(graph: GraphInfo) -> Iterator[NodeInfo]:
    for node in graph.nodes:
        yield node
        if node.graph is not None:
            yield from _all(node.graph)


def _nodes(graph: GraphInfo, prefix: str, indent: str) -> Iterator[str]:
    for number, node in enumerate(graph.nodes, 1):
        key = f"{prefix}{number}"
        if node.graph is None:
            before, after = _SHAPES[node.kind]
            yield f'{indent}{key}{before}"{_label(node)}"{after}:::{node.state}'
            continue
        yield f'{indent}subgraph {key}["{_label(node)}"]'
        yield from _nodes(node.graph, f"{key}_", indent + "    ")
        yield f"{indent}end"
        yield f"{indent}class {key} {node.state}"


def _edges(graph: GraphInfo, prefix: str) -> Iterator[str]:
    keys = {node.name: f"{prefix}{number}" for number, node in enumerate(graph.nodes, 1)}
    for node in graph.nodes:
        for name, mode in node.needs.items():
            yield f"    {keys[name]} {_ARROWS[mode]} {keys[node.name]}"
        if node.graph is not None:
            yield from _edges(node.graph, f"{keys[node.name]}_")


def _label(node: NodeInfo) -> str:
    lines = [node.name, node.state]
    if node.kind == "graph" and node.graph is None and node.counts:
        lines.append(format_node_counts(node.counts))
    if node.conditions is not None:
        lines.append(f"if {cut(node.conditions, MAX_CONDITION_CHARS)}")
    return "<br/>".join(map(quoted, lines))


def quoted(text: str) -> str:
    """Escape every character that Mermaid, Markdown or HTML could interpret."""
    return "".join(c if c.isalnum() or c in _SAFE_CHARS else f"#{ord(c)};" for c in text)
