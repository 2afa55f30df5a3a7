"""The targets that Holdfast's results are compared with."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.benchmark import HOLDFAST, MetricKey
from benchmarks.databases import PostgresBackend, SqliteBackend

POSTGRES, SQLITE = PostgresBackend.name, SqliteBackend.name


@dataclass(frozen=True, slots=True)
class Target:
    """A threshold for a ratio, or for a metric itself if `to` is None. Other fields that are None match anything."""

    benchmark: str
    database: str | None
    metric: str | None
    to: str | None
    threshold: float
    subject: str = HOLDFAST
    to_metric: str | None = None
    at_most: bool = False

    def is_met(self, value: float) -> bool:
        return value <= self.threshold if self.at_most else value >= self.threshold

    @property
    def text(self) -> str:
        return f"{'at most ' if self.at_most else ''}{self.threshold:g}"

    def applies_to(self, benchmark: str, of: MetricKey, to: MetricKey | None) -> bool:
        """Tell whether this target is about the ratio of `of` to `to`, or about `of` itself if `to` is None."""
        if (self.to is None) != (to is None) or benchmark != self.benchmark or of.subject != self.subject:
            return False
        if self.database not in (None, of.database) or self.metric not in (None, of.metric):
            return False
        return to is None or (to.subject == self.to and to.metric == (self.to_metric or of.metric))


TARGETS = (
    Target("jobs", POSTGRES, "1 worker", "pgqueuer", 1.5),
    Target("jobs", POSTGRES, "1 worker", "raw", 0.55),
    Target("jobs", POSTGRES, "2 workers", "pgqueuer", 1.3),
    Target("jobs", SQLITE, "1 worker", "raw", 0.5),
    Target("steps", POSTGRES, "500 at once", "absurd", 30),
    Target("steps", POSTGRES, "500 at once", "dbos", 80),
    Target("steps", POSTGRES, "500 at once", "raw", 0.5),
    Target("steps", SQLITE, "500 at once", "dbos", 80),
    Target("steps", SQLITE, "500 at once", "raw", 0.35),
    Target("steps", POSTGRES, "alone", "raw", 0.6),
    Target("latency", POSTGRES, "p50", "pgqueuer", 1.3, at_most=True),
    Target("latency", POSTGRES, "p99", "pgqueuer", 1.3, at_most=True),
    Target("continuations", None, "child call", HOLDFAST, 4, to_metric="step", at_most=True),
    Target("continuations", None, "spawn and join", HOLDFAST, 1, to_metric="step", at_most=True),
    Target("continuations", None, "machine move", HOLDFAST, 1.5, to_metric="step", at_most=True),
    Target("continuations", None, "graph node", HOLDFAST, 2, to_metric="step", at_most=True),
    Target("continuations", None, "result", HOLDFAST, 3, to_metric="step", at_most=True),
    Target("continuations", None, "emit to wake", HOLDFAST, 3, to_metric="step", at_most=True),
    Target("continuations", None, "ask", HOLDFAST, 4, to_metric="step", at_most=True),
    Target("continuations", None, "child call", "dbos", 0.4, at_most=True),
    Target("continuations", None, "message", "dbos", 0.33, at_most=True),
    Target("continuations", None, "result", "dbos", 0.67, at_most=True),
    Target("agents", POSTGRES, "added", None, 3, at_most=True),
    Target("enqueue", POSTGRES, "one by one", "pgqueuer", 0.8),
    Target("enqueue", POSTGRES, "100 at once", "pgqueuer", 5, to_metric="one by one"),
    Target("enqueue", POSTGRES, "bulk", "pgqueuer", 1.0),
    Target("growth", None, None, "empty", 0.9, subject="ready"),
    Target("growth", None, None, "empty", 0.9, subject="finished"),
    Target("growth", None, None, "empty", 0.9, subject="sleeping"),
    Target("scale", None, None, "small", 1.25, subject="large", at_most=True),
    Target("limits", None, None, "no limit", 0.6, subject="one limit"),
    Target("limits", None, None, "no limit", 0.6, subject="by key"),
    Target("flow", None, None, "one by one", 5, subject="batches of 100"),
    Target("logs", None, None, "only in a file", 0.9, subject="kept with the run"),
    Target("sustained", None, None, HOLDFAST, 0.85, to_metric="minute 1"),
    Target("memory", None, "idle worker", None, 60, at_most=True),
    Target("memory", None, "import", None, 150, at_most=True),
    Target("workers", POSTGRES, "32 workers", HOLDFAST, 0.8, to_metric="4 workers"),
    Target("workers", POSTGRES, "4 busy, 196 idle", HOLDFAST, 0.8, to_metric="4 workers"),
    Target("workers", POSTGRES, "connections of an idle worker", None, 2, at_most=True),
    Target("workers", POSTGRES, "connections of a busy worker", None, 3, at_most=True),
    Target("workers", None, "CPU of an idle worker", None, 0.3, at_most=True),
    Target("pages", None, None, None, 100, at_most=True),
)


def find_target(benchmark: str, of: MetricKey, to: MetricKey | None) -> Target | None:
    return next((target for target in TARGETS if target.applies_to(benchmark, of, to)), None)
