"""Gauges for Prometheus in its text format, read from the database. Workers expose their own metrics themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from holdfast.control import Control
from holdfast.telemetry.metrics import bound_samples

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class Gauge(NamedTuple):
    """A metric with its samples, whose labels are in the order of `labels`."""

    name: str
    help: str
    labels: tuple[str, ...]
    samples: Iterable[tuple[tuple[str, ...], float]]
    combine: Callable[[Iterable[float]], float] = sum
    """How the values of names beyond the limit are combined."""


def exposition(control: Control) -> str:
    """Return all metrics in the Prometheus text format."""
    return "".join(line + "\n" for metric in _metrics(control) for line in _lines(metric))


def replica_gauges(lag_s: float | None) -> str:
    """Return the metrics of the replica that lists are read from. `lag_s` is None if the primary was read instead."""
    lines = [
        "# HELP holdfast_replica_used 1 if lists are read from the replica, otherwise 0.",
        "# TYPE holdfast_replica_used gauge",
        f"holdfast_replica_used {int(lag_s is not None)}",
    ]
    if lag_s is not None:
        lines += [
            "# HELP holdfast_replica_lag_seconds How far the replica is behind.",
            "# TYPE holdfast_replica_lag_seconds gauge",
            f"holdfast_replica_lag_seconds {lag_s}",
        ]
    return "".join(line + "\n" for line in lines)


def _metrics(control: Control) -> Iterator[Gauge]:
    counts = control.counts.overview()
    yield Gauge(
        "holdfast_runs",
        "Unfinished runs by queue and state; counts stop at 100,000 ready runs and 20,000 in other states.",
        ("queue", "state"),
        [
            ((queue, state), count.value)
            for queue, states in sorted(counts.queues.items())
            for state, count in states.items()
        ],
    )
    yield Gauge(
        "holdfast_kept_runs",
        "All stored runs by state; an estimate for large counts.",
        ("state",),
        [((state,), count.value) for state, count in counts.states.items()],
    )
    yield Gauge(
        "holdfast_queue_paused",
        "1 if the queue is paused, otherwise 0.",
        ("queue",),
        [((queue,), int(paused)) for queue, paused in control.queues.paused().items()],
    )
    yield Gauge(
        "holdfast_queue_oldest_ready_seconds",
        "How long a queue's oldest ready run has been ready.",
        ("queue",),
        [((queue,), age) for queue, age in control.queues.oldest_ready().items()],
        max,
    )
    states = Counter(worker.state for worker in control.workers.list())
    yield Gauge(
        "holdfast_workers",
        "Worker sessions by state.",
        ("state",),
        [((state,), states[state]) for state in ("working", "idle", "unhealthy", "dead")],
    )
    limits = control.limits.list()
    counters = [(limit.name, counter) for limit in limits for counter in limit.counters]
    yield Gauge("holdfast_permits_used", "Permits in use, by limit.", ("limit",), _sum(counters, "used"))
    yield Gauge("holdfast_parked", "Runs waiting for a permit, by limit.", ("limit",), _sum(counters, "parked"))
    schedules = Counter(each.state for each in control.schedules.list())
    yield Gauge(
        "holdfast_schedules",
        "Schedules and triggers by state.",
        ("state",),
        [((state,), count) for state, count in sorted(schedules.items())],
    )


def _sum(counters: Iterable[tuple[str, object]], attribute: str) -> list[tuple[tuple[str, ...], float]]:
    sums: Counter[str] = Counter()
    for name, counter in counters:
        sums[name] += getattr(counter, attribute)
    return [((name,), count) for name, count in sorted(sums.items())]


def _lines(metric: Gauge) -> Iterator[str]:
    yield f"# HELP {metric.name} {metric.help}"
    yield f"# TYPE {metric.name} gauge"
    for labels, value in bound_samples(metric.samples, metric.combine).items():
        named = zip(metric.labels, labels, strict=True)
        shown = ",".join(f'{name}="{text.translate(_ESCAPES)}"' for name, text in named)
        yield f"{metric.name}{{{shown}}} {value if isinstance(value, int) else float(value)}"
