"""What Holdfast must reach, of whom: the table that every report is held against."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.hosts import PostgresHost, SqliteHost
from benchmarks.measure import OURS, Place

POSTGRES, SQLITE = PostgresHost.name, SqliteHost.name


@dataclass(frozen=True, slots=True)
class Goal:
    """A ratio to reach; without `to` a figure itself. What is None may be anything."""

    measure: str
    database: str | None
    figure: str | None
    to: str | None
    must: float
    subject: str = OURS
    to_figure: str | None = None
    at_most: bool = False

    def reached(self, value: float) -> bool:
        return value <= self.must if self.at_most else value >= self.must

    @property
    def shown(self) -> str:
        return f"{'at most ' if self.at_most else ''}{self.must:g}"

    def fits(self, measure: str, of: Place, to: Place | None) -> bool:
        """Whether it is about this figure, divided by that one."""
        if (self.to is None) != (to is None) or measure != self.measure or of.subject != self.subject:
            return False
        if self.database not in (None, of.database) or self.figure not in (None, of.figure):
            return False
        return to is None or (to.subject == self.to and to.figure == (self.to_figure or of.figure))


GOALS = (
    Goal("jobs", POSTGRES, "1 worker", "pgqueuer", 1.5),
    Goal("jobs", POSTGRES, "1 worker", "raw", 0.55),
    Goal("jobs", POSTGRES, "2 workers", "pgqueuer", 1.3),
    Goal("jobs", SQLITE, "1 worker", "raw", 0.5),
    Goal("steps", POSTGRES, "500 at once", "absurd", 30),
    Goal("steps", POSTGRES, "500 at once", "dbos", 80),
    Goal("steps", POSTGRES, "500 at once", "raw", 0.5),
    Goal("steps", SQLITE, "500 at once", "dbos", 80),
    Goal("steps", SQLITE, "500 at once", "raw", 0.35),
    Goal("steps", POSTGRES, "alone", "raw", 0.6),
    Goal("latency", POSTGRES, "p50", "pgqueuer", 1.3, at_most=True),
    Goal("latency", POSTGRES, "p99", "pgqueuer", 1.3, at_most=True),
    Goal("enqueue", POSTGRES, "one by one", "pgqueuer", 0.8),
    Goal("enqueue", POSTGRES, "100 at once", "pgqueuer", 5, to_figure="one by one"),
    Goal("enqueue", POSTGRES, "bulk", "pgqueuer", 1.0),
    Goal("growth", None, None, "empty", 0.9, subject="ready"),
    Goal("growth", None, None, "empty", 0.9, subject="finished"),
    Goal("growth", None, None, "empty", 0.9, subject="sleeping"),
    Goal("limits", None, None, "no limit", 0.6, subject="one limit"),
    Goal("limits", None, None, "no limit", 0.6, subject="by key"),
    Goal("sustained", None, None, OURS, 0.85, to_figure="minute 1"),
    Goal("memory", None, "idle worker", None, 60, at_most=True),
    Goal("memory", None, "import", None, 150, at_most=True),
    Goal("pages", POSTGRES, None, None, 100, at_most=True),
)


def goal_of(measure: str, of: Place, to: Place | None) -> Goal | None:
    return next((goal for goal in GOALS if goal.fits(measure, of, to)), None)
