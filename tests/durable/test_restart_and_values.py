"""Recorded values (now, random, uuid), idempotency keys, progress and restarts."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from holdfast import Context, Retry, idempotency_key
from holdfast.errors import TaskError
from tests.support.durable import drain, kinds, state
from tests.support.history_queries import fetch
from tests.support.wait_until import wait_until

ONCE = Retry(max_attempts=1)


def test_now_random_and_uuid_are_the_same_at_each_replay(timed_app, clock, ledger):
    @timed_app.task(name="work")
    async def work(ctx: Context) -> list[str]:
        values = [await ctx.now(), await ctx.random(), await ctx.random(), await ctx.uuid(), await ctx.uuid()]
        assert isinstance(values[3], UUID)
        shown = [str(value) for value in values]
        ledger.write(*shown)
        await ctx.wait_for("go")
        return shown

    run = work.enqueue()
    drain(timed_app)
    clock.forward(3600)
    timed_app.emit("go")
    drain(timed_app)
    shown = run.result(timeout=5)
    first, again = ledger.lines()
    assert first == again == " ".join(shown)
    assert shown[0] == "2027-01-15 08:00:00+00:00", "the database's time when it was asked for"
    assert shown[1] != shown[2]
    assert shown[3] != shown[4]


def test_an_idempotency_key_is_stable_across_tries_attempts_and_stops_and_differs_elsewhere(app, ledger):
    held = asyncio.Event()

    async def pay(what: str, times: int) -> None:
        ledger.write(what, idempotency_key())
        tries = sum(words[0] == what for words in ledger.words())
        if tries == 3:
            await held.wait()
        if tries < times:
            raise ConnectionError

    @app.task(name="work", retry=Retry(max_attempts=2, delay=0))
    async def work(ctx: Context) -> None:
        await ctx.step(pay, "a", 4, name="pay", retry=Retry(max_attempts=2, delay=0))
        await ctx.step(pay, "b", 1, name="pay")
        await ctx.step(pay, "b", 1, name="pay")

    run, other = work.enqueue(), None
    with app.worker(grace=0):
        wait_until(lambda: len(ledger.lines()) == 3)
    drain(app)
    run.result(timeout=5)
    other = run.fork()
    drain(app)
    other.result(timeout=5)
    keys = [words[1] for words in ledger.words()]
    a, b, forked = set(keys[:4]), keys[4:6], keys[6:]
    assert len(a) == 1
    assert len({*a, *b}) == 3
    assert not {*a, *b} & set(forked)


def test_an_idempotency_key_is_for_steps_not_for_the_body(app):
    @app.task(name="work")
    async def work(ctx: Context) -> int:
        with pytest.raises(TaskError, match=r"ctx\.step"):
            idempotency_key()
        return 1

    run = work.enqueue()
    drain(app)
    assert run.result(timeout=5) == 1


def test_progress_is_shown_and_a_replay_does_not_turn_it_back(app, ledger):
    @app.task(name="work")
    async def work(ctx: Context) -> None:
        await ctx.progress(1, 3, "one")
        await ctx.wait_for("a")
        await ctx.progress(2, 3)
        await ctx.wait_for("b")

    run = work.enqueue()
    drain(app)
    progress = run.info().progress
    assert (progress.done, progress.total, progress.note) == (1, 3, "one")
    app.emit("a")
    drain(app)
    progress = run.info().progress
    assert (progress.done, progress.total, progress.note) == (2, 3, None)


def test_a_step_may_report_progress(app, ledger):
    @app.task(name="work")
    async def work(ctx: Context) -> None:
        async def inside() -> None:
            await ctx.progress(1, 2)

        await ctx.step(inside, name="inside")

    run = work.enqueue()
    drain(app)
    assert (state(run), run.info().progress.done) == ("done", 1)


def test_a_step_inside_a_step_is_rejected(app, effects, ledger):
    @app.task(name="work", retry=ONCE)
    async def work(ctx: Context) -> None:
        async def outer() -> None:
            await ctx.step(effects.note, "inner")

        await ctx.step(outer, name="outer")

    run = work.enqueue()
    drain(app)
    assert state(run) == "failed"
    assert "steps can't contain steps" in run.info().error.message
    assert ledger.lines() == []


def test_restart_continues_the_run_with_a_fresh_call(app, effects, ledger):
    @app.task(name="count")
    async def count(ctx: Context, n: int, seen: list[str]) -> list[str]:
        await ctx.step(effects.note, "step")
        seen.append(f"{n} {ctx.attempt} {await ctx.uuid()}")
        if n < 3:
            await ctx.restart(n + 1, seen)
            ledger.write("never")
        return seen

    run = count.enqueue(1, [])
    drain(app)
    seen = run.result(timeout=5)
    assert [line.split()[:2] for line in seen] == [["1", "1"], ["2", "1"], ["3", "1"]]
    assert len({line.split()[2] for line in seen}) == 3, "recorded values are dropped"
    assert ledger.counts() == {"step": 3}
    assert kinds(run) == ["enqueued", *["started", "restarted"] * 2, "started", "done"]
    [(rows,)] = fetch(app, "select count(*) from {}checkpoints")
    assert rows == 2, "of the last call only"


def test_restart_resets_retries_and_validates_arguments(app, ledger):
    @app.task(name="work", retry=Retry(max_attempts=2, delay=0))
    async def work(ctx: Context, n: int) -> int:
        ledger.write(n, ctx.attempt)
        if ctx.attempt == 1:
            raise ValueError("each call fails once")
        if n == 2:
            return n
        with pytest.raises(TaskError):
            await ctx.restart("no number")
        return await ctx.restart(n + 1)

    run = work.enqueue(1)
    drain(app)
    assert run.result(timeout=5) == 2
    assert ledger.lines() == ["1 1", "1 2", "2 1", "2 2"]


def test_except_exception_does_not_swallow_a_restart_nor_do_its_steps_run(app, effects, ledger):
    @app.task(name="work")
    async def work(ctx: Context, n: int) -> int:
        if n:
            return n
        try:
            await ctx.restart(1)
        except Exception:
            ledger.write("caught")
        finally:
            await ctx.step(effects.note, "finally")
        return 0

    run = work.enqueue(0)
    drain(app)
    assert (run.result(timeout=5), ledger.lines()) == (1, [])


def test_a_wait_of_the_call_before_a_restart_is_forgotten(app):
    @app.task(name="work")
    async def work(ctx: Context, n: int) -> object:
        if n == 0:
            asyncio.get_running_loop()
            kept.append(asyncio.ensure_future(ctx.wait_for("never")))
            await ctx.step(int, "1")
            await ctx.restart(1)
        return await ctx.wait_for("never", timeout=0.05 if n > 1 else None)

    kept: list[object] = []
    run = work.enqueue(0)
    drain(app)
    assert state(run) == "waiting"
    assert [wait.key for wait in app.store.queries.waits(str(run.id))] == ["$event:never#1"]
    app.emit("never", "came")
    drain(app)
    assert run.result(timeout=5) == "came"
