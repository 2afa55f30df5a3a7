"""Lay out a graph: the positions of its boxes and arrows. Many similar nodes share one box.

Layers go from left to right; within a layer, a node is placed near the nodes it depends on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from uuid import UUID

from holdfast.control.graphs import GraphInfo, NodeInfo

BOX = (190, 46)
GAP = (70, 18)
MARGIN = 12
MIN_GROUP = 6
"""This many nodes of one layer with the same task and dependencies share one box."""
MAX_BOXES = 300
"""Further boxes aren't drawn."""
MAX_LABEL_CHARS = 24

WORST_FIRST = (
    "failed", "undoing", "cancelled", "running", "waiting", "ready", "scheduled", "blocked", "skipped", "done",
)  # fmt: skip


@dataclass(slots=True)
class NodeBox:
    """One node, or a group of similar nodes."""

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
        """The most urgent state of its nodes."""
        states = {node.state for node in self.nodes}
        return next((state for state in WORST_FIRST if state in states), "done")

    @property
    def label(self) -> str:
        text = self.first.name if len(self.nodes) == 1 else f"{len(self.nodes):,} × {self.first.task}"
        return text if len(text) <= MAX_LABEL_CHARS else text[: MAX_LABEL_CHARS - 1] + "…"

    @property
    def subtitle(self) -> str:
        if len(self.nodes) > 1:
            counts = Counter(node.state for node in self.nodes)
            text = ", ".join(f"{count:,} {state}" for state, count in counts.most_common())
        elif self.first.counts:
            text = ", ".join(f"{count:,} {state}" for state, count in self.first.counts.items())
        else:
            text = self.first.state
        return text if len(text) <= MAX_LABEL_CHARS + 4 else text[: MAX_LABEL_CHARS + 3] + "…"

    @property
    def title(self) -> str:
        if len(self.nodes) > 1:
            return f"{len(self.nodes):,} nodes of task {self.first.task}, {self.subtitle}"
        kind = "" if self.first.kind == "task" else f"{self.first.kind}, "
        condition = f", if {self.first.conditions}" if self.first.conditions else ""
        return f"{self.first.name} ({kind}{self.first.task}): {self.first.state}{condition}"


@dataclass(frozen=True, slots=True)
class EdgePath:
    """An arrow from a box to one that depends on it."""

    path: str
    mode: str


@dataclass(slots=True)
class GraphLayout:
    """All boxes and arrows with their positions."""

    width: int
    height: int
    boxes: list[NodeBox] = field(default_factory=list)
    arrows: list[EdgePath] = field(default_factory=list)
    omitted: int = 0


def layout_graph(graph: GraphInfo) -> GraphLayout:
    boxes = _boxes(graph.nodes)
    omitted = sum(len(box.nodes) for box in boxes[MAX_BOXES:])
    boxes = boxes[:MAX_BOXES]
    box_of = {node.name: box for box in boxes for node in box.nodes}
    layers: dict[int, list[NodeBox]] = {}
    for box in boxes:
        layers.setdefault(box.layer, []).append(box)
    tallest = max((len(layer) for layer in layers.values()), default=1)
    height = tallest * (BOX[1] + GAP[1]) - GAP[1] + 2 * MARGIN
    for column, layer in enumerate(layers[number] for number in sorted(layers)):
        _stack(layer, column, height, box_of)
    width = len(layers) * (BOX[0] + GAP[0]) - GAP[0] + 2 * MARGIN
    return GraphLayout(width, height, boxes, list(_arrows(boxes, box_of)), omitted)


def _boxes(nodes: Iterable[NodeInfo]) -> list[NodeBox]:
    similar: dict[object, list[NodeInfo]] = {}
    for node in nodes:
        kind = (node.layer, node.task, tuple(sorted(node.needs.items())), node.conditions, node.kind)
        similar.setdefault(kind, []).append(node)
    found: list[NodeBox] = []
    for some in similar.values():
        together = len(some) >= MIN_GROUP and some[0].kind == "task"
        found += [
            NodeBox(each, each[0].layer, each[0].needs) for each in ([some] if together else [[one] for one in some])
        ]
    return sorted(found, key=lambda box: box.layer)


def _stack(layer: list[NodeBox], column: int, height: int, box_of: dict[str, NodeBox]) -> None:
    """Stack the boxes of a layer, each near the boxes it depends on."""

    def preferred_y(box: NodeBox) -> float:
        needed = [box_of[name].y for name in box.needs if name in box_of]
        return sum(needed) / len(needed) if needed else 0.0

    if column:
        layer.sort(key=preferred_y)
    top = (height - (len(layer) * (BOX[1] + GAP[1]) - GAP[1])) // 2
    for row, box in enumerate(layer):
        box.x = MARGIN + column * (BOX[0] + GAP[0])
        box.y = top + row * (BOX[1] + GAP[1])


def _arrows(boxes: Iterable[NodeBox], box_of: dict[str, NodeBox]) -> Iterable[EdgePath]:
    seen: set[tuple[int, int, str]] = set()
    for box in boxes:
        for name, mode in box.needs.items():
            needed = box_of.get(name)
            if needed is None or (id(needed), id(box), mode) in seen:
                continue
            seen.add((id(needed), id(box), mode))
            x1, y1 = needed.x + BOX[0], needed.y + BOX[1] // 2
            x2, y2 = box.x, box.y + BOX[1] // 2
            bend = max((x2 - x1) // 2, 20)
            yield EdgePath(f"M{x1} {y1} C{x1 + bend} {y1} {x2 - bend} {y2} {x2 - 2} {y2}", mode)
