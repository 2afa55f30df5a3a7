"""Throughput of graph nodes: built, submitted and run, in graphs of several shapes and two sizes.

The ratio of large graphs to small ones shows whether the cost of a node grows with its graph.
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

from benchmarks.benchmark import Benchmark, Case, MeasurementFailed, MetricKey, Metrics, check_count
from benchmarks.databases import Backend, BenchmarkDatabase
from benchmarks.processes import WorkerConfig, Workers, running_workers, scratch_folder
from benchmarks.tasks import NOOP, PAYLOAD_TEXT, TOTAL
from holdfast.task.conditions import Node
from holdfast.task.graph import Graph
from holdfast.task.task import Task

CONCURRENCY = 400
SIZE_RATIO = 10
WARM_UP_NODES = 50
NODES_PER_LAYER = 100
EDGES_PER_NODE = 5
TIMEOUT_S = 300.0
POLL_INTERVAL_S = 0.02

FINISHED = "select state, finished_at from {schema}runs where id = cast(:id as {uuid}) and finished_at is not null"
DURATION = """
select g.finished_at - min(n.started_at), sum(case when n.state = 'done' then 1 else 0 end)
from {schema}runs g join {schema}runs n on n.parent = g.id
where g.id = cast(:id as {uuid}) group by g.finished_at
"""
COUNT_RECORDED = "select count(*) from {schema}history h join {schema}runs r on r.id = h.run where r.kind is null"


@dataclass(slots=True)
class Tasks:
    """The tasks of the nodes: a no-op, and a sum."""

    noop: Task[..., int]
    total: Task[..., int]


@dataclass(slots=True)
class Durations:
    """Total seconds of all graphs."""

    build: float = 0.0
    submit: float = 0.0
    run: float = 0.0
    nodes: int = field(default=0)

    def metrics(self) -> Metrics:
        return {"build": self.nodes / self.build, "submit": self.nodes / self.submit, "run": self.nodes / self.run}


def fan(tasks: Tasks, size: int) -> Graph:
    """Build one node, many that depend on it, and one that depends on all of those."""
    graph = Graph("bench.fan")
    first = graph.add(tasks.noop, 0, PAYLOAD_TEXT)
    many = [graph.add(tasks.noop, number, PAYLOAD_TEXT, after=[first]) for number in range(1, size - 1)]
    graph.add(tasks.noop, size, PAYLOAD_TEXT, after=many)
    return graph


def fan_with_outputs(tasks: Tasks, size: int) -> Graph:
    """Build a fan whose nodes receive the outputs of their dependencies."""
    graph = Graph("bench.fan-with-outputs")
    first = graph.add(tasks.noop, 1, PAYLOAD_TEXT)
    many = [graph.add(tasks.noop, first.output, PAYLOAD_TEXT) for _ in range(size - 2)]
    graph.add(tasks.total, [node.output for node in many])
    return graph


def chain(tasks: Tasks, size: int) -> Graph:
    """Build a chain in which each node receives the output of the previous one."""
    graph = Graph("bench.chain")
    last = graph.add(tasks.noop, 0, PAYLOAD_TEXT)
    for _ in range(size - 1):
        last = graph.add(tasks.noop, last.output, PAYLOAD_TEXT)
    return graph


def layered(tasks: Tasks, size: int) -> Graph:
    """Build layers of nodes that each receive outputs of several nodes of the previous layer."""
    graph = Graph("bench.layered")
    rng = random.Random(size)
    previous: list[Node[int]] = []
    for start in range(0, size, NODES_PER_LAYER):
        layer = []
        for _ in range(start, min(start + NODES_PER_LAYER, size)):
            chosen = rng.sample(previous, min(EDGES_PER_NODE, len(previous)))
            layer.append(graph.add(tasks.total, [node.output for node in chosen]))
        previous = layer
    return graph


SHAPES: dict[str, Callable[[Tasks, int], Graph]] = {
    "fan": fan,
    "fan with outputs": fan_with_outputs,
    "chain": chain,
    "layered": layered,
}


class Graphs(Benchmark):
    """Measures each shape on a new database: one large graph, and small ones with as many nodes in total."""

    name = "graphs"
    purpose = "graph nodes built, submitted and run per second, in large and small graphs"
    unit = "nodes/s"
    count = 10_000
    quick_count = 500

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--concurrency", type=int, default=CONCURRENCY, help=f"concurrency of the worker (default: {CONCURRENCY})"
        )

    def settings(self, options: argparse.Namespace) -> dict[str, Any]:
        return {"nodes": options.count, "workers": 1, "concurrency": options.concurrency}

    def cases(self, backend: Backend, options: argparse.Namespace, stack: ExitStack) -> Sequence[Case]:  # noqa: ARG002
        sizes = [max(options.count // SIZE_RATIO, 3), max(options.count, 3)]
        config = WorkerConfig(1, options.concurrency)
        return [
            Case(backend.name, subject(shape, size), partial(measure, backend, shape, size, sizes[-1] // size, config))
            for shape in SHAPES
            for size in sizes
        ]

    def pairs_to_compare(self, keys: Sequence[MetricKey]) -> list[tuple[MetricKey, MetricKey]]:
        subjects = dict.fromkeys(key.subject for key in keys)
        by_shape = [[each for each in subjects if each.startswith(f"{shape} of ")] for shape in SHAPES]
        smaller = {found[1]: found[0] for found in by_shape if len(found) == 2}
        pairs = [(key, key._replace(subject=smaller[key.subject])) for key in keys if key.subject in smaller]
        return [(large, small) for large, small in pairs if small in set(keys)]


def subject(shape: str, size: int) -> str:
    return f"{shape} of {size:,}"


def measure(backend: Backend, shape: str, size: int, times: int, config: WorkerConfig) -> Metrics:
    """Run graphs of one shape and size one after another, on a warm worker."""
    durations = Durations()
    with (
        closing(backend.create_database()) as db,
        scratch_folder() as scratch,
        running_workers(config.commands(db.url, scratch), scratch) as workers,
    ):
        _measure_graph(db, workers, shape, WARM_UP_NODES, Durations())
        for _ in range(times):
            _measure_graph(db, workers, shape, size, durations)
        check_count("completions in the history", db.number(COUNT_RECORDED), WARM_UP_NODES + durations.nodes)
    return durations.metrics()


def _measure_graph(db: BenchmarkDatabase, workers: Workers, shape: str, size: int, durations: Durations) -> None:
    registry = db.app.registry
    started = time.perf_counter()
    graph = SHAPES[shape](Tasks(registry.get(NOOP), registry.get(TOTAL)), size)
    built = time.perf_counter()
    run = db.app.submit(graph)
    submitted = time.perf_counter()
    _wait_until_finished(db, workers, run.id)
    micros, done = db.query(DURATION, id=str(run.id))[0]
    check_count("nodes done", done, size)
    durations.build += built - started
    durations.submit += submitted - built
    durations.run += micros / 1e6
    durations.nodes += size


def _wait_until_finished(db: BenchmarkDatabase, workers: Workers, id: UUID) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not (found := db.query(FINISHED, id=str(id))):
        workers.check_alive()
        if time.monotonic() > deadline:
            raise MeasurementFailed(f"the graph was not finished after {TIMEOUT_S:.0f} s: {workers.last_output()}")
        time.sleep(POLL_INTERVAL_S)
    if found[0][0] != "done":
        raise MeasurementFailed(f"the graph is {found[0][0]}")
