"""Workers of a graph killed with -9: all nodes finish, none twice, and little work is repeated."""

from __future__ import annotations

import random

import pytest

from holdfast import Graph
from tests.support.graph_harness import check_graphs
from tests.support.history_queries import fetch, records, taken_over
from tests.support.wait_until import wait_until

WORKERS = 4
CONCURRENCY = 10
LAYER = 100
EDGES = 5


def layered(app, nodes, seconds):
    """Return a graph with layers of a hundred nodes, each with five dependencies in the previous layer."""
    count = app.remote("count")
    chance = random.Random(nodes)
    graph = Graph("layered")
    before = []
    for start in range(0, nodes, LAYER):
        needed = min(EDGES, len(before))
        before = [
            graph.add(count.request(n, seconds), name=f"n{n}", after=chance.sample(before, needed))
            for n in range(start, min(start + LAYER, nodes))
        ]
    return graph


def run_with_kills(app, url, start_worker, ledger, *, nodes, kills, seconds, timeout):
    """Run a graph; replace a killed worker each time a share of the nodes has started."""
    run = app.submit(layered(app, nodes, seconds))
    workers = [start_worker(url, wait=False, concurrency=CONCURRENCY) for _ in range(WORKERS)]
    chance = random.Random(nodes)
    for kill in range(kills):
        begun = (kill + 1) * nodes // (kills + 2)
        wait_until(lambda begun=begun: len(ledger.lines()) >= begun, timeout)
        busy = [worker for worker in workers if f" {worker.pid}" in "\n".join(ledger.lines()[-50:])]
        victim = chance.choice(busy)
        assert victim.alive
        victim.kill()
        workers.remove(victim)
        workers.append(start_worker(url, wait=False, concurrency=CONCURRENCY))
    wait_until(lambda: run.info().finished_at, timeout)
    return run


def check(app, run, ledger, *, nodes, kills):
    """Return the number of repeated executions."""
    ran = [words[0] for words in ledger.words()]
    extra = len(ran) - nodes
    assert run.info().state == "done"
    assert set(ran) == {str(n) for n in range(nodes)}, "lost"
    assert check_graphs(lambda text: fetch(app, text)) == {"done": nodes}
    assert records(app)["done"] == nodes + 1, "an end was recorded twice"
    most = kills * 2 * CONCURRENCY  # the running nodes, and as many ends that were not committed
    assert 1 <= extra <= most, "either no kill hit a running node, or finished work was repeated"
    assert extra <= taken_over(app) <= most
    return extra


def test_a_graph_survives_workers_killed_at_random(app, database_url, start_worker, ledger):
    run = run_with_kills(app, database_url, start_worker, ledger, nodes=300, kills=3, seconds=0.05, timeout=120)
    check(app, run, ledger, nodes=300, kills=3)


@pytest.mark.slow
def test_a_graph_of_two_thousand_nodes_survives_ten_kills(app, database_url, start_worker, ledger, capsys):
    run = run_with_kills(app, database_url, start_worker, ledger, nodes=2_000, kills=10, seconds=0.02, timeout=600)
    extra = check(app, run, ledger, nodes=2_000, kills=10)
    with capsys.disabled():
        crashed = taken_over(app)
        print(f"\n2,000 nodes, 10 kills, {WORKERS} workers: {extra} executions repeated, {crashed} taken over, 0 lost")  # noqa: T201
