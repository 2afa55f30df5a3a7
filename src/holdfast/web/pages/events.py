"""The page of events: what runs wait for, and what was emitted."""

from __future__ import annotations

from typing import Any

from holdfast.web.pages.page import FormAction, PageRequest, PageSpec, parse_json
from holdfast.web.pages.render import link

MAX_EVENTS = 100


def _list(request: PageRequest) -> dict[str, Any]:
    return {"events": request.control.events.list(request.principal.tenant, MAX_EVENTS), "live": "/api/v1/live"}


def _emit(request: PageRequest) -> str:
    name, tenant = _event(request)
    payload = parse_json(request.form.get("payload", ""), "the payload")
    changed = request.control.events.emit(name, payload, tenant)
    others = [] if request.principal.tenant is not None else request.control.events.awaited_elsewhere(name, tenant)
    return link("/events", did="emitted-before" if not changed else "emitted-elsewhere" if others else "emitted")


def _clear(request: PageRequest) -> str:
    changed = request.control.events.clear(*_event(request))
    return link("/events", did="cleared" if changed else "not-emitted")


def _event(request: PageRequest) -> tuple[str, str | None]:
    """Return the event that a form names; a token of one tenant can only name events of this tenant."""
    given = request.form.get("tenant", "").strip() or None
    return request.form.get("name", "").strip(), request.principal.tenant or given


PAGES = (PageSpec(path="/events", template="events.html", section="events", do=_list, all_tasks=True, may_lag=True),)
ACTIONS = (
    FormAction(path="/events", do=_emit, all_tasks=True),
    FormAction(path="/events/clear", do=_clear, all_tasks=True),
)
