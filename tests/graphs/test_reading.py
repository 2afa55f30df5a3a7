"""Read graphs: lists, states and history; and prune them."""

from __future__ import annotations

import pytest

from holdfast import Graph
from holdfast.database.statements import StatementSource, render
from holdfast.errors import BlockingCall, GraphError, ResultTimeout
from tests.support.durable import drain, kinds, state
from tests.support.graphs import node, states, submitted

DAY = 86_400


def test_a_graph_its_nodes_and_gates_are_in_the_list_of_runs(app, tasks):
    g = Graph("etl")
    g.add(tasks.give, 1, name="a")
    g.gate("ok")
    run = submitted(app, g)
    listed = {info.task: info for info in app.runs()}
    assert {task: info.state for task, info in listed.items()} == {"etl": "waiting", "give": "done", "gate": "waiting"}
    assert [info.id for info in app.runs(task="etl")] == [run.id]
    assert [info.id for info in app.runs(state="waiting", task="etl")] == [run.id]
    assert app.runs(state="running") == []
    assert app.get_run(run.id) == run
    assert run.task == "etl"


def test_a_graph_is_running_while_anything_in_it_is_and_waits_when_only_gates_are_open(app, tasks):
    bottom = Graph("bottom")
    bottom.add(tasks.give, name="work", after=[bottom.gate("gate")])
    middle = Graph("middle")
    middle.add(bottom, name="bottom")
    top = Graph("top")
    top.add(middle, name="middle")
    run = app.submit(top)
    graphs = [run, node(app, run, "middle")]
    graphs.append(node(app, graphs[1], "bottom"))
    assert [state(graph) for graph in graphs] == ["waiting"] * 3
    graphs[2].gate("gate").complete()
    assert [state(graph) for graph in graphs] == ["running", "waiting", "running"], (
        "the state of a graph includes nested graphs"
    )
    assert {info.task for info in app.runs(state="running")} == {"top", "bottom"}
    drain(app)
    assert [state(graph) for graph in graphs] == ["done"] * 3


def test_a_graph_whose_nodes_only_wait_for_their_time_is_running(app, tasks):
    g = Graph("g")
    g.add(tasks.give.options(delay=1000), name="later")
    run = app.submit(g)
    assert (states(run), state(run)) == ({"later": "scheduled"}, "running")
    node(app, run, "later").cancel()
    assert state(run) == "failed"


def test_nodes_are_listed_in_the_order_in_which_they_were_added(app, tasks):
    g = Graph("wide")
    for number in range(1100):
        g.add(tasks.give, number, name=f"n{number}")
    run = app.submit(g)
    assert list(run.nodes()) == [f"n{number}" for number in range(1100)]


def test_only_graphs_have_nodes(app, tasks):
    job = tasks.give.enqueue(1)
    with pytest.raises(GraphError, match=f"run {job.id} is a run of give, not a graph"):
        job.nodes()
    g = Graph("g")
    g.gate("gate")
    run = app.submit(g)
    with pytest.raises(GraphError, match=r"is node gate of graph run .*, not a graph"):
        node(app, run, "gate").nodes()


def test_the_history_of_a_graph_and_its_nodes(app, tasks):
    g = Graph("g")
    a = g.add(tasks.give, 1, name="a")
    g.add(tasks.give, name="off", after=[a.failed])
    run = submitted(app, g)
    assert kinds(run) == ["enqueued", "done"]
    assert kinds(node(app, run, "a")) == ["enqueued", "started", "done"]
    skipped = node(app, run, "off").history()[-1]
    assert skipped.data["error"]["code"] == "condition"
    assert skipped.data["error"]["message"] == "the condition of node off wasn't true"
    assert run.history()[0].data == {"task": "g", "queue": "$graph"}
    assert run.info().finished_at <= run.history()[-1].at  # statements of one transaction may see different times


def test_waiting_for_the_result_of_a_graph(app, tasks):
    g = Graph("g")
    g.gate("gate")
    run = app.submit(g)
    with pytest.raises(ResultTimeout):
        run.result(timeout=0)
    run.gate("gate").complete(1)
    assert run.result(timeout=0) == {"gate": 1}
    assert run.info().result == {"gate": 1}


def test_a_graph_with_only_skipped_nodes_finishes_at_once(app, tasks):
    """No node runs, so no worker is needed."""
    g = Graph("g")
    gate = g.gate("gate")
    g.add(tasks.give, name="a", after=[gate.failed])
    g.add(tasks.give, name="b", after=["a"])
    run = app.submit(g)
    run.gate("gate").complete()
    assert run.result(timeout=0) == {"gate": None}


def test_a_fork_of_a_node_is_not_a_node(app, tasks, ledger):
    g = Graph("g")
    a = g.add(tasks.give, 1, name="a")
    g.add(tasks.give, a.output, name="b")
    g.add(tasks.give, name="off", after=[a.failed])
    g.add(tasks.give, name="blocked", after=[g.gate("gate")])
    run = submitted(app, g)
    fork = node(app, run, "b").fork()
    drain(app)
    assert (fork.result(timeout=5), fork.info().parent, len(run.nodes())) == (1, None, 5)
    for other, why in ((run, "is unfinished"), (node(app, run, "gate"), "is a gate, which can't")):
        with pytest.raises(GraphError, match=why):
            other.fork()
    for name in ("off", "blocked"):
        with pytest.raises(GraphError, match=f"is node {name} of a graph and .*: it has no arguments yet"):
            node(app, run, name).fork()


@pytest.mark.parametrize("end", ["done", "failed", "cancelled"])
def test_a_graph_is_pruned_together_with_its_nodes_and_edges(timed_app, timed_tasks, clock, end):
    inner = Graph("inner")
    inner.gate("within")
    g = Graph("g")
    a = g.add(timed_tasks.fail if end == "failed" else timed_tasks.give, name="a")
    nested = g.add(inner, name="nested")
    g.add(timed_tasks.give, name="b", after=[a, nested])
    run = submitted(timed_app, g)
    clock.forward(40 * DAY)
    prune(timed_app)
    assert len(timed_app.runs()) == 5, "an unfinished graph keeps its finished nodes"
    if end == "cancelled":
        run.cancel()
    else:
        node(timed_app, run, "nested").gate("within").complete()
    drain(timed_app)
    assert state(run) == end
    kept_days = 7 if end == "done" else 30
    clock.forward((kept_days - 1) * DAY)
    prune(timed_app)
    assert len(timed_app.runs()) == 5
    clock.forward(2 * DAY)
    prune(timed_app)
    assert timed_app.runs() == []
    assert [count(timed_app, table) for table in ("runs", "edges", "history")] == [0, 0, 0]


def prune(app):
    while app.store.retention.prune()[1]:
        pass


def count(app, table):
    """Count the rows of a table."""
    database = app.store.database
    statement = render(StatementSource("test", None, "", f"select count(*) from {{schema}}{table}"), database.dialect)
    return database.connection("read").run(lambda connection: connection.execute(statement, {}))[0][0]


async def test_blocking_calls_are_rejected_in_a_loop_and_async_ones_work(app, tasks):
    g = Graph("g")
    g.add(tasks.give, 1, name="a")
    for blocking, instead in ((lambda: app.submit(g), "asubmit"), (lambda: app.get_run(0).nodes(), "aget_run")):
        with pytest.raises(BlockingCall, match=instead):
            blocking()
    run = await app.asubmit(g, result=g.node("a"))
    with pytest.raises(BlockingCall, match="anodes"):
        run.nodes()
    with pytest.raises(BlockingCall, match="acomplete"):
        run.gate("x").complete()
    with pytest.raises(BlockingCall, match="afail"):
        run.gate("x").fail("no")
    await app.worker().adrain(timeout=60)
    assert await run.aresult(timeout=5) == 1
    assert (await run.anodes())["a"].state == "done"
