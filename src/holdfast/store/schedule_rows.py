"""Schedules and triggers as the store keeps them: what an app's code declares, and how it is written and read."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

import msgspec

from holdfast.model.ids import new_id
from holdfast.policy.schedule_timing import CatchUp, Timing, jitter_delay
from holdfast.store.rows import NewRun

Kind: TypeAlias = Literal["schedule", "trigger"]
Overlap: TypeAlias = Literal["allow", "skip"]
T = TypeVar("T")


class Rules(msgspec.Struct, frozen=True):
    """How a schedule makes runs of its slots. Jitter is in microseconds."""

    catch_up: CatchUp = "skip"
    overlap: Overlap = "allow"
    jitter: int = 0


class Declared(msgspec.Struct, frozen=True):
    """A schedule or a trigger as an app's code says it. A trigger has no template: its code makes the requests."""

    name: str
    timing: Timing
    rules: Rules = Rules()
    template: NewRun | None = None

    def row(self, app: str) -> dict[str, Any]:
        """As statements take it; equal for equal declarations."""
        run = self.template
        return {
            "name": self.name,
            "kind": "trigger" if run is None else "schedule",
            "app": app,
            "queue": None if run is None else run.queue,
            "task": None if run is None else run.task,
            "timing": to_text(self.timing),
            "rules": to_text(self.rules),
            "template": None if run is None else to_text(run, leave_out="id"),
        }


class ScheduleRow(NamedTuple):
    """A schedule or trigger as operators see it, with the last run that it made, or what came of its last poll."""

    name: str
    kind: Kind
    app: str
    task: str | None
    timing: str
    rules: str
    next_at: int | None
    paused: int
    orphaned: int
    passed_at: int | None
    last_slot: int | None
    last_run: str | None
    last_state: str | None
    polled_at: int | None
    found: int | None
    made: int | None
    poll_error: str | None


class Made(NamedTuple):
    """A run that a slot made."""

    schedule: str
    slot: int
    run: str


def to_text(thing: Any, leave_out: str = "") -> str:
    """Plain data as JSON, without what it doesn't say."""
    given = msgspec.to_builtins(thing)
    said = {name: value for name, value in given.items() if value is not None and name != leave_out}
    return msgspec.json.encode(said, order="sorted").decode()


def from_text(kind: type[T], text: str, **more: Any) -> T:
    """What was written; TypeError when it is corrupt, or newer code said more than this code understands."""
    try:
        return msgspec.convert(msgspec.to_builtins(kind(**msgspec.json.decode(text), **more)), kind)
    except msgspec.MsgspecError as error:
        raise TypeError(str(error)) from error


def run_of_slot(schedule: str, template: str, rules: Rules, slot: int) -> NewRun:
    """The run that a slot makes: it knows its slot, and begins then, or a little later."""
    run = from_text(NewRun, template, id=str(new_id()))
    kept = {} if run.options is None else msgspec.json.decode(run.options)
    run.options = msgspec.json.encode({**kept, "schedule": schedule, "scheduled_for": slot}).decode()
    later = (run.delay or 0) + jitter_delay(rules.jitter, schedule, slot)
    run.run_at, run.delay = slot + later if later else None, None
    return run
