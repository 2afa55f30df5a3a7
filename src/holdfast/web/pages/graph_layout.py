"""A graph as a picture: where its boxes and arrows are. Many nodes that are alike become one box.

Layers go from left to right, as `control` counts them; within a layer a node stands near those that it needs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from uuid import UUID

from holdfast.control.graphs import GraphInfo, NodeInfo

BOX = (190, 46)
GAP = (70, 18)
EDGE = 12
ALIKE = 6
"""So many nodes of one layer that run the same task and need the same become one box,"""
MOST_BOXES = 300
"""and of a picture with more boxes only the first are drawn."""
LONGEST_LABEL = 24

_WORST_FIRST = (
    "failed", "undoing", "cancelled", "running", "waiting", "ready", "scheduled", "blocked", "skipped", "done",
)  # fmt: skip


@dataclass(slots=True)
class NodeBox:
    """One node, or several that are alike."""

    nodes: list[NodeInfo]
    layer: int
    needs: dict[str, str]
    x: int = 0
    y: int = 0

    @property
    def first(self) -> NodeInfo:
        return self.nodes[0]

    @property
    def id(self) -> UUID | None:
        return self.first.id if len(self.nodes) == 1 else None

    @property
    def state(self) -> str:
        """Of several the one that wants most to be looked at."""
        states = {node.state for node in self.nodes}
        return next((state for state in _WORST_FIRST if state in states), "done")

    @property
    def label(self) -> str:
        text = self.first.name if len(self.nodes) == 1 else f"{len(self.nodes):,} × {self.first.task}"
        return text if len(text) <= LONGEST_LABEL else text[: LONGEST_LABEL - 1] + "…"

    @property
    def told(self) -> str:
        """What stands in its second line."""
        if len(self.nodes) > 1:
            counts = Counter(node.state for node in self.nodes)
            text = ", ".join(f"{count:,} {state}" for state, count in counts.most_common())
        elif self.first.counts:
            text = ", ".join(f"{count:,} {state}" for state, count in self.first.counts.items())
        else:
            text = self.first.state
        return text if len(text) <= LONGEST_LABEL + 4 else text[: LONGEST_LABEL + 3] + "…"

    @property
    def title(self) -> str:
        if len(self.nodes) > 1:
            return f"{len(self.nodes):,} nodes that run {self.first.task}, {self.told}"
        kind = "" if self.first.kind == "task" else f"{self.first.kind}, "
        condition = f", if {self.first.conditions}" if self.first.conditions else ""
        return f"{self.first.name} ({kind}{self.first.task}): {self.first.state}{condition}"


@dataclass(frozen=True, slots=True)
class EdgePath:
    """From a box to one that needs it."""

    path: str
    mode: str


@dataclass(slots=True)
class GraphLayout:
    """Everything placed."""

    width: int
    height: int
    boxes: list[NodeBox] = field(default_factory=list)
    arrows: list[EdgePath] = field(default_factory=list)
    left_out: int = 0


def layout_graph(graph: GraphInfo) -> GraphLayout:
    """The picture of a graph."""
    boxes = _boxes(graph.nodes)
    left_out = sum(len(box.nodes) for box in boxes[MOST_BOXES:])
    boxes = boxes[:MOST_BOXES]
    context = {node.name: box for box in boxes for node in box.nodes}
    layers: dict[int, list[NodeBox]] = {}
    for box in boxes:
        layers.setdefault(box.layer, []).append(box)
    tallest = max((len(layer) for layer in layers.values()), default=1)
    height = tallest * (BOX[1] + GAP[1]) - GAP[1] + 2 * EDGE
    for column, layer in enumerate(layers[number] for number in sorted(layers)):
        _stack(layer, column, height, context)
    width = len(layers) * (BOX[0] + GAP[0]) - GAP[0] + 2 * EDGE
    return GraphLayout(width, height, boxes, list(_arrows(boxes, context)), left_out)


def _boxes(nodes: Iterable[NodeInfo]) -> list[NodeBox]:
    alike: dict[object, list[NodeInfo]] = {}
    for node in nodes:
        kind = (node.layer, node.task, tuple(sorted(node.needs.items())), node.conditions, node.kind)
        alike.setdefault(kind, []).append(node)
    found: list[NodeBox] = []
    for some in alike.values():
        together = len(some) >= ALIKE and some[0].kind == "task"
        found += [
            NodeBox(each, each[0].layer, each[0].needs) for each in ([some] if together else [[one] for one in some])
        ]
    return sorted(found, key=lambda box: box.layer)


def _stack(layer: list[NodeBox], column: int, height: int, context: dict[str, NodeBox]) -> None:
    """Place the boxes of a layer one above the other, each near those that it needs."""

    def wanted(box: NodeBox) -> float:
        above = [context[name].y for name in box.needs if name in context]
        return sum(above) / len(above) if above else 0.0

    if column:
        layer.sort(key=wanted)
    top = (height - (len(layer) * (BOX[1] + GAP[1]) - GAP[1])) // 2
    for row, box in enumerate(layer):
        box.x = EDGE + column * (BOX[0] + GAP[0])
        box.y = top + row * (BOX[1] + GAP[1])


def _arrows(boxes: Iterable[NodeBox], context: dict[str, NodeBox]) -> Iterable[EdgePath]:
    seen: set[tuple[int, int, str]] = set()
    for box in boxes:
        for name, mode in box.needs.items():
            needed = context.get(name)
            if needed is None or (id(needed), id(box), mode) in seen:
                continue
            seen.add((id(needed), id(box), mode))
            x1, y1 = needed.x + BOX[0], needed.y + BOX[1] // 2
            x2, y2 = box.x, box.y + BOX[1] // 2
            bend = max((x2 - x1) // 2, 20)
            yield EdgePath(f"M{x1} {y1} C{x1 + bend} {y1} {x2 - bend} {y2} {x2 - 2} {y2}", mode)
