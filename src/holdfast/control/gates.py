"""Gates: what waits for a decision, what the decision is about, and who decided."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

import msgspec

from holdfast.control.run_payloads import RunPayloads
from holdfast.errors import ErrorInfo, GraphError
from holdfast.model.access import EVERYTHING, AccessScope
from holdfast.model.clock import to_datetime, to_datetime_or_none
from holdfast.model.failure import error_from_json
from holdfast.model.gate_links import GateLinkInfo, remembered_links
from holdfast.model.payloads import PayloadContext
from holdfast.model.previews import listed_arguments
from holdfast.model.run import GRAPH_QUEUE, RunState
from holdfast.store import Store
from holdfast.store.graph_progress import read_plan
from holdfast.store.graphs import checked_output
from holdfast.store.run_queries import DependencyRow, GateRow, OpenGateRow, RunDetailRow
from holdfast.store.run_reader import RunReader

MAX_OPEN_GATES = 1000
MAX_DEPENDENCIES = 20
"""How many nodes before and after a gate its details contain."""

NodeKind = Literal["task", "gate", "graph"]

_DECISIONS: Mapping[str, tuple[str, ...]] = {
    "done": ("completed", "concluded_early", "timed_out"),
    "failed": ("failed", "concluded_early", "timed_out"),
    "skipped": ("timed_out",),
}
"""The history entries that decided a gate, by its state. Others are from before it was retried."""


class GateInfo(msgspec.Struct, frozen=True):
    """A gate of a graph or of a nested graph."""

    name: str
    id: UUID
    graph: UUID
    """The graph run that the gate belongs to."""
    state: RunState
    since: datetime | None
    """When it opened."""
    until: datetime | None
    """When it times out."""
    on_timeout: Literal["fail", "skip", "complete"]
    """What happens on a timeout."""
    early: str | None
    """The outcome, `done` or `failed`, if it was decided before it opened."""
    schema: dict[str, Any] | None
    """The JSON Schema of its output."""
    decided_by: str | None = None
    """Who completed or failed it; None if it is undecided or timed out."""
    decided_at: datetime | None = None
    """When it was decided or timed out."""


class GateDependency(msgspec.Struct, frozen=True):
    """A node that a gate depends on, with its input and output as plain JSON values."""

    name: str
    id: UUID
    kind: NodeKind
    task: str
    state: RunState
    args: Any
    result: Any
    error: ErrorInfo | None


class GateDependent(msgspec.Struct, frozen=True):
    """A node that depends on a gate."""

    name: str
    id: UUID
    kind: NodeKind
    task: str
    state: RunState


class GateDetails(GateInfo, frozen=True, kw_only=True):
    """A gate with everything a decision needs: the graph, and what comes before and after the gate."""

    task: str
    """The name of the graph."""
    tenant: str | None
    depends_on: list[GateDependency]
    """The first nodes that it depends on, in the order in which they were added."""
    more_depends_on: bool
    """Whether it depends on more nodes than those."""
    dependents: list[GateDependent]
    """The first nodes that depend on it."""
    more_dependents: bool
    payload: Any = None
    """What the decision is about."""
    output: Any = None
    """The output of a completed gate."""
    error: ErrorInfo | None = None
    """Why it failed or was skipped."""
    links: list[GateLinkInfo] = []
    """The links to it, the oldest first."""


class OpenGate(msgspec.Struct, frozen=True):
    """A gate that waits for a decision."""

    id: UUID
    name: str
    graph: UUID
    """The graph run that the gate belongs to."""
    task: str
    """The name of the graph."""
    tenant: str | None
    created_at: datetime
    until: datetime | None
    """When it times out."""
    schema: dict[str, Any] | None
    """The JSON Schema of its output."""
    since: datetime
    """When it opened."""
    payload: Any
    """What the decision is about; the start of its text if it is long."""
    asked: list[str]
    """The recipients of its links that can be used."""


class GateControl:
    """Lists open gates across all graphs, and shows what one decides."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._reader = RunReader(store)

    def open(self, scope: AccessScope = EVERYTHING, limit: int = 100) -> list[OpenGate]:
        """List open gates, oldest first: all, or those of graphs in a scope."""
        size = MAX_OPEN_GATES if scope.limits_lanes else min(limit, MAX_OPEN_GATES)
        found = self._store.queries.open_gates(scope.tenant, size)
        rows = [row for row in found if scope.covers_lane(GRAPH_QUEUE, row[3])][:limit]
        return [self._open_gate(row) for row in rows]

    def _open_gate(self, row: OpenGateRow) -> OpenGate:
        plan = read_plan(row.plan)
        links = [each for each in remembered_links(plan) if each.state(row.records, True, row.now) == "usable"]
        context = PayloadContext("args", row.tenant, row.id)
        args = listed_arguments(row.args, row.args_bytes, self._store.payloads, context)
        return OpenGate(
            id=UUID(row.id),
            name=row.node,
            graph=UUID(row.graph),
            task=row.task,
            tenant=row.tenant,
            created_at=to_datetime(row.created_at),
            until=to_datetime_or_none(row.deadline),
            schema=plan.get("schema"),
            since=to_datetime(row.opened_at),
            payload=args.get("payload") if isinstance(args, dict) else str(args).removeprefix('{"payload":'),
            asked=sorted({each.recipient for each in links if each.recipient is not None}),
        )

    def read(self, id: UUID) -> GateDetails:
        """Read a gate and what it decides; GraphError if the run isn't a gate."""
        row = self._reader.row(id)
        if row.kind != "gate" or row.parent is None:
            raise GraphError(f"run {id} is not a gate")
        graph = self._reader.row(UUID(row.parent))
        gate = next(each for each in self._store.queries.gates(row.parent) if str(each.id) == row.id)
        payloads = RunPayloads(self._store)
        details = payloads.details(row.id)
        before = self._store.queries.dependency_outcomes(row.parent, row.id, MAX_DEPENDENCIES + 1)
        after = self._store.queries.dependents(row.id, MAX_DEPENDENCIES + 1)
        return GateDetails(
            **msgspec.structs.asdict(gate_info(gate)),
            task=graph.task,
            tenant=graph.tenant,
            depends_on=_dependencies(before[:MAX_DEPENDENCIES], payloads),
            more_depends_on=len(before) > MAX_DEPENDENCIES,
            dependents=[
                GateDependent(node, UUID(str(each)), kind or "task", task, state)
                for each, node, kind, task, state in after[:MAX_DEPENDENCIES]
            ],
            more_dependents=len(after) > MAX_DEPENDENCIES,
            payload=None if details is None else gate_payload(row.tenant, row.id, details, payloads),
            output=None
            if details is None
            else payloads.view.arguments(
                details.result, PayloadContext("result", row.tenant, row.id), details.result_bytes
            ),
            error=None if row.error is None else error_from_json(row.error),
            links=self._store.graphs.links_of(row.id),
        )

    def checked_output(self, gate: GateInfo, output: Any) -> Any:
        """Return the output that completing a gate would store; BadArguments if it doesn't match the gate's type."""
        return checked_output(gate.name, gate.graph, gate.schema, output)


def gate_info(row: GateRow) -> GateInfo:
    """Turn a row into a `GateInfo`."""
    plan = read_plan(row.plan)
    is_open = row.state == "waiting"
    stored = plan.get("early")
    early = stored.get("state") if row.state == "blocked" and isinstance(stored, dict) else None
    deciding = ("concluded_early",) if early is not None else _DECISIONS.get(row.state, ())
    is_decided = row.decision in deciding
    return GateInfo(
        name=row.node,
        id=UUID(str(row.id)),
        graph=UUID(str(row.graph)),
        state=row.state,
        since=to_datetime(row.opened_at) if is_open else None,
        until=to_datetime_or_none(row.deadline) if is_open else None,
        on_timeout=plan.get("on_timeout", "fail"),
        early=early,
        schema=plan.get("schema"),
        decided_by=_decided_by(row.decision_data) if is_decided else None,
        decided_at=to_datetime_or_none(row.decided_at) if is_decided else None,
    )


def _decided_by(data: str | None) -> str | None:
    with suppress(msgspec.DecodeError, msgspec.ValidationError):
        by = msgspec.json.decode(data or "{}", type=dict[str, Any]).get("by")
        return None if by is None else str(by)
    return None


def gate_payload(tenant: str | None, id: str, details: RunDetailRow, payloads: RunPayloads) -> Any:
    """Return the payload of a gate, or a remark if it can't be read; None without one."""
    args = payloads.view.arguments(details.args, PayloadContext("args", tenant, id), details.args_bytes)
    return args.get("payload") if isinstance(args, dict) else args


def _dependencies(rows: Sequence[DependencyRow], payloads: RunPayloads) -> list[GateDependency]:
    """Build the nodes before a gate, with their arguments and results."""
    tasks = [row for row in rows if row.kind is None]
    args = payloads.stored("read_arguments", [(str(row.id), row.args_bytes) for row in tasks])
    results = payloads.stored("read_results", [(str(row.id), row.result_bytes) for row in rows if row.kind != "graph"])
    found = []
    for row in rows:
        id = str(row.id)
        context = PayloadContext("result", row.tenant, id)
        result = payloads.view.arguments(results.get(id), context, row.result_bytes)
        if row.state == "done" and row.kind == "graph":
            result = payloads.graph_result(id, row.options)
        found.append(
            GateDependency(
                name=row.node,
                id=UUID(id),
                kind="task" if row.kind is None else row.kind,  # type: ignore[arg-type]
                task=row.task,
                state=row.state,
                args=None
                if row.kind is not None
                else payloads.view.arguments(args.get(id), PayloadContext("args", row.tenant, id), row.args_bytes),
                result=result,
                error=None if row.error is None else error_from_json(row.error),
            )
        )
    return found
