"""Operations on single runs: list, find, inspect, cancel, retry, fork, send messages."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from typing import Any, Literal, Unpack
from uuid import UUID

import msgspec

from holdfast.control.audit import audited
from holdfast.control.budgets import spent_by
from holdfast.control.gates import GateInfo
from holdfast.control.graphs import GraphControl, GraphInfo
from holdfast.control.interaction import InteractionControl, PendingAsk, ValueInfo
from holdfast.control.limits import format_counter
from holdfast.control.retry_preview import RetryPreview, RetryPreviewer
from holdfast.control.run_payloads import RunPayloads
from holdfast.control.steps import (
    ChildInfo,
    MessageInfo,
    StepInfo,
    StepList,
    StepsView,
    UnfinishedStep,
    WaitInfo,
    child_of,
    waits_of,
)
from holdfast.control.topics import inbox_text
from holdfast.errors import ConfigError, PayloadError, RunNotFound, UnknownTask
from holdfast.model.clock import to_datetime, to_datetime_or_none
from holdfast.model.codec import decode, encode
from holdfast.model.failure import cancellation_json
from holdfast.model.filters import PageOptions
from holdfast.model.history import Entry
from holdfast.model.ids import new_id
from holdfast.model.names import MAX_KEY_CHARS, check_actor, check_name
from holdfast.model.payloads import PayloadContext
from holdfast.model.previews import UNREADABLE, PayloadView
from holdfast.model.run import Page, RunInfo
from holdfast.model.run_logs import LogPage
from holdfast.model.topics import received_context
from holdfast.store import Store
from holdfast.store.run_actions import run_changes
from holdfast.store.run_history import HistoryView
from holdfast.store.run_queries import RunDetailRow, RunRow
from holdfast.store.run_reader import RunReader, run_id
from holdfast.task.options import Options
from holdfast.task.registry import Registry
from holdfast.task.signature import SignatureProtocol, UntypedSignature

MIN_PREFIX_CHARS = 4
MAX_CANDIDATES = 5
MAX_CHILDREN = 50
MAX_ANCESTORS = 10
MAX_PARTS = 1000
"""How many history entries and checkpoints the details of a run contain."""
_PREFIX = re.compile(r"[0-9a-f]{1,32}")


class RunDetails(msgspec.Struct, frozen=True):
    """All details of one run. Arguments and options are plain JSON values."""

    info: RunInfo[Any]
    args: Any
    options: dict[str, Any]
    unique: str | None
    debounce: str | None
    due_at: datetime | None
    deadline: datetime | None
    start_by: datetime | None
    expires_at: datetime | None
    held: str | None
    paused_at: datetime | None
    """Since when it is paused."""
    history: list[Entry]
    """Its last entries, oldest first."""
    ending: str | None = None
    """The final state of a run that is undoing: failed or cancelled."""
    schedule: str | None = None
    """The schedule that created it; the slot is in `info.scheduled_for`."""
    trace: str | None = None
    """The id of the trace in which it was enqueued, if one is stored."""
    restarts: int = 0
    """How often it started over: with new arguments, or as a node of a retried graph that was done."""
    steps: list[StepInfo] = msgspec.field(default_factory=list)
    """The last checkpoints of a durable function since its last restart, in order."""
    unfinished_steps: list[UnfinishedStep] = msgspec.field(default_factory=list)
    """Its steps that have failed and are tried again, or whose attempt ended between two tries."""
    waits: list[WaitInfo] = msgspec.field(default_factory=list)
    """Its pending waits."""
    children: list[ChildInfo] = msgspec.field(default_factory=list)
    """Its first children, in the order of creation."""
    more_children: bool = False
    """Whether it has more children than those."""
    kind: Literal["task", "graph", "gate"] = "task"
    node: str | None = None
    """Its name as a node of the parent graph."""
    node_of: str | None = None
    """The name of the parent graph."""
    needs: dict[str, str] = msgspec.field(default_factory=dict)
    """The nodes it depends on, and their states."""
    graph: GraphInfo | None = None
    """The first nodes of a graph run, and how many follow."""
    gate: GateInfo | None = None
    set_aside: list[MessageInfo] = msgspec.field(default_factory=list)
    """Messages that didn't have the type that the function expects."""
    values: list[ValueInfo] = msgspec.field(default_factory=list)
    """The values that it publishes, by name."""
    asks: list[PendingAsk] = msgspec.field(default_factory=list)
    """The first asks that it hasn't answered, in order of arrival."""
    spent: dict[str, Decimal] = msgspec.field(default_factory=dict)
    """What it has spent with `ctx.spend`, by budget."""
    full_limit: str | None = None
    """The limit, with its key, that the run is parked on."""
    more_history: int = 0
    """How many earlier entries the history has."""
    more_steps: int = 0
    """How many earlier checkpoints there are."""


class Ancestor(msgspec.Struct, frozen=True):
    """A run above another one. `node`: its name as a node of a graph."""

    id: UUID
    task: str
    node: str | None = None

    @property
    def name(self) -> str:
        return self.node or self.task


class RunControl:
    """Operations on any run in the database, whichever code enqueued it. Results are plain JSON values."""

    parse_id = staticmethod(run_id)

    def __init__(self, store: Store, registry: Registry | None = None, graphs: GraphControl | None = None) -> None:
        self._store = store
        self._registry = registry
        self._reader = RunReader(store)
        self._graphs = graphs or GraphControl(store)
        self._interaction = InteractionControl(store, Registry() if registry is None else registry)

    def page(self, **options: Unpack[PageOptions]) -> Page:
        """List runs that match all filters, newest first; pass the page's `after` to get the next page.

        A page is `partial` if the scan stopped early because very many runs didn't match: it may be short or empty
        although more follow.
        """
        return self._reader.page(**options)

    def find(self, given: UUID | str) -> UUID:
        """Find a run by its id or by a prefix that is unique, disregarding the run's own children and nodes, which are
        often created in the same millisecond."""
        if isinstance(given, UUID):
            return given
        digits = given.strip().lower().replace("-", "")
        if len(digits) == 32 or not _PREFIX.fullmatch(digits):
            return run_id(given.strip())
        if len(digits) < MIN_PREFIX_CHARS:
            raise RunNotFound(f"{given!r} is too short: give at least {MIN_PREFIX_CHARS} characters of the run id")
        low, high = (str(UUID(digits.ljust(32, filler))) for filler in "0f")
        found = self._store.queries.find_in_range(low, high, MAX_CANDIDATES + 1)
        if not found:
            raise RunNotFound(f"no run id starts with {given}; the run may have been pruned")
        if len(found) > 1:
            tops = self._store.queries.find_roots_in_range(low, high)
            if len(tops) == 1:
                return UUID(tops[0])
            candidates = ", ".join(f"{id} ({task}, {state})" for id, task, state in found[:MAX_CANDIDATES])
            more = ", …" if len(found) > MAX_CANDIDATES else ""
            raise RunNotFound(f"several run ids start with {given}; give more characters: {candidates}{more}")
        return UUID(str(found[0][0]))

    def summary(self, id: UUID) -> RunInfo[Any]:
        """Return a run as in lists: without its result, and with long arguments cut."""
        return self._reader.info_of(self._reader.row(id))

    def info(self, id: UUID) -> RunInfo[Any]:
        """Return a run with its arguments and its result, unless they are too large to show."""
        row = self._reader.row(id)
        payloads = RunPayloads(self._store)
        more = payloads.details(row.id)
        return self._reader.info_of(row) if more is None else self._info(row, more, payloads)[0]

    def _info(self, row: RunRow, more: RunDetailRow, payloads: RunPayloads) -> tuple[RunInfo[Any], Any]:
        """Return a run with its result, and its arguments; a graph's or gate's `info` has none."""
        info = self._reader.info_of(row)
        corrupt = [*info.corrupt, *more.corrupt]
        context = PayloadContext("args", row.tenant, row.id)
        args = _read("args", lambda: payloads.view.value(more.args, context, more.args_bytes), corrupt, UNREADABLE)
        result = _read("result", lambda: payloads.result(row, more), corrupt)
        shown, corrupt = info.args if row.kind else args, list(dict.fromkeys(corrupt))
        return replace(info, args=shown, result=result, result_omitted=False, corrupt=tuple(corrupt)), args

    def details(self, id: UUID) -> RunDetails:
        row = self._reader.row(id)
        payloads = RunPayloads(self._store)
        more = payloads.details(str(id))
        if more is None:
            raise RunNotFound.of(id)
        children = [] if row.kind else self._store.queries.children(str(id), MAX_CHILDREN + 1)
        info, args = self._info(row, more, payloads)
        corrupt = list(info.corrupt)
        named = None if more.unique_name is None else more.unique_name.removesuffix("+")  # it waits for the name
        unique = _decode("unique_name", named, list[Any], corrupt)
        debounce = _decode("debounce", more.debounce, tuple[Any, Any, str], corrupt)
        options = _decode("options", more.options, dict[str, Any], corrupt) or {}
        for name in ("scheduled_for", "key", "node"):  # RunInfo and RunDetails have them
            options.pop(name, None)
        history = HistoryView(self._store, row, payloads.view)
        steps = self._steps(row, history, payloads.view)
        earlier_entries, earlier_steps = max(len(history) - MAX_PARTS, 0), max(len(steps) - MAX_PARTS, 0)
        return RunDetails(
            info=replace(info, corrupt=tuple(dict.fromkeys(corrupt))),
            args=args,
            schedule=options.pop("schedule", None),
            trace=_trace_id(options.pop("trace", None)),
            options=options,
            unique=unique[2] if unique is not None and len(unique) > 2 else None,
            debounce=None if debounce is None else debounce[-1],
            due_at=to_datetime_or_none(row.due_at),
            deadline=to_datetime_or_none(more.deadline),
            start_by=to_datetime_or_none(more.start_by),
            expires_at=to_datetime_or_none(more.expires_at),
            held=row.held,
            paused_at=to_datetime_or_none(more.paused_at),
            history=history.part(earlier_entries, len(history)),
            more_history=earlier_entries,
            ending=more.ending,
            restarts=more.generation,
            steps=steps.part(earlier_steps, len(steps)),
            more_steps=earlier_steps,
            unfinished_steps=steps.unfinished,
            waits=self.waits(id),
            children=[child_of(row, self._store.payloads) for row in children[:MAX_CHILDREN]],
            set_aside=self._set_aside(row, history, payloads.view),
            values=[] if row.kind else self._interaction.values(id),
            spent={} if row.kind else spent_by(self._store, str(id)),
            asks=[] if row.kind else self._interaction.pending(id),
            more_children=len(children) > MAX_CHILDREN,
            **self._in_graphs(id, row),
            full_limit=format_counter(more.parked_on) if row.held == "full" and more.parked_on else None,
        )

    def _in_graphs(self, id: UUID, row: RunRow) -> dict[str, Any]:
        """Read the details of a run as a graph and as a node of a graph."""
        found: dict[str, Any] = {"kind": row.kind or "task", "node": row.node}
        if row.kind == "graph":
            found["graph"] = self._graphs.page(id)
        if row.node is not None and row.parent is not None:
            with suppress(RunNotFound, ValueError):  # the row is corrupt
                found["node_of"] = self._reader.row(UUID(row.parent)).task
            found["needs"] = dict(self._store.queries.dependencies(row.parent, str(id)))
        if row.kind == "gate" and row.parent is not None:
            gates = self._graphs.gates(UUID(row.parent))
            found["gate"] = next((gate for gate in gates if gate.id == id), None)
        return found

    def ancestors(self, id: UUID) -> list[Ancestor]:
        """List the runs above a run, the topmost first; of very deep trees only the nearest ones."""
        found: list[Ancestor] = []
        row = self._reader.row(id)
        while row.parent is not None and len(found) < MAX_ANCESTORS:
            above = self._store.queries.run(row.parent)
            if above is None:
                break
            row = above
            found.append(Ancestor(UUID(row.id), row.task, row.node))
        return found[::-1]

    def steps(self, id: UUID) -> list[StepInfo]:
        """List the first checkpoints of a durable function since its last restart, in order, with superseded ones."""
        return self.step_list(id).recorded

    def step_list(self, id: UUID, start: int = 0, limit: int = MAX_PARTS) -> StepList:
        """List some of them and, as `unfinished`, the steps that have failed and are tried again."""
        row = self._reader.row(id)
        view = PayloadView(self._store.payloads)
        steps = self._steps(row, HistoryView(self._store, row, view), view)
        return StepList(steps.part(start, start + limit), steps.unfinished, len(steps))

    def _steps(self, row: RunRow, history: HistoryView, view: PayloadView) -> StepsView:
        since = to_datetime_or_none(row.claimed_at) if row.is_running else None
        return StepsView(self._store, row, history.about_steps(), since, view)

    def waits(self, id: UUID) -> list[WaitInfo]:
        """List the pending waits of a run."""
        return waits_of(self._store.queries.waits(str(id)))

    def set_aside(self, id: UUID) -> list[MessageInfo]:
        """List the messages of a run that were set aside, because they don't have the expected type."""
        view, row = PayloadView(self._store.payloads), self._reader.row(id)
        return self._set_aside(row, HistoryView(self._store, row, view), view)

    def _set_aside(self, row: RunRow, history: HistoryView, view: PayloadView) -> list[MessageInfo]:
        entries = history.set_aside()
        if not entries:
            return []
        errors = {entry.data.get("message"): entry.data.get("reason") for entry in entries}
        rows = self._store.queries.set_aside_messages(row.id)
        chosen = view.choose((n, size) for n, _, size, _ in rows)
        payloads = self._store.queries.message_payloads(row.id, chosen) if chosen else {}

        def payload(n: int, topic: str, size: int) -> Any:
            return view.arguments(payloads.get(n), received_context(row.tenant, row.id, topic), size)

        return [
            MessageInfo(n, inbox_text(topic) or topic, payload(n, topic, size), to_datetime(sent_at), errors.get(n))
            for n, topic, size, sent_at in rows
        ]

    def history(self, id: UUID) -> list[Entry]:
        """List the first entries of a run's history, oldest first."""
        return self.history_part(id)[0]

    def history_part(self, id: UUID, start: int = 0, limit: int = MAX_PARTS) -> tuple[list[Entry], int]:
        """List some entries of a run's history, oldest first, and return how many there are."""
        history = HistoryView(self._store, self._reader.row(id), PayloadView(self._store.payloads))
        return history.part(start, start + limit), len(history)

    def logs(
        self,
        id: UUID,
        level: str | None = None,
        search: str | None = None,
        after: int = 0,
        limit: int | None = None,
        tail: int | None = None,
    ) -> LogPage:
        """Return the lines that a run has logged, oldest first: up to `limit`, or the last `tail` of them."""
        return self._reader.logs(id, level, search, after, limit, tail)

    def pulse(self, id: UUID) -> str:
        """Return a hash that changes whenever the run or its children change."""
        return hashlib.sha256(repr(self._store.queries.change_marker(str(id))).encode()).hexdigest()[:16]

    def is_gate(self, id: UUID) -> bool:
        """Return whether a run is a gate."""
        return self._reader.row(id).kind == "gate"

    @audited("cancel run", "id")
    def cancel(self, id: UUID, reason: str | None = None, by: str | None = None) -> bool:
        """Cancel a run; False if it had already finished. `by` names the operator in its history."""
        return self._store.actions.cancel(str(id), cancellation_json(reason, check_actor(by)))

    @audited("retry run", "id")
    def retry(self, id: UUID, by: str | None = None, args: Sequence[Any] | Mapping[str, Any] | None = None) -> bool:
        """Return a failed or cancelled run to ready; False if it is unfinished.

        With other arguments, by position or by name, it starts over.
        """
        text = None if args is None else self._arguments(self._reader.row(id).task, args)
        return self._store.actions.retry(str(id), check_actor(by), text)

    @audited("change run", "id")
    def update(
        self,
        id: UUID,
        *,
        priority: int | None = None,
        run_at: datetime | None = None,
        args: Sequence[Any] | Mapping[str, Any] | None = None,
        tags: Sequence[str] | None = None,
        by: str | None = None,
    ) -> None:
        """Change a run that hasn't started, or the time of a scheduled retry or of a sleep. None leaves as it is."""
        given = {"priority": priority, "run_at": run_at, "tags": tags}
        options = Options().merge(**{name: value for name, value in given.items() if value is not None})
        text = None if args is None else self._arguments(self._reader.row(id).task, args)
        self._store.actions.update(str(id), run_changes(options, text), check_actor(by))

    @audited("pause run", "id")
    def pause(self, id: UUID, by: str | None = None) -> bool:
        """Pause a run with its unfinished children; False if it was paused."""
        return self._store.pauses.pause_run(str(id), check_actor(by))

    @audited("resume run", "id")
    def resume(self, id: UUID, by: str | None = None) -> bool:
        """Resume a paused run with its children; False if it wasn't paused."""
        return self._store.pauses.resume_run(str(id), check_actor(by))

    def preview_retry(self, id: UUID, *, changed: bool = False) -> RetryPreview:
        """Report what a retry of a run would keep, run again and perhaps repeat; changes nothing.

        `changed`: with other arguments.
        """
        row = self._reader.row(id)
        details = self._store.queries.details(str(id))
        if details is None:
            raise RunNotFound.of(id)
        return RetryPreviewer(self._store).preview(row, details, changed=changed)

    @audited("fork run", "id")
    def fork(
        self,
        id: UUID,
        from_step: str | None = None,
        args: Sequence[Any] | Mapping[str, Any] | None = None,
        by: str | None = None,
        *,
        from_failed: bool = False,
    ) -> UUID:
        """Create a run with the checkpoints that another run recorded before a step, or a new run of a finished graph.

        `from_step` is a step's name, label or key, or a node of the graph; without it, the new run starts from the
        beginning. `args` replace the run's own arguments, by position or by name. `from_failed`: of a graph, only
        nodes that failed or were cancelled, and those that depend on them, run again.
        """
        if from_step is not None:
            check_name(from_step, "the step", MAX_KEY_CHARS)
        fork, row = new_id(), self._reader.row(id)
        if row.kind == "graph":
            if args is not None:
                raise ConfigError(f"run {id} is a graph, which has no arguments")
            fair = None if self._registry is None else self._registry.fair
            self._store.graph_forks.fork(
                str(id), str(fork), from_node=from_step, from_failed=from_failed, by=check_actor(by), fair=fair
            )
            return fork
        if from_failed:
            raise ConfigError(f"run {id} is not a graph: only graphs are forked from failed nodes; retry this run")
        text = None if args is None else self._arguments(row.task, args)
        self._store.actions.fork(str(id), str(fork), from_step, text, check_actor(by))
        return fork

    def _arguments(self, task: str, args: Sequence[Any] | Mapping[str, Any]) -> str:
        """Encode arguments; they are checked if the task's code is known."""
        signature: SignatureProtocol = UntypedSignature(task)
        if self._registry is not None:
            with suppress(UnknownTask):
                signature = self._registry.get(task).signature
        if isinstance(args, str | bytes) or not isinstance(args, Sequence | Mapping):
            raise ConfigError(f"args must be a list or a mapping, not {type(args).__name__}")
        return signature.encode((), args) if isinstance(args, Mapping) else signature.encode(tuple(args), {})

    @audited("send message", "id", unless_api=True)
    def send(self, id: UUID, topic: str, payload: Any = None, by: str | None = None) -> None:
        """Send a message to an unfinished run, which receives messages in order, each once."""
        text = self._encode_message(id, check_name(topic, "a topic"), payload)
        self._store.actions.send(str(id), topic, text, check_actor(by))

    @audited("resend message", "id")
    def resend(self, id: UUID, number: int, payload: Any = msgspec.UNSET, by: str | None = None) -> str:
        """Send a message again that was set aside, or another payload instead of it; return its topic.

        Without a payload, the same message is sent: after a deploy with the fitting type.
        """
        text = None
        if payload is not msgspec.UNSET:
            messages = self._store.queries.set_aside_messages(str(id))
            topic = next((topic for n, topic, *_ in messages if n == number), None)
            text = encode(payload) if topic is None else self._encode_message(id, topic, payload)
        return self._store.actions.resend(str(id), number, text, check_actor(by))

    def _encode_message(self, id: UUID, topic: str, payload: Any) -> str:
        """Encode a message; its type is checked if the task's code is known."""
        if self._registry is None:
            return encode(payload, f"the message on topic {topic!r}")
        return self._registry.encode_message(self._reader.row(id).task, topic, payload)


def _decode(name: str, text: str | None, kind: Any, corrupt: list[str]) -> Any:
    return None if text is None else _read(name, lambda: decode(text, kind), corrupt)


def _read(name: str, read: Callable[[], Any], corrupt: list[str], instead: str | None = None) -> Any:
    """Decode a column. If that fails, add its name to `corrupt` and return `instead`."""
    try:
        return read()
    except PayloadError:
        corrupt.append(name)
        return instead


def _trace_id(context: Any) -> str | None:
    """Return the trace id of a stored W3C trace context."""
    parts = str(context.get("traceparent", "")).split("-") if isinstance(context, dict) else []
    return parts[1] if len(parts) > 1 else None
