"""Schedules and triggers: list, inspect, pause, resume, run now."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from holdfast.errors import ConfigError, ErrorInfo
from holdfast.model.clock import MICROS_PER_SECOND, is_datetime, to_datetime, to_datetime_or_none
from holdfast.model.failure import error_from_json
from holdfast.model.names import check_name, quoted
from holdfast.policy.schedule_timing import Timing
from holdfast.store import Store
from holdfast.store.schedules import ScheduleKind, ScheduleRow, ScheduleRules, from_text

NEXT_SLOTS = 5


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
    app: str
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


class ScheduleDetails(msgspec.Struct, frozen=True):
    """A schedule or trigger with its next slots and its recent runs or polls, newest first."""

    schedule: ScheduleInfo
    coming: list[datetime]
    runs: list[LastRun]
    polls: list[PollInfo]


class ScheduleControl:
    """Operations on schedules and triggers, which are declared in code."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def list(self) -> list[ScheduleInfo]:
        """List all schedules and triggers by name."""
        return [_info(row) for row in self._store.schedules.list_all()]

    def names(self) -> Sequence[str]:
        return [row.name for row in self._store.schedules.list_all()]

    def show(self, name: str) -> ScheduleDetails:
        """Show one with its recent runs or polls."""
        self._check([name])
        row = next(row for row in self._store.schedules.list_all() if row.name == name)
        runs = [
            LastRun(id, to_datetime(it.slot), it.state, bool(it.asked))
            for it in self._store.schedules.last_slots(name)
            if (id := _run_id(it.run)) is not None
        ]
        polls = [
            PollInfo(to_datetime(it.at), it.found, it.made, _error(it.error), it.took / MICROS_PER_SECOND)
            for it in self._store.triggers.last_polls(name)
        ]
        return ScheduleDetails(_info(row), _next_slots(row), runs, polls)

    def unreadable(self) -> dict[str, str]:
        """Return the schedules and triggers whose declarations or next times this release can't read, and why."""
        found = {}
        for row in self._store.schedules.list_all():
            if _timing(row) is None or _unreadable_rules(row):
                found[row.name] = "its timing or its rules are corrupt or unknown"
            elif row.next_at is not None and not is_datetime(row.next_at):
                found[row.name] = "the time of its next slot is corrupt"
        return found

    def pause(self, names: Iterable[str]) -> set[str]:
        """Pause these, and return those that weren't paused. Their unfinished runs continue."""
        return set(self._store.schedules.pause(self._check(names)))

    def resume(self, names: Iterable[str]) -> set[str]:
        """Resume these with their next slots, and return those that were paused."""
        return set(self._store.schedules.resume(self._check(names, readable=True)))

    def run(self, name: str) -> UUID | None:
        """Create a run of a schedule now, in any state; for a trigger, request a poll and return None."""
        self._check([name], readable=True)
        row = next(row for row in self._store.schedules.list_all() if row.name == name)
        if row.kind == "trigger" and (state := _state(row)) != "on":
            raise ConfigError(f"trigger {quoted(name)} is {state} and not polled")
        id = self._store.schedules.run_now(name)
        return None if id is None else UUID(id)

    def _check(self, names: Iterable[str], *, readable: bool = False) -> Sequence[str]:
        """Check that the names exist; `readable`: and that this release understands their declarations."""
        rows = {row.name: row for row in self._store.schedules.list_all()}
        known = list(rows)
        checked = [check_name(name, "a schedule") for name in names]
        for name in checked:
            if name not in known:
                close = difflib.get_close_matches(name, known, n=3) or known[:5]
                hint = f"known schedules: {', '.join(close)}" if close else "no schedule is declared"
                raise ConfigError(f"schedule {quoted(name)} does not exist; {hint}")
            if readable and (_timing(rows[name]) is None or _unreadable_rules(rows[name])):
                raise ConfigError(f"schedule {quoted(name)} was declared by a newer release: upgrade holdfast here")
        return checked


def _info(row: ScheduleRow) -> ScheduleInfo:
    timing, rules = _timing(row), _rules(row)
    run = None
    if row.last_slot is not None and (id := _run_id(row.last_run)) is not None:
        run = LastRun(id, to_datetime(row.last_slot), row.last_state)
    poll = None
    if row.polled_at is not None:
        poll = PollInfo(to_datetime(row.polled_at), row.found or 0, row.made or 0, _error(row.poll_error))
    return ScheduleInfo(
        name=row.name,
        kind=row.kind,
        state=_state(row),
        app=row.app,
        task=row.task,
        when=row.timing if timing is None else timing.in_words(),
        cron=None if timing is None else timing.cron,
        every=None if timing is None or timing.every is None else timing.every / MICROS_PER_SECOND,
        tz=timing.tz if timing and timing.cron else None,
        catch_up=None if rules is None else rules.catch_up,
        overlap=None if rules is None else rules.overlap,
        jitter=None if rules is None else rules.jitter / MICROS_PER_SECOND,
        next_at=to_datetime_or_none(row.next_at) if _state(row) == "on" else None,
        passed_at=to_datetime_or_none(row.passed_at),
        last_run=run,
        last_poll=poll,
    )


def _run_id(text: str | None) -> UUID | None:
    """Return the id of a slot's run; None if the row is corrupt."""
    try:
        return None if text is None else UUID(text)
    except ValueError:
        return None


def _state(row: ScheduleRow) -> str:
    if row.orphaned:
        return "orphaned"
    if row.paused:
        return "paused"
    return "over" if row.next_at is None else "on"


def _next_slots(row: ScheduleRow) -> list[datetime]:
    timing = _timing(row)
    slots: list[int] = []
    slot = row.next_at if _state(row) == "on" and row.kind == "schedule" else None
    while timing is not None and slot is not None and len(slots) < NEXT_SLOTS:
        slots.append(slot)
        slot = timing.next_after(slot)
    return [to_datetime(each) for each in slots]


def _timing(row: ScheduleRow) -> Timing | None:
    """Decode the timing; None if a newer release wrote it."""
    try:
        return from_text(Timing, row.timing)
    except TypeError:
        return None


def _rules(row: ScheduleRow) -> ScheduleRules | None:
    try:
        return from_text(ScheduleRules, row.rules) if row.kind == "schedule" else None
    except TypeError:
        return None


def _unreadable_rules(row: ScheduleRow) -> bool:
    return row.kind == "schedule" and _rules(row) is None


def _error(text: str | None) -> ErrorInfo | None:
    return None if text is None else error_from_json(text)
