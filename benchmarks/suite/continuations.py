"""How fast work continues: one run alone in a warm worker, each operation compared with one durable step.

A child process has an app and its worker. It measures every operation in turn and prints milliseconds per operation.
The report divides them by the time of one step of the same process, because commits take a different time on every
machine and at every minute.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack, closing
from queue import SimpleQueue
from typing import Any

from benchmarks.benchmark import HOLDFAST, Benchmark, Case, MetricKey, Metrics
from benchmarks.databases import Backend
from benchmarks.processes import WorkerConfig, child_command, run_process, running_workers, scratch_folder
from benchmarks.tasks import NOOP, PAYLOAD_TEXT
from holdfast.app import Holdfast
from holdfast.task.context import Context
from holdfast.task.graph import Graph
from holdfast.task.machine import Done, State
from holdfast.task.task import Task

STEP = "step"
CHILD_CALL, SPAWN_JOIN, GATHER, MAP = "child call", "spawn and join", "gather of calls", "map"
MOVE, NODE = "machine move", "graph node"
RESULT, ASYNC_RESULT, OTHER_PROCESS_RESULT = "result", "result, async caller", "result from another process"
WAKE, MESSAGE, ASK, SLEEP = "emit to wake", "message", "ask", "sleep of 10 ms"
WARM_UP = 10
TIMEOUT_S = 600.0
SLEEP_S = 0.01
CONCURRENCY = 100
CHILDREN_FACTOR, GATHER_FACTOR = 5, 10
"""Operations that are made at once, for each one of `--count`, which are made one after the other."""


class Continuations(Benchmark):
    """Measures all operations in one child process per repetition."""

    name = "continuations"
    purpose = "milliseconds until work continues: children, moves, nodes, results, events, messages, asks"
    unit = "ms"
    count = 200
    quick_count = 10
    has_peers = True

    def settings(self, options: argparse.Namespace) -> dict[str, Any]:
        return {
            "count": options.count, "children": CHILDREN_FACTOR * options.count,
            "gathered": GATHER_FACTOR * options.count, "concurrency": CONCURRENCY,
        }  # fmt: skip

    def cases(self, backend: Backend, options: argparse.Namespace, stack: ExitStack) -> Sequence[Case]:  # noqa: ARG002
        def measure() -> Metrics:
            with closing(backend.create_database()) as db, scratch_folder() as scratch:
                command = child_command("continue", db.url, scratch, "--count", str(options.count))
                metrics = dict(run_process(command, scratch, "process", TIMEOUT_S))
            with closing(backend.create_database()) as db, scratch_folder() as scratch:
                workers = WorkerConfig(concurrency=CONCURRENCY).commands(db.url, scratch)
                with running_workers(workers, scratch):
                    command = child_command("results", db.url, scratch, "--count", str(options.count))
                    metrics |= run_process(command, scratch, "caller", TIMEOUT_S)
            return metrics

        return [Case(backend.name, HOLDFAST, measure)]

    def pairs_to_compare(self, keys: Sequence[MetricKey]) -> list[tuple[MetricKey, MetricKey]]:
        """Compare every operation of Holdfast with one step, and with the same operation of peers."""
        ours = [key for key in keys if key.subject == HOLDFAST]
        pairs = [(key, key._replace(metric=STEP)) for key in ours if key.metric not in (STEP, SLEEP)]
        pairs = [pair for pair in pairs if pair[1] in set(keys)]
        return [*pairs, *super().pairs_to_compare(keys)]


# What the child processes do


class Walk(State):
    """A machine that moves until `left` is zero."""

    left: int

    async def run(self, ctx: Context) -> Walk | Done[None]:  # noqa: ARG002 - states take a context
        return Walk(left=self.left - 1) if self.left else Done(None)


class Operations:
    """The tasks of the benchmark, and the measurement of each operation."""

    def __init__(self, url: str) -> None:
        self.app = app = Holdfast(url)
        self.received: SimpleQueue[int] = SimpleQueue()

        @app.task(name="bench.job")
        async def job(number: int) -> int:
            return number + 1

        self.job = job
        self.waits, self.receives = _add_receivers(app, self.received)
        self.serves = _add_server(app)
        machine = app.machine("bench.machine", Walk)
        self._run: dict[str, Callable[[int], Any]] = {
            **{name: task.enqueue for name, task in (_add_sequences(app, job) | _add_groups(app, job)).items()},
            MOVE: lambda count: machine.enqueue(Walk(left=count)),
            NODE: self._submit_chain,
        }
        self._measure: dict[str, Callable[[int], float]] = {
            RESULT: self._result, ASYNC_RESULT: self._async_result, WAKE: self._wake, MESSAGE: self._message,
            ASK: self._ask,
        }  # fmt: skip

    def measure(self, name: str, count: int) -> float:
        """Return the seconds that one operation takes.

        Operations of one run are timed from outside, because a replay would repeat what the function measures. The time
        of a run with a single operation is subtracted.
        """
        if name in self._measure:
            return self._measure[name](count)
        seconds = [self._time(name, number) for number in (1, 1 + count)]
        return (seconds[1] - seconds[0]) / count

    def _time(self, name: str, count: int) -> float:
        started = time.perf_counter()
        self._run[name](count).result()
        return time.perf_counter() - started

    def _submit_chain(self, count: int) -> Any:
        graph = Graph("bench.chain")
        last = graph.add(self.job, 0, name="node-0")
        for number in range(1, count):
            last = graph.add(self.job, number, name=f"node-{number}", after=[last])
        return self.app.submit(graph)

    def _result(self, count: int) -> float:
        times = []
        for number in range(count):
            started = time.perf_counter()
            self.job.enqueue(number).result()
            times.append(time.perf_counter() - started)
        return statistics.median(times)

    def _async_result(self, count: int) -> float:
        async def call(number: int) -> int:
            return await (await self.job.aenqueue(number)).aresult()

        return asyncio.run(_median_seconds(count, call))

    def _wake(self, count: int) -> float:
        prefix = f"event-{time.time_ns()}"
        run = self.waits.enqueue(count, prefix)
        median = self._time_receipts(count, lambda number: self.app.emit(f"{prefix}-{number}", number))
        run.result()
        return median

    def _message(self, count: int) -> float:
        run = self.receives.enqueue(count)
        median = self._time_receipts(count, lambda number: run.send("go", number))
        run.result()
        return median

    def _ask(self, count: int) -> float:
        """Return the median seconds from a call of `run.ask` until it returns the reply."""
        run = self.serves.enqueue()
        times = []
        for number in range(count):
            started = time.perf_counter()
            run.ask("add", number)
            times.append(time.perf_counter() - started)
        run.ask("close")
        run.result()
        return statistics.median(times)

    def _time_receipts(self, count: int, send: Callable[[int], Any]) -> float:
        """Return the median seconds from a call of `send` until the waiting function has received what was sent."""
        times = []
        for number in range(count):
            time.sleep(SLEEP_S)  # until the function waits
            started = time.perf_counter()
            send(number)
            while self.received.get() != number:  # a replay repeats earlier numbers
                pass
            times.append(time.perf_counter() - started)
        return statistics.median(times)


def _add_sequences(app: Holdfast, job: Task[[int], int]) -> dict[str, Task[[int], None]]:
    """Add the functions that perform `count` operations one after the other."""

    async def trivial(number: int) -> int:
        return number + 1

    @app.task(name="bench.steps")
    async def steps(ctx: Context, count: int) -> None:
        for number in range(count):
            await ctx.step(trivial, number)

    @app.task(name="bench.calls")
    async def calls(ctx: Context, count: int) -> None:
        for number in range(count):
            await ctx.call(job, number)

    @app.task(name="bench.sleeps")
    async def sleeps(ctx: Context, count: int) -> None:
        for _ in range(count):
            await ctx.sleep(SLEEP_S)

    return {STEP: steps, CHILD_CALL: calls, SLEEP: sleeps}


def _add_groups(app: Holdfast, job: Task[[int], int]) -> dict[str, Task[[int], None]]:
    """Add the functions that have `count` children at once."""

    @app.task(name="bench.spawns")
    async def spawns(ctx: Context, count: int) -> None:
        runs = [await ctx.spawn(job, number) for number in range(count)]
        for run in runs:
            await ctx.join(run)

    @app.task(name="bench.gathers")
    async def gathers(ctx: Context, count: int) -> None:
        await asyncio.gather(*[ctx.call(job, number) for number in range(count)])

    @app.task(name="bench.maps")
    async def maps(ctx: Context, count: int) -> None:
        await ctx.map(job, range(count))

    return {SPAWN_JOIN: spawns, GATHER: gathers, MAP: maps}


def _add_receivers(app: Holdfast, received: SimpleQueue[int]) -> tuple[Task[[int, str], None], Task[[int], None]]:
    """Add the functions that receive numbers, as events and as messages."""

    @app.task(name="bench.waits")
    async def waits(ctx: Context, count: int, prefix: str) -> None:
        for number in range(count):
            received.put(await ctx.wait_for(f"{prefix}-{number}", type=int))

    @app.task(name="bench.receives")
    async def receives(ctx: Context, count: int) -> None:
        for _ in range(count):
            received.put(await ctx.receive("go", type=int))

    return waits, receives


def _add_server(app: Holdfast) -> Task[[], int]:
    """Add the function that answers asks with the sum of their numbers."""

    @app.task(name="bench.serves")
    async def serves(ctx: Context) -> int:
        total = 0

        def add(number: int) -> int:
            nonlocal total
            total += number
            return total

        return await ctx.serve(add=add, close=lambda: ctx.stop(total))

    return serves


async def _median_seconds(count: int, operation: Callable[[int], Awaitable[Any]]) -> float:
    times = []
    for number in range(count):
        started = time.perf_counter()
        await operation(number)
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def measure_operations(url: str, count: int) -> Metrics:
    """Measure every operation in this process and return milliseconds."""
    operations = Operations(url)
    counts = {
        STEP: count, CHILD_CALL: count, MOVE: count, NODE: count, RESULT: count, ASYNC_RESULT: count, WAKE: count,
        MESSAGE: count, ASK: count, SLEEP: count, SPAWN_JOIN: CHILDREN_FACTOR * count, GATHER: GATHER_FACTOR * count,
        MAP: CHILDREN_FACTOR * count,
    }  # fmt: skip
    with operations.app, operations.app.worker(concurrency=CONCURRENCY):
        for name in counts:
            operations.measure(name, WARM_UP)
        return {name: operations.measure(name, number) * 1000 for name, number in counts.items()}


def measure_results(url: str, count: int) -> Metrics:
    """Measure enqueue to result with the worker in another process; return milliseconds."""
    app = Holdfast(url)
    with app:
        noop = app.remote(NOOP)
        times = []
        for number in range(WARM_UP + count):
            started = time.perf_counter()
            noop.enqueue(number, PAYLOAD_TEXT).result()
            times.append(time.perf_counter() - started)
            time.sleep(SLEEP_S)
    return {OTHER_PROCESS_RESULT: statistics.median(times[WARM_UP:]) * 1000}
