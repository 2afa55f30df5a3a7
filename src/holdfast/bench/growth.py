"""Whether a large table slows the worker down: jobs a second beside a million runs that it must not care about."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from holdfast.bench.children import WorkerSetting
from holdfast.bench.hosts import Host
from holdfast.bench.jobs import CONCURRENCY
from holdfast.bench.measure import Case, Figures, Measure, note
from holdfast.bench.tables import Tables
from holdfast.bench.tasks import NOOP, QUEUE, TEXT
from holdfast.bench.throughput import runs_per_second
from holdfast.model.codec import encode
from holdfast.model.ids import new_id
from holdfast.store import NewRun
from holdfast.store.part import batch

DAY = 86_400_000_000
KEEP = 30 * DAY
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


def add_finished(tables: Tables, size: int) -> None:
    """Runs of the measured task that are done, each with its history."""
    for number in _chunks(size):
        rows = batch({"id": str(new_id())} for _ in range(number))
        tables.rows(FINISHED_RUNS, lane=tables.lane, args=ARGS, keep=KEEP, rows=rows)
        tables.rows(FINISHED_HISTORY, rows=rows)


def add_new(tables: Tables, size: int, queue: str = QUEUE, task: str = NOOP, delay: int | None = None) -> None:
    """Runs that were enqueued and that nobody works on."""
    for number in _chunks(size):
        tables.store.intake.add(
            [NewRun(str(new_id()), queue, task, ARGS, KEEP, delay=delay) for _ in range(number)]
        )  # fmt: skip


def _chunks(size: int) -> Iterator[int]:
    for first in range(0, size, CHUNK):
        yield min(CHUNK, size - first)


EMPTY = "empty"
KINDS: dict[str, Callable[[Tables, int], None]] = {
    "finished": add_finished,
    "scheduled": partial(add_new, delay=3650 * DAY),
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

    def settings(self, options: argparse.Namespace) -> dict[str, Any]:
        return {"count": options.count, "size": _size(options), "workers": 1, "concurrency": CONCURRENCY}

    def cases(self, host: Host, options: argparse.Namespace, stack: ExitStack) -> Sequence[Case]:
        setting = WorkerSetting(1, CONCURRENCY, [QUEUE])

        def take(tables: Tables) -> Figures:
            return {"": runs_per_second(tables, options.count, setting)}

        cases = []
        for kind in (EMPTY, *KINDS):
            tables = host.fresh()
            stack.callback(tables.close)
            if kind in KINDS:
                note(f"{host.name}: making {_size(options):,} runs: {kind}")
                KINDS[kind](tables, _size(options))
            tables.mark()
            cases.append(Case(host.name, kind, partial(take, tables)))
        return cases

    def compared(self, subjects: Sequence[str]) -> list[tuple[str, str]]:
        return [(subject, EMPTY) for subject in subjects if subject != EMPTY]


def _size(options: argparse.Namespace) -> int:
    if options.size is not None:
        return int(options.size)
    return QUICK_SIZE if options.quick else SIZE
