"""What limits cost: no-op jobs a second with limits that hold nobody back, against the same jobs without any."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import ExitStack, closing
from functools import partial
from typing import Any

from benchmarks.children import WorkerSetting
from benchmarks.hosts import Host
from benchmarks.jobs import CONCURRENCY
from benchmarks.measure import Case, Figures, Measure, Place, against
from benchmarks.tasks import BY_KEY, NOOP, ONE_LIMIT
from benchmarks.throughput import runs_per_second

NONE = "no limit"
SUBJECTS = {NONE: NOOP, "one limit": ONE_LIMIT, "by key": BY_KEY}


class Limits(Measure):
    """A new database for every repetition and subject."""

    name = "limits"
    purpose = "no-op jobs a second under limits, against the same without"
    unit = "jobs/s"
    count = 20_000
    quick_count = 1_000

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--workers", type=int, default=1, help="worker processes (default: 1)")

    def settings(self, options: argparse.Namespace) -> dict[str, Any]:
        return {"count": options.count, "workers": options.workers, "concurrency": CONCURRENCY}

    def cases(self, host: Host, options: argparse.Namespace, stack: ExitStack) -> Sequence[Case]:  # noqa: ARG002
        setting = WorkerSetting(options.workers, CONCURRENCY)

        def take(task: str) -> Figures:
            with closing(host.fresh()) as tables:
                return {"": runs_per_second(tables, options.count, setting, task)}

        return [Case(host.name, subject, partial(take, task)) for subject, task in SUBJECTS.items()]

    def compared(self, places: Sequence[Place]) -> list[tuple[Place, Place]]:
        return against(places, NONE)
