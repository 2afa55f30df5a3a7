"""Throughput next to a million other runs, compared with an empty table."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from benchmarks.benchmark import Benchmark, Case, MeasurementFailed, MetricKey, Metrics, check_count, compare_with, log
from benchmarks.databases import Backend, BenchmarkDatabase
from benchmarks.processes import WorkerConfig, running_workers, scratch_folder
from benchmarks.suite.jobs import CONCURRENCY
from benchmarks.tasks import NOOP, PAYLOAD_TEXT, QUEUE, STEPS
from benchmarks.throughput import POLL_INTERVAL_S, TIMEOUT_S, measure_runs_per_second
from holdfast.model.codec import encode
from holdfast.model.ids import new_id
from holdfast.store import NewRun
from holdfast.store.module import json_rows

DAY_US = 86_400_000_000
RETENTION_US = 30 * DAY_US
FAR_FUTURE_US = 3650 * DAY_US
SIZE = 1_000_000
QUICK_SIZE = 5_000
CHUNK_ROWS = 5_000
ARGS = encode({"number": 0, "text": PAYLOAD_TEXT}, "the arguments")

INSERT_FINISHED_RUNS = """
insert into {schema}runs (id, lane, priority, state, fence, attempt, max_crashes, args, result, keep, records,
    created_at, claimed_at, started_at, finished_at, expires_at)
select cast(each.id as {uuid}), cast(:lane as bigint), 0, 'done', 1, 1, 3, :args, '0', cast(:keep as bigint), 1,
    {now}, {now}, {now}, {now}, {now} + cast(:keep as bigint)
from {each(:rows, id uuid)}
"""
INSERT_FINISHED_HISTORY = """
insert into {schema}history (run, n, at, kind, attempt, fence, session, since)
select cast(each.id as {uuid}), 1, {now}, 'done', 1, 1, 'bench', {now} from {each(:rows, id uuid)}
"""
INSERT_SLEEPING_RUNS = """
insert into {schema}runs (id, lane, priority, state, fence, attempt, max_crashes, args, keep, created_at, claimed_at,
    started_at)
select cast(each.id as {uuid}), cast(:lane as bigint), 0, 'waiting', 1, 1, 3, :args, cast(:keep as bigint), {now},
    {now}, {now}
from {each(:rows, id uuid)}
"""
INSERT_SLEEPING_WAITS = """
insert into {schema}waits (run, generation, key, kind, due_at, since)
select cast(each.id as {uuid}), 0, '$sleep', 'sleep', {now} + cast(:delay as bigint), {now} from {each(:rows, id uuid)}
"""
# In a table of ready runs, all finished ones were measured; the index on expires_at contains just those.
COUNT_FINISHED = "select count(*) from {schema}runs where expires_at is not null"
COUNT_RECORDED = """
select count(*) from {schema}history where kind = 'done'
and run in (select id from {schema}runs where expires_at is not null)
"""
DURATION = """
select max(finished_at) - min(started_at) from (
    select started_at, finished_at from {schema}runs where expires_at is not null order by finished_at
    limit cast(:count as bigint)
) first
"""
DELETE_HISTORY = """
delete from {schema}history where run in (select id from {schema}runs where expires_at is not null)
"""
DELETE_RUNS = "delete from {schema}runs where expires_at is not null"


def add_finished(db: BenchmarkDatabase, size: int) -> None:
    """Add finished runs of the measured task, with their history."""
    for number in _chunks(size):
        rows = json_rows({"id": str(new_id())} for _ in range(number))
        db.query(INSERT_FINISHED_RUNS, lane=db.lanes[NOOP], args=ARGS, keep=RETENTION_US, rows=rows)
        db.query(INSERT_FINISHED_HISTORY, rows=rows)


def add_sleeping(db: BenchmarkDatabase, size: int) -> None:
    """Add durable functions in the middle of a long sleep."""
    for number in _chunks(size):
        rows = json_rows({"id": str(new_id())} for _ in range(number))
        db.query(INSERT_SLEEPING_RUNS, lane=db.lanes[STEPS], args=ARGS, keep=RETENTION_US, rows=rows)
        db.query(INSERT_SLEEPING_WAITS, delay=FAR_FUTURE_US, rows=rows)


def add_new(db: BenchmarkDatabase, size: int, queue: str = QUEUE, task: str = NOOP, delay: int | None = None) -> None:
    """Add runs that no worker claims."""
    for number in _chunks(size):
        db.store.enqueuer.enqueue(
            [NewRun(str(new_id()), queue, task, ARGS, RETENTION_US, delay=delay) for _ in range(number)]
        )  # fmt: skip


def _chunks(size: int) -> Iterator[int]:
    for first in range(0, size, CHUNK_ROWS):
        yield min(CHUNK_ROWS, size - first)


EMPTY, READY = "empty", "ready"
KINDS: dict[str, Callable[[BenchmarkDatabase, int], None]] = {
    READY: add_new,
    "finished": add_finished,
    "sleeping": add_sleeping,
    "scheduled": partial(add_new, delay=FAR_FUTURE_US),
    "unknown task": partial(add_new, task="bench.unknown"),
    "other queue": partial(add_new, queue="elsewhere"),
}


class Growth(Benchmark):
    """Creates one database per kind of run and replaces only the measured jobs between repetitions."""

    name = "growth"
    purpose = "jobs per second next to a million other runs, compared with an empty table"
    unit = "jobs/s"
    count = 20_000
    quick_count = 1_000

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--size", type=int, help=f"number of other runs (default: {SIZE:,})")
        parser.add_argument(
            "--kinds",
            type=_parse_kinds,
            default=list(KINDS),
            help=f"kinds of other runs (default: all of {', '.join(KINDS)})",
        )

    def settings(self, options: argparse.Namespace) -> dict[str, Any]:
        return {"count": options.count, "size": _size(options), "workers": 1, "concurrency": CONCURRENCY}

    def cases(self, backend: Backend, options: argparse.Namespace, stack: ExitStack) -> Sequence[Case]:
        cases = []
        for kind in (EMPTY, *options.kinds):
            db = backend.create_database()
            stack.callback(db.close)
            if kind in KINDS:
                log(f"{backend.name}: creating {_size(options):,} runs: {kind}")
                KINDS[kind](db, _size(options))
            db.set_baseline()
            count, measure = options.count, _measure
            if kind == READY:
                count, measure = min(count, _size(options)), _measure_backlog
            cases.append(Case(backend.name, kind, partial(measure, db, count)))
        return cases

    def pairs_to_compare(self, keys: Sequence[MetricKey]) -> list[tuple[MetricKey, MetricKey]]:
        return compare_with(keys, EMPTY)


def _parse_kinds(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if unknown := [name for name in names if name not in KINDS]:
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; choose from: {', '.join(KINDS)}")
    return names


def _size(options: argparse.Namespace) -> int:
    if options.size is not None:
        return int(options.size)
    return QUICK_SIZE if options.quick else SIZE


WORKER_CONFIG = WorkerConfig(1, CONCURRENCY, [QUEUE])


def _measure(db: BenchmarkDatabase, count: int) -> Metrics:
    """Measure jobs next to runs that should not affect them."""
    return {"": measure_runs_per_second(db, count, WORKER_CONFIG)}


def _measure_backlog(db: BenchmarkDatabase, count: int) -> Metrics:
    """Measure the first jobs of a backlog, after refilling it."""
    if finished := db.number(COUNT_FINISHED):
        db.query(DELETE_HISTORY)
        db.query(DELETE_RUNS)
        db.enqueue(finished)
    db.settle()
    with scratch_folder() as scratch, running_workers(WORKER_CONFIG.commands(db.url, scratch), scratch) as workers:
        deadline = time.monotonic() + TIMEOUT_S
        while (finished := db.number(COUNT_FINISHED)) < count:
            workers.check_alive()
            if time.monotonic() > deadline:
                output = workers.last_output()
                raise MeasurementFailed(f"{finished:,} of {count:,} done after {TIMEOUT_S:.0f} s: {output}")
            time.sleep(POLL_INTERVAL_S)
    check_count("completions in the history", db.number(COUNT_RECORDED), db.number(COUNT_FINISHED))
    return {"": count * 1e6 / float(db.query(DURATION, count=count)[0][0])}
