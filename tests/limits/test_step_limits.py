"""Limits of steps: permits are taken before a step runs and returned with its checkpoint."""

from __future__ import annotations

import asyncio
import threading
from uuid import UUID

import pytest

from holdfast import Context, Holdfast, Retry, SyncContext
from holdfast.cli.render_history import awaited
from holdfast.control import Control
from holdfast.control.explainer import Explainer
from holdfast.errors import ConfigError, CostExceedsLimit, LimitNotTaken, RunFailed, TaskError
from holdfast.testing import context
from tests.support.durable import drain
from tests.support.wait_until import wait_until


def counter(app: Holdfast, name: str):
    (found,) = app.store.limits.counters(name)
    return found


def reasons(app: Holdfast, run) -> list[str]:
    return [reason.text for reason in Explainer(app.store).why(UUID(str(run.id))).reasons]


@pytest.mark.parametrize("blocking", [False, True])
def test_steps_of_many_runs_share_a_limit(app, blocking):
    app.limit("two", concurrency=2)
    lock, now, most = threading.Lock(), [0], [0]

    def work(number: int) -> int:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        with lock:
            now[0] -= 1
        return number

    if blocking:

        @app.task(name="run")
        def run(ctx: SyncContext, number: int) -> int:
            return sum(ctx.options(limits=["two"], name=f"s{n}").step(work, number) for n in range(3))

    else:

        @app.task(name="run")
        async def run(ctx: Context, number: int) -> int:
            steps = [ctx.options(limits=["two"], name=f"s{n}").step(work, number) for n in range(3)]
            return sum(await asyncio.gather(*steps))

    runs = run.enqueue_many([(number,) for number in range(6)])
    with app.worker():
        assert [each.result(timeout=60) for each in runs] == [3 * number for number in range(6)]
    assert 1 <= most[0] <= 2
    assert (counter(app, "two").used if app.store.limits.counters("two") else 0) == 0


@pytest.mark.parametrize("blocking", [False, True])
def test_a_step_that_cannot_start_suspends_its_run(timed_app, clock, blocking):
    app = timed_app
    app.limit("slow", rate="1/10s")
    called: list[int] = []

    if blocking:

        @app.task(name="run")
        def run(ctx: SyncContext, number: int) -> None:
            ctx.options(limits=["slow"], name="append").step(called.append, number)

    else:

        @app.task(name="run")
        async def run(ctx: Context, number: int) -> None:
            await ctx.options(limits=["slow"], name="append").step(called.append, number)

    runs = [run.enqueue(number) for number in range(3)]
    drain(app)
    assert len(called) == 1
    waiting = [each for each in runs if each.info().state == "waiting"]
    assert len(waiting) == 2
    (reason,) = reasons(app, waiting[0])
    assert reason == "step append is waiting: limit slow is full: 1 of 1 start used in the last 10 s"
    assert counter(app, "slow").steps == 2
    (wait,) = Control(app.store).runs.waits(waiting[0].id)
    assert (wait.kind, wait.name, awaited(wait).split(",")[0]) == ("limit", "slow", "limit slow")
    for _ in range(2):
        clock.forward(10)
        drain(app)
    assert sorted(called) == [0, 1, 2]
    assert [each.info().state for each in runs] == ["done"] * 3


def test_a_weighted_step_takes_its_cost_and_adjusts_it_once(timed_app, clock):
    app = timed_app
    app.limit("tokens", rate="100/min", cost="estimate")
    bodies: list[int] = []

    async def ask(question: str, estimate: int) -> int:
        return 7

    @app.task(name="run", retry=Retry(max_attempts=3, delay=0))
    async def run(ctx: Context) -> int:
        used = await ctx.options(limits=["tokens"]).step(ask, "why", 40)
        await ctx.adjust("tokens", used)
        bodies.append(1)
        if len(bodies) < 3:
            raise ValueError("again")
        return await ctx.options(limits=["tokens"], cost=11).step(ask, "how", 1)

    assert run.enqueue().id
    drain(app)
    for _ in range(3):
        clock.forward(0.001)
        drain(app)
    assert len(bodies) == 3
    assert counter(app, "tokens").started == 18


def test_a_step_adjusts_its_own_cost_with_its_checkpoint(app):
    app.limit("tokens", rate="100/min", cost=50)

    @app.task(name="run")
    async def run(ctx: Context) -> None:
        async def ask() -> None:
            await ctx.adjust("tokens", 3)
            await ctx.adjust("tokens", 20.5)

        await ctx.options(limits=["tokens"], name="ask").step(ask)
        with pytest.raises(LimitNotTaken):
            await ctx.adjust("tokens", 1)

    run.enqueue()
    drain(app)
    assert counter(app, "tokens").started == 21
    assert [each.state for each in app.runs()] == ["done"]


def test_the_estimate_of_a_run_is_adjusted(app):
    app.limit("tokens", rate="100/min", cost="size")

    @app.task(name="run", limits=["tokens"])
    def run(ctx: SyncContext, size: int) -> None:
        ctx.adjust("tokens", 90)
        with pytest.raises(LimitNotTaken, match="there is no cost of limit tokens to adjust"):
            ctx.adjust("tokens", 1)
        with pytest.raises(LimitNotTaken):
            ctx.adjust("other", 1)

    found = run.enqueue(10)
    drain(app)
    assert found.result(timeout=5) is None
    assert counter(app, "tokens").started == 90


def test_a_step_with_a_compensation_returns_its_permit_and_can_be_adjusted(app):
    app.limit("tokens", rate="100/min", concurrency=1, cost=50)
    undone: list[int] = []

    def charge(number: int) -> int:
        return number

    @app.task(name="run", retry=Retry(max_attempts=1))
    async def run(ctx: Context) -> None:
        for number in (1, 2):
            await ctx.options(limits=["tokens"], undo=undone.append).step(charge, number)
            await ctx.adjust("tokens", number)
        raise ValueError("over")

    found = run.enqueue()
    drain(app)
    with pytest.raises(RunFailed, match="over"):
        found.result(timeout=5)
    assert undone == [2, 1]
    assert (counter(app, "tokens").used, counter(app, "tokens").started) == (0, 3)


def test_a_cost_above_the_whole_limit_fails_the_run_without_a_retry(app):
    app.limit("tokens", rate="100/min", cost="size")

    def ask(size: int) -> None: ...

    async def run(ctx: Context) -> None:
        await ctx.options(limits=["tokens"]).step(ask, 101)

    app.task(name="run", retry=Retry(max_attempts=3, delay=0))(run).enqueue()
    app.task(name="named", retry=Retry(max_attempts=3, delay=0, on=CostExceedsLimit))(run).enqueue()
    drain(app)
    assert {each.task: (each.state, each.attempt) for each in app.runs()} == {
        "run": ("failed", 1),
        "named": ("failed", 3),
    }


def test_wrong_limits_of_steps_are_refused(app):
    app.limit("tokens", rate="100/min", cost="size")
    app.limit("plain", concurrency=1)
    found: list[str] = []

    def ask(size: int) -> None: ...

    @app.task(name="run", limits=["plain"])
    async def run(ctx: Context) -> None:
        for error, options, size in [
            (ConfigError, {"limits": ["gone"]}, 1),
            (CostExceedsLimit, {"limits": ["tokens"]}, 101),
            (TaskError, {"limits": ["plain"]}, 1),
            (ConfigError, {"limits": "tokens"}, 1),
            (ConfigError, {"cost": 1}, 1),
            (ConfigError, {"limits": ["tokens"], "cost": -1}, 1),
        ]:
            with pytest.raises(error) as raised:
                await ctx.options(**options).step(ask, size)
            found.append(str(raised.value))
        with pytest.raises(TaskError, match="must be a number from 0"):
            await ctx.adjust("tokens", -1)

    run.enqueue()
    drain(app)
    assert [each.state for each in app.runs()] == ["done"]
    assert found[0].startswith("step ask: limit 'gone' is not declared")
    assert found[1] == "step ask has a cost of 101, and limit tokens allows 100 per period: it would never start"
    assert found[2].startswith("step ask has limit plain, of which its run holds a permit")


def test_steps_get_permits_in_the_order_in_which_they_began_to_wait(timed_app, clock):
    app = timed_app
    app.limit("tokens", rate="10/10s", cost="size")
    called: list[int] = []

    async def work(number: int, size: int) -> None:
        called.append(number)

    @app.task(name="run")
    async def run(ctx: Context, number: int, size: int) -> None:
        await ctx.options(limits=["tokens"], name="work").step(work, number, size)

    for number, size in enumerate([6, 6, 1, 1]):
        run.enqueue(number, size)
        drain(app)
        clock.forward(0.01)
    assert called == [0], "the cheap ones would keep the second waiting forever"
    clock.forward(10)
    drain(app)
    drain(app)
    assert called[:2] == [0, 1]
    assert sorted(called) == [0, 1, 2, 3]


def test_a_raised_limit_wakes_waiting_steps(app):
    app.limit("slow", rate="1/day")

    @app.task(name="run")
    async def run(ctx: Context, number: int) -> int:
        return await ctx.options(limits=["slow"]).step(abs, number)

    runs = [run.enqueue(number) for number in range(3)]
    with app.worker():
        wait_until(lambda: sum(each.info().state == "waiting" for each in runs) == 2)
        app.limits.set("slow", rate="5/day")
        assert [each.result(timeout=30) for each in runs] == [0, 1, 2]


def test_a_cancelled_run_gives_its_place_to_the_next(timed_app, clock):
    app = timed_app
    app.limit("slow", rate="1/10s")
    called: list[int] = []

    @app.task(name="run")
    async def run(ctx: Context, number: int) -> None:
        await ctx.options(limits=["slow"], name="append").step(called.append, number)

    runs = []
    for number in range(3):
        runs.append(run.enqueue(number))
        drain(app)
        clock.forward(0.01)
    runs[1].cancel()
    clock.forward(10)
    drain(app)
    assert called == [0, 2]


def test_direct_calls_ignore_limits():
    async def ask(size: int) -> int:
        return size

    async def run(ctx: Context) -> int:
        used = await ctx.options(limits=["tokens"], cost=5).step(ask, 3)
        await ctx.adjust("tokens", used)
        return used

    assert asyncio.run(run(context())) == 3
