"""Measure the rate at which workers finish the runs in a database."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from benchmarks.benchmark import MeasurementFailed, check_count
from benchmarks.databases import BenchmarkDatabase
from benchmarks.processes import Command, WorkerConfig, Workers, running_workers, scratch_folder
from benchmarks.tasks import NOOP, first_start_time

TIMEOUT_S = 600.0
POLL_INTERVAL_S = 0.02


class MeasuredDatabase(Protocol):
    """A database of Holdfast or of a peer."""

    def has_unfinished(self) -> bool: ...

    def count_done(self) -> int: ...


def measure_runs_per_second(db: BenchmarkDatabase, count: int, config: WorkerConfig, task: str = NOOP) -> float:
    """Enqueue `count` runs, let workers finish them, and check that each ran and was recorded once."""
    db.replace_runs(count, task)
    rate = measure_rate(db, count, lambda scratch: config.commands(db.url, scratch))
    check_count("runs done", db.count_done(), count)
    check_count("completions in the history", db.count_recorded(), count)
    check_count("sum of the results", db.sum_results(), count * (count - 1) // 2)
    return rate


def measure_rate(db: MeasuredDatabase, count: int, commands: Callable[[Path], Sequence[Command]]) -> float:
    """Return the runs per second from the start of the first run until no run is unfinished."""
    with scratch_folder() as scratch, running_workers(commands(scratch), scratch) as workers:
        started, finished = wait_until_finished(db, scratch, count, workers)
    return count / (finished - started)


def wait_until_finished(
    db: MeasuredDatabase, scratch: Path, count: int, workers: Workers, on_poll: Callable[[], None] = lambda: None
) -> tuple[float, float]:
    """Wait for the end of all runs; return when the first one started and when the last one ended."""
    deadline = time.monotonic() + TIMEOUT_S
    started: float | None = None
    while True:
        started = started or first_start_time(scratch)
        if started and not db.has_unfinished():
            return started, time.time()
        workers.check_alive()
        on_poll()
        if time.monotonic() > deadline:
            done = db.count_done()
            raise MeasurementFailed(f"{done:,} of {count:,} done after {TIMEOUT_S:.0f} s: {workers.last_output()}")
        time.sleep(POLL_INTERVAL_S)
