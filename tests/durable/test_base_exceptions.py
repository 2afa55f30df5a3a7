"""User code that raises a `BaseException`: it fails like any other, and neither stops nor blocks anything."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from holdfast import Context, Holdfast, Retry, Run, RunFailed, SyncContext
from tests.support.durable import drain, kinds
from tests.support.step_functions import step_function
from tests.support.wait_until import wait_until

ONCE = Retry(max_attempts=1)
TWICE = Retry(max_attempts=2, delay=0)


class Custom(BaseException):
    pass


RAISED = [
    asyncio.CancelledError,
    SystemExit,
    KeyboardInterrupt,
    GeneratorExit,
    StopIteration,
    Custom,
]


@pytest.fixture(params=RAISED, ids=lambda kind: kind.__name__)
def raised(request) -> type[BaseException]:
    return request.param


class Trip:
    """Two bookings; the compensation of the second raises until it is repaired."""

    def __init__(self, ledger, raised: type[BaseException]) -> None:
        self.ledger = ledger
        self.raised = raised

    @step_function
    def book(self, what: str) -> str:
        self.ledger.write("book", what)
        return what

    def cancel(self, what: str) -> None:
        self.ledger.write("cancel", what)

    def broken_cancel(self, what: str) -> None:
        self.ledger.write("try to cancel", what)
        if not self.ledger.path.with_name("repaired").exists():
            raise self.raised("broken")

    async def broken_acancel(self, what: str) -> None:
        self.broken_cancel(what)

    async def broken_acancel_later(self, what: str) -> None:
        await asyncio.sleep(0)
        self.broken_cancel(what)

    def repair(self) -> None:
        self.ledger.path.with_name("repaired").touch()


def check_that_the_undo_failed_and_can_be_repaired(app: Holdfast, run: Run[Any], trip: Trip) -> None:
    tries = ["try to cancel hotel"] * 2
    drain(app)
    info = run.info()
    assert (info.state, info.error.code) == ("failed", "undo")
    assert trip.raised.__name__ in info.error.message
    assert trip.ledger.lines() == ["book train", "book hotel", *tries]
    trip.repair()
    run.retry()
    drain(app)
    assert trip.ledger.lines()[4:] == ["try to cancel hotel", "cancel train"]
    assert (run.info().error.code, run.info().error.message) == ("error", "the first error")


@pytest.mark.parametrize("undo", ["broken_cancel", "broken_acancel", "broken_acancel_later"])
def test_an_undo_that_raises_a_base_exception_is_retried_and_then_fails_with_code_undo(app, ledger, raised, undo):
    trip = Trip(ledger, raised)

    @app.task(name="trip", retry=ONCE)
    async def travel(ctx: Context) -> None:
        await ctx.step(trip.book, "train", undo=trip.cancel)
        await ctx.step(trip.book, "hotel", undo=getattr(trip, undo), retry=TWICE)
        raise ValueError("the first error")

    check_that_the_undo_failed_and_can_be_repaired(app, travel.enqueue(), trip)


@pytest.mark.parametrize("timeout", [None, 60])
def test_an_undo_of_a_sync_function_that_raises_a_base_exception_fails_with_code_undo(app, ledger, raised, timeout):
    trip = Trip(ledger, raised)

    @app.task(name="trip", retry=ONCE)
    def travel(ctx: SyncContext) -> None:
        ctx.step(trip.book, "train", undo=trip.cancel)
        ctx.step(trip.book, "hotel", undo=trip.broken_cancel, retry=TWICE, timeout=timeout)
        raise ValueError("the first error")

    check_that_the_undo_failed_and_can_be_repaired(app, travel.enqueue(), trip)


def test_an_undo_that_cancels_its_own_task_fails(app, ledger):
    trip = Trip(ledger, asyncio.CancelledError)

    async def cancel_oneself(what: str) -> None:
        ledger.write("try to cancel", what)
        if not ledger.path.with_name("repaired").exists():
            asyncio.current_task().cancel()
            await asyncio.sleep(0)

    @app.task(name="trip", retry=ONCE)
    async def travel(ctx: Context) -> None:
        await ctx.step(trip.book, "train", undo=trip.cancel)
        await ctx.step(trip.book, "hotel", undo=cancel_oneself, retry=TWICE)
        raise ValueError("the first error")

    check_that_the_undo_failed_and_can_be_repaired(app, travel.enqueue(), trip)


@pytest.mark.parametrize("undo", ["on_loop", "in_thread"])
def test_a_worker_that_stops_during_an_undo_releases_the_run(app, ledger, undo):
    """A stop isn't a failure of the undo: the next worker runs it again, and all undos before it."""
    trip = Trip(ledger, ValueError)
    stopped = threading.Event()

    async def on_loop(what: str) -> None:
        trip.cancel(what)
        if not stopped.is_set():
            await asyncio.Event().wait()

    def in_thread(what: str) -> None:
        trip.cancel(what)
        stopped.wait(60)

    @app.task(name="trip", retry=ONCE)
    async def travel(ctx: Context) -> None:
        await ctx.step(trip.book, "train", undo=trip.cancel)
        await ctx.step(trip.book, "hotel", undo={"on_loop": on_loop, "in_thread": in_thread}[undo])
        raise ValueError("the first error")

    run = travel.enqueue()
    with app.worker(grace=0):
        wait_until(lambda: "cancel hotel" in ledger.lines())
    assert run.info().state == "undoing"
    stopped.set()
    drain(app)
    assert ledger.lines()[2:] == ["cancel hotel", "cancel hotel", "cancel train"]
    assert (run.info().state, run.info().error.message) == ("failed", "the first error")


def steps(ledger, raised: type[BaseException]) -> dict[str, Any]:
    def plain() -> None:
        ledger.write("step")
        raise raised("broken")

    async def on_loop() -> None:
        plain()

    async def on_loop_later() -> None:
        await asyncio.sleep(0)
        plain()

    return {"plain": plain, "on_loop": on_loop, "on_loop_later": on_loop_later}


@pytest.mark.parametrize("timeout", [None, 60])
@pytest.mark.parametrize("step", ["plain", "on_loop", "on_loop_later"])
def test_a_step_that_raises_a_base_exception_is_retried_and_fails_normally(app, ledger, raised, step, timeout):
    @app.task(name="function", retry=ONCE)
    async def function(ctx: Context) -> str:
        try:
            await ctx.step(steps(ledger, raised)[step], name="step", retry=TWICE, timeout=timeout)
        except Exception as error:
            ledger.write(type(error).__name__)
        await ctx.sleep(0.001)
        return "done"

    run = function.enqueue()
    drain(app)
    assert run.result(timeout=60) == "done"
    assert ledger.lines()[:3] == ["step", "step", "StepFailed"]
    assert ledger.counts()["step"] == 2


@pytest.mark.parametrize("timeout", [None, 60])
def test_a_step_of_a_sync_function_that_raises_a_base_exception_fails_normally(app, ledger, raised, timeout):
    @app.task(name="function", retry=ONCE)
    def function(ctx: SyncContext) -> str:
        try:
            ctx.step(steps(ledger, raised)["plain"], name="step", retry=TWICE, timeout=timeout)
        except Exception as error:
            ledger.write(type(error).__name__)
        ctx.sleep(0.001)
        return "done"

    run = function.enqueue()
    drain(app)
    assert run.result(timeout=60) == "done"
    assert ledger.lines()[:3] == ["step", "step", "StepFailed"]
    assert ledger.counts()["step"] == 2


def test_a_transaction_that_raises_a_base_exception_fails_normally(app, ledger, raised):
    def write(connection: Any) -> None:
        ledger.write("transaction")
        raise raised("broken")

    @app.task(name="function", retry=ONCE)
    async def function(ctx: Context) -> None:
        try:
            await asyncio.gather(ctx.transaction(write, name="write"))
        except Exception as error:
            ledger.write(type(error).__name__)

    @app.task(name="blocking", retry=ONCE)
    def blocking(ctx: SyncContext) -> None:
        try:
            ctx.transaction(write, name="write")
        except Exception as error:
            ledger.write(type(error).__name__)

    for run in (function.enqueue(), blocking.enqueue()):
        drain(app)
        run.result(timeout=60)
    assert ledger.counts() == {"transaction": 2, "StepFailed": 2}


def bodies(app: Holdfast, raised: type[BaseException]) -> list[Any]:
    @app.task(name="job", retry=TWICE)
    async def job() -> None:
        raise raised("broken")

    @app.task(name="plain job", retry=TWICE)
    def plain_job() -> None:
        raise raised("broken")

    @app.task(name="function", retry=TWICE)
    async def function(ctx: Context) -> None:
        raise raised("broken")

    @app.task(name="plain function", retry=TWICE)
    def plain_function(ctx: SyncContext) -> None:
        raise raised("broken")

    @app.task(name="function with a branch", retry=TWICE)
    async def branch(ctx: Context) -> None:
        async def part() -> None:
            await ctx.sleep(0)
            raise raised("broken")

        await asyncio.gather(part(), ctx.wait_for("never", timeout=1))

    return [job, plain_job, function, plain_function, branch]


def test_a_body_that_raises_a_base_exception_is_retried_and_fails_normally(app, raised):
    @app.task(name="neighbor")
    async def neighbor(ctx: Context) -> str:
        await ctx.sleep(0.01)
        return "well"

    runs = [task.enqueue() for task in bodies(app, raised)]
    beside = neighbor.enqueue()
    with app.worker():
        for run in runs:
            with pytest.raises(RunFailed, match=raised.__name__):
                run.result(timeout=60)
            assert [kind for kind in kinds(run) if kind in ("retrying", "failed")] == ["retrying", "failed"]
        assert beside.result(timeout=60) == "well"
        assert neighbor.enqueue().result(timeout=60) == "well"
