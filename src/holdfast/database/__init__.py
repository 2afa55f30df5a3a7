"""Where bytes go: the drivers, their dialects, migrations. Knows SQL, knows nothing of runs."""

from holdfast.database.base import Connection, Database, Line, Row, Watch
from holdfast.database.faults import Conflict, ConnectionLost, DataFault, Duplicate
from holdfast.database.open import open_database
from holdfast.database.statements import Statement, Statements

__all__ = [
    "Conflict",
    "Connection",
    "ConnectionLost",
    "DataFault",
    "Database",
    "Duplicate",
    "Line",
    "Row",
    "Statement",
    "Statements",
    "Watch",
    "open_database",
]
