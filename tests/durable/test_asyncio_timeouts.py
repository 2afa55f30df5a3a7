"""`asyncio.timeout` and similar timeouts: rejected around durable waits, allowed around steps."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from holdfast import Context, Fatal, Holdfast, Retry, RunFailed
from tests.support.durable import drain, kinds

LONG = 3600


async def timeout(work: Awaitable[Any]) -> Any:
    async with asyncio.timeout(LONG):
        return await work


async def timeout_at(work: Awaitable[Any]) -> Any:
    async with asyncio.timeout_at(asyncio.get_running_loop().time() + LONG):
        return await work


async def wait_for(work: Awaitable[Any]) -> Any:
    return await asyncio.wait_for(work, LONG)


async def wait(work: Awaitable[Any]) -> Any:
    [done], _ = await asyncio.wait([asyncio.ensure_future(work)], timeout=LONG)
    return done.result()


async def around_a_gather(work: Awaitable[Any]) -> Any:
    async with asyncio.timeout(LONG):
        return (await asyncio.gather(work, asyncio.sleep(0)))[0]


async def around_a_group(work: Any) -> Any:
    async with asyncio.timeout(LONG):
        async with asyncio.TaskGroup() as group:
            task = group.create_task(work)
        return task.result()


async def rescheduled(work: Awaitable[Any]) -> Any:
    async with asyncio.timeout(None) as limit:
        limit.reschedule(asyncio.get_running_loop().time() + LONG)
        return await work


async def fail_after(work: Awaitable[Any]) -> Any:
    anyio = pytest.importorskip("anyio")
    with anyio.fail_after(LONG):
        return await work


AROUND = [timeout, timeout_at, wait_for, wait, around_a_gather, around_a_group, rescheduled, fail_after]
Around = Callable[[Any], Awaitable[Any]]


def waits(app: Holdfast) -> dict[str, Callable[[Context], Awaitable[Any]]]:
    @app.task(name="child")
    async def child(ctx: Context, number: int = 0) -> None:
        await ctx.wait_for("never")

    async def join(ctx: Context) -> None:
        await ctx.join(await ctx.spawn(child))

    return {
        "sleep": lambda ctx: ctx.sleep(LONG),
        "event": lambda ctx: ctx.wait_for("never"),
        "event with a timeout": lambda ctx: ctx.wait_for("never", timeout=LONG),
        "message": lambda ctx: ctx.receive("topic"),
        "call": lambda ctx: ctx.call(child),
        "join": join,
        "map": lambda ctx: ctx.map(child, [1, 2]),
    }


def check_that_it_was_refused(run: Any) -> None:
    error = run.info().error
    assert (run.info().state, error.code) == ("failed", "fatal"), error
    assert "timeout=" in str(run.info().error.traceback)
    assert "retrying" not in kinds(run)


@pytest.mark.parametrize("around", AROUND, ids=lambda around: around.__name__)
def test_a_wait_inside_a_timeout_is_rejected_and_the_error_names_the_alternatives(app, around):
    @app.task(name="function")
    async def function(ctx: Context) -> None:
        await around(ctx.wait_for("never"))

    run = function.enqueue()
    drain(app)
    check_that_it_was_refused(run)


@pytest.mark.parametrize("kind", ["sleep", "event", "event with a timeout", "message", "call", "join", "map"])
def test_every_kind_of_wait_is_rejected_also_after_a_suspension_and_in_a_replay(app, ledger, kind):
    wait = waits(app)[kind]

    @app.task(name="function")
    async def function(ctx: Context) -> None:
        await ctx.wait_for("go")
        try:
            await timeout(wait(ctx))
        except Fatal:
            ledger.write("refused")
        await ctx.wait_for("again")

    run = function.enqueue()
    drain(app)
    app.emit("go")
    drain(app)
    assert run.info().state == "waiting"
    app.emit("again")
    drain(app)
    assert run.info().state == "done"
    assert ledger.lines() == ["refused", "refused"]


@pytest.mark.parametrize("around", AROUND, ids=lambda around: around.__name__)
def test_a_timeout_around_a_step_works_as_usual(app, ledger, around):
    async def step() -> str:
        async with asyncio.timeout(LONG):
            await asyncio.sleep(0)
        return "done"

    @app.task(name="function", retry=Retry(max_attempts=1))
    async def function(ctx: Context) -> str:
        got = await around(ctx.step(step))
        await ctx.wait_for("go")
        return got

    run = function.enqueue()
    drain(app)
    app.emit("go")
    drain(app)
    assert run.result(timeout=5) == "done"


def test_a_timeout_around_a_step_fires(app, ledger):
    async def hang() -> None:
        await asyncio.Event().wait()

    @app.task(name="function", retry=Retry(max_attempts=1))
    async def function(ctx: Context) -> str:
        try:
            async with asyncio.timeout(0.05):
                await ctx.step(hang)
        except TimeoutError:
            return "timed out"
        return ""

    run = function.enqueue()
    drain(app)
    assert run.result(timeout=5) == "timed out"


def test_a_timeout_around_a_step_does_not_affect_waits_of_other_branches(app):
    async def step() -> str:
        return "done"

    @app.task(name="function", retry=Retry(max_attempts=1))
    async def function(ctx: Context) -> str:
        got, _ = await asyncio.gather(timeout(ctx.step(step)), ctx.wait_for("go"))
        return got

    run = function.enqueue()
    drain(app)
    assert run.info().state == "waiting"
    app.emit("go")
    drain(app)
    assert run.result(timeout=5) == "done"


def test_a_timer_that_a_step_left_behind_does_not_reject_waits(app):
    left: list[Any] = []

    async def connect() -> None:
        async def keep_alive() -> None:
            async with asyncio.timeout(LONG):
                await asyncio.Event().wait()

        left.append(asyncio.create_task(keep_alive()))
        await asyncio.sleep(0)

    @app.task(name="function", retry=Retry(max_attempts=1))
    async def function(ctx: Context) -> None:
        await ctx.step(connect, name="connect")
        await ctx.wait_for("go")

    run = function.enqueue()
    drain(app)
    assert run.info().state == "waiting"


@pytest.mark.parametrize("kind", ["asyncio", "uvloop"])
def test_a_wait_inside_a_timeout_is_rejected_on_the_users_own_event_loop(app, kind):
    uvloop = pytest.importorskip("uvloop") if kind == "uvloop" else None

    @app.task(name="function")
    async def function(ctx: Context, around: str) -> None:
        await {"timeout": timeout, "wait_for": wait_for}[around](ctx.wait_for("never"))

    async def main() -> None:
        async with app.worker():
            for around in ("timeout", "wait_for"):
                with pytest.raises(RunFailed, match="timeout="):
                    await (await function.aenqueue(around)).aresult(timeout=60)

    with asyncio.Runner(loop_factory=None if uvloop is None else uvloop.new_event_loop) as runner:
        runner.run(main())
