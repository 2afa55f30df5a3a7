"""How soon a job starts: from just before another process enqueues it until it runs on an idle worker."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from benchmarks.children import Command, Workers, WorkerSetting, finish, ours, working
from benchmarks.hosts import Host
from benchmarks.measure import OURS, Case, Failed, Figures, Measure, check
from benchmarks.tasks import latencies
from benchmarks.throughput import Watched, scratch_folder

WARM_UP_JOBS = 5
SETTLE_SECONDS = 0.5
LONGEST_SECONDS = 60.0
SECONDS_A_JOB = 1.0
CONCURRENCY = 100


class Latency(Measure):
    """Single jobs with random pauses between them."""

    name = "latency"
    purpose = "milliseconds from enqueue by another process to the start on an idle worker"
    unit = "ms"
    count = 300
    quick_count = 30
    has_peers = True

    def settings(self, options: argparse.Namespace) -> dict[str, Any]:
        return {"count": options.count, "concurrency": CONCURRENCY}

    def cases(self, host: Host, options: argparse.Namespace, stack: ExitStack) -> Sequence[Case]:  # noqa: ARG002
        def take() -> Figures:
            with closing(host.fresh()) as tables:
                setting = WorkerSetting(concurrency=CONCURRENCY)
                return take_latency(
                    tables,
                    options.count,
                    lambda scratch: setting.commands(tables.url, scratch),
                    lambda scratch, count: ours("send", tables.url, scratch, "--count", str(count)),
                )

        return [Case(host.name, OURS, take)]


def take_latency(
    watched: Watched,
    count: int,
    workers: Callable[[Path], Sequence[Command]],
    sender: Callable[[Path, int], Command],
) -> Figures:
    """Send jobs one by one to idle workers."""
    with scratch_folder() as scratch, working(workers(scratch), scratch) as running:
        _send(sender(scratch, WARM_UP_JOBS), scratch, WARM_UP_JOBS)
        _wait_for(scratch, WARM_UP_JOBS, running)
        time.sleep(SETTLE_SECONDS)
        _send(sender(scratch, count), scratch, count)
        taken = sorted(_wait_for(scratch, WARM_UP_JOBS + count, running)[WARM_UP_JOBS:])
        _wait_until_recorded(watched)
    check("jobs done", watched.done(), WARM_UP_JOBS + count)
    return {"p50": statistics.median(taken) * 1000, "p99": taken[int(len(taken) * 0.99)] * 1000}


def _send(command: Command, scratch: Path, count: int) -> None:
    finish(command, scratch, "sender", LONGEST_SECONDS + SECONDS_A_JOB * count)


def _wait_for(scratch: Path, count: int, workers: Workers) -> list[float]:
    """How long so many jobs were on their way, when all of them have started."""
    deadline = time.monotonic() + LONGEST_SECONDS
    while len(taken := latencies(scratch)) < count:
        workers.check_alive()
        if time.monotonic() > deadline:
            raise Failed(f"{len(taken)} of {count} jobs started: {workers.said()}")
        time.sleep(0.1)
    check("jobs started", len(taken), count)
    return taken


def _wait_until_recorded(watched: Watched) -> None:
    """The last one's end may be on its way to the database."""
    deadline = time.monotonic() + LONGEST_SECONDS
    while watched.unfinished() and time.monotonic() < deadline:
        time.sleep(0.05)
