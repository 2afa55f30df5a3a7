"""Schedules and triggers: list, inspect, pause, resume, run now, backfill, delete."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from uuid import UUID

from holdfast.control.audit import audited
from holdfast.errors import ConfigError
from holdfast.model.clock import time_to_micros
from holdfast.model.names import actor_or_user, quoted
from holdfast.model.schedule import ScheduleDetails, ScheduleInfo
from holdfast.store import Store
from holdfast.store.schedule_reader import ScheduleReader


class ScheduleControl:
    """Operations on schedules and triggers. `app.schedules` creates and changes them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._reader = ScheduleReader(store)

    def list(self) -> list[ScheduleInfo]:
        """List all schedules and triggers by name."""
        return self._reader.list()

    def names(self) -> Sequence[str]:
        return [row.name for row in self._store.schedules.list_all()]

    def exists(self, name: str) -> bool:
        return bool(self._store.schedules.find([name]))

    def show(self, name: str) -> ScheduleDetails:
        """Show one with its recent runs, polls and changes."""
        return self._reader.details(name)

    def unreadable(self) -> dict[str, str]:
        """Return the schedules and triggers whose definitions or next times this release can't read, and why."""
        return self._reader.unreadable()

    @audited("pause schedule", "names")
    def pause(self, names: Iterable[str], by: str | None = None) -> set[str]:
        """Pause these, and return those that weren't paused. Their unfinished runs continue."""
        return set(self._store.schedules.pause(self._reader.check(names), actor_or_user(by)))

    @audited("resume schedule", "names")
    def resume(self, names: Iterable[str], by: str | None = None) -> set[str]:
        """Resume these with their next slots, and return those that were paused."""
        return set(self._store.schedules.resume(self._reader.check(names, readable=True), actor_or_user(by)))

    @audited("run schedule", "name")
    def run(self, name: str, by: str | None = None) -> UUID | None:
        """Create a run of a schedule now, in any state; for a trigger, request a poll and return None."""
        self._reader.check([name], readable=True)
        info = self._reader.info(name)
        if info.kind == "trigger" and info.state != "on":
            raise ConfigError(f"trigger {quoted(name)} is {info.state} and not polled")
        id = self._store.schedules.run_now(name, actor_or_user(by))
        return None if id is None else UUID(id)

    @audited("backfill schedule", "name")
    def backfill(self, name: str, start: datetime, end: datetime, by: str | None = None) -> Sequence[UUID]:
        """Create a run for each slot from `start` to `end` that has none, and return their ids."""
        self._reader.check([name], readable=True)
        from_, until = time_to_micros(start, "start"), time_to_micros(end, "end")
        made = self._store.schedules.backfill(name, from_, until, actor_or_user(by))
        return [UUID(each.run) for each in made]

    @audited("delete schedule", "name")
    def delete(self, name: str) -> None:
        """Delete a schedule that was created at run time, or an orphaned one. Its runs stay."""
        self._reader.check([name])
        self._store.schedules.delete(name)
