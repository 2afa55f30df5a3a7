"""Fork a finished graph: a new run of the same nodes, as a whole or only of some of them."""

from __future__ import annotations

import pytest

from holdfast import Graph
from holdfast.control import Control
from holdfast.errors import ConfigError, GraphError
from tests.support.durable import drain, kinds, state
from tests.support.graphs import node, states, submitted
from tests.support.history_queries import fetch


def etl(tasks):
    """Nodes of all kinds: done, failed, skipped, a gate, nested graphs with and without dependencies."""
    first, second = Graph("first"), Graph("second")
    first.add(tasks.give, 1, name="one")
    inner = first.add(tasks.give, first.node("one").output, name="two")
    assert inner.name == "two"
    second.add(tasks.give, "x", name="x")
    g = Graph("etl", key="etl", tags=["t"], metadata={"day": 1}, priority=3)
    a = g.add(tasks.give.options(metadata={"node": "a"}, tags=["a"]), {"n": 5}, name="a")
    nested = g.add(first, name="nested")
    gate = g.gate("gate", after=[a])
    bad = g.add(tasks.fail, "bad", name="bad", after=[gate])
    g.add(tasks.give, [a.output["n"], nested.output["two"]], name="sum", after=[bad.finished])
    g.add(tasks.give, name="off", when=a.output["n"] > 9)
    g.add(second, name="late", after=[bad])
    return g, a


@pytest.fixture
def finished(app, tasks):
    """The run of a graph that failed in one node."""
    g, a = etl(tasks)
    run = app.submit(g, result=a)
    drain(app)
    run.gate("gate").complete("yes", by="ada")
    drain(app)
    assert states(run) == {
        "a": "done", "nested": "done", "gate": "done", "bad": "failed", "sum": "done", "off": "skipped",
        "late": "skipped",
    }  # fmt: skip
    return run


def test_a_finished_graph_runs_again_as_a_new_run(app, tasks, finished, ledger):
    before = ledger.lines()
    fork = finished.fork(by="bob")
    assert fork.id != finished.id
    info = fork.info()
    assert (info.task, info.tags, info.metadata, info.key, info.priority) == ("etl", ("t",), {"day": 1}, None, 3)
    assert not {each.id for each in fork.nodes().values()} & {each.id for each in finished.nodes().values()}
    drain(app)
    assert states(fork) == {
        "a": "done", "nested": "done", "gate": "waiting", "bad": "blocked", "sum": "blocked", "off": "skipped",
        "late": "blocked",
    }  # fmt: skip
    assert (fork.nodes()["a"].metadata, fork.nodes()["a"].tags) == ({"node": "a"}, ("a",))
    tasks.well()
    fork.gate("gate").complete("yes")
    drain(app)
    assert fork.result(timeout=10) == {"n": 5}
    assert states(fork) == dict.fromkeys(states(fork), "done") | {"off": "skipped"}
    assert fork.nodes()["sum"].args == {"value": [5, 1]}
    assert len(ledger.lines()) == len(before) + 6
    (entry,) = [entry for entry in fork.history() if entry.kind == "forked"]
    assert dict(entry.data) == {"from": str(finished.id), "nodes": 7, "by": "bob"}
    assert state(finished) == "failed"


def test_only_what_failed_and_depends_on_it_runs_again(app, tasks, finished, ledger):
    tasks.well()
    before = len(ledger.lines())
    fork = finished.fork(from_failed=True)
    assert states(fork) == {
        "a": "done", "nested": "done", "gate": "done", "bad": "ready", "sum": "blocked", "off": "skipped",
        "late": "blocked",
    }  # fmt: skip
    drain(app)
    assert fork.result(timeout=10) == {"n": 5}
    assert states(fork) == dict.fromkeys(states(fork), "done") | {"off": "skipped"}
    assert [line.split()[0] for line in ledger.lines()[before:]] == ["fail", "give", "give"]
    assert fork.nodes()["sum"].args == {"value": [5, 1]}
    kept = node(app, fork, "a")
    assert (kept.result(timeout=1), kinds(kept)) == ({"n": 5}, ["enqueued", "forked"])
    assert node(app, fork, "nested").result(timeout=1) == {"one": 1, "two": 1}


def test_a_fork_from_a_node_runs_it_and_all_that_depends_on_it(app, tasks, finished):
    tasks.well()
    fork = finished.fork("nested")
    assert states(fork)["a"] == "done"
    drain(app)
    assert state(fork) == "done"
    again = {name for name, info in fork.nodes().items() if kinds(app.get_run(info.id))[1] != "forked"}
    assert again == {"nested", "bad", "sum", "late"}  # what failed never keeps its outcome
    with pytest.raises(GraphError, match="has no failed node"):
        fork.fork(from_failed=True)
    with pytest.raises(GraphError, match="has no node 'x'"):
        fork.fork("x")


def test_forks_of_forks_and_of_graphs_whose_nodes_never_started(app, tasks):
    inner = Graph("inner")
    inner.add(tasks.give, 1, name="deep")
    middle = Graph("middle")
    middle.add(inner, name="inner")
    g = Graph("g")
    bad = g.add(tasks.fail, "first", name="bad")
    g.add(middle, name="middle", after=[bad])
    g.add(tasks.give.options(delay=1000), "later", name="later", after=[bad])
    run = submitted(app, g)
    assert states(run) == {"bad": "failed", "middle": "skipped", "later": "skipped"}
    tasks.well()
    first = run.fork(from_failed=True)
    drain(app)
    assert states(first) == {"bad": "done", "middle": "done", "later": "scheduled"}
    first.cancel()
    second = first.fork()
    drain(app)
    assert states(second) == {"bad": "done", "middle": "done", "later": "scheduled"}
    deep = node(app, node(app, node(app, second, "middle"), "inner"), "deep")
    assert deep.result(timeout=1) == 1


def test_appended_nodes_belong_to_the_fork(app, tasks):
    g = Graph("g")
    g.gate("gate")
    run = app.submit(g)
    more = Graph("more")
    more.add(tasks.give, "appended", name="more", after=[more.node("gate")])
    run.append(more, key="k")
    run.gate("gate").complete()
    drain(app)
    fork = run.fork()
    fork.gate("gate").complete()
    drain(app)
    assert states(fork) == {"gate": "done", "more": "done"}


def test_what_cannot_be_forked_is_refused(app, tasks, finished):
    g = Graph("open")
    inner = Graph("inner")
    inner.gate("within")
    g.add(inner, name="inner")
    run = app.submit(g)
    with pytest.raises(GraphError, match="is unfinished"):
        run.fork()
    nested = node(app, finished, "nested")
    with pytest.raises(GraphError, match="is node nested of graph run"):
        nested.fork()
    with pytest.raises(ConfigError, match="not from both"):
        finished.fork("a", from_failed=True)
    with pytest.raises(ConfigError, match="has no arguments"):
        finished.fork(args=(1,))
    with pytest.raises(ConfigError, match="is not a graph"):
        node(app, finished, "a").fork(from_failed=True)


def test_a_repeated_fork_creates_no_second_run(app, tasks, finished):
    forks = app.store.graph_forks
    id = "0199a3f2-6c1e-7b3a-9d61-2f4f0c7f5a10"
    forks.fork(str(finished.id), id, from_failed=True)
    forks.fork(str(finished.id), id, from_failed=True)
    assert len(app.get_run(id).nodes()) == 7
    assert sorted(info.state for info in Control(app.store).runs.page(task="etl")) == ["failed", "running"]


def test_an_outcome_that_changed_meanwhile_is_not_copied(app, tasks, finished, monkeypatch):
    forks = app.store.graph_forks
    read, changed = forks._read_nodes, finished.nodes()["a"].id

    def read_then_change(graph):
        nodes = read(graph)
        if graph == str(finished.id):
            fetch(app, f"update {{}}runs set state = 'failed' where id = '{changed}'")
        return nodes

    monkeypatch.setattr(forks, "_read_nodes", read_then_change)
    with pytest.raises(GraphError, match="was retried meanwhile"):
        finished.fork(from_failed=True)
    assert len(app.runs(task="etl")) == 1
