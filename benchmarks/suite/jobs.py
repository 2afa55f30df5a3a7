"""Throughput of no-op jobs that are enqueued before the workers start."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import ExitStack, closing
from functools import partial
from typing import Any

from benchmarks.benchmark import HOLDFAST, Benchmark, Case, Metrics, parse_numbers
from benchmarks.databases import Backend
from benchmarks.processes import WorkerConfig
from benchmarks.throughput import measure_runs_per_second

CONCURRENCY = 400
WORKERS = (1, 2)


class Jobs(Benchmark):
    """Measures each number of workers on a new database."""

    name = "jobs"
    purpose = "no-op jobs per second"
    unit = "jobs/s"
    count = 50_000
    quick_count = 2_000
    has_peers = True

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--workers",
            type=parse_numbers,
            default=list(WORKERS),
            help="numbers of worker processes to compare (default: 1,2)",
        )
        parser.add_argument(
            "--concurrency",
            type=int,
            default=CONCURRENCY,
            help=f"jobs that a worker runs at once (default: {CONCURRENCY})",
        )

    def settings(self, options: argparse.Namespace) -> dict[str, Any]:
        return {"count": options.count, "concurrency": options.concurrency}

    def cases(self, backend: Backend, options: argparse.Namespace, stack: ExitStack) -> Sequence[Case]:  # noqa: ARG002
        def measure(workers: int) -> Metrics:
            with closing(backend.create_database()) as db:
                config = WorkerConfig(workers, options.concurrency)
                return {format_workers(workers): measure_runs_per_second(db, options.count, config)}

        return [
            Case(backend.name, HOLDFAST, partial(measure, number), format_workers(number)) for number in options.workers
        ]


def format_workers(workers: int) -> str:
    return "1 worker" if workers == 1 else f"{workers} workers"
