"""API operations on gates, events, queues, pauses, schedules, limits, workers, tasks, counts and statistics."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal
from uuid import UUID

import msgspec

from holdfast.control.events import EventList
from holdfast.control.gates import GateDetails, GateInfo, OpenGate
from holdfast.control.limits import LimitInfo
from holdfast.control.pauses import PauseInfo
from holdfast.control.queues import QueueInfo
from holdfast.control.stats import Counts, GroupBy, Interval, Stats
from holdfast.control.tasks import TaskInfo
from holdfast.control.workers import LOST_WITHIN_S, LostWorkerInfo, WorkerInfo
from holdfast.errors import GraphError
from holdfast.model.gate_links import DEFAULT_EXPIRY, GateLink
from holdfast.model.schedule import ScheduleDetails, ScheduleInfo
from holdfast.policy.schedule_timing import CatchUp
from holdfast.task.schedule_registry import Overlap, ScheduleSettings
from holdfast.task.task import Request
from holdfast.web.api.operation import ApiRequest, Operation
from holdfast.web.api.runs import CHANGED, effective_tenant, page_size, requested_task
from holdfast.web.responses import RequestError


class LimitChange(msgspec.Struct, forbid_unknown_fields=True):
    """The new rate, such as `100/min`, and the new concurrency of a limit."""

    rate: str | msgspec.UnsetType | None = msgspec.UNSET
    concurrency: int | msgspec.UnsetType | None = msgspec.UNSET


class GatesQuery(msgspec.Struct, forbid_unknown_fields=True):
    """The maximum number of gates."""

    limit: int = 50


class GateCompletion(msgspec.Struct, forbid_unknown_fields=True):
    """The gate's output, which must match its type."""

    output: Any = None


class GateRejection(msgspec.Struct, forbid_unknown_fields=True):
    """The error that the gate fails with."""

    error: str


class GateLinkRequest(msgspec.Struct, forbid_unknown_fields=True):
    """How long a link to a gate is valid, in seconds, and for whom it is."""

    expires: float = DEFAULT_EXPIRY.total_seconds()
    recipient: str | None = None


class GateLinkRevocation(msgspec.Struct, forbid_unknown_fields=True):
    """The id of the link to revoke; without it, all links to the gate."""

    link: str | None = None


class EventRequest(msgspec.Struct, forbid_unknown_fields=True):
    """An event that durable functions wait for by name."""

    name: str
    payload: Any = None
    tenant: str | None = None


class EventsQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Only events of one tenant; the maximum number of awaited and of emitted events."""

    tenant: str | None = None
    limit: int = 50


class EventName(msgspec.Struct, forbid_unknown_fields=True):
    """An event by name, and the tenant that it belongs to."""

    name: str
    tenant: str | None = None


class EmitResult(msgspec.Struct):
    """Whether this emit was the first, and the tenants whose runs wait for an event of the same name in vain."""

    changed: bool
    awaited_elsewhere: list[str | None]
    """Null stands for runs without a tenant. Always empty for a token of one tenant."""


class PauseTarget(msgspec.Struct, forbid_unknown_fields=True):
    """A task or a tenant."""

    kind: Literal["task", "tenant"]
    name: str


class ScheduleTimes(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """When a schedule creates runs, and with which arguments. Durations are seconds; times have an offset."""

    task: str | None = None
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    queue: str | None = None
    priority: int | None = None
    tenant: str | None = None
    remote: bool = False
    """Accept a task that this server doesn't have."""
    cron: str | msgspec.UnsetType = msgspec.UNSET
    every: float | msgspec.UnsetType = msgspec.UNSET
    tz: str | msgspec.UnsetType = msgspec.UNSET
    catch_up: CatchUp | msgspec.UnsetType = msgspec.UNSET
    overlap: Overlap | msgspec.UnsetType = msgspec.UNSET
    jitter: float | msgspec.UnsetType = msgspec.UNSET
    start: datetime | msgspec.UnsetType | None = msgspec.UNSET
    end: datetime | msgspec.UnsetType | None = msgspec.UNSET


class NewSchedule(ScheduleTimes, kw_only=True):
    """A schedule to create: its name, its task, and `cron` or `every`."""

    name: str
    paused: bool = False


class SlotRange(msgspec.Struct, forbid_unknown_fields=True):
    """The first and the last slot of a backfill, with an offset."""

    start: datetime
    end: datetime


class StatsQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The time window in seconds, the interval, and the grouping, or a tenant."""

    last: float = 3600
    span: Interval | None = None
    by: GroupBy = "all"
    name: str | None = None
    tenant: str | None = None


# Gates and events


def _open_gates(call: ApiRequest) -> dict[str, Any]:
    return {"gates": call.control.gates.open(call.principal.scope, page_size(call.query.limit))}


def _graph_gates(call: ApiRequest) -> dict[str, Any]:
    return {"gates": call.control.graphs.gates(call.run().id)}


def _show_gate(call: ApiRequest) -> GateDetails:
    return call.control.gates.read(call.control.graphs.node(_gate_graph(call), call.path["gate"]))


def _gate_graph(call: ApiRequest) -> UUID:
    """Return the id of the graph in the path, if it has the gate in the path."""
    graph = call.run().id
    try:
        call.control.graphs.node(graph, call.path["gate"])
    except GraphError as error:
        raise RequestError(404, str(error), "gate_not_found") from None
    return graph


def _complete_gate(call: ApiRequest) -> dict[str, bool]:
    graph = _gate_graph(call)
    return {"changed": call.control.graphs.complete(graph, call.path["gate"], call.body.output, call.principal.by)}


def _fail_gate(call: ApiRequest) -> dict[str, bool]:
    graph = _gate_graph(call)
    return {"changed": call.control.graphs.fail(graph, call.path["gate"], call.body.error, call.principal.by)}


def _link_gate(call: ApiRequest) -> GateLink:
    graph, body = _gate_graph(call), call.body
    return call.control.gate_links.create(graph, call.path["gate"], expires=body.expires, recipient=body.recipient)


def _events(call: ApiRequest) -> EventList:
    tenant = effective_tenant(call, call.query.tenant)
    return call.control.events.list(tenant, page_size(call.query.limit))


def _emit(call: ApiRequest) -> EmitResult:
    event: EventRequest = call.body
    tenant = effective_tenant(call, event.tenant)
    changed = call.control.events.emit(event.name, event.payload, tenant)
    others = [] if call.principal.tenant is not None else call.control.events.awaited_elsewhere(event.name, tenant)
    return EmitResult(changed, [each.tenant for each in others])


def _clear_event(call: ApiRequest) -> dict[str, bool]:
    return {"changed": call.control.events.clear(call.body.name, effective_tenant(call, call.body.tenant))}


# Queues and schedules


def _queues(call: ApiRequest) -> dict[str, Any]:
    return {"queues": call.control.queues.list()}


def _pause_queue(call: ApiRequest) -> dict[str, bool]:
    return {"changed": bool(call.control.queues.pause([call.path["queue"]]))}


def _resume_queue(call: ApiRequest) -> dict[str, bool]:
    return {"changed": bool(call.control.queues.resume([call.path["queue"]]))}


def _pauses(call: ApiRequest) -> dict[str, Any]:
    return {"pauses": call.control.pauses.list()}


def _pause(call: ApiRequest) -> dict[str, bool]:
    changed = call.control.pauses.pause(call.body.kind, [call.body.name], call.principal.by)
    return {"changed": bool(changed)}


def _resume(call: ApiRequest) -> dict[str, bool]:
    return {"changed": bool(call.control.pauses.resume(call.body.kind, [call.body.name]))}


def _schedules(call: ApiRequest) -> dict[str, Any]:
    return {"schedules": call.control.schedules.list()}


def _schedule_name(call: ApiRequest) -> str:
    name = call.path["schedule"]
    if not call.control.schedules.exists(name):
        raise RequestError(404, f"schedule {name[:100]!r} does not exist", "schedule_not_found")
    return name


def _show_schedule(call: ApiRequest) -> ScheduleDetails:
    return call.control.schedules.show(_schedule_name(call))


def _pause_schedule(call: ApiRequest) -> dict[str, bool]:
    return {"changed": bool(call.control.schedules.pause([_schedule_name(call)], call.principal.by))}


def _resume_schedule(call: ApiRequest) -> dict[str, bool]:
    return {"changed": bool(call.control.schedules.resume([_schedule_name(call)], call.principal.by))}


def _run_schedule(call: ApiRequest) -> dict[str, UUID | None]:
    return {"id": call.control.schedules.run(_schedule_name(call), call.principal.by)}


def _create_schedule(call: ApiRequest) -> ScheduleInfo:
    body: NewSchedule = call.body
    request = _schedule_request(call, body)
    if request is None:
        raise RequestError(422, "`task` is missing: name the task that each slot runs", "invalid")
    schedules = call.context.app.schedules
    settings = _settings(body)
    with call.control.audit.record("create schedule", body.name, task=body.task, **settings):
        return schedules.create(body.name, request, paused=body.paused, by=call.principal.by, **settings)


def _update_schedule(call: ApiRequest) -> ScheduleInfo:
    name, request = _schedule_name(call), _schedule_request(call, call.body)
    settings = _settings(call.body)
    with call.control.audit.record("change schedule", name, task=call.body.task, **settings):
        return call.context.app.schedules.update(name, request, by=call.principal.by, **settings)


def _schedule_request(call: ApiRequest, body: ScheduleTimes) -> Request[Any] | None:
    if body.task is None:
        return None
    task = requested_task(call, body.task, body.remote, body.queue, body.priority)
    options = {"queue": body.queue, "priority": body.priority, "tenant": body.tenant}
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    return (task.options(**given) if given else task).request(*body.args, **body.kwargs)


def _settings(body: ScheduleTimes) -> ScheduleSettings:
    given = {name: getattr(body, name) for name in ScheduleSettings.__annotations__}
    return {name: value for name, value in given.items() if value is not msgspec.UNSET}  # type: ignore[return-value]


def _backfill_schedule(call: ApiRequest) -> dict[str, Any]:
    name, body = _schedule_name(call), call.body
    return {"ids": call.control.schedules.backfill(name, body.start, body.end, call.principal.by)}


def _delete_schedule(call: ApiRequest) -> dict[str, bool]:
    call.control.schedules.delete(_schedule_name(call))
    return {"changed": True}


# Limits, workers, tasks, counts and statistics


class LostQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """How far back, in seconds."""

    since: float = LOST_WITHIN_S


def _limits(call: ApiRequest) -> dict[str, Any]:
    return {"limits": call.control.limits.list()}


def _limit(call: ApiRequest) -> LimitInfo:
    return call.control.limits.list(_limit_name(call))[0]


def _set_limit(call: ApiRequest) -> LimitInfo:
    body: LimitChange = call.body
    name, by = _limit_name(call), call.principal.by
    return call.control.limits.set(name, rate=body.rate, concurrency=body.concurrency, by=by)


def _reset_limit(call: ApiRequest) -> LimitInfo:
    return call.control.limits.reset(_limit_name(call))


def _limit_name(call: ApiRequest) -> str:
    name = call.path["limit"]
    if not call.control.limits.exists(name):
        raise RequestError(404, f"limit {name[:100]!r} does not exist", "limit_not_found")
    return name


def _workers(call: ApiRequest) -> dict[str, Any]:
    return {"workers": call.control.workers.list()}


def _lost_workers(call: ApiRequest) -> dict[str, Any]:
    return {"workers": call.control.workers.lost(call.query.since)}


def _tasks(call: ApiRequest) -> dict[str, Any]:
    return {"tasks": call.control.tasks.list()}


def _counts(call: ApiRequest) -> Counts:
    return call.control.counts.overview()


def _stats(call: ApiRequest) -> dict[str, Any]:
    query: StatsQuery = call.query
    stats = call.control.stats
    if query.tenant is not None:
        if query.by != "all" or query.name is not None:
            raise RequestError(422, "tenant can't be combined with by and name", "invalid")
        series = stats.of_tenant(query.tenant, last=query.last, span=query.span)
        return {"stats": [series.whole] if query.span is None else series.intervals}
    if query.span is None:
        return {"stats": stats.summary(last=query.last, by=query.by, name=query.name)}
    return {"stats": stats.over_time(last=query.last, span=query.span, by=query.by, name=query.name)}


def _revoke_links(call: ApiRequest) -> dict[str, int]:
    graph = _gate_graph(call)
    try:
        return {"revoked": call.control.gate_links.revoke(graph, call.path["gate"], call.body.link, call.principal.by)}
    except GraphError as error:
        raise RequestError(404, str(error), "link_not_found") from None


OPERATIONS = (
    Operation(
        method="GET", path="/gates", name="list_gates", may_lag=True, summary="List open gates, oldest first.",
        do=_open_gates, query=GatesQuery, answer={"gates": list[OpenGate]},
    ),
    Operation(
        method="GET", path="/runs/{id}/gates", name="graph_gates", summary="List the gates of a graph.",
        do=_graph_gates, answer={"gates": list[GateInfo]},
    ),
    Operation(
        method="GET", path="/runs/{id}/gates/{gate:path}", name="show_gate",
        summary="Show a gate: the nodes before it with their results, the nodes after it, who decided, and its links.",
        do=_show_gate, answer=GateDetails,
    ),
    Operation(
        method="POST", path="/runs/{id}/gates/{gate:path}/complete", name="complete_gate",
        summary="Complete a gate with an output.", do=_complete_gate, body=GateCompletion, answer=CHANGED,
        requires="approve",
    ),
    Operation(
        method="POST", path="/runs/{id}/gates/{gate:path}/fail", name="fail_gate", summary="Fail a gate.",
        do=_fail_gate, body=GateRejection, answer=CHANGED, requires="approve",
    ),
    Operation(
        method="POST", path="/runs/{id}/gates/{gate:path}/link", name="link_gate",
        summary="Create a link with which a person without a token decides a gate, once.",
        do=_link_gate, body=GateLinkRequest, answer=GateLink, status=201, requires="approve",
    ),
    Operation(
        method="POST", path="/runs/{id}/gates/{gate:path}/revoke_links", name="revoke_links",
        summary="Revoke a link to a gate by its id, or all links to it.",
        do=_revoke_links, body=GateLinkRevocation, answer={"revoked": int}, requires="approve",
    ),
    Operation(
        method="GET", path="/events", name="list_events", may_lag=True,
        summary="List events that runs wait for, the longest first, and events that were emitted, the newest first.",
        do=_events, query=EventsQuery, answer=EventList, all_tasks=True,
    ),
    Operation(
        method="POST", path="/events", name="emit", summary="Emit an event; only the first of a name takes effect.",
        do=_emit, body=EventRequest, answer=EmitResult, all_tasks=True,
    ),
    Operation(
        method="POST", path="/events/clear", name="clear_event",
        summary="Forget that an event was emitted, so that it can be emitted again. Runs that received it keep it.",
        do=_clear_event, body=EventName, answer=CHANGED, all_tasks=True,
    ),
    Operation(
        method="GET", path="/queues", name="list_queues", may_lag=True, summary="List queues with their backlog.",
        do=_queues, answer={"queues": list[QueueInfo]}, all_tenants=True,
    ),
    Operation(
        method="POST", path="/queues/{queue:path}/pause", name="pause_queue",
        summary="Pause a queue: workers stop claiming from it.", do=_pause_queue, answer=CHANGED, all_tenants=True,
    ),
    Operation(
        method="POST", path="/queues/{queue:path}/resume", name="resume_queue",
        summary="Resume a paused queue.", do=_resume_queue, answer=CHANGED, all_tenants=True,
    ),
    Operation(
        method="GET", path="/pauses", name="list_pauses", may_lag=True, summary="List paused tasks and tenants.",
        do=_pauses, answer={"pauses": list[PauseInfo]}, all_tenants=True,
    ),
    Operation(
        method="POST", path="/pauses", name="pause",
        summary="Pause a task or a tenant: workers stop claiming its runs.",
        do=_pause, body=PauseTarget, answer=CHANGED, all_tenants=True,
    ),
    Operation(
        method="POST", path="/pauses/resume", name="resume", summary="Resume a paused task or tenant.",
        do=_resume, body=PauseTarget, answer=CHANGED, all_tenants=True,
    ),
    Operation(
        method="GET", path="/schedules", name="list_schedules", may_lag=True, summary="List schedules and triggers.",
        do=_schedules, answer={"schedules": list[ScheduleInfo]}, all_tenants=True,
    ),
    Operation(
        method="POST", path="/schedules", name="create_schedule",
        summary="Create a schedule that lives in the database; an equal one may exist.",
        do=_create_schedule, body=NewSchedule, answer=ScheduleInfo, status=201, all_tenants=True,
    ),
    Operation(
        method="GET", path="/schedules/{schedule:path}", name="show_schedule",
        summary="Show a schedule with its recent runs and next slots.",
        do=_show_schedule, answer=ScheduleDetails, all_tenants=True,
    ),
    Operation(
        method="POST", path="/schedules/{schedule:path}/pause", name="pause_schedule",
        summary="Pause a schedule.", do=_pause_schedule, answer=CHANGED, all_tenants=True,
    ),
    Operation(
        method="POST", path="/schedules/{schedule:path}/resume", name="resume_schedule",
        summary="Resume a schedule with its next slot.", do=_resume_schedule, answer=CHANGED, all_tenants=True,
    ),
    Operation(
        method="POST", path="/schedules/{schedule:path}/run", name="run_schedule",
        summary="Create a run of a schedule now; a trigger is polled soon, and `id` is null.",
        do=_run_schedule, answer={"id": UUID | None}, all_tenants=True,
    ),
    Operation(
        method="POST", path="/schedules/{schedule:path}/update", name="update_schedule",
        summary="Change a schedule that was created at run time; members that are left out stay.",
        do=_update_schedule, body=ScheduleTimes, answer=ScheduleInfo, all_tenants=True,
    ),
    Operation(
        method="POST", path="/schedules/{schedule:path}/backfill", name="backfill_schedule",
        summary="Create a run for each slot of a range that has none.",
        do=_backfill_schedule, body=SlotRange, answer={"ids": list[UUID]}, all_tenants=True,
    ),
    Operation(
        method="POST", path="/schedules/{schedule:path}/delete", name="delete_schedule",
        summary="Delete a schedule that was created at run time, or an orphaned one.",
        do=_delete_schedule, answer=CHANGED, all_tenants=True,
    ),
    Operation(
        method="GET", path="/limits", name="list_limits", may_lag=True, summary="List limits with their usage.",
        do=_limits, answer={"limits": list[LimitInfo]}, all_tenants=True,
    ),
    Operation(
        method="GET", path="/limits/{limit:path}", name="show_limit",
        summary="Show a limit with its usage and the runs that hold its permits.",
        do=_limit, answer=LimitInfo, all_tenants=True,
    ),
    Operation(
        method="POST", path="/limits/{limit:path}/set", name="set_limit",
        summary="Set what a limit allows, until it is reset; members that are left out stay, null removes the bound.",
        do=_set_limit, body=LimitChange, answer=LimitInfo, all_tenants=True,
    ),
    Operation(
        method="POST", path="/limits/{limit:path}/reset", name="reset_limit",
        summary="Return a limit to what the code declares.", do=_reset_limit, answer=LimitInfo, all_tenants=True,
    ),
    Operation(
        method="GET", path="/workers", name="list_workers", may_lag=True, summary="List worker sessions.",
        do=_workers, answer={"workers": list[WorkerInfo]}, all_tenants=True,
    ),
    Operation(
        method="GET", path="/workers/lost", name="list_lost_workers", may_lag=True,
        summary="List workers that were lost, with the runs that were recovered from them.",
        do=_lost_workers, query=LostQuery, answer={"workers": list[LostWorkerInfo]}, all_tenants=True,
    ),
    Operation(
        method="GET", path="/tasks", name="list_tasks", summary="List the tasks that this server's code declares.",
        do=_tasks, answer={"tasks": list[TaskInfo]}, all_tenants=True,
    ),
    Operation(
        method="GET", path="/counts", name="count_runs", may_lag=True, summary="Count runs by state, queue and task.",
        do=_counts, answer=Counts, all_tenants=True,
    ),
    Operation(
        method="GET", path="/stats", name="read_stats", may_lag=True,
        summary="Report throughput, failures, wait and run times, as a whole or by interval.",
        do=_stats, query=StatsQuery, answer={"stats": list[Stats]}, all_tenants=True,
    ),
)  # fmt: skip
