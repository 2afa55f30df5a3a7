"""Pause and resume runs, tasks, queues and tenants while workers run."""

from __future__ import annotations

import asyncio
import threading

import pytest

from holdfast import Context, Graph, SyncContext
from holdfast.control import Control
from holdfast.control.doctor import Doctor
from holdfast.errors import ConfigError
from holdfast.task.registry import Registry
from tests.support.wait_until import wait_until


@pytest.fixture
def note(timed_app, ledger):
    @timed_app.task(name="note")
    def note(text: str) -> str:
        ledger.write(text)
        return text

    return note


@pytest.mark.parametrize("target", [{"task": "note"}, {"queue": "default"}, {"tenant": "acme"}])
def test_what_is_paused_is_left_by_a_drain_and_why_says_so(timed_app, note, ledger, target):
    assert timed_app.pause(**target, by="ada") if "queue" not in target else timed_app.pause(**target)
    assert not timed_app.pause(**target)
    run = note.options(tenant="acme").enqueue("x")
    assert timed_app.worker().drain(timeout=60) == 0
    ((kind, name),) = target.items()
    (reason,) = Control(timed_app.store).whys.why(run.id).reasons
    assert (reason.code, reason.data[kind]) == ("paused", name)
    if kind != "queue":
        found = [each for each in Doctor(timed_app.store, Registry()).examine().findings if each.code == "paused"]
        assert [(each.level, each.data[kind], each.data["by"]) for each in found] == [("note", name, "ada")]
    assert timed_app.resume(**target)
    assert not timed_app.resume(**target)
    assert timed_app.worker().drain(timeout=60) == 1
    assert ledger.lines() == ["x"]


def test_exactly_one_target_is_named(timed_app):
    for target in ({}, {"task": "a", "queue": "b"}):
        with pytest.raises(ConfigError, match="exactly one of task=, queue= and tenant="):
            timed_app.pause(**target)


def test_a_task_is_named_not_passed(timed_app, note):
    with pytest.raises(ConfigError, match=r"task must be the name of a task, such as charge\.name"):
        timed_app.pause(task=note)


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_a_paused_durable_function_finishes_its_step_and_continues_there(app, ledger, kind):
    entered, go_on = threading.Event(), threading.Event()

    def first() -> str:
        ledger.write("first")
        entered.set()
        assert go_on.wait(30)
        return "a"

    def second() -> str:
        ledger.write("second")
        return "b"

    if kind == "async":

        @app.task(name="flow")
        async def flow(ctx: Context) -> str:
            return await ctx.options(name="first").step(first) + await ctx.options(name="second").step(second)
    else:

        @app.task(name="flow")
        def flow(ctx: SyncContext) -> str:
            return ctx.options(name="first").step(first) + ctx.options(name="second").step(second)

    run = flow.enqueue()
    with app.worker() as worker:
        assert entered.wait(30)
        assert run.pause(by="ada")
        (attempt,) = worker._components.state.claimed().values()
        wait_until(lambda: attempt.pause_requested, 10)
        go_on.set()
        wait_until(lambda: run.info().state == "ready", 10)
        assert ledger.lines() == ["first"]
        assert Control(app.store).whys.why(run.id).reasons[0].code == "paused"
        assert run.resume()
        assert run.result(timeout=30) == "ab"
    assert ledger.lines() == ["first", "second"]
    kinds = [entry.kind for entry in run.history()]
    assert (kinds.count("paused"), kinds.count("unpaused"), kinds.count("handed_back")) == (1, 1, 1)


def test_a_paused_node_keeps_the_graph_waiting(timed_app, note):
    g = Graph("pair")
    first = g.add(note, "a", name="first")
    g.add(note, first.output, name="second")
    run = timed_app.submit(g)
    node = timed_app.get_run(run.nodes()["second"].id)
    assert node.pause()
    timed_app.worker().drain(timeout=60)
    assert {name: info.state for name, info in run.nodes().items()} == {"first": "done", "second": "ready"}
    assert run.resume() is False, "the graph itself wasn't paused, but its nodes are resumed"
    timed_app.worker().drain(timeout=60)
    assert run.info().state == "done"


def test_a_deadline_applies_to_a_paused_run(timed_app, note, clock):
    run = note.options(deadline=5).enqueue("x")
    run.pause()
    clock.forward(6)
    timed_app.worker().drain(timeout=60)
    assert run.info().state == "failed"


def test_the_awaitable_forms_do_the_same(app):
    @app.task(name="job")
    async def job() -> None: ...

    async def use() -> None:
        run = await job.aenqueue()
        assert await run.apause()
        assert await run.aresume()
        assert await app.apause(tenant="acme")
        assert await app.aresume(tenant="acme")

    asyncio.run(use())
