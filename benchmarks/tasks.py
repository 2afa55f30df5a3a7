"""The tasks that are measured, and the marks that they leave in a folder for the process that watches the clock."""

from __future__ import annotations

import os
import time
from pathlib import Path

from holdfast.app import Holdfast
from holdfast.task.context import Context
from holdfast.task.task import Task

NOOP = "bench.noop"
STEPS = "bench.steps"
ONE_LIMIT = "bench.one_limit"
BY_KEY = "bench.by_key"
TASKS = (NOOP, STEPS, ONE_LIMIT, BY_KEY)
STEPS_PER_RUN = 10
TOTAL = "bench.total"
KEYS = 1000
QUEUE = "default"
TEXT = "hello world"


class Marks:
    """Files that tell when jobs started."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started = False

    def started(self) -> None:
        """Note the time at which this process started its first job."""
        if self._started:
            return
        self._started = True
        mark = self._folder / f"first-{os.getpid()}"
        unfinished = mark.with_suffix(".part")
        unfinished.write_text(repr(time.time()))
        unfinished.rename(mark)

    def arrived(self, sent_at: float) -> None:
        """Note how long a job was on its way."""
        taken = time.time() - sent_at
        with (self._folder / "latency").open("a") as log:
            log.write(f"{taken}\n")


def first_start(folder: Path) -> float | None:
    """When the first job of any worker started; None if none did yet."""
    times = [float(mark.read_text()) for mark in folder.glob("first-*") if not mark.suffix]
    return min(times, default=None)


def latencies(folder: Path) -> list[float]:
    """Seconds from enqueue to start, in the order of starting."""
    log = folder / "latency"
    return [float(line) for line in log.read_text().split()] if log.exists() else []


async def trivial() -> dict[str, int]:
    return {"ok": 1}


def make_app(url: str, marks: Marks | None = None) -> tuple[Holdfast, Task[..., int]]:
    """The app of every process of a measurement, and its no-op task; the others are known by their names."""
    app = Holdfast(url)
    app.limit("one", concurrency=10_000)
    app.limit("keys", concurrency=10, by=lambda number, text: number % KEYS)  # noqa: ARG005 - all arguments are given

    def begin() -> None:
        if marks is not None:
            marks.started()

    @app.task(name=NOOP, queue=QUEUE)
    async def noop(number: int, text: str, sent_at: float | None = None) -> int:  # noqa: ARG001 - a payload like any
        begin()
        if marks is not None and sent_at is not None:
            marks.arrived(sent_at)
        return number

    async def limited(number: int, text: str) -> int:  # noqa: ARG001 - a payload like any
        begin()
        return number

    app.task(name=ONE_LIMIT, queue=QUEUE, limits=["one"])(limited)
    app.task(name=BY_KEY, queue=QUEUE, limits=["keys"])(limited)

    @app.task(name=STEPS, queue=QUEUE)
    async def steps(ctx: Context, number: int, text: str) -> int:  # noqa: ARG001 - a payload like any
        begin()
        for at in range(STEPS_PER_RUN):
            await ctx.step(trivial, name=f"step-{at}")
        return number

    @app.task(name=TOTAL, queue=QUEUE)
    async def total(numbers: list[int]) -> int:
        begin()
        return sum(numbers) % 1000

    return app, noop
