"""Schedules and triggers for operators: what they are, what they made, pause, resume, run now."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from holdfast.errors import ConfigError, ErrorInfo
from holdfast.model.clock import MICROS_PER_SECOND, to_datetime, to_datetime_or_none
from holdfast.model.failure import error_from_json
from holdfast.model.names import check_name, quoted
from holdfast.policy.schedule_timing import Timing
from holdfast.store import Store
from holdfast.store.schedule_rows import Kind, Rules, ScheduleRow, from_text

COMING = 5


class LastRun(msgspec.Struct, frozen=True):
    """A run that a slot made. `state` is None when it was pruned."""

    id: UUID
    slot: datetime
    state: str | None
    asked: bool = False
    """An operator made it, not the clock."""


class PollInfo(msgspec.Struct, frozen=True):
    """What came of a poll of a trigger."""

    at: datetime
    found: int
    made: int
    """How many of what was found was new."""
    error: ErrorInfo | None
    took: float | None = None
    """Seconds."""


class ScheduleInfo(msgspec.Struct, frozen=True):
    """A schedule or a trigger as it was when it was read. Durations are seconds."""

    name: str
    kind: Kind
    state: str
    """`on`, `paused`, `orphaned` (not in its app's code any more) or `over` (it has no further slot)."""
    app: str
    task: str | None
    when: str
    """In words."""
    cron: str | None
    every: float | None
    tz: str | None
    catch_up: str | None
    overlap: str | None
    jitter: float | None
    next_at: datetime | None
    passed_at: datetime | None
    """The last slot that made no run because one was unfinished."""
    last_run: LastRun | None
    last_poll: PollInfo | None


class ScheduleDetails(msgspec.Struct, frozen=True):
    """One of them, with what it made lately, newest first, and the slots that come next."""

    schedule: ScheduleInfo
    coming: list[datetime]
    runs: list[LastRun]
    polls: list[PollInfo]


class ScheduleControl:
    """What makes runs by the clock and by polling. They are declared in code: here they are only steered."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def list(self) -> list[ScheduleInfo]:
        """Every schedule and trigger, by name."""
        return [_info(row) for row in self._store.schedules.all()]

    def names(self) -> Sequence[str]:
        return [row.name for row in self._store.schedules.all()]

    def show(self, name: str) -> ScheduleDetails:
        """One of them, with what it made."""
        self._check([name])
        row = next(row for row in self._store.schedules.all() if row.name == name)
        runs = [
            LastRun(UUID(str(run)), to_datetime(slot), state, bool(asked))
            for slot, asked, run, state in self._store.schedules.last_slots(name)
        ]
        polls = [
            PollInfo(to_datetime(it.at), it.found, it.made, _error(it.error), it.took / MICROS_PER_SECOND)
            for it in self._store.triggers.last(name)
        ]
        return ScheduleDetails(_info(row), _coming(row), runs, polls)

    def pause(self, names: Iterable[str]) -> set[str]:
        """Let these make nothing; the names of those that weren't paused. Runs that they made go on."""
        return set(self._store.schedules.pause(self._check(names)))

    def resume(self, names: Iterable[str]) -> set[str]:
        """Let these go on with their next slots; the names of those that were paused."""
        return set(self._store.schedules.resume(self._check(names, to_be_read=True)))

    def run(self, name: str) -> UUID | None:
        """Make a run of a schedule now, beside its slots, whatever its state. A trigger is polled soon: None."""
        self._check([name], to_be_read=True)
        row = next(row for row in self._store.schedules.all() if row.name == name)
        if row.kind == "trigger" and (state := _state(row)) != "on":
            raise ConfigError(f"trigger {quoted(name)} is {state}, so that nobody polls it")
        id = self._store.schedules.run_now(name)
        return None if id is None else UUID(id)

    def _check(self, names: Iterable[str], *, to_be_read: bool = False) -> Sequence[str]:
        """The names, if there are such; `to_be_read`: and this code understands what their code said."""
        rows = {row.name: row for row in self._store.schedules.all()}
        known = list(rows)
        asked = [check_name(name, "a schedule") for name in names]
        for name in asked:
            if name not in known:
                close = difflib.get_close_matches(name, known, n=3) or known[:5]
                hint = f"there are {', '.join(close)}" if close else "none was ever declared"
                raise ConfigError(f"there is no schedule {quoted(name)}: {hint}")
            if to_be_read and (_timing(rows[name]) is None or _unreadable_rules(rows[name])):
                raise ConfigError(f"schedule {quoted(name)} was declared by newer code: upgrade holdfast here")
        return asked


def _info(row: ScheduleRow) -> ScheduleInfo:
    timing, rules = _timing(row), _rules(row)
    run = None
    if row.last_run is not None and row.last_slot is not None:
        run = LastRun(UUID(row.last_run), to_datetime(row.last_slot), row.last_state)
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


def _state(row: ScheduleRow) -> str:
    if row.orphaned:
        return "orphaned"
    if row.paused:
        return "paused"
    return "over" if row.next_at is None else "on"


def _coming(row: ScheduleRow) -> list[datetime]:
    timing = _timing(row)
    slots: list[int] = []
    slot = row.next_at if _state(row) == "on" and row.kind == "schedule" else None
    while timing is not None and slot is not None and len(slots) < COMING:
        slots.append(slot)
        slot = timing.next_after(slot)
    return [to_datetime(each) for each in slots]


def _timing(row: ScheduleRow) -> Timing | None:
    """None for what newer code wrote."""
    try:
        return from_text(Timing, row.timing)
    except TypeError:
        return None


def _rules(row: ScheduleRow) -> Rules | None:
    try:
        return from_text(Rules, row.rules) if row.kind == "schedule" else None
    except TypeError:
        return None


def _unreadable_rules(row: ScheduleRow) -> bool:
    return row.kind == "schedule" and _rules(row) is None


def _error(text: str | None) -> ErrorInfo | None:
    return None if text is None else error_from_json(text)
