"""The API operation on the audit log: of everything for admins, of one tenant for its operators."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from holdfast.control import Control
from holdfast.model.audit import AuditPage, Outcome
from holdfast.web.api.operation import ApiRequest, Operation
from holdfast.web.api.runs import page_size
from holdfast.web.auth import Principal


class AuditQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Filters, combined with AND; times have an offset."""

    by: str | None = None
    action: str | None = None
    subject: str | None = None
    outcome: Outcome | None = None
    since: datetime | None = None
    until: datetime | None = None
    limit: int = 50
    after: UUID | None = None


def audit_page(control: Control, principal: Principal, **filters: Any) -> AuditPage:
    """List the entries that a client may read. The addresses of others are none of a tenant's business."""
    found = control.audit.page(tenant=principal.tenant, **filters)
    if principal.tenant is None:
        return found
    entries = [msgspec.structs.replace(entry, client=None) for entry in found.entries]
    return msgspec.structs.replace(found, entries=entries)


def _list(call: ApiRequest) -> AuditPage:
    query: AuditQuery = call.query
    return audit_page(
        call.control,
        call.principal,
        by=query.by,
        action=query.action,
        subject=query.subject,
        outcome=query.outcome,
        since=query.since,
        until=query.until,
        limit=page_size(query.limit),
        after=query.after,
    )


OPERATIONS = (
    Operation(
        method="GET", path="/audit", name="list_audit", summary="List what operators did, newest first.",
        do=_list, query=AuditQuery, answer=AuditPage, requires="audit",
    ),
)  # fmt: skip
