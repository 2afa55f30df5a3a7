"""All that a command found, as a table for people or as JSON."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.bench.measure import Figures, Measure

HEADINGS = ("measure", "database", "subject", "median", "min", "max", "n", "unit")
WORDS = (0, 1, 2, 7)
FEWEST = 3


@dataclass(slots=True)
class Line:
    """All repetitions of one figure."""

    database: str
    subject: str
    figure: str
    values: list[float] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def median(self) -> float:
        return statistics.median(self.values)


@dataclass(frozen=True, slots=True)
class Ratio:
    """One median divided by another of the same database and figure."""

    database: str
    figure: str
    of: str
    to: str
    ratio: float


class Report:
    """Everything that one command found."""

    def __init__(self, measure: Measure, about: dict[str, Any], settings: dict[str, Any]) -> None:
        self._measure = measure
        self._about = about
        self._settings = settings
        self._lines: dict[tuple[str, str, str], Line] = {}
        self._failures: dict[tuple[str, str], str] = {}

    @property
    def failed(self) -> bool:
        return bool(self._failures) or not self._lines

    def add(self, database: str, subject: str, figures: Figures, details: dict[str, Any] | None = None) -> None:
        for figure, value in figures.items():
            place = (database, subject, figure)
            line = self._lines.setdefault(place, Line(*place, details=details or {}))
            line.values.append(value)

    def fail(self, database: str, subject: str, why: str) -> None:
        self._failures[database, subject] = why

    def has_failed(self, database: str, subject: str) -> bool:
        return (database, subject) in self._failures

    def ratios(self) -> list[Ratio]:
        subjects = list(dict.fromkeys(line.subject for line in self._lines.values()))
        pairs = [
            (self._lines[database, of, figure], self._lines[database, to, figure])
            for of, to in self._measure.compared(subjects)
            for database, subject, figure in self._lines
            if subject == of and (database, to, figure) in self._lines
        ]
        return [
            Ratio(top.database, top.figure, top.subject, bottom.subject, top.median / bottom.median)
            for top, bottom in pairs
            if bottom.median > 0
        ]

    # JSON

    def as_json(self) -> str:
        content = {
            "measure": self._measure.name,
            "about": self._about,
            "settings": self._settings,
            "results": [self._as_object(line) for line in self._lines.values()],
            "ratios": [
                {"database": r.database, "figure": r.figure, "of": r.of, "to": r.to, "ratio": r.ratio}
                for r in self.ratios()
            ],
            "failures": [
                {"database": database, "subject": subject, "why": why}
                for (database, subject), why in self._failures.items()
            ],
        }
        return json.dumps(content, indent=2)

    def _as_object(self, line: Line) -> dict[str, Any]:
        return {
            "database": line.database,
            "subject": line.subject,
            "figure": line.figure,
            "unit": self._measure.unit,
            "median": line.median,
            "min": min(line.values),
            "max": max(line.values),
            "n": len(line.values),
            "values": line.values,
            **line.details,
        }

    # The table

    def as_table(self) -> str:
        rows = [HEADINGS, *[self._as_row(line) for line in sorted(self._lines.values(), key=_order)]]
        widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
        parts = [[_aligned(row, widths) for row in rows], self._ratio_lines(), self._failure_lines(), self._notes()]
        return "\n\n".join("\n".join(part) for part in parts if part)

    def _as_row(self, line: Line) -> tuple[str, ...]:
        return (
            f"{self._measure.name} {line.figure}".strip(),
            line.database,
            line.subject,
            _number(line.median),
            _number(min(line.values)),
            _number(max(line.values)),
            str(len(line.values)),
            self._measure.unit,
        )

    def _ratio_lines(self) -> list[str]:
        return [
            f"{r.database}: {r.of} / {r.to}{f', {r.figure}' if r.figure else ''}: {r.ratio:.2f}" for r in self.ratios()
        ]

    def _failure_lines(self) -> list[str]:
        return [f"failed: {subject}, {database}: {why}" for (database, subject), why in self._failures.items()]

    def _notes(self) -> list[str]:
        notes = [f"{name}: {_flat(value)}" for name, value in self._about.items()]
        notes.append(f"settings: {_flat(self._settings)}")
        if self._settings["quick"] or self._settings["reps"] < FEWEST:
            notes.append(f"not to be published: --quick, or fewer than {FEWEST} repetitions")
        return notes


def _order(line: Line) -> tuple[str, str]:
    return (line.figure, line.database)


def _flat(value: Any) -> str:
    return ", ".join(f"{name} {each}" for name, each in value.items()) if isinstance(value, dict) else str(value)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def _aligned(row: Sequence[str], widths: Sequence[int]) -> str:
    """Words to the left, numbers to the right."""
    cells = [
        cell.ljust(width) if column in WORDS else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
    return "  ".join(cells).rstrip()
