"""The telemetry backends of an app: `Holdfast(telemetry=…)` or `$HOLDFAST_TELEMETRY`, none by default.

OpenTelemetry and Prometheus are imported only if enabled.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.errors import ConfigError

if TYPE_CHECKING:
    from holdfast.telemetry.metrics import MetricBackend
    from holdfast.telemetry.otel import Tracing

VARIABLE = "HOLDFAST_TELEMETRY"
KINDS = {"otel": "OpenTelemetry", "prometheus": "the Prometheus client"}


class Telemetry:
    """Sends spans and metrics to the enabled backends. `tracing` is None without OpenTelemetry.

    `on` tells whether any backend is enabled.
    """

    def __init__(self, requested: str | Sequence[str] | None = None) -> None:
        self.tracing: Tracing | None = None
        self._metric_backends: tuple[MetricBackend, ...] = ()
        self._kinds: set[str] = set()
        self.on = False
        for kind in _kinds(requested):
            self.add(kind)

    def add(self, kind: str) -> None:
        """Enable a backend, unless it is enabled already."""
        if kind in self._kinds:
            return
        try:
            self._import(kind)
        except ImportError as error:
            raise ConfigError(
                f"telemetry {kind!r} requires {KINDS[kind]}: pip install 'holdfast[{kind}]' ({error})"
            ) from error
        self._kinds.add(kind)
        self.on = True

    def _import(self, kind: str) -> None:
        if kind == "otel":
            from holdfast.telemetry.otel import Tracing, otel_metrics

            self.tracing = Tracing()
            self._metric_backends += (otel_metrics(),)
        else:
            from holdfast.telemetry.prometheus import prometheus_metrics

            self._metric_backends += (prometheus_metrics(),)

    def measure(
        self, metric: str, value: float, names: tuple[str, str] | None = None, outcome: str | None = None
    ) -> None:
        """Add to a counter or a histogram. `names`: task and queue, within the limit of `NAMES`."""
        labels: tuple[str, ...] = () if names is None else names
        if outcome is not None:
            labels = (*labels, outcome)
        for backend in self._metric_backends:
            backend.measure(metric, value, labels)


def _kinds(requested: str | Sequence[str] | None) -> list[str]:
    where = "telemetry"
    if requested is None:
        requested = os.environ.get(VARIABLE, "")
        where = f"${VARIABLE}"
    named = requested.split(",") if isinstance(requested, str) else list(requested)
    kinds = [str(kind).strip() for kind in named if str(kind).strip()]
    for kind in kinds:
        if kind not in KINDS:
            raise ConfigError(f"{where} must be {' or '.join(map(repr, KINDS))} or both, not {kind!r}")

    return kinds
