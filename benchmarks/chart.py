"""Draws figures as bars: a panel per figure that has more than one subject, as far as it is about speed."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from benchmarks.measure import OURS
from benchmarks.peers.catalog import PEERS
from benchmarks.report import number
from benchmarks.svg import svg

WIDTH = 760
LABELS = 130
BAR = 18
STEP = 24
HEAD = 34
GAP = 14
WIDEST = WIDTH - LABELS - 120
COLORS = {OURS: "#c8501e", "raw": "#9a9a9a"}
OTHERS = "#4f7ea8"


def drawn(results: Sequence[tuple[str, dict[str, Any]]]) -> str:
    """An SVG of what several measures gave."""
    shapes: list[str] = []
    y = float(GAP)
    for title, bars in _panels(results).items():
        shapes.append(f'<text x="10" y="{y + 18:.0f}" font-weight="bold">{escape(title)}</text>')
        y += HEAD
        most = max(value for _, value in bars)
        for subject, value in bars:
            shapes += _bar(subject, value, value / most * WIDEST if most else 0.0, y)
            y += STEP
        y += GAP
    return svg(WIDTH, y, "sans-serif", 13, shapes)


def _bar(subject: str, value: float, width: float, y: float) -> list[str]:
    color = COLORS.get(subject, OTHERS)
    middle = y + BAR - 4
    return [
        f'<text x="{LABELS - 8}" y="{middle:.0f}" text-anchor="end">{escape(subject)}</text>',
        f'<rect x="{LABELS}" y="{y:.0f}" width="{max(width, 1):.1f}" height="{BAR}" fill="{color}"/>',
        f'<text x="{LABELS + max(width, 1) + 6:.0f}" y="{middle:.0f}">{number(value)}</text>',
    ]


def _panels(results: Sequence[tuple[str, dict[str, Any]]]) -> dict[str, list[tuple[str, float]]]:
    """By title, each with the subjects and their medians, we first."""
    panels: dict[str, list[tuple[str, float]]] = {}
    for measure, line in results:
        if line["subject"] in (OURS, *PEERS) and line["unit"].endswith("/s"):
            words = [measure, line["figure"], line["database"]]
            title = f"{', '.join(word for word in words if word)} ({line['unit']})"
            panels.setdefault(title, []).append((line["subject"], line["median"]))
    order = [OURS, *PEERS]
    shown = {title: sorted(bars, key=lambda bar: order.index(bar[0])) for title, bars in panels.items()}
    return {title: bars for title, bars in shown.items() if len(bars) > 1 and "minute" not in title}
