"""Cancel and retry a graph: what failed is decided again with all that depends on it, the rest is kept."""

from __future__ import annotations

import threading

import pytest

from holdfast import Context, Graph, idempotency_key
from holdfast.control import Control
from holdfast.errors import GraphError, RunCancelled, RunFinished
from tests.support.durable import drain, kinds, state
from tests.support.graphs import ONCE, codes, node, states, submitted
from tests.support.wait_until import wait_until


def etl(tasks):
    """A node that succeeds, one that fails, and nodes that depend on it."""
    g = Graph("etl")
    a = g.add(tasks.give, 1, name="a")
    b = g.add(tasks.fail, "b", name="b", after=[a])
    c = g.add(tasks.give, b.output, name="c")
    g.add(tasks.give, name="d", after=[c])
    g.add(tasks.give, "alert", name="alert", after=[b.failed])
    g.add(tasks.give, "clean", name="clean", after=[b.finished])
    g.add(tasks.give, name="off", after=[a], when=a.output > 1)
    return g


def nested(tasks):
    """A graph nested in a nested graph, with a failing node at the bottom."""
    bottom = Graph("bottom")
    bottom.add(tasks.give, 1, name="fine")
    bottom.add(tasks.fail, name="bad")
    middle = Graph("middle")
    middle.add(bottom, name="bottom")
    top = Graph("top")
    top.add(middle, name="middle")
    top.add(tasks.give, top.node("middle").output, name="then")
    return top


def test_all_nodes_are_cancelled_with_the_graph(app, tasks):
    g = Graph("g")
    a = g.add(tasks.give, 1, name="done")
    g.gate("gate", after=[a])
    g.add(tasks.give.options(delay=1000), name="scheduled")
    g.add(tasks.give, name="blocked", after=["gate"])
    g.add(tasks.give.options(queue="elsewhere"), name="ready")
    inner = Graph("inner")
    inner.gate("within")
    g.add(inner, name="inner")
    g.add(inner, name="not begun", after=["gate"])
    run = app.submit(g)
    drain(app, queues=["default"])
    before = states(run)
    within = node(app, node(app, run, "inner"), "within")
    assert before == {
        "done": "done", "gate": "waiting", "scheduled": "scheduled", "blocked": "blocked", "ready": "ready",
        "inner": "waiting", "not begun": "blocked",
    }  # fmt: skip
    assert (run.cancel("no money"), run.cancel("again")) == (True, False)
    assert states(run) == {name: "done" if name == "done" else "cancelled" for name in before}
    assert state(within) == "cancelled"
    assert state(run) == "cancelled"
    assert [(entry.kind, dict(entry.data)) for entry in run.history()][1:] == [("cancelled", {"reason": "no money"})]
    for name in ("gate", "scheduled", "blocked", "ready", "inner"):
        assert kinds(node(app, run, name)) == ["enqueued", "cancelled"]
    with pytest.raises(RunCancelled, match="no money"):
        run.result(timeout=5)
    drain(app)
    assert state(run) == "cancelled"


def test_a_finished_graph_cannot_be_cancelled(app, tasks):
    run = submitted(app, etl(tasks))
    assert run.cancel() is False
    assert state(run) == "failed"


def test_a_running_node_is_cancelled_with_the_graph(app, tasks):
    at_it, go_on = threading.Event(), threading.Event()

    @app.task(name="slow")
    def slow() -> int:
        at_it.set()
        go_on.wait(30)
        return 1

    g = Graph("g")
    g.add(tasks.give, name="then", after=[g.add(slow, name="slow")])
    with app.worker(lease=2):
        run = app.submit(g)
        assert at_it.wait(30)
        assert run.cancel() is True
        assert states(run) == {"slow": "cancelled", "then": "cancelled"}
        go_on.set()
        wait_until(lambda: "let_go" in kinds(node(app, run, "slow")))
    assert states(run) == {"slow": "cancelled", "then": "cancelled"}
    assert run.nodes()["slow"].result is None


def test_cancelling_one_node_counts_as_its_failure(app, tasks):
    g = Graph("g")
    x = g.gate("x")
    g.add(tasks.give, name="then", after=[x])
    g.add(tasks.give, name="else", after=[x.failed])
    run = app.submit(g)
    assert node(app, run, "x").cancel("never mind") is True
    drain(app)
    assert states(run) == {"x": "cancelled", "then": "skipped", "else": "done"}
    assert run.nodes()["then"].error.message == "node x was cancelled"
    assert (state(run), run.info().error.message) == ("failed", "node x was cancelled")


def test_a_blocked_node_can_be_cancelled(app, tasks):
    g = Graph("g")
    g.gate("gate")
    x = g.add(tasks.give, name="x", after=["gate"])
    g.add(tasks.give, name="else", after=[x.failed])
    run = app.submit(g)
    node(app, run, "x").cancel()
    drain(app)
    assert states(run) == {"gate": "waiting", "x": "cancelled", "else": "done"}
    run.gate("gate").complete()
    assert states(run)["x"] == "cancelled", "the end of its dependency comes too late to release it"
    assert state(run) == "failed"


# Retry


def test_a_retry_runs_failed_nodes_and_all_that_depend_on_them_and_keeps_the_others(app, tasks, ledger):
    run = submitted(app, etl(tasks))
    before = {"a": "done", "b": "failed", "c": "skipped", "d": "skipped", "alert": "done", "clean": "done"}
    assert states(run) == before | {"off": "skipped"}
    tasks.well()
    run.retry()
    assert states(run) == {
        "a": "done", "b": "ready", "c": "blocked", "d": "blocked", "alert": "blocked", "clean": "blocked",
        "off": "skipped",
    }  # fmt: skip
    assert (state(run), run.info().error) == ("running", None)
    drain(app)
    assert run.result(timeout=5) == {"a": 1, "b": "b", "c": "b", "d": None, "clean": "clean"}
    assert states(run)["alert"] == "skipped", "this time, nothing failed"
    assert ledger.counts() == {
        "give 1": 1, "fail b": 2, "give b": 1, "give None": 1, "give alert": 1, "give clean": 2,
    }  # fmt: skip
    assert kinds(run) == ["enqueued", "failed", "retried", "done"]
    assert kinds(node(app, run, "c")) == ["enqueued", "skipped", "retried", "started", "done"]


def test_the_preview_names_the_nodes_that_run_again(app, tasks):
    control = Control(app.store, app.registry)
    run = submitted(app, etl(tasks))
    preview = control.runs.preview_retry(run.id)
    assert (preview.mode, preview.kept) == ("graph", ["a", "off"])
    assert {step.label: step.reason for step in preview.again} == {
        "b": "failed", "c": "depends", "d": "depends", "alert": "depends", "clean": "depends",
    }  # fmt: skip
    assert preview.may_repeat == [
        "node b: whatever it did before it ended", "node alert: everything that it did",
        "node clean: everything that it did",
    ]  # fmt: skip


def test_a_done_node_that_starts_over_replays_nothing_and_has_new_idempotency_keys(app, tasks, ledger):
    def step() -> str:
        ledger.write("step", idempotency_key())
        return "swept"

    @app.task(name="sweep")
    async def sweep(ctx: Context) -> str:
        return await ctx.step(step, name="sweep")

    @app.task(name="job")
    def job() -> str:
        ledger.write("job", idempotency_key())
        return "swept"

    g = Graph("g")
    bad = g.add(tasks.fail, name="bad")
    g.add(sweep, name="sweep", after=[bad.finished])
    g.add(job, name="job", after=[bad.finished])
    run = submitted(app, g)
    tasks.well()
    run.retry()
    drain(app)
    assert state(run) == "done"
    for effect in ("step", "job"):
        first, second = [words[1] for words in ledger.words() if words[0] == effect]
        assert first != second, "it is another execution: the other system must not ignore it"
    again = node(app, run, "sweep")
    assert kinds(again) == ["enqueued", "started", "done", "retried", "started", "done"]
    assert again.history()[3].data == {"starts_over": True}
    steps = Control(app.store).runs.steps(again.id)
    assert [step.superseded for step in steps] == [True, False]


@pytest.mark.parametrize("again", ["done", "failed"])
def test_a_done_nested_graph_starts_over_or_is_skipped_with_all_its_nodes(app, tasks, ledger, again):
    deep = Graph("deep")
    deep.add(tasks.give, "deep", name="deep")
    inner = Graph("inner")
    inner.add(deep, name="deep")
    inner.add(tasks.give, "inner", name="within", after=["deep"])
    g = Graph("g")
    bad = g.add(tasks.fail, name="bad")
    g.add(inner, name="inner", after=[bad.failed])
    g.add(inner, name="always", after=[bad.finished])
    run = submitted(app, g)
    assert states(run) == {"bad": "failed", "inner": "done", "always": "done"}
    if again == "done":
        tasks.well()
    run.retry()
    nested = node(app, run, "inner")
    assert states(nested) == {"deep": "blocked", "within": "blocked"}
    drain(app)
    assert (state(run), states(run)) == (
        ("done", {"bad": "done", "inner": "skipped", "always": "done"})
        if again == "done"
        else ("failed", {"bad": "failed", "inner": "done", "always": "done"})
    )
    expected = "skipped" if again == "done" else "done"
    assert states(nested) == {"deep": expected, "within": expected}
    assert states(node(app, nested, "deep")) == {"deep": expected}
    assert ledger.counts()["give inner"] == (3 if again == "done" else 4)


def test_a_gate_before_which_a_node_runs_again_is_asked_again(app, tasks):
    g = Graph("g")
    bad = g.add(tasks.fail, name="bad")
    g.gate("ok", after=[bad.finished])
    run = submitted(app, g)
    run.gate("ok").complete(1)
    assert state(run) == "failed"
    tasks.well()
    run.retry()
    drain(app)
    assert states(run) == {"bad": "done", "ok": "waiting"}
    run.gate("ok").complete(2)
    assert run.result(timeout=5)["ok"] == 2


def test_a_retry_that_fails_again_ends_as_before(app, tasks):
    run = submitted(app, etl(tasks))
    before, why = states(run), codes(run)
    for _ in range(2):
        run.retry()
        drain(app)
        assert (states(run), codes(run), state(run)) == (before, why, "failed")


def test_skipped_nodes_are_decided_again_after_a_retry(app, tasks):
    """First `alert` is skipped and another node fails the graph; in the retry nothing fails."""
    g = Graph("g")
    a = g.add(tasks.give, 1, name="a")
    g.add(tasks.give, name="alert", after=[a.failed])
    g.add(tasks.fail, name="bad")
    run = submitted(app, g)
    tasks.well()
    run.retry()
    drain(app)
    assert (states(run), state(run)) == ({"a": "done", "alert": "skipped", "bad": "done"}, "done")


def test_a_retry_reaches_a_failed_node_of_a_nested_graph(app, tasks, ledger):
    run = submitted(app, nested(tasks))
    assert (state(run), states(run)) == ("failed", {"middle": "failed", "then": "skipped"})
    middle = node(app, run, "middle")
    bottom = node(app, middle, "bottom")
    assert "node bad failed: ValueError: broken" in run.info().error.message
    tasks.well()
    run.retry()
    assert (state(run), state(bottom)) == ("running", "running")
    assert not middle.info().final
    assert states(bottom) == {"fine": "done", "bad": "ready"}
    drain(app)
    assert run.result(timeout=5)["then"] == {"bottom": {"fine": 1, "bad": "broken"}}
    assert ledger.counts()["give 1"] == 1


def test_a_skipped_nested_graph_starts_at_the_retry(app, tasks):
    inner = Graph("inner")
    inner.add(tasks.give, 1, name="within")
    g = Graph("g")
    g.add(inner, name="inner", after=[g.add(tasks.fail, name="bad")])
    run = submitted(app, g)
    assert node(app, run, "inner").nodes() == {}
    tasks.well()
    run.retry()
    drain(app)
    assert run.result(timeout=5)["inner"] == {"within": 1}


def test_a_retried_graph_continues_where_it_was_cancelled(app, tasks):
    g = Graph("g")
    a = g.add(tasks.give, 1, name="a")
    inner = Graph("inner")
    inner.gate("within")
    g.gate("gate", after=[a])
    g.add(inner, name="inner", after=[a])
    g.add(tasks.give, a.output, name="b", after=["gate", "inner"])
    run = submitted(app, g)
    run.cancel()
    run.retry()
    assert states(run) == {"a": "done", "gate": "waiting", "inner": "waiting", "b": "blocked"}
    assert state(run) == "waiting"
    run.gate("gate").complete()
    node(app, run, "inner").gate("within").complete()
    drain(app)
    assert run.result(timeout=5)["b"] == 1


def test_a_gate_that_failed_is_open_again_after_a_retry(app, tasks):
    g = Graph("g")
    g.add(tasks.give, g.gate("gate").output, name="then")
    run = app.submit(g)
    run.gate("gate").fail("not yet")
    assert state(run) == "failed"
    run.retry()
    assert (state(run), states(run)) == ("waiting", {"gate": "waiting", "then": "blocked"})
    assert run.gate("gate").complete(5) is True
    drain(app)
    assert run.result(timeout=5) == {"gate": 5, "then": 5}
    assert kinds(node(app, run, "gate")) == ["enqueued", "failed", "retried", "completed"]


def test_a_retry_restarts_the_timeout_of_a_gate(timed_app, timed_tasks, clock):
    g = Graph("g")
    g.gate("gate", timeout=60)
    run = timed_app.submit(g)
    clock.forward(60)
    timed_app.store.timers.fail_overdue("{}")
    assert state(run) == "failed"
    run.retry()
    clock.forward(59)
    timed_app.store.timers.fail_overdue("{}")
    assert states(run) == {"gate": "waiting"}
    clock.forward(1)
    timed_app.store.timers.fail_overdue("{}")
    assert state(run) == "failed"


def test_an_early_gate_output_survives_a_cancel(app, tasks):
    g = Graph("g")
    g.gate("gate", after=[g.add(tasks.give, name="a")])
    run = app.submit(g)
    run.gate("gate").complete(5)
    run.cancel()
    run.retry()
    drain(app)
    assert run.result(timeout=5) == {"a": None, "gate": 5}


def test_only_failed_and_cancelled_graphs_can_be_retried(app, tasks):
    g = Graph("g")
    g.add(tasks.give, name="a")
    run = submitted(app, g)
    with pytest.raises(RunFinished, match="is done; only failed and cancelled runs can be retried"):
        run.retry()
    waiting = Graph("g")
    waiting.gate("gate")
    run = app.submit(waiting)
    run.retry()
    assert kinds(run) == ["enqueued"], "an unfinished graph is unchanged"


def test_a_node_cannot_be_retried_alone(app, tasks):
    run = submitted(app, nested(tasks))
    middle = node(app, run, "middle")
    for below, name, graph in ((middle, "middle", run), (node(app, middle, "bottom"), "bottom", middle)):
        with pytest.raises(GraphError, match=f"is node {name} of graph run {graph.id}: retry the graph"):
            below.retry()
    with pytest.raises(RunFinished, match="is skipped"):
        node(app, run, "then").retry()
    assert state(run) == "failed"


def test_a_retried_graph_accepts_appends_and_a_cancel(app, tasks):
    run = submitted(app, etl(tasks))
    run.retry()
    more = Graph("more")
    more.add(tasks.give, name="more")
    run.append(more, key="1")
    run.cancel()
    assert state(run) == "cancelled"
    assert states(run)["more"] == "cancelled"
    tasks.well()
    run.retry()
    drain(app)
    assert state(run) == "done"


def test_a_retry_waits_until_the_old_attempt_of_a_node_has_ended(app, tasks, ledger):
    """Its worker notices the cancellation late: two attempts must not run at the same time."""
    at_it, go_on = threading.Event(), threading.Event()

    @app.task(name="slow", retry=ONCE)
    def slow() -> str:
        ledger.write("begins")
        at_it.set()
        go_on.wait(30)
        ledger.write("ends")
        return "ok"

    g = Graph("g")
    g.add(tasks.give, g.add(slow, name="slow").output, name="then")
    with app.worker(lease=30):
        run = app.submit(g)
        assert at_it.wait(30)
        run.cancel()
        run.retry()
        assert states(run) == {"slow": "ready", "then": "blocked"}
        assert ledger.lines() == ["begins"]
        go_on.set()
        assert run.result(timeout=30)["then"] == "ok"
    assert ledger.lines() == ["begins", "ends", "begins", "ends", "give ok"]


def test_a_durable_node_keeps_its_checkpoints_in_a_retry(app, tasks, ledger):
    def step(what: str) -> str:
        ledger.write(what)
        return what

    @app.task(name="durable", retry=ONCE)
    async def durable(ctx: Context) -> str:
        first = await ctx.options(name="first").step(step, "first")
        await ctx.call(tasks.fail)
        return first

    g = Graph("g")
    g.add(durable, name="durable")
    run = submitted(app, g)
    assert state(run) == "failed"
    tasks.well()
    run.retry()
    drain(app)
    assert run.result(timeout=5) == {"durable": "first"}
    assert ledger.counts() == {"first": 1, "fail broken": 2}
