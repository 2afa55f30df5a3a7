"""The tasks that are measured, and the marker files by which workers report when jobs start."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

from holdfast.app import Holdfast
from holdfast.model.batch import Batch
from holdfast.model.run_logs import LogLevel
from holdfast.task.context import Context
from holdfast.task.task import Task

logger = logging.getLogger("bench.shop")

NOOP = "bench.noop"
STEPS = "bench.steps"
ONE_LIMIT = "bench.one_limit"
BY_KEY = "bench.by_key"
TOTAL = "bench.total"
SINGLE = "bench.single"
BATCHED = "bench.batched"
LOGGING = "bench.logging"
TASKS = (NOOP, STEPS, ONE_LIMIT, BY_KEY, SINGLE, BATCHED, LOGGING)
LINES_PER_RUN = 10
BATCHED_RUNS = 100
CALL_COST_S = 0.001
STEPS_PER_RUN = 10
LIMIT_KEYS = 1000
QUEUE = "default"
PAYLOAD_TEXT = "hello world"


class StartMarkers:
    """Writes files that tell the benchmark when jobs started."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._has_started = False

    def mark_start(self) -> None:
        """Record when this process started its first job."""
        if self._has_started:
            return
        self._has_started = True
        marker = self._folder / f"first-{os.getpid()}"
        incomplete = marker.with_suffix(".part")
        incomplete.write_text(repr(time.time()))
        incomplete.rename(marker)

    def record_latency(self, sent_at: float) -> None:
        latency = time.time() - sent_at
        with (self._folder / "latency").open("a") as file:
            file.write(f"{latency}\n")


def first_start_time(folder: Path) -> float | None:
    """Return when the first job of any worker started, or None if none has."""
    times = [float(marker.read_text()) for marker in folder.glob("first-*") if not marker.suffix]
    return min(times, default=None)


def read_latencies(folder: Path) -> list[float]:
    """Return the seconds from enqueue to start of each job, in order of their starts."""
    file = folder / "latency"
    return [float(line) for line in file.read_text().split()] if file.exists() else []


async def trivial() -> dict[str, int]:
    return {"ok": 1}


def many_task(number: int) -> str:
    """Return the name of one of many tasks."""
    return f"bench.task-{number}"


def add_many_tasks(app: Holdfast, count: int) -> None:
    """Declare no-op tasks."""

    async def noop(number: int, text: str) -> int:  # noqa: ARG001 - a realistic payload
        return number

    for number in range(count):
        app.task(name=many_task(number), queue=QUEUE)(noop)


def make_app(
    url: str, markers: StartMarkers | None = None, logs: LogLevel | None = None
) -> tuple[Holdfast, Task[..., int]]:
    """Return the app that every process uses, and its no-op task."""
    app = Holdfast(url, logs=logs)
    app.limit("one", concurrency=10_000)
    app.limit("keys", concurrency=10, by=lambda number, text: number % LIMIT_KEYS)  # noqa: ARG005 - named like the task's

    def mark_start() -> None:
        if markers is not None:
            markers.mark_start()

    @app.task(name=NOOP, queue=QUEUE)
    async def noop(number: int, text: str, sent_at: float | None = None) -> int:  # noqa: ARG001 - a realistic payload
        mark_start()
        if markers is not None and sent_at is not None:
            markers.record_latency(sent_at)
        return number

    async def limited(number: int, text: str) -> int:  # noqa: ARG001 - a realistic payload
        mark_start()
        return number

    app.task(name=ONE_LIMIT, queue=QUEUE, limits=["one"])(limited)
    app.task(name=BY_KEY, queue=QUEUE, limits=["keys"])(limited)

    @app.task(name=STEPS, queue=QUEUE)
    async def steps(ctx: Context, number: int, text: str) -> int:  # noqa: ARG001 - a realistic payload
        mark_start()
        for step in range(STEPS_PER_RUN):
            await ctx.step(trivial, name=f"step-{step}")
        return number

    _add_costly_tasks(app, mark_start)
    _add_logging_task(app, mark_start)

    @app.task(name=TOTAL, queue=QUEUE)
    async def total(numbers: list[int]) -> int:
        mark_start()
        return sum(numbers) % 1000

    return app, noop


def _add_costly_tasks(app: Holdfast, mark_start: Callable[[], None]) -> None:
    """Declare tasks whose call costs the same for one run and for a batch."""

    @app.task(name=SINGLE, queue=QUEUE)
    async def single(number: int) -> int:
        mark_start()
        time.sleep(CALL_COST_S)  # noqa: ASYNC251 - occupies the process, like work on the CPU
        return number

    @app.task(name=BATCHED, queue=QUEUE, batch=Batch(max_size=BATCHED_RUNS, max_wait=1))
    async def batched(number: list[int]) -> list[int]:
        mark_start()
        time.sleep(CALL_COST_S)  # noqa: ASYNC251
        return number


def _add_logging_task(app: Holdfast, mark_start: Callable[[], None]) -> None:
    """Declare a job that logs."""

    @app.task(name=LOGGING, queue=QUEUE)
    async def write_lines(number: int, text: str) -> int:
        mark_start()
        for line in range(LINES_PER_RUN):
            logger.info("item %d of %d: %s", line, number, text)
        return number
