"""The steps, waits and children of a durable function, as operators see them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Literal, NamedTuple
from uuid import UUID

import msgspec

from holdfast.control.budgets import awaited_budget
from holdfast.control.limits import format_counter
from holdfast.control.topics import inbox_text
from holdfast.errors import ErrorInfo, PayloadError
from holdfast.model.asks import asked_name
from holdfast.model.clock import MAX_DURATION_MICROS, MICROS_PER_SECOND, to_datetime, to_datetime_or_none
from holdfast.model.codec import decode, encode
from holdfast.model.failure import error_from_json
from holdfast.model.history import Entry
from holdfast.model.payloads import PayloadContext, Payloads, checkpoint_context
from holdfast.model.previews import PayloadView, listed_arguments
from holdfast.model.run import RunState
from holdfast.model.step_keys import is_ask_key, key_label, key_name
from holdfast.model.topics import parse_inbox
from holdfast.store import Store
from holdfast.store.limits import STEP_TARGET
from holdfast.store.run_queries import RunRow, StepRow, WaitRow
from holdfast.store.waits import parse_event_target

MAX_UNREADABLE_CHARS = 10_000
"""How much is shown of a value that can't be decoded."""


class StepTry(msgspec.Struct, frozen=True):
    """A failed try of a step that was, or will be, followed by another one in the same attempt."""

    number: int
    of: int
    """The maximum number of tries."""
    attempt: int
    at: datetime
    """When it failed."""
    took: float
    """Seconds."""
    error: ErrorInfo
    next_at: datetime
    """When the next try starts, unless the attempt ends before."""


class UnfinishedStep(msgspec.Struct, frozen=True):
    """A step that has failed and has no outcome yet."""

    name: str
    label: str
    key: str
    state: Literal["retrying", "interrupted"]
    """`retrying`: the attempt is running and tries it again. `interrupted`: the attempt ended between two tries."""
    args: Any
    tries: list[StepTry]
    """Its failed tries, the last one at the end."""

    @property
    def last(self) -> StepTry:
        return self.tries[-1]


class StepInfo(msgspec.Struct, frozen=True):
    """A checkpoint: a step, the outcome of a wait, a recorded value, spawned children or a compensation."""

    n: int
    """Its position in the order in which the code received the results."""
    name: str
    """The step's name in code; names of other checkpoints begin with `$`."""
    label: str
    """The name to show to people."""
    kind: str
    key: str
    """Its identity. `fork` accepts it, and also the label or name of the first occurrence."""
    at: datetime
    took: float | None
    """Seconds."""
    value: Any
    """The result of a step, the payload of an event or message, the id of a spawned run, the costs that a step took by
    limit, …"""
    error: ErrorInfo | None
    undo: bool
    """Whether it has a compensation."""
    undone_at: datetime | None
    """When its compensation ran."""
    superseded: bool
    """Whether it no longer counts: the operation runs again, or has run again. It is kept for the record."""
    generation: int
    """The number of restarts before it was recorded; negative if it is superseded."""
    args: Any = None
    """The arguments of a step that failed, or of which a try failed, with secrets masked; None if they aren't
    recorded."""
    tries: list[StepTry] = msgspec.field(default_factory=list)
    """The tries that failed before this outcome."""


class WaitInfo(msgspec.Struct, frozen=True):
    """A wait of a run. `outcome` is set once the wait is resolved and until the run resumes."""

    key: str
    kind: Literal["sleep", "event", "message", "ask", "topic", "children", "limit", "budget"]
    name: str | None
    """The event, the topic (with the conditions, for a published message), the ask (None for asks of all names), the
    name of the sleep, the task of the children, the limit and its key, or the budget."""
    pending: int | None
    """The number of unfinished children, or the cost of the step that waits for a limit."""
    since: datetime
    due_at: datetime | None
    outcome: str | None
    tenant: str | None = None
    """The tenant whose event is awaited; None also if it belongs to no tenant."""


class MessageInfo(msgspec.Struct, frozen=True):
    """A message of a run that was set aside, and why. `n` is its number among the messages of the run."""

    n: int
    topic: str
    payload: Any
    sent_at: datetime
    error: str | None


class ChildInfo(msgspec.Struct, frozen=True):
    """A child of a run. `spawn` is the key of the call that created it, `generation` that of the call's checkpoint."""

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
    args: Any = None
    """Its arguments; long ones are a string with the start of their JSON."""


class StepList(NamedTuple):
    """Some of the recorded steps of a run, those without an outcome, and how many recorded ones there are."""

    recorded: list[StepInfo]
    unfinished: list[UnfinishedStep]
    total: int


class StepsView:
    """The checkpoints of a run for operators, with the failed tries in its history: all of them, but only the values
    of those that are shown.

    `running_since`: when the running attempt was claimed; None if there is none.
    """

    def __init__(
        self, store: Store, run: RunRow, history: Sequence[Entry], running_since: datetime | None, view: PayloadView
    ) -> None:
        self._store = store
        self._run = run.id
        self._tenant = run.tenant
        self._view = view
        self._rows = store.queries.step_outline(run.id)
        self._undone = {_number(row.value): row.at for row in self._rows if row.kind == "undone"}
        tries = _failed_tries(history)
        self._tries: dict[tuple[int, int], list[Entry]] = {}
        for row in self._rows:
            while (left := tries.get(row.key)) and left[0].at <= to_datetime(row.at):
                self._tries.setdefault((row.n, row.generation), []).append(left.pop(0))
        self.unfinished = [_unfinished(key, left, running_since) for key, left in tries.items() if left]

    def __len__(self) -> int:
        return len(self._rows)

    def part(self, start: int, end: int) -> list[StepInfo]:
        """Return some of the checkpoints, in order; the values of the last ones first if not all may be read."""
        rows = self._rows[start:end]
        chosen = self._view.choose(((row.n, row.generation), row.value_bytes) for row in reversed(rows))
        values = self._store.queries.step_values(self._run, chosen) if chosen else {}
        return [self._step(row._replace(value=values.get((row.n, row.generation)))) for row in rows]

    def _step(self, row: StepRow) -> StepInfo:
        tries = self._tries.get((row.n, row.generation), [])
        failed = row.kind == "failed"
        args = self._failure_arguments(row) if failed else None
        undone_at = self._undone.get(row.n) if row.undo else None
        return StepInfo(
            n=row.n,
            name=key_name(row.key),
            label=key_label(row.key),
            kind=row.kind,
            key=row.key,
            at=to_datetime(row.at),
            took=row.took / MICROS_PER_SECOND
            if row.took is not None and 0 <= row.took <= MAX_DURATION_MICROS
            else None,
            value=None if failed else self._value(row),
            error=error_from_json(row.value or "") if failed else None,
            undo=row.undo == 1,
            undone_at=to_datetime_or_none(undone_at),
            superseded=row.generation < 0,
            generation=row.generation,
            args=tries[-1].data.get("args") if args is None and tries else args,
            tries=list(map(_try, tries)),
        )

    def _failure_arguments(self, row: StepRow) -> Any:
        """Return the arguments that are stored with the failure of a step."""
        with suppress(PayloadError):
            stored = decode(row.value or "{}", dict[str, Any]).get("step_args")
            context = PayloadContext("step_args", self._tenant, self._run, row.key)
            return None if stored is None else self._view.arguments(str(stored), context)
        return None

    def _value(self, row: StepRow) -> Any:
        """Decode a checkpoint's value as plain JSON; return unreadable text as it is."""
        with suppress(PayloadError):
            context = checkpoint_context(row.kind, self._tenant, self._run, row.key)
            value = self._view.value(row.value, context, row.value_bytes)
            if row.kind == "message" and is_ask_key(row.key) and isinstance(value, list) and len(value) == 4:
                return {"ask": value[2], "key": value[0], "payload": value[3]}
            if row.kind == "permit":
                return _costs(value)
            if row.kind == "adjust":
                return key_label(value) if isinstance(value, str) else None
            return to_datetime(value) if row.kind == "now" and isinstance(value, int) else value
        return (row.value or "")[:MAX_UNREADABLE_CHARS]


def _costs(value: Any) -> Any:
    """Return the costs that a step took by limit; a corrupt value as it is."""
    try:
        takes = msgspec.convert(value, list[tuple[str, int, int, int | None]])
    except msgspec.ValidationError:
        return value
    return {format_counter(counter): cost if used is None else used for counter, cost, _, used in takes}


def _failed_tries(history: Sequence[Entry]) -> dict[str, list[Entry]]:
    """Return the entries about failed tries since the last restart, by step key."""
    found: dict[str, list[Entry]] = {}
    for entry in history:
        if entry.kind in ("restarted", "moved") or entry.data.get("starts_over"):
            found.clear()
        elif entry.kind == "step_retrying" and "key" in entry.data:
            found.setdefault(entry.data["key"], []).append(entry)
    return found


def unfinished_steps(tries: Iterable[Entry], recorded: Iterable[str], running_since: datetime) -> list[UnfinishedStep]:
    """Return the steps that a running attempt tries again, given its failed tries and the keys that it recorded."""
    found = _failed_tries(list(tries))
    for key in recorded:
        found.pop(key, None)
    return [_unfinished(key, entries, running_since) for key, entries in found.items()]


def _unfinished(key: str, tries: list[Entry], running_since: datetime | None) -> UnfinishedStep:
    is_retrying = running_since is not None and tries[-1].at >= running_since
    return UnfinishedStep(
        name=key_name(key),
        label=key_label(key),
        key=key,
        state="retrying" if is_retrying else "interrupted",
        args=tries[-1].data.get("args"),
        tries=list(map(_try, tries)),
    )


def _try(entry: Entry) -> StepTry:
    data = entry.data
    return StepTry(
        number=data["try"],
        of=data["tries"],
        attempt=entry.attempt,
        at=entry.at,
        took=data["took"],
        error=error_from_json(encode(data["error"])),
        next_at=datetime.fromisoformat(data["next_at"]),
    )


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.removeprefix("-").isdigit() else 0


def waits_of(rows: Iterable[WaitRow]) -> list[WaitInfo]:
    return [
        WaitInfo(
            key=row.key,
            kind=_kind(row),  # type: ignore[arg-type]
            name=_awaited(row),
            pending=row.pending,
            since=to_datetime(row.since),
            due_at=to_datetime_or_none(row.due_at),
            outcome=row.outcome,
            tenant=_event(row)[0],
        )
        for row in rows
    ]


def awaited_text(row: WaitRow) -> str:
    """Return what a wait is for: `event paid`."""
    return f"{_kind(row)} {_awaited(row) or ''}".strip()


def _kind(row: WaitRow) -> str:
    if row.key.startswith("$limit:"):
        return "limit"
    if row.key.startswith("$budget:"):
        return "budget"
    if parse_inbox(row.target) is not None:
        return "topic"
    return "ask" if asked_name(row.target) is not None else row.kind


def _event(row: WaitRow) -> tuple[str | None, str | None]:
    """Return the tenant and the name of an awaited event."""
    found = parse_event_target(row.target) if row.kind == "event" else None
    return (None, None) if found is None else found


def _awaited(row: WaitRow) -> str | None:
    if row.key.startswith("$limit:"):
        return format_counter((row.target or "").removeprefix(STEP_TARGET))
    if row.key.startswith("$budget:"):
        return awaited_budget(row.target)
    if row.kind == "event" and (name := _event(row)[1]) is not None:
        return name
    if (inbox := inbox_text(row.target)) is not None:
        return inbox
    if row.kind == "message":
        name = asked_name(row.target)
        return row.target if name is None else name or None
    if row.kind == "children":
        return key_label(row.key).rpartition(" ")[2]
    return key_label(row.key).partition(" ")[2] or None


def child_of(run: RunRow, payloads: Payloads) -> ChildInfo:
    generation, _, key = (run.spawn_key or "").partition(":")
    return ChildInfo(
        id=UUID(run.id),
        task=run.task,
        state=run.state,
        spawn=key,
        generation=_number(generation),
        place=run.map_index,
        attempt=run.attempt,
        started_at=to_datetime_or_none(run.started_at),
        finished_at=to_datetime_or_none(run.finished_at),
        error=None if run.error is None else error_from_json(run.error),
        args=None
        if run.kind
        else listed_arguments(run.args, run.args_bytes, payloads, PayloadContext("args", run.tenant, run.id)),
    )
