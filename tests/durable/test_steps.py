"""Steps: run once, recorded, typed, retried, identified by name and arguments."""

from __future__ import annotations

import asyncio
import gc
import inspect
import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from uuid import UUID

import pytest

from holdfast import Context, Retry, RunFailed, StepFailed, SyncContext
from holdfast.engine.attempt import Attempt
from holdfast.engine.durable.steps import StepThreads
from tests.support.durable import drain, kinds, state
from tests.support.wait_until import wait_until

ONCE = Retry(max_attempts=1)
THREE_AT_ONCE = Retry(max_attempts=3, delay=0)


class Colour(Enum):
    RED = "red"


@dataclass
class Order:
    id: UUID
    price: Decimal
    at: datetime
    colour: Colour
    lines: tuple[str, ...]


ORDER = Order(UUID(int=7), Decimal("1.10"), datetime(2026, 1, 2, tzinfo=UTC), Colour.RED, ("a", "b"))


def make_order() -> Order:
    return ORDER


async def amake_order() -> Order:
    return ORDER


def pair() -> tuple[int, int]:
    return (1, 2)


def untyped(value):
    return value


def test_a_finished_step_is_not_run_again(app, effects, ledger):
    @app.task(name="work")
    async def work(ctx: Context) -> list[str]:
        got = [await ctx.step(effects.note, "a"), await ctx.step(effects.anote, "b")]
        ledger.write("body")
        await ctx.wait_for("go")
        return [*got, await ctx.step(effects.note, "c")]

    run = work.enqueue()
    drain(app)
    assert state(run) == "waiting"
    app.emit("go")
    drain(app)
    assert run.result(timeout=5) == ["a", "b", "c"]
    assert ledger.lines() == ["a", "b", "body", "body", "c"]
    assert kinds(run) == ["enqueued", "started", "waiting", "resumed", "done"]
    assert run.info().attempt == 1


@pytest.mark.parametrize("make", [make_order, amake_order])
def test_a_step_gives_the_decoded_value_the_first_time_and_in_a_replay(app, ledger, make):
    @app.task(name="work")
    async def work(ctx: Context) -> None:
        order = await ctx.step(make)
        two = await ctx.step(pair)
        plain = await ctx.step(untyped, {"at": ORDER.at, "pair": (1, 2)})
        ledger.write(order == ORDER, order is not ORDER, type(two).__name__, plain)
        await ctx.wait_for("go")

    run = work.enqueue()
    drain(app)
    app.emit("go")
    drain(app)
    run.result(timeout=5)
    first, again = ledger.lines()
    assert first == again == "True True tuple {'at': '2026-01-02T00:00:00Z', 'pair': [1, 2]}"


def test_a_recorded_null_is_a_result(app, ledger):
    def nothing() -> None:
        ledger.write("ran")

    @app.task(name="work")
    async def work(ctx: Context) -> None:
        assert await ctx.step(nothing, name="nothing") is None
        await ctx.wait_for("go")

    run = work.enqueue()
    drain(app)
    app.emit("go")
    drain(app)
    assert (state(run), ledger.lines()) == ("done", ["ran"])


def test_plain_functions_of_steps_run_in_threads_and_coroutines_on_the_loop(app, ledger):
    def where() -> None:
        ledger.write("plain", threading.current_thread().name == body)

    async def awhere() -> None:
        ledger.write("async", threading.current_thread().name == body)

    body = ""

    @app.task(name="work")
    async def work(ctx: Context) -> None:
        nonlocal body
        body = threading.current_thread().name
        await ctx.step(where, name="where")
        await ctx.step(awhere, name="awhere")

    work.enqueue()
    drain(app)
    assert ledger.lines() == ["plain False", "async True"]


@pytest.mark.parametrize("kind", ["fail_until", "async"])
def test_a_step_is_retried_by_its_policy_within_one_attempt(app, effects, ledger, kind):
    async def afail_until(what: str, times: int) -> str:
        return effects.fail_until(what, times)

    fn = effects.fail_until if kind == "fail_until" else afail_until

    @app.task(name="work", retry=ONCE)
    async def work(ctx: Context) -> str:
        return await ctx.step(fn, "x", 3, name="flaky", retry=THREE_AT_ONCE)

    run = work.enqueue()
    drain(app)
    assert run.result(timeout=5) == "x"
    assert ledger.counts() == {"x": 3}
    assert run.info().attempt == 1


def test_a_step_without_retry_has_one_try(app, effects, ledger):
    @app.task(name="work", retry=ONCE)
    async def work(ctx: Context) -> None:
        await ctx.step(effects.fail, "x")

    run = work.enqueue()
    drain(app)
    assert (state(run), ledger.counts()) == ("failed", {"x": 1})


def test_a_steps_retry_policy_observes_on_and_never_on(app, ledger):
    def fail(kind: str) -> None:
        ledger.write(kind)
        raise {"key": KeyError, "value": ValueError}[kind](kind)

    @app.task(name="work")
    async def work(ctx: Context) -> None:
        retry = Retry(max_attempts=3, delay=0, on=ValueError)
        for kind in ("key", "value"):
            with pytest.raises(StepFailed):
                await ctx.step(fail, kind, name="fail", retry=retry)

    run = work.enqueue()
    drain(app)
    run.result(timeout=5)
    assert ledger.counts() == {"key": 1, "value": 3}


def test_finished_attempts_are_freed_without_the_garbage_collector(app):
    """The garbage collector would traverse the objects of hundreds of runs again and again."""

    @app.task(name="steps")
    async def steps(ctx: Context) -> None:
        await ctx.step(make_order)
        await asyncio.gather(ctx.step(make_order, name="a"), ctx.step(make_order, name="b"))

    @app.task(name="plain steps")
    def plain_steps(ctx: SyncContext) -> None:
        ctx.step(make_order)

    gc.disable()
    try:
        runs = [*steps.enqueue_many([()] * 5), *plain_steps.enqueue_many([()] * 5)]
        drain(app)
        ours = {str(run.id) for run in runs}
        assert {state(run) for run in runs} == {"done"}
        wait_until(lambda: not [each for each in gc.get_objects() if type(each) is Attempt and each.claim.id in ours])
    finally:
        gc.enable()


async def empty() -> None: ...


def test_a_coroutine_of_a_wrapper_that_returns_after_its_timeout_is_closed(app):
    released, made = threading.Event(), []

    def wrapper():
        released.wait(30)
        made.append(empty())
        return made[0]

    @app.task(name="work", retry=ONCE)
    async def work(ctx: Context) -> None:
        try:
            await ctx.options(name="wrapper", timeout=0.01, retry=ONCE).step(wrapper)
        finally:
            released.set()

    with app.worker():
        with pytest.raises(RunFailed):
            work.enqueue().result(timeout=30)
        wait_until(lambda: made and inspect.getcoroutinestate(made[0]) == inspect.CORO_CLOSED)


def test_a_coroutine_of_a_wrapper_is_closed_if_its_run_stops_at_that_moment(app, monkeypatch):
    finished, made, tasks = StepThreads.finished, [], []

    def cancel(self, *given):
        finished(self, *given)
        tasks[0].get_loop().call_soon(tasks[0].cancel)  # after the result is set, before the task gets it

    monkeypatch.setattr(StepThreads, "finished", cancel)

    def wrapper():
        made.append(empty())
        return made[0]

    @app.task(name="work", retry=ONCE)
    async def work(ctx: Context) -> None:
        tasks.append(asyncio.current_task())
        await ctx.options(name="wrapper").step(wrapper)

    with app.worker():
        with pytest.raises(RunFailed):
            work.enqueue().result(timeout=30)
    assert inspect.getcoroutinestate(made[0]) == inspect.CORO_CLOSED
