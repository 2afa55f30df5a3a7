"""Nodes of graphs a second: made, submitted and run, in graphs of several shapes, small and ten times as large.

What a node costs must not grow with its graph: the ratios of large to small say whether it does.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from uuid import UUID

from benchmarks.children import Workers, WorkerSetting, working
from benchmarks.hosts import Host
from benchmarks.measure import Case, Failed, Figures, Measure, Place, check
from benchmarks.tables import Tables
from benchmarks.tasks import NOOP, TEXT, TOTAL
from benchmarks.throughput import scratch_folder
from holdfast.task.conditions import Node
from holdfast.task.graph import Graph
from holdfast.task.task import Task

CONCURRENCY = 400
SMALLER = 10
WARM = 50
LAYER = 100
EDGES = 5
LONGEST_SECONDS = 300.0
LOOK_SECONDS = 0.02

ENDED = "select state, finished_at from {schema}runs where id = cast(:id as {uuid}) and finished_at is not null"
TOOK = """
select g.finished_at - min(n.started_at), sum(case when n.state = 'done' then 1 else 0 end)
from {schema}runs g join {schema}runs n on n.parent = g.id
where g.id = cast(:id as {uuid}) group by g.finished_at
"""
RECORDED = "select count(*) from {schema}history h join {schema}runs r on r.id = h.run where r.kind is null"


@dataclass(slots=True)
class Tasks:
    """What the nodes do: nothing, or add numbers up."""

    noop: Task[..., int]
    total: Task[..., int]


@dataclass(slots=True)
class Taken:
    """Seconds that graphs took."""

    build: float = 0.0
    submit: float = 0.0
    run: float = 0.0
    nodes: int = field(default=0)

    def figures(self) -> Figures:
        return {"build": self.nodes / self.build, "submit": self.nodes / self.submit, "run": self.nodes / self.run}


def fan(tasks: Tasks, size: int) -> Graph:
    """One node, many after it, one after all of those."""
    graph = Graph("bench.fan")
    first = graph.add(tasks.noop, 0, TEXT)
    many = [graph.add(tasks.noop, number, TEXT, after=[first]) for number in range(1, size - 1)]
    graph.add(tasks.noop, size, TEXT, after=many)
    return graph


def fan_with_outputs(tasks: Tasks, size: int) -> Graph:
    """The same; each is given the output of those before it."""
    graph = Graph("bench.fan-with-outputs")
    first = graph.add(tasks.noop, 1, TEXT)
    many = [graph.add(tasks.noop, first.output, TEXT) for _ in range(size - 2)]
    graph.add(tasks.total, [node.output for node in many])
    return graph


def chain(tasks: Tasks, size: int) -> Graph:
    """One after the other, each given the output of the one before it."""
    graph = Graph("bench.chain")
    last = graph.add(tasks.noop, 0, TEXT)
    for _ in range(size - 1):
        last = graph.add(tasks.noop, last.output, TEXT)
    return graph


def layered(tasks: Tasks, size: int) -> Graph:
    """Layers of a hundred nodes, each of which is given the outputs of five of the layer before."""
    graph = Graph("bench.layered")
    chance = random.Random(size)
    before: list[Node[int]] = []
    for start in range(0, size, LAYER):
        layer = []
        for _ in range(start, min(start + LAYER, size)):
            chosen = chance.sample(before, min(EDGES, len(before)))
            layer.append(graph.add(tasks.total, [node.output for node in chosen]))
        before = layer
    return graph


SHAPES: dict[str, Callable[[Tasks, int], Graph]] = {
    "fan": fan,
    "fan with outputs": fan_with_outputs,
    "chain": chain,
    "layered": layered,
}


class Graphs(Measure):
    """A new database for every repetition and shape. As many small graphs, one after the other, as make a large one."""

    name = "graphs"
    purpose = "nodes of graphs a second, made, submitted and run, in large graphs against small ones"
    unit = "nodes/s"
    count = 10_000
    quick_count = 500

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--concurrency", type=int, default=CONCURRENCY, help=f"of the worker (default: {CONCURRENCY})"
        )

    def settings(self, options: argparse.Namespace) -> dict[str, Any]:
        return {"nodes": options.count, "workers": 1, "concurrency": options.concurrency}

    def cases(self, host: Host, options: argparse.Namespace, stack: ExitStack) -> Sequence[Case]:  # noqa: ARG002
        sizes = [max(options.count // SMALLER, 3), max(options.count, 3)]
        setting = WorkerSetting(1, options.concurrency)
        return [
            Case(host.name, subject(shape, size), partial(take, host, shape, size, sizes[-1] // size, setting))
            for shape in SHAPES
            for size in sizes
        ]

    def compared(self, places: Sequence[Place]) -> list[tuple[Place, Place]]:
        subjects = dict.fromkeys(place.subject for place in places)
        by_shape = [[each for each in subjects if each.startswith(f"{shape} of ")] for shape in SHAPES]
        smaller = {found[1]: found[0] for found in by_shape if len(found) == 2}
        pairs = [
            (place, place._replace(subject=smaller[place.subject])) for place in places if place.subject in smaller
        ]
        return [(large, small) for large, small in pairs if small in set(places)]


def subject(shape: str, size: int) -> str:
    return f"{shape} of {size:,}"


def take(host: Host, shape: str, size: int, times: int, setting: WorkerSetting) -> Figures:
    """Graphs of one shape and size, one after the other, on a worker that is warm."""
    taken = Taken()
    with (
        closing(host.fresh()) as tables,
        scratch_folder() as scratch,
        working(setting.commands(tables.url, scratch), scratch) as workers,
    ):
        _one(tables, workers, shape, WARM, Taken())
        for _ in range(times):
            _one(tables, workers, shape, size, taken)
        check("ends in the history", tables.number(RECORDED), WARM + taken.nodes)
    return taken.figures()


def _one(tables: Tables, workers: Workers, shape: str, size: int, taken: Taken) -> None:
    registry = tables.app.registry
    started = time.perf_counter()
    graph = SHAPES[shape](Tasks(registry.get(NOOP), registry.get(TOTAL)), size)
    built = time.perf_counter()
    run = tables.app.submit(graph)
    submitted = time.perf_counter()
    _wait_for(tables, workers, run.id)
    micros, done = tables.rows(TOOK, id=str(run.id))[0]
    check("nodes done", done, size)
    taken.build += built - started
    taken.submit += submitted - built
    taken.run += micros / 1e6
    taken.nodes += size


def _wait_for(tables: Tables, workers: Workers, id: UUID) -> None:
    deadline = time.monotonic() + LONGEST_SECONDS
    while not (found := tables.rows(ENDED, id=str(id))):
        workers.check_alive()
        if time.monotonic() > deadline:
            raise Failed(f"the graph has not ended after {LONGEST_SECONDS:.0f} s: {workers.said()}")
        time.sleep(LOOK_SECONDS)
    if found[0][0] != "done":
        raise Failed(f"the graph is {found[0][0]}")
