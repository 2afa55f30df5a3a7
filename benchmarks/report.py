"""Collect results and present them as a table and as JSON."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from benchmarks.benchmark import HOLDFAST, Benchmark, MetricKey, Metrics
from benchmarks.targets import Target, find_target

HEADINGS = ("benchmark", "database", "subject", "median", "min", "max", "n", "unit")
RATIO_HEADINGS = ("ratio", "database", "measured", "target", "")
MIN_REPETITIONS = 3


@dataclass(slots=True)
class Series:
    """All repetitions of one metric."""

    key: MetricKey
    values: list[float] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def median(self) -> float:
        return statistics.median(self.values)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The ratio of two medians on the same database, or a single median (`to` is None) that has a target."""

    of: MetricKey
    to: MetricKey | None
    value: float
    target: Target | None

    @property
    def title(self) -> str:
        metric = f", {self.of.metric}" if self.of.metric else ""
        if self.to is None:
            return f"{self.of.subject}{metric}"
        if self.to.metric != self.of.metric:
            return f"{self.of.subject}{metric} / {self.to.subject}, {self.to.metric}"
        return f"{self.of.subject} / {self.to.subject}{metric}"

    @property
    def verdict(self) -> str:
        if self.target is None:
            return ""
        return "ok" if self.target.is_met(self.value) else "short"


class Report:
    """The results of one benchmark."""

    def __init__(self, benchmark: Benchmark, settings: dict[str, Any]) -> None:
        self.benchmark = benchmark
        self._settings = settings
        self._series: dict[MetricKey, Series] = {}
        self._failures: dict[tuple[str, str, str], str] = {}
        self._skipped: dict[str, str] = {}

    @property
    def failed(self) -> bool:
        return bool(self._failures) or not self._series

    @property
    def publishable(self) -> bool:
        enough = all(len(series.values) >= MIN_REPETITIONS for series in self._series.values())
        return enough and not (self._settings["quick"] or self._settings.get("profiled"))

    def add(self, database: str, subject: str, metrics: Metrics, details: dict[str, Any] | None = None) -> None:
        for metric, value in metrics.items():
            key = MetricKey(database, subject, metric)
            self._series.setdefault(key, Series(key, details=details or {})).values.append(value)

    def add_failure(self, database: str, subject: str, why: str, variant: str = "") -> None:
        self._failures[database, subject, variant] = why

    def has_failed(self, database: str, subject: str, variant: str = "") -> bool:
        return (database, subject, variant) in self._failures

    def skip_peer(self, peer: str, why: str) -> None:
        self._skipped[peer] = why

    def comparisons(self) -> list[Comparison]:
        name, series = self.benchmark.name, self._series
        ratios = [
            Comparison(of, to, series[of].median / series[to].median, find_target(name, of, to))
            for of, to in self.benchmark.pairs_to_compare(list(series))
            if series[to].median > 0
        ]
        targets = [(key, find_target(name, key, None)) for key in series]
        return [*ratios, *[Comparison(key, None, series[key].median, target) for key, target in targets if target]]

    # JSON

    def as_data(self) -> dict[str, Any]:
        return {
            "benchmark": self.benchmark.name,
            "settings": self._settings,
            "publishable": self.publishable,
            "results": [self._result(series) for series in self._series.values()],
            "ratios": [self._ratio(comparison) for comparison in self.comparisons()],
            "failures": [
                {"database": database, "subject": subject, "variant": variant, "why": why}
                for (database, subject, variant), why in self._failures.items()
            ],
            "skipped": self._skipped,
        }

    def _result(self, series: Series) -> dict[str, Any]:
        return {
            "database": series.key.database,
            "subject": series.key.subject,
            "metric": series.key.metric,
            "unit": self.benchmark.unit_of(series.key.metric),
            "median": series.median,
            "min": min(series.values),
            "max": max(series.values),
            "n": len(series.values),
            "values": series.values,
            **series.details,
        }

    def _ratio(self, comparison: Comparison) -> dict[str, Any]:
        of, to, target = comparison.of, comparison.to, comparison.target
        return {
            "database": of.database,
            "metric": of.metric,
            "of": of.subject,
            "to": to.subject if to else None,
            "to_metric": to.metric if to else None,
            "title": comparison.title,
            "ratio": comparison.value,
            "target": target.text if target else None,
            "verdict": comparison.verdict or None,
        }

    # Table

    def as_table(self) -> str:
        ordered = sorted(self._series.values(), key=self._sort_key)
        sections = [
            format_table([HEADINGS, *map(self._row, ordered)], left_aligned=(0, 1, 2, 7)),
            format_table([RATIO_HEADINGS, *map(self._ratio_row, self.comparisons())], left_aligned=(0, 1, 4)),
            self._failure_lines(),
            self._notes(),
        ]
        return "\n\n".join("\n".join(section) for section in sections if section)

    def _sort_key(self, series: Series) -> tuple[int, str, bool]:
        """Sort by metric and database, Holdfast before its peers."""
        metrics = list(dict.fromkeys(key.metric for key in self._series))
        return metrics.index(series.key.metric), series.key.database, series.key.subject != HOLDFAST

    def _row(self, series: Series) -> tuple[str, ...]:
        key = series.key
        return (
            f"{self.benchmark.name}, {key.metric}" if key.metric else self.benchmark.name,
            key.database,
            key.subject,
            *map(format_number, (series.median, min(series.values), max(series.values))),
            str(len(series.values)),
            self.benchmark.unit_of(key.metric),
        )

    def _ratio_row(self, comparison: Comparison) -> tuple[str, ...]:
        target = comparison.target.text if comparison.target else ""
        return comparison.title, comparison.of.database, f"{comparison.value:.2f}", target, comparison.verdict

    def _failure_lines(self) -> list[str]:
        failed = [
            f"failed: {', '.join(word for word in (subject, variant, database) if word)}: {why}"
            for (database, subject, variant), why in self._failures.items()
        ]
        return [*failed, *[f"skipped: {peer}: {why}" for peer, why in self._skipped.items()]]

    def _notes(self) -> list[str]:
        notes = [f"settings: {format_value(self._settings)}"]
        if not self.publishable:
            notes.append(f"not publishable: --quick, --profile, or fewer than {MIN_REPETITIONS} repetitions")
        return notes


@dataclass(slots=True)
class Results:
    """The reports of one command and the environment in which they were taken."""

    environment: dict[str, Any]
    reports: list[Report] = field(default_factory=list)
    date: str = field(default_factory=lambda: datetime.now(UTC).date().isoformat())

    @property
    def failed(self) -> bool:
        return any(report.failed for report in self.reports)

    def as_data(self) -> dict[str, Any]:
        benchmarks = [report.as_data() for report in self.reports]
        return {"date": self.date, "environment": self.environment, "benchmarks": benchmarks}

    def as_json(self) -> str:
        return json.dumps(self.as_data(), indent=2)

    def as_table(self) -> str:
        environment = [
            f"{name}: {format_value(value)}" for name, value in {"date": self.date, **self.environment}.items()
        ]
        return "\n\n\n".join([*[report.as_table() for report in self.reports], "\n".join(environment)])


def format_value(value: Any) -> str:
    return ", ".join(f"{name} {each}" for name, each in value.items()) if isinstance(value, dict) else str(value)


def format_number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def format_table(rows: Sequence[Sequence[str]], left_aligned: Sequence[int]) -> list[str]:
    """Align the columns. Returns nothing if there are only headings."""
    if len(rows) == 1:
        return []
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(_align(row, widths, left_aligned)).rstrip() for row in rows]


def _align(row: Sequence[str], widths: Sequence[int], left_aligned: Sequence[int]) -> list[str]:
    return [
        cell.ljust(width) if column in left_aligned else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
