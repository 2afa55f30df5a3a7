"""The page of the audit log: everything for admins, one tenant's for its operators."""

from __future__ import annotations

from typing import Any

from holdfast.control.audit import OUTCOMES, describe_detail
from holdfast.errors import ConfigError, RunNotFound
from holdfast.model.audit import AuditPage
from holdfast.web.api.audit import audit_page
from holdfast.web.pages.page import PageContent, PageRequest, PageSpec, parse_time
from holdfast.web.pages.render import link

TEXT_FILTERS = ("by", "action", "subject", "outcome")
TIME_FILTERS = ("since", "until")
PAGE_SIZE = 50


def _list(request: PageRequest) -> dict[str, Any] | PageContent:
    given = {name: request.query.get(name, "").strip() for name in (*TEXT_FILTERS, *TIME_FILTERS)}
    after = request.query.get("after") or None
    found, problem = AuditPage([], None), ""
    try:
        filters: dict[str, Any] = {name: given[name] or None for name in TEXT_FILTERS}
        filters |= {name: parse_time(given[name], name) for name in TIME_FILTERS if given[name]}
        found = audit_page(request.control, request.principal, **filters, limit=PAGE_SIZE, after=after)
    except (ConfigError, RunNotFound) as error:
        problem = str(error)
    values = {
        "entries": [(entry, describe_detail(entry)) for entry in found.entries],
        "partial": found.partial,
        "given": given,
        "problem": problem,
        "OUTCOMES": OUTCOMES,
        "older": link("/audit", **given, after=str(found.after)) if found.after else None,
        "newest": link("/audit", **given) if after else None,
        "section": "audit",
    }
    return PageContent("audit.html", values, 422) if problem else values


PAGES = (PageSpec(path="/audit", template="audit.html", section="audit", do=_list, requires="audit"),)
