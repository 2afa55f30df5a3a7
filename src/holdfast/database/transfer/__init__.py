"""Copy all tables from one database to another, and refuse writes to a database meanwhile."""

from holdfast.database.transfer.fence import lift_fence, open_fence, put_up_fence
from holdfast.database.transfer.tables import COPIED, NOT_COPIED, TableCopy, TransferTable, check_tables

__all__ = [
    "COPIED",
    "NOT_COPIED",
    "TableCopy",
    "TransferTable",
    "check_tables",
    "lift_fence",
    "open_fence",
    "put_up_fence",
]
