"""The metrics that applications and workers record in their own process.

Names are OpenTelemetry's; Prometheus replaces dots by underscores, appends the unit and, for counters, `_total`.
Metrics computed from the database are served by the dashboard.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple, Protocol, TypeAlias

Kind: TypeAlias = Literal["counter", "histogram", "gauge"]
ReadGauges: TypeAlias = Callable[[], Mapping[str, float]]

DURATION_BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0, 300.0)
SIZE_BUCKETS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0)


class MetricDefinition(NamedTuple):
    """Name, kind, unit, labels and description of a metric."""

    name: str
    kind: Kind
    unit: str
    labels: tuple[str, ...]
    help: str

    @property
    def prometheus(self) -> str:
        """The name in Prometheus, without the suffix that its client appends to counters."""
        plain = self.name.replace(".", "_")
        return f"{plain}_seconds" if self.unit == "s" else plain

    @property
    def buckets(self) -> tuple[float, ...]:
        return DURATION_BUCKETS_S if self.unit == "s" else SIZE_BUCKETS


_DEFINITIONS: tuple[tuple[str, Kind, str, tuple[str, ...], str], ...] = (
    ("holdfast.runs.enqueued", "counter", "{run}", ("task",), "Runs enqueued."),
    ("holdfast.runs.claimed", "counter", "{run}", ("task",), "Runs claimed by the worker."),
    ("holdfast.claim.duration", "histogram", "s", (), "Duration of claims that returned runs."),
    ("holdfast.attempts", "counter", "{attempt}", ("task", "outcome"), "Finished attempts."),
    ("holdfast.attempt.duration", "histogram", "s", ("task",), "Execution time of task code per attempt."),
    ("holdfast.steps", "counter", "{step}", ("task", "outcome"), "Executed steps, without replayed ones."),
    ("holdfast.step.duration", "histogram", "s", ("task",), "Duration of steps, including retries."),
    ("holdfast.commit.duration", "histogram", "s", (), "Time until a batch of commands was durable."),
    ("holdfast.commit.size", "histogram", "{command}", (), "Commands per batch."),
    ("holdfast.slots", "gauge", "{slot}", (), "Maximum number of concurrent runs of the worker."),
    ("holdfast.slots.busy", "gauge", "{slot}", (), "Slots in use."),
    ("holdfast.backlog", "gauge", "{command}", (), "Commands that aren't durable yet."),
    ("holdfast.loop.lag", "gauge", "s", (), "How long the event loop has been blocked."),
    ("holdfast.threads.lost", "gauge", "{thread}", (), "Threads lost to code that ignored its timeout."),
    ("holdfast.failure_hooks.pending", "gauge", "{run}", (), "Failed runs with unfinished on_failure hooks."),
)
METRICS = {definition[0]: MetricDefinition(*definition) for definition in _DEFINITIONS}


class MetricBackend(Protocol):
    """A library that records measurements."""

    def measure(self, metric: str, value: float, labels: Mapping[str, str]) -> None: ...


class GaugeRegistry:
    """The gauges of this process: the sum over its workers."""

    def __init__(self) -> None:
        self._read: list[ReadGauges] = []
        self._lock = threading.Lock()

    def add(self, read: ReadGauges) -> None:
        with self._lock:
            self._read.append(read)

    def remove(self, read: ReadGauges) -> None:
        with self._lock:
            if read in self._read:
                self._read.remove(read)

    def total(self, metric: str) -> float:
        with self._lock:
            return sum(read()[metric] for read in self._read)


GAUGES = GaugeRegistry()
