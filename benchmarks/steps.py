"""Durable steps a second: runs of ten trivial steps, each on record before the next starts, many at once and alone."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import ExitStack, closing
from functools import partial
from typing import Any

from benchmarks.children import WorkerSetting
from benchmarks.hosts import Host
from benchmarks.measure import OURS, Case, Figures, Measure, check, whole_numbers
from benchmarks.tables import Tables
from benchmarks.tasks import STEPS, STEPS_PER_RUN
from benchmarks.throughput import runs_per_second

AT_ONCE = (500, 100, 1)
ALONE_SHARE = 20
ALONE = "alone"


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
            "--at-once",
            type=whole_numbers,
            default=list(AT_ONCE),
            metavar="RUNS",
            help="how many runs a worker has at once (default: 500,100,1)",
        )

    def settings(self, options: argparse.Namespace) -> dict[str, Any]:
        return {"runs": options.count, "runs alone": alone_count(options.count), "steps a run": STEPS_PER_RUN}

    def cases(self, host: Host, options: argparse.Namespace, stack: ExitStack) -> Sequence[Case]:  # noqa: ARG002
        def take(number: int) -> Figures:
            count = alone_count(options.count) if number == 1 else options.count
            return {at_once(number): steps_per_second(host, count, number)}

        return [Case(host.name, OURS, partial(take, number), at_once(number)) for number in options.at_once]


def at_once(number: int) -> str:
    """The figure of so many runs at once."""
    return ALONE if number == 1 else f"{number} at once"


def alone_count(count: int) -> int:
    """One run after the other takes long: fewer of them."""
    return max(count // ALONE_SHARE, 1)


def steps_per_second(host: Host, runs: int, concurrency: int) -> float:
    with closing(host.fresh()) as tables:
        rate = runs_per_second(tables, runs, WorkerSetting(1, concurrency), STEPS)
        check("steps on record", _recorded(tables), runs * STEPS_PER_RUN)
        return rate * STEPS_PER_RUN


def _recorded(tables: Tables) -> int:
    return tables.number("select count(*) from {schema}checkpoints where kind = 'step' and cast(:mark as bigint) >= 0")
