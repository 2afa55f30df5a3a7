"""Times workers on a database full of runs: from the first one's start until nothing unfinished is left in it."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from benchmarks.children import Command, Workers, WorkerSetting, working
from benchmarks.measure import Failed, check
from benchmarks.tables import Tables
from benchmarks.tasks import NOOP, first_start

LONGEST_SECONDS = 600.0
LOOK_SECONDS = 0.02


class Watched(Protocol):
    """A database in which work gets done."""

    def unfinished(self) -> bool: ...

    def done(self) -> int: ...


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Where the processes of one repetition leave their marks."""
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def runs_per_second(tables: Tables, count: int, setting: WorkerSetting, task: str = NOOP) -> float:
    """Fill, work, time, and check that everything was done, once, and recorded."""
    tables.refill(count, task)
    rate = rate_of(tables, count, lambda scratch: setting.commands(tables.url, scratch))
    check("runs done", tables.done(), count)
    check("ends in the history", tables.recorded(), count)
    check("sum of the results", tables.sum_of_results(), count * (count - 1) // 2)
    return rate


def rate_of(watched: Watched, count: int, workers: Callable[[Path], Sequence[Command]]) -> float:
    """What these workers get done in a second."""
    with scratch_folder() as scratch, working(workers(scratch), scratch) as running:
        started, finished = _wait_until_finished(watched, scratch, count, running)
    return count / (finished - started)


def _wait_until_finished(watched: Watched, scratch: Path, count: int, workers: Workers) -> tuple[float, float]:
    """When the first run started, and when nothing unfinished was left."""
    deadline = time.monotonic() + LONGEST_SECONDS
    started: float | None = None
    while True:
        started = started or first_start(scratch)
        if started and not watched.unfinished():
            return started, time.time()
        workers.check_alive()
        if time.monotonic() > deadline:
            raise Failed(f"{watched.done():,} of {count:,} done after {LONGEST_SECONDS:.0f} s: {workers.said()}")
        time.sleep(LOOK_SECONDS)
