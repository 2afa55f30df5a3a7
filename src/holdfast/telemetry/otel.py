"""Metrics by OpenTelemetry: they go where the application's MeterProvider sends them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache
from itertools import islice
from typing import Any
from uuid import UUID

from opentelemetry import context as contexts
from opentelemetry import metrics, trace
from opentelemetry.metrics import CallbackOptions, Meter, Observation
from opentelemetry.trace import Link, NonRecordingSpan, SpanContext, SpanKind, StatusCode, TraceFlags
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from holdfast.telemetry.metrics import GAUGES, METRICS, MetricDefinition


class OtelMetrics:
    """Instruments of the meter `holdfast`."""

    def __init__(self) -> None:
        meter = metrics.get_meter("holdfast")
        self._record: dict[str, Callable[..., None]] = {}
        for metric in METRICS.values():
            if metric.kind == "gauge":
                meter.create_observable_gauge(metric.name, [_shown(metric)], metric.unit, metric.help)
            else:
                self._record[metric.name] = _recording(meter, metric)

    def measure(self, metric: str, value: float, labels: Mapping[str, str]) -> None:
        self._record[metric](value, labels)


def _recording(meter: Meter, metric: MetricDefinition) -> Callable[..., None]:
    if metric.kind == "counter":
        add: Callable[..., None] = meter.create_counter(metric.name, metric.unit, metric.help).add
        return add
    histogram = meter.create_histogram(
        metric.name, metric.unit, metric.help, explicit_bucket_boundaries_advisory=metric.buckets
    )
    record: Callable[..., None] = histogram.record
    return record


def _shown(metric: MetricDefinition) -> Callable[[CallbackOptions], Iterable[Any]]:
    return lambda _options: [Observation(GAUGES.total(metric.name))]


@cache
def otel_metrics() -> OtelMetrics:
    """Those of this process: an instrument is made once."""
    return OtelMetrics()


MOST_LINKS = 100
LOW_BITS = 2**64 - 1

_W3C = TraceContextTextMapPropagator()


class Tracing:
    """Makes Holdfast's spans."""

    def __init__(self) -> None:
        self._tracer = trace.get_tracer("holdfast")

    # Contexts

    def kept(self) -> dict[str, str] | None:
        """The context of the code that asks, as it is kept with what it makes; None where there is none."""
        carrier: dict[str, str] = {}
        _W3C.inject(carrier)
        return carrier or None

    def enter(self, kept: Mapping[str, str] | None) -> None:
        """Go on in a kept context, to the end of this one: in a thread, task or process of the caller's own."""
        if kept:
            contexts.attach(_W3C.extract(kept))

    def _of_run(self, run: str, task: str) -> Any:
        """The context of a run that was made without one."""
        number = UUID(run).int
        sampler = getattr(trace.get_tracer_provider(), "sampler", None)
        sampled = sampler is None or sampler.should_sample(None, number, task, SpanKind.CONSUMER).decision.is_sampled()
        flags = TraceFlags(TraceFlags.SAMPLED if sampled else TraceFlags.DEFAULT)
        parent = SpanContext(number, number & LOW_BITS, is_remote=True, trace_flags=flags)
        return trace.set_span_in_context(NonRecordingSpan(parent))

    # Spans

    def enqueue(self, task: str, runs: int) -> AbstractContextManager[Any]:
        """Around the making of runs, which are its children."""
        attributes = {"holdfast.task": task, "holdfast.runs": runs}
        made: AbstractContextManager[Any] = self._tracer.start_as_current_span(
            f"enqueue {task}", kind=SpanKind.PRODUCER, attributes=attributes
        )
        return made

    def emit(self, event: str) -> AbstractContextManager[Any]:
        """Around an emit from outside, which those who waited for it link to."""
        made: AbstractContextManager[Any] = self._tracer.start_as_current_span(
            f"emit {event}", kind=SpanKind.PRODUCER, attributes={"holdfast.event": event}
        )
        return made

    def attempt(
        self, run: str, task: str, kept: Mapping[str, str] | None, claim: Any, attributes: Mapping[str, Any]
    ) -> Any:
        """Begin the span of an attempt; from now on it is the current one here."""
        parent = _W3C.extract(kept) if kept else None
        if parent is None or not trace.get_current_span(parent).get_span_context().is_valid:
            parent = self._of_run(run, task)
        links = [] if claim is None else [Link(claim)]
        span = self._tracer.start_span(task, parent, SpanKind.CONSUMER, attributes, links)
        contexts.attach(trace.set_span_in_context(span, parent))
        return span

    def step(self, name: str, key: str) -> tuple[Any, Any]:
        """Begin the span of a step: the span, and what `end_step` needs to leave it."""
        span = self._tracer.start_span(f"step {name}", attributes={"holdfast.step": key})
        return span, contexts.attach(trace.set_span_in_context(span))

    def end_step(self, span: Any, token: Any, error: str | None) -> None:
        contexts.detach(token)
        self.end(span, error)

    def end(self, span: Any, error: str | None) -> None:
        if error is not None:
            span.set_status(StatusCode.ERROR, error)
        span.end()

    def link(self, span: Any, kept: Mapping[str, str]) -> None:
        """Link a span that is under way to a kept context."""
        other = trace.get_current_span(_W3C.extract(kept)).get_span_context()
        if other.is_valid:
            span.add_link(other)

    def batch(self, name: str, started: int, attributes: Mapping[str, int], spans: Iterable[SpanContext]) -> Any:
        """Something that was done for many runs at once, from `started` (in nanoseconds) to now; its context."""
        links: Sequence[Link] = [Link(span) for span in islice(spans, MOST_LINKS)]
        span = self._tracer.start_span(name, contexts.Context(), SpanKind.INTERNAL, attributes, links, started)
        span.end()
        return span.get_span_context()

    def context_of(self, run: str, task: str, kept: Mapping[str, str] | None) -> SpanContext:
        """What a link to a run leads to."""
        parent = _W3C.extract(kept) if kept else self._of_run(run, task)
        return trace.get_current_span(parent).get_span_context()


def now() -> int:
    """The time as spans take it."""
    return time.time_ns()
