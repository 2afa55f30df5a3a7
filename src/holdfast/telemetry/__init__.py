"""What Holdfast tells about itself: logs, spans and metrics. Wording and names stand here, not where things happen."""

from holdfast.telemetry.backends import Telemetry as Telemetry
from holdfast.telemetry.log_format import JsonLines as JsonLines
from holdfast.telemetry.log_format import RunFields as RunFields

__all__ = ["JsonLines", "RunFields", "Telemetry"]
