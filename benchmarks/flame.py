"""Draws stacks as a flame graph: a box per call, as wide as the time spent in it, its callees below it."""

from __future__ import annotations

import zlib
from collections import Counter
from dataclasses import dataclass, field
from html import escape

from benchmarks.svg import svg

WIDTH = 1600
ROW = 17
MARGIN = 10
TITLE = 40
NARROWEST = 0.4
LETTER = 6.6


@dataclass(slots=True)
class Box:
    """A call and those that it made."""

    name: str
    micros: int = 0
    callees: dict[str, Box] = field(default_factory=dict)

    def depth(self) -> int:
        return 1 + max((box.depth() for box in self.callees.values()), default=0)


def tree(stacks: Counter[tuple[str, ...]]) -> Box:
    """The stacks, joined where they begin alike."""
    root = Box("all")
    for stack, micros in sorted(stacks.items()):
        root.micros += micros
        box = root
        for name in stack:
            box = box.callees.setdefault(name, Box(name))
            box.micros += micros
    return root


def drawn(stacks: Counter[tuple[str, ...]], title: str) -> str:
    """An SVG. The whole name and the share stand in each box's tooltip."""
    root = tree(stacks)
    height = TITLE + root.depth() * ROW + MARGIN
    told = f"{title}: {root.micros / 1e6:.1f} s of processor time"
    shapes = [f'<text x="{MARGIN}" y="24" font-size="15">{escape(told)}</text>']
    if root.micros:
        _draw(root, MARGIN, TITLE, (WIDTH - 2 * MARGIN) / root.micros, root.micros, shapes)
    return svg(WIDTH, height, "monospace", 11, shapes)


def _draw(box: Box, x: float, y: float, scale: float, total: int, shapes: list[str]) -> None:
    width = box.micros * scale
    if width < NARROWEST:
        return
    letters = int((width - 4) / LETTER)
    told = f"{box.name}: {box.micros / 1000:,.0f} ms, {box.micros / total:.1%}"
    shown = box.name if len(box.name) <= letters else box.name[-letters:] if letters > 3 else ""
    label = f'<text x="{x + 2:.1f}" y="{y + 12:.1f}">{escape(shown)}</text>' if shown else ""
    rectangle = (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{ROW - 1}" rx="1" fill="{_color(box.name)}"/>'
    )
    shapes.append(f"<g><title>{escape(told)}</title>{rectangle}{label}</g>")
    for callee in box.callees.values():
        _draw(callee, x, y + ROW, scale, total, shapes)
        x += callee.micros * scale


def _color(name: str) -> str:
    """Ours warm, others cool; the same name always the same."""
    shade = zlib.crc32(name.encode()) % 40
    return f"hsl({20 + shade} 85% 68%)" if name.startswith("holdfast.") else f"hsl({190 + shade} 35% 78%)"
