"""What of telemetry is on: chosen by `Holdfast(telemetry=…)` or `$HOLDFAST_TELEMETRY`, nothing by default.

OpenTelemetry and Prometheus are imported when they are asked for, not before.
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
    """Where spans and metrics go. `tracing` is None and `meters` are empty where nobody asked for them."""

    def __init__(self, asked: str | Sequence[str] | None = None) -> None:
        self.tracing: Tracing | None = None
        self.meters: tuple[MetricBackend, ...] = ()
        self._kinds: set[str] = set()
        for kind in _kinds(asked):
            self.add(kind)

    def add(self, kind: str) -> None:
        """Turn one kind on, if it isn't."""
        if kind in self._kinds:
            return
        try:
            self._import(kind)
        except ImportError as error:
            raise ConfigError(
                f"telemetry {kind!r} needs {KINDS[kind]}: pip install 'holdfast[{kind}]' ({error})"
            ) from error
        self._kinds.add(kind)

    def _import(self, kind: str) -> None:
        if kind == "otel":
            from holdfast.telemetry.otel import Tracing, otel_metrics

            self.tracing = Tracing()
            self.meters += (otel_metrics(),)
        else:
            from holdfast.telemetry.prometheus import prometheus_metrics

            self.meters += (prometheus_metrics(),)

    @property
    def on(self) -> bool:
        """Whether anybody wants to know."""
        return bool(self._kinds)

    def measure(self, metric: str, value: float, **labels: str) -> None:
        """Add to a counter, or to a histogram."""
        for meters in self.meters:
            meters.measure(metric, value, labels)


def _kinds(asked: str | Sequence[str] | None) -> list[str]:
    where = "telemetry"
    if asked is None:
        asked = os.environ.get(VARIABLE, "")
        where = f"${VARIABLE}"
    named = asked.split(",") if isinstance(asked, str) else list(asked)
    kinds = [str(kind).strip() for kind in named if str(kind).strip()]
    for kind in kinds:
        if kind not in KINDS:
            raise ConfigError(f"{where} is {kind!r}, but can only be {' or '.join(map(repr, KINDS))}, or both")
    return kinds
