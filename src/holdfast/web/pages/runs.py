"""The list of runs: filters in the address, newest first, a page at a time."""

from __future__ import annotations

from typing import Any

from holdfast.web.pages.render import link
from holdfast.web.pages.table import Page, Visit

PAGE = 50
FILTERS = ("state", "task", "queue", "tenant", "tag")


def _list(visit: Visit) -> dict[str, Any]:
    given = {name: visit.query.get(name, "").strip() for name in FILTERS}
    asked: dict[str, Any] = {name: value or None for name, value in given.items()}
    if visit.visitor.tenant is not None:
        asked["tenant"] = visit.visitor.tenant
    found = visit.control.runs.page(**asked, limit=PAGE, after=visit.query.get("after") or None)
    return {
        "runs": found,
        "given": given,
        "filtered": any(given.values()),
        "following": link("/runs", **given, after=found.after) if found.after else None,
        "first": link("/runs", **given) if visit.query.get("after") else None,
        "live": None if visit.query.get("after") else "/api/v1/live",
    }


PAGES = (Page(path="/runs", template="runs.html", section="runs", do=_list),)
