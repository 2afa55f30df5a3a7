"""Append nodes to a running graph, once per key."""

from __future__ import annotations

import re
from uuid import UUID

import pytest

from holdfast import Graph, KeyConflict
from holdfast.errors import BlockingCall, ConfigError, GraphError, RunFinished, RunNotFound
from tests.support.durable import drain, state
from tests.support.graphs import codes, node, states, submitted


@pytest.fixture
def grown(app, tasks):
    """A run with a node for every outcome, and an open gate that keeps it unfinished."""
    g = Graph("g")
    done = g.add(tasks.give, {"n": 1}, name="done")
    g.add(tasks.fail, name="failed")
    g.add(tasks.give, name="skipped", after=[done.failed])
    g.add(tasks.give, name="spoilt", after=["failed"])
    g.gate("gate")
    cancelled = g.gate("cancelled")
    run = submitted(app, g)
    node(app, run, cancelled.name).cancel()
    return run


def more(tasks, *names, after=()):
    g = Graph("more")
    for name in names:
        g.add(tasks.give, name=name, after=after)
    return g


def refused(message):
    return pytest.raises(GraphError, match=re.escape(message))


def test_appended_nodes_run_and_are_part_of_the_graph(app, tasks, grown):
    g = Graph("more")
    x = g.add(tasks.give, g.node("done").output["n"], name="x")
    g.add(tasks.give, [x.output], name="y", after=[g.node("gate")])
    grown.append(g, key="1")
    assert (states(grown)["x"], states(grown)["y"]) == ("ready", "blocked")
    drain(app)
    assert (states(grown)["x"], states(grown)["y"], state(grown)) == ("done", "blocked", "waiting")
    grown.gate("gate").complete()
    drain(app)
    assert grown.nodes()["y"].result == [1]
    assert state(grown) == "failed", "the result of a node that existed before"


def test_a_graph_finishes_after_its_appended_nodes(app, tasks):
    g = Graph("g")
    gate = g.gate("gate")
    run = app.submit(g)
    run.append(more(tasks, "x"), key="1")
    run.gate(gate.name).complete(1)
    assert state(run) == "running"
    drain(app)
    assert run.result(timeout=5) == {"gate": 1, "x": None}
    kinds = [(entry.kind, dict(entry.data)) for entry in run.history()]
    assert kinds[1:] == [("appended", {"key": "1", "nodes": 1}), ("done", {})]


def test_repeating_a_key_appends_nothing(app, tasks, grown):
    before = len(grown.nodes())
    for names in (("x", "y"), ("x", "y"), ("y", "x")):
        grown.append(more(tasks, *names), key="1")
    assert len(grown.nodes()) == before + 2
    assert [entry.kind for entry in grown.history()].count("appended") == 1
    with pytest.raises(KeyConflict, match=f"key '1' was used to append other nodes to run {grown.id}") as error:
        grown.append(more(tasks, "x"), key="1")
    assert error.value.run_id == grown.id
    grown.append(more(tasks, "z"), key="2")
    assert len(grown.nodes()) == before + 3


def test_a_key_belongs_to_one_run(app, tasks):
    g = Graph("g", key="1")
    g.gate("gate")
    runs = [app.submit(g), app.submit(only_a_gate())]
    for run in runs:
        run.append(more(tasks, "x"), key="1")
    assert [list(states(run)) for run in runs] == [["gate", "x"]] * 2


def only_a_gate():
    g = Graph("g")
    g.gate("gate")
    return g


def test_repeating_a_key_is_allowed_after_the_graph_finished(app, tasks):
    run = app.submit(only_a_gate())
    run.append(more(tasks, "x"), key="1")
    run.gate("gate").complete()
    drain(app)
    run.append(more(tasks, "x"), key="1")
    with pytest.raises(KeyConflict):
        run.append(more(tasks, "y"), key="1")
    with pytest.raises(
        RunFinished, match=f"graph run {run.id} is done: nodes can only be appended to an unfinished graph"
    ):
        run.append(more(tasks, "y"), key="2")
    assert list(states(run)) == ["gate", "x"]
    run.append(more(tasks, "x"), key="1")


def test_a_rejected_append_does_not_use_its_key(app, tasks, grown):
    with refused("has a node 'done' already"):
        grown.append(more(tasks, "x", "done"), key="1")
    grown.append(more(tasks, "x"), key="1")
    assert "x" in states(grown)


def test_duplicate_and_unknown_names_are_rejected(app, tasks, grown):
    with refused(f"graph run {grown.id} has a node 'gate' already: give the appended one another name"):
        grown.append(more(tasks, "gate"), key="1")
    with refused(f"graph run {grown.id} has no node 'nobody', which appended nodes need"):
        grown.append(more(tasks, "x", after=["nobody"]), key="1")
    foreign = Graph("foreign").add(tasks.give, name="x")
    with refused("node x exists in the run and is also appended to it"):
        grown.append(more(tasks, "x", after=[foreign]), key="1")


@pytest.mark.parametrize("what", ["key", "tenant"])
def test_an_appended_graph_has_no_key_and_no_tenant(app, tasks, grown, what):
    g = Graph("more", **{what: "mine"})
    g.add(tasks.give)
    with refused(f"append: graph more has a {what}; remove it, the run has its own"):
        grown.append(g, key="1")


def test_invalid_graphs_cannot_be_appended(app, tasks, grown):
    with refused("graph more is empty"):
        grown.append(Graph("more"), key="1")
    g = Graph("more")
    g.add(tasks.give, name="a", after=["b"])
    g.add(tasks.give, name="b", after=["a"])
    with refused("depend on each other in a cycle"):
        grown.append(g, key="1")
    with pytest.raises(ConfigError, match="the key of append"):
        grown.append(more(tasks, "x"), key="")


def test_only_graphs_can_be_appended_to(app, tasks, grown):
    job = tasks.give.enqueue(1)
    with refused(f"run {job.id} is not a graph"):
        job.append(more(tasks, "x"), key="1")
    with refused("is not a graph"):
        node(app, grown, "gate").append(more(tasks, "x"), key="1")
    with pytest.raises(GraphError, match=f"run {job.id} is a run of give, not a graph"):
        job.nodes()
    job.cancel()
    job._id = UUID(int=1)
    with pytest.raises(RunNotFound):
        job.append(more(tasks, "x"), key="1")


def test_appended_nodes_see_the_outcome_of_finished_nodes(app, tasks, grown):
    g = Graph("more")
    for name in ("done", "failed", "skipped", "spoilt", "cancelled"):
        end = g.node(name)
        g.add(tasks.give, name=f"after {name}", after=[end])
        g.add(tasks.give, name=f"after {name}.failed", after=[end.failed])
        g.add(tasks.give, name=f"after {name}.finished", after=[end.finished])
        g.add(tasks.give, end.output.default(0), name=f"takes {name}")
        g.add(tasks.give, name=f"behind {name}", after=[f"after {name}"])
    g.add(tasks.give, name="waits", after=[g.node("done"), g.node("gate")])
    grown.append(g, key="1")
    drain(app)
    why, ends = codes(grown), states(grown)
    told = {name: why[name] if ends[name] == "skipped" else ends[name] for name in g.added}
    expected = {}
    for name, plain, failed in (
        ("done", "done", "condition"),
        ("failed", "failure", "done"),
        ("skipped", "condition", "condition"),
        ("spoilt", "failure", "failure"),
        ("cancelled", "failure", "done"),
    ):
        expected |= {f"after {name}": plain, f"after {name}.failed": failed, f"after {name}.finished": "done"}
        expected |= {f"takes {name}": "done", f"behind {name}": plain}
    assert told == expected | {"waits": "blocked"}
    messages = {name: info.error.message for name, info in grown.nodes().items() if info.error is not None}
    assert messages["after failed"] == "node failed failed"
    assert messages["after cancelled"] == "node cancelled was cancelled"
    assert messages["after spoilt"] == "node failed failed"


def test_all_appended_nodes_may_be_skipped_at_once(app, tasks):
    run = app.submit(only_a_gate())
    run.gate("gate").complete()
    assert state(run) == "done"
    g = Graph("g")
    g.add(tasks.give, name="a", after=[g.gate("gate").failed])
    g.gate("last")
    run = app.submit(g)
    run.gate("gate").complete()
    run.append(more(tasks, "x", after=["a"]), key="1")
    assert (states(run)["x"], state(run)) == ("skipped", "waiting")
    run.gate("last").complete()
    assert state(run) == "done", "skipped by a condition"


def test_gates_and_graphs_can_be_appended(app, tasks, grown):
    inner = Graph("inner")
    inner.add(tasks.give, 5, name="within")
    g = Graph("more")
    g.gate("second", after=[g.node("done")], type=int)
    at_once = g.add(inner, name="at once")
    g.add(inner, name="later", after=["second"])
    g.add(tasks.give, at_once.output["within"], name="takes")
    grown.append(g, key="1")
    drain(app)
    assert {name: states(grown)[name] for name in g.added} == {
        "second": "waiting", "at once": "done", "later": "blocked", "takes": "done"
    }  # fmt: skip
    grown.gate("second").complete(1)
    drain(app)
    assert states(grown)["later"] == "done"
    assert grown.nodes()["takes"].result == 5


def test_nodes_can_be_appended_to_a_nested_graph(app, tasks):
    g = Graph("outer")
    nested = g.add(only_a_gate(), name="nested")
    g.add(tasks.give, nested.output, name="then")
    run = app.submit(g)
    inner = node(app, run, "nested")
    inner.append(more(tasks, "x"), key="1")
    inner.gate("gate").complete()
    assert states(run) == {"nested": "running", "then": "blocked"}
    drain(app)
    assert run.result(timeout=5)["then"] == {"gate": None, "x": None}


async def test_aappend_appends_like_append(app, tasks):
    run = await app.asubmit(only_a_gate())
    await run.aappend(more(tasks, "x"), key="1")
    await run.aappend(more(tasks, "x"), key="1")
    assert list(await run.anodes()) == ["gate", "x"]
    with pytest.raises(BlockingCall, match="aappend"):
        run.append(more(tasks, "x"), key="1")
