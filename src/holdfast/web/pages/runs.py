"""The list of runs: filters in the address, newest first, a page at a time."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from starlette.datastructures import QueryParams

from holdfast.errors import ConfigError
from holdfast.web.pages.render import link
from holdfast.web.pages.table import Page, Visit

PAGE = 50
TEXTS = ("task", "queue", "tenant", "tag", "error", "id_prefix", "parent", "family")
TIMES = ("created_from", "created_to", "finished_from", "finished_to")


def _list(visit: Visit) -> dict[str, Any]:
    given = given_in(visit.query)
    found = visit.control.runs.page(**filter_of(visit, given), limit=PAGE, after=visit.query.get("after") or None)
    return {
        "runs": found,
        "given": given,
        "more_filters": any(given[name] for name in ("id_prefix", "parent", "family", *TIMES)),
        "filtered": any(given.values()),
        "bulk": {verb: link("/bulk", **given, verb=verb) for verb in ("cancel", "retry")},
        "following": link("/runs", **given, after=found.after) if found.after else None,
        "first": link("/runs", **given) if visit.query.get("after") else None,
        "live": None if visit.query.get("after") else "/api/v1/live",
    }


def given_in(query: QueryParams) -> dict[str, Any]:
    """What stands in an address about which runs are meant."""
    given: dict[str, Any] = {name: query.get(name, "").strip() for name in (*TEXTS, *TIMES)}
    given["state"] = [state for state in query.getlist("state") if state]
    return given


def filter_of(visit: Visit, given: dict[str, Any]) -> Any:
    """What was typed as a filter of runs that the visitor may see."""
    asked: dict[str, Any] = {name: given[name] or None for name in ("task", "queue", "tag", "error", "id_prefix")}
    asked["state"] = given["state"] or None
    asked["tenant"] = visit.visitor.tenant or given["tenant"] or None
    asked |= {name: _time(given[name], name) for name in TIMES if given[name]}
    asked |= {name: visit.visitor.find(visit.control, given[name]) for name in ("parent", "family") if given[name]}
    return asked


def _time(text: str, name: str) -> datetime:
    """A time as browsers write it, which is meant in UTC unless it says otherwise."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        what = name.replace("_", " ")
        raise ConfigError(f"{what} must be a time like 2026-11-16T08:00, not {text[:60]!r}") from None
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


PAGES = (Page(path="/runs", template="runs.html", section="runs", do=_list),)
