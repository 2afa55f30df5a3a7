"""Everything operators can see and do: the only entry for the CLI, the REST API and the dashboard. Results are plain
data."""

from holdfast.control.control import Control
from holdfast.database.faults import DataFault

__all__ = ["Control", "DataFault"]
