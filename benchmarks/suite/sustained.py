"""Throughput minute by minute at full speed, to show whether it lasts while rows change and die."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from typing import Any

from benchmarks.benchmark import HOLDFAST, Benchmark, Case, MeasurementFailed, MetricKey, Metrics, check_count, log
from benchmarks.databases import Backend, BenchmarkDatabase
from benchmarks.processes import WorkerConfig, Workers, running_workers, scratch_folder
from benchmarks.suite.jobs import CONCURRENCY
from benchmarks.tasks import NOOP, first_start_time
from benchmarks.throughput import TIMEOUT_S
from holdfast.database.dialect import TURN_EPOCH

MINUTES = 10
QUICK_MINUTES = 3
MINUTE_S = 60.0
QUICK_MINUTE_S = 1.0
POLL_INTERVAL_S = 0.25
COUNT_READY = """
select count(*) as jobs, coalesce(min(r.turn), cast(:front as bigint)) as front
from {schema}lanes l cross join {schema}runs r
where l.task = 'bench.noop' and r.lane = l.id and r.state = 'ready' and r.held is null
and r.priority = 0 and r.turn >= cast(:front as bigint)
"""
"""Count the waiting jobs, and read the turn of the first one. Jobs that do nothing never return to an earlier turn, so
each count begins where the last one found the first. Claimed runs stay in PostgreSQL's index until vacuum removes them,
and walking over all of them four times a second took a seventh of the CPU time. Lane by lane, because SQLite would
otherwise scan the growing table of all runs."""
COUNT_UNFINISHED = f"""
select jobs + (select count(*) from {{schema}}runs where session is not null and state = 'running'), front
from ({COUNT_READY}) as waiting
"""


class Sustained(Benchmark):
    """Runs a worker and a feeder that keeps a backlog."""

    name = "sustained"
    purpose = "jobs per second at full speed, minute by minute"
    unit = "jobs/s"
    count = 30_000
    quick_count = 500

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_sustained_arguments(parser)

    def settings(self, options: argparse.Namespace) -> dict[str, Any]:
        return {
            "backlog": options.count,
            "minutes": minutes(options),
            "seconds per minute": minute_seconds(options),
            "workers": options.workers,
            "concurrency": CONCURRENCY,
        }

    def cases(self, backend: Backend, options: argparse.Namespace, stack: ExitStack) -> Sequence[Case]:  # noqa: ARG002
        config = WorkerConfig(options.workers, CONCURRENCY)

        def measure() -> Metrics:
            with closing(backend.create_database()) as db, scratch_folder() as scratch:
                db.enqueue(options.count)
                db.settle()
                with running_workers(config.commands(db.url, scratch), scratch) as workers:
                    feeder = Feeder(db, options.count, workers)
                    feeder.wait_until(lambda: first_start_time(scratch) is not None)
                    rates = [
                        feeder.measure_rate(minute_seconds(options), number + 1) for number in range(minutes(options))
                    ]
                    feeder.drain()
                check_count("runs done", db.count_done(), feeder.enqueued)
                check_count("completions in the history", db.count_recorded(), feeder.enqueued)
            return {f"minute {number}": rate for number, rate in enumerate(rates, 1)}

        return [Case(backend.name, HOLDFAST, measure)]

    def pairs_to_compare(self, keys: Sequence[MetricKey]) -> list[tuple[MetricKey, MetricKey]]:
        """Compare the last minute with the first."""
        databases = dict.fromkeys(key.database for key in keys)
        by_database = [[key for key in keys if key.database == database] for database in databases]
        return [(each[-1], each[0]) for each in by_database if len(each) > 1]


class Feeder:
    """Keeps a backlog of ready jobs and derives how many are done: those enqueued minus those unfinished."""

    def __init__(self, db: BenchmarkDatabase, backlog: int, workers: Workers) -> None:
        self._db = db
        self._backlog = backlog
        self._workers = workers
        self.front = -TURN_EPOCH
        """The turn of the first ready job at the last count."""
        self.enqueued = backlog

    def measure_rate(self, seconds: float, number: int) -> float:
        """Feed for this long and return the jobs done per second."""
        before, since = self.count_done(), time.monotonic()
        while time.monotonic() < since + seconds:
            self._workers.check_alive()
            self.feed()
            time.sleep(POLL_INTERVAL_S)
        rate = (self.count_done() - before) / (time.monotonic() - since)
        log(f"minute {number}: {rate:,.0f} jobs/s; {self.enqueued:,} jobs so far")
        return rate

    def feed(self) -> None:
        """Enqueue jobs when a third of the backlog is gone."""
        missing = self._backlog - self._count(COUNT_READY)
        if missing > self._backlog // 3:
            self.enqueue(missing)
            self.enqueued += missing

    def enqueue(self, count: int) -> None:
        self._db.enqueue(count, NOOP)

    def count_done(self) -> int:
        return self.enqueued - self._count(COUNT_UNFINISHED)

    def drain(self) -> None:
        self.wait_until(lambda: self._count(COUNT_UNFINISHED) == 0)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not condition():
            self._workers.check_alive()
            if time.monotonic() > deadline:
                raise MeasurementFailed(f"gave up waiting after {TIMEOUT_S:.0f} s: {self._workers.last_output()}")
            time.sleep(POLL_INTERVAL_S)

    def _count(self, statement: str) -> int:
        ((jobs, self.front),) = self._db.query(statement, "read", front=self.front)
        return int(jobs)


def add_sustained_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of benchmarks that keep workers busy for minutes."""
    parser.add_argument("--minutes", type=int, help=f"duration (default: {MINUTES})")
    parser.add_argument("--workers", type=int, default=1, help="worker processes (default: 1)")


def minutes(options: argparse.Namespace) -> int:
    if options.minutes is not None:
        return int(options.minutes)
    return QUICK_MINUTES if options.quick else MINUTES


def minute_seconds(options: argparse.Namespace) -> float:
    return QUICK_MINUTE_S if options.quick else MINUTE_S
