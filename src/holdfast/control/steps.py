"""What a durable function has done, waits for and has made, for operators: rows as plain data, values decoded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

import msgspec

from holdfast.errors import ErrorInfo, PayloadError
from holdfast.model.clock import MICROS_PER_SECOND, to_datetime, to_datetime_or_none
from holdfast.model.codec import display_value
from holdfast.model.failure import error_from_json
from holdfast.model.run import RunState
from holdfast.model.step_keys import key_label, key_name
from holdfast.store.views import RunRow, StepRow, WaitRow


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
