"""The list of runs, the search box, and bulk actions on selected or on all matching runs."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from starlette.datastructures import QueryParams

from holdfast.errors import ConfigError, NotSerializable, RunNotFound, TooLarge
from holdfast.model.filters import NEWEST_FIRST, RunFilter, check_sort
from holdfast.model.metadata import parse_metadata
from holdfast.model.names import MAX_KEY_CHARS
from holdfast.model.run import Page
from holdfast.web.api.runs import MAX_SEARCH_S, run_batches
from holdfast.web.pages.page import FormAction, PageContent, PageRequest, PageSpec, parse_time
from holdfast.web.pages.render import link

PAGE_SIZE = 50
PLAIN_FILTERS = ("task", "queue", "tag", "key", "error", "search", "id_prefix", "sort")
TIME_FILTERS = ("created_from", "created_to", "finished_from", "finished_to")
TEXT_FILTERS = (*PLAIN_FILTERS, *TIME_FILTERS, "tenant", "metadata", "parent", "family", "within")
FLAGS = ("paused", "top_level")
PERIODS = {
    "15m": ("last 15 minutes", timedelta(minutes=15)),
    "1h": ("last hour", timedelta(hours=1)),
    "1d": ("last 24 hours", timedelta(days=1)),
    "7d": ("last 7 days", timedelta(days=7)),
}
"""Periods that end now. An address with one stays useful tomorrow."""
ORDERS = {
    "": "newest first", "created": "oldest first", "-finished": "finished last", "finished": "finished first",
    "due": "due first", "-due": "due last",
}  # fmt: skip
MORE_FILTERS = ("id_prefix", "parent", "family", *FLAGS, *TIME_FILTERS)
BULK_ACTIONS = ("cancel", "retry")
MAX_SELECTED = 200


def _list(request: PageRequest) -> dict[str, Any] | PageContent:
    given = _given_filters(request.query)
    after = request.query.get("after") or None
    problems: dict[str, str] = {}
    filters = _to_filter(request, given, problems)
    order: Any = {"sort": given["sort"] or NEWEST_FIRST, "limit": PAGE_SIZE, "after": after}
    found = Page([], None) if problems else request.control.runs.page(**filters, **order)
    fixed = given if problems else _with_fixed_period(given)
    values = {
        "runs": found,
        "problems": problems,
        "given": given,
        "more_filters": any(given[name] for name in MORE_FILTERS),
        "filtered": any(value for name, value in given.items() if name != "sort"),
        "periods": {"": "any time", **{name: text for name, (text, _) in PERIODS.items()}},
        "orders": ORDERS,
        "sorting": _sort_links(given),
        "bulk": {verb: link("/bulk", **fixed, verb=verb) for verb in BULK_ACTIONS},
        "older": link("/runs", **given, after=found.after) if found.after else None,
        "newest": link("/runs", **given) if after else None,
        "live": None if after or problems else "/api/v1/live",
    }
    return PageContent("runs.html", values, 422) if problems else values


def _sort_links(given: dict[str, Any]) -> dict[str, dict[str, str]]:
    """Return the address and the direction of the columns that have an index."""
    found = {}
    for column in ("created", "finished"):
        current = given["sort"] or NEWEST_FIRST
        other = column if current == f"-{column}" else f"-{column}"
        direction = {column: "ascending", f"-{column}": "descending"}.get(current, "none")
        found[column] = {"href": link("/runs", **{**given, "sort": other}), "direction": direction}
    return found


def _given_filters(query: QueryParams) -> dict[str, Any]:
    given: dict[str, Any] = {name: query.get(name, "").strip() for name in TEXT_FILTERS}
    given |= {name: [each for each in query.getlist(name) if each] for name in ("state", "run")}
    return given | {name: "1" if query.get(name) else "" for name in FLAGS}


def _with_fixed_period(given: dict[str, Any]) -> dict[str, Any]:
    """Replace a period that ends now by its beginning: a bulk action must not change other runs than its preview."""
    if not given["within"]:
        return given
    return {**given, "within": "", "created_from": given["created_from"] or _since(given["within"]).isoformat()}


def _since(period: str) -> datetime:
    if period not in PERIODS:
        raise ConfigError(f"unknown period {period[:40]!r}: use {', '.join(PERIODS)}")
    return datetime.now(UTC) - PERIODS[period][1]


def _to_filter(request: PageRequest, given: dict[str, Any], problems: dict[str, str] | None = None) -> Any:
    """Turn query parameters into a filter of runs that the principal may see.

    What is wrong with them is added to `problems` by the name of the field, or raised without it.
    """
    filters: dict[str, Any] = {name: given[name] or None for name in PLAIN_FILTERS if name != "sort"}
    filters |= {name: bool(given[name]) for name in FLAGS}
    filters["state"] = given["state"] or None
    filters["tenant"] = request.principal.tenant or given["tenant"] or None
    filters["scope"] = request.principal.scope
    parsers: dict[str, Callable[[Any], Any]] = {
        "metadata": lambda text: parse_metadata([text]),
        "within": _since,
        "run": partial(_selected, request),
        "sort": check_sort,
        **{name: partial(parse_time, what=name.replace("_", " ")) for name in TIME_FILTERS},
        **{name: partial(request.principal.find, request.control) for name in ("parent", "family")},
    }
    for name, parse in parsers.items():
        if given[name]:
            filters[name] = _parsed(name, partial(parse, given[name]), problems)
    filters["created_from"] = filters.get("created_from") or filters.pop("within", None)
    filters["ids"] = filters.pop("run", None)
    for name in ("within", "sort"):
        filters.pop(name, None)
    for name in (*PLAIN_FILTERS, "metadata", "state", "tenant"):
        if problems is not None and filters.get(name):
            only: Any = {name: filters[name]}
            _parsed(name, partial(RunFilter.of, only), problems)
    return filters


def _selected(request: PageRequest, given: list[str]) -> list[Any]:
    if len(given) > MAX_SELECTED:
        raise ConfigError(f"at most {MAX_SELECTED} runs can be selected, not {len(given)}: use filters instead")
    return [request.control.runs.parse_id(each) for each in given]


def _parsed(name: str, parse: Callable[[], Any], problems: dict[str, str] | None) -> Any:
    try:
        return parse()
    except (ConfigError, RunNotFound, TooLarge, NotSerializable) as error:
        if problems is None:
            raise
        problems[name] = str(error)
        return None


# Search


def _find(request: PageRequest) -> dict[str, Any] | str | PageContent:
    """Search for a text; redirect to the run if it is the key or the beginning of the id of only one."""
    text, after = request.query.get("q", "").strip(), request.query.get("after") or None
    only = None if after else _only_run(request, text)
    if only is not None:
        return only
    values: dict[str, Any] = {"text": text, "results": None, "older": None, "problem": None}
    scope: Any = {"tenant": request.principal.tenant, "scope": request.principal.scope}
    try:
        found = request.control.search.search(
            text, limit=PAGE_SIZE, after=after, seconds=MAX_SEARCH_S if after else 0.0, **scope
        )
    except (ConfigError, RunNotFound) as error:
        return PageContent("find.html", {**values, "problem": str(error)}, 422)
    return {
        **values,
        "results": found,
        "older": link("/find", q=text, after=found.after) if found.after else None,
        "newest": link("/find", q=text) if after else None,
        "matched": {each.run.id: each.matched for each in found.runs},
        "tasks": {task: link("/runs", task=task) for task in found.tasks},
        "more": [(name, link("/runs", **{_FILTER_OF[name]: text})) for name in found.more if name in _FILTER_OF],
        "as_filter": link("/runs", search=text),
        "seconds": MAX_SEARCH_S,
    }


_FILTER_OF = {"id": "id_prefix", "key": "key", "tag": "tag"}


def _only_run(request: PageRequest, text: str) -> str | None:
    if 0 < len(text) <= MAX_KEY_CHARS and text.isprintable():
        with_key = request.control.runs.page(
            key=text, tenant=request.principal.tenant, scope=request.principal.scope, limit=2
        )
        if with_key:
            return f"/runs/{with_key[0].id}" if len(with_key) == 1 else link("/runs", key=text)
    try:
        return f"/runs/{request.principal.find(request.control, text)}"
    except RunNotFound:
        return None


# Bulk actions


def _preview(request: PageRequest) -> dict[str, Any]:
    verb, given = _bulk_action(request.query.get("verb", "")), _with_fixed_period(_given_filters(request.query))
    kept = [(name, one) for name, value in given.items() for one in (value if isinstance(value, list) else [value])]
    return {
        "verb": verb,
        "given": {name: value for name, value in given.items() if value and name not in ("run", "sort")},
        "selected": len(given["run"]),
        "preview": request.control.bulk.preview(verb, RunFilter.of(_to_filter(request, given))),
        "query": str(QueryParams([("verb", verb), *((name, value) for name, value in kept if value)])),
        "back": link("/runs", **{**given, "run": []}),
        "changed": request.query.get("changed", ""),
        "after": request.query.get("after", ""),
    }


def _run_bulk(request: PageRequest) -> str:
    """Run batches for as long as a page may take, then show the preview of the rest."""
    query = QueryParams(request.form.get("query", ""))
    verb, given = _bulk_action(query.get("verb", "")), _given_filters(query)
    matching, after = RunFilter.of(_to_filter(request, given)), request.form.get("after") or None
    bulk, by = request.control.bulk, request.principal.by
    if verb == "cancel":
        reason = request.form.get("reason", "").strip() or None
        gates = request.principal.can_approve
        progress = run_batches(bulk.cancel(matching, reason=reason, by=by, after=after, with_gates=gates))
    else:
        progress = run_batches(bulk.retry(matching, by=by, after=after))
    before = request.form.get("changed", "")
    changed = progress.changed + (int(before) if before.isdecimal() else 0)
    return link("/bulk", **given, verb=verb, changed=str(changed), after=progress.after)


def _bulk_action(given: str) -> Any:
    if given not in BULK_ACTIONS:
        raise ConfigError(f"unknown bulk action {given[:40]!r}: use {' or '.join(BULK_ACTIONS)}")
    return given


PAGES = (
    PageSpec(path="/runs", template="runs.html", section="runs", do=_list, may_lag=True),
    PageSpec(path="/find", template="find.html", section="runs", do=_find, may_lag=True),
    PageSpec(path="/bulk", template="bulk.html", section="runs", do=_preview),
)
ACTIONS = (FormAction(path="/bulk", do=_run_bulk),)
