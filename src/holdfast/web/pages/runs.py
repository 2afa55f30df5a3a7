"""The list of runs, the page of one run, and bulk actions on all matching runs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any
from uuid import UUID

import msgspec
from starlette.datastructures import QueryParams

from holdfast.control.gates import GateInfo
from holdfast.control.retry_preview import RetryPreview
from holdfast.control.runs import Ancestor, RunDetails
from holdfast.errors import ConfigError, NotSerializable, RunNotFound, TooLarge
from holdfast.model.filters import RunFilter
from holdfast.model.metadata import parse_metadata
from holdfast.model.names import MAX_KEY_CHARS
from holdfast.model.run import FINAL_STATES, Page, RunInfo
from holdfast.web.api.runs import run_batches
from holdfast.web.pages.formats import chunk_text
from holdfast.web.pages.graph_layout import layout_graph
from holdfast.web.pages.node_table import build_node_table, group_address
from holdfast.web.pages.page import FormAction, PageContent, PageRequest, PageSpec, parse_json, parse_time
from holdfast.web.pages.render import link
from holdfast.web.pages.timeline import build_timeline

PAGE_SIZE = 50
TEXT_FILTERS = ("task", "queue", "tenant", "tag", "key", "metadata", "error", "id_prefix", "parent", "family")
PLAIN_FILTERS = ("task", "queue", "tag", "key", "error", "id_prefix")
TIME_FILTERS = ("created_from", "created_to", "finished_from", "finished_to")
MAX_STEPS = 200
MAX_HISTORY = 200
MAX_LOG_LINES = 200
MAX_CHUNKS = 500
"""How many of the last chunks the page of a run has."""
MAX_DRAWN_NODES = 10_000
"""Of larger graphs, the page has only the table, whose nodes are read page by page."""
BULK_ACTIONS = ("cancel", "retry")


# List


def _list(request: PageRequest) -> dict[str, Any] | PageContent:
    given = _given_filters(request.query)
    after = request.query.get("after") or None
    problems: dict[str, str] = {}
    filters = _to_filter(request, given, problems)
    found = Page([], None) if problems else request.control.runs.page(**filters, limit=PAGE_SIZE, after=after)
    values = {
        "runs": found,
        "problems": problems,
        "given": given,
        "more_filters": any(given[name] for name in ("id_prefix", "parent", "family", "paused", *TIME_FILTERS)),
        "filtered": any(given.values()),
        "bulk": {verb: link("/bulk", **given, verb=verb) for verb in BULK_ACTIONS},
        "older": link("/runs", **given, after=found.after) if found.after else None,
        "newest": link("/runs", **given) if after else None,
        "live": None if after or problems else "/api/v1/live",
    }
    return PageContent("runs.html", values, 422) if problems else values


def _given_filters(query: QueryParams) -> dict[str, Any]:
    given: dict[str, Any] = {name: query.get(name, "").strip() for name in (*TEXT_FILTERS, *TIME_FILTERS)}
    given["state"] = [state for state in query.getlist("state") if state]
    given["paused"] = "1" if query.get("paused") else ""
    return given


def _to_filter(request: PageRequest, given: dict[str, Any], problems: dict[str, str] | None = None) -> Any:
    """Turn query parameters into a filter of runs that the principal may see.

    What is wrong with them is added to `problems` by the name of the field, or raised without it.
    """
    filters: dict[str, Any] = {name: given[name] or None for name in PLAIN_FILTERS}
    filters["state"] = given["state"] or None
    filters["paused"] = bool(given["paused"])
    filters["tenant"] = request.principal.tenant or given["tenant"] or None
    filters["scope"] = request.principal.scope
    parsers: dict[str, Callable[[str], Any]] = {
        "metadata": lambda text: parse_metadata([text]),
        **{name: partial(parse_time, what=name.replace("_", " ")) for name in TIME_FILTERS},
        **{name: partial(request.principal.find, request.control) for name in ("parent", "family")},
    }
    for name, parse in parsers.items():
        if given[name]:
            filters[name] = _parsed(name, partial(parse, given[name]), problems)
    for name in (*PLAIN_FILTERS, "metadata", "state", "tenant"):
        if problems is not None and filters.get(name):
            only: Any = {name: filters[name]}
            _parsed(name, partial(RunFilter.of, only), problems)
    return filters


def _parsed(name: str, parse: Callable[[], Any], problems: dict[str, str] | None) -> Any:
    try:
        return parse()
    except (ConfigError, RunNotFound, TooLarge, NotSerializable) as error:
        if problems is None:
            raise
        problems[name] = str(error)
        return None


# One run


def _show(request: PageRequest) -> dict[str, Any]:
    info = request.run()
    details = request.control.runs.details(info.id)
    steps = [step for step in details.steps if step.kind != "write"]
    unfinished = info.state not in FINAL_STATES
    graph, drawn = details.graph, None
    if graph is not None and sum(graph.counts.values()) <= MAX_DRAWN_NODES:
        graph = drawn = request.control.graphs.read(info.id) if graph.more_nodes else graph
    return {
        "run": details,
        "info": details.info,
        "metadata": {
            name: link("/runs", metadata=f"{name}={msgspec.json.encode(value).decode()}")
            for name, value in details.info.metadata.items()
        },
        "ancestors": _ancestors(request, details.info.id),
        "timeline": build_timeline(details, datetime.now(UTC)),
        "graph": None if drawn is None else layout_graph(drawn),
        "group_address": group_address,
        "nodes": None if graph is None else build_node_table(graph, request.query, request.control.graphs),
        "gates": _gates(details),
        "steps": steps[-MAX_STEPS:],
        "more_steps": details.more_steps + max(len(steps) - MAX_STEPS, 0),
        "retry": _retry_preview(request, details),
        "may_fork": request.principal.may_fork(info),
        "may_change": _may_change(details),
        "may_cancel": unfinished and (details.kind != "gate" or request.principal.can_approve),
        "history": details.history[-MAX_HISTORY:],
        "more_history": details.more_history + max(len(details.history) - MAX_HISTORY, 0),
        "output": _output(request, info, details.kind),
        "logs": request.control.runs.logs(info.id, tail=MAX_LOG_LINES) if details.kind == "task" else None,
        "live": f"/api/v1/runs/{info.id}/live" if unfinished else None,
    } | _reasons(request, info)


def _output(request: PageRequest, info: RunInfo[Any], kind: str) -> dict[str, Any] | None:
    """Return the end of what a run has written, and where its stream goes on."""
    last = request.control.streams.last(info.id) if kind == "task" else 0
    unfinished = kind == "task" and info.state not in FINAL_STATES
    if not last and not unfinished:
        return None
    first = max(last - MAX_CHUNKS, 0)
    chunks = request.control.streams.transcript(info.id, first, chunk_text)[-MAX_CHUNKS:]
    after = chunks[-1].id if chunks else last
    return {
        "chunks": chunks,
        "omitted": first,
        "after": after,
        "follow": f"/api/v1/runs/{info.id}/stream" if unfinished else None,
    }


def _retry_preview(request: PageRequest, details: RunDetails) -> RetryPreview | None:
    """Return what a retry would do, for runs that the page offers to retry."""
    may_retry = details.info.state in ("failed", "cancelled") and details.node is None and request.principal.can_operate
    return request.control.runs.preview_retry(details.info.id) if may_retry else None


def _ancestors(request: PageRequest, id: UUID) -> list[Ancestor]:
    """Return the runs above a run, the topmost first; only those that the principal may see."""
    above = request.control.runs.ancestors(id)
    seen = []
    for ancestor in reversed(above):
        with suppress(RunNotFound):
            request.principal.run(request.control, ancestor.id)
            seen.append(ancestor)
    return seen[::-1]


def _reasons(request: PageRequest, info: RunInfo[Any]) -> dict[str, Any]:
    """Explain an unfinished run, without the CLI commands that the page has buttons for."""
    if info.state in FINAL_STATES:
        return {"reasons": [], "reasons_heading": ""}
    found = request.control.whys.why(info.id, request.principal.scope).reasons
    texts = [reason.text.partition(": holdfast ")[0].replace("`", "") for reason in found]
    if all(text.startswith("waiting for ") for text in texts):
        return {"reasons": [text.removeprefix("waiting for ") for text in texts], "reasons_heading": "Waiting for"}
    running = any(reason.code == "running" for reason in found)
    return {"reasons": texts, "reasons_heading": "Running" if running else "Why it isn't running"}


def _gates(details: RunDetails) -> list[GateInfo]:
    """Return the gates to show: those that are open or decided, of a graph or of the run itself."""
    gates = [] if details.graph is None else details.graph.gates
    gates = [*gates, details.gate] if details.gate is not None else gates
    return [gate for gate in gates if gate.state == "waiting" or gate.decided_at is not None]


def _pause(request: PageRequest) -> str:
    pause = request.form.get("verb") != "resume"
    change = request.control.runs.pause if pause else request.control.runs.resume
    change(request.run().id, by=request.principal.by)
    return link(f"/runs/{request.id}", did="paused" if pause else "resumed")


def _cancel(request: PageRequest) -> str:
    reason = request.form.get("reason", "").strip() or None
    run = request.principal.run_to_cancel(request.control, request.id)
    changed = request.control.runs.cancel(run.id, reason, by=request.principal.by)
    return link(f"/runs/{request.id}", did="cancelled" if changed else "had-ended")


def _retry(request: PageRequest) -> str:
    args = _arguments(request)
    run = request.principal.run_to_change(request.control, request.id, args=args)
    changed = request.control.runs.retry(run.id, by=request.principal.by, args=args)
    return link(f"/runs/{request.id}", did="retried" if changed else "was-unfinished")


def _arguments(request: PageRequest) -> Any:
    """Return the arguments of a form: a JSON object or array, None if the field is empty."""
    args = parse_json(request.form.get("args", ""), "the arguments")
    if args is not None and not isinstance(args, list | dict):
        raise ConfigError("the arguments must be a JSON object (by name) or array")
    return args


def _update(request: PageRequest) -> str:
    """Change what the form's fields say; empty ones stay as they are."""
    form = {name: text.strip() for name, text in request.form.items()}
    args, priority = _arguments(request), None
    if form.get("priority"):
        try:
            priority = int(form["priority"])
        except ValueError:
            raise ConfigError(f"the priority must be a whole number, not {form['priority'][:40]!r}") from None
    run_at = parse_time(form["run_at"], "the time") if form.get("run_at") else None
    tags = [tag.strip() for tag in form["tags"].split(",") if tag.strip()] if form.get("tags") else None
    run = request.principal.run_to_change(request.control, request.id, args=args, priority=priority)
    if (priority, run_at, args, tags) == (None, None, None, None):
        return link(f"/runs/{request.id}", did="nothing-given")
    changes: dict[str, Any] = {"priority": priority, "run_at": run_at, "args": args, "tags": tags}
    request.control.runs.update(run.id, **changes, by=request.principal.by)
    return link(f"/runs/{request.id}", did="updated")


def _may_change(details: RunDetails) -> str | None:
    """Return what of a run can be changed: "all" before its start, "time" of a scheduled retry or a sleep, or None."""
    info = details.info
    if details.kind != "task" or info.state in FINAL_STATES:
        return None
    if info.started_at is None and info.attempt == 0 and info.state in ("ready", "scheduled", "blocked"):
        return "all" if info.state != "blocked" else "order"
    sleeps = info.state == "waiting" and [wait.kind for wait in details.waits] == ["sleep"]
    return "time" if sleeps or info.state == "scheduled" else None


def _fork(request: PageRequest) -> str:
    from_step = request.form.get("from_step", "").strip() or None
    args = _arguments(request)
    from_failed = request.form.get("from_failed") == "1"
    run = request.principal.run_to_fork(request.control, request.id)
    fork = request.control.runs.fork(run.id, from_step, args, by=request.principal.by, from_failed=from_failed)
    return link(f"/runs/{fork}", did="forked")


def _send(request: PageRequest) -> str:
    payload = parse_json(request.form.get("payload", ""), "the payload")
    topic = request.form.get("topic", "").strip()
    request.control.runs.send(request.run().id, topic, payload, by=request.principal.by)
    return link(f"/runs/{request.id}", did="sent")


def _resend(request: PageRequest) -> str:
    run, number, text = request.run().id, request.form.get("message", ""), request.form.get("payload", "")
    if not number.isdecimal():
        raise ConfigError(f"the message must be a number, not {number[:40]!r}")
    request.control.runs.resend(run, int(number), parse_json(text, "the payload"), by=request.principal.by)
    return link(f"/runs/{request.id}", did="sent")


def _find(request: PageRequest) -> dict[str, Any] | str:
    """Redirect to the runs with the given key, or to the run whose id begins with the given text."""
    given = request.query.get("id", "").strip()
    if 0 < len(given) <= MAX_KEY_CHARS and given.isprintable():
        with_key = request.control.runs.page(key=given, scope=request.principal.scope, limit=2)
        if with_key:
            return f"/runs/{with_key[0].id}" if len(with_key) == 1 else link("/runs", key=given)
    try:
        return f"/runs/{request.principal.find(request.control, given)}"
    except RunNotFound as error:
        return {"given": given, "detail": str(error)}


# Bulk actions


def _preview(request: PageRequest) -> dict[str, Any]:
    verb, given = _bulk_action(request.query.get("verb", "")), _given_filters(request.query)
    kept = [(name, value) for name, value in request.query.multi_items() if name in (*given, "verb")]
    return {
        "verb": verb,
        "given": {name: value for name, value in given.items() if value},
        "preview": request.control.bulk.preview(verb, RunFilter.of(_to_filter(request, given))),
        "query": str(QueryParams(kept)),
        "back": link("/runs", **given),
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
    PageSpec(path="/runs", template="runs.html", section="runs", do=_list),
    PageSpec(path="/find", template="find.html", section="runs", do=_find),
    PageSpec(path="/runs/{id}", template="run.html", section="runs", do=_show),
    PageSpec(path="/bulk", template="bulk.html", section="runs", do=_preview),
)
ACTIONS = (
    FormAction(path="/runs/{id}/cancel", do=_cancel),
    FormAction(path="/runs/{id}/pause", do=_pause),
    FormAction(path="/runs/{id}/retry", do=_retry),
    FormAction(path="/runs/{id}/update", do=_update),
    FormAction(path="/runs/{id}/fork", do=_fork),
    FormAction(path="/runs/{id}/send", do=_send),
    FormAction(path="/runs/{id}/resend", do=_resend),
    FormAction(path="/bulk", do=_run_bulk),
)
