"""OpenTelemetry metrics and spans, exported by the application's MeterProvider and TracerProvider.

All spans of a run belong to one trace, regardless of how many processes execute it and how long it waits. The W3C trace
context of the code that created the run is stored with it, and each attempt is a span below that context. A run that
was created outside a trace gets a trace whose id is the run's id. Claims and commits serve many runs at once, so each
is a trace of its own with links to those runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
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

MAX_LINKS = 100
LOW_BITS = 2**64 - 1

_W3C = TraceContextTextMapPropagator()


class OtelMetrics:
    """Instruments of the meter `holdfast`."""

    def __init__(self) -> None:
        meter = metrics.get_meter("holdfast")
        self._record: dict[str, Callable[..., None]] = {}
        self._attributes: dict[tuple[str, tuple[str, ...]], dict[str, str]] = {}
        for metric in METRICS.values():
            if metric.kind == "gauge":
                meter.create_observable_gauge(metric.name, [_observer(metric)], metric.unit, metric.help)
            else:
                self._record[metric.name] = _recorder(meter, metric)

    def measure(self, metric: str, value: float, labels: tuple[str, ...]) -> None:
        attributes = self._attributes.get((metric, labels))
        if attributes is None:
            names = [f"holdfast.{label}" for label in METRICS[metric].labels]
            attributes = self._attributes[metric, labels] = dict(zip(names, labels, strict=True))
        self._record[metric](value, attributes)


def _recorder(meter: Meter, metric: MetricDefinition) -> Callable[..., None]:
    if metric.kind == "counter":
        add: Callable[..., None] = meter.create_counter(metric.name, metric.unit, metric.help).add
        return add
    histogram = meter.create_histogram(
        metric.name, metric.unit, metric.help, explicit_bucket_boundaries_advisory=metric.buckets
    )
    record: Callable[..., None] = histogram.record
    return record


def _observer(metric: MetricDefinition) -> Callable[[CallbackOptions], Iterable[Any]]:
    if metric.labels:
        return lambda _options: [
            Observation(age, {"holdfast.queue": queue}) for queue, age in GAUGES.oldest_ready().items()
        ]
    return lambda _options: [Observation(GAUGES.total(metric.name))]


@cache
def otel_metrics() -> OtelMetrics:
    """Return the instruments of this process, which may be created only once."""
    return OtelMetrics()


class Tracing:
    """Creates Holdfast's spans."""

    def __init__(self) -> None:
        self._tracer = trace.get_tracer("holdfast")

    def current_context(self) -> dict[str, str] | None:
        """Return the current trace context in the form in which it is stored with runs and events."""
        carrier: dict[str, str] = {}
        _W3C.inject(carrier)
        return carrier or None

    def attach_context(self, stored: Mapping[str, str] | None) -> None:
        """Continue a stored context for the rest of this thread, asyncio task or process."""
        if stored:
            contexts.attach(_W3C.extract(stored))

    def _root_context(self, run: str, task: str) -> Any:
        """Return the context of a run that was created outside a trace."""
        number = UUID(run).int
        sampler = getattr(trace.get_tracer_provider(), "sampler", None)
        sampled = sampler is None or sampler.should_sample(None, number, task, SpanKind.CONSUMER).decision.is_sampled()
        flags = TraceFlags(TraceFlags.SAMPLED if sampled else TraceFlags.DEFAULT)
        parent = SpanContext(number, number & LOW_BITS, is_remote=True, trace_flags=flags)
        return trace.set_span_in_context(NonRecordingSpan(parent))

    @contextmanager
    def enqueue(self, task: str, queue: str | None, runs: int) -> Iterator[Callable[[str], None]]:
        """Open a span for creating runs, which become its children; yield a function that takes the id of one run."""
        attributes = {**_messaging("enqueue", "send", queue), "holdfast.task": task, "holdfast.runs": runs}
        if runs != 1:
            attributes["messaging.batch.message_count"] = runs

        def created(run: str) -> None:
            span.set_attributes({"holdfast.run": run, "messaging.message.id": run})

        with self._producer(f"enqueue {task}", attributes) as span:
            yield created

    def emit(self, event: str) -> AbstractContextManager[Any]:
        """Open a span for an emit from outside a run; runs that waited for the event link to it."""
        return self._producer(f"emit {event}", {"holdfast.event": event})

    @contextmanager
    def _producer(self, name: str, attributes: Mapping[str, Any]) -> Iterator[Any]:
        """Open a span that records the type of an exception, but not its message, which may contain secrets."""
        with self._tracer.start_as_current_span(
            name, None, SpanKind.PRODUCER, attributes, record_exception=False, set_status_on_exception=False
        ) as span:
            try:
                yield span
            except Exception as error:
                _set_error(span, type(error).__qualname__)
                raise

    def attempt(
        self, run: str, task: str, stored: Mapping[str, str] | None, claim: Any, attributes: Mapping[str, Any]
    ) -> Any:
        """Start the span of an attempt and make it the current span."""
        parent = _W3C.extract(stored) if stored else None
        if parent is None or not trace.get_current_span(parent).get_span_context().is_valid:
            parent = self._root_context(run, task)
        links = [] if claim is None else [Link(claim)]
        queue = attributes["holdfast.queue"]
        messaging = {
            **_messaging("run", "process", queue),
            "messaging.message.id": run,
            "messaging.client.id": attributes["holdfast.worker"],
        }
        span = self._tracer.start_span(task, parent, SpanKind.CONSUMER, {**messaging, **attributes}, links)
        contexts.attach(trace.set_span_in_context(span, parent))
        return span

    def step(self, name: str, key: str) -> tuple[Any, Any]:
        """Start the span of a step; return it with the token for `end_step`."""
        span = self._tracer.start_span(f"step {name}", attributes={"holdfast.step": key})
        return span, contexts.attach(trace.set_span_in_context(span))

    def end_step(self, span: Any, token: Any, error: str | None) -> None:
        contexts.detach(token)
        self.end(span, error)

    def end(self, span: Any, error: str | None) -> None:
        if error is not None:
            _set_error(span, error)
        span.end()

    def log_fields(self, span: Any) -> dict[str, str]:
        """Return the ids of a span as log lines have them."""
        context = span.get_span_context()
        if not context.is_valid:
            return {}
        return {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}

    def link(self, span: Any, stored: Mapping[str, str]) -> None:
        """Link an open span to a stored context."""
        other = trace.get_current_span(_W3C.extract(stored)).get_span_context()
        if other.is_valid:
            span.add_link(other)

    def claim(self, started: int, runs: int, spans: Iterable[SpanContext]) -> SpanContext:
        """Record a claim; see `batch`."""
        attributes = {
            **_messaging("claim", "receive", None),
            "messaging.batch.message_count": runs,
            "holdfast.runs": runs,
        }
        return self.batch("claim", SpanKind.CLIENT, started, attributes, spans)

    def commit(self, started: int, commands: int, runs: int, spans: Iterable[SpanContext]) -> None:
        """Record a commit; see `batch`."""
        attributes = {"holdfast.commands": commands, "holdfast.runs": runs}
        self.batch("commit", SpanKind.INTERNAL, started, attributes, spans)

    def batch(
        self, name: str, kind: SpanKind, started: int, attributes: Mapping[str, Any], spans: Iterable[SpanContext]
    ) -> SpanContext:
        """Record a span that served many runs, from `started` (nanoseconds) to now; return its context."""
        links: Sequence[Link] = [Link(span) for span in islice(spans, MAX_LINKS)]
        span = self._tracer.start_span(name, contexts.Context(), kind, attributes, links, started)
        span.end()
        return span.get_span_context()

    def context_of(self, run: str, task: str, stored: Mapping[str, str] | None) -> SpanContext:
        """Return the context that a link to a run points to."""
        parent = _W3C.extract(stored) if stored else self._root_context(run, task)
        return trace.get_current_span(parent).get_span_context()


def _messaging(name: str, kind: str, queue: str | None) -> dict[str, Any]:
    """Return the attributes of OpenTelemetry's conventions for messaging systems."""
    attributes = {
        "messaging.system": "holdfast",
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
    }
    if queue:
        attributes["messaging.destination.name"] = queue
    return attributes


def _set_error(span: Any, error: str) -> None:
    span.set_status(StatusCode.ERROR, error)
    span.set_attribute("error.type", error)
