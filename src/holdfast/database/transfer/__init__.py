"""Copy tables from one database to another, of all data or one tenant, and refuse writes to a database meanwhile."""

from holdfast.database.transfer.fence import lift_fence, open_fence, put_up_fence
from holdfast.database.transfer.tables import COPIED, NOT_COPIED, TableCopy, TransferTable, check_tables
from holdfast.database.transfer.tenant_fence import (
    FENCE,
    open_tenant_fence,
    put_up_tenant_fence,
    remove_tenant_fence,
)
from holdfast.database.transfer.tenant_rows import (
    MOVING_TABLES,
    NOT_OF_TENANTS,
    TENANT_TABLES,
    SharedTree,
    StillRunning,
    TenantRows,
    UnknownLane,
)

__all__ = [
    "COPIED",
    "FENCE",
    "MOVING_TABLES",
    "NOT_COPIED",
    "NOT_OF_TENANTS",
    "TENANT_TABLES",
    "SharedTree",
    "StillRunning",
    "TableCopy",
    "TenantRows",
    "TransferTable",
    "UnknownLane",
    "check_tables",
    "lift_fence",
    "open_fence",
    "open_tenant_fence",
    "put_up_fence",
    "put_up_tenant_fence",
    "remove_tenant_fence",
]
