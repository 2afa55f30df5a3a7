"""Options of nodes: queue, times, retries, durable functions and processes."""

from __future__ import annotations

import asyncio
import os
from datetime import UTC, datetime, timedelta

import pytest

from holdfast import Context, Graph, Retry, SyncContext
from tests.processes import tasks as process_tasks
from tests.support.durable import drain, kinds, state
from tests.support.graphs import ONCE, codes, node, states, submitted, time_out

START = datetime.fromtimestamp(1_800_000_000, UTC)


def test_a_node_has_its_own_queue_priority_tags_and_tenant(app, tasks):
    g = Graph("g", tenant="acme")
    a = g.add(tasks.give.options(queue="fast", priority=7, tags=["x", "y"]), 1, name="a")
    g.add(tasks.give.options(tenant="other"), name="b", after=[a])
    inner = Graph("inner")
    inner.add(tasks.give, name="within")
    g.add(inner, name="inner")
    run = app.submit(g)
    found = run.nodes()
    assert (found["a"].queue, found["a"].priority, found["a"].tags) == ("fast", 7, ("x", "y"))
    assert {name: info.tenant for name, info in found.items()} == {"a": "acme", "b": "other", "inner": "acme"}
    assert node(app, run, "inner").nodes()["within"].tenant == "acme"
    assert run.info().tenant == "acme"
    assert {info.parent for info in found.values()} == {run.id}
    drain(app, queues=["default"])
    assert states(run)["a"] == "ready"
    drain(app, queues=["fast"])
    drain(app, queues=["default"])
    assert state(run) == "done"


def test_nodes_of_higher_priority_go_first(app, tasks, ledger):
    g = Graph("g")
    gate = g.gate("gate")
    for priority in (1, 3, 2):
        g.add(tasks.give.options(priority=priority), priority, after=[gate])
    run = app.submit(g)
    run.gate("gate").complete()
    drain(app, concurrency=1)
    assert ledger.lines() == ["give 3", "give 2", "give 1"]


def test_a_delay_counts_from_the_release(timed_app, timed_tasks, clock):
    g = Graph("g")
    g.add(timed_tasks.give.options(delay=60), name="first")
    g.add(timed_tasks.give.options(delay=60), name="later", after=[g.gate("gate")])
    run = timed_app.submit(g)
    clock.forward(60)
    timed_app.store.timers.promote_due()
    assert states(run) == {"first": "ready", "gate": "waiting", "later": "blocked"}
    run.gate("gate").complete()
    assert states(run)["later"] == "scheduled"
    clock.forward(59)
    timed_app.store.timers.promote_due()
    assert states(run)["later"] == "scheduled"
    clock.forward(1)
    timed_app.store.timers.promote_due()
    assert states(run)["later"] == "ready"


def test_run_at_does_not_depend_on_the_release(timed_app, timed_tasks, clock):
    g = Graph("g")
    gate = g.gate("gate")
    g.add(timed_tasks.give.options(run_at=START + timedelta(seconds=30)), name="past", after=[gate])
    g.add(timed_tasks.give.options(run_at=START + timedelta(seconds=90)), name="future", after=[gate])
    run = timed_app.submit(g)
    clock.forward(60)
    timed_app.store.timers.promote_due()
    assert states(run) == {"gate": "waiting", "past": "blocked", "future": "blocked"}
    run.gate("gate").complete()
    assert states(run) == {"gate": "done", "past": "ready", "future": "scheduled"}
    clock.forward(30)
    timed_app.store.timers.promote_due()
    assert states(run)["future"] == "ready"


def test_a_deadline_duration_counts_from_the_release_and_a_time_is_absolute(timed_app, timed_tasks, clock):
    g = Graph("g")
    gate = g.gate("gate")
    g.add(timed_tasks.give.options(deadline=60), name="relative", after=[gate])
    g.add(timed_tasks.give.options(deadline=START + timedelta(seconds=130)), name="absolute", after=[gate])
    g.add(timed_tasks.give, name="else", after=[g.node("relative").failed])
    run = timed_app.submit(g)
    clock.forward(100)
    time_out(timed_app)
    run.gate("gate").complete()
    clock.forward(30)
    time_out(timed_app)
    assert (states(run)["relative"], states(run)["absolute"]) == ("ready", "failed")
    clock.forward(30)
    time_out(timed_app)
    assert states(run)["relative"] == "failed"
    assert codes(run)["relative"] == "deadline"
    drain(timed_app)
    assert states(run)["else"] == "done"


def test_a_deadline_that_passes_while_a_node_is_blocked_ends_it(timed_app, timed_tasks, clock):
    g = Graph("g")
    g.add(timed_tasks.give.options(deadline=START + timedelta(seconds=60)), name="x", after=[g.gate("gate")])
    run = timed_app.submit(g)
    clock.forward(60)
    time_out(timed_app)
    assert states(run) == {"gate": "waiting", "x": "failed"}
    run.gate("gate").complete()
    assert (states(run)["x"], state(run)) == ("failed", "failed")


def test_a_node_is_retried_by_its_own_policy_before_it_counts_as_failed(app, tasks, ledger):
    g = Graph("g")
    bad = g.add(tasks.fail.options(retry=Retry(max_attempts=3, delay=0, jitter=0)), name="bad")
    g.add(tasks.give, name="else", after=[bad.failed])
    run = app.submit(g)
    with app.worker():
        with pytest.raises(Exception, match="node bad failed"):
            run.result(timeout=30)
    assert ledger.lines() == ["fail broken"] * 3 + ["give None"]
    assert kinds(node(app, run, "bad"))[-1] == "failed"


def test_a_node_past_its_timeout_fails(app, tasks):
    @app.task(name="long", retry=ONCE)
    async def long() -> None:
        await asyncio.Event().wait()

    g = Graph("g")
    g.add(tasks.give, name="else", after=[g.add(long.options(timeout=0.05), name="long").failed])
    run = submitted(app, g)
    assert states(run) == {"long": "failed", "else": "done"}
    assert codes(run) == {"long": "timeout"}


# Durable functions


def test_a_durable_node_may_wait_and_have_children(app, tasks):
    @app.task(name="durable")
    async def durable(ctx: Context, value: int) -> list[int]:
        await ctx.wait_for("go")
        return await ctx.map(tasks.give, [value, value + 1])

    @app.task(name="blocking")
    def blocking(ctx: SyncContext, values: list[int]) -> int:
        return sum([ctx.call(tasks.give, value) for value in values])

    g = Graph("g")
    a = g.add(durable, g.add(tasks.give, 1, name="one").output, name="a")
    b = g.add(blocking, a.output, name="b")
    run = submitted(app, g, result=b)
    assert (states(run), state(run)) == ({"one": "done", "a": "waiting", "b": "blocked"}, "waiting")
    app.emit("go")
    drain(app)
    assert run.result(timeout=5) == 3
    assert set(run.nodes()) == {"one", "a", "b"}, "children of nodes aren't nodes"


def test_dependents_wait_for_compensations(app, tasks, ledger):
    def book() -> str:
        ledger.write("book")
        return "ticket"

    def give_back(ticket: str) -> None:
        ledger.write("back", ticket)

    @app.task(name="trip", retry=ONCE)
    async def trip(ctx: Context) -> None:
        await ctx.options(name="book", undo=give_back).step(book)
        await ctx.wait_for("go")

    g = Graph("g")
    x = g.add(trip, name="trip")
    g.add(tasks.give, "alert", name="alert", after=[x.failed])
    g.add(tasks.give, "then", name="then", after=[x])
    run = submitted(app, g)
    assert node(app, run, "trip").cancel("rain") is True
    assert states(run) == {"trip": "undoing", "alert": "blocked", "then": "blocked"}
    assert not run.info().final
    drain(app)
    assert states(run) == {"trip": "cancelled", "alert": "done", "then": "skipped"}
    assert ledger.lines() == ["book", "back ticket", "give alert"]


def test_cancelling_a_graph_compensates_its_nodes(app, ledger):
    def book() -> str:
        return "ticket"

    def give_back(ticket: str) -> None:
        ledger.write("back", ticket)

    @app.task(name="trip")
    async def trip(ctx: Context) -> None:
        await ctx.options(name="book", undo=give_back).step(book)
        await ctx.wait_for("go")

    g = Graph("g")
    g.add(trip, name="trip")
    run = submitted(app, g)
    assert run.cancel() is True
    assert states(run) == {"trip": "undoing"}
    assert state(run) == "cancelled"
    drain(app)
    assert (states(run), state(run)) == ({"trip": "cancelled"}, "cancelled")
    assert ledger.lines() == ["back ticket"]


def test_a_graph_retried_during_a_compensation_ends_with_it_and_can_be_retried_again(app, ledger):
    def book() -> str:
        ledger.write("book")
        return "ticket"

    def give_back(ticket: str) -> None:
        ledger.write("back", ticket)

    @app.task(name="trip")
    async def trip(ctx: Context) -> None:
        await ctx.options(name="book", undo=give_back).step(book)
        await ctx.wait_for("go")

    g = Graph("g")
    g.add(trip, name="trip")
    run = submitted(app, g)
    run.cancel()
    run.retry()
    drain(app)
    assert (states(run), state(run)) == ({"trip": "cancelled"}, "failed")
    run.retry()
    app.emit("go")
    drain(app)
    assert state(run) == "done"
    assert ledger.lines() == ["book", "back ticket", "book"]


def test_a_node_may_run_in_a_process_and_in_a_thread(app, tasks):
    total = app.task(name="total", run_in="process")(process_tasks.total)
    own_pid = app.task(name="pid", run_in="process")(process_tasks.own_pid)
    inside = app.task(name="inside", run_in="thread")(process_tasks.own_pid)

    @app.task(name="order")
    def order() -> process_tasks.Order:
        return process_tasks.Order(1, ["rope"])

    g = Graph("g")
    out = g.add(total, g.add(order, name="order").output, name="total")
    g.add(own_pid, name="pid", after=[out])
    g.add(inside, name="inside")
    run = submitted(app, g)
    result = run.result(timeout=5)
    assert result["total"] == {"number": 2, "lines": ["ROPE"]}
    assert result["inside"] == os.getpid() != result["pid"]


def test_no_worker_claims_graphs_and_gates(app, tasks):
    """Graphs and gates are in a queue that no worker claims from."""
    g = Graph("give")
    g.gate("gate")
    run = app.submit(g)
    drain(app)
    drain(app, queues=["default"])
    assert (kinds(run), state(run)) == (["enqueued"], "waiting")
