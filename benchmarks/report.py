"""All that a measure found: lines, comparisons, what failed. As a table for people and as plain data for JSON."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.goals import Goal, goal_of
from benchmarks.measure import OURS, Figures, Measure, Place

HEADINGS = ("measure", "database", "subject", "median", "min", "max", "n", "unit")
COMPARED = ("compared", "database", "measured", "must reach", "")
FEWEST = 3


@dataclass(slots=True)
class Line:
    """All repetitions of one figure."""

    place: Place
    values: list[float] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def median(self) -> float:
        return statistics.median(self.values)


@dataclass(frozen=True, slots=True)
class Comparison:
    """One median divided by another of the same database; or, where a goal is about it, a median itself."""

    of: Place
    to: Place | None
    value: float
    goal: Goal | None

    @property
    def title(self) -> str:
        figure = f", {self.of.figure}" if self.of.figure else ""
        if self.to is None:
            return f"{self.of.subject}{figure}"
        if self.to.figure != self.of.figure:
            return f"{self.of.subject}{figure} / {self.to.subject}, {self.to.figure}"
        return f"{self.of.subject} / {self.to.subject}{figure}"

    @property
    def verdict(self) -> str:
        if self.goal is None:
            return ""
        return "ok" if self.goal.reached(self.value) else "short"


class Report:
    """Everything that was found of one measure."""

    def __init__(self, measure: Measure, settings: dict[str, Any]) -> None:
        self.measure = measure
        self._settings = settings
        self._lines: dict[Place, Line] = {}
        self._failures: dict[tuple[str, str, str], str] = {}
        self._unavailable: dict[str, str] = {}

    @property
    def failed(self) -> bool:
        return bool(self._failures) or not self._lines

    @property
    def publishable(self) -> bool:
        enough = all(len(line.values) >= FEWEST for line in self._lines.values())
        return enough and not (self._settings["quick"] or self._settings.get("profiled"))

    def add(self, database: str, subject: str, figures: Figures, details: dict[str, Any] | None = None) -> None:
        for figure, value in figures.items():
            place = Place(database, subject, figure)
            self._lines.setdefault(place, Line(place, details=details or {})).values.append(value)

    def fail(self, database: str, subject: str, why: str, part: str = "") -> None:
        self._failures[database, subject, part] = why

    def has_failed(self, database: str, subject: str, part: str = "") -> bool:
        return (database, subject, part) in self._failures

    def leave_out(self, peer: str, why: str) -> None:
        """A peer that can't be measured here."""
        self._unavailable[peer] = why

    def comparisons(self) -> list[Comparison]:
        name, known = self.measure.name, list(self._lines)
        ratios = [
            Comparison(top, bottom, self._lines[top].median / self._lines[bottom].median, goal_of(name, top, bottom))
            for top, bottom in self.measure.compared(known)
            if self._lines[bottom].median > 0
        ]
        goals = [(place, goal_of(name, place, None)) for place in known]
        return [*ratios, *[Comparison(place, None, self._lines[place].median, goal) for place, goal in goals if goal]]

    # Plain data

    def as_data(self) -> dict[str, Any]:
        return {
            "measure": self.measure.name,
            "settings": self._settings,
            "publishable": self.publishable,
            "results": [self._result(line) for line in self._lines.values()],
            "ratios": [self._ratio(comparison) for comparison in self.comparisons()],
            "failures": [
                {"database": database, "subject": subject, "part": part, "why": why}
                for (database, subject, part), why in self._failures.items()
            ],
            "not measured": self._unavailable,
        }

    def _result(self, line: Line) -> dict[str, Any]:
        return {
            "database": line.place.database,
            "subject": line.place.subject,
            "figure": line.place.figure,
            "unit": self.measure.unit_of(line.place.figure),
            "median": line.median,
            "min": min(line.values),
            "max": max(line.values),
            "n": len(line.values),
            "values": line.values,
            **line.details,
        }

    def _ratio(self, found: Comparison) -> dict[str, Any]:
        return {
            "database": found.of.database,
            "figure": found.of.figure,
            "of": found.of.subject,
            "to": found.to.subject if found.to else None,
            "to_figure": found.to.figure if found.to else None,
            "title": found.title,
            "ratio": found.value,
            "must": found.goal.shown if found.goal else None,
            "verdict": found.verdict or None,
        }

    # The table

    def as_table(self) -> str:
        order = sorted(self._lines.values(), key=self._order)
        parts = [
            table([HEADINGS, *map(self._row, order)], words=(0, 1, 2, 7)),
            table([COMPARED, *map(self._compared_row, self.comparisons())], words=(0, 1, 4)),
            self._failure_lines(),
            self._notes(),
        ]
        return "\n\n".join("\n".join(part) for part in parts if part)

    def _order(self, line: Line) -> tuple[int, str, bool]:
        """Ours before the others."""
        figures = list(dict.fromkeys(place.figure for place in self._lines))
        return figures.index(line.place.figure), line.place.database, line.place.subject != OURS

    def _row(self, line: Line) -> tuple[str, ...]:
        place = line.place
        return (
            f"{self.measure.name}, {place.figure}" if place.figure else self.measure.name,
            place.database,
            place.subject,
            *map(number, (line.median, min(line.values), max(line.values))),
            str(len(line.values)),
            self.measure.unit_of(place.figure),
        )

    def _compared_row(self, found: Comparison) -> tuple[str, ...]:
        must = found.goal.shown if found.goal else ""
        return found.title, found.of.database, f"{found.value:.2f}", must, found.verdict

    def _failure_lines(self) -> list[str]:
        failed = [
            f"failed: {', '.join(word for word in (subject, part, database) if word)}: {why}"
            for (database, subject, part), why in self._failures.items()
        ]
        return [*failed, *[f"not measured: {peer}: {why}" for peer, why in self._unavailable.items()]]

    def _notes(self) -> list[str]:
        notes = [f"settings: {flat(self._settings)}"]
        if not self.publishable:
            notes.append(f"not to be published: --quick, --profile, or fewer than {FEWEST} repetitions")
        return notes


def flat(value: Any) -> str:
    return ", ".join(f"{name} {each}" for name, each in value.items()) if isinstance(value, dict) else str(value)


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def table(rows: Sequence[Sequence[str]], words: Sequence[int]) -> list[str]:
    """Words to the left, numbers to the right. The headings alone are no table."""
    if len(rows) == 1:
        return []
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(_aligned(row, widths, words)).rstrip() for row in rows]


def _aligned(row: Sequence[str], widths: Sequence[int], words: Sequence[int]) -> list[str]:
    return [
        cell.ljust(width) if column in words else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
