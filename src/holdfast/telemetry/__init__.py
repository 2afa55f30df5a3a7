"""Logs, traces and metrics. Log wording and metric names are defined here, not where events happen."""

from holdfast.telemetry.backends import Telemetry as Telemetry
from holdfast.telemetry.log_format import JsonLines as JsonLines
from holdfast.telemetry.log_format import RunFields as RunFields

__all__ = ["JsonLines", "RunFields", "Telemetry"]
