"""The cost of limits: throughput of no-op jobs under limits that are never reached, compared with no limits."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import ExitStack, closing
from functools import partial
from typing import Any

from benchmarks.benchmark import Benchmark, Case, MetricKey, Metrics, compare_with
from benchmarks.databases import Backend
from benchmarks.processes import WorkerConfig
from benchmarks.suite.jobs import CONCURRENCY
from benchmarks.tasks import BY_KEY, NOOP, ONE_LIMIT
from benchmarks.throughput import measure_runs_per_second

NO_LIMIT = "no limit"
SUBJECTS = {NO_LIMIT: NOOP, "one limit": ONE_LIMIT, "by key": BY_KEY}


class Limits(Benchmark):
    """Measures each kind of limit on a new database."""

    name = "limits"
    purpose = "no-op jobs per second under limits, compared with none"
    unit = "jobs/s"
    count = 20_000
    quick_count = 1_000

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--workers", type=int, default=1, help="worker processes (default: 1)")

    def settings(self, options: argparse.Namespace) -> dict[str, Any]:
        return {"count": options.count, "workers": options.workers, "concurrency": CONCURRENCY}

    def cases(self, backend: Backend, options: argparse.Namespace, stack: ExitStack) -> Sequence[Case]:  # noqa: ARG002
        config = WorkerConfig(options.workers, CONCURRENCY)

        def measure(task: str) -> Metrics:
            with closing(backend.create_database()) as db:
                return {"": measure_runs_per_second(db, options.count, config, task)}

        return [Case(backend.name, subject, partial(measure, task)) for subject, task in SUBJECTS.items()]

    def pairs_to_compare(self, keys: Sequence[MetricKey]) -> list[tuple[MetricKey, MetricKey]]:
        return compare_with(keys, NO_LIMIT)
