"""Schedules and triggers as people and programs see them: `ScheduleInfo` and the details of one.

Applications and operators read in the same way.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from holdfast.errors import ConfigError, ErrorInfo
from holdfast.model.clock import MICROS_PER_SECOND, is_datetime, to_datetime, to_datetime_or_none
from holdfast.model.failure import error_from_json
from holdfast.model.names import check_name, quoted
from holdfast.model.payloads import schedule_context
from holdfast.model.previews import PayloadView
from holdfast.model.schedule import LastRun, PollInfo, ScheduleChange, ScheduleDetails, ScheduleInfo
from holdfast.policy.schedule_timing import Timing
from holdfast.store.schedule_definitions import ScheduleRules, from_text
from holdfast.store.schedules import ScheduleRow

if TYPE_CHECKING:
    from holdfast.store.store import Store

NEXT_SLOTS = 5


class ScheduleReader:
    """Reads schedules and triggers; changes nothing."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def list(self) -> list[ScheduleInfo]:
        """List all by name."""
        return [schedule_info(row) for row in self._store.schedules.list_all()]

    def info(self, name: str) -> ScheduleInfo:
        """Return one; raises ConfigError if it doesn't exist."""
        self.check([name])
        return schedule_info(self._store.schedules.find([name])[name])

    def details(self, name: str) -> ScheduleDetails:
        """Return one with its recent runs, polls and changes."""
        self.check([name])
        row = self._store.schedules.find([name])[name]
        runs = [
            LastRun(id, to_datetime(it.slot), it.state, bool(it.asked))
            for it in self._store.schedules.last_slots(name)
            if (id := _run_id(it.run)) is not None
        ]
        polls = [
            PollInfo(to_datetime(it.at), it.found, it.made, _error(it.error), it.took / MICROS_PER_SECOND)
            for it in self._store.triggers.last_polls(name)
        ]
        changes = [
            ScheduleChange(to_datetime(it.at), it.by, it.did)
            for it in self._store.schedules.actions(name)
            if is_datetime(it.at)
        ]
        return ScheduleDetails(schedule_info(row), next_slots(row), runs, polls, changes, self._arguments(name))

    def _arguments(self, name: str) -> Any:
        """Return the arguments of a schedule's runs to display; only those of schedules in code aren't packed."""
        request = self._store.schedules.request(name)
        if request is None:
            return None
        context = schedule_context(request.tenant, name) if request.args[:1] == "~" else None
        return PayloadView(self._store.payloads).arguments(request.args, context)

    def unreadable(self) -> dict[str, str]:
        """Return the schedules and triggers whose definitions or next times this release can't read, and why."""
        found = {}
        for row in self._store.schedules.list_all():
            if not _is_readable(row):
                found[row.name] = "its timing or its rules are corrupt or unknown"
            elif row.next_at is not None and not is_datetime(row.next_at):
                found[row.name] = "the time of its next slot is corrupt"
        return found

    def check(self, names: Iterable[str], *, readable: bool = False) -> Sequence[str]:
        """Check that the names exist; `readable`: and that this release understands their definitions."""
        checked = [check_name(name, "a schedule") for name in names]
        rows = self._store.schedules.find(checked)
        for name in checked:
            if name not in rows:
                known = [row.name for row in self._store.schedules.list_all()]
                close = difflib.get_close_matches(name, known, n=3) or known[:5]
                hint = f"known schedules: {', '.join(close)}" if close else "no schedule exists"
                raise ConfigError(f"schedule {quoted(name)} does not exist; {hint}")
            if readable and not _is_readable(rows[name]):
                raise ConfigError(f"schedule {quoted(name)} was declared by a newer release: upgrade holdfast here")
        return checked


def _is_readable(row: ScheduleRow) -> bool:
    return _timing(row) is not None and not _unreadable_rules(row)


def schedule_info(row: ScheduleRow) -> ScheduleInfo:
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
        state=schedule_state(row),
        app=row.app or None,
        task=row.task,
        when=row.timing if timing is None else timing.in_words(),
        cron=None if timing is None else timing.cron,
        every=None if timing is None or timing.every is None else timing.every / MICROS_PER_SECOND,
        tz=timing.tz if timing and timing.cron else None,
        catch_up=None if rules is None else rules.catch_up,
        overlap=None if rules is None else rules.overlap,
        jitter=None if rules is None else rules.jitter / MICROS_PER_SECOND,
        next_at=to_datetime_or_none(row.next_at) if schedule_state(row) == "on" else None,
        passed_at=to_datetime_or_none(row.passed_at),
        last_run=run,
        last_poll=poll,
        buffered=to_datetime_or_none(row.buffered),
        orphaned_at=to_datetime_or_none(row.orphaned_at) if row.orphaned else None,
    )


def _run_id(text: str | None) -> UUID | None:
    """Return the id of a slot's run; None if the row is corrupt."""
    try:
        return None if text is None else UUID(text)
    except ValueError:
        return None


def schedule_state(row: ScheduleRow) -> str:
    if row.orphaned:
        return "orphaned"
    if row.paused:
        return "paused"
    return "over" if row.next_at is None else "on"


def next_slots(row: ScheduleRow) -> list[datetime]:
    timing = _timing(row)
    slots: list[int] = []
    slot = row.next_at if schedule_state(row) == "on" and row.kind == "schedule" else None
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
