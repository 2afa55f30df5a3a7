"""Acts on many runs: first what they would be done to, then batch by batch, each as long as a page may take."""

from __future__ import annotations

from typing import Any

from starlette.datastructures import QueryParams

from holdfast.errors import ConfigError
from holdfast.model.filters import RunFilter
from holdfast.web.api.many import until_late
from holdfast.web.pages.render import link
from holdfast.web.pages.runs import filter_of, given_in
from holdfast.web.pages.table import Action, Page, Visit

VERBS = ("cancel", "retry")


def _preview(visit: Visit) -> dict[str, Any]:
    verb, given = _verb(visit.query.get("verb", "")), given_in(visit.query)
    query = str(QueryParams([(name, value) for name, value in visit.query.multi_items() if name in (*given, "verb")]))
    return {
        "verb": verb,
        "given": {name: value for name, value in given.items() if value},
        "preview": visit.control.bulk.preview(verb, RunFilter.of(filter_of(visit, given))),
        "query": query,
        "back": link("/runs", **given),
        "changed": visit.query.get("changed", ""),
        "after": visit.query.get("after", ""),
    }


def _act(visit: Visit) -> str:
    asked = QueryParams(visit.form.get("query", ""))
    verb, given = _verb(asked.get("verb", "")), given_in(asked)
    wanted, after = RunFilter.of(filter_of(visit, given)), visit.form.get("after") or None
    bulk, by = visit.control.bulk, visit.visitor.by
    reason = visit.form.get("reason", "").strip() or None
    if verb == "cancel":
        progress = until_late(bulk.cancel(wanted, reason=reason, by=by, after=after))
    else:
        progress = until_late(bulk.retry(wanted, by=by, after=after))
    before = visit.form.get("changed", "")
    changed = progress.changed + (int(before) if before.isdecimal() else 0)
    return link("/bulk", **given, verb=verb, changed=str(changed), after=progress.after)


def _verb(given: str) -> Any:
    if given not in VERBS:
        raise ConfigError(f"many runs can be given a {' or a '.join(VERBS)}, not a {given[:40]!r}")
    return given


PAGES = (Page(path="/bulk", template="bulk.html", section="runs", do=_preview),)
ACTIONS = (Action(path="/bulk", do=_act),)
