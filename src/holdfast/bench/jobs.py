"""Jobs a second: no-op jobs, enqueued before the workers start, counted when the database says that they are done."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import ExitStack, closing
from typing import Any

from holdfast.bench.children import WorkerSetting
from holdfast.bench.hosts import Host
from holdfast.bench.measure import OURS, Case, Figures, Measure
from holdfast.bench.throughput import runs_per_second

CONCURRENCY = 400


class Jobs(Measure):
    """A new database for every repetition."""

    name = "jobs"
    purpose = "no-op jobs a second, done and recorded in the database"
    unit = "jobs/s"
    count = 50_000
    quick_count = 2_000
    has_peers = True

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--workers", type=int, default=1, help="worker processes (default: 1)")
        parser.add_argument(
            "--concurrency", type=int, default=CONCURRENCY, help=f"of each worker (default: {CONCURRENCY})"
        )

    def settings(self, options: argparse.Namespace) -> dict[str, Any]:
        return {"count": options.count, "workers": options.workers, "concurrency": options.concurrency}

    def cases(self, host: Host, options: argparse.Namespace, stack: ExitStack) -> Sequence[Case]:  # noqa: ARG002
        setting = WorkerSetting(options.workers, options.concurrency)

        def take() -> Figures:
            with closing(host.fresh()) as tables:
                return {"": runs_per_second(tables, options.count, setting)}

        return [Case(host.name, OURS, take)]
