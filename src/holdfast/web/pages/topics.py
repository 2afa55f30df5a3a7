"""The page of topics: who subscribes, who waits, and what was published."""

from __future__ import annotations

from typing import Any

from holdfast.control.topics import topic_text
from holdfast.web.pages.page import FormAction, PageRequest, PageSpec, parse_json
from holdfast.web.pages.render import link

MAX_MESSAGES = 100


def _list(request: PageRequest) -> dict[str, Any]:
    found = request.control.topics.list(None, request.principal.tenant, MAX_MESSAGES)
    return {"found": found, "topic_text": topic_text, "live": "/api/v1/live"}


def _publish(request: PageRequest) -> str:
    form = request.form
    tenant = request.principal.tenant or form.get("tenant", "").strip() or None
    payload = parse_json(form.get("payload", ""), "the payload")
    published = request.control.topics.publish(form.get("topic", "").strip(), payload, None, tenant)
    return link("/topics", did="published" if published.runs or published.functions else "published-to-nobody")


PAGES = (PageSpec(path="/topics", template="topics.html", section="topics", do=_list, all_tasks=True, may_lag=True),)
ACTIONS = (FormAction(path="/topics", do=_publish, all_tasks=True),)
