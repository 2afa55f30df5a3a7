"""Database drivers, SQL dialects and migrations. This layer knows SQL but nothing about runs."""

from holdfast.database.base import ChangeListener, Database, DatabaseConnection, ManagedConnection, Row, Topic
from holdfast.database.faults import Conflict, ConnectionLost, DataFault, Duplicate
from holdfast.database.statements import Statement, Statements
from holdfast.database.url import open_database

__all__ = [
    "ChangeListener",
    "Conflict",
    "ConnectionLost",
    "DataFault",
    "Database",
    "DatabaseConnection",
    "Duplicate",
    "ManagedConnection",
    "Row",
    "Statement",
    "Statements",
    "Topic",
    "open_database",
]
