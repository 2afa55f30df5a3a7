"""`@app.middleware`: functions around attempts and steps."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from holdfast import Call, Context, Holdfast, Retry, RunFailed, SyncContext
from holdfast.errors import ConfigError
from tests.support.durable import drain, state

ONCE = Retry(max_attempts=1)


def add(a: int, b: int = 1) -> int:
    return a + b


async def double(a: int) -> int:
    await asyncio.sleep(0)
    return 2 * a


def fail() -> None:
    raise ValueError("no")


def insert(connection: Any, value: int) -> int:
    return value


@pytest.fixture
def seen(app: Holdfast) -> list[str]:
    """What two middlewares see, one async and one sync."""
    seen: list[str] = []

    @app.middleware
    async def outer(call: Call) -> Any:
        seen.append(f"outer {call.task} {call.step} {call.attempt}")
        try:
            value = await call()
        except Exception as error:
            seen.append(f"outer {type(error).__name__}")
            raise
        seen.append(f"outer got {value}")
        return value

    @app.middleware
    def inner(call: Call) -> Any:
        seen.append(f"inner {call.step}")
        return call()

    return seen


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_attempts_and_steps_are_wrapped_and_recorded_steps_are_not(app, seen, kind):
    if kind == "async":

        @app.task(name="work")
        async def work(ctx: Context) -> int:
            value = await ctx.step(add, 1) + await ctx.step(double, 5)
            value += await ctx.transaction(insert, 1)
            await ctx.wait_for("go")
            return value
    else:

        @app.task(name="work")
        def work(ctx: SyncContext) -> int:
            value = ctx.step(add, 1) + ctx.step(add, 9)
            value += ctx.transaction(insert, 1)
            ctx.wait_for("go")
            return value

    run = work.enqueue()
    drain(app)
    steps = ["add", "double" if kind == "async" else "add", "insert"]
    assert [line for line in seen if line.startswith("inner")] == ["inner None", *(f"inner {step}" for step in steps)]
    assert [line for line in seen if line.startswith("outer got")] == ["outer got 2", "outer got 10", "outer got 1"]
    seen.clear()
    app.emit("go")
    drain(app)
    assert run.result() == 13
    assert [line for line in seen if not line.startswith("outer work")] == ["inner None", "outer got 13"]


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_jobs_are_wrapped_where_they_run_and_see_their_errors(app, seen, kind):
    threads = []

    async def on_loop(value: int) -> int:
        return value

    def in_thread(value: int) -> int:
        threads.append(threading.current_thread())
        return value

    @app.middleware
    def note_thread(call: Call) -> Any:
        threads.append(threading.current_thread())
        return call()

    task = app.task(name="work")(on_loop if kind == "async" else in_thread)
    broken = app.task(name="broken", retry=ONCE)(fail)
    run = task.enqueue(7)
    drain(app)
    assert run.result() == 7
    assert seen == ["outer work None 1", "inner None", "outer got 7"]
    assert len(set(threads)) == 1
    seen.clear()
    failed = broken.enqueue()
    drain(app)
    assert seen == ["outer broken None 1", "inner None", "outer ValueError"]
    assert "fail" in (failed.info().error.traceback or "")


def test_a_middleware_may_replace_results_and_errors(app):
    @app.middleware
    async def forgiving(call: Call) -> Any:
        try:
            return await call() + 1
        except ValueError:
            return 0

    @app.task(name="work")
    def work(good: bool) -> int:
        if not good:
            raise ValueError
        return 1

    good, bad = work.enqueue(True), work.enqueue(False)
    drain(app)
    assert (good.result(), bad.result()) == (2, 0)


def test_async_middleware_around_a_thread_may_await_only_the_call(app):
    @app.middleware
    async def slow(call: Call) -> Any:
        await asyncio.sleep(0)
        return await call()

    @app.task(name="thread", retry=ONCE)
    def thread() -> int:
        return 1

    @app.task(name="loop", retry=ONCE)
    async def loop() -> int:
        return 1

    run, other = thread.enqueue(), loop.enqueue()
    drain(app)
    assert (state(run), other.result()) == ("failed", 1)
    with pytest.raises(RunFailed, match="awaits more than call\\(\\) around a `def` task or step: write it as a `def`"):
        run.result()


def test_a_middleware_is_a_function(app):
    with pytest.raises(ConfigError, match="takes a function of a Call, not 3"):
        app.middleware(3)
