"""Compensations: in reverse order, durably, each once, when a run fails or is cancelled."""

from __future__ import annotations

import asyncio
import threading

import pytest

from holdfast import Context, Retry, RunCancelled, RunFailed, idempotency_key
from tests.support.durable import drain, kinds, state
from tests.support.step_functions import step_function
from tests.support.wait_until import wait_until

ONCE = Retry(max_attempts=1)


class Shop:
    """Effects and their compensations."""

    def __init__(self, ledger):
        self.ledger = ledger

    @step_function
    def book(self, what: str) -> str:
        self.ledger.write("book", what)
        return f"ticket {what}"

    def cancel(self, ticket: str) -> None:
        self.ledger.write("cancel", ticket)

    async def acancel(self, ticket: str) -> None:
        self.ledger.write("acancel", ticket)

    def fail_cancel(self, ticket: str) -> None:
        """Fails until the test says that all is well."""
        self.ledger.write("try", ticket)
        if not self.ledger.path.with_name("well").exists():
            raise ConnectionError("not now")

    def well(self) -> None:
        self.ledger.path.with_name("well").touch()


@pytest.fixture
def shop(ledger):
    return Shop(ledger)


def test_a_run_that_fails_is_undone_in_reverse_order_with_the_steps_results(app, shop, ledger):
    @app.task(name="trip", retry=ONCE)
    async def trip(ctx: Context) -> None:
        await ctx.step(shop.book, "train", undo=shop.cancel)
        await ctx.step(shop.book, "nothing to undo")
        await ctx.options(undo=shop.acancel).step(shop.book, what="hotel")
        raise ValueError("no museum")

    run = trip.enqueue()
    drain(app)
    assert ledger.lines()[3:] == ["acancel ticket hotel", "cancel ticket train"]
    with pytest.raises(RunFailed, match="no museum") as failed:
        run.result(timeout=5)
    assert failed.value.error.code == "error"
    assert kinds(run) == ["enqueued", "started", "undoing", "started", "failed"]


def test_a_run_that_is_done_or_retried_undoes_nothing(app, shop, ledger):
    @app.task(name="trip", retry=Retry(max_attempts=2, delay=0))
    async def trip(ctx: Context) -> None:
        await ctx.step(shop.book, "train", undo=shop.cancel)
        if ctx.attempt == 1:
            raise ValueError("once")

    run = trip.enqueue()
    drain(app)
    assert (state(run), ledger.lines()) == ("done", ["book train"])


def test_steps_that_failed_or_never_ran_are_not_undone(app, shop, effects, ledger):
    @app.task(name="trip", retry=ONCE)
    async def trip(ctx: Context) -> None:
        await ctx.step(effects.fail, "broken", undo=shop.cancel)
        await ctx.step(shop.book, "never", undo=shop.cancel)

    run = trip.enqueue()
    drain(app)
    assert (state(run), ledger.lines()) == ("failed", ["broken"])


def test_ctx_undo_is_registered_before_an_effect_that_may_or_may_not_happen(app, shop, effects, ledger):
    @app.task(name="trip", retry=ONCE)
    async def trip(ctx: Context) -> None:
        await ctx.undo(shop.cancel, "whatever train booked")
        await ctx.step(shop.book, "hotel", undo=shop.cancel)
        await ctx.step(effects.fail, "train")

    run = trip.enqueue()
    drain(app)
    assert ledger.lines() == ["book hotel", "train", "cancel ticket hotel", "cancel whatever train booked"]
    assert state(run) == "failed"


def test_an_undo_may_be_a_closure_over_what_the_function_knew(app, shop, ledger):
    @app.task(name="trip", retry=ONCE)
    async def trip(ctx: Context) -> None:
        price = await ctx.step(lambda: 42, name="price")

        async def refund(ticket: str) -> None:
            ledger.write("refund", price, ticket)

        await ctx.step(shop.book, "train", undo=refund)
        await ctx.step(shop.book, "bus", undo=lambda ticket: ledger.write("bus", price, ticket))
        raise ValueError

    run = trip.enqueue()
    drain(app)
    assert ledger.lines()[2:] == ["bus 42 ticket bus", "refund 42 ticket train"]
    assert state(run) == "failed"


def test_undos_of_concurrent_steps_run_in_the_reverse_of_the_recorded_order(app, shop, ledger):
    async def slow(what: str) -> str:
        while "book quick" not in ledger.lines():
            await asyncio.sleep(0)
        return shop.book(what)

    @app.task(name="trip", retry=ONCE)
    async def trip(ctx: Context) -> None:
        async def after(what: str) -> None:
            await ctx.step(shop.book, what, undo=shop.cancel)
            await ctx.step(shop.book, "last", undo=shop.cancel)

        await asyncio.gather(ctx.step(slow, "slow", name="slow", undo=shop.cancel), after("quick"))
        raise ValueError

    trip.enqueue()
    drain(app)
    booked = [line.removeprefix("book ") for line in ledger.lines() if line.startswith("book")]
    steps = [step.value for step in app.store.queries.steps(str(app.runs()[0].id)) if step.kind == "step"]
    undone = [line.removeprefix("cancel ticket ") for line in ledger.lines() if line.startswith("cancel")]
    assert sorted(undone) == sorted(booked)
    assert [f'"ticket {what}"' for what in reversed(undone)] == steps


def test_an_undo_is_retried_as_its_step_would_be(app, shop, ledger):
    def flaky(ticket: str) -> None:
        ledger.write("try", ticket)
        if ledger.counts()[f"try {ticket}"] < 3:
            raise ConnectionError

    @app.task(name="trip", retry=ONCE)
    async def trip(ctx: Context) -> None:
        await ctx.step(shop.book, "train", undo=flaky, retry=Retry(max_attempts=3, delay=0))
        raise ValueError("mine")

    run = trip.enqueue()
    drain(app)
    assert ledger.counts()["try ticket train"] == 3
    assert (state(run), run.info().error.message) == ("failed", "mine")


def test_an_undo_that_cannot_finish_leaves_the_run_failed_and_a_retry_resumes_it(app, shop, ledger):
    once = Retry(max_attempts=1)

    @app.task(name="trip", retry=ONCE)
    async def trip(ctx: Context) -> None:
        await ctx.step(shop.book, "train", undo=shop.cancel, retry=once)
        await ctx.step(shop.book, "hotel", undo=shop.fail_cancel, retry=once)
        await ctx.step(shop.book, "car", undo=shop.cancel, retry=once)
        raise ValueError("mine")

    run = trip.enqueue()
    drain(app)
    info = run.info()
    assert (info.state, info.error.code) == ("failed", "undo")
    assert "not now" in info.error.message
    assert ledger.lines()[3:] == ["cancel ticket car", "try ticket hotel"]
    shop.well()
    run.retry()
    assert state(run) == "undoing"
    drain(app)
    assert ledger.lines()[5:] == ["try ticket hotel", "cancel ticket train"], "what was undone stays undone"
    assert (state(run), run.info().error.message) == ("failed", "mine")
    assert "retried" in kinds(run)


def test_after_undoing_a_retry_runs_the_undone_steps_again(app, shop, ledger):
    @app.task(name="trip", retry=ONCE)
    async def trip(ctx: Context) -> str:
        await ctx.step(shop.book, "plan")
        await ctx.step(shop.book, "train", undo=shop.cancel)
        if len(ledger.lines()) < 4:
            raise ValueError
        return "travelled"

    run = trip.enqueue()
    drain(app)
    assert ledger.lines() == ["book plan", "book train", "cancel ticket train"]
    run.retry()
    drain(app)
    assert run.result(timeout=5) == "travelled"
    assert ledger.lines()[3:] == ["book train"]


def test_a_waiting_run_that_is_cancelled_undoes_and_then_is_cancelled(app, shop, ledger):
    @app.task(name="trip")
    async def trip(ctx: Context) -> None:
        await ctx.step(shop.book, "train", undo=shop.cancel)
        await ctx.wait_for("go")
        await ctx.step(shop.book, "later")

    run = trip.enqueue()
    drain(app)
    assert run.cancel("changed my mind") is True
    assert state(run) == "undoing"
    assert run.cancel() is False
    app.emit("go")
    drain(app)
    assert ledger.lines() == ["book train", "cancel ticket train"]
    with pytest.raises(RunCancelled, match="changed my mind"):
        run.result(timeout=5)
    assert kinds(run) == ["enqueued", "started", "waiting", "undoing", "started", "cancelled"]


def test_a_scheduled_run_that_is_cancelled_undoes_too(app, shop, ledger):
    @app.task(name="trip", retry=Retry(max_attempts=2, delay=3600, max_delay=3600))
    async def trip(ctx: Context) -> None:
        await ctx.step(shop.book, "train", undo=shop.cancel)
        raise ValueError

    run = trip.enqueue()
    drain(app)
    assert state(run) == "scheduled"
    run.cancel()
    drain(app)
    assert (state(run), ledger.lines()) == ("cancelled", ["book train", "cancel ticket train"])


def test_a_running_run_that_is_cancelled_undoes_when_its_attempt_has_ended(app, shop, ledger):
    release = threading.Event()

    def long(what: str) -> str:
        ledger.write("long", what)
        release.wait(60)
        ledger.write("over", what)
        return what

    @app.task(name="trip")
    async def trip(ctx: Context) -> None:
        await ctx.step(shop.book, "train", undo=shop.cancel)
        await ctx.step(long, "x", name="long")
        await ctx.step(shop.book, "later")

    with app.worker(lease=1.5):
        run = trip.enqueue()
        wait_until(lambda: "long x" in ledger.lines())
        assert run.cancel() is True
        assert state(run) == "undoing"
        assert app.store.queries.run(str(run.id)).held == "quiescing"
        release.set()
        with pytest.raises(RunCancelled):
            run.result(timeout=30)
    assert ledger.lines() == ["book train", "long x", "over x", "cancel ticket train"]


def test_a_step_that_runs_during_the_cancel_is_undone_and_no_step_follows_it(app, shop, ledger):
    release = threading.Event()

    def book(what: str) -> str:
        ledger.write("book", what)
        release.wait(60)
        return f"ticket {what}"

    @app.task(name="trip")
    async def trip(ctx: Context) -> None:
        await ctx.step(book, "slow", name="book", undo=shop.cancel)
        await ctx.step(shop.book, "later")

    with app.worker():
        run = trip.enqueue()
        wait_until(ledger.lines)
        assert run.cancel() is True
        release.set()
        with pytest.raises(RunCancelled):
            run.result(timeout=30)
    assert ledger.lines() == ["book slow", "cancel ticket slow"]


def test_a_deadline_undoes_too(timed_app, clock, shop, ledger):
    @timed_app.task(name="trip", deadline=100)
    async def trip(ctx: Context) -> None:
        await ctx.step(shop.book, "train", undo=shop.cancel)
        await ctx.wait_for("go")

    run = trip.enqueue()
    drain(timed_app)
    clock.forward(100)
    drain(timed_app)
    assert (state(run), run.info().error.code) == ("failed", "deadline")
    assert ledger.lines() == ["book train", "cancel ticket train"]


def test_undos_already_run_are_not_run_again_after_a_worker_stopped_in_between(app, shop, ledger):
    held = asyncio.Event()

    async def slow_cancel(ticket: str) -> None:
        ledger.write("slow", ticket)
        if ledger.counts()[f"slow {ticket}"] == 1:
            await held.wait()

    @app.task(name="trip", retry=ONCE)
    async def trip(ctx: Context) -> None:
        await ctx.step(shop.book, "train", undo=slow_cancel)
        await ctx.step(shop.book, "hotel", undo=shop.cancel)
        raise ValueError

    run = trip.enqueue()
    with app.worker(grace=0):
        wait_until(lambda: "slow ticket train" in ledger.lines())
    assert state(run) == "undoing"
    drain(app)
    assert ledger.lines()[2:] == ["cancel ticket hotel", "slow ticket train", "slow ticket train"]
    assert state(run) == "failed"


def test_a_child_undoes_when_its_parent_fails(app, shop, ledger):
    @app.task(name="leg")
    async def leg(ctx: Context) -> None:
        await ctx.step(shop.book, "train", undo=shop.cancel)
        await ctx.wait_for("never")

    @app.task(name="trip", retry=ONCE)
    async def trip(ctx: Context) -> None:
        await ctx.spawn(leg)
        await ctx.wait_for("fail")
        raise ValueError

    run = trip.enqueue()
    drain(app)
    app.emit("fail")
    drain(app)
    assert state(run) == "failed"
    assert ledger.lines() == ["book train", "cancel ticket train"]
    assert {info.task: info.state for info in app.runs()} == {"trip": "failed", "leg": "cancelled"}


def test_a_compensation_missing_from_the_code_fails_the_run_for_an_operator(app, make_app, shop, ledger):
    @app.task(name="trip")
    async def trip(ctx: Context) -> None:
        await ctx.step(shop.book, "train", undo=shop.cancel)
        await ctx.wait_for("go")

    run = trip.enqueue()
    drain(app)
    run.cancel()
    other = make_app()

    @other.task(name="trip")
    async def changed(ctx: Context) -> None:
        await ctx.wait_for("go")

    drain(other)
    assert (state(run), run.info().error.code) == ("failed", "undo")
    run.retry()
    drain(app)
    assert (state(run), ledger.lines()) == ("cancelled", ["book train", "cancel ticket train"])


def test_an_undo_has_an_idempotency_key_of_its_own(app, ledger):
    def book() -> str:
        ledger.write("book", idempotency_key())
        return "t"

    def cancel(_ticket: str) -> None:
        ledger.write("cancel", idempotency_key())

    @app.task(name="trip", retry=ONCE)
    async def trip(ctx: Context) -> None:
        await ctx.step(book, name="book", undo=cancel)
        raise ValueError

    trip.enqueue()
    drain(app)
    (_, booked), (_, cancelled) = ledger.words()
    assert booked != cancelled, "an outside system would take the refund for a repeat of the booking"
