"""The page of one run, and what its forms do."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec

from holdfast.control.explainer import WAITS
from holdfast.control.gates import GateInfo
from holdfast.control.retry_preview import RetryPreview
from holdfast.control.runs import Ancestor, RunDetails
from holdfast.errors import ConfigError, RunNotFound
from holdfast.model.explanation import Reason
from holdfast.model.run import FINAL_STATES, RunInfo
from holdfast.model.secret import MASK
from holdfast.web.pages.formats import chunk_text, json_text
from holdfast.web.pages.graph_layout import layout_graph
from holdfast.web.pages.node_table import build_node_table, group_address
from holdfast.web.pages.page import FormAction, PageRequest, PageSpec, parse_json, parse_time
from holdfast.web.pages.render import link
from holdfast.web.pages.timeline import build_timeline
from holdfast.web.pages.tree_chart import parse_zoom, zoom_links

MAX_STEPS = 200
MAX_HISTORY = 200
MAX_LOG_LINES = 200
MAX_SEARCH_CHARS = 200
MAX_EDITED_CHARS = 20_000
"""Longer arguments aren't filled into the form that changes them."""
CHANGEABLE = ("priority", "run_at", "tags", "args")
MAX_CHUNKS = 500
"""How many of the last chunks the page of a run has."""
MAX_DRAWN_NODES = 10_000
"""Of larger graphs, the page has only the table, whose nodes are read page by page."""
LOG_LEVELS = ("debug", "info", "warning", "error")
_REASON_PAGES = {
    "event": ("events", "/events", "all_tasks"),
    "topic": ("topics", "/topics", "all_tasks"),
    "limit": ("limits", "/limits", "all_tenants"),
    "budget": ("budgets", "/budgets", "all_tenants"),
    "no_worker": ("workers", "/workers", "all_tenants"),
    "no_queue": ("workers", "/workers", "all_tenants"),
    "busy": ("workers", "/workers", "all_tenants"),
    "unhealthy": ("workers", "/workers", "all_tenants"),
    "preferred": ("workers", "/workers", "all_tenants"),
}


def _show(request: PageRequest) -> dict[str, Any]:
    info = request.run()
    details = request.control.runs.details(info.id)
    steps = [step for step in details.steps if step.kind != "write"]
    unfinished = info.state not in FINAL_STATES
    graph, drawn = details.graph, None
    awaited = sorted({wait.name for wait in details.waits if wait.kind == "message" and wait.name})
    if graph is not None and sum(graph.counts.values()) <= MAX_DRAWN_NODES:
        graph = drawn = request.control.graphs.read(info.id) if graph.more_nodes else graph
    return {
        "run": details,
        "info": details.info,
        "awaited": awaited,
        "topics": awaited or _declared_topics(request, details.info.task),
        "metadata": {
            name: link("/runs", metadata=f"{name}={msgspec.json.encode(value).decode()}")
            for name, value in details.info.metadata.items()
        },
        "ancestors": _ancestors(request, details.info.id),
        "timeline": build_timeline(details, datetime.now(UTC)),
        "graph": None if drawn is None else layout_graph(drawn),
        "graph_zoom": zoom_links(f"/runs/{info.id}", parse_zoom(request.query.get("zoom", ""))),
        "group_address": group_address,
        "nodes": None if graph is None else build_node_table(graph, request.query, request.control.graphs),
        "gates": _gates(details),
        "steps": steps[-MAX_STEPS:],
        "more_steps": details.more_steps + max(len(steps) - MAX_STEPS, 0),
        "retry": _retry_preview(request, details),
        "may_fork": request.principal.may_fork(info),
        "may_change": _may_change(details),
        "changeable": _changeable(details),
        "may_cancel": unfinished and (details.kind != "gate" or request.principal.can_approve),
        "history": details.history[-MAX_HISTORY:],
        "more_history": details.more_history + max(len(details.history) - MAX_HISTORY, 0),
        "output": _output(request, info, details.kind),
        "logs": _logs(request, info.id) if details.kind == "task" else None,
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


def _logs(request: PageRequest, id: UUID) -> dict[str, Any]:
    """Return the last lines that match the filter of the page's address."""
    level, search = request.query.get("log_level", ""), request.query.get("log_search", "")[:MAX_SEARCH_CHARS]
    level = level if level in LOG_LEVELS else ""
    lines = request.control.runs.logs(id, level or None, search or None, tail=MAX_LOG_LINES)
    filtered = bool(level or search)
    return {"lines": lines, "level": level, "search": search, "LEVELS": LOG_LEVELS, "is_filtered": filtered}


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
    """Explain an unfinished run; the page has buttons for what the commands do."""
    if info.state in FINAL_STATES:
        return {"reasons": [], "reasons_heading": ""}
    found = request.control.whys.why(info.id, request.principal.scope).reasons
    texts = [reason.text.replace("`", "") for reason in found]
    heading = "Running" if any(reason.code == "running" for reason in found) else "Why it isn't running"
    if all(text.startswith("waiting for ") for text in texts):
        texts, heading = [text.removeprefix("waiting for ") for text in texts], "Waiting for"
    reasons = [
        {
            "text": text,
            "since": reason.data.get("since") if reason.code in WAITS else None,
            "link": _reason_link(request, reason),
        }
        for text, reason in zip(texts, found, strict=True)
    ]
    return {"reasons": reasons, "reasons_heading": heading}


def _reason_link(request: PageRequest, reason: Reason) -> tuple[str, str] | None:
    """Return where to act on a reason: a label and an address. Runs are linked in its text."""
    if reason.code == "gate":
        return "review", f"/gates/{reason.data['id']}"
    label, path, needs = _REASON_PAGES.get(reason.code, ("", "", ""))
    return (label, path) if path and request.principal.may_open(needs) else None


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
    """Change what differs from what the form showed (`was_…`), so that it doesn't undo what others changed meanwhile.

    Without a value, a field stays as it is, except tags, which can be removed.
    """
    form = {name: text.strip().replace("\r\n", "\n") for name, text in request.form.items()}
    changed = {name: form.get(name, "") != form.get(f"was_{name}", "") for name in CHANGEABLE}
    args, priority, run_at, tags = None, None, None, None
    if changed["args"]:
        args = _arguments(request)
    if changed["priority"]:
        try:
            priority = int(form["priority"])
        except ValueError:
            raise ConfigError(f"the priority must be a whole number, not {form['priority'][:40]!r}") from None
    if changed["run_at"] and form["run_at"]:
        run_at = parse_time(form["run_at"], "the time")
        # Browsers leave out seconds that are zero.
        if form.get("was_run_at") and run_at == parse_time(form["was_run_at"], "the time"):
            run_at = None
    if changed["tags"]:
        tags = [tag.strip() for tag in form["tags"].split(",") if tag.strip()]
    run = request.principal.run_to_change(request.control, request.id, args=args, priority=priority)
    if (priority, run_at, args, tags) == (None, None, None, None):
        return link(f"/runs/{request.id}", did="nothing-given")
    changes: dict[str, Any] = {"priority": priority, "run_at": run_at, "args": args, "tags": tags}
    request.control.runs.update(run.id, **changes, by=request.principal.by)
    return link(f"/runs/{request.id}", did="updated")


def _declared_topics(request: PageRequest, task: str) -> list[str]:
    """Return the topics for which the code of a task declares types, if this app has the code."""
    known = request.context.app.registry.names().get(task)
    return sorted(known.declaration.receives) if known is not None else []


def _changeable(details: RunDetails) -> dict[str, str]:
    """Return the current values of a run as its form shows them. Arguments that aren't shown in full are left out."""
    info, args = details.info, ""
    if isinstance(details.args, dict | list) and "*" not in details.args:
        args = json_text(details.args).text
    if len(args) > MAX_EDITED_CHARS or MASK in args:
        args = ""
    due = info.due_at if info.state in ("scheduled", "waiting") else None
    run_at = "" if due is None else f"{due.astimezone(UTC):%Y-%m-%dT%H:%M:%S}"
    return {"priority": str(info.priority), "run_at": run_at, "tags": ", ".join(info.tags), "args": args}


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


PAGES = (PageSpec(path="/runs/{id}", template="run.html", section="runs", do=_show),)
ACTIONS = (
    FormAction(path="/runs/{id}/cancel", do=_cancel),
    FormAction(path="/runs/{id}/pause", do=_pause),
    FormAction(path="/runs/{id}/retry", do=_retry),
    FormAction(path="/runs/{id}/update", do=_update),
    FormAction(path="/runs/{id}/fork", do=_fork),
    FormAction(path="/runs/{id}/send", do=_send),
    FormAction(path="/runs/{id}/resend", do=_resend),
)
