"""Steps: run once, kept, typed, retried, failed for good, known by name and arguments."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from uuid import UUID

import pytest

from holdfast import Context, Fatal, Retry, RetryAfter, RunFailed, StepFailed
from tests.support.durable import drain, kinds, state
from tests.support.waiting import wait_until

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


def test_a_null_on_record_is_a_result(app, ledger):
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
def test_a_step_is_tried_as_its_retry_says_within_one_attempt(app, effects, ledger, kind):
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


def test_a_steps_retry_knows_on_and_never_on(app, ledger):
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


def test_step_failed_has_the_error_live_and_on_replay_and_its_cause_when_live(app, effects, ledger):
    @app.task(name="work")
    async def work(ctx: Context) -> None:
        try:
            await ctx.step(effects.fail, "broken")
        except StepFailed as failed:
            error = failed.error
            ledger.write("saw", failed.step, error.code, error.type, error.message, repr(failed.__cause__))
        await ctx.wait_for("go")

    run = work.enqueue()
    drain(app)
    app.emit("go")
    drain(app)
    run.result(timeout=5)
    assert ledger.lines() == [
        "broken",
        "saw fail error ValueError broken ValueError('broken')",
        "saw fail error ValueError broken None",
    ]


class Odd(Exception):
    """Wants other arguments than it keeps."""

    def __init__(self, code: int, *, hint: str) -> None:
        super().__init__(f"{code}: {hint}")
        self.code = code


class Plain(Exception):
    pass


class Below(Plain):
    pass


class Unkept(Exception):
    """Its arguments can't be kept as JSON."""


RAISED = {
    "plain": lambda: Plain("a", 1),
    "below": lambda: Below("b"),
    "odd": lambda: Odd(404, hint="gone"),
    "unkept": lambda: Unkept(object),
    "other": lambda: KeyError("k"),
}


@pytest.mark.parametrize("which", list(RAISED))
def test_what_raises_names_comes_through_as_itself_live_and_on_replay(app, ledger, which):
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


def test_a_failure_that_ended_the_attempt_is_tried_again(app, effects, ledger):
    @app.task(name="work", retry=Retry(max_attempts=3, delay=0))
    async def work(ctx: Context) -> str:
        await ctx.step(effects.note, "before")
        return await ctx.step(effects.fail_until, "x", 3)

    run = work.enqueue()
    drain(app)
    assert run.result(timeout=5) == "x"
    assert ledger.counts() == {"before": 1, "x": 3}
    assert run.info().attempt == 3


def test_a_failure_that_was_caught_is_replayed_and_not_tried_again(app, effects, ledger):
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


def test_fatal_in_a_step_is_not_tried_again(app, ledger):
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


def test_a_fatal_failure_of_a_step_that_nobody_caught_fails_the_run_at_once(app, ledger):
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


def test_a_steps_timeout_ends_a_coroutine_and_is_tried_again_as_its_retry_says(app, ledger):
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
        for options in (ctx.options(name="slow", timeout=0.01), ctx.options(name="s", timeout=0.01, raises=TimeoutError)):
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


def test_a_thread_that_outlives_its_steps_timeout_is_over_before_the_next_try_begins(app, ledger):
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


def test_a_thread_that_outlives_its_step_keeps_the_run_from_being_tried_again_until_it_ends(app, ledger):
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
        assert app.store.views.run(str(run.id)).held == "quiescing"
        assert ledger.lines() == ["attempt 1", "began"]
        release.set()
        run.result(timeout=30)
    assert ledger.lines() == ["attempt 1", "began", "ended", "attempt 2", "began", "ended"]


def test_a_result_that_cannot_be_kept_fails_the_step_at_once(app, ledger):
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
