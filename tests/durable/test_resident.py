"""Suspended async functions that stay in memory: they resume in place, and only if nobody else had the run."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from holdfast import Context, Fatal, Holdfast, Run, StepFailed, WaitTimeout
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
            app.emit(f"{name}-2", name)  # first, so that the function is suspended only once
            app.emit(f"{name}-1", name)
            assert runs[name].result(timeout=10) == [name, name]
    assert [bodies.started[name] for name in "abc"] == [2, 1, 1]


def test_a_cancelled_function_leaves_memory_with_the_next_heartbeat(app, waiting, bodies):
    run = waiting.enqueue("a")
    with app.worker(lease=1.5):
        wait_until(lambda: suspended(run))
        run.cancel()
        wait_until(lambda: bodies.left["a"] == 1)
    assert bodies.started["a"] == 1


def test_a_run_that_is_cancelled_and_retried_while_its_function_is_in_memory_is_replayed(app, waiting, bodies, ledger):
    run = waiting.enqueue("a")
    with app.worker():
        wait_until(lambda: suspended(run))
        run.cancel()
        assert run.retry()
        wait_until(lambda: suspended(run))
        app.emit("a-1", "first")
        app.emit("a-2", "second")
        assert run.result(timeout=10) == ["first", "second"]
    assert bodies.started["a"] == 2
    assert ledger.lines() == ["a"]


def test_a_stopped_worker_leaves_no_code_behind(app, waiting, bodies):
    runs = [waiting.enqueue(name) for name in "ab"]
    with app.worker():
        wait_until(lambda: all(map(suspended, runs)))
    assert bodies.started == bodies.left == {"a": 1, "b": 1}


def test_a_stopping_worker_lets_functions_clean_up(app, ledger):
    @app.task(name="client")
    async def client(ctx: Context) -> None:
        try:
            await ctx.wait_for("go")
        finally:
            await asyncio.sleep(0.2)  # as a client does when it closes its connections
            ledger.write("closed")

    run = client.enqueue()
    with app.worker():
        wait_until(lambda: suspended(run))
    assert ledger.lines() == ["closed"]


def test_nothing_is_logged_about_branches_that_fail_when_their_function_leaves_memory(app, bodies, caplog):
    @app.task(name="work")
    async def work(ctx: Context) -> None:
        async def fail_in_cleanup() -> None:
            try:
                await ctx.wait_for("never")
            finally:
                raise ValueError("while cleaning up")

        with bodies.entered("work"):
            branch = asyncio.create_task(fail_in_cleanup())
            await ctx.wait_for("go")
            await branch

    run = work.enqueue()
    with app.worker():
        wait_until(lambda: suspended(run))
    gc.collect()
    assert bodies.left["work"] == 1
    assert "while cleaning up" not in caplog.text


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


class Poked:
    """Code inside a function that continues when a test says so, and not because of an outcome."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    async def wait(self) -> None:
        await self._event.wait()

    def poke(self) -> None:
        """Let the code continue, and wait until it has."""

        async def poke() -> None:
            self._event.set()
            for _ in range(100):
                await asyncio.sleep(0)

        asyncio.run_coroutine_threadsafe(poke(), self._loop).result(10)


@pytest.fixture
def pokes() -> list[Poked]:
    return []


@pytest.fixture
def race(app: Holdfast, bodies: Bodies, pokes: list[Poked]) -> Any:
    """A task that returns when it is poked or an event comes."""

    @app.task(name="race")
    async def race(ctx: Context) -> str:
        with bodies.entered("race"):
            pokes.append(Poked())
            other = asyncio.create_task(pokes[-1].wait())
            waiting = asyncio.create_task(ctx.wait_for("go"))
            await asyncio.wait({other, waiting}, return_when=asyncio.FIRST_COMPLETED)
            return await waiting if waiting.done() else "other"

    return race


def test_a_function_that_ends_while_its_run_is_suspended_is_replayed(app, race, bodies, pokes):
    run = race.enqueue()
    with app.worker(concurrency=1) as worker:
        wait_until(lambda: suspended(run))
        pokes[0].poke()
        wait_until(lambda: bodies.left["race"] == 1)
        app.emit("go", "now")
        assert run.result(timeout=10) == "now"
        wait_until(lambda: worker._components.runner.busy_slots == 0)  # freed once per attempt
    assert bodies.started["race"] == 2


def test_a_function_that_ends_between_the_claim_and_its_resumption_is_replayed(app, race, bodies, pokes, monkeypatch):
    load_waits = app.store.journal.load_waits

    def poke_and_load(runs: Any) -> Any:
        pokes[0].poke()
        return load_waits(runs)

    monkeypatch.setattr(app.store.journal, "load_waits", poke_and_load)
    run = race.enqueue()
    with app.worker():
        wait_until(lambda: suspended(run))
        app.emit("go", "now")
        assert run.result(timeout=10) == "now"
    assert bodies.started["race"] == 2


def test_a_wait_that_is_cancelled_while_its_run_is_suspended_loses_no_message(app, bodies, pokes):
    @app.task(name="inbox")
    async def inbox(ctx: Context) -> list[str]:
        with bodies.entered("inbox"):
            pokes.append(Poked())
            other = asyncio.create_task(pokes[-1].wait())
            receiving = asyncio.create_task(ctx.receive("orders"))
            await asyncio.wait({other, receiving}, return_when=asyncio.FIRST_COMPLETED)
            received = [await receiving] if receiving.done() else []
            receiving.cancel()
            while len(received) < 2:
                received.append(await ctx.receive("orders"))
            return received

    run = inbox.enqueue()
    with app.worker():
        wait_until(lambda: suspended(run))
        pokes[0].poke()
        wait_until(lambda: bodies.left["inbox"] == 1)
        run.send("orders", "first")
        run.send("orders", "second")
        assert run.result(timeout=10) == ["first", "second"]


def test_a_function_whose_suspension_is_rejected_leaves_memory(app, waiting, bodies, monkeypatch):
    run = waiting.enqueue("a")
    end = app.store.attempts.end

    def cancel_and_end(session: str, ends: Any, *claim: Any) -> Any:
        if ends[0].kind == "waiting":
            run.cancel()
        return end(session, ends, *claim)

    monkeypatch.setattr(app.store.attempts, "end", cancel_and_end)
    with app.worker():
        wait_until(lambda: bodies.left["a"] == 1)
    assert bodies.started["a"] == 1


def test_a_resident_function_keeps_no_failures_that_its_code_has_handled(app):
    failures: list[weakref.ref[BaseException]] = []

    async def fail() -> None:
        raise Fatal("declined")

    @app.task(name="patient")
    async def patient(ctx: Context) -> None:
        for _ in range(3):
            try:
                await ctx.receive("orders", timeout=0.01)
            except WaitTimeout as timeout:
                failures.append(weakref.ref(timeout))
            try:
                await ctx.step(fail, name="fail")
            except StepFailed as failed:
                failures.append(weakref.ref(failed))
        await ctx.wait_for("go")

    run = patient.enqueue()
    with app.worker():
        wait_until(lambda: len(failures) == 6 and suspended(run))
        gc.collect()
        assert [failure() for failure in failures] == [None] * 6
