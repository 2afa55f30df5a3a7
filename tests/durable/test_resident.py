"""Suspended async functions that stay in memory: they resume in place, and only if nobody else had the run."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from holdfast import Context, Holdfast, Run
from holdfast.database.statements import Statement
from tests.support.durable import state
from tests.support.wait_until import wait_until


class Bodies:
    """Counts how often the bodies of functions start and leave memory."""

    def __init__(self) -> None:
        self.started: Counter[str] = Counter()
        self.left: Counter[str] = Counter()

    @contextmanager
    def entered(self, name: str) -> Iterator[None]:
        self.started[name] += 1
        try:
            yield
        finally:
            self.left[name] += 1


@pytest.fixture
def bodies() -> Bodies:
    return Bodies()


@pytest.fixture
def waiting(app: Holdfast, bodies: Bodies, effects: Any) -> Any:
    """A task that records a step, waits for the event of its name twice, and returns what it received."""

    @app.task(name="waiting")
    async def waiting(ctx: Context, name: str) -> list[str]:
        with bodies.entered(name):
            await ctx.step(effects.anote, name)
            return [await ctx.wait_for(f"{name}-1"), await ctx.wait_for(f"{name}-2")]

    return waiting


def suspended(run: Run[Any]) -> bool:
    return state(run) == "waiting"


def raise_fence(app: Holdfast) -> None:
    table = "holdfast_runs" if "sqlite" in app.url else "holdfast.runs"
    raising = Statement("test", f"update {table} set fence = fence + 1", ())
    app.store.database.connection("client").run(lambda connection: connection.execute(raising, {}))


def test_a_suspended_function_resumes_in_place(app, waiting, bodies, ledger):
    run = waiting.enqueue("a")
    with app.worker():
        wait_until(lambda: suspended(run))
        app.emit("a-1", "first")
        wait_until(lambda: "$event:a-1#1" in [step.key for step in app.store.queries.steps(str(run.id))])
        wait_until(lambda: suspended(run))
        app.emit("a-2", "second")
        assert run.result(timeout=10) == ["first", "second"]
    assert bodies.started["a"] == 1
    assert ledger.lines() == ["a"]


def test_functions_leave_memory_if_residency_is_off(app, waiting, bodies):
    run = waiting.enqueue("a")
    with app.worker(max_resident=0):
        wait_until(lambda: suspended(run) and bodies.left["a"] == 1)
        app.emit("a-1", "first")
        app.emit("a-2", "second")
        assert run.result(timeout=10) == ["first", "second"]
    assert bodies.started["a"] == 2


def test_a_copy_whose_run_another_worker_had_is_discarded(app, waiting, bodies):
    run = waiting.enqueue("a")
    with app.worker():
        wait_until(lambda: suspended(run))
        raise_fence(app)  # as if another worker had claimed the run and suspended it again
        app.emit("a-1", "first")
        app.emit("a-2", "second")
        assert run.result(timeout=10) == ["first", "second"]
    assert bodies.started["a"] == 2


def test_the_least_recently_suspended_function_leaves_memory(app, waiting, bodies):
    runs = {}
    with app.worker(max_resident=2):
        for name in "abc":
            runs[name] = waiting.enqueue(name)
            wait_until(lambda name=name: suspended(runs[name]))
        wait_until(lambda: bodies.left["a"] == 1)
        for name in "abc":
            app.emit(f"{name}-1", name)
            app.emit(f"{name}-2", name)
            assert runs[name].result(timeout=10) == [name, name]
    assert [bodies.started[name] for name in "abc"] == [2, 1, 1]


def test_a_cancelled_function_leaves_memory_with_the_next_heartbeat(app, waiting, bodies):
    run = waiting.enqueue("a")
    with app.worker(lease=1.5):
        wait_until(lambda: suspended(run))
        run.cancel()
        wait_until(lambda: bodies.left["a"] == 1)
    assert bodies.started["a"] == 1


def test_a_stopped_worker_leaves_no_code_behind(app, waiting, bodies):
    runs = [waiting.enqueue(name) for name in "ab"]
    with app.worker():
        wait_until(lambda: all(map(suspended, runs)))
    assert bodies.started == bodies.left == {"a": 1, "b": 1}


def test_code_that_calls_the_context_while_its_run_is_suspended_waits_for_the_next_claim(app, effects, ledger):
    inner: list[Any] = []

    @app.task(name="work")
    async def work(ctx: Context) -> str:
        poked = asyncio.Event()
        inner[:] = [asyncio.get_running_loop(), poked]

        async def poke_and_note() -> None:
            await poked.wait()
            await ctx.step(effects.anote, "noted")

        _, value = await asyncio.gather(poke_and_note(), ctx.wait_for("go"))
        return value

    async def poke() -> None:
        inner[1].set()
        for _ in range(100):
            await asyncio.sleep(0)

    run = work.enqueue()
    with app.worker():
        wait_until(lambda: suspended(run))
        asyncio.run_coroutine_threadsafe(poke(), inner[0]).result(10)
        assert ledger.lines() == []
        app.emit("go", "now")
        assert run.result(timeout=10) == "now"
    assert ledger.lines() == ["noted"]


def test_children_that_end_during_a_suspension_are_read_with_one_query(app, bodies, monkeypatch):
    inner: list[Any] = []

    @app.task(name="child")
    async def child(n: int) -> int:
        await inner[1].wait()
        return n

    @app.task(name="parent")
    async def parent(ctx: Context) -> list[int]:
        inner[:] = [asyncio.get_running_loop(), asyncio.Event()]
        with bodies.entered("parent"):
            return await asyncio.gather(*(ctx.call(child, n) for n in range(20)))

    monkeypatch.setattr(app.store.journal, "child_results", lambda *_: pytest.fail("read one by one"))
    run = parent.enqueue()
    with app.worker():
        wait_until(lambda: suspended(run))
        inner[0].call_soon_threadsafe(inner[1].set)
        assert run.result(timeout=20) == list(range(20))
    assert bodies.started["parent"] == 1


def test_a_function_with_large_payloads_leaves_memory(app, bodies):
    async def load() -> str:
        return "x" * 100_000

    @app.task(name="large")
    async def large(ctx: Context) -> int:
        with bodies.entered("large"):
            text = await ctx.step(load, name="load")
            await ctx.wait_for("go")
            return len(text)

    run = large.enqueue()
    with app.worker(max_resident_bytes=300_000):
        wait_until(lambda: suspended(run) and bodies.left["large"] == 1)
        app.emit("go")
        assert run.result(timeout=10) == 100_000
    assert bodies.started["large"] == 2
