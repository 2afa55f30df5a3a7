"""Throughput of enqueueing: one call after another, by 100 concurrent callers, and in bulk."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import ExitStack, closing
from functools import partial
from typing import Any

from benchmarks.benchmark import HOLDFAST, Benchmark, Case, MetricKey, Metrics, check_count
from benchmarks.databases import Backend
from benchmarks.processes import child_command, run_process, scratch_folder
from benchmarks.throughput import TIMEOUT_S

CALLERS = 100
ONE_BY_ONE, AT_ONCE, BULK = "one by one", f"{CALLERS} at once", "bulk"
MODES = {ONE_BY_ONE: "single", AT_ONCE: "concurrent", BULK: "bulk"}
SHARES = {ONE_BY_ONE: 0.06, AT_ONCE: 0.2, BULK: 1.0}
"""The share of the count for each mode, so that all take about equally long."""
COUNT_READY = "select count(*) from {schema}runs where state = 'ready'"


class Enqueue(Benchmark):
    """Measures each mode on a new database, with the callers in a separate process."""

    name = "enqueue"
    purpose = "jobs enqueued per second: one by one, by 100 concurrent callers, in bulk"
    unit = "jobs/s"
    count = 100_000
    quick_count = 3_000
    has_peers = True

    def settings(self, options: argparse.Namespace) -> dict[str, Any]:
        return {mode: jobs_for_mode(options.count, mode) for mode in MODES}

    def cases(self, backend: Backend, options: argparse.Namespace, stack: ExitStack) -> Sequence[Case]:  # noqa: ARG002
        def measure(mode: str) -> Metrics:
            count = jobs_for_mode(options.count, mode)
            with closing(backend.create_database()) as db, scratch_folder() as scratch:
                more = ("--count", str(count), "--mode", MODES[mode], "--callers", str(CALLERS))
                answer = run_process(child_command("enqueue", db.url, scratch, *more), scratch, "enqueuer", TIMEOUT_S)
                check_count("runs enqueued", db.number(COUNT_READY), count)
            return {mode: float(answer["rate"])}

        return [Case(backend.name, HOLDFAST, partial(measure, mode), mode) for mode in MODES]

    def pairs_to_compare(self, keys: Sequence[MetricKey]) -> list[tuple[MetricKey, MetricKey]]:
        """Also compare our concurrent callers with one caller of a peer, because few peers batch calls."""
        pairs = super().pairs_to_compare(keys)
        with_single = [(top, bottom._replace(metric=ONE_BY_ONE)) for top, bottom in pairs if top.metric == AT_ONCE]
        return [*pairs, *[(top, bottom) for top, bottom in with_single if bottom in set(keys)]]


def jobs_for_mode(count: int, mode: str) -> int:
    """Return the number of jobs for a mode; for concurrent callers, a multiple of their number."""
    share = max(int(count * SHARES[mode]), 1)
    return max(share // CALLERS, 1) * CALLERS if mode == AT_ONCE else share
