"""Waits: suspended runs hold no slot, resume by replay, and keep the outcomes of their waits."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import UTC, datetime, timedelta

import pytest

from holdfast import Context, Retry, RunFailed, WaitTimeout
from tests.support.durable import drain, kinds, state
from tests.support.history_queries import fetch
from tests.support.wait_until import wait_until

ONCE = Retry(max_attempts=1)


def row(app, run):
    return app.store.queries.run(str(run.id))


@pytest.mark.parametrize("how", ["sleep", "sleep_until"])
def test_a_sleep_is_due_exactly_by_the_databases_clock(timed_app, clock, ledger, how):
    until = datetime.fromtimestamp(clock.micros / 1e6, UTC) + timedelta(seconds=10)

    @timed_app.task(name="work")
    async def work(ctx: Context) -> str:
        ledger.write("body")
        await (ctx.sleep(10) if how == "sleep" else ctx.sleep_until(until))
        return "awake"

    run = work.enqueue()
    drain(timed_app)
    assert state(run) == "waiting"
    clock.forward(9.999999)
    drain(timed_app)
    assert (state(run), len(ledger.lines())) == ("waiting", 1)
    clock.forward(0.000001)
    drain(timed_app)
    assert run.result(timeout=5) == "awake"
    assert kinds(run) == ["enqueued", "started", "waiting", "resumed", "done"]


def test_a_retry_does_not_extend_a_sleep(timed_app, clock, effects, ledger):
    @timed_app.task(name="work", retry=Retry(max_attempts=2, delay=6, jitter=0))
    async def work(ctx: Context) -> str:
        await asyncio.gather(ctx.sleep(10), ctx.step(effects.fail_until, "flaky", 2))
        return "awake"

    run = work.enqueue()
    drain(timed_app)
    assert state(run) == "scheduled"
    clock.forward(6)
    drain(timed_app)
    assert (state(run), ledger.counts()) == ("waiting", {"flaky": 2})
    clock.forward(4)
    drain(timed_app)
    assert run.result(timeout=5) == "awake"


def test_a_sleep_of_zero_or_until_a_past_time_ends_at_once(app):
    @app.task(name="work")
    async def work(ctx: Context) -> str:
        await ctx.sleep_until(datetime(2020, 1, 1, tzinfo=UTC))
        await ctx.sleep(0)
        await ctx.sleep(timedelta(0), name="named")
        return "awake"

    run = work.enqueue()
    with app.worker():
        assert run.result(timeout=30) == "awake"


def test_a_sleep_does_not_depend_on_the_workers_clock(app, monkeypatch):
    real, real_ns = time.time, time.time_ns
    monkeypatch.setattr(time, "time", lambda: real() + 600)
    monkeypatch.setattr(time, "time_ns", lambda: real_ns() + 600 * 10**9)

    @app.task(name="work")
    async def work(ctx: Context) -> datetime:
        await ctx.sleep(0.1)
        return await ctx.now()

    with app.worker():
        run = work.enqueue()
        slept = run.result(timeout=30)
    assert abs((slept - datetime.fromtimestamp(real(), UTC)).total_seconds()) < 60
    assert (slept - run.info().created_at).total_seconds() >= 0.1


def test_a_suspended_run_holds_no_session_and_no_slot(app, ledger):
    @app.task(name="waits")
    async def waits(ctx: Context, n: int) -> int:
        await ctx.wait_for("go")
        return n

    @app.task(name="job")
    async def job() -> None:
        ledger.write("job")

    with app.worker(concurrency=1):
        runs = waits.enqueue_many([(n,) for n in range(10)])
        wait_until(lambda: all(state(run) == "waiting" for run in runs))
        assert {row(app, run).session for run in runs} == {None}
        job.enqueue().result(timeout=30)
        app.emit("go")
        assert [run.result(timeout=30) for run in runs] == list(range(10))


def test_except_exception_does_not_swallow_the_suspension(app, ledger):
    @app.task(name="work")
    async def work(ctx: Context) -> str:
        try:
            await ctx.wait_for("go")
        except Exception:
            ledger.write("caught")
        return "went on"

    run = work.enqueue()
    drain(app)
    assert (state(run), ledger.lines()) == ("waiting", [])
    app.emit("go")
    drain(app)
    assert run.result(timeout=5) == "went on"


@pytest.mark.parametrize("then", ["return", "raise", "wait", "step"])
def test_not_even_except_base_exception_swallows_the_suspension(app, effects, ledger, then):
    @app.task(name="work", retry=ONCE)
    async def work(ctx: Context) -> str:
        try:
            return await ctx.wait_for("go")
        except BaseException:
            if then == "raise":
                raise ValueError("mine") from None
            if then == "wait":
                await ctx.wait_for("other")
            if then == "step":
                await ctx.step(effects.note, "ran")
            return "swallowed"

    run = work.enqueue()
    drain(app)
    assert (state(run), ledger.lines()) == ("waiting", [])
    assert {wait.key for wait in app.store.queries.waits(str(run.id))} == {"$event:go#1"}
    app.emit("go", "the event")
    drain(app)
    assert run.result(timeout=5) == "the event"


def test_finally_blocks_run_at_each_suspension_but_their_steps_only_at_the_end(app, effects, ledger):
    @app.task(name="work")
    async def work(ctx: Context) -> None:
        try:
            await ctx.wait_for("one")
            await ctx.wait_for("two")
        finally:
            ledger.write("finally")
            await ctx.step(effects.note, "cleaned up")

    run = work.enqueue()
    for event in ("", "one", "two"):
        if event:
            app.emit(event)
        drain(app)
    run.result(timeout=5)
    assert ledger.lines() == ["finally", "finally", "finally", "cleaned up"]


def test_background_tasks_end_with_the_run_and_at_its_suspensions(app, ledger):
    @app.task(name="work")
    async def work(ctx: Context) -> str:
        async def waits() -> None:
            try:
                await ctx.wait_for("never")
            finally:
                ledger.write("ended")

        kept.append(asyncio.create_task(waits()))
        await ctx.wait_for("go")
        return "done"

    kept: list[asyncio.Task[None]] = []
    run = work.enqueue()
    drain(app)
    wait_until(lambda: ledger.lines() == ["ended"])
    app.emit("go")
    drain(app)
    assert run.result(timeout=5) == "done"
    wait_until(lambda: ledger.lines() == ["ended", "ended"])
    assert all(task.done() for task in kept)
    assert fetch(app, "select count(*) from {}waits") == [(0,)]


def test_a_closed_context_rejects_every_call(app, effects, ledger):
    kept = []

    @app.task(name="work")
    async def work(ctx: Context) -> None:
        kept.append(ctx)

    @app.task(name="later")
    async def later(ctx: Context) -> str:
        try:
            await kept[0].step(effects.note, "ran")
        except asyncio.CancelledError as refused:
            return str(refused)
        return ""

    work.enqueue()
    drain(app)
    run = later.enqueue()
    drain(app)
    assert "can't be used" in run.result(timeout=5)
    assert ledger.lines() == []


def test_a_wait_that_timed_out_replays_as_timed_out_even_when_the_event_came_later(timed_app, clock, ledger):
    @timed_app.task(name="work")
    async def work(ctx: Context) -> str:
        try:
            await ctx.wait_for("late", timeout=10)
        except WaitTimeout:
            ledger.write("timed out")
        return await ctx.wait_for("go")

    run = work.enqueue()
    drain(timed_app)
    clock.forward(9.9)
    drain(timed_app)
    assert ledger.lines() == []
    clock.forward(0.1)
    drain(timed_app)
    timed_app.emit("late", "too late")
    timed_app.emit("go", "went")
    drain(timed_app)
    assert run.result(timeout=5) == "went"
    assert ledger.lines() == ["timed out", "timed out"]


def test_an_event_that_arrived_in_time_is_not_timed_out_by_a_later_poll(timed_app, clock):
    @timed_app.task(name="work")
    async def work(ctx: Context) -> str:
        return await ctx.wait_for("go", timeout=10)

    run = work.enqueue()
    drain(timed_app)
    timed_app.emit("go", "in time")
    clock.forward(3600)
    drain(timed_app)
    assert run.result(timeout=5) == "in time"


def test_several_branches_wait_at_once_and_resume_one_by_one(app, effects, ledger):
    @app.task(name="work")
    async def work(ctx: Context) -> list[str]:
        async def branch(name: str) -> str:
            await ctx.wait_for(name)
            return await ctx.step(effects.note, name)

        return await asyncio.gather(*map(branch, "abc"))

    run = work.enqueue()
    drain(app)
    assert run.history()[-1].data == {"waits_for": ["$event:a#1", "$event:b#1", "$event:c#1"]}
    for name in "bca":
        app.emit(name)
        drain(app)
    assert run.result(timeout=5) == ["a", "b", "c"]
    assert ledger.lines() == ["b", "c", "a"]
    assert run.info().attempt == 1


def test_an_event_emitted_while_a_wait_is_being_registered_wakes_it(app, ledger):
    """Each emit races with the registration of the wait for it."""

    def emit(name: str) -> None:
        threading.Thread(target=app.emit, args=(name, name)).start()

    @app.task(name="work")
    async def work(ctx: Context, name: str) -> str:
        await ctx.step(emit, name, name="emit")
        return await ctx.wait_for(name)

    with app.worker(concurrency=10):
        runs = work.enqueue_many([(f"event {n}",) for n in range(60)])
        assert [run.result(timeout=60) for run in runs] == [f"event {n}" for n in range(60)]


def test_an_attempts_timeout_does_not_count_waiting(timed_app, clock, ledger):
    def take(seconds: int) -> None:
        clock.forward(seconds)

    @timed_app.task(name="work", timeout=100, retry=ONCE)
    async def work(ctx: Context) -> str:
        for n in range(3):
            await ctx.step(take, 60, name="take")
            await ctx.wait_for(f"event {n}")
        return "done"

    run = work.enqueue()
    drain(timed_app, lease=36_000)
    clock.forward(3600)
    timed_app.emit("event 0")
    drain(timed_app, lease=36_000)
    assert state(run) == "waiting", "60 s of work and an hour of waiting"
    timed_app.emit("event 1")
    drain(timed_app, lease=36_000)
    assert (state(run), run.info().error.code) == ("failed", "timeout"), "120 s of work"


def test_a_deadline_passes_while_a_run_waits(timed_app, clock, effects, ledger):
    @timed_app.task(name="work", deadline=100)
    async def work(ctx: Context) -> None:
        await ctx.wait_for("go")
        await ctx.step(effects.note, "ran")

    run = work.enqueue()
    drain(timed_app)
    clock.forward(100)
    drain(timed_app)
    with pytest.raises(RunFailed) as failed:
        run.result(timeout=5)
    assert failed.value.error.code == "deadline"
    timed_app.emit("go")
    drain(timed_app)
    assert (ledger.lines(), state(run)) == ([], "failed")
