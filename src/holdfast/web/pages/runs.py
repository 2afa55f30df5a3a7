"""The list of runs: filters in the address, newest first, a page at a time."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
from starlette.datastructures import QueryParams

from holdfast.errors import ConfigError, RunNotFound
from holdfast.model.filters import RunFilter
from holdfast.model.run import FINAL_STATES
from holdfast.web.api.bulk import advance
from holdfast.web.pages.forms import fields_of
from holdfast.web.pages.graph_layout import layout_graph
from holdfast.web.pages.page import FormAction, PageRequest, PageSpec
from holdfast.web.pages.render import link
from holdfast.web.pages.timeline import build_timeline

PAGE = 50
TEXTS = ("task", "queue", "tenant", "tag", "error", "id_prefix", "parent", "family")
TIMES = ("created_from", "created_to", "finished_from", "finished_to")


def _list(visit: PageRequest) -> dict[str, Any]:
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


def filter_of(visit: PageRequest, given: dict[str, Any]) -> Any:
    """What was typed as a filter of runs that the visitor may see."""
    asked: dict[str, Any] = {name: given[name] or None for name in ("task", "queue", "tag", "error", "id_prefix")}
    asked["state"] = given["state"] or None
    asked["tenant"] = visit.principal.tenant or given["tenant"] or None
    asked |= {name: _time(given[name], name) for name in TIMES if given[name]}
    asked |= {name: visit.principal.find(visit.control, given[name]) for name in ("parent", "family") if given[name]}
    return asked


def _time(text: str, name: str) -> datetime:
    """A time as browsers write it, which is meant in UTC unless it says otherwise."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        what = name.replace("_", " ")
        raise ConfigError(f"{what} must be a time like 2026-11-16T08:00, not {text[:60]!r}") from None
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


SHOWN_STEPS = 200
SHOWN_ENTRIES = 200


def _show(visit: PageRequest) -> dict[str, Any]:
    info = visit.run()
    details = visit.control.runs.details(info.id)
    now = datetime.now(UTC)
    steps = [step for step in details.steps if step.kind != "write"]
    return {
        "run": details,
        "info": details.info,
        "reasons": []
        if info.state in FINAL_STATES
        else visit.control.whys.why(info.id, visit.principal.tenant).reasons,
        "timeline": build_timeline(details, now),
        "picture": None if details.graph is None else layout_graph(details.graph),
        "gates": [] if details.graph is None else _open_gates(details.graph.gates),
        "steps": steps[-SHOWN_STEPS:],
        "more_steps": max(len(steps) - SHOWN_STEPS, 0),
        "history": details.history[-SHOWN_ENTRIES:],
        "more_history": max(len(details.history) - SHOWN_ENTRIES, 0),
        "live": None if info.state in FINAL_STATES else f"/api/v1/runs/{info.id}/live",
    }


def _open_gates(gates: list[Any]) -> list[tuple[Any, Any]]:
    return [(gate, fields_of(gate.schema)) for gate in gates if gate.state == "waiting"]


def _cancel(visit: PageRequest) -> str:
    reason = visit.form.get("reason", "").strip() or None
    changed = visit.control.runs.cancel(visit.run().id, reason, by=visit.principal.by)
    return link(f"/runs/{visit.id}", did="cancelled" if changed else "had-ended")


def _retry(visit: PageRequest) -> str:
    changed = visit.control.runs.retry(visit.run().id, by=visit.principal.by)
    return link(f"/runs/{visit.id}", did="retried" if changed else "was-unfinished")


def _fork(visit: PageRequest) -> str:
    from_step = visit.form.get("from_step", "").strip() or None
    args = _json(visit.form.get("args", ""), "the arguments")
    fork = visit.control.runs.fork(visit.run().id, from_step, args, by=visit.principal.by)
    return link(f"/runs/{fork}", did="forked")


def _send(visit: PageRequest) -> str:
    payload = _json(visit.form.get("payload", ""), "the payload")
    visit.control.runs.send(visit.run().id, visit.form.get("topic", "").strip(), payload, by=visit.principal.by)
    return link(f"/runs/{visit.id}", did="sent")


def _json(text: str, what: str) -> Any:
    """What was typed as JSON; nothing is null."""
    if not text.strip():
        return None
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise ConfigError(f'{what} must be JSON, like {{"ok": true}} or "text": {error}') from None


def _find(visit: PageRequest) -> dict[str, Any] | str:
    """What was typed into the field for ids: the run whose id begins so."""
    given = visit.query.get("id", "").strip()
    try:
        return f"/runs/{visit.principal.find(visit.control, given)}"
    except RunNotFound as error:
        return {"given": given, "detail": str(error)}


VERBS = ("cancel", "retry")


def _preview(visit: PageRequest) -> dict[str, Any]:
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


def _act(visit: PageRequest) -> str:
    asked = QueryParams(visit.form.get("query", ""))
    verb, given = _verb(asked.get("verb", "")), given_in(asked)
    wanted, after = RunFilter.of(filter_of(visit, given)), visit.form.get("after") or None
    bulk, by = visit.control.bulk, visit.principal.by
    reason = visit.form.get("reason", "").strip() or None
    if verb == "cancel":
        progress = advance(bulk.cancel(wanted, reason=reason, by=by, after=after))
    else:
        progress = advance(bulk.retry(wanted, by=by, after=after))
    before = visit.form.get("changed", "")
    changed = progress.changed + (int(before) if before.isdecimal() else 0)
    return link("/bulk", **given, verb=verb, changed=str(changed), after=progress.after)


def _verb(given: str) -> Any:
    if given not in VERBS:
        raise ConfigError(f"many runs can be given a {' or a '.join(VERBS)}, not a {given[:40]!r}")
    return given


PAGES = (
    PageSpec(path="/runs", template="runs.html", section="runs", do=_list),
    PageSpec(path="/find", template="find.html", section="runs", do=_find),
    PageSpec(path="/runs/{id}", template="run.html", section="runs", do=_show),
    PageSpec(path="/bulk", template="bulk.html", section="runs", do=_preview),
)
ACTIONS = (
    FormAction(path="/runs/{id}/cancel", do=_cancel),
    FormAction(path="/runs/{id}/retry", do=_retry),
    FormAction(path="/runs/{id}/fork", do=_fork),
    FormAction(path="/runs/{id}/send", do=_send),
    FormAction(path="/bulk", do=_act),
)
