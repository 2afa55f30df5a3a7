"""Metrics by OpenTelemetry: they go where the application's MeterProvider sends them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Meter, Observation

from holdfast.telemetry.metrics import GAUGES, METRICS, Metric


class OtelMeters:
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


def _recording(meter: Meter, metric: Metric) -> Callable[..., None]:
    if metric.kind == "counter":
        add: Callable[..., None] = meter.create_counter(metric.name, metric.unit, metric.help).add
        return add
    histogram = meter.create_histogram(
        metric.name, metric.unit, metric.help, explicit_bucket_boundaries_advisory=metric.buckets
    )
    record: Callable[..., None] = histogram.record
    return record


def _shown(metric: Metric) -> Callable[[CallbackOptions], Iterable[Any]]:
    return lambda _options: [Observation(GAUGES.total(metric.name))]


@cache
def otel_meters() -> OtelMeters:
    """Those of this process: an instrument is made once."""
    return OtelMeters()
