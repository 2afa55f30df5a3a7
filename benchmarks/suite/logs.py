"""The cost of kept log lines: jobs per second of a job that logs ten lines, which are kept with the run or not."""

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
from benchmarks.tasks import LINES_PER_RUN, LOGGING, NOOP
from benchmarks.throughput import measure_runs_per_second

ONLY_FILE = "only in a file"
SUBJECTS = {
    ONLY_FILE: (LOGGING, None),
    "kept with the run": (LOGGING, "info"),
    "none logged": (NOOP, None),
}
"""The task, and what the worker keeps."""


class KeptLogs(Benchmark):
    """Measures the same job with lines that the application writes to a file, and that are kept with the run as well.

    The application's own handler formats and writes each line in both cases, as in production.
    """

    name = "logs"
    purpose = f"jobs per second of a job that logs {LINES_PER_RUN} lines, with and without keeping them"
    unit = "jobs/s"
    count = 20_000
    quick_count = 1_000

    def settings(self, options: argparse.Namespace) -> dict[str, Any]:
        return {"count": options.count, "workers": 1, "concurrency": CONCURRENCY, "lines per run": LINES_PER_RUN}

    def cases(self, backend: Backend, options: argparse.Namespace, stack: ExitStack) -> Sequence[Case]:  # noqa: ARG002
        def measure(task: str, kept: str | None) -> Metrics:
            with closing(backend.create_database()) as db:
                config = WorkerConfig(1, CONCURRENCY, logs=kept)
                return {"": measure_runs_per_second(db, options.count, config, task)}

        return [Case(backend.name, subject, partial(measure, task, kept)) for subject, (task, kept) in SUBJECTS.items()]

    def pairs_to_compare(self, keys: Sequence[MetricKey]) -> list[tuple[MetricKey, MetricKey]]:
        return compare_with(keys, ONLY_FILE)
