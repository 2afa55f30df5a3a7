"""What Holdfast weighs: the memory of an idle worker process, and how long `import holdfast` takes."""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from functools import partial
from typing import Any

from benchmarks.children import WorkerSetting, finish, ours, working
from benchmarks.hosts import Host
from benchmarks.latency import LONGEST_SECONDS
from benchmarks.measure import OURS, Case, Failed, Figures, Measure
from benchmarks.tables import Tables
from benchmarks.tasks import latencies
from benchmarks.throughput import scratch_folder

IMPORT = "import time; since = time.perf_counter(); import holdfast; print(time.perf_counter() - since)"
WORKER, IMPORTED = "idle worker", "import"
CONCURRENCY = 100
IDLE_SECONDS = 1.0


class Memory(Measure):
    """An idle worker is one that has done some jobs and has nothing to do."""

    name = "memory"
    purpose = "memory of an idle worker process, and the time that the import takes"
    unit = "MB"
    count = 9
    quick_count = 3

    def settings(self, options: argparse.Namespace) -> dict[str, Any]:
        return {"jobs before": options.count, "imports": options.count, "concurrency": CONCURRENCY}

    def unit_of(self, figure: str) -> str:
        return "ms" if figure == IMPORTED else self.unit

    def cases(self, host: Host, options: argparse.Namespace, stack: ExitStack) -> Sequence[Case]:  # noqa: ARG002
        def take_worker() -> Figures:
            with closing(host.fresh()) as tables:
                return {WORKER: megabytes_of_idle_worker(tables, options.count)}

        return [
            Case(host.name, OURS, take_worker, WORKER),
            Case(host.name, OURS, partial(_take_import, options.count), IMPORTED),
        ]


def megabytes_of_idle_worker(tables: Tables, jobs: int) -> float:
    setting = WorkerSetting(concurrency=CONCURRENCY)
    with scratch_folder() as scratch, working(setting.commands(tables.url, scratch), scratch) as workers:
        send = ours("send", tables.url, scratch, "--count", str(jobs))
        finish(send, scratch, "sender", LONGEST_SECONDS)
        deadline = time.monotonic() + LONGEST_SECONDS
        while len(latencies(scratch)) < jobs or tables.unfinished():
            workers.check_alive()
            if time.monotonic() > deadline:
                raise Failed(f"the jobs weren't done after {LONGEST_SECONDS:.0f} s: {workers.said()}")
            time.sleep(0.05)
        time.sleep(IDLE_SECONDS)
        return resident_megabytes(workers.processes[0].pid)


def resident_megabytes(pid: int) -> float:
    """What of a process is in memory, as the system tells."""
    told = subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    if not told.strip():
        raise Failed(f"ps knows nothing of process {pid}")
    return int(told) / 1024


def _take_import(times: int) -> Figures:
    """The median of some interpreters. What is done only the first time is left out: compiling, and what the disk has
    to fetch."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    taken = []
    for _ in range(times + 1):
        told = subprocess.run(
            [sys.executable, "-c", IMPORT], env=env, capture_output=True, text=True, check=True
        ).stdout
        taken.append(float(told) * 1000)
    return {IMPORTED: statistics.median(taken[1:])}
