"""Prometheus metrics, in the default registry of its client, optionally served over HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from typing import Any

from prometheus_client import Counter, Gauge, Histogram, start_http_server

from holdfast.errors import ConfigError
from holdfast.telemetry.metrics import GAUGES, METRICS, MetricDefinition


class PrometheusMetrics:
    """Collectors in the client's default registry."""

    def __init__(self) -> None:
        self._collectors: dict[str, Any] = {metric.name: _collector(metric) for metric in METRICS.values()}

    def measure(self, metric: str, value: float, labels: Mapping[str, str]) -> None:
        collector = self._collectors[metric]
        child = collector.labels(**labels) if labels else collector
        if isinstance(collector, Counter):
            child.inc(value)
        else:
            child.observe(value)


def _collector(metric: MetricDefinition) -> Any:
    if metric.kind == "counter":
        return Counter(metric.prometheus, metric.help, metric.labels)
    if metric.kind == "histogram":
        return Histogram(metric.prometheus, metric.help, metric.labels, buckets=metric.buckets)
    gauge = Gauge(metric.prometheus, metric.help)
    gauge.set_function(partial(GAUGES.total, metric.name))
    return gauge


@cache
def prometheus_metrics() -> PrometheusMetrics:
    """Return the collectors of this process, which may be registered only once."""
    return PrometheusMetrics()


def serve_metrics(host: str, port: int) -> None:
    """Serve the registry at `http://HOST:PORT/metrics` in a daemon thread."""
    try:
        start_http_server(port, host)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"cannot serve metrics at {host}:{port}: {error}") from error
