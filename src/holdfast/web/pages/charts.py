"""Compute the overview's charts: columns of finished runs, lines of p95 durations. Coordinates only; no markup."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.control.stats import Stats
from holdfast.web.pages.formats import duration, number, utc

WIDTH = 600.0
HEIGHT = 120.0


@dataclass(frozen=True, slots=True)
class ChartColumn:
    """Runs that finished within one interval: successful ones at the bottom, failed ones on top."""

    x: float
    width: float
    good: float
    bad: float
    title: str


@dataclass(frozen=True, slots=True)
class ChartLine:
    """A line through the intervals that have a value."""

    kind: str
    points: str

    @property
    def is_point(self) -> bool:
        """Whether the line is a single point, which is drawn larger."""
        return len(set(self.points.split())) == 1


@dataclass(frozen=True, slots=True)
class OverviewCharts:
    """Both charts, with the labels of their upper bounds."""

    columns: list[ChartColumn]
    max_runs: str
    lines: list[ChartLine]
    max_duration: str
    empty: bool


def build_charts(stats: Sequence[Stats]) -> OverviewCharts:
    """Build the charts of consecutive intervals, oldest first."""
    max_runs = _round_up(max((each.runs for each in stats), default=0))
    times = [time for each in stats for time in (each.wait.p95, each.run.p95) if time is not None]
    max_duration = _round_up(max(times, default=0.0) * 1000) / 1000
    width = WIDTH / max(len(stats), 1)
    columns = []
    for at, each in enumerate(stats):
        good, bad = (HEIGHT * part / max_runs for part in (each.runs - each.failed, each.failed))
        title = f"{number(each.runs)} finished, {number(each.failed)} failed, from {utc(each.since)}"
        columns.append(
            ChartColumn(round(at * width, 1), round(max(width - 1.5, 1), 1), round(good, 1), round(bad, 1), title)
        )
    lines = [
        ChartLine("wait", _points([each.wait.p95 for each in stats], width, max_duration)),
        ChartLine("run", _points([each.run.p95 for each in stats], width, max_duration)),
    ]
    return OverviewCharts(
        columns, number(max_runs), lines, duration(max_duration), not any(each.runs for each in stats)
    )


def _points(values: Sequence[float | None], width: float, max_value: float) -> str:
    points = [
        f"{(at + 0.5) * width:.1f},{HEIGHT - HEIGHT * value / max_value:.1f}"
        for at, value in enumerate(values)
        if value is not None
    ]
    return " ".join(points * 2 if len(points) == 1 else points)  # a line from a point to itself is a dot


def _round_up(value: float) -> float:
    """Round up to the next 1, 2 or 5 times a power of ten."""
    if value <= 1:
        return 1
    size = 10 ** math.floor(math.log10(value))
    return float(next(step * size for step in (1, 2, 5, 10) if value <= step * size))
