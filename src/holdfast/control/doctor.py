"""Diagnose a database: collect facts and report findings with their meaning and remedy. Changes nothing.

The store provides the facts; `health_checks.py` interprets them.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta

import msgspec

from holdfast.control import health_checks
from holdfast.control.budgets import check_budgets
from holdfast.control.health_checks import Finding, LongWait
from holdfast.control.pauses import PauseControl
from holdfast.control.schedules import ScheduleControl
from holdfast.control.steps import awaited_text
from holdfast.control.tasks import TaskControl
from holdfast.control.workers import WorkerControl
from holdfast.database.migrate import newest_version
from holdfast.errors import ConfigError, SchemaAhead
from holdfast.model.clock import MICROS_PER_SECOND, Duration, parse_duration, to_datetime, to_micros
from holdfast.model.run import GRAPH_QUEUE
from holdfast.store import Store
from holdfast.store.admin import MAX_SUSPENDED, LaneCounts
from holdfast.store.stats import HOUR_US
from holdfast.task.registry import Registry

LOST_WORKERS_HOURS = 24
LONG_WAIT = timedelta(days=1)
LONG_WAIT_VARIABLE = "HOLDFAST_LONG_WAIT"
MAX_LONG_WAITS = 5
MAX_GATES = 100
"""How many open gates are checked for long waits, the oldest first."""
MAX_QUARANTINED = 1000
"""How many quarantined runs are counted."""


class HealthReport(msgspec.Struct, frozen=True):
    """The checks that ran, and their findings, most severe first."""

    looked_at: list[str]
    findings: list[Finding]

    @property
    def well(self) -> bool:
        """Whether there are no findings of level `wrong`."""
        return all(finding.level != "wrong" for finding in self.findings)


class Doctor:
    """Runs all health checks. Only the check of task settings needs the registry."""

    def __init__(self, store: Store, registry: Registry, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._registry = registry
        self._clock = clock

    def examine(self, long_wait: Duration | None = None) -> HealthReport:
        """Run all checks. `long_wait`: how long a wait without a timeout may last; None: `$HOLDFAST_LONG_WAIT`."""
        tables = list(self._tables())
        checks: dict[str, Callable[[], Iterator[Finding]]] = {"schema": lambda: iter(tables)}
        if not tables:
            checks |= self._server_checks if self._store.health.on_postgres else self._file_checks
            by_lane = self._store.counts.unfinished()
            checks |= {
                "workers and runs": lambda: self._work(by_lane),
                "unknown tasks": lambda: self._lanes(by_lane),
                "corrupt rows": self._rows,
            }
            checks["budgets"] = lambda: check_budgets(self._store)
            checks[_long_waits_label(by_lane)] = lambda: self._long_waits(_long_wait(long_wait))
            checks["retention"] = self._retention
        self._registry.load()
        if self._registry.names():
            checks["settings"] = lambda: health_checks.check_tasks(TaskControl(self._registry).list())
        found = [finding for check in checks.values() for finding in check()]
        return HealthReport(list(checks), sorted(found, key=lambda finding: finding.level, reverse=True))

    def glance(self, by_lane: Mapping[str, LaneCounts]) -> list[Finding]:
        """Run the checks that read only what is unfinished, and little of it.

        `by_lane`: the counts of unfinished runs. Most severe first.
        """
        found = [
            *self._work(by_lane),
            *self._lanes(by_lane),
            *check_budgets(self._store),
            *self._long_waits(_long_wait(None)),
        ]
        return sorted(found, key=lambda finding: finding.level, reverse=True)

    @property
    def _server_checks(self) -> dict[str, Callable[[], Iterator[Finding]]]:
        health = self._store.health
        return {
            "clocks": self._clocks,
            "server": lambda: health_checks.check_server(health.server(), WorkerControl(self._store).list()),
            "old snapshots": lambda: health_checks.check_holders(health.snapshot_holders()),
            "bloat": lambda: health_checks.check_bloat(health.bloat()),
        }

    @property
    def _file_checks(self) -> dict[str, Callable[[], Iterator[Finding]]]:
        return {"file": lambda: health_checks.check_file(self._store.health.file())}

    def _tables(self) -> Iterator[Finding]:
        try:
            yield from health_checks.check_tables(self._store.version(), newest_version())
        except SchemaAhead as error:
            yield Finding(
                "schema", "wrong", str(error), "this release is older than the schema and refuses to use it",
                "install the newer release here too",
            )  # fmt: skip

    def _clocks(self) -> Iterator[Finding]:
        """Take the smallest of three measurements: the round trip distorts each of them."""
        differences = []
        for _ in range(3):
            before = self._clock()
            database_time = self._store.stats.now() / MICROS_PER_SECOND
            differences.append(database_time - (before + self._clock()) / 2)
        yield from health_checks.check_clocks(min(differences, key=abs))

    def _work(self, by_lane: Mapping[str, LaneCounts]) -> Iterator[Finding]:
        due = self._store.timers.due()
        overdue = 0.0 if due.scheduled is None else -due.scheduled / MICROS_PER_SECOND
        workers = WorkerControl(self._store).list()
        yield from health_checks.check_workers(workers, sum(self._ready(by_lane).values()), overdue)
        yield from health_checks.check_worker_health(workers)
        lost = self._store.sessions.list_lost(LOST_WORKERS_HOURS * HOUR_US)
        dated = [(to_datetime(at), worker) for at, worker in lost]
        yield from health_checks.check_lost_workers(dated, LOST_WORKERS_HOURS)

    def _long_waits(self, threshold: int) -> Iterator[Finding]:
        now = self._store.stats.now()
        found = [
            (row.since, id, task, awaited_text(row))
            for id, task, row in self._store.health.long_waits(threshold, MAX_LONG_WAITS)
        ]
        found += [
            (gate.opened_at, gate.id, gate.task, f"approval {gate.node}")
            for gate in self._store.queries.open_gates(None, MAX_GATES)
            if gate.deadline is None
        ]
        waits = [
            LongWait(id, task, what, (now - since) / MICROS_PER_SECOND)
            for since, id, task, what in sorted(found)[:MAX_LONG_WAITS]
            if since <= now - threshold
        ]
        yield from health_checks.check_long_waits(waits, threshold / MICROS_PER_SECOND)

    def _retention(self) -> Iterator[Finding]:
        stored, expired = self._store.counts.total().runs, self._store.retention.count_expired()
        yield from health_checks.check_retention(stored, expired, self._store.health.stored_bytes())

    def _lanes(self, by_lane: Mapping[str, LaneCounts]) -> Iterator[Finding]:
        paused = {queue.name for queue in self._store.queues.list_all() if queue.paused}
        ready = self._ready(by_lane)
        yield from health_checks.check_lanes(ready, WorkerControl(self._store).list(), paused)
        yield from health_checks.check_pauses(ready, PauseControl(self._store).list())
        known = self._store.lanes.refresh()
        runs: Counter[int] = Counter()
        for counted in by_lane.values():
            runs.update({lane: number for lane, number in counted.by_lane.items() if lane not in known})
        yield from health_checks.check_missing_lanes(runs)

    def _rows(self) -> Iterator[Finding]:
        quarantine = self._store.quarantine
        yield from health_checks.check_rows(
            quarantine.list_all(MAX_QUARANTINED), quarantine.find_corrupt(), MAX_QUARANTINED
        )
        yield from health_checks.check_schedules(ScheduleControl(self._store).unreadable())

    def _ready(self, by_lane: Mapping[str, LaneCounts]) -> dict[tuple[str, str], int]:
        """Return the numbers of ready runs by queue and task."""
        lanes = self._store.lanes.refresh()
        ready = by_lane["ready"].by_lane if "ready" in by_lane else {}
        found = {lanes[lane]: runs for lane, runs in ready.items() if lane in lanes}
        return {pair: runs for pair, runs in found.items() if pair[0] != GRAPH_QUEUE}


def _long_waits_label(by_lane: Mapping[str, LaneCounts]) -> str:
    """Name the check of long waits, and say how much of them it reads."""
    suspended = sum(sum(by_lane[state].by_lane.values()) for state in ("waiting", "blocked") if state in by_lane)
    return "long waits" if suspended <= MAX_SUSPENDED else f"long waits among {MAX_SUSPENDED:,} waiting runs"


def _long_wait(given: Duration | None) -> int:
    """Return how long a wait without a timeout may last, in microseconds."""
    if given is not None:
        return to_micros(given, "the longest wait")
    text = os.environ.get(LONG_WAIT_VARIABLE)
    seconds = LONG_WAIT.total_seconds() if not text else parse_duration(text)
    if seconds is None:
        raise ConfigError(f"${LONG_WAIT_VARIABLE} is not a duration: {text!r}; use 90s, 15m, 2h or 7d")
    return to_micros(seconds, f"${LONG_WAIT_VARIABLE}")
