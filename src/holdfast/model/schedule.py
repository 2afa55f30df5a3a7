"""Schedules and triggers as people and programs see them."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal, TypeAlias
from uuid import UUID

import msgspec

from holdfast.errors import ErrorInfo

ScheduleKind: TypeAlias = Literal["schedule", "trigger"]


class LastRun(msgspec.Struct, frozen=True):
    """A run of a schedule. `state` is None if it has been pruned."""

    id: UUID
    slot: datetime
    state: str | None
    asked: bool = False
    """Whether an operator requested it instead of the clock."""


class PollInfo(msgspec.Struct, frozen=True):
    """The outcome of a poll of a trigger."""

    at: datetime
    found: int
    made: int
    """How many of the found items were new."""
    error: ErrorInfo | None
    took: float | None = None
    """The duration in seconds."""


class ScheduleInfo(msgspec.Struct, frozen=True):
    """A schedule or trigger. Durations are seconds."""

    name: str
    kind: ScheduleKind
    state: str
    """`on`, `paused`, `orphaned` (removed from the app's code) or `over` (no further slots)."""
    app: str | None
    """The app whose code declares it; None if it was created at run time."""
    task: str | None
    when: str
    """Its timing in words."""
    cron: str | None
    every: float | None
    tz: str | None
    catch_up: str | None
    overlap: str | None
    jitter: float | None
    next_at: datetime | None
    passed_at: datetime | None
    """The last slot that was skipped because a run was unfinished."""
    last_run: LastRun | None
    last_poll: PollInfo | None
    buffered: datetime | None = None
    """The slot whose run is created when the current run has ended."""
    orphaned_at: datetime | None = None
    """Since when no code declares it. It is removed seven days later."""


class ScheduleChange(msgspec.Struct, frozen=True):
    """A change of a schedule by a person."""

    at: datetime
    by: str
    did: str


class ScheduleDetails(msgspec.Struct, frozen=True):
    """A schedule or trigger with its next slots and its recent runs or polls, newest first."""

    schedule: ScheduleInfo
    coming: list[datetime]
    runs: list[LastRun]
    polls: list[PollInfo]
    changes: list[ScheduleChange] = []
    """The last changes by people, newest first."""
    args: Any = None
    """The arguments of its runs as plain JSON values, with secrets masked. A trigger has none."""


class ScheduleSync(msgspec.Struct, frozen=True):
    """What `app.schedules.declare` changed, by name."""

    added: list[str]
    changed: list[str]
    orphaned: list[str]
    """Schedules that no code declares any more. They create no runs and are removed seven days later."""
    removed: list[str]
    refused: dict[str, str]
    """Declarations without effect, with the reason."""
