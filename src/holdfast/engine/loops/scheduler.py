"""Create the runs of schedules when their slots are due: one run per slot, however many workers there are."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextvars import Context
from functools import partial
from typing import Any

from holdfast.engine.loops.base import Loop
from holdfast.engine.services import ClientServices
from holdfast.model.clock import MICROS_PER_SECOND, to_datetime
from holdfast.policy.schedule_timing import Timing
from holdfast.store import NewRun, Store
from holdfast.store.schedule_definitions import DeclaredSchedule, ScheduleRules
from holdfast.task.schedule_registry import ScheduleRegistry
from holdfast.task.task import Request
from holdfast.telemetry import log

POLL_INTERVAL_S = 0.8
"""How soon changes by other processes are noticed: a schedule that was created or resumed, or has a new timing."""
MIN_INTERVAL_S = 0.02
DECLARE_INTERVAL_S = 30.0
"""How often the declarations are reconciled with those of other live workers. In a rolling deploy, declarations of the
older release end with its last worker."""


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
        self._refused: dict[str, str] = {}
        self._refused_subscriptions: dict[str, str] = {}
        self._declared_at: float | None = None

    def declare(self) -> None:
        """Reconcile the stored schedules and subscriptions with those of this code and of other live workers."""
        self._declare_subscriptions()
        app = self._schedule_registry.app
        changes = self._store.schedules.declare(app, declared_schedules(self._schedule_registry, self._client.new_run))
        named = {
            "added": changes.added,
            "changed": changes.changed,
            "no longer declared": changes.orphaned,
            "removed": changes.removed,
        }
        for what, names in named.items():
            if names:
                log.schedules_declared(app, what, names)
        for name, other in changes.taken.items():
            log.schedule_taken_over(name, other, app)
        for name, reason in changes.refused.items():
            if self._refused.get(name) != reason:
                log.schedule_refused(name, app, reason)
        self._refused = changes.refused
        self._declared_at = time.monotonic()

    def _declare_subscriptions(self) -> None:
        app, declared = self._client.subscriptions()
        changes = self._store.topics.declare(app, declared)
        for change in ("added", "changed", "orphaned", "removed"):
            if names := getattr(changes, change):
                log.subscriptions_declared(app, "no longer declared" if change == "orphaned" else change, names)
        for name, reason in changes.refused.items():
            if self._refused_subscriptions.get(name) != reason:
                log.subscription_refused(name, app, reason)
        self._refused_subscriptions = changes.refused

    def subscription_digests(self) -> dict[str, str]:
        """Return what tasks of this code subscribe to, to report it with the session."""
        return {each.name: each.digest for each in self._client.subscriptions()[1]}

    def digests(self) -> dict[str, str]:
        """Return what this code declares, by name, to report it with the session."""
        declared = declared_schedules(self._schedule_registry, self._client.new_run)
        return {each.name: each.digest for each in declared}

    def tick(self) -> float:
        if self._declared_at is None or time.monotonic() - self._declared_at > DECLARE_INTERVAL_S:
            self.declare()
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
            for name, reason in fired.refused.items():
                if name not in self._unreadable:
                    log.schedule_slots_refused(name, reason)
            self._unreadable |= fired.unreadable.keys() | fired.refused.keys()
            if fired.created:
                self._on_ready()
            return (
                0.0 if fired.created or fired.skipped else MIN_INTERVAL_S if not fired.unreadable else POLL_INTERVAL_S
            )
        return POLL_INTERVAL_S if left is None else min(max(left / MICROS_PER_SECOND, MIN_INTERVAL_S), POLL_INTERVAL_S)


def declared_schedules(registry: ScheduleRegistry, new_run: Callable[..., NewRun]) -> list[DeclaredSchedule]:
    """Return the schedules and triggers of an app's code as they are stored."""
    schedules = [
        DeclaredSchedule(
            it.name,
            it.timing,
            ScheduleRules(it.catch_up, it.overlap, it.jitter),
            schedule_template(it.request, new_run),
        )
        for it in registry.schedules.values()
    ]
    return schedules + [DeclaredSchedule(it.name, Timing(every=it.every)) for it in registry.triggers.values()]


def schedule_template(request: Request[Any], new_run: Callable[..., NewRun]) -> NewRun:
    """Return the row from which the run of each slot is created.

    It belongs to no trace, even if the worker is started inside one. Its arguments are not packed, because they are
    compared with those that other code declares.
    """
    return Context().run(partial(new_run, request, pack=False))
