"""Cancelled branches and ended attempts: no branch is left waiting, and nothing is forgotten."""

from __future__ import annotations

import asyncio
import sys
import threading

import pytest

from holdfast import Context, Fatal, Retry, RunCancelled, RunFailed, idempotency_key
from holdfast.engine.durable.steps import StepCalls
from tests.support.durable import drain
from tests.support.wait_until import wait_until

QUICK = Retry(max_attempts=3, delay=0)
ONCE = Retry(max_attempts=1)


def test_a_branch_cancelled_while_it_replays_a_join_does_not_block_others(app, effects, ledger):
    @app.task(name="child")
    async def child() -> str:
        return "child"

    @app.task(name="parent")
    async def parent(ctx: Context) -> str:
        call = asyncio.create_task(ctx.call(child))
        await asyncio.wait([call, asyncio.create_task(ctx.step(effects.note, "first"))], return_when="ALL_COMPLETED")
        await ctx.wait_for("go on")
        again = asyncio.create_task(ctx.call(child))
        await asyncio.sleep(0)
        again.cancel()
        return await ctx.step(effects.note, "last")

    run = parent.enqueue()
    drain(app)
    app.emit("go on")
    drain(app)
    assert run.result(timeout=10) == "last"


def test_a_transaction_whose_caller_was_cancelled_does_not_block_others(app, effects):
    entered, leave = threading.Event(), threading.Event()

    def slow(_connection) -> int:
        entered.set()
        leave.wait(10)
        return 1

    @app.task(name="parent")
    async def parent(ctx: Context) -> str:
        call = asyncio.create_task(ctx.transaction(slow, name="slow"))
        while not entered.is_set():
            await asyncio.sleep(0.001)
        call.cancel()
        leave.set()
        return await ctx.step(effects.note, "last")

    run = parent.enqueue()
    drain(app)
    assert run.result(timeout=10) == "last"


def test_a_step_that_calls_exit_fails_only_its_own_run(app, effects):
    async def leave() -> None:
        sys.exit(3)

    @app.task(name="leaving", retry=ONCE)
    async def leaving(ctx: Context) -> None:
        await asyncio.gather(ctx.options(name="leave").step(leave), ctx.step(effects.anote, "beside"))

    @app.task(name="staying")
    async def staying(ctx: Context) -> str:
        return await ctx.step(effects.anote, "stayed")

    with app.worker():
        with pytest.raises(RunFailed, match="SystemExit: 3"):
            leaving.enqueue().result(timeout=30)
        assert staying.enqueue().result(timeout=30) == "stayed"


def test_a_failure_that_ended_the_attempt_is_retried_even_if_a_finally_block_recorded_something(app, effects, ledger):
    @app.task(name="work", retry=QUICK)
    async def work(ctx: Context) -> str:
        try:
            return await ctx.step(effects.fail_until, "flaky", 2)
        finally:
            await ctx.step(effects.note, "cleanup")

    run = work.enqueue()
    drain(app)
    assert run.result(timeout=10) == "flaky"
    assert ledger.lines() == ["flaky", "cleanup", "flaky"]


def test_a_failure_inside_a_group_is_retried_whatever_was_recorded_after_it(app, effects, ledger):
    @app.task(name="work", retry=QUICK)
    async def work(ctx: Context) -> str:
        async with asyncio.TaskGroup() as group:
            flaky = group.create_task(ctx.step(effects.fail_until, "flaky", 2))
            group.create_task(ctx.step(effects.anote, "other"))
        return flaky.result()

    run = work.enqueue()
    drain(app)
    assert run.result(timeout=10) == "flaky"
    assert ledger.counts()["flaky"] == 2


def test_a_fatal_failure_inside_a_group_is_not_retried(app, ledger):
    async def bad() -> None:
        ledger.write("bad")
        raise Fatal("no use")

    @app.task(name="work", retry=QUICK)
    async def work(ctx: Context) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.options(name="bad").step(bad))

    run = work.enqueue()
    drain(app)
    with pytest.raises(RunFailed) as caught:
        run.result(timeout=10)
    assert caught.value.error.code == "fatal"
    assert ledger.lines() == ["bad"]


def test_finished_steps_are_undone_even_if_the_body_hangs_after_them(app, effects, ledger):
    hanging = threading.Event()

    @app.task(name="work")
    async def work(ctx: Context) -> None:
        await ctx.step(effects.note, "booked", undo=effects.note)
        hanging.set()
        await asyncio.Event().wait()

    with app.worker(lease=3):
        run = work.enqueue()
        assert hanging.wait(30)
        assert run.cancel()
        with pytest.raises(RunCancelled):
            run.result(timeout=30)
    assert ledger.lines() == ["booked", "booked"]


def charging(app, ledger, charge):
    """A task whose only step calls this function, with an undo that notes what it is given."""

    def refund(payment: str) -> None:
        ledger.write(f"refunded {payment}")

    @app.task(name="work")
    async def work(ctx: Context) -> None:
        await ctx.options(name="charge", undo=refund).step(charge)

    return work


def test_a_step_in_a_thread_that_runs_during_the_cancel_is_undone(app, ledger):
    entered, leave = threading.Event(), threading.Event()

    def charge() -> str:
        entered.set()
        leave.wait(30)
        ledger.write("charged")
        return "payment"

    work = charging(app, ledger, charge)
    with app.worker(lease=1.5) as worker:
        run = work.enqueue()
        assert entered.wait(30)
        assert run.cancel()
        wait_until(lambda: all(a.stop_reason == "lost" for a in worker._components.state.claimed().values()))
        leave.set()
        with pytest.raises(RunCancelled):
            run.result(timeout=30)
    assert ledger.lines() == ["charged", "refunded payment"]


def test_a_step_whose_thread_ends_at_the_moment_of_the_cancel_is_undone(app, ledger, monkeypatch):
    """The function has returned, but the event loop hasn't processed that yet."""

    def charge() -> str:
        ledger.write("charged")
        assert run.cancel()
        return "payment"

    forget, told = StepCalls._forget, []

    def cancelled_now(calls, threads, under_way):
        if not told:
            told.append(True)
            calls._services.stop(calls._attempt, "lost")
        forget(calls, threads, under_way)

    monkeypatch.setattr(StepCalls, "_forget", cancelled_now)
    run = charging(app, ledger, charge).enqueue()
    with app.worker(), pytest.raises(RunCancelled):
        run.result(timeout=30)
    assert ledger.lines() == ["charged", "refunded payment"]


def test_a_step_that_was_undone_has_another_idempotency_key_when_it_is_retried(app, ledger):
    keys: list[str] = []
    undo_keys: list[str] = []

    def charge() -> str:
        keys.append(idempotency_key())
        return "payment"

    def refund(_payment: str) -> None:
        undo_keys.append(idempotency_key())

    def ship() -> str:
        if len(keys) < 3:
            raise Fatal("out of paper")
        return "shipped"

    @app.task(name="work")
    async def work(ctx: Context) -> str:
        await ctx.options(name="charge", undo=refund).step(charge)
        return await ctx.options(name="ship").step(ship)

    run = work.enqueue()
    for _ in range(2):
        drain(app)
        run.retry()
    drain(app)
    assert run.result(timeout=10) == "shipped"
    assert len(set(keys)) == 3
    assert len(set(undo_keys)) == 2


def test_a_fork_between_two_joins_of_a_child_knows_how_the_child_ended(app, effects):
    @app.task(name="child")
    async def child() -> int:
        return 5

    @app.task(name="parent")
    async def parent(ctx: Context) -> list[int]:
        spawned = await ctx.spawn(child)
        first = await ctx.join(spawned)
        await ctx.step(effects.note, "mid")
        return [first, await ctx.join(spawned)]

    run = parent.enqueue()
    drain(app)
    assert run.result(timeout=10) == [5, 5]
    fork = run.fork(from_step="note")
    drain(app)
    assert fork.result(timeout=10) == [5, 5]
