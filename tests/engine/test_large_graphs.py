"""Graphs of many nodes run to their end, on both databases: a thousand nodes, with --slow ten thousand."""

from __future__ import annotations

import pytest

from benchmarks.suite.graphs import SHAPES, Tasks
from benchmarks.tasks import NOOP, TOTAL, make_app
from holdfast import Graph, Retry
from tests.support.graph_harness import check_graphs
from tests.support.history_queries import fetch, records

SIZES = [1_000, pytest.param(10_000, marks=pytest.mark.slow)]
SHORT_CHAIN = 200


@pytest.fixture
def app(database_url):
    app, _ = make_app(database_url)
    yield app
    app.close()


def drain(app):
    app.worker(concurrency=400).drain()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_large_graph_runs_to_its_end(app, shape, size):
    if shape == "chain" and size == SIZES[0]:
        size = SHORT_CHAIN  # each node is a round trip of its own
    tasks = Tasks(app.registry.get(NOOP), app.registry.get(TOTAL))
    run = app.submit(SHAPES[shape](tasks, size))
    drain(app)
    assert run.info().state == "done"
    assert check_graphs(lambda text: fetch(app, text)) == {"done": size}
    assert records(app) == {"done": size + 1}, "each node has run once"
    assert len(run.result(timeout=60)) == size
    if shape == "layered":
        [(edges,)] = fetch(app, "select count(*) from {}edges")
        assert edges == 5 * (size - 100)


@pytest.mark.parametrize("size", SIZES)
def test_a_failure_skips_a_large_graph_and_a_retry_runs_it(app, size):
    failing = [True]

    @app.task(name="first", retry=Retry(max_attempts=1))
    def first() -> int:
        if failing:
            raise ValueError("not yet")
        return 1

    noop, total = app.registry.get(NOOP), app.registry.get(TOTAL)
    graph = Graph("large")
    root = graph.add(first)
    many = [graph.add(noop, root.output, "text") for _ in range(size - 2)]
    graph.add(total, [node.output for node in many], name="last")
    run = app.submit(graph)
    drain(app)
    assert run.info().state == "failed"
    assert check_graphs(lambda text: fetch(app, text)) == {"failed": 1, "skipped": size - 1}
    failing.clear()
    run.retry()
    assert check_graphs(lambda text: fetch(app, text)) == {"ready": 1, "blocked": size - 1}
    drain(app)
    assert check_graphs(lambda text: fetch(app, text)) == {"done": size}
    assert run.result(timeout=60)["last"] == (size - 2) % 1000


@pytest.mark.parametrize("size", SIZES)
def test_a_cancel_ends_all_nodes_of_a_large_graph(app, size):
    tasks = Tasks(app.registry.get(NOOP), app.registry.get(TOTAL))
    run = app.submit(SHAPES["layered"](tasks, size))
    assert run.cancel() is True
    assert run.info().state == "cancelled"
    assert check_graphs(lambda text: fetch(app, text)) == {"cancelled": size}
