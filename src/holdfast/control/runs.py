"""Runs for operators: lists, all there is to know of one, what can be done to it; ids are taken by their beginning."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Literal, Unpack
from uuid import UUID

import msgspec

from holdfast.control.graphs import GateInfo, GraphControl, GraphInfo
from holdfast.control.limits import shown_place
from holdfast.errors import ConfigError, ErrorInfo, PayloadError, RunNotFound, UnknownTask
from holdfast.model.clock import MICROS_PER_SECOND, to_datetime, to_datetime_or_none
from holdfast.model.codec import decode, display_value, encode
from holdfast.model.failure import cancellation_json, error_from_json
from holdfast.model.filters import PageOptions
from holdfast.model.history import Entry
from holdfast.model.ids import new_id
from holdfast.model.names import MAX_KEY_CHARS, check_actor, check_name
from holdfast.model.run import Page, RunInfo, RunState
from holdfast.model.step_keys import key_label, key_name
from holdfast.store import Store
from holdfast.store.reader import Reader, run_id
from holdfast.store.views import RunRow, StepRow, WaitRow
from holdfast.task.registry import Registry
from holdfast.task.signature import SignatureProtocol, UntypedSignature

SHORTEST_PREFIX = 4
SHOWN_CANDIDATES = 5
SHOWN_CHILDREN = 50

_PREFIX = re.compile(r"[0-9a-f]{1,32}")


class RunDetails(msgspec.Struct, frozen=True):
    """All there is to know of one run. Arguments and options are plain JSON values."""

    info: RunInfo[Any]
    args: Any
    options: dict[str, Any]
    unique: str | None
    due_at: datetime | None
    deadline: datetime | None
    expires_at: datetime | None
    held: str | None
    history: list[Entry]
    ending: str | None = None
    """How a run that undoes will end: failed or cancelled."""
    schedule: str | None = None
    """Which one made it; the slot is in `info.scheduled_for`."""
    trace: str | None = None
    """The id of the trace that it was made in, where one is kept."""
    restarts: int = 0
    """How often it began anew with other arguments."""
    steps: list[StepInfo] = msgspec.field(default_factory=list)
    """What a durable function has on record, in order, since its last restart."""
    waits: list[WaitInfo] = msgspec.field(default_factory=list)
    """What it waits for."""
    children: list[ChildInfo] = msgspec.field(default_factory=list)
    """Its first children, in the order in which they were made."""
    more_children: bool = False
    """Whether there are more than those."""
    kind: Literal["task", "graph", "gate"] = "task"
    node: str | None = None
    """Its name as a node of the graph that is its parent,"""
    node_of: str | None = None
    """and the name of that."""
    needs: dict[str, str] = msgspec.field(default_factory=dict)
    """What it needs as a node, and the states of those."""
    graph: GraphInfo | None = None
    """The nodes of a graph."""
    gate: GateInfo | None = None
    full_limit: str | None = None
    """The limit, and its key, that is full while the run is parked."""


class RunControl:
    """Every run of the database, whatever code made it; results are plain JSON values."""

    def __init__(self, store: Store, registry: Registry | None = None) -> None:
        self._store = store
        self._registry = registry
        self._reader = Reader(store.views, store.graphs, store.listing)
        self._graphs = GraphControl(store)

    def page(self, **asked: Unpack[PageOptions]) -> Page:
        """Runs, newest first, that fit all of the filters; give the page's `after` for the next ones. A page that had
        to pass over very many others is `partial`: it may have few runs, or none, though more follow."""
        return self._reader.page(**asked)

    def find(self, given: UUID | str) -> UUID:
        """The id of a run: whole, or as much of its beginning as no other run has, but for its own children and nodes,
        which are often made in the same moment."""
        if isinstance(given, UUID):
            return given
        digits = given.strip().lower().replace("-", "")
        if len(digits) == 32 or not _PREFIX.fullmatch(digits):
            return run_id(given.strip())
        if len(digits) < SHORTEST_PREFIX:
            raise RunNotFound(f"{given!r} is too short: give at least {SHORTEST_PREFIX} characters of the run's id")
        low, high = (str(UUID(digits.ljust(32, filler))) for filler in "0f")
        found = self._store.views.between(low, high, SHOWN_CANDIDATES + 1)
        if not found:
            raise RunNotFound(f"no run's id begins with {given}; it may have been pruned")
        if len(found) > 1:
            tops = self._store.views.tops_between(low, high)
            if len(tops) == 1:
                return UUID(tops[0])
            display_value = ", ".join(f"{id} ({task}, {state})" for id, task, state in found[:SHOWN_CANDIDATES])
            more = ", …" if len(found) > SHOWN_CANDIDATES else ""
            raise RunNotFound(f"the ids of several runs begin with {given}, give more of it: {display_value}{more}")
        return UUID(str(found[0][0]))

    def info(self, id: UUID) -> RunInfo[Any]:
        return self._reader.info(id)

    def details(self, id: UUID) -> RunDetails:
        """All there is to know of a run."""
        row = self._reader.row(id)
        more = self._store.views.more(str(id))
        if more is None:
            raise RunNotFound(f"run {id} was pruned just now")
        children = [] if row.kind else self._store.views.children(str(id), SHOWN_CHILDREN + 1)
        options = {} if more.options is None else decode(more.options, dict[str, Any])
        options.pop("scheduled_for", None)  # which the info has
        return RunDetails(
            info=self._reader.info_of(row) if row.kind is None else self._reader.info(id),
            args=display_value(more.args),
            schedule=options.pop("schedule", None),
            trace=_trace_id(options.pop("trace", None)),
            options=options,
            unique=None if more.unique_name is None else decode(more.unique_name)[-1],
            due_at=to_datetime_or_none(row.due_at),
            deadline=to_datetime_or_none(more.deadline),
            expires_at=to_datetime_or_none(more.expires_at),
            held=row.held,
            history=self._reader.history(id),
            ending=more.ending,
            restarts=more.generation,
            steps=self.steps(id),
            waits=self.waits(id),
            children=children_of(children[:SHOWN_CHILDREN]),
            more_children=len(children) > SHOWN_CHILDREN,
            **self._in_graphs(id, row),
            full_limit=shown_place(more.parked_on) if row.held == "full" and more.parked_on else None,
        )

    def _in_graphs(self, id: UUID, row: RunRow) -> dict[str, Any]:
        """What there is to know of a run as a graph, and as a node of one."""
        found: dict[str, Any] = {"kind": row.kind or "task", "node": row.node}
        if row.kind == "graph":
            found["graph"] = self._graphs.read(id)
        if row.node is not None and row.parent is not None:
            found["node_of"] = self._reader.row(UUID(row.parent)).task
            found["needs"] = dict(self._store.views.needs(row.parent, str(id)))
        if row.kind == "gate" and row.parent is not None:
            gates = self._graphs.gates(UUID(row.parent))
            found["gate"] = next((gate for gate in gates if gate.id == id), None)
        return found

    def steps(self, id: UUID) -> list[StepInfo]:
        """What a durable function has on record since its last restart, in order."""
        return steps_of(self._store.views.steps(str(id)))

    def waits(self, id: UUID) -> list[WaitInfo]:
        """What a run waits for."""
        return waits_of(self._store.views.waits(str(id)))

    def history(self, id: UUID) -> list[Entry]:
        """The whole story of a run."""
        return self._reader.history(id)

    def pulse(self, id: UUID) -> str:
        """A short text that is another one as soon as something has happened to the run or its children."""
        return hashlib.sha256(repr(self._store.views.pulse(str(id))).encode()).hexdigest()[:16]

    def cancel(self, id: UUID, reason: str | None = None, by: str | None = None) -> bool:
        """End a run; False when it had ended before. `by` says who did it."""
        return self._store.operators.cancel(str(id), cancellation_json(reason, check_actor(by)))

    def retry(self, id: UUID, by: str | None = None) -> bool:
        """Send a failed or cancelled run back to ready; False when it is unfinished anyway. `by` says who did it."""
        return self._store.operators.retry(str(id), check_actor(by))

    def fork(
        self,
        id: UUID,
        from_step: str | None = None,
        args: Sequence[Any] | Mapping[str, Any] | None = None,
        by: str | None = None,
    ) -> UUID:
        """A new run with the checkpoints that a run made before a step, which is given by name or key; without one it
        begins at the beginning. `args`: all its arguments, by position or by name; the run's own if left out.
        `by` says who did it."""
        text = None if args is None else self._arguments(self._reader.row(id).task, args)
        if from_step is not None:
            check_name(from_step, "the step", MAX_KEY_CHARS)
        fork = new_id()
        self._store.forks.fork(str(id), str(fork), from_step, text, check_actor(by))
        return fork

    def _arguments(self, task: str, args: Sequence[Any] | Mapping[str, Any]) -> str:
        """Checked against the task's code where that is known, else kept as they are."""
        signature: SignatureProtocol = UntypedSignature(task)
        if self._registry is not None:
            with suppress(UnknownTask):
                signature = self._registry.get(task).signature
        if isinstance(args, str | bytes) or not isinstance(args, Sequence | Mapping):
            raise ConfigError(f"the arguments of a fork must be a list or a mapping, not {type(args).__name__}")
        return signature.encode((), args) if isinstance(args, Mapping) else signature.encode(tuple(args), {})

    def send(self, id: UUID, topic: str, payload: Any = None, by: str | None = None) -> None:
        """Send an unfinished run a message, which it receives in order, once. `by` says who did it."""
        text = encode(payload, f"the message on topic {topic!r}")
        self._store.operators.send(str(id), check_name(topic, "a topic"), text, check_actor(by))


def _trace_id(kept: Any) -> str | None:
    """The trace's id in a kept W3C context."""
    parts = str(kept.get("traceparent", "")).split("-") if isinstance(kept, dict) else []
    return parts[1] if len(parts) > 1 else None


class StepInfo(msgspec.Struct, frozen=True):
    """Something on record: a step, what a wait came to, a recorded value, children made, a compensation run."""

    n: int
    """Its number: the order in which it reached the code."""
    name: str
    """What the author called it; steps are named as they are, all else begins with a `$`."""
    label: str
    """What it is, in words."""
    kind: str
    key: str
    """What it is known by. `fork` takes it, and the label or the name of its first occurrence too."""
    at: datetime
    took: float | None
    """Seconds."""
    value: Any
    """The result of a step, the payload of an event or message, the id of a run that was made, …"""
    error: ErrorInfo | None
    undo: bool
    """Whether it has a compensation."""
    undone_at: datetime | None
    """When that was run."""


class WaitInfo(msgspec.Struct, frozen=True):
    """Something that a run waits for. `outcome`: it has come, but the run hasn't gone on yet."""

    key: str
    kind: Literal["sleep", "event", "message", "children"]
    name: str | None
    """The event, the topic, the sleep's own name, or the task of the children."""
    pending: int | None
    """How many children are unfinished."""
    since: datetime
    due_at: datetime | None
    outcome: str | None


class ChildInfo(msgspec.Struct, frozen=True):
    """A child of a run. `spawn` is the key of the call that made it."""

    id: UUID
    task: str
    state: RunState
    spawn: str
    generation: int
    place: int | None
    attempt: int
    started_at: datetime | None
    finished_at: datetime | None
    error: ErrorInfo | None


def steps_of(rows: Sequence[StepRow]) -> list[StepInfo]:
    """All that is on record, in order."""
    undone = {_number(row.value): row.at for row in rows if row.kind == "undone"}
    return [_step(row, undone.get(row.n)) for row in rows]


def _step(row: StepRow, undone_at: int | None) -> StepInfo:
    failed = row.kind == "failed"
    return StepInfo(
        n=row.n,
        name=key_name(row.key),
        label=key_label(row.key),
        kind=row.kind,
        key=row.key,
        at=to_datetime(row.at),
        took=None if row.took is None else row.took / MICROS_PER_SECOND,
        value=None if failed else _value(row.kind, row.value),
        error=error_from_json(row.value or "") if failed else None,
        undo=row.undo == 1,
        undone_at=to_datetime_or_none(undone_at),
    )


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isdigit() else 0


def _value(kind: str, text: str | None) -> Any:
    """What is on record, as plain JSON; the text itself where that can't be read."""
    if text is None:
        return None
    with suppress(PayloadError):
        value = display_value(text)
        return to_datetime(value) if kind == "now" and isinstance(value, int) else value
    return text


def waits_of(rows: Iterable[WaitRow]) -> list[WaitInfo]:
    return [
        WaitInfo(
            key=row.key,
            kind=row.kind,  # type: ignore[arg-type]
            name=_awaited(row),
            pending=row.pending,
            since=to_datetime(row.since),
            due_at=to_datetime_or_none(row.due_at),
            outcome=row.outcome,
        )
        for row in rows
    ]


def _awaited(row: WaitRow) -> str | None:
    if row.kind == "message":
        return row.target
    if row.kind == "children":
        return key_label(row.key).rpartition(" ")[2]
    return key_label(row.key).partition(" ")[2] or None


def children_of(rows: Iterable[RunRow]) -> list[ChildInfo]:
    return [_child(row) for row in rows]


def _child(run: RunRow) -> ChildInfo:
    generation, _, key = (run.spawn_key or "").partition(":")
    return ChildInfo(
        id=UUID(run.id),
        task=run.task,
        state=run.state,
        spawn=key,
        generation=_number(generation),
        place=run.place,
        attempt=run.attempt,
        started_at=to_datetime_or_none(run.started_at),
        finished_at=to_datetime_or_none(run.finished_at),
        error=None if run.error is None else error_from_json(run.error),
    )


class EventControl:
    """Facts that durable functions wait for by name."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def emit(self, name: str, payload: Any = None, tenant: str | None = None) -> bool:
        """Emit an event; False when it had been emitted before, which changes nothing."""
        event = check_name(name, "the name of an event")
        text = encode(payload, f"the payload of event {name!r}")
        return self._store.events.emit(None if tenant is None else check_name(tenant, "tenant"), event, text)
