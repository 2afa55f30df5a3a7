"""Durable steps a second: runs of ten trivial steps, each on record before the next starts, many at once and alone."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import ExitStack, closing
from typing import Any

from holdfast.bench.children import WorkerSetting
from holdfast.bench.hosts import Host
from holdfast.bench.measure import OURS, Case, Figures, Measure, check
from holdfast.bench.tables import Tables
from holdfast.bench.tasks import STEPS, STEPS_PER_RUN
from holdfast.bench.throughput import runs_per_second

CONCURRENCY = 500
ALONE_SHARE = 20
MANY, ALONE = "at once", "alone"


class Steps(Measure):
    """A new database for every repetition and figure."""

    name = "steps"
    purpose = "durable steps a second, many runs at once and one run alone"
    unit = "steps/s"
    count = 10_000
    quick_count = 500
    has_peers = True

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--concurrency", type=int, default=CONCURRENCY, help=f"runs at once (default: {CONCURRENCY})"
        )

    def settings(self, options: argparse.Namespace) -> dict[str, Any]:
        return {"runs": options.count, "steps a run": STEPS_PER_RUN, "at once": options.concurrency}

    def cases(self, host: Host, options: argparse.Namespace, stack: ExitStack) -> Sequence[Case]:  # noqa: ARG002
        alone = max(options.count // ALONE_SHARE, 1)

        def take() -> Figures:
            return {
                MANY: steps_per_second(host, options.count, options.concurrency),
                ALONE: steps_per_second(host, alone, 1),
            }

        return [Case(host.name, OURS, take)]


def steps_per_second(host: Host, runs: int, concurrency: int) -> float:
    with closing(host.fresh()) as tables:
        rate = runs_per_second(tables, runs, WorkerSetting(1, concurrency), STEPS)
        check("steps on record", _recorded(tables), runs * STEPS_PER_RUN)
        return rate * STEPS_PER_RUN


def _recorded(tables: Tables) -> int:
    return tables.number("select count(*) from {schema}checkpoints where kind = 'step' and cast(:mark as bigint) >= 0")
