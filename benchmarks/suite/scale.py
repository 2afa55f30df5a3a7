"""Whether the cost of one item stays the same: each measure at a small and at a large size.

Sizes are the number of calls, queues, tasks, messages, waiters or other runs. The report divides the cost at the large
size by that at the small one.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.benchmark import Benchmark, Case, MeasurementFailed, MetricKey, Metrics, check_count, compare_with, log
from benchmarks.databases import Backend, BenchmarkDatabase, execute
from benchmarks.processes import WorkerConfig, child_command, run_process, running_workers, scratch_folder
from benchmarks.suite.growth import ARGS, COUNT_FINISHED, DURATION, RETENTION_US, add_finished
from benchmarks.suite.jobs import CONCURRENCY
from benchmarks.tasks import NOOP, QUEUE, STEPS, add_many_tasks, many_task
from benchmarks.throughput import TIMEOUT_S, measure_runs_per_second
from holdfast.app import Holdfast
from holdfast.control.stats import StatsControl
from holdfast.model.ids import new_id
from holdfast.store import NewRun
from holdfast.store.module import json_rows
from holdfast.store.waits import event_target
from holdfast.task.context import Context

SMALL, LARGE = "small", "large"
CHUNK_ROWS = 5_000
POLL_INTERVAL_S = 0.25
"""Counting runs takes time from the worker, so it is rare; the duration comes from the database."""
SENT = 300
"""Messages that are sent to a run that has many."""
MIN_DECLARED = 2_000
"""So many tasks are declared at least, in several apps if they have few."""
PAGES = 5
WARM_UP = 50
EVENT = "bench.go"

INSERT_WAITERS = """
insert into {schema}runs (id, lane, priority, state, fence, attempt, max_crashes, args, keep, created_at, claimed_at,
    started_at)
select cast(each.id as {uuid}), cast(:lane as bigint), 0, 'waiting', 1, 1, 3, :args, cast(:keep as bigint), {now},
    {now}, {now}
from {each(:rows, id uuid)}
"""
INSERT_WAITS = """
insert into {schema}waits (run, generation, key, kind, target, since)
select cast(each.id as {uuid}), 0, '$event', 'event', :target, {now} from {each(:rows, id uuid)}
"""
COUNT_READY = "select count(*) from {schema}runs where state = 'ready'"
INSERT_MESSAGES = """
insert into {schema}messages (run, n, topic, payload, sent_at)
select cast(:run as {uuid}), each.n, 'go', '1', {now} from {each(:rows, n int)}
"""

Measure = Callable[[], float]
"""Measures once and returns the seconds that one item costs."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What is measured at two sizes."""

    name: str
    sizes: tuple[int, int]
    quick_sizes: tuple[int, int]
    prepare: Callable[[Backend, int, argparse.Namespace, ExitStack], Measure]

    def title(self, sizes: tuple[int, int]) -> str:
        return f"{self.name}, {sizes[0]:,} to {sizes[1]:,}"


class Scale(Benchmark):
    """Measures everything at its small and its large size, back to back."""

    name = "scale"
    purpose = "how the cost of one item grows with the number of calls, queues, tasks, messages, waiters and runs"
    unit = "µs"
    count = 20_000
    quick_count = 1_000

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        names = ", ".join(each.name for each in MEASURED)
        parser.add_argument(
            "--only", type=_parse_names, default=list(MEASURED), help=f"what to measure (default: all of {names})"
        )
        parser.add_argument("--shrink", type=int, default=1, help="divide all sizes by this number (default: 1)")
        parser.add_argument("--grow", type=int, default=1, help="multiply the large sizes by this number (default: 1)")

    def settings(self, options: argparse.Namespace) -> dict[str, Any]:
        return {"jobs": options.count, "sent messages": SENT, "workers": 1, "concurrency": CONCURRENCY}

    def cases(self, backend: Backend, options: argparse.Namespace, stack: ExitStack) -> Sequence[Case]:
        cases = []
        for measured in options.only:
            small, large = measured.quick_sizes if options.quick else measured.sizes
            sizes = max(small // options.shrink, 1), max(large * options.grow // options.shrink, 1)
            title = measured.title(sizes)
            for subject, size in zip((SMALL, LARGE), sizes, strict=True):
                measure = measured.prepare(backend, size, options, stack)
                cases.append(Case(backend.name, subject, partial(_in_microseconds, title, measure), title))
        return cases

    def pairs_to_compare(self, keys: Sequence[MetricKey]) -> list[tuple[MetricKey, MetricKey]]:
        return compare_with(keys, SMALL)


def _in_microseconds(title: str, measure: Measure) -> Metrics:
    return {title: measure() * 1e6}


def _parse_names(text: str) -> list[Measured]:
    known = {each.name: each for each in MEASURED}
    names = [name.strip() for name in text.split(",")]
    if unknown := [name for name in names if name not in known]:
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; choose from: {', '.join(known)}")
    return [known[name] for name in names]


# Jobs in many queues, of many tasks, next to many finished runs


def _prepare_queues(backend: Backend, size: int, options: argparse.Namespace, _: ExitStack) -> Measure:
    lanes = [(f"queue-{number}", NOOP) for number in range(size)]
    return partial(_measure_jobs, backend, lanes, options.count, WorkerConfig(1, CONCURRENCY))


def _prepare_tasks(backend: Backend, size: int, options: argparse.Namespace, _: ExitStack) -> Measure:
    lanes = [(QUEUE, many_task(number)) for number in range(size)]
    return partial(_measure_jobs, backend, lanes, options.count, WorkerConfig(1, CONCURRENCY, tasks=size))


def _measure_jobs(backend: Backend, lanes: Sequence[tuple[str, str]], count: int, config: WorkerConfig) -> float:
    """Spread jobs over these pairs of queue and task and let a worker finish them."""
    with closing(backend.create_database()) as db:
        for first in range(0, count, CHUNK_ROWS):
            numbers = range(first, min(count, first + CHUNK_ROWS))
            db.store.enqueuer.enqueue([_new_run(*lanes[number % len(lanes)]) for number in numbers])
        db.settle()
        with scratch_folder() as scratch, running_workers(config.commands(db.url, scratch), scratch) as workers:
            deadline = time.monotonic() + TIMEOUT_S
            while (finished := db.number(COUNT_FINISHED)) < count:
                workers.check_alive()
                if time.monotonic() > deadline:
                    raise MeasurementFailed(f"{finished:,} of {count:,} done: {workers.last_output()}")
                time.sleep(POLL_INTERVAL_S)
        return float(db.query(DURATION, count=count)[0][0]) / 1e6 / count


def _new_run(queue: str, task: str) -> NewRun:
    return NewRun(str(new_id()), queue, task, ARGS, RETENTION_US)


def _prepare_finished(backend: Backend, size: int, options: argparse.Namespace, stack: ExitStack) -> Measure:
    db = backend.create_database()
    stack.callback(db.close)
    log(f"{backend.name}: creating {size:,} finished runs")
    add_finished(db, size)
    db.set_baseline()
    config = WorkerConfig(1, CONCURRENCY, [QUEUE])
    return lambda: 1 / measure_runs_per_second(db, options.count, config)


# Declarations


def _prepare_declarations(backend: Backend, size: int, options: argparse.Namespace, stack: ExitStack) -> Measure:  # noqa: ARG001
    return partial(_measure_declarations, backend, size)


def _measure_declarations(backend: Backend, size: int) -> float:
    with closing(backend.create_database()) as db:
        seconds = 0.0
        apps = max(MIN_DECLARED // size, 1)
        for _ in range(apps):
            app = Holdfast(db.url)
            started = time.perf_counter()
            add_many_tasks(app, size)
            seconds += time.perf_counter() - started
            app.close()
        return seconds / apps / size


# Durable functions, in a child process with an app and its worker


def _prepare_child(name: str, backend: Backend, size: int, options: argparse.Namespace, stack: ExitStack) -> Measure:  # noqa: ARG001
    def measure() -> float:
        with closing(backend.create_database()) as db, scratch_folder() as scratch:
            command = child_command("scale", db.url, scratch, "--count", str(size), "--measure", name)
            return float(run_process(command, scratch, "process", TIMEOUT_S)["seconds"])

    return measure


def measure_in_child(url: str, name: str, size: int) -> float:
    """Measure one of the durable functions in this process; return the seconds of one item."""
    app = Holdfast(url)

    @app.task(name="bench.job")
    async def job(number: int) -> int:
        return number + 1

    @app.task(name="bench.gathers")
    async def gathers(ctx: Context, count: int) -> None:
        await asyncio.gather(*[ctx.call(job, number) for number in range(count)])

    @app.task(name="bench.receives")
    async def receives(ctx: Context, count: int) -> None:
        for _ in range(count):
            await ctx.receive("go", type=int)

    with app:
        if name == GATHERED:
            with app.worker(concurrency=CONCURRENCY):
                gathers.enqueue(WARM_UP).result()
                started = time.perf_counter()
                gathers.enqueue(size).result()
                return (time.perf_counter() - started) / size
        run = receives.options(queue=QUEUE).enqueue(size)
        _insert_messages(app, str(run.id), size)
        if name == SENT_MESSAGES:
            times = []
            for number in range(SENT):
                started = time.perf_counter()
                run.send("go", number)
                times.append(time.perf_counter() - started)
            return statistics.median(times)
        with app.worker(concurrency=CONCURRENCY):
            started = time.perf_counter()
            run.result()
            return (time.perf_counter() - started) / size


def _insert_messages(app: Holdfast, run: str, count: int) -> None:
    """Send messages with few statements."""
    for first in range(1, count + 1, CHUNK_ROWS):
        rows = json_rows({"n": n} for n in range(first, min(count + 1, first + CHUNK_ROWS)))
        execute(app.store, INSERT_MESSAGES, run=run, rows=rows)


# Waiters of one event


def _prepare_waiters(backend: Backend, size: int, options: argparse.Namespace, stack: ExitStack) -> Measure:  # noqa: ARG001
    return partial(_measure_waiters, backend, size)


def _measure_waiters(backend: Backend, size: int) -> float:
    """Emit an event and wake all its waiters, as a client and the timers of a worker do."""
    with closing(backend.create_database()) as db:
        for rows in _id_rows(size):
            db.query(INSERT_WAITERS, lane=db.lanes[STEPS], args=ARGS, keep=RETENTION_US, rows=rows)
            db.query(INSERT_WAITS, target=event_target(None, EVENT), rows=rows)
        db.settle()
        started = time.perf_counter()
        db.app.emit(EVENT, 1)
        while db.store.timers.wake_event_waiters():
            pass
        seconds = time.perf_counter() - started
        check_count("woken runs", db.number(COUNT_READY), size)
        return seconds / size


def _id_rows(size: int) -> Iterable[str]:
    for first in range(0, size, CHUNK_ROWS):
        yield json_rows({"id": str(new_id())} for _ in range(min(CHUNK_ROWS, size - first)))


# Statistics


def _prepare_statistics(backend: Backend, size: int, options: argparse.Namespace, stack: ExitStack) -> Measure:  # noqa: ARG001
    db = backend.create_database()
    stack.callback(db.close)
    log(f"{backend.name}: creating {size:,} runs that no statistics include")
    add_finished(db, size)
    db.settle()
    return partial(_measure_statistics, db, size)


def _measure_statistics(db: BenchmarkDatabase, size: int) -> float:
    """Read the statistics of the last hour, as the overview does."""
    times = []
    for _ in range(PAGES):
        control = StatsControl(db.store)
        started = time.perf_counter()
        found = control.lately().whole
        times.append(time.perf_counter() - started)
        check_count("runs in the statistics", found.runs, size)
    return statistics.median(times) / size


GATHERED, SENT_MESSAGES, RECEIVED = "gather", "messages sent", "messages received"
MEASURED = (
    Measured(GATHERED, (500, 5_000), (50, 200), partial(_prepare_child, GATHERED)),
    Measured("queues", (1, 5_000), (1, 300), _prepare_queues),
    Measured("tasks", (10, 10_000), (10, 300), _prepare_tasks),
    Measured("declared tasks", (10, 10_000), (10, 300), _prepare_declarations),
    Measured(SENT_MESSAGES, (1_000, 50_000), (20, 200), partial(_prepare_child, SENT_MESSAGES)),
    Measured(RECEIVED, (1_000, 50_000), (20, 200), partial(_prepare_child, RECEIVED)),
    Measured("event waiters", (10_000, 300_000), (100, 2_000), _prepare_waiters),
    Measured("finished runs", (100_000, 3_000_000), (1_000, 5_000), _prepare_finished),
    Measured("uncounted runs", (100_000, 1_000_000), (1_000, 5_000), _prepare_statistics),
)
