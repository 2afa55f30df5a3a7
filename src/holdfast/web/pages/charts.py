"""Compute charts of statistics: columns of finished runs, lines of percentiles. Coordinates only; no markup."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

from starlette.datastructures import QueryParams

from holdfast.control.stats import Stats, StatsSeries
from holdfast.web.pages.formats import duration, number, utc

WIDTH = 600.0
HEIGHT = 120.0


class Period(NamedTuple):
    """How far back charts go."""

    name: str
    label: str
    last: timedelta
    per: str
    """What a column of a chart stands for."""


PERIODS = (
    Period("hour", "Last hour", timedelta(hours=1), "minute"),
    Period("day", "Last day", timedelta(days=1), "hour"),
    Period("week", "Last week", timedelta(days=7), "hour"),
)


def chosen_period(query: QueryParams) -> Period:
    """Return the period that an address names; the last hour if it names none."""
    return next((each for each in PERIODS if each.name == query.get("last")), PERIODS[0])


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
    """A line through the intervals that have a value, with gaps at the others."""

    name: str
    path: str
    whole: float | None
    """The value of the whole period, in seconds."""


@dataclass(frozen=True, slots=True)
class LineChart:
    """Percentiles over time, with the values of each interval as text."""

    title: str
    lines: list[ChartLine]
    highest: str
    hints: list[ChartColumn]


@dataclass(frozen=True, slots=True)
class Charts:
    """The charts of a period: finished runs, durations and waiting times."""

    period: Period
    whole: Stats
    columns: list[ChartColumn]
    most: str
    runs: LineChart
    waits: LineChart

    @property
    def is_empty(self) -> bool:
        return not self.whole.runs


def build_charts(period: Period, series: StatsSeries) -> Charts:
    """Build the charts of consecutive intervals, oldest first."""
    some = series.intervals
    most = _round_up(max((each.runs for each in some), default=0))
    width = WIDTH / max(len(some), 1)
    columns = []
    for at, each in enumerate(some):
        good, bad = (HEIGHT * part / most for part in (each.runs - each.failed, each.failed))
        title = f"{number(each.runs)} finished, {number(each.failed)} failed, from {utc(each.since)}"
        columns.append(ChartColumn(*_place(at, width), round(good, 1), round(bad, 1), title))
    runs = _percentiles("Duration", series.whole, some, width, "run")
    waits = _percentiles("Wait for a worker", series.whole, some, width, "wait")
    return Charts(period, series.whole, columns, number(most), runs, waits)


def _percentiles(title: str, whole: Stats, some: Sequence[Stats], width: float, of: str) -> LineChart:
    names = ("p50", "p95", "p99")
    values = {name: [getattr(getattr(each, of), name) for each in some] for name in names}
    highest_ms = max((value for each in values.values() for value in each if value is not None), default=0.0) * 1000
    highest = _round_up(highest_ms) / 1000
    lines = [ChartLine(name, _path(values[name], width, highest), getattr(getattr(whole, of), name)) for name in names]
    hints = [
        ChartColumn(*_place(at, width), HEIGHT, 0, _hint({name: values[name][at] for name in names}, each))
        for at, each in enumerate(some)
        if each.runs
    ]
    return LineChart(title, lines, duration(highest), hints)


def _hint(values: Mapping[str, float | None], at: Stats) -> str:
    return ", ".join(f"{name} {duration(value)}" for name, value in values.items()) + f", from {utc(at.since)}"


def _place(at: int, width: float) -> tuple[float, float]:
    """Return where a column starts, and its width."""
    return round(at * width, 1), round(max(width - 1.5, 1), 1)


def _path(values: Sequence[float | None], width: float, highest: float) -> str:
    """Return the path of a line. A value without neighbors is a dash as wide as its interval."""
    path = []
    is_drawing = False
    for at, value in enumerate(values):
        if value is not None:
            is_alone = not is_drawing and (at + 1 == len(values) or values[at + 1] is None)
            x, y = (at + (0 if is_alone else 0.5)) * width, HEIGHT - HEIGHT * value / highest
            path.append(f"{'L' if is_drawing else 'M'}{x:.1f} {y:.1f}" + (f"h{width:.1f}" if is_alone else ""))
        is_drawing = value is not None
    return "".join(path)


def _round_up(value: float) -> float:
    """Round up to the next 1, 2 or 5 times a power of ten."""
    if value <= 1:
        return 1
    size = 10 ** math.floor(math.log10(value))
    return float(next(step * size for step in (1, 2, 5, 10) if value <= step * size))
