"""Every metric that applications and workers count themselves. What is counted in the database is the dashboard's.

One name for each, as OpenTelemetry writes it; Prometheus has underscores for its dots, its unit at its end, and
`_total` behind a counter. `docs/telemetry.md` lists them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple, Protocol, TypeAlias

Kind: TypeAlias = Literal["counter", "histogram", "gauge"]
Read: TypeAlias = Callable[[], Mapping[str, float]]

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0, 300.0)
SIZES = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0)


class MetricDefinition(NamedTuple):
    """A name, what it counts, in which unit, and by which labels."""

    name: str
    kind: Kind
    unit: str
    labels: tuple[str, ...]
    help: str

    @property
    def prometheus(self) -> str:
        """Its name for Prometheus, without the ending that the client gives to counters."""
        plain = self.name.replace(".", "_")
        return f"{plain}_seconds" if self.unit == "s" else plain

    @property
    def buckets(self) -> tuple[float, ...]:
        return SECONDS if self.unit == "s" else SIZES


METRICS = {
    metric.name: metric
    for metric in (
        MetricDefinition(
            "holdfast.runs.enqueued", "counter", "{run}", ("task",), "Runs asked for with enqueue and the like."
        ),
        MetricDefinition("holdfast.runs.claimed", "counter", "{run}", ("task",), "Runs that the worker took."),
        MetricDefinition(
            "holdfast.claim.duration", "histogram", "s", (), "How long a claim took that found something."
        ),
        MetricDefinition("holdfast.attempts", "counter", "{attempt}", ("task", "outcome"), "Attempts that were over."),
        MetricDefinition("holdfast.attempt.duration", "histogram", "s", ("task",), "How long author code was at it."),
        MetricDefinition(
            "holdfast.steps", "counter", "{step}", ("task", "outcome"), "Steps that were run, not replayed."
        ),
        MetricDefinition(
            "holdfast.step.duration", "histogram", "s", ("task",), "How long a step took, with its retries."
        ),
        MetricDefinition(
            "holdfast.commit.duration", "histogram", "s", (), "How long a group of commands took to be durable."
        ),
        MetricDefinition("holdfast.commit.size", "histogram", "{command}", (), "How many commands a group had."),
        MetricDefinition("holdfast.slots", "gauge", "{slot}", (), "How many runs the worker may have at once."),
        MetricDefinition("holdfast.slots.busy", "gauge", "{slot}", (), "How many it has."),
        MetricDefinition("holdfast.backlog", "gauge", "{command}", (), "Commands that aren't durable yet."),
        MetricDefinition("holdfast.loop.lag", "gauge", "s", (), "For how long the event loop has been blocked."),
        MetricDefinition(
            "holdfast.threads.lost", "gauge", "{thread}", (), "Threads lost to code that ignored its timeout."
        ),
        MetricDefinition(
            "holdfast.failure_hooks.pending", "gauge", "{run}", (), "Failed runs with unfinished on_failure hooks."
        ),
    )
}


class MetricBackend(Protocol):
    """A library that takes what is measured."""

    def measure(self, metric: str, value: float, labels: Mapping[str, str]) -> None: ...


class GaugeRegistry:
    """The workers of this process, asked for what their gauges show: their sum."""

    def __init__(self) -> None:
        self._read: list[Read] = []
        self._lock = threading.Lock()

    def add(self, read: Read) -> None:
        with self._lock:
            self._read.append(read)

    def remove(self, read: Read) -> None:
        with self._lock:
            if read in self._read:
                self._read.remove(read)

    def total(self, metric: str) -> float:
        with self._lock:
            return sum(read()[metric] for read in self._read)


GAUGES = GaugeRegistry()
