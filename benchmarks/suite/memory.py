"""Memory of an idle worker process, and the duration of `import holdfast`."""

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

from benchmarks.benchmark import HOLDFAST, Benchmark, Case, MeasurementFailed, Metrics
from benchmarks.databases import Backend, BenchmarkDatabase
from benchmarks.processes import WorkerConfig, child_command, run_process, running_workers, scratch_folder
from benchmarks.suite.latency import TIMEOUT_S
from benchmarks.tasks import read_latencies

IMPORT_SCRIPT = "import time; since = time.perf_counter(); import holdfast; print(time.perf_counter() - since)"
WORKER, IMPORTED = "idle worker", "import"
CONCURRENCY = 100
IDLE_WAIT_S = 1.0


class Memory(Benchmark):
    """Measures a worker that has finished some jobs and is idle."""

    name = "memory"
    purpose = "memory of an idle worker, and the duration of the import"
    unit = "MB"
    count = 9
    quick_count = 3

    def settings(self, options: argparse.Namespace) -> dict[str, Any]:
        return {"jobs before": options.count, "imports": options.count, "concurrency": CONCURRENCY}

    def unit_of(self, metric: str) -> str:
        return "ms" if metric == IMPORTED else self.unit

    def cases(self, backend: Backend, options: argparse.Namespace, stack: ExitStack) -> Sequence[Case]:  # noqa: ARG002
        def measure_worker() -> Metrics:
            with closing(backend.create_database()) as db:
                return {WORKER: measure_idle_worker_mb(db, options.count)}

        return [
            Case(backend.name, HOLDFAST, measure_worker, WORKER),
            Case(backend.name, HOLDFAST, partial(_measure_import, options.count), IMPORTED),
        ]


def measure_idle_worker_mb(db: BenchmarkDatabase, jobs: int) -> float:
    config = WorkerConfig(concurrency=CONCURRENCY)
    with scratch_folder() as scratch, running_workers(config.commands(db.url, scratch), scratch) as workers:
        send = child_command("send", db.url, scratch, "--count", str(jobs))
        run_process(send, scratch, "sender", TIMEOUT_S)
        deadline = time.monotonic() + TIMEOUT_S
        while len(read_latencies(scratch)) < jobs or db.has_unfinished():
            workers.check_alive()
            if time.monotonic() > deadline:
                raise MeasurementFailed(f"the jobs were not done after {TIMEOUT_S:.0f} s: {workers.last_output()}")
            time.sleep(0.05)
        time.sleep(IDLE_WAIT_S)
        return resident_mb(workers.processes[0].pid)


def resident_mb(pid: int) -> float:
    """Return the resident set size of a process."""
    output = subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    if not output.strip():
        raise MeasurementFailed(f"ps does not know process {pid}")
    return int(output) / 1024


def _measure_import(times: int) -> Metrics:
    """Return the median over several interpreters, without the first, which compiles and reads from disk."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    elapsed = []
    for _ in range(times + 1):
        output = subprocess.run(
            [sys.executable, "-c", IMPORT_SCRIPT], env=env, capture_output=True, text=True, check=True
        ).stdout
        elapsed.append(float(output) * 1000)
    return {IMPORTED: statistics.median(elapsed[1:])}
