"""Counts for Prometheus, in its text format, read from the store: what workers count themselves isn't here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from holdfast.control import Control

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class Gauge(NamedTuple):
    """A name, what it means, and its values by labels."""

    name: str
    help: str
    samples: list[tuple[dict[str, str], float]]


def exposition(control: Control) -> str:
    """All metrics as Prometheus reads them."""
    return "".join(line + "\n" for metric in _metrics(control) for line in _lines(metric))


def _metrics(control: Control) -> Iterator[Gauge]:
    counts = control.counts.overview()
    yield Gauge(
        "holdfast_runs",
        "Unfinished runs, by queue and state; counted up to 100,000 ready ones, 20,000 in other states.",
        [
            ({"queue": queue, "state": state}, count.value)
            for queue, states in sorted(counts.queues.items())
            for state, count in states.items()
        ],
    )
    yield Gauge(
        "holdfast_kept_runs",
        "All runs that are kept, by state; where there are many, an estimate.",
        [({"state": state}, count.value) for state, count in counts.states.items()],
    )
    yield Gauge(
        "holdfast_queue_paused",
        "1 for queues that are paused.",
        [({"queue": queue}, int(paused)) for queue, paused in control.queues.paused().items()],
    )
    states = Counter(worker.state for worker in control.workers.list())
    yield Gauge(
        "holdfast_workers",
        "Worker sessions, by what they do.",
        [({"state": state}, states[state]) for state in ("working", "idle", "unhealthy", "dead")],
    )
    limits = control.limits.list()
    counters = [(limit.name, counter) for limit in limits for counter in limit.counters]
    yield Gauge("holdfast_permits_used", "Permits of a limit in use.", _summed(counters, "used"))
    yield Gauge("holdfast_parked", "Runs that wait for a permit of a limit.", _summed(counters, "parked"))
    schedules = Counter(each.state for each in control.schedules.list())
    yield Gauge(
        "holdfast_schedules",
        "Schedules and triggers, by state.",
        [({"state": s}, n) for s, n in sorted(schedules.items())],
    )


def _summed(counters: Iterable[tuple[str, object]], what: str) -> list[tuple[dict[str, str], float]]:
    sums: Counter[str] = Counter()
    for name, counter in counters:
        sums[name] += getattr(counter, what)
    return [({"limit": name}, count) for name, count in sorted(sums.items())]


def _lines(metric: Gauge) -> Iterator[str]:
    yield f"# HELP {metric.name} {metric.help}"
    yield f"# TYPE {metric.name} gauge"
    for labels, value in metric.samples:
        told = ",".join(f'{name}="{text.translate(_ESCAPES)}"' for name, text in labels.items())
        yield f"{metric.name}{{{told}}} {value if isinstance(value, int) else float(value)}"
