"""Whether a large table slows the worker down: jobs a second beside a million other runs, against an empty table."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from benchmarks.children import WorkerSetting, working
from benchmarks.hosts import Host
from benchmarks.jobs import CONCURRENCY
from benchmarks.measure import Case, Failed, Figures, Measure, Place, against, check, note
from benchmarks.tables import Tables
from benchmarks.tasks import NOOP, QUEUE, STEPS, TEXT
from benchmarks.throughput import LONGEST_SECONDS, LOOK_SECONDS, runs_per_second, scratch_folder
from holdfast.model.codec import encode
from holdfast.model.ids import new_id
from holdfast.store import NewRun
from holdfast.store.module import json_rows

DAY = 86_400_000_000
KEEP = 30 * DAY
FAR = 3650 * DAY
SIZE = 1_000_000
QUICK_SIZE = 5_000
CHUNK = 5_000
ARGS = encode({"number": 0, "text": TEXT}, "the arguments")

FINISHED_RUNS = """
insert into {schema}runs (id, lane, priority, state, fence, attempt, max_crashes, args, result, keep, records,
    created_at, claimed_at, started_at, finished_at, expires_at)
select cast(each.id as {uuid}), cast(:lane as bigint), 0, 'done', 1, 1, 3, :args, '0', cast(:keep as bigint), 1,
    {now}, {now}, {now}, {now}, {now} + cast(:keep as bigint)
from {each(:rows, id uuid)}
"""
FINISHED_HISTORY = """
insert into {schema}history (run, n, at, kind, attempt, fence, session, since)
select cast(each.id as {uuid}), 1, {now}, 'done', 1, 1, 'bench', {now} from {each(:rows, id uuid)}
"""
SLEEPING_RUNS = """
insert into {schema}runs (id, lane, priority, state, fence, attempt, max_crashes, args, keep, created_at, claimed_at,
    started_at)
select cast(each.id as {uuid}), cast(:lane as bigint), 0, 'waiting', 1, 1, 3, :args, cast(:keep as bigint), {now},
    {now}, {now}
from {each(:rows, id uuid)}
"""
SLEEPING_WAITS = """
insert into {schema}waits (run, generation, key, kind, due_at, since)
select cast(each.id as {uuid}), 0, '$sleep', 'sleep', {now} + cast(:delay as bigint), {now} from {each(:rows, id uuid)}
"""
# In a table of ready ones every finished run is one that was measured; the index of what will expire has just those.
FINISHED = "select count(*) from {schema}runs where expires_at is not null"
RECORDED = """
select count(*) from {schema}history where kind = 'done'
and run in (select id from {schema}runs where expires_at is not null)
"""
TOOK = """
select max(finished_at) - min(started_at) from (
    select started_at, finished_at from {schema}runs where expires_at is not null order by finished_at
    limit cast(:count as bigint)
) first
"""
FORGET_HISTORY = """
delete from {schema}history where run in (select id from {schema}runs where expires_at is not null)
"""
FORGET_RUNS = "delete from {schema}runs where expires_at is not null"


def add_finished(tables: Tables, size: int) -> None:
    """Runs of the measured task that are done, each with its history."""
    for number in _chunks(size):
        rows = json_rows({"id": str(new_id())} for _ in range(number))
        tables.rows(FINISHED_RUNS, lane=tables.lanes[NOOP], args=ARGS, keep=KEEP, rows=rows)
        tables.rows(FINISHED_HISTORY, rows=rows)


def add_sleeping(tables: Tables, size: int) -> None:
    """Durable functions in the middle of a long sleep."""
    for number in _chunks(size):
        rows = json_rows({"id": str(new_id())} for _ in range(number))
        tables.rows(SLEEPING_RUNS, lane=tables.lanes[STEPS], args=ARGS, keep=KEEP, rows=rows)
        tables.rows(SLEEPING_WAITS, delay=FAR, rows=rows)


def add_new(tables: Tables, size: int, queue: str = QUEUE, task: str = NOOP, delay: int | None = None) -> None:
    """Runs that were enqueued and that nobody works on."""
    for number in _chunks(size):
        tables.store.enqueuer.enqueue(
            [NewRun(str(new_id()), queue, task, ARGS, KEEP, delay=delay) for _ in range(number)]
        )  # fmt: skip


def _chunks(size: int) -> Iterator[int]:
    for first in range(0, size, CHUNK):
        yield min(CHUNK, size - first)


EMPTY, READY = "empty", "ready"
KINDS: dict[str, Callable[[Tables, int], None]] = {
    READY: add_new,
    "finished": add_finished,
    "sleeping": add_sleeping,
    "scheduled": partial(add_new, delay=FAR),
    "unknown task": partial(add_new, task="bench.unknown"),
    "other queue": partial(add_new, queue="elsewhere"),
}


class Growth(Measure):
    """One database per kind of run, made once; only the jobs are renewed between repetitions."""

    name = "growth"
    purpose = "jobs a second beside a million other runs, against an empty table"
    unit = "jobs/s"
    count = 20_000
    quick_count = 1_000

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--size", type=int, help=f"other runs of each kind (default: {SIZE:,})")
        parser.add_argument(
            "--kinds", type=_kinds, default=list(KINDS), help=f"which runs (default: all of {', '.join(KINDS)})"
        )

    def settings(self, options: argparse.Namespace) -> dict[str, Any]:
        return {"count": options.count, "size": _size(options), "workers": 1, "concurrency": CONCURRENCY}

    def cases(self, host: Host, options: argparse.Namespace, stack: ExitStack) -> Sequence[Case]:
        cases = []
        for kind in (EMPTY, *options.kinds):
            tables = host.fresh()
            stack.callback(tables.close)
            if kind in KINDS:
                note(f"{host.name}: making {_size(options):,} runs: {kind}")
                KINDS[kind](tables, _size(options))
            tables.mark()
            count, take = options.count, _take
            if kind == READY:
                count, take = min(count, _size(options)), _take_from_backlog
            cases.append(Case(host.name, kind, partial(take, tables, count)))
        return cases

    def compared(self, places: Sequence[Place]) -> list[tuple[Place, Place]]:
        return against(places, EMPTY)


def _kinds(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if unknown := [name for name in names if name not in KINDS]:
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; there are: {', '.join(KINDS)}")
    return names


def _size(options: argparse.Namespace) -> int:
    if options.size is not None:
        return int(options.size)
    return QUICK_SIZE if options.quick else SIZE


SETTING = WorkerSetting(1, CONCURRENCY, [QUEUE])


def _take(tables: Tables, count: int) -> Figures:
    """Jobs beside runs that the worker must not care about."""
    return {"": runs_per_second(tables, count, SETTING)}


def _take_from_backlog(tables: Tables, count: int) -> Figures:
    """The first jobs of a backlog, which stays as large: what was finished before is replaced."""
    if finished := tables.number(FINISHED):
        tables.rows(FORGET_HISTORY)
        tables.rows(FORGET_RUNS)
        tables.fill(finished)
    tables.settle()
    with scratch_folder() as scratch, working(SETTING.commands(tables.url, scratch), scratch) as workers:
        deadline = time.monotonic() + LONGEST_SECONDS
        while (finished := tables.number(FINISHED)) < count:
            workers.check_alive()
            if time.monotonic() > deadline:
                raise Failed(f"{finished:,} of {count:,} done after {LONGEST_SECONDS:.0f} s: {workers.said()}")
            time.sleep(LOOK_SECONDS)
    check("ends in the history", tables.number(RECORDED), tables.number(FINISHED))
    return {"": count * 1e6 / float(tables.rows(TOOK, count=count)[0][0])}
