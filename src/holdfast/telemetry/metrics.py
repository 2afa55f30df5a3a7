"""The metrics that applications and workers record in their own process.

Names are OpenTelemetry's; Prometheus replaces dots by underscores, appends the unit and, for counters, `_total`.
Metrics computed from the database are served by the dashboard.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Literal, NamedTuple, Protocol, TypeAlias

Kind: TypeAlias = Literal["counter", "histogram", "gauge"]
ReadGauges: TypeAlias = Callable[[], Mapping[str, float]]

DURATION_BUCKETS_S = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0, 300.0, 1800.0, 7200.0,
)  # fmt: skip
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


MAX_NAMES = 1000
"""How many pairs of task and queue, or queues, have series of their own. Names of queues may come from outside."""
OTHER = "other"

_NAMES = ("task", "queue")
_DEFINITIONS: tuple[tuple[str, Kind, str, tuple[str, ...], str], ...] = (
    ("holdfast.runs.enqueued", "counter", "{run}", _NAMES, "Runs enqueued."),
    ("holdfast.runs.claimed", "counter", "{run}", _NAMES, "Runs claimed by the worker."),
    ("holdfast.run.wait", "histogram", "s", _NAMES, "Time from when a run is ready until a worker claims it."),
    ("holdfast.claim.duration", "histogram", "s", (), "Duration of claims that returned runs."),
    ("holdfast.claim.size", "histogram", "{run}", (), "Runs per claim that returned runs."),
    ("holdfast.attempts", "counter", "{attempt}", (*_NAMES, "outcome"), "Finished attempts."),
    ("holdfast.attempt.duration", "histogram", "s", _NAMES, "Execution time of task code per attempt."),
    ("holdfast.steps", "counter", "{step}", (*_NAMES, "outcome"), "Executed steps, without replayed ones."),
    ("holdfast.step.duration", "histogram", "s", _NAMES, "Duration of steps, including retries."),
    ("holdfast.commit.duration", "histogram", "s", (), "Time until a batch of commands was durable."),
    ("holdfast.commit.size", "histogram", "{command}", (), "Commands per batch."),
    ("holdfast.queue.oldest_ready", "gauge", "s", ("queue",), "How long a queue's oldest ready run has been ready."),
    ("holdfast.slots", "gauge", "{slot}", (), "Maximum number of concurrent runs of the worker."),
    ("holdfast.slots.busy", "gauge", "{slot}", (), "Slots in use."),
    ("holdfast.backlog", "gauge", "{command}", (), "Commands that aren't durable yet."),
    ("holdfast.lease.missed", "counter", "{renewal}", (), "Renewals of the lease that failed or came too late."),
    ("holdfast.loop.lag", "gauge", "s", (), "How long the event loop has been blocked."),
    ("holdfast.threads.lost", "gauge", "{thread}", (), "Threads lost to code that ignored its timeout."),
    ("holdfast.failure_hooks.pending", "gauge", "{run}", (), "Failed runs with unfinished on_failure hooks."),
)
METRICS = {definition[0]: MetricDefinition(*definition) for definition in _DEFINITIONS}


class MetricBackend(Protocol):
    """A library that records measurements."""

    def measure(self, metric: str, value: float, labels: tuple[str, ...]) -> None:
        """Record a value with the values of the metric's labels, in the order of its definition."""


class SeriesNames:
    """The pairs of task and queue that have series of their own, at most `MAX_NAMES` in a process."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], tuple[str, str]] = {}

    def bound(self, names: tuple[str, str]) -> tuple[str, str]:
        """Return the pair itself, or `other` twice for pairs beyond the limit."""
        found = self._known.get(names)
        if found is None:
            found = names if len(self._known) < MAX_NAMES else (OTHER, OTHER)
            if found is names:
                self._known[names] = names
        return found


class GaugeRegistry:
    """The gauges of this process's workers. A gauge without labels is a sum, one per queue a maximum."""

    def __init__(self) -> None:
        self._workers: dict[object, tuple[ReadGauges, ReadGauges]] = {}
        self._lock = threading.Lock()

    def add(self, worker: object, gauges: ReadGauges, oldest_ready: ReadGauges) -> None:
        """Read a worker's gauges from now on: those without labels by metric, and the ages by queue."""
        with self._lock:
            self._workers[worker] = gauges, oldest_ready

    def remove(self, worker: object) -> None:
        with self._lock:
            self._workers.pop(worker, None)

    def total(self, metric: str) -> float:
        with self._lock:
            return sum(read()[metric] for read, _ in self._workers.values())

    def oldest_ready(self) -> dict[str, float]:
        """Return the age of the oldest ready run of each queue, in seconds. Reads the database."""
        with self._lock:
            readers = [read for _, read in self._workers.values()]
        samples = [((queue,), age) for read in readers for queue, age in read().items()]
        return {queue: age for (queue,), age in bound_samples(samples, max).items()}


def bound_samples(
    samples: Iterable[tuple[tuple[str, ...], float]], combine: Callable[[Iterable[float]], float]
) -> dict[tuple[str, ...], float]:
    """Bound the names of a gauge, which are its first label.

    The names with the largest values are kept, at most `MAX_NAMES`. The values of the others are combined as `other`.
    """
    found = list(samples)
    sizes: dict[str, float] = {}
    for (name, *_), value in found:
        sizes[name] = sizes.get(name, 0) + value
    kept = set(heapq.nlargest(MAX_NAMES, sizes, key=sizes.__getitem__))
    values: dict[tuple[str, ...], list[float]] = {}
    for (name, *more), value in found:
        values.setdefault((name if name in kept else OTHER, *more), []).append(value)
    return {labels: combine(each) for labels, each in values.items()}


NAMES = SeriesNames()
GAUGES = GaugeRegistry()
