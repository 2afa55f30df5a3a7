"""A graph as a Mermaid flowchart, for whatever draws those: documents, issues, notebooks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from holdfast.cli.drawing import LONGEST_CONDITION, counted
from holdfast.cli.story import cut

if TYPE_CHECKING:
    from holdfast.control.graphs import GraphInfo, NodeInfo

MOST_EDGES = 500
"""So many Mermaid draws unless it is configured otherwise."""

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
_HARMLESS = " _-.,/'"


def flowchart(graph: GraphInfo) -> str:
    """The text of the flowchart."""
    lines = ["flowchart TD", *_nodes(graph, "n", "    "), *_edges(graph, "n")]
    states = {node.state for node in _all(graph)}
    lines += [f"    classDef {state} {style}" for state, style in CLASSES.items() if state in states]
    return "\n".join(lines)


def edges_of(graph: GraphInfo) -> int:
    """How many arrows it has."""
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
        lines.append(counted(node.counts))
    if node.conditions is not None:
        lines.append(f"if {cut(node.conditions, LONGEST_CONDITION)}")
    return "<br/>".join(map(quoted, lines))


def quoted(text: str) -> str:
    """Text that stays text: all that Mermaid, Markdown or HTML could obey as its code."""
    return "".join(c if c.isalnum() or c in _HARMLESS else f"#{ord(c)};" for c in text)
