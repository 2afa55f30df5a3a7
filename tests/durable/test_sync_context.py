"""Sync durable functions: a SyncContext blocks, and unwinds the stack at a suspension."""

from __future__ import annotations

import threading

import pytest

from holdfast import Context, Fatal, Retry, RunCancelled, RunFailed, StepFailed, SyncContext, WaitTimeout
from holdfast.errors import TaskError
from tests.support.durable import drain, kinds, state
from tests.support.wait_until import wait_until

ONCE = Retry(max_attempts=1)


class Odd(Exception):
    def __init__(self, code: int, *, hint: str) -> None:
        super().__init__(f"{code} {hint}")


@pytest.fixture
def child(app):
    @app.task(name="child", retry=ONCE)
    def child(n: int) -> int:
        if n < 0:
            raise Fatal(f"{n} is less than nothing")
        return n * 10

    return child


def test_all_operations_of_a_sync_context_block_and_replay(app, effects, child, ledger):
    @app.task(name="work")
    def work(ctx: SyncContext) -> list[object]:
        got: list[object] = [ctx.step(effects.note, "a"), ctx.step(effects.note, "a")]
        got += [str(ctx.now()), ctx.random(), str(ctx.uuid())]
        got += [ctx.call(child, 1), ctx.map(child, [1, 2, 3], concurrency=2)]
        made = ctx.spawn(child, 5)
        got += [str(made.id), ctx.join(made), str(ctx.enqueue(child, 6).id)]
        ctx.sleep(0)
        ctx.progress(1, 2, "half")
        ctx.write("chunk")
        got += [ctx.emit("own event", 3), ctx.wait_for("own event"), ctx.receive("mail")]
        ledger.write("saw", *got)
        ctx.wait_for("go")
        ctx.check()
        return got

    run = work.enqueue()
    run.send("mail", "hello")
    drain(app)
    assert (state(run), run.info().progress.done) == ("waiting", 1)
    app.emit("go")
    drain(app)
    got = run.result(timeout=5)
    assert got[:2] == ["a", "a"]
    assert got[5:7] == [10, [10, 20, 30]]
    assert got[8] == 50
    assert got[10:] == [True, 3, "hello"]
    seen = [line for line in ledger.lines() if line.startswith("saw")]
    assert len(set(seen)) == 1
    assert ledger.counts()["a"] == 2
    assert [chunk.data for chunk in run.stream()] == ["chunk"]


def test_a_thread_that_waits_gives_up_its_slot(app, ledger):
    @app.task(name="parent")
    def parent(ctx: SyncContext, depth: int) -> int:
        return 0 if depth == 0 else 1 + ctx.call(parent, depth - 1)

    run = parent.enqueue(4)
    with app.worker(concurrency=1):
        assert run.result(timeout=30) == 4


@pytest.mark.parametrize("catch", [Exception, BaseException])
def test_no_except_clause_swallows_the_suspension_which_closes_the_context(app, effects, ledger, catch):
    @app.task(name="work", retry=ONCE)
    def work(ctx: SyncContext) -> str:
        try:
            return ctx.wait_for("go")
        except catch:
            ledger.write("caught")
            try:
                ctx.step(effects.note, "ran")
            except BaseException as refused:
                ledger.write(isinstance(refused, Exception))
            return "swallowed"
        finally:
            ledger.write("finally")

    run = work.enqueue()
    drain(app)
    assert state(run) == "waiting"
    app.emit("go", "came")
    drain(app)
    assert run.result(timeout=5) == "came"
    caught = ["caught", "False"] if catch is BaseException else []
    assert ledger.lines() == [*caught, "finally", "finally"]


def test_failures_of_steps_are_the_same_live_and_on_replay(app, effects, ledger):
    def odd() -> None:
        raise Odd(1, hint="x")

    @app.task(name="work")
    def work(ctx: SyncContext) -> None:
        try:
            ctx.step(effects.fail, "broken")
        except StepFailed as failed:
            ledger.write("saw", failed.error.type, failed.error.message, "ValueError: broken" in str(failed.__cause__))
        try:
            ctx.options(name="odd", raises=Odd).step(odd)
        except Odd as failed:
            ledger.write("odd", failed)
        ctx.wait_for("go")

    run = work.enqueue()
    drain(app)
    app.emit("go")
    drain(app)
    run.result(timeout=5)
    assert ledger.lines() == [
        "broken", "saw ValueError broken True", "odd 1 x", "saw ValueError broken True", "odd 1 x"
    ]  # fmt: skip


def test_steps_are_retried_and_a_timeout_ends_them(app, effects, ledger):
    release = threading.Event()

    def slow() -> None:
        ledger.write("slow")
        release.wait(60)

    @app.task(name="work", retry=ONCE)
    def work(ctx: SyncContext) -> str:
        ctx.step(effects.fail_until, "flaky", 3, retry=Retry(max_attempts=3, delay=0))
        try:
            ctx.step(slow, name="slow", timeout=0.05)
        except StepFailed as failed:
            return failed.error.code
        finally:
            release.set()
        return ""

    run = work.enqueue()
    drain(app)
    assert (run.result(timeout=5), ledger.counts()) == ("timeout", {"flaky": 3, "slow": 1})


def test_a_thread_that_outlives_its_steps_timeout_ends_before_the_next_try(app, ledger):
    def slow() -> str:
        ledger.write("began")
        threading.Event().wait(0.3 if len(ledger.lines()) == 1 else 0)
        ledger.write("ended")
        return "ok"

    @app.task(name="work", retry=ONCE)
    def work(ctx: SyncContext) -> str:
        return ctx.step(slow, name="slow", timeout=0.05, retry=Retry(max_attempts=3, delay=0))

    run = work.enqueue()
    drain(app)
    assert run.result(timeout=5) == "ok"
    assert ledger.lines() == ["began", "ended", "began", "ended"]


def test_a_run_is_retried_only_after_a_thread_that_outlived_its_step_ends(app, ledger):
    release = threading.Event()

    def slow() -> None:
        ledger.write("began")
        release.wait(60)
        ledger.write("ended")

    @app.task(name="work", retry=Retry(max_attempts=2, delay=0))
    def work(ctx: SyncContext) -> None:
        ledger.write("attempt", ctx.attempt)
        ctx.step(slow, name="slow", timeout=0.05)

    with app.worker():
        run = work.enqueue()
        wait_until(lambda: "retrying" in kinds(run))
        assert app.store.queries.run(str(run.id)).held == "quiescing"
        release.set()
        run.result(timeout=30)
    assert ledger.lines() == ["attempt 1", "began", "ended", "attempt 2", "began", "ended"]


def test_a_wait_that_timed_out_stays_timed_out(timed_app, clock, ledger):
    @timed_app.task(name="work")
    def work(ctx: SyncContext) -> str:
        try:
            ctx.wait_for("late", timeout=10)
        except WaitTimeout:
            ledger.write("timed out")
        return ctx.wait_for("go")

    run = work.enqueue()
    drain(timed_app)
    clock.forward(10)
    drain(timed_app)
    timed_app.emit("late")
    timed_app.emit("go", "went")
    drain(timed_app)
    assert (run.result(timeout=5), ledger.lines()) == ("went", ["timed out"] * 2)


def test_check_raises_in_a_long_loop_after_a_cancel(app, ledger):
    @app.task(name="work")
    def work(ctx: SyncContext) -> None:
        ledger.write("began")
        try:
            while True:
                ctx.check()
        except Exception:
            ledger.write("an Exception")
        finally:
            ledger.write("ended")

    with app.worker(lease=1):
        run = work.enqueue()
        wait_until(ledger.lines)
        run.cancel()
        wait_until(lambda: "ended" in ledger.lines())
        wait_until(lambda: app.store.queries.run(str(run.id)).session is None)
    assert ledger.lines() == ["began", "ended"]
    assert kinds(run) == ["enqueued", "started", "cancelled", "let_go"]


def test_check_raises_in_a_steps_thread_of_a_context_too(app, ledger):
    @app.task(name="work")
    async def work(ctx: Context) -> None:
        def loop() -> None:
            ledger.write("began")
            try:
                while True:
                    ctx.check()
            finally:
                ledger.write("ended")

        await ctx.step(loop, name="loop")

    with app.worker(lease=1):
        run = work.enqueue()
        wait_until(ledger.lines)
        run.cancel()
        wait_until(lambda: "ended" in ledger.lines())
    with pytest.raises(RunCancelled):
        run.result(timeout=5)


def test_a_childs_failure_reaches_the_caller(app, child):
    @app.task(name="work")
    def work(ctx: SyncContext) -> list[str]:
        caught = []
        try:
            ctx.call(child, -1)
        except RunFailed as failed:
            caught.append(failed.error.message)
        returned = ctx.map(child, [1, -2], errors="return")
        return [*caught, str(returned[0]), returned[1].error.message]

    run = work.enqueue()
    drain(app)
    assert run.result(timeout=5) == ["-1 is less than nothing", "10", "-2 is less than nothing"]


def test_restart_and_undo_work_in_a_sync_context(app, ledger):
    def book(n: int) -> int:
        ledger.write("book", n)
        return n

    def cancel(n: int) -> None:
        ledger.write("cancel", n)

    @app.task(name="work", retry=ONCE)
    def work(ctx: SyncContext, n: int) -> None:
        if n == 0:
            ctx.step(book, 0, name="book", undo=cancel)
            ctx.restart(1)
        ctx.undo(cancel, 7)
        ctx.step(book, n, name="book", undo=cancel)
        raise ValueError("enough")

    run = work.enqueue(0)
    drain(app)
    assert (state(run), run.info().error.message) == ("failed", "enough")
    assert ledger.lines() == ["book 0", "book 1", "cancel 1", "cancel 7"]


def test_undos_survive_a_worker_that_stops(app, ledger):
    release = threading.Event()

    def cancel(n: int) -> None:
        ledger.write("cancel", n)
        if n == 1 and ledger.counts()["cancel 1"] == 1:
            release.wait(60)

    @app.task(name="work", retry=ONCE)
    def work(ctx: SyncContext) -> None:
        for n in (1, 2):
            ctx.step(int, n, undo=cancel)
        raise ValueError("enough")

    run = work.enqueue()
    with app.worker(grace=0):
        wait_until(lambda: "cancel 1" in ledger.lines())
    release.set()
    drain(app)
    assert state(run) == "failed"
    assert ledger.counts()["cancel 2"] == 1
    assert ledger.counts()["cancel 1"] <= 2


def test_coroutine_functions_are_rejected(app, effects):
    @app.task(name="work", retry=ONCE)
    def work(ctx: SyncContext) -> int:
        with pytest.raises(TaskError, match="async def"):
            ctx.step(effects.anote, "x")
        return 1

    run = work.enqueue()
    drain(app)
    assert run.result(timeout=5) == 1
