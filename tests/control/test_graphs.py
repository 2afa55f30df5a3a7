"""Graphs for operators: layers, dependencies, causes, gates and their decisions."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from holdfast import Graph, Holdfast, Retry
from holdfast.control import Control, graphs
from holdfast.control.graphs import layers_of
from holdfast.errors import BadArguments, ConfigError, ErrorInfo, GraphError, KeyConflict, RunFinished, RunNotFound
from holdfast.model.failure import error_to_json
from holdfast.store import run_queries
from tests.support.durable import drain


@pytest.fixture
def app(database_url: str) -> Iterator[Holdfast]:
    with Holdfast(database_url) as app:

        @app.task(name="one")
        def one(n: int) -> int:
            return n + 1

        @app.task(name="bad", retry=Retry(max_attempts=1))
        def bad(n: int) -> int:
            raise ValueError(f"no {n}")

        yield app


@pytest.fixture
def control(app: Holdfast) -> Control:
    return Control(app.store, app.registry)


@pytest.fixture
def one(app):
    return app.registry.get("one")


@pytest.fixture
def bad(app):
    return app.registry.get("bad")


def node(graph, name):
    (found,) = [node for node in graph.nodes if node.name == name]
    return found


def test_errors_of_very_many_failed_nodes_are_shortened(monkeypatch):
    monkeypatch.setattr(run_queries, "MAX_NODE_ERROR_BYTES", 3000)
    error = error_to_json(ErrorInfo("error", "ValueError", "m" * 1000, "t" * 1000))
    row = run_queries.NodeRow(1, "id", "node", None, "task", "failed", 1, error, 0, 0, 0, None, None, None)
    shorten = run_queries._BoundedErrors()
    lengths = [len(shorten(row).error or "") for _ in range(4)]
    assert lengths[:2] == [len(error)] * 2
    assert max(lengths[2:]) < 300


def test_the_layer_of_a_node_is_the_longest_way_to_it():
    needs = {"d": ["b", "a"], "c": ["b"], "b": ["a"], "a": [], "e": []}
    assert layers_of(needs) == {"a": 1, "e": 1, "b": 2, "c": 3, "d": 3}
    assert layers_of({"n0": [], **{f"n{n}": [f"n{n - 1}"] for n in range(1, 5000)}})["n4999"] == 5000


def test_nodes_stand_in_layers_with_what_they_need_and_wait_for(app, control, one):
    g = Graph("plan")
    a = g.add(one, 1, name="a")
    b = g.add(one, a.output, name="b")
    gate = g.gate("gate", after=[a])
    g.add(one, b.output, after=[gate], name="c")
    g.add(one, 1, after=[gate.failed, b.finished], name="d")
    g.add(one, b.output.default(0), name="e")
    run = app.submit(g)
    drain(app)
    graph = control.graphs.read(run.id)
    assert [(each.name, each.kind, each.layer, each.state) for each in graph.nodes] == [
        ("a", "task", 1, "done"),
        ("b", "task", 2, "done"),
        ("gate", "gate", 2, "waiting"),
        ("c", "task", 3, "blocked"),
        ("d", "task", 3, "blocked"),
        ("e", "task", 3, "done"),
    ]
    assert graph.counts == {"done": 3, "waiting": 1, "blocked": 2}
    c, d, e = (node(graph, name) for name in "cde")
    assert (c.needs, c.waits_for, c.conditions) == ({"b": "done", "gate": "done"}, ["gate"], None)
    assert (d.needs, d.waits_for, d.conditions) == ({"b": "finished", "gate": "failed"}, ["gate"], "gate.failed")
    assert (e.needs, e.waits_for) == ({"b": "condition"}, [])
    assert node(graph, "a").finished_at is not None


def test_nodes_show_causes_and_errors(app, control, one, bad):
    g = Graph("plan")
    broken = g.add(bad, 1, name="broken")
    g.add(one, 1, after=[broken], name="behind")
    fine = g.add(one, 1, name="fine")
    g.add(one, 1, when=fine.output > 5, name="never")
    run = app.submit(g)
    drain(app)
    graph = control.graphs.read(run.id)
    told = {
        each.name: (each.state, each.error and each.error.code, each.error and each.error.message)
        for each in graph.nodes
    }
    assert told == {
        "broken": ("failed", "error", "no 1"),
        "behind": ("skipped", "failure", "node broken failed"),
        "fine": ("done", None, None),
        "never": ("skipped", "condition", "the condition of node never wasn't true"),
    }
    assert node(graph, "never").conditions == "fine.output > 5"


def test_small_graphs_within_are_read_and_large_ones_counted(app, control, one):
    small, large = Graph("small"), Graph("large")
    small.add(one, 1, name="inner")
    for n in range(25):
        large.add(one, n, name=f"n{n}")
    g = Graph("plan")
    first = g.add(small, name="first")
    g.add(large, name="second")
    g.gate("gate", after=[first])
    g.add(small, after=["gate"], name="later")
    run = app.submit(g)
    drain(app)
    graph = control.graphs.read(run.id)
    first, second, later = (node(graph, name) for name in ("first", "second", "later"))
    assert [each.name for each in first.graph.nodes] == ["inner"]
    assert (first.kind, first.task, first.counts, first.state) == ("graph", "small", {"done": 1}, "done")
    assert (second.graph, second.counts) == (None, {"done": 25})
    assert (later.graph, later.counts, later.state) == (None, {}, "blocked")


def test_gates_tell_since_when_they_are_open_and_until_when(app, control, one):
    inner = Graph("inner")
    inner.gate("sign", timeout=3600, on_timeout="skip", type=int)
    g = Graph("plan")
    a = g.add(one, 1, name="a")
    first = g.gate("first", after=[a])
    g.gate("second", after=[first])
    g.add(inner, after=[a], name="part")
    run = app.submit(g)
    drain(app)
    gates = {gate.name: gate for gate in control.graphs.gates(run.id)}
    assert {name: (gate.state, gate.graph == run.id) for name, gate in gates.items()} == {
        "first": ("waiting", True), "second": ("blocked", True), "sign": ("waiting", False)
    }  # fmt: skip
    assert gates["first"].since - run.nodes()["a"].finished_at < timedelta(seconds=1)
    assert gates["first"].since >= run.nodes()["a"].finished_at
    assert (gates["first"].until, gates["second"].since) == (None, None)
    sign = gates["sign"]
    assert sign.until - sign.since == timedelta(hours=1)
    assert (sign.on_timeout, sign.schema) == ("skip", {"type": "integer"})
    before = datetime.now(UTC) - timedelta(seconds=1)
    run.cancel()
    run.retry()
    reopened = next(gate for gate in control.graphs.gates(run.id) if gate.name == "first")
    assert (reopened.state, reopened.since > before) == ("waiting", True)


def test_operators_complete_gates_and_the_history_says_who(app, control, one):
    g = Graph("plan")
    gate = g.gate("gate", type=int)
    g.add(one, gate.output, name="behind")
    run = app.submit(g, result=g.node("behind"))
    with pytest.raises(BadArguments, match="must be an integer"):
        control.graphs.complete(run.id, "gate", "five")
    assert control.graphs.complete(run.id, "gate", 5, by="ada") is True
    assert control.graphs.complete(run.id, "gate", 5) is False
    with pytest.raises(KeyConflict, match="was completed with another output"):
        control.graphs.complete(run.id, "gate", 6)
    with pytest.raises(KeyConflict, match=r"was completed$"):
        control.graphs.fail(run.id, "gate", "no")
    drain(app)
    assert run.result(timeout=1) == 6
    entry = control.runs.details(control.graphs.node(run.id, "gate")).history[-1]
    assert (entry.kind, entry.data) == ("completed", {"by": "ada"})


def test_early_decision_is_shown_and_survives_a_retry(app, control, bad):
    g = Graph("plan")
    first = g.add(bad, 1, name="first")
    g.gate("gate", after=[first])
    run = app.submit(g)
    assert control.graphs.fail(run.id, "gate", "no", by="ada") is True
    assert control.graphs.fail(run.id, "gate", "no") is False
    (gate,) = control.graphs.gates(run.id)
    assert (gate.state, gate.early) == ("blocked", "failed")
    drain(app)
    (gate,) = control.graphs.gates(run.id)
    assert (gate.state, gate.early) == ("skipped", None)
    with pytest.raises(RunFinished, match="is skipped"):
        control.graphs.fail(run.id, "gate", "no")
    run.retry()
    (gate,) = control.graphs.gates(run.id)
    assert (gate.state, gate.early) == ("blocked", "failed")


def test_missing_graph_gate_or_node_is_reported(app, control, one):
    g = Graph("plan")
    g.add(one, 1, name="a")
    g.gate("yes")
    g.gate("no")
    run, job = app.submit(g), one.enqueue(1)
    a = run.nodes()["a"].id
    with pytest.raises(GraphError, match="has no gate 'maybe': its gates are yes, no"):
        control.graphs.complete(run.id, "maybe")
    with pytest.raises(GraphError, match=r"node .a. of run .* is not a gate"):
        control.graphs.complete(run.id, "a")
    with pytest.raises(GraphError, match=r"is not a graph and has opened no gate"):
        control.graphs.complete(job.id, "yes")
    with pytest.raises(GraphError, match=f"is not a graph, but node a of graph run {run.id}"):
        control.graphs.complete(a, "yes")
    with pytest.raises(GraphError, match="is a run of one, not a graph"):
        control.graphs.read(job.id)
    with pytest.raises(GraphError, match=f"is node a of graph run {run.id}, not a graph"):
        control.graphs.gates(a)
    with pytest.raises(GraphError, match="has no node 'b'"):
        control.graphs.node(run.id, "b")
    for verb in (control.graphs.read, control.graphs.gates):
        with pytest.raises(RunNotFound):
            verb(UUID(int=1))
    with pytest.raises(GraphError, match="is a graph, which receives no messages"):
        control.runs.send(run.id, "letters")


def test_details_tell_of_a_graph_of_a_node_and_of_a_gate(app, control, one):
    g = Graph("plan")
    a = g.add(one, 1, name="a")
    gate = g.gate("gate", after=[a])
    g.add(one, 1, after=[gate], name="b")
    run = app.submit(g)
    drain(app)
    whole = control.runs.details(run.id)
    assert (whole.kind, len(whole.graph.nodes), whole.children, whole.node) == ("graph", 3, [], None)
    b = control.runs.details(control.graphs.node(run.id, "b"))
    assert (b.kind, b.node, b.node_of, b.needs, b.graph) == ("task", "b", "plan", {"gate": "waiting"}, None)
    waiting = control.runs.details(control.graphs.node(run.id, "gate"))
    assert (waiting.kind, waiting.gate.name, waiting.needs) == ("gate", "gate", {"a": "done"})
    control.graphs.complete(run.id, "gate", "yes")
    drain(app)
    assert control.runs.details(run.id).info.result == {"a": 2, "gate": "yes", "b": 2}


def test_internal_queue_is_hidden(app, control, one):
    g = Graph("plan")
    g.gate("gate")
    g.add(one, 1, name="a")
    app.submit(g)
    assert [queue.name for queue in control.queues.list()] == ["default"]
    assert control.queues.names() == {"default"}
    with pytest.raises(ConfigError, match=r"must not start with \$"):
        control.queues.pause(["$graph"])


def test_a_large_graph_is_read_by_pages_in_the_order_of_its_nodes(app, control, one):
    g = Graph("wide")
    nodes = [g.add(one, n, name=f"n{n}") for n in range(2500)]
    g.add(one, 1, after=nodes, name="last")
    run = app.submit(g)
    graph = control.graphs.read(run.id)
    assert [each.name for each in graph.nodes] == [*(f"n{n}" for n in range(2500)), "last"]
    assert len(node(graph, "last").waits_for) == 2500
    assert graph.counts == {"ready": 2500, "blocked": 1}


def test_a_page_of_a_graph_has_the_same_nodes_as_the_whole(app, control, one, bad, monkeypatch):
    monkeypatch.setattr(graphs, "PAGE_NODES", 4)
    g = Graph("wide")
    first = g.add(one, 0, name="z")
    nodes = [g.add(one if n % 3 else bad, n, after=[first], name=f"n{n}") for n in range(9)]
    g.add(one, 1, after=nodes, name="last")
    g.gate("approve", after=[first])
    run = app.submit(g)
    for _ in range(2):
        whole = control.graphs.read(run.id)
        for start, size in ((0, 4), (4, 4), (8, 4), (8, 9), (99, 4)):
            page = control.graphs.page(run.id, start, size)
            assert page.nodes == whole.nodes[start : start + size]
            assert (page.counts, page.gates) == (whole.counts, whole.gates)
            assert page.more_nodes == max(12 - start - size, 0)
        states = ["failed", "skipped", "waiting", "blocked", "ready", "done"]
        ordered = sorted(whole.nodes, key=lambda node: states.index(node.state))
        for start in range(0, 12, 5):
            assert control.graphs.page_by_state(run.id, states, start, 5) == ordered[start : start + 5]
        drain(app)
    details = control.runs.details(run.id)
    assert details.graph is not None
    assert (len(details.graph.nodes), details.graph.more_nodes) == (12, 0), "a page has 1,000 nodes"


def test_a_page_has_the_nodes_that_were_added_since_the_last_one(app, control, one, monkeypatch):
    monkeypatch.setattr(graphs, "PAGE_NODES", 1)
    g = Graph("growing")
    g.add(one, 0, name="a")
    g.gate("keep")
    run = app.submit(g)
    assert [each.name for each in control.graphs.page(run.id, 0, 9).nodes] == ["a", "keep"]
    more = Graph("more")
    more.add(one, 1, name="b")
    run.append(more, key="more")
    assert [each.name for each in control.graphs.page(run.id, 0, 9).nodes] == ["a", "keep", "b"]
    assert len(control.graphs._shapes) == 1


def test_a_gate_is_read_with_what_it_decides(app, control, one, bad):
    inner = Graph("inner")
    last = inner.add(one, 4, name="last")
    g = Graph("plan")
    first = g.add(one, 1, name="first")
    failing = g.add(bad, 2, name="failing")
    within = g.add(inner, name="within")
    gate = g.gate("ok", after=[first, failing.finished, within])
    g.add(one, 3, after=[gate], name="then")
    assert last.name == "last"
    run = app.submit(g)
    drain(app)
    found = control.gates.read(run.nodes()["ok"].id)
    assert (found.task, found.state, found.tenant, [node.name for node in found.dependents]) == (
        "plan", "waiting", None, ["then"]
    )  # fmt: skip
    assert [(node.name, node.kind, node.state, node.args, node.result) for node in found.depends_on] == [
        ("first", "task", "done", {"n": 1}, 2),
        ("failing", "task", "failed", {"n": 2}, None),
        ("within", "graph", "done", None, {"last": 5}),
    ]
    assert [node.error and node.error.message for node in found.depends_on] == [None, "no 2", None]
    with pytest.raises(GraphError, match="is not a gate"):
        control.gates.read(run.id)


def test_who_decided_is_forgotten_once_the_gate_is_open_again(app, control, one):
    g = Graph("plan")
    g.gate("ok", after=[g.add(one, 1, name="first")])
    run = app.submit(g)
    drain(app)
    control.graphs.fail(run.id, "ok", "no", by="ada")
    (gate,) = control.graphs.gates(run.id)
    assert (gate.decided_by, gate.decided_at is not None) == ("ada", True)
    run.retry()
    (gate,) = control.graphs.gates(run.id)
    assert (gate.state, gate.decided_by, gate.decided_at) == ("waiting", None, None)
    control.graphs.complete(run.id, "ok", by="bob")
    (gate,) = control.graphs.gates(run.id)
    assert (gate.state, gate.decided_by) == ("done", "bob")
    assert control.gates.read(gate.id).decided_by == "bob"
