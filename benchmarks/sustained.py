"""Whether speed lasts: jobs a second, minute by minute, while new jobs keep coming."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from typing import Any

from benchmarks.children import Workers, WorkerSetting, working
from benchmarks.hosts import Host
from benchmarks.jobs import CONCURRENCY
from benchmarks.measure import OURS, Case, Failed, Figures, Measure, Place, check, note
from benchmarks.tables import Tables
from benchmarks.tasks import NOOP, first_start
from benchmarks.throughput import LONGEST_SECONDS, scratch_folder
from holdfast.database.dialect import TURN_EPOCH

MINUTES = 10
QUICK_MINUTES = 3
MINUTE = 60.0
QUICK_MINUTE = 1.0
LOOK_SECONDS = 0.25
READY = """
select count(*) as jobs, coalesce(min(r.turn), cast(:front as bigint)) as front
from {schema}lanes l cross join {schema}runs r
where l.task = 'bench.noop' and r.lane = l.id and r.state = 'ready' and r.held is null
and r.priority = 0 and r.turn >= cast(:front as bigint)
"""
"""Count the waiting jobs, and read the turn of the first one. Jobs that do nothing never return to an earlier turn, so
each count begins where the last one found the first. Claimed runs stay in PostgreSQL's index until vacuum removes them,
and walking over all of them four times a second took a seventh of the CPU time. Lane by lane, because SQLite would
otherwise scan the growing table of all runs."""
UNFINISHED = f"""
select jobs + (select count(*) from {{schema}}runs where session is not null and state = 'running'), front
from ({READY}) as waiting
"""


class Sustained(Measure):
    """One worker and one feeder, which keeps so many jobs waiting that the worker never runs dry."""

    name = "sustained"
    purpose = "jobs a second at full speed, minute by minute: whether the last is as fast as the first"
    unit = "jobs/s"
    count = 30_000
    quick_count = 500

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--minutes", type=int, help=f"how long (default: {MINUTES})")
        parser.add_argument("--workers", type=int, default=1, help="worker processes (default: 1)")

    def settings(self, options: argparse.Namespace) -> dict[str, Any]:
        return {
            "waiting": options.count,
            "minutes": _minutes(options),
            "seconds a minute": _minute(options),
            "workers": options.workers,
            "concurrency": CONCURRENCY,
        }

    def cases(self, host: Host, options: argparse.Namespace, stack: ExitStack) -> Sequence[Case]:  # noqa: ARG002
        setting = WorkerSetting(options.workers, CONCURRENCY)

        def take() -> Figures:
            with closing(host.fresh()) as tables, scratch_folder() as scratch:
                tables.fill(options.count)
                tables.settle()
                with working(setting.commands(tables.url, scratch), scratch) as workers:
                    feeder = Feeder(tables, options.count, workers)
                    feeder.wait_until(lambda: first_start(scratch) is not None)
                    rates = [feeder.rate(_minute(options), number + 1) for number in range(_minutes(options))]
                    feeder.drain()
                check("runs done", tables.done(), feeder.fed)
                check("ends in the history", tables.recorded(), feeder.fed)
            return {f"minute {number}": rate for number, rate in enumerate(rates, 1)}

        return [Case(host.name, OURS, take)]

    def compared(self, places: Sequence[Place]) -> list[tuple[Place, Place]]:
        """The last minute against the first."""
        databases = dict.fromkeys(place.database for place in places)
        of_each = [[place for place in places if place.database == database] for database in databases]
        return [(minutes[-1], minutes[0]) for minutes in of_each if len(minutes) > 1]


class Feeder:
    """Keeps jobs waiting, and knows how many were done: those that it put in, less those that are unfinished."""

    def __init__(self, tables: Tables, waiting: int, workers: Workers) -> None:
        self._tables = tables
        self._waiting = waiting
        self._workers = workers
        self.front = -TURN_EPOCH
        """The turn of the first job that waits, as of the last count."""
        self.fed = waiting

    def rate(self, seconds: float, number: int) -> float:
        """What is done in a second, over this time."""
        before, since = self.completed(), time.monotonic()
        while time.monotonic() < since + seconds:
            self._workers.check_alive()
            self.feed()
            time.sleep(LOOK_SECONDS)
        rate = (self.completed() - before) / (time.monotonic() - since)
        note(f"minute {number}: {rate:,.0f} jobs/s; {self.fed:,} jobs so far")
        return rate

    def feed(self) -> None:
        """Add jobs when a third of those that shall wait is missing."""
        missing = self._waiting - self._count(READY)
        if missing > self._waiting // 3:
            self._tables.fill(missing, NOOP)
            self.fed += missing

    def completed(self) -> int:
        """How many jobs are done."""
        return self.fed - self._count(UNFINISHED)

    def drain(self) -> None:
        self.wait_until(lambda: self._count(UNFINISHED) == 0)

    def wait_until(self, happened: Callable[[], bool]) -> None:
        deadline = time.monotonic() + LONGEST_SECONDS
        while not happened():
            self._workers.check_alive()
            if time.monotonic() > deadline:
                raise Failed(f"waited {LONGEST_SECONDS:.0f} s in vain: {self._workers.said()}")
            time.sleep(LOOK_SECONDS)

    def _count(self, statement: str) -> int:
        ((jobs, self.front),) = self._tables.rows(statement, "read", front=self.front)
        return int(jobs)


def _minutes(options: argparse.Namespace) -> int:
    if options.minutes is not None:
        return int(options.minutes)
    return QUICK_MINUTES if options.quick else MINUTES


def _minute(options: argparse.Namespace) -> float:
    return QUICK_MINUTE if options.quick else MINUTE
