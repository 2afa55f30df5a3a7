"""Small charts of how things went: bars of what ended, lines of how long it took. Only where things are, as numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.control.stats import Stats
from holdfast.web.pages.formats import exact, many, span

WIDTH = 600.0
HEIGHT = 120.0


@dataclass(frozen=True, slots=True)
class ChartColumn:
    """What ended within one span: from the bottom what went well, on top of it what failed."""

    x: float
    width: float
    good: float
    bad: float
    title: str


@dataclass(frozen=True, slots=True)
class ChartLine:
    """A line through the spans that have a value."""

    kind: str
    points: str

    @property
    def alone(self) -> bool:
        """Whether it is a single point, which is drawn larger to be seen."""
        return len(set(self.points.split())) == 1


@dataclass(frozen=True, slots=True)
class Charts:
    """Both charts of a while, and what their tops stand for."""

    columns: list[ChartColumn]
    most: str
    lines: list[ChartLine]
    longest: str
    empty: bool


def build_charts(stats: Sequence[Stats]) -> Charts:
    """The charts of spans, the oldest first."""
    top = _round_up(max((each.runs for each in stats), default=0))
    times = [time for each in stats for time in (each.wait.p95, each.run.p95) if time is not None]
    longest = _round_up(max(times, default=0.0) * 1000) / 1000
    width = WIDTH / max(len(stats), 1)
    columns = []
    for at, each in enumerate(stats):
        good, bad = (HEIGHT * part / top for part in (each.runs - each.failed, each.failed))
        title = f"{many(each.runs)} ended, {many(each.failed)} failed, from {exact(each.since)}"
        columns.append(
            ChartColumn(round(at * width, 1), round(max(width - 1.5, 1), 1), round(good, 1), round(bad, 1), title)
        )
    lines = [
        ChartLine("wait", _points([each.wait.p95 for each in stats], width, longest)),
        ChartLine("run", _points([each.run.p95 for each in stats], width, longest)),
    ]
    return Charts(columns, many(top), lines, span(longest), not any(each.runs for each in stats))


def _points(values: Sequence[float | None], width: float, longest: float) -> str:
    points = [
        f"{(at + 0.5) * width:.1f},{HEIGHT - HEIGHT * value / longest:.1f}"
        for at, value in enumerate(values)
        if value is not None
    ]
    return " ".join(points * 2 if len(points) == 1 else points)  # a line from a point to itself is a dot


def _round_up(value: float) -> float:
    """The next number above that begins with 1, 2 or 5."""
    if value <= 1:
        return 1
    size = 10 ** math.floor(math.log10(value))
    return float(next(step * size for step in (1, 2, 5, 10) if value <= step * size))
