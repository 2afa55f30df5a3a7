"""Gates, events, queues, schedules, limits, workers and tasks by the API."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec

from holdfast.control.graphs import GateInfo, OpenGate
from holdfast.control.limits import LimitInfo
from holdfast.control.queues import QueueInfo
from holdfast.control.schedules import ScheduleDetails, ScheduleInfo
from holdfast.control.tasks import TaskInfo
from holdfast.control.workers import WorkerInfo
from holdfast.errors import GraphError
from holdfast.web.api.operation import ApiRequest, Operation
from holdfast.web.api.runs import Changed, page_size, tenant_of
from holdfast.web.responses import RequestError

# Gates


class GatesQuery(msgspec.Struct, forbid_unknown_fields=True):
    """How many at most."""

    limit: int = 50


class OpenGates(msgspec.Struct):
    """Gates that wait for somebody, the oldest first."""

    gates: list[OpenGate]


class Gates(msgspec.Struct):
    """The gates of one graph, and of graphs within it."""

    gates: list[GateInfo]


class GateCompletion(msgspec.Struct, forbid_unknown_fields=True):
    """The gate's output, which must fit its type."""

    output: Any = None


class GateRejection(msgspec.Struct, forbid_unknown_fields=True):
    """Why the gate fails."""

    error: str


def _open_gates(call: ApiRequest) -> OpenGates:
    return OpenGates(call.control.gates.open(call.principal.tenant, page_size(call.query.limit)))


def _gates(call: ApiRequest) -> Gates:
    return Gates(call.control.graphs.gates(call.run().id))


def _gate(call: ApiRequest) -> UUID:
    """The graph whose gate it is, if there is such a gate."""
    graph = call.run().id
    try:
        call.control.graphs.node(graph, call.names["gate"])
    except GraphError as error:
        raise RequestError(404, str(error), "gate_not_found") from None
    return graph


def _complete(call: ApiRequest) -> Changed:
    return Changed(call.control.graphs.complete(_gate(call), call.names["gate"], call.body.output, call.principal.by))


def _fail(call: ApiRequest) -> Changed:
    return Changed(call.control.graphs.fail(_gate(call), call.names["gate"], call.body.error, call.principal.by))


# Events


class EventRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A fact that durable functions wait for by name."""

    name: str
    payload: Any = None
    tenant: str | None = None


def _emit(call: ApiRequest) -> Changed:
    event: EventRequest = call.body
    return Changed(call.control.events.emit(event.name, event.payload, tenant_of(call, event.tenant)))


# Queues


class Queues(msgspec.Struct):
    """Every queue, by name."""

    queues: list[QueueInfo]


def _queues(call: ApiRequest) -> Queues:
    return Queues(call.control.queues.list())


def _pause_queue(call: ApiRequest) -> Changed:
    return Changed(bool(call.control.queues.pause([call.names["queue"]])))


def _resume_queue(call: ApiRequest) -> Changed:
    return Changed(bool(call.control.queues.resume([call.names["queue"]])))


# Schedules


class Schedules(msgspec.Struct):
    """Every schedule and trigger, by name."""

    schedules: list[ScheduleInfo]


class Asked(msgspec.Struct):
    """The run that was made; none of a trigger, which is polled soon."""

    id: UUID | None


def _schedules(call: ApiRequest) -> Schedules:
    return Schedules(call.control.schedules.list())


def _schedule(call: ApiRequest) -> str:
    name = call.names["schedule"]
    if name not in call.control.schedules.names():
        raise RequestError(404, f"there is no schedule {name[:100]!r}", "schedule_not_found")
    return name


def _show_schedule(call: ApiRequest) -> ScheduleDetails:
    return call.control.schedules.show(_schedule(call))


def _pause_schedule(call: ApiRequest) -> Changed:
    return Changed(bool(call.control.schedules.pause([_schedule(call)])))


def _resume_schedule(call: ApiRequest) -> Changed:
    return Changed(bool(call.control.schedules.resume([_schedule(call)])))


def _run_schedule(call: ApiRequest) -> Asked:
    return Asked(call.control.schedules.run(_schedule(call)))


# Limits, workers, tasks


class Limits(msgspec.Struct):
    """Every limit, with its counters in use."""

    limits: list[LimitInfo]


class Workers(msgspec.Struct):
    """Who works on the database, or did until just now."""

    workers: list[WorkerInfo]


class Tasks(msgspec.Struct):
    """The tasks whose code is known here."""

    tasks: list[TaskInfo]


def _limits(call: ApiRequest) -> Limits:
    return Limits(call.control.limits.list())


def _workers(call: ApiRequest) -> Workers:
    return Workers(call.control.workers.list())


def _tasks(call: ApiRequest) -> Tasks:
    return Tasks(call.control.tasks.list())


OPERATIONS = (
    Operation(
        method="GET", path="/gates", name="list_gates", summary="Gates that wait for somebody, the oldest first.",
        do=_open_gates, query=GatesQuery, answer=OpenGates,
    ),
    Operation(
        method="GET", path="/runs/{id}/gates", name="graph_gates", summary="The gates of a graph.",
        do=_gates, answer=Gates,
    ),
    Operation(
        method="POST", path="/runs/{id}/gates/{gate:path}/complete", name="complete_gate",
        summary="Complete a gate with an output.", do=_complete, body=GateCompletion, answer=Changed,
    ),
    Operation(
        method="POST", path="/runs/{id}/gates/{gate:path}/fail", name="fail_gate", summary="Let a gate fail.",
        do=_fail, body=GateRejection, answer=Changed,
    ),
    Operation(
        method="POST", path="/events", name="emit", summary="Emit an event; the first of a name counts.",
        do=_emit, body=EventRequest, answer=Changed,
    ),
    Operation(
        method="GET", path="/queues", name="list_queues", summary="Queues, and what waits in them.",
        do=_queues, answer=Queues, all_tenants=True,
    ),
    Operation(
        method="POST", path="/queues/{queue:path}/pause", name="pause_queue",
        summary="Let no worker take runs of a queue.", do=_pause_queue, answer=Changed, all_tenants=True,
    ),
    Operation(
        method="POST", path="/queues/{queue:path}/resume", name="resume_queue",
        summary="Let workers take runs of a queue again.", do=_resume_queue, answer=Changed, all_tenants=True,
    ),
    Operation(
        method="GET", path="/schedules", name="list_schedules", summary="Schedules and triggers.",
        do=_schedules, answer=Schedules, all_tenants=True,
    ),
    Operation(
        method="GET", path="/schedules/{schedule:path}", name="show_schedule",
        summary="A schedule, what it made lately, and its next slots.",
        do=_show_schedule, answer=ScheduleDetails, all_tenants=True,
    ),
    Operation(
        method="POST", path="/schedules/{schedule:path}/pause", name="pause_schedule",
        summary="Let a schedule make nothing.", do=_pause_schedule, answer=Changed, all_tenants=True,
    ),
    Operation(
        method="POST", path="/schedules/{schedule:path}/resume", name="resume_schedule",
        summary="Let a schedule go on with its next slots.", do=_resume_schedule, answer=Changed, all_tenants=True,
    ),
    Operation(
        method="POST", path="/schedules/{schedule:path}/run", name="run_schedule",
        summary="Make a run of a schedule now, beside its slots.", do=_run_schedule, answer=Asked, all_tenants=True,
    ),
    Operation(
        method="GET", path="/limits", name="list_limits", summary="Limits, and what is in use of them.",
        do=_limits, answer=Limits, all_tenants=True,
    ),
    Operation(
        method="GET", path="/workers", name="list_workers", summary="Worker sessions.",
        do=_workers, answer=Workers, all_tenants=True,
    ),
    Operation(
        method="GET", path="/tasks", name="list_tasks", summary="The tasks whose code is known here.",
        do=_tasks, answer=Tasks, all_tenants=True,
    ),
)  # fmt: skip
"""What can be asked about all else, and done to it."""
