"""Steps that fail: what user code sees, live and in a replay, and what is retried."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from datetime import timedelta

import pytest

from holdfast import Context, Fatal, Retry, RetryAfter, RunFailed, StepFailed, SyncContext
from tests.support.durable import drain, kinds, state
from tests.support.wait_until import wait_until

ONCE = Retry(max_attempts=1)
THREE_AT_ONCE = Retry(max_attempts=3, delay=0)


def test_step_failed_has_the_same_error_and_cause_live_and_on_replay(app, effects, ledger):
    causes = []

    @app.task(name="work")
    async def work(ctx: Context) -> None:
        try:
            await ctx.step(effects.fail, "broken")
        except StepFailed as failed:
            error = failed.error
            ledger.write("saw", failed.step, error.code, error.type, error.message)
            causes.append(str(failed.__cause__))
        await ctx.wait_for("go")

    run = work.enqueue()
    drain(app)
    app.emit("go")
    drain(app)
    run.result(timeout=5)
    assert ledger.lines() == [
        "broken",
        "saw fail error ValueError broken",
        "saw fail error ValueError broken",
    ]
    assert causes[0] == causes[1]
    assert "ValueError: broken" in causes[0]


def test_the_error_of_a_run_shows_where_its_step_failed_also_after_a_replay(app, effects):
    @app.task(name="work", retry=ONCE)
    async def work(ctx: Context) -> None:
        try:
            await ctx.step(effects.fail, "broken")
        except StepFailed as failed:
            await ctx.wait_for("go")
            raise failed

    run = work.enqueue()
    drain(app)
    app.emit("go")
    drain(app)
    traceback = run.info().error.traceback
    assert "in fail" in traceback
    assert traceback.index("ValueError: broken") < traceback.index("StepFailed: step fail failed")


class Odd(Exception):
    """An exception whose constructor takes other arguments than it stores in `args`."""

    def __init__(self, code: int, *, hint: str) -> None:
        super().__init__(f"{code}: {hint}")
        self.code = code


class Plain(Exception):
    pass


class Below(Plain):
    pass


class Unkept(Exception):
    """An exception whose arguments can't be encoded as JSON."""


RAISED = {
    "plain": lambda: Plain("a", 1),
    "below": lambda: Below("b"),
    "odd": lambda: Odd(404, hint="gone"),
    "unkept": lambda: Unkept(object),
    "other": lambda: KeyError("k"),
}


@pytest.mark.parametrize("which", list(RAISED))
def test_exceptions_named_in_raises_reach_the_caller_live_and_on_replay(app, ledger, which):
    def fail() -> None:
        ledger.write("ran")
        raise RAISED[which]()

    @app.task(name="work")
    async def work(ctx: Context) -> None:
        try:
            await ctx.options(name="fail", raises=(Plain, Odd, Unkept)).step(fail)
        except Exception as error:
            ledger.write("saw", type(error).__name__, "" if which == "unkept" else error)
        await ctx.wait_for("go")

    run = work.enqueue()
    drain(app)
    app.emit("go")
    drain(app)
    run.result(timeout=5)
    ran, first, again = ledger.lines()
    assert (ran, first) == ("ran", again)
    assert first.split()[1] == {"plain": "Plain", "below": "Below", "odd": "Odd", "unkept": "Unkept"}.get(
        which, "StepFailed"
    )


def test_a_failure_that_ended_the_attempt_is_retried(app, effects, ledger):
    @app.task(name="work", retry=Retry(max_attempts=3, delay=0))
    async def work(ctx: Context) -> str:
        await ctx.step(effects.note, "before")
        return await ctx.step(effects.fail_until, "x", 3)

    run = work.enqueue()
    drain(app)
    assert run.result(timeout=5) == "x"
    assert ledger.counts() == {"before": 1, "x": 3}
    assert run.info().attempt == 3


def test_a_caught_failure_is_replayed_and_not_retried(app, effects, ledger):
    @app.task(name="work", retry=Retry(max_attempts=3, delay=0))
    async def work(ctx: Context) -> int:
        with pytest.raises(StepFailed):
            await ctx.step(effects.fail, "caught")
        await ctx.step(effects.note, "after")
        ledger.write("body")
        await ctx.step(effects.fail_until, "x", 2)
        return ctx.attempt

    run = work.enqueue()
    drain(app)
    assert run.result(timeout=5) == 2
    assert ledger.counts() == {"caught": 1, "after": 1, "body": 2, "x": 2}


@pytest.mark.parametrize("plainly", [False, True])
def test_a_failure_is_retried_when_the_transaction_after_it_was_rejected(app, effects, ledger, plainly):
    """The transaction isn't recorded, although it had taken a number."""
    app.store.prepare()
    on_sqlite = app.store.database.dialect.name == "sqlite"
    line = app.store.database.connection("client" if on_sqlite else "transaction-1")
    if on_sqlite:
        line.run(lambda connection: connection.execute_script("pragma foreign_keys = on"))
        schema = ""
    else:
        schema = "public."  # Holdfast's own connections have no schema on their path
    for table in (
        "ships (n int primary key)",
        f"ropes (ship int references {schema}ships (n) deferrable initially deferred)",
    ):
        line.run(lambda connection, table=table: connection.execute_script(f"create table {schema}{table}"))

    def tie(connection) -> None:
        if ledger.counts()["again"] == 1:
            connection.execute("insert into ropes values (1)")  # to no ship: refused at the commit

    if plainly:

        @app.task(name="work", retry=THREE_AT_ONCE)
        def work(ctx: SyncContext) -> None:
            with suppress(StepFailed):
                ctx.step(effects.fail_until, "again", 2, retry=ONCE)
            ctx.transaction(tie, name="tie")
    else:

        @app.task(name="work", retry=THREE_AT_ONCE)
        async def work(ctx: Context) -> None:
            with suppress(StepFailed):
                await ctx.step(effects.fail_until, "again", 2, retry=ONCE)
            await ctx.transaction(tie, name="tie")

    run = work.enqueue()
    drain(app)
    assert (state(run), ledger.counts()["again"]) == ("done", 2)


def test_fatal_in_a_step_is_not_retried(app, ledger):
    def fatal() -> None:
        ledger.write("try")
        raise Fatal("no use")

    @app.task(name="work")
    async def work(ctx: Context) -> str:
        try:
            await ctx.step(fatal, name="fatal", retry=THREE_AT_ONCE)
        except StepFailed as failed:
            return failed.error.code
        return ""

    run = work.enqueue()
    drain(app)
    assert (run.result(timeout=5), len(ledger.lines())) == ("fatal", 1)


def test_an_uncaught_fatal_failure_of_a_step_fails_the_run_at_once(app, ledger):
    def fatal() -> None:
        ledger.write("try")
        raise Fatal("no use")

    @app.task(name="work", retry=THREE_AT_ONCE)
    async def work(ctx: Context) -> None:
        await ctx.step(fatal, name="fatal")

    run = work.enqueue()
    drain(app)
    assert (state(run), run.info().error.code, len(ledger.lines())) == ("failed", "fatal", 1)


def test_retry_after_in_a_step_chooses_the_delay_before_its_next_try(app, ledger):
    def later() -> str:
        ledger.write("try")
        if len(ledger.lines()) == 1:
            raise RetryAfter(0.001)
        return "ok"

    @app.task(name="work", retry=ONCE)
    async def work(ctx: Context) -> str:
        return await ctx.step(later, name="later", retry=Retry(max_attempts=2, delay=3600, max_delay=3600))

    run = work.enqueue()
    drain(app)
    assert (run.result(timeout=5), len(ledger.lines())) == ("ok", 2)


def test_retry_after_in_a_step_without_retries_chooses_the_delay_before_the_next_attempt(timed_app, clock):
    delays = []

    def later() -> None:
        raise RetryAfter(60)

    @timed_app.task(name="work", retry=Retry(max_attempts=3, delay=1, jitter=0))
    async def work(ctx: Context, catches: bool) -> None:
        try:
            await ctx.step(later, name="later")
        except StepFailed as failed:
            delays.append(failed.retry_after)
            if catches:
                await ctx.wait_for("go")
            raise

    uncaught, caught = work.enqueue_many([(False,), (True,)])
    drain(timed_app)
    timed_app.emit("go")
    drain(timed_app)
    due = clock.micros + 60_000_000
    assert timed_app.store.queries.run(str(uncaught.id)).due_at == due
    assert timed_app.store.queries.run(str(caught.id)).due_at == due, "the recorded failure has the delay, too"
    assert delays == [timedelta(seconds=60)] * 3


def test_a_steps_timeout_cancels_its_coroutine_and_the_retry_policy_applies(app, ledger):
    async def slow() -> str:
        ledger.write("began")
        if len(ledger.lines()) < 3:
            await asyncio.sleep(3600)
        return "ok"

    @app.task(name="work", retry=ONCE)
    async def work(ctx: Context) -> list[str]:
        got = await ctx.step(slow, name="slow", timeout=0.01, retry=THREE_AT_ONCE)
        return [got]

    run = work.enqueue()
    drain(app)
    assert run.result(timeout=5) == ["ok"]
    assert len(ledger.lines()) == 3


def test_a_step_that_timed_out_for_good_failed_with_code_timeout(app, ledger):
    async def slow() -> None:
        ledger.write("began")
        await asyncio.sleep(3600)

    @app.task(name="work")
    async def work(ctx: Context) -> None:
        for options in (
            ctx.options(name="slow", timeout=0.01),
            ctx.options(name="s", timeout=0.01, raises=TimeoutError),
        ):
            try:
                await options.step(slow)
            except Exception as error:
                ledger.write(type(error).__name__, error.error.code if isinstance(error, StepFailed) else "")
        await ctx.wait_for("go")

    run = work.enqueue()
    drain(app)
    app.emit("go")
    drain(app)
    run.result(timeout=5)
    seen = ["StepFailed timeout", "TimeoutError "]
    assert ledger.lines() == ["began", seen[0], "began", seen[1], *seen]


def test_a_thread_that_outlives_its_steps_timeout_ends_before_the_next_try(app, ledger):
    def slow() -> str:
        ledger.write("began")
        threading.Event().wait(0.3 if len(ledger.lines()) == 1 else 0)
        ledger.write("ended")
        return "ok"

    @app.task(name="work", retry=ONCE)
    async def work(ctx: Context) -> str:
        return await ctx.step(slow, name="slow", timeout=0.05, retry=THREE_AT_ONCE)

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
    async def work(ctx: Context) -> None:
        ledger.write("attempt", ctx.attempt)
        await ctx.step(slow, name="slow", timeout=0.05)

    with app.worker():
        run = work.enqueue()
        wait_until(lambda: "retrying" in kinds(run))
        assert app.store.queries.run(str(run.id)).held == "quiescing"
        assert ledger.lines() == ["attempt 1", "began"]
        release.set()
        run.result(timeout=30)
    assert ledger.lines() == ["attempt 1", "began", "ended", "attempt 2", "began", "ended"]


def test_a_result_that_cannot_be_stored_fails_the_step_at_once(app, ledger):
    def odd() -> object:
        ledger.write("ran")
        return threading.Lock()

    @app.task(name="work", retry=THREE_AT_ONCE)
    async def work(ctx: Context) -> None:
        await ctx.step(odd, name="odd", retry=THREE_AT_ONCE)

    run = work.enqueue()
    drain(app)
    with pytest.raises(RunFailed, match="lock") as failed:
        run.result(timeout=5)
    assert failed.value.error.code == "not_serializable"
    assert ledger.lines() == ["ran"]
