"""Throughput of durable steps: runs of ten trivial steps, each committed before the next one starts."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import ExitStack, closing
from functools import partial
from typing import Any

from benchmarks.benchmark import HOLDFAST, Benchmark, Case, Metrics, check_count, parse_numbers
from benchmarks.databases import Backend
from benchmarks.processes import WorkerConfig
from benchmarks.tasks import STEPS, STEPS_PER_RUN
from benchmarks.throughput import measure_runs_per_second

CONCURRENCIES = (500, 100, 1)
ALONE_DIVISOR = 20  # Runs that execute one after the other take longer.
ALONE = "alone"
COUNT_STEPS = "select count(*) from {schema}checkpoints where kind = 'step' and cast(:baseline as bigint) >= 0"


class Steps(Benchmark):
    """Measures each concurrency on a new database."""

    name = "steps"
    purpose = "durable steps per second, with many concurrent runs and with one"
    unit = "steps/s"
    count = 10_000
    quick_count = 500
    has_peers = True

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--at-once",
            type=parse_numbers,
            default=list(CONCURRENCIES),
            metavar="RUNS",
            help="numbers of concurrent runs to compare (default: 500,100,1)",
        )

    def settings(self, options: argparse.Namespace) -> dict[str, Any]:
        return {"runs": options.count, "runs alone": alone_count(options.count), "steps per run": STEPS_PER_RUN}

    def cases(self, backend: Backend, options: argparse.Namespace, stack: ExitStack) -> Sequence[Case]:  # noqa: ARG002
        def measure(number: int) -> Metrics:
            count = alone_count(options.count) if number == 1 else options.count
            return {format_concurrency(number): steps_per_second(backend, count, number)}

        return [
            Case(backend.name, HOLDFAST, partial(measure, number), format_concurrency(number))
            for number in options.at_once
        ]


def format_concurrency(number: int) -> str:
    return ALONE if number == 1 else f"{number} at once"


def alone_count(count: int) -> int:
    return max(count // ALONE_DIVISOR, 1)


def steps_per_second(backend: Backend, runs: int, concurrency: int) -> float:
    with closing(backend.create_database()) as db:
        rate = measure_runs_per_second(db, runs, WorkerConfig(1, concurrency), STEPS)
        check_count("steps recorded", db.number(COUNT_STEPS), runs * STEPS_PER_RUN)
        return rate * STEPS_PER_RUN
