"""Latency from enqueueing a job in one process to its start on an idle worker in another."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from benchmarks.benchmark import HOLDFAST, Benchmark, Case, MeasurementFailed, Metrics, check_count
from benchmarks.databases import Backend, BenchmarkDatabase
from benchmarks.processes import (
    Command,
    WorkerConfig,
    Workers,
    child_command,
    run_process,
    running_workers,
    scratch_folder,
)
from benchmarks.tasks import read_latencies
from benchmarks.throughput import MeasuredDatabase

WARM_UP_JOBS = 5
STARTUP_WAIT_S = 0.5
TIMEOUT_S = 60.0
MAX_SECONDS_PER_JOB = 1.0
CONCURRENCY = 100


class Latency(Benchmark):
    """Enqueues single jobs with random pauses."""

    name = "latency"
    purpose = "milliseconds from enqueueing a job to its start on an idle worker"
    unit = "ms"
    count = 300
    quick_count = 30
    has_peers = True

    def settings(self, options: argparse.Namespace) -> dict[str, Any]:
        return {"count": options.count, "concurrency": CONCURRENCY}

    def cases(self, backend: Backend, options: argparse.Namespace, stack: ExitStack) -> Sequence[Case]:  # noqa: ARG002
        def measure() -> Metrics:
            with closing(backend.create_database()) as db:
                config = WorkerConfig(concurrency=CONCURRENCY)
                return measure_latency(
                    db,
                    options.count,
                    lambda scratch: config.commands(db.url, scratch),
                    lambda scratch, count: child_command("send", db.url, scratch, "--count", str(count)),
                )

        return [Case(backend.name, HOLDFAST, measure)]


def measure_latency(
    db: MeasuredDatabase,
    count: int,
    workers: Callable[[Path], Sequence[Command]],
    sender: Callable[[Path, int], Command],
) -> Metrics:
    """Send jobs one by one to idle workers and return the percentiles of their latencies."""
    with scratch_folder() as scratch, running_workers(workers(scratch), scratch) as running:
        latencies = sorted(_latencies(db, count, scratch, running, sender))
    return {"p50": statistics.median(latencies) * 1000, "p99": latencies[int(len(latencies) * 0.99)] * 1000}


def measure_start_latency(db: BenchmarkDatabase, scratch: Path, count: int, workers: Workers) -> list[float]:
    """Send jobs one by one to workers that are running and return the seconds until each started."""

    def sender(scratch: Path, count: int) -> Command:
        return child_command("send", db.url, scratch, "--count", str(count))

    return _latencies(db, count, scratch, workers, sender)


def _latencies(
    db: MeasuredDatabase, count: int, scratch: Path, workers: Workers, sender: Callable[[Path, int], Command]
) -> list[float]:
    _send(sender(scratch, WARM_UP_JOBS), scratch, WARM_UP_JOBS)
    _wait_for_starts(scratch, WARM_UP_JOBS, workers)
    time.sleep(STARTUP_WAIT_S)
    _send(sender(scratch, count), scratch, count)
    latencies = _wait_for_starts(scratch, WARM_UP_JOBS + count, workers)[WARM_UP_JOBS:]
    _wait_until_finished(db)
    check_count("jobs done", db.count_done(), WARM_UP_JOBS + count)
    return latencies


def _send(command: Command, scratch: Path, count: int) -> None:
    run_process(command, scratch, "sender", TIMEOUT_S + MAX_SECONDS_PER_JOB * count)


def _wait_for_starts(scratch: Path, count: int, workers: Workers) -> list[float]:
    """Wait until `count` jobs have started and return their latencies in seconds."""
    deadline = time.monotonic() + TIMEOUT_S
    while len(latencies := read_latencies(scratch)) < count:
        workers.check_alive()
        if time.monotonic() > deadline:
            raise MeasurementFailed(f"{len(latencies)} of {count} jobs started: {workers.last_output()}")
        time.sleep(0.1)
    check_count("jobs started", len(latencies), count)
    return latencies


def _wait_until_finished(db: MeasuredDatabase) -> None:
    """Wait for the completion of the last job, which is recorded after its start."""
    deadline = time.monotonic() + TIMEOUT_S
    while db.has_unfinished() and time.monotonic() < deadline:
        time.sleep(0.05)
