"""Times workers on a database full of runs: from the first one's start until nothing unfinished is left in it."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from holdfast.bench.children import Workers, WorkerSetting, working
from holdfast.bench.measure import Failed, check
from holdfast.bench.tables import Tables
from holdfast.bench.tasks import NOOP, first_start

LONGEST_SECONDS = 300.0
LOOK_SECONDS = 0.02


def runs_per_second(tables: Tables, count: int, setting: WorkerSetting, task: str = NOOP) -> float:
    """Fill, work, time, and check that everything was done, once, and recorded."""
    tables.refill(count, task)
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-", ignore_cleanup_errors=True) as folder:
        scratch = Path(folder)
        with working(tables.url, scratch, setting) as workers:
            started, finished = _wait_until_finished(tables, scratch, count, workers)
    check("runs done", tables.done(), count)
    check("ends in the history", tables.recorded(), count)
    check("sum of the results", tables.sum_of_results(), count * (count - 1) // 2)
    return count / (finished - started)


def _wait_until_finished(tables: Tables, scratch: Path, count: int, workers: Workers) -> tuple[float, float]:
    """When the first run started, and when nothing unfinished was left."""
    deadline = time.monotonic() + LONGEST_SECONDS
    started: float | None = None
    while True:
        started = started or first_start(scratch)
        if started and not tables.unfinished():
            return started, time.time()
        workers.check_alive()
        if time.monotonic() > deadline:
            raise Failed(f"{tables.done():,} of {count:,} done after {LONGEST_SECONDS:.0f} s: {workers.said()}")
        time.sleep(LOOK_SECONDS)
