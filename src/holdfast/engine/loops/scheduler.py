"""Create the runs of schedules when their slots are due: one run per slot, however many workers there are."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context
from typing import Any

from holdfast.engine.loops.base import Loop
from holdfast.engine.services import ClientServices
from holdfast.model.clock import MICROS_PER_SECOND, to_datetime
from holdfast.policy.schedule_timing import Timing
from holdfast.store import NewRun, Store
from holdfast.store.schedules import DeclaredSchedule, ScheduleRules
from holdfast.task.schedule_registry import ScheduleRegistry
from holdfast.telemetry import log

POLL_INTERVAL_S = 2.0
"""How soon changes by other processes are noticed: a schedule that was resumed, or has a new timing."""
MIN_INTERVAL_S = 0.02


class Scheduler(Loop):
    """Sleeps until the next slot of any schedule, by the database's clock."""

    name = "scheduler"

    def __init__(
        self, store: Store, schedule_registry: ScheduleRegistry, client: ClientServices, on_ready: Callable[[], None]
    ) -> None:
        super().__init__()
        self._store = store
        self._schedule_registry = schedule_registry
        self._client = client
        self._on_ready = on_ready
        self._unreadable: set[str] = set()

    def declare(self) -> None:
        """Store the schedules of this code, and mark those that it no longer declares."""
        changes = self._store.schedules.declare(self._schedule_registry.app, self._declared())
        named = {"added": changes.added, "changed": changes.changed, "no longer declared": changes.orphaned}
        for what, names in named.items():
            if names:
                log.schedules_declared(self._schedule_registry.app, what, names)
        for name, app in changes.taken.items():
            log.schedule_taken_over(name, app, self._schedule_registry.app)

    def tick(self) -> float:
        left = self._store.schedules.until_next()
        if left is not None and left <= 0:
            fired = self._store.schedules.fire()
            for made in fired.created:
                log.slot_created(made.schedule, to_datetime(made.slot), made.run)
            for name, slot in fired.skipped:
                log.slot_skipped(name, to_datetime(slot))
            for name, trouble in fired.unreadable.items():
                if name not in self._unreadable:
                    log.schedule_unreadable(name, trouble)
            self._unreadable |= fired.unreadable.keys()
            if fired.created:
                self._on_ready()
            return (
                0.0 if fired.created or fired.skipped else MIN_INTERVAL_S if not fired.unreadable else POLL_INTERVAL_S
            )
        return POLL_INTERVAL_S if left is None else min(max(left / MICROS_PER_SECOND, MIN_INTERVAL_S), POLL_INTERVAL_S)

    def _template(self, request: Any) -> NewRun:
        """Return the row from which the run of each slot is created.

        It belongs to no trace, even if the worker is started inside one. Its arguments are not packed, because they are
        compared with those that other code declares.
        """
        template: NewRun = Context().run(self._client.new_run, request)
        template.args = request.args
        return template

    def _declared(self) -> list[DeclaredSchedule]:
        schedules = [
            DeclaredSchedule(
                it.name, it.timing, ScheduleRules(it.catch_up, it.overlap, it.jitter), self._template(it.request)
            )
            for it in self._schedule_registry.schedules.values()
        ]
        return schedules + [
            DeclaredSchedule(it.name, Timing(every=it.every)) for it in self._schedule_registry.triggers.values()
        ]
