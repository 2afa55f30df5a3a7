"""Jobs a second: no-op jobs, enqueued before the workers start, counted when the database says that they are done."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import ExitStack, closing
from functools import partial
from typing import Any

from benchmarks.children import WorkerSetting
from benchmarks.hosts import Host
from benchmarks.measure import OURS, Case, Figures, Measure, whole_numbers
from benchmarks.throughput import runs_per_second

CONCURRENCY = 400
WORKERS = (1, 2)


class Jobs(Measure):
    """A new database for every repetition and number of workers."""

    name = "jobs"
    purpose = "no-op jobs a second, done and recorded in the database"
    unit = "jobs/s"
    count = 50_000
    quick_count = 2_000
    has_peers = True

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--workers", type=whole_numbers, default=list(WORKERS), help="numbers of worker processes (default: 1,2)"
        )
        parser.add_argument(
            "--concurrency", type=int, default=CONCURRENCY, help=f"of each worker (default: {CONCURRENCY})"
        )

    def settings(self, options: argparse.Namespace) -> dict[str, Any]:
        return {"count": options.count, "concurrency": options.concurrency}

    def cases(self, host: Host, options: argparse.Namespace, stack: ExitStack) -> Sequence[Case]:  # noqa: ARG002
        def take(workers: int) -> Figures:
            with closing(host.fresh()) as tables:
                setting = WorkerSetting(workers, options.concurrency)
                return {by(workers): runs_per_second(tables, options.count, setting)}

        return [Case(host.name, OURS, partial(take, number), by(number)) for number in options.workers]


def by(workers: int) -> str:
    """The figure of so many workers."""
    return "1 worker" if workers == 1 else f"{workers} workers"
