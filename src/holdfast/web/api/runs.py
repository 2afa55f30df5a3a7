"""Runs by the API: lists, one and all that belongs to it, and what can be done to it."""

from __future__ import annotations

from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from holdfast.control.explainer import Reason
from holdfast.control.graphs import GraphInfo
from holdfast.control.runs import RunDetails, StepInfo, WaitInfo
from holdfast.errors import UnknownTask
from holdfast.model.clock import Duration
from holdfast.model.history import Entry
from holdfast.model.run import RunInfo, RunState
from holdfast.task.task import Task
from holdfast.web.api.operation import ApiRequest, Operation
from holdfast.web.responses import RequestError

LARGEST_PAGE = 200
T = TypeVar("T")


class RunFilterBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Runs that fit all that is given; `error` is a part of the error's text."""

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
    id_prefix: str | None = None
    parent: UUID | None = None
    family: UUID | None = None


class RunsQuery(RunFilterBody, forbid_unknown_fields=True, kw_only=True):
    """Which runs, and how many at most. `state` may be given several times."""

    limit: int = 50
    after: str | None = None


class RunsPage(msgspec.Struct):
    """Some runs, newest first; `after` asks for the next ones. `partial`: there may be few, or none, though more
    follow, because very many others were passed over."""

    runs: list[RunInfo[Any]]
    after: str | None
    partial: bool


class EnqueueRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A call of a task. `args`: by position; `kwargs`: by name. `remote`: its code isn't known here; any name will do.
    Durations are seconds."""

    task: str
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    queue: str | None = None
    priority: int | None = None
    delay: float | None = None
    key: str | None = None
    unique: str | None = None
    tenant: str | None = None
    tags: list[str] | None = None
    timeout: float | None = None
    deadline: float | None = None
    remote: bool = False


class RunCreated(msgspec.Struct):
    """A run that there is now; with a key that was used before, the one that there was."""

    id: UUID
    task: str


class CancelRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Why something is done, in words."""

    reason: str | None = None


class Changed(msgspec.Struct):
    """Whether it was this request that did it."""

    changed: bool


class ForkRequest(msgspec.Struct, forbid_unknown_fields=True):
    """From which step on, and with which arguments instead of the run's own."""

    from_step: str | None = None
    args: list[Any] | dict[str, Any] | None = None


class MessageRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Something for `ctx.receive(topic)`."""

    topic: str
    payload: Any = None


class PartQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """How many at most, and behind how many: what an answer says in `after` asks for the next ones."""

    limit: int = LARGEST_PAGE
    after: int = 0


class HistoryPage(msgspec.Struct):
    """The story of a run, from its beginning."""

    entries: list[Entry]
    after: int | None


class StepsPage(msgspec.Struct):
    """What a durable function has on record, in order, and what it waits for."""

    steps: list[StepInfo]
    waits: list[WaitInfo]
    after: int | None


class GraphPage(GraphInfo, frozen=True, kw_only=True):
    """Some nodes of a graph, in the order in which they were added, and its gates."""

    after: int | None


class Reasons(msgspec.Struct):
    """Why a run isn't running, or who runs it."""

    reasons: list[Reason]


def page_size(limit: int) -> int:
    if not 1 <= limit <= LARGEST_PAGE:
        raise RequestError(422, f"limit must be between 1 and {LARGEST_PAGE}; use after for more", "invalid")
    return limit


def part(all_tenants: list[T], asked: PartQuery) -> tuple[list[T], int | None]:
    """What was asked for of something that only grows at its end; and where the next part begins, if there is one."""
    if asked.after < 0:
        raise RequestError(422, "after must be what an answer said", "invalid")
    end = asked.after + page_size(asked.limit)
    return all_tenants[asked.after : end], end if end < len(all_tenants) else None


def tenant_of(call: ApiRequest, asked: str | None) -> str | None:
    """The tenant that a request is about: the visitor's own, if they have one."""
    own = call.principal.tenant
    if own is not None and asked not in (None, own):
        raise RequestError(403, f"this token is for the runs of tenant {own} only", "one_tenant")
    return own or asked


def _list(call: ApiRequest) -> RunsPage:
    asked: RunsQuery = call.query
    own = call.principal.tenant
    if own is not None and asked.tenant not in (None, own):
        return RunsPage([], None, False)
    given: Any = {**msgspec.structs.asdict(asked), "tenant": own or asked.tenant, "limit": page_size(asked.limit)}
    page = call.control.runs.page(**given)
    return RunsPage(list(page), page.after, page.partial)


def _enqueue(call: ApiRequest) -> RunCreated:
    asked: EnqueueRequest = call.body
    given = {name: getattr(asked, name) for name in ("queue", "priority", "key", "unique", "tags")}
    times: dict[str, Duration | None] = {"delay": asked.delay, "timeout": asked.timeout, "deadline": asked.deadline}
    options = {name: value for name, value in {**given, **times}.items() if value is not None}
    tenant = tenant_of(call, asked.tenant)
    if tenant is not None:
        options["tenant"] = tenant
    task = _task(call, asked).options(**options)
    run = call.context.app.enqueue_many([task.request(*asked.args, **asked.kwargs)])[0]
    return RunCreated(run.id, run.task)


def _task(call: ApiRequest, asked: EnqueueRequest) -> Task[..., Any]:
    app = call.context.app
    if asked.remote:
        return app.remote(asked.task)
    try:
        return app.registry.get(asked.task)
    except UnknownTask as error:
        raise UnknownTask(f"{error}; with remote=true any name is taken") from None


def _one(call: ApiRequest) -> RunDetails:
    return call.control.runs.details(call.run().id)


def _cancel(call: ApiRequest) -> Changed:
    return Changed(call.control.runs.cancel(call.run().id, call.body.reason, by=call.principal.by))


def _retry(call: ApiRequest) -> Changed:
    return Changed(call.control.runs.retry(call.run().id, by=call.principal.by))


def _fork(call: ApiRequest) -> RunCreated:
    info = call.run()
    return RunCreated(
        call.control.runs.fork(info.id, call.body.from_step, call.body.args, by=call.principal.by), info.task
    )


def _send(call: ApiRequest) -> Changed:
    call.control.runs.send(call.run().id, call.body.topic, call.body.payload, by=call.principal.by)
    return Changed(True)


def _history(call: ApiRequest) -> HistoryPage:
    return HistoryPage(*part(call.control.runs.history(call.run().id), call.query))


def _steps(call: ApiRequest) -> StepsPage:
    id = call.run().id
    steps, after = part(call.control.runs.steps(id), call.query)
    return StepsPage(steps, call.control.runs.waits(id), after)


def _why(call: ApiRequest) -> Reasons:
    return Reasons(call.control.whys.why(call.run().id, call.principal.tenant).reasons)


def _graph(call: ApiRequest) -> GraphPage:
    graph = call.control.graphs.read(call.run().id)
    nodes, after = part(graph.nodes, call.query)
    return GraphPage(graph.id, graph.counts, nodes, graph.gates, after=after)


OPERATIONS = (
    Operation(
        method="GET", path="/runs", name="list_runs", summary="Runs, newest first, a page at a time.",
        do=_list, query=RunsQuery, answer=RunsPage,
    ),
    Operation(
        method="POST", path="/runs", name="enqueue", summary="Make a run of a task.",
        do=_enqueue, body=EnqueueRequest, answer=RunCreated, status=201,
    ),
    Operation(
        method="GET", path="/runs/{id}", name="show_run", summary="All there is to know of a run.",
        do=_one, answer=RunDetails,
    ),
    Operation(
        method="GET", path="/runs/{id}/history", name="run_history", summary="What happened to a run, in order.",
        do=_history, query=PartQuery, answer=HistoryPage,
    ),
    Operation(
        method="GET", path="/runs/{id}/steps", name="run_steps",
        summary="What a durable function has on record, and what it waits for.",
        do=_steps, query=PartQuery, answer=StepsPage,
    ),
    Operation(
        method="GET", path="/runs/{id}/why", name="why_run", summary="Why a run isn't running.",
        do=_why, answer=Reasons,
    ),
    Operation(
        method="GET", path="/runs/{id}/graph", name="run_graph", summary="The nodes and gates of a graph.",
        do=_graph, query=PartQuery, answer=GraphPage,
    ),
    Operation(
        method="POST", path="/runs/{id}/cancel", name="cancel_run", summary="End a run, and its children with it.",
        do=_cancel, body=CancelRequest, answer=Changed,
    ),
    Operation(
        method="POST", path="/runs/{id}/retry", name="retry_run",
        summary="Send a failed or cancelled run back to ready, what it has recorded kept.", do=_retry, answer=Changed,
    ),
    Operation(
        method="POST", path="/runs/{id}/fork", name="fork_run",
        summary="Make a new run with what another one recorded before a step.",
        do=_fork, body=ForkRequest, answer=RunCreated, status=201,
    ),
    Operation(
        method="POST", path="/runs/{id}/messages", name="send_message", summary="Send an unfinished run a message.",
        do=_send, body=MessageRequest, answer=Changed,
    ),
)  # fmt: skip
"""What can be asked about runs, and done to them."""
