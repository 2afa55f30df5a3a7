"""The API operation on the audit log, for admins."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

import msgspec

from holdfast.model.audit import AuditPage, Outcome
from holdfast.web.api.operation import ApiRequest, Operation
from holdfast.web.api.runs import page_size


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


def _list(call: ApiRequest) -> AuditPage:
    query: AuditQuery = call.query
    return call.control.audit.page(
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
        do=_list, query=AuditQuery, answer=AuditPage, all_tenants=True, requires="administer",
    ),
)  # fmt: skip
