"""API operations on runs: list, inspect, enqueue and change them, one by one or in bulk."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Literal, Protocol, TypeVar
from uuid import UUID

import msgspec

from holdfast.control.bulk import BulkAction, BulkPreview, BulkProgress
from holdfast.control.graphs import GraphInfo
from holdfast.control.retry_preview import RetryPreview
from holdfast.control.runs import RunDetails
from holdfast.control.steps import StepInfo, UnfinishedStep, WaitInfo
from holdfast.errors import UnknownTask
from holdfast.model.explanation import Reason
from holdfast.model.filters import NEWEST_FIRST, RunFilter
from holdfast.model.history import Entry
from holdfast.model.metadata import parse_metadata
from holdfast.model.run import RunInfo, RunState
from holdfast.model.run_logs import LogLevel, LogLine
from holdfast.model.search_results import SearchResults
from holdfast.task.options import Declaration
from holdfast.task.task import Task
from holdfast.web.api.operation import ApiRequest, Operation
from holdfast.web.auth import Principal, SiteContext
from holdfast.web.responses import RequestError

MAX_PAGE = 200
MAX_SEARCH_S = 2.0
BULK_RESPONSE_S = 5.0
"""A bulk action responds with its progress after this time."""
CHANGED = {"changed": bool}
T = TypeVar("T")


class RunFilterBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Runs that match all given conditions; `error` matches a part of the error. `metadata`: pairs such as `order=42`,
    whose values are JSON or text. `search`: a text in the key, the tags, the arguments or the error. `top_level`: no
    children and no nodes of graphs. `ids`: only these runs."""

    state: list[RunState] = []
    task: str | None = None
    queue: str | None = None
    tenant: str | None = None
    tag: str | None = None
    created_from: datetime | None = None
    created_to: datetime | None = None
    finished_from: datetime | None = None
    finished_to: datetime | None = None
    error: str | None = None
    key: str | None = None
    metadata: list[str] = []
    id_prefix: str | None = None
    parent: UUID | None = None
    family: UUID | None = None
    paused: bool = False
    top_level: bool = False
    search: str | None = None
    ids: list[UUID] = []


class RunsQuery(RunFilterBody, forbid_unknown_fields=True, kw_only=True):
    """A filter, the order, the page size and the cursor. `state` may be repeated. `sort`: `created`, `finished` or
    `due`; a minus in front means the last first."""

    sort: str = NEWEST_FIRST
    limit: int = 50
    after: str | None = None


class SearchQuery(RunFilterBody, forbid_unknown_fields=True, kw_only=True):
    """The text to search for, a filter, the page size, the `after` of the previous page, and how many seconds the scan
    may take, at most 2."""

    text: str
    limit: int = 50
    after: str | None = None
    seconds: float = 0.0


class RunsPage(msgspec.Struct):
    """A page of runs; pass `after` to get the next one. `partial`: the scan stopped early because very many runs didn't
    match, so the page may be short or empty although more follow. `scanned`: how many runs were read. `hidden`: of a
    `search`, how many of them have arguments that can't be searched."""

    runs: list[RunInfo[Any]]
    after: str | None
    partial: bool
    scanned: int
    hidden: int


class EnqueueRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A call of a task. `args` are positional, `kwargs` named arguments. `remote`: accept any task name, for code that
    the server doesn't have. Durations are seconds."""

    task: str
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    queue: str | None = None
    priority: int | None = None
    delay: float | None = None
    key: str | None = None
    unique: str | None = None
    if_taken: Literal["return", "queue", "replace", "cancel"] | None = None
    debounce: str | None = None
    max_delay: float | None = None
    start_by: float | None = None
    key_ttl: float | None = None
    tenant: str | None = None
    tags: list[str] | None = None
    metadata: dict[str, Any] | None = None
    timeout: float | None = None
    deadline: float | None = None
    remote: bool = False


class RunCreated(msgspec.Struct):
    """The new run. With status 200 and `created` false: the existing one of its `key`, `unique` or `debounce` name."""

    id: UUID
    task: str
    created: bool


class CancelRequest(msgspec.Struct, forbid_unknown_fields=True):
    """An optional reason, kept with the run."""

    reason: str | None = None


class ForkRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The step, or the node of a graph, to fork from, and arguments to replace the run's own. `from_failed`: run only
    those nodes of a graph again that failed, and what depends on them."""

    from_step: str | None = None
    args: list[Any] | dict[str, Any] | None = None
    from_failed: bool = False


class RetryRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments to run with from now on, by position or by name; with them, the run starts over."""

    args: list[Any] | dict[str, Any] | None = None


class UpdateRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What to change of a run that hasn't started; members that are left out stay. `run_at` has an offset."""

    priority: int | None = None
    run_at: datetime | None = None
    args: list[Any] | dict[str, Any] | None = None
    tags: list[str] | None = None


class MessageRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A message for `ctx.receive(topic)`."""

    topic: str
    payload: Any = None


class ResendRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A payload to send instead of the message; without it, the same message is sent again."""

    payload: Any = msgspec.UNSET


class PartQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The page size, and the `after` of the previous page."""

    limit: int = MAX_PAGE
    after: int = 0


class HistoryPage(msgspec.Struct):
    """A page of a run's history, oldest entry first."""

    entries: list[Entry]
    after: int | None


class LogsQuery(PartQuery, forbid_unknown_fields=True, kw_only=True):
    """The lowest level, a text to search for, the page size, and the `seq` of the last line of the previous page."""

    level: LogLevel | None = None
    search: str | None = None


class LogsPage(msgspec.Struct):
    """Lines that a run has logged, oldest first. `dropped`: how many of them aren't kept. Pass `after` to get the next
    page; without one, pass the `seq` of the last line later to get new lines."""

    lines: list[LogLine]
    dropped: int
    after: int | None


class StepsPage(msgspec.Struct):
    """A page of a durable function's checkpoints, in order, its steps that are tried again, and its pending waits."""

    steps: list[StepInfo]
    unfinished: list[UnfinishedStep]
    waits: list[WaitInfo]
    after: int | None


class GraphPage(GraphInfo, frozen=True, kw_only=True):
    """A page of a graph's nodes, in the order in which they were added, and its gates."""

    after: int | None


class BulkRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which runs to change. Pass the `after` of the previous response's `progress` to continue."""

    filter: RunFilterBody
    reason: str | None = None
    after: str | None = None


class PreviewRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A bulk action, and the runs to apply it to."""

    verb: BulkAction
    filter: RunFilterBody


def page_size(limit: int) -> int:
    if not 1 <= limit <= MAX_PAGE:
        raise RequestError(422, f"limit must be between 1 and {MAX_PAGE}; use after for more", "invalid")
    return limit


def _window(query: PartQuery) -> tuple[int, int]:
    """Return the offset and the size of a page of a list that only grows at its end."""
    if query.after < 0:
        raise RequestError(422, "after must be the value from the previous response", "invalid")
    return query.after, page_size(query.limit)


def _next(query: PartQuery, total: int) -> int | None:
    """Return the offset of the next page."""
    end = query.after + query.limit
    return end if end < total else None


def effective_tenant(call: ApiRequest, requested: str | None) -> str | None:
    """Return the tenant that a request is about: the token's own, if it has one."""
    own = call.principal.tenant
    if own is not None and requested not in (None, own):
        raise RequestError(403, f"this token is limited to tenant {own}", "one_tenant")
    return own or requested


def _list(call: ApiRequest) -> RunsPage:
    query: RunsQuery = call.query
    own = call.principal.tenant
    if own is not None and query.tenant not in (None, own):
        return RunsPage([], None, False, 0, 0)
    page = call.control.runs.page(**_listing(call))
    return RunsPage(list(page), page.after, page.partial, page.scanned, page.hidden)


def _listing(call: ApiRequest) -> Any:
    """Return the parameters of a query for runs, limited to those that the principal may see."""
    query = call.query
    return {
        **msgspec.structs.asdict(query),
        "tenant": call.principal.tenant or query.tenant,
        "limit": page_size(query.limit),
        "metadata": parse_metadata(query.metadata),
        "scope": call.principal.scope,
    }


def _search(call: ApiRequest) -> SearchResults:
    query: SearchQuery = call.query
    if call.principal.tenant is not None and query.tenant not in (None, call.principal.tenant):
        return SearchResults(query.text, [], [], [], 0, None, 0, None)
    if not 0 <= query.seconds <= MAX_SEARCH_S:
        raise RequestError(422, f"seconds must be between 0 and {MAX_SEARCH_S:g}; use after to continue", "invalid")
    return call.control.search.search(**_listing(call))


def _enqueue(call: ApiRequest) -> RunCreated:
    body: EnqueueRequest = call.body
    names = (
        "queue", "priority", "key", "unique", "if_taken", "debounce", "max_delay", "tags", "metadata", "delay",
        "timeout", "deadline", "start_by", "key_ttl",
    )  # fmt: skip
    options: dict[str, Any] = {name: getattr(body, name) for name in names}
    options["tenant"] = effective_tenant(call, body.tenant)
    task = requested_task(call, body.task, body.remote, body.queue, body.priority)
    task = task.options(**{name: value for name, value in options.items() if value is not None})
    run = call.context.app.enqueue_many([task.request(*body.args, **body.kwargs)])[0]
    return RunCreated(run.id, run.task, run.created)


class Caller(Protocol):
    """A request for an API operation or a page."""

    @property
    def context(self) -> SiteContext: ...

    @property
    def principal(self) -> Principal: ...


def requested_task(call: Caller, name: str, remote: bool, queue: str | None, priority: int | None) -> Task[..., Any]:
    """Return the task to create runs of, if the token may do that with this queue and priority."""
    app = call.context.app
    try:
        task = app.remote(name) if remote else app.registry.get(name)
    except UnknownTask as error:
        raise UnknownTask(f"{error}; pass remote=true to enqueue a task that this server does not have") from None
    if not call.principal.can_administer:
        _check_enqueue(call, task.declaration, remote, queue or task.declaration.queue, priority)
    return task


def _check_enqueue(call: Caller, task: Declaration, remote: bool, queue: str, priority: int | None) -> None:
    """Raise a 403 unless the task, the queue and the priority are within the scope of the token.

    A name that the scope of the token lists may be new. Otherwise the app must declare it: each new pair of queue and
    task is one more for workers to claim from. A priority above that of the task needs permission, too, because it
    delays the runs of others.
    """
    scope = call.principal.scope
    if not scope.covers_lane(queue, task.name):
        raise RequestError(403, f"this token is limited to {call.principal.limits}", "scope")
    if remote and scope.tasks is None:
        detail = "this token may not enqueue tasks that this server does not have: create one with `--task NAME`"
        raise RequestError(403, detail, "remote_task")
    if queue != task.queue and scope.queues is None and not call.context.app.registry.has_queue(queue):
        detail = f"this token may not create queue {queue[:100]!r}: declare it in the app, or create one with `--queue`"
        raise RequestError(403, detail, "new_queue")
    highest = task.priority if scope.max_priority is None else max(task.priority, scope.max_priority)
    if priority is not None and priority > highest:
        detail = f"the highest priority for this token and task is {highest}; create one with `--max-priority`"
        raise RequestError(403, detail, "priority")


def _details(call: ApiRequest) -> RunDetails:
    return call.control.runs.details(call.run().id)


def _cancel(call: ApiRequest) -> dict[str, bool]:
    run = call.principal.run_to_cancel(call.control, call.control.runs.parse_id(call.path["id"]))
    return {"changed": call.control.runs.cancel(run.id, call.body.reason, by=call.principal.by)}


def _retry(call: ApiRequest) -> dict[str, bool]:
    run = call.principal.run_to_change(call.control, call.control.runs.parse_id(call.path["id"]), args=call.body.args)
    return {"changed": call.control.runs.retry(run.id, by=call.principal.by, args=call.body.args)}


def _update(call: ApiRequest) -> dict[str, bool]:
    body, id = call.body, call.control.runs.parse_id(call.path["id"])
    run = call.principal.run_to_change(call.control, id, args=body.args, priority=body.priority)
    call.control.runs.update(
        run.id, priority=body.priority, run_at=body.run_at, args=body.args, tags=body.tags, by=call.principal.by
    )
    return {"changed": True}


def _pause(call: ApiRequest) -> dict[str, bool]:
    return {"changed": call.control.runs.pause(call.run().id, by=call.principal.by)}


def _resume(call: ApiRequest) -> dict[str, bool]:
    return {"changed": call.control.runs.resume(call.run().id, by=call.principal.by)}


def _retry_preview(call: ApiRequest) -> RetryPreview:
    return call.control.runs.preview_retry(call.run().id)


def _fork(call: ApiRequest) -> RunCreated:
    info = call.principal.run_to_fork(call.control, call.control.runs.parse_id(call.path["id"]))
    body: ForkRequest = call.body
    fork = call.control.runs.fork(
        info.id, body.from_step, body.args, by=call.principal.by, from_failed=body.from_failed
    )
    return RunCreated(fork, info.task, created=True)


def _send(call: ApiRequest) -> dict[str, bool]:
    call.control.runs.send(call.run().id, call.body.topic, call.body.payload, by=call.principal.by)
    return {"changed": True}


def _resend(call: ApiRequest) -> dict[str, bool]:
    number = call.path["number"]
    if not number.isdecimal():
        raise RequestError(404, f"messages have numbers, not {number[:40]!r}", "not_found")
    call.control.runs.resend(call.run().id, int(number), call.body.payload, by=call.principal.by)
    return {"changed": True}


def _history(call: ApiRequest) -> HistoryPage:
    entries, total = call.control.runs.history_part(call.run().id, *_window(call.query))
    return HistoryPage(entries, _next(call.query, total))


def _logs(call: ApiRequest) -> LogsPage:
    query, (after, size) = call.query, _window(call.query)
    found = call.control.runs.logs(call.run().id, query.level, query.search, after, size)
    return LogsPage(list(found), found.dropped, found.after)


def _steps(call: ApiRequest) -> StepsPage:
    id = call.run().id
    found = call.control.runs.step_list(id, *_window(call.query))
    after = _next(call.query, found.total)
    return StepsPage(found.recorded, found.unfinished, call.control.runs.waits(id), after)


def _why(call: ApiRequest) -> dict[str, list[Reason]]:
    return {"reasons": call.control.whys.why(call.run().id, call.principal.scope).reasons}


def _graph(call: ApiRequest) -> GraphPage:
    start, size = _window(call.query)
    graph = call.control.graphs.page(call.run().id, start, size)
    after = _next(call.query, sum(graph.counts.values()))
    return GraphPage(graph.id, graph.counts, graph.nodes, graph.gates, graph.more_nodes, after=after)


def _bulk_filter(call: ApiRequest) -> RunFilter:
    given: Any = msgspec.structs.asdict(call.body.filter)
    given["metadata"] = parse_metadata(given["metadata"])
    scope, tenant = call.principal.scope, effective_tenant(call, call.body.filter.tenant)
    return RunFilter.of({**given, "tenant": tenant, "scope": scope})  # type: ignore[typeddict-item]


def _bulk_preview(call: ApiRequest) -> BulkPreview:
    return call.control.bulk.preview(call.body.verb, _bulk_filter(call))


def _bulk_cancel(call: ApiRequest) -> dict[str, BulkProgress]:
    body: BulkRequest = call.body
    batches = call.control.bulk.cancel(
        _bulk_filter(call),
        reason=body.reason,
        by=call.principal.by,
        after=body.after,
        with_gates=call.principal.can_approve,
    )
    return {"progress": run_batches(batches)}


def _bulk_retry(call: ApiRequest) -> dict[str, BulkProgress]:
    batches = call.control.bulk.retry(_bulk_filter(call), by=call.principal.by, after=call.body.after)
    return {"progress": run_batches(batches)}


def run_batches(batches: Iterator[BulkProgress]) -> BulkProgress:
    """Run batches until it is time to respond."""
    deadline = time.monotonic() + BULK_RESPONSE_S
    latest = BulkProgress(0, 0, None)
    for progress in batches:
        latest = progress
        if time.monotonic() > deadline:
            break
    return latest


OPERATIONS = (
    Operation(
        method="GET", path="/runs", name="list_runs", may_lag=True, summary="List runs, newest first.",
        do=_list, query=RunsQuery, answer=RunsPage,
    ),
    Operation(
        method="GET", path="/search", name="search", may_lag=True,
        summary="Find runs by id, key, tag, metadata, task, argument or error.",
        do=_search, query=SearchQuery, answer=SearchResults,
    ),
    Operation(
        method="POST", path="/runs", name="enqueue", summary="Enqueue a run of a task.",
        do=_enqueue, body=EnqueueRequest, answer=RunCreated, status=201, may_exist=True,
    ),
    Operation(
        method="GET", path="/runs/{id}", name="show_run", summary="Show all details of a run.",
        do=_details, answer=RunDetails,
    ),
    Operation(
        method="GET", path="/runs/{id}/history", name="run_history", summary="List a run's history, oldest first.",
        do=_history, query=PartQuery, answer=HistoryPage,
    ),
    Operation(
        method="GET", path="/runs/{id}/logs", name="run_logs", summary="List the lines that a run has logged.",
        do=_logs, query=LogsQuery, answer=LogsPage,
    ),
    Operation(
        method="GET", path="/runs/{id}/steps", name="run_steps",
        summary="List a durable function's checkpoints and pending waits.",
        do=_steps, query=PartQuery, answer=StepsPage,
    ),
    Operation(
        method="GET", path="/runs/{id}/why", name="why_run", summary="Explain why a run isn't running.",
        do=_why, answer={"reasons": list[Reason]},
    ),
    Operation(
        method="GET", path="/runs/{id}/graph", name="run_graph", summary="List the nodes and gates of a graph.",
        do=_graph, query=PartQuery, answer=GraphPage,
    ),
    Operation(
        method="POST", path="/runs/{id}/cancel", name="cancel_run", summary="Cancel a run and its children.",
        do=_cancel, body=CancelRequest, answer=CHANGED,
    ),
    Operation(
        method="POST", path="/runs/{id}/update", name="update_run",
        summary="Change a run that hasn't started, or the time of a scheduled retry or of a sleep.",
        do=_update, body=UpdateRequest, answer=CHANGED,
    ),
    Operation(
        method="POST", path="/runs/{id}/pause", name="pause_run",
        summary="Pause a run with its unfinished children; a running attempt continues to the end of its step.",
        do=_pause, answer=CHANGED,
    ),
    Operation(
        method="POST", path="/runs/{id}/resume", name="resume_run", summary="Resume a paused run with its children.",
        do=_resume, answer=CHANGED,
    ),
    Operation(
        method="POST", path="/runs/{id}/retry", name="retry_run",
        summary="Return a failed or cancelled run to ready; with other arguments it starts over.",
        do=_retry, body=RetryRequest, answer=CHANGED,
    ),
    Operation(
        method="GET", path="/runs/{id}/retry", name="preview_retry",
        summary="Preview a retry: what is kept, what runs again, what may happen twice.",
        do=_retry_preview, answer=RetryPreview,
    ),
    Operation(
        method="POST", path="/runs/{id}/fork", name="fork_run",
        summary="Create a run with the checkpoints of another run before a step, or replay a finished graph.",
        do=_fork, body=ForkRequest, answer=RunCreated, status=201,
    ),
    Operation(
        method="POST", path="/runs/{id}/messages", name="send_message", summary="Send a message to an unfinished run.",
        do=_send, body=MessageRequest, answer=CHANGED,
    ),
    Operation(
        method="POST", path="/runs/{id}/messages/{number}/resend", name="resend_message",
        summary="Send a message again that was set aside, or another payload instead of it.",
        do=_resend, body=ResendRequest, answer=CHANGED,
    ),
    Operation(
        method="POST", path="/bulk/preview", name="preview_bulk", summary="Preview which runs a bulk action changes.",
        do=_bulk_preview, body=PreviewRequest, answer=BulkPreview,
    ),
    Operation(
        method="POST", path="/bulk/cancel", name="cancel_many", summary="Cancel all unfinished runs that match.",
        do=_bulk_cancel, body=BulkRequest, answer={"progress": BulkProgress},
    ),
    Operation(
        method="POST", path="/bulk/retry", name="retry_many", summary="Retry all failed and cancelled runs that match.",
        do=_bulk_retry, body=BulkRequest, answer={"progress": BulkProgress},
    ),
)  # fmt: skip
