"""Draw results as bar charts and profiles as flame graphs, in SVG."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from benchmarks.benchmark import HOLDFAST
from benchmarks.peers.catalog import PEERS
from benchmarks.report import format_number

# All sizes are in pixels.
CHART_WIDTH = 760
LABEL_WIDTH = 130
BAR_HEIGHT = 18
BAR_PITCH = 24
PANEL_TITLE_HEIGHT = 34
PANEL_GAP = 14
MAX_BAR_WIDTH = CHART_WIDTH - LABEL_WIDTH - 120
COLORS = {HOLDFAST: "#c8501e", "raw": "#9a9a9a"}
PEER_COLOR = "#4f7ea8"

FLAME_WIDTH = 1600
FRAME_HEIGHT = 17
FLAME_MARGIN = 10
FLAME_TITLE_HEIGHT = 40
MIN_FRAME_WIDTH = 0.4
LETTER_WIDTH = 6.6


def draw_bar_chart(results: Sequence[tuple[str, dict[str, Any]]]) -> str:
    """Draw a panel for each throughput metric that has more than one subject."""
    shapes: list[str] = []
    y = float(PANEL_GAP)
    for title, bars in _panels(results).items():
        shapes.append(f'<text x="10" y="{y + 18:.0f}" font-weight="bold">{escape(title)}</text>')
        y += PANEL_TITLE_HEIGHT
        largest = max(value for _, value in bars)
        for subject, value in bars:
            shapes += _bar(subject, value, value / largest * MAX_BAR_WIDTH if largest else 0.0, y)
            y += BAR_PITCH
        y += PANEL_GAP
    return _svg(CHART_WIDTH, y, "sans-serif", 13, shapes)


def _bar(subject: str, value: float, width: float, y: float) -> list[str]:
    color = COLORS.get(subject, PEER_COLOR)
    baseline = y + BAR_HEIGHT - 4
    return [
        f'<text x="{LABEL_WIDTH - 8}" y="{baseline:.0f}" text-anchor="end">{escape(subject)}</text>',
        f'<rect x="{LABEL_WIDTH}" y="{y:.0f}" width="{max(width, 1):.1f}" height="{BAR_HEIGHT}" fill="{color}"/>',
        f'<text x="{LABEL_WIDTH + max(width, 1) + 6:.0f}" y="{baseline:.0f}">{format_number(value)}</text>',
    ]


def _panels(results: Sequence[tuple[str, dict[str, Any]]]) -> dict[str, list[tuple[str, float]]]:
    """Return the subjects and medians of each panel by its title, Holdfast first."""
    panels: dict[str, list[tuple[str, float]]] = {}
    for benchmark, result in results:
        if result["subject"] in (HOLDFAST, *PEERS) and result["unit"].endswith("/s"):
            words = [benchmark, result["metric"], result["database"]]
            title = f"{', '.join(word for word in words if word)} ({result['unit']})"
            panels.setdefault(title, []).append((result["subject"], result["median"]))
    order = [HOLDFAST, *PEERS]
    ordered = {title: sorted(bars, key=lambda bar: order.index(bar[0])) for title, bars in panels.items()}
    return {title: bars for title, bars in ordered.items() if len(bars) > 1 and "minute" not in title}


@dataclass(slots=True)
class Frame:
    """A function in a flame graph, with its callees."""

    name: str
    micros: int = 0
    callees: dict[str, Frame] = field(default_factory=dict)

    def depth(self) -> int:
        return 1 + max((frame.depth() for frame in self.callees.values()), default=0)


def draw_flame_graph(stacks: Counter[tuple[str, ...]], title: str) -> str:
    """Draw a box per function, as wide as the CPU time in it and its callees, with the full name in a tooltip."""
    root = _build_tree(stacks)
    height = FLAME_TITLE_HEIGHT + root.depth() * FRAME_HEIGHT + FLAME_MARGIN
    heading = f"{title}: {root.micros / 1e6:.1f} s of CPU time"
    shapes = [f'<text x="{FLAME_MARGIN}" y="24" font-size="15">{escape(heading)}</text>']
    if root.micros:
        scale = (FLAME_WIDTH - 2 * FLAME_MARGIN) / root.micros
        _draw_frame(root, FLAME_MARGIN, FLAME_TITLE_HEIGHT, scale, root.micros, shapes)
    return _svg(FLAME_WIDTH, height, "monospace", 11, shapes)


def _build_tree(stacks: Counter[tuple[str, ...]]) -> Frame:
    root = Frame("all")
    for stack, micros in sorted(stacks.items()):
        root.micros += micros
        frame = root
        for name in stack:
            frame = frame.callees.setdefault(name, Frame(name))
            frame.micros += micros
    return root


def _draw_frame(frame: Frame, x: float, y: float, scale: float, total: int, shapes: list[str]) -> None:
    width = frame.micros * scale
    if width < MIN_FRAME_WIDTH:
        return
    letters = int((width - 4) / LETTER_WIDTH)
    tooltip = f"{frame.name}: {frame.micros / 1000:,.0f} ms, {frame.micros / total:.1%}"
    shown = frame.name if len(frame.name) <= letters else frame.name[-letters:] if letters > 3 else ""
    label = f'<text x="{x + 2:.1f}" y="{y + 12:.1f}">{escape(shown)}</text>' if shown else ""
    box = (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{FRAME_HEIGHT - 1}" rx="1"'
        f' fill="{_frame_color(frame.name)}"/>'
    )
    shapes.append(f"<g><title>{escape(tooltip)}</title>{box}{label}</g>")
    for callee in frame.callees.values():
        _draw_frame(callee, x, y + FRAME_HEIGHT, scale, total, shapes)
        x += callee.micros * scale


def _frame_color(name: str) -> str:
    """Return a warm color for Holdfast's functions and a cool one for others, always the same for a name."""
    shade = zlib.crc32(name.encode()) % 40
    return f"hsl({20 + shade} 85% 68%)" if name.startswith("holdfast.") else f"hsl({190 + shade} 35% 78%)"


def _svg(width: int, height: float, font: str, font_size: int, shapes: Sequence[str]) -> str:
    """Return an SVG document with a light background, readable on dark pages too."""
    box = f'viewBox="0 0 {width} {height:.0f}" width="{width}" height="{height:.0f}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {box} font-family="{font}" font-size="{font_size}">'
    background = f'<rect width="{width}" height="{height:.0f}" fill="#fffdf8"/>'
    return "\n".join([head, background, *shapes, "</svg>\n"])
