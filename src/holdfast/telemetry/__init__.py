"""What Holdfast tells about itself: logs, spans and metrics. Wording and names stand here, not where things happen."""

from holdfast.telemetry.fields import JsonLines as JsonLines
from holdfast.telemetry.fields import RunFields as RunFields
from holdfast.telemetry.switch import Telemetry as Telemetry

__all__ = ["JsonLines", "RunFields", "Telemetry"]
