"""The gain of batches: jobs per second of a function that costs 1 ms per call, alone and in batches of 100."""

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
from benchmarks.tasks import BATCHED, BATCHED_RUNS, CALL_COST_S, SINGLE
from benchmarks.throughput import measure_runs_per_second

ALONE = "one by one"
SUBJECTS = {ALONE: SINGLE, f"batches of {BATCHED_RUNS}": BATCHED}


class Flow(Benchmark):
    """Measures the task with and without batches on a new database. A call occupies its worker process."""

    name = "flow"
    purpose = "jobs per second of a function that costs 1 ms per call, one by one and in batches of 100"
    unit = "jobs/s"
    count = 10_000
    quick_count = 500

    def settings(self, options: argparse.Namespace) -> dict[str, Any]:
        return {"count": options.count, "workers": 1, "concurrency": CONCURRENCY, "cost of a call (s)": CALL_COST_S}

    def cases(self, backend: Backend, options: argparse.Namespace, stack: ExitStack) -> Sequence[Case]:  # noqa: ARG002
        config = WorkerConfig(1, CONCURRENCY)

        def measure(task: str) -> Metrics:
            with closing(backend.create_database()) as db:
                return {"": measure_runs_per_second(db, options.count, config, task)}

        return [Case(backend.name, subject, partial(measure, task)) for subject, task in SUBJECTS.items()]

    def pairs_to_compare(self, keys: Sequence[MetricKey]) -> list[tuple[MetricKey, MetricKey]]:
        return compare_with(keys, ALONE)
