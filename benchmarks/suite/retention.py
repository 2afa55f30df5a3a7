"""Deletion of finished runs at full speed: whether it keeps up with the ends, and whether the tables grow."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import ExitStack, closing
from typing import Any

from benchmarks.benchmark import HOLDFAST, Benchmark, Case, MetricKey, Metrics, log
from benchmarks.databases import Backend, BenchmarkDatabase
from benchmarks.processes import WorkerConfig, Workers, running_workers, scratch_folder
from benchmarks.suite.growth import ARGS, COUNT_FINISHED
from benchmarks.suite.jobs import CONCURRENCY
from benchmarks.suite.sustained import Feeder, add_sustained_arguments, minute_seconds, minutes
from benchmarks.tasks import NOOP, QUEUE, first_start_time
from holdfast.model.ids import new_id
from holdfast.store import NewRun

KEEP_US = 0
SETTLED_MINUTE = 2
"""By then the first runs have been deleted and vacuumed."""
JOBS, PRUNED, SHARE = "jobs", "pruned", "pruned ÷ ended"
SIZE_EARLY, SIZE_LATE = "size early", "size at the end"
UNITS = {JOBS: "jobs/s", PRUNED: "runs/s", SHARE: "ratio", SIZE_EARLY: "MB", SIZE_LATE: "MB"}


class Retention(Benchmark):
    """Runs workers and a feeder that keeps a backlog of jobs that expire as soon as they end."""

    name = "retention"
    purpose = "deletion of finished runs at full speed, and the size of the tables"
    unit = "runs/s"
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

    def unit_of(self, metric: str) -> str:
        return UNITS[metric]

    def cases(self, backend: Backend, options: argparse.Namespace, stack: ExitStack) -> Sequence[Case]:  # noqa: ARG002
        config = WorkerConfig(options.workers, CONCURRENCY)

        def measure() -> Metrics:
            with closing(backend.create_database()) as db, scratch_folder() as scratch:
                enqueue_brief(db, options.count)
                db.settle()
                with running_workers(config.commands(db.url, scratch), scratch) as workers:
                    feeder = BriefFeeder(db, options.count, workers)
                    feeder.wait_until(lambda: first_start_time(scratch) is not None)
                    return _measure(feeder, minutes(options), minute_seconds(options))

        return [Case(backend.name, HOLDFAST, measure)]

    def pairs_to_compare(self, keys: Sequence[MetricKey]) -> list[tuple[MetricKey, MetricKey]]:
        """Compare the last size with the early one."""
        sizes = [key for key in keys if key.metric == SIZE_LATE]
        return [(key, key._replace(metric=SIZE_EARLY)) for key in sizes]


class BriefFeeder(Feeder):
    """Keeps a backlog of jobs that expire as soon as they end."""

    def __init__(self, db: BenchmarkDatabase, backlog: int, workers: Workers) -> None:
        super().__init__(db, backlog, workers)
        self._database = db

    def enqueue(self, count: int) -> None:
        enqueue_brief(self._database, count)

    def count_kept(self) -> int:
        """Count the runs that have ended and aren't deleted yet."""
        return self._database.number(COUNT_FINISHED)

    def size_mb(self) -> float:
        return self._database.store.health.stored_bytes() / 1e6


def enqueue_brief(db: BenchmarkDatabase, count: int) -> None:
    """Enqueue jobs that are deleted after their end."""
    for first in range(0, count, 1000):
        runs = [NewRun(str(new_id()), QUEUE, NOOP, ARGS, KEEP_US) for _ in range(min(1000, count - first))]
        db.store.enqueuer.enqueue(runs)


def _measure(feeder: BriefFeeder, count: int, seconds: float) -> Metrics:
    """Measure the minutes after the first ones. What expired in the last minute may still be there."""
    early = min(SETTLED_MINUTE, count - 1)
    for number in range(1, early + 1):
        feeder.measure_rate(seconds, number)
    size, ended, kept = feeder.size_mb(), feeder.count_done(), feeder.count_kept()
    for number in range(early + 1, count + 1):
        feeder.measure_rate(seconds, number)
        log(f"{feeder.count_kept():,} runs are kept in {feeder.size_mb():,.0f} MB")
    ends, took = feeder.count_done() - ended, (count - early) * seconds
    pruned = ends - (feeder.count_kept() - kept)
    return {
        JOBS: ends / took,
        PRUNED: pruned / took,
        SHARE: pruned / max(ends, 1),
        SIZE_EARLY: size,
        SIZE_LATE: feeder.size_mb(),
    }
