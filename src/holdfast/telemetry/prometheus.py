"""Prometheus metrics, in the default registry of its client."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import Any

from prometheus_client import REGISTRY, Counter, Gauge, Histogram
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from holdfast.telemetry.metrics import GAUGES, METRICS, MetricDefinition


class PrometheusMetrics:
    """Collectors in the client's default registry."""

    def __init__(self) -> None:
        self._collectors: dict[str, Any] = {metric.name: _collector(metric) for metric in METRICS.values()}
        self._series: dict[tuple[str, tuple[str, ...]], Callable[[float], None]] = {}

    def measure(self, metric: str, value: float, labels: tuple[str, ...]) -> None:
        record = self._series.get((metric, labels))
        if record is None:
            collector = self._collectors[metric]
            child = collector.labels(*labels) if labels else collector
            record = child.inc if isinstance(collector, Counter) else child.observe
            self._series[metric, labels] = record
        record(value)


class OldestReady(Collector):  # type: ignore[misc]  # the library is untyped here
    """The gauge that has a value per queue, which it reads when it is collected."""

    def __init__(self, metric: MetricDefinition) -> None:
        self._metric = metric

    def describe(self) -> Iterable[Metric]:
        """Describe the gauge without reading the database."""
        return [GaugeMetricFamily(self._metric.prometheus, self._metric.help, labels=self._metric.labels)]

    def collect(self) -> Iterable[Metric]:
        family = GaugeMetricFamily(self._metric.prometheus, self._metric.help, labels=self._metric.labels)
        for queue, age in GAUGES.oldest_ready().items():
            family.add_metric([queue], age)
        return [family]


def _collector(metric: MetricDefinition) -> Any:
    if metric.kind == "counter":
        return Counter(metric.prometheus, metric.help, metric.labels)
    if metric.kind == "histogram":
        return Histogram(metric.prometheus, metric.help, metric.labels, buckets=metric.buckets)
    if metric.labels:
        REGISTRY.register(OldestReady(metric))
        return None
    gauge = Gauge(metric.prometheus, metric.help)
    gauge.set_function(partial(GAUGES.total, metric.name))
    return gauge


@cache
def prometheus_metrics() -> PrometheusMetrics:
    """Return the collectors of this process, which may be registered only once."""
    return PrometheusMetrics()


def exposition(accept: str) -> tuple[bytes, str]:
    """Return the registry in the format that the client accepts, and its content type."""
    encode, content_type = choose_encoder(accept)
    return encode(REGISTRY), content_type
