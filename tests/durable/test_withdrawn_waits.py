"""Waits that user code cancels: they are withdrawn, take no message from others, and replay as they happened."""

from __future__ import annotations

import asyncio
import random

import pytest

from holdfast import Context, Retry
from holdfast.engine.write_queue import WriteQueue
from holdfast.store.commands import WithdrawCommand
from tests.support.durable import drain, state
from tests.support.wait_until import wait_until

QUICK = Retry(max_attempts=3, delay=0)


async def first_of(*asked):
    """Return the result of the first to finish; cancel the others."""
    tasks = [asyncio.ensure_future(each) for each in asked]
    done, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
    return [tasks.index(task) for task in done], [task.result() for task in done]


def waits(app, run):
    return sorted(wait.key for wait in app.store.queries.waits(str(run.id)))


def withdrawn(run, app):
    return [step.key for step in app.store.queries.steps(str(run.id)) if step.kind == "withdrawn"]


@pytest.fixture
def lose(app, monkeypatch):
    """Make the worker lose the run, as if it had died, right before or after the first withdrawal is durable."""
    write = app.store.journal.write

    def arrange(when):
        left = [when]

        def losing(session, commands, *claim):
            found = [command for command in commands if isinstance(command, WithdrawCommand)]
            if not found or not left:
                return write(session, commands, *claim)
            left.clear()
            handle = app.get_run(found[0].token.run)
            replies = write(session, commands, *claim) if when == "after" else []
            handle.cancel()
            handle.retry()
            return replies or write(session, commands, *claim)

        monkeypatch.setattr(app.store.journal, "write", losing)
        return left

    return arrange


@pytest.mark.parametrize("when", ["never", "before", "after"])
def test_a_message_sent_after_a_receive_was_cancelled_goes_to_the_next_receive(app, effects, ledger, lose, when):
    @app.task(name="work", max_crashes=10)
    async def work(ctx: Context) -> list[object]:
        first = await first_of(ctx.receive("n"), ctx.step(effects.anote, "quick"))
        ledger.write("saw", *first[0])
        return [first, await ctx.receive("n")]

    left = [] if when == "never" else lose(when)
    run = work.enqueue()
    drain(app)
    assert left == []
    assert waits(app, run) == ["$message:n#2"]
    assert withdrawn(run, app) == ["$message:n#1"]
    run.send("n", "hello")
    drain(app)
    assert run.result(timeout=5) == [[[1], ["quick"]], "hello"]
    assert set(ledger.lines()) == {"quick", "saw 1"}
    assert ledger.counts()["quick"] == 1


@pytest.mark.parametrize("when", ["never", "before", "after"])
def test_a_message_that_arrived_after_the_cause_of_the_cancel_goes_to_the_next_receive(app, ledger, lose, when):
    """Both arrive while the run is suspended: the wait takes the message, and user code never sees it there."""

    @app.task(name="work", max_crashes=10)
    async def work(ctx: Context) -> list[object]:
        first = await first_of(ctx.receive("n"), ctx.wait_for("stop"))
        ledger.write("saw", *first[0])
        return [first, await ctx.receive("n"), await ctx.receive("n")]

    run = work.enqueue()
    drain(app)
    app.emit("stop", "now")
    run.send("n", 1)
    run.send("n", 2)
    left = [] if when == "never" else lose(when)
    drain(app)
    assert left == []
    assert run.result(timeout=5) == [[[1], ["now"]], 1, 2]
    assert set(ledger.lines()) == {"saw 1"}


@pytest.fixture
def at_once(monkeypatch):
    """Write each command at once, in a batch of its own, while the event loop waits."""

    def submit(queue, write):
        queue._ready.append(write)
        queue.wake_committer.__self__.tick()

    monkeypatch.setattr(WriteQueue, "submit", submit)
    monkeypatch.setattr(WriteQueue, "submit_ahead", submit)


@pytest.mark.parametrize("turns", [1, 5, 40])
def test_waiting_messages_are_received_in_order_even_if_a_receive_is_cancelled_at_once(app, at_once, turns):
    @app.task(name="work")
    async def work(ctx: Context) -> list[object]:
        cut = asyncio.ensure_future(ctx.receive("n"))
        for _ in range(turns):
            await asyncio.sleep(0)
        cut.cancel()
        got = [] if cut.cancelled() or not cut.done() else [cut.result()]
        return got + [await ctx.receive("n") for _ in range(2 - len(got))]

    run = work.enqueue()
    run.send("n", 1)
    run.send("n", 2)
    drain(app)
    assert run.result(timeout=5) == [1, 2]


def test_a_cancelled_message_goes_to_another_receive_that_is_open(app):
    @app.task(name="work")
    async def work(ctx: Context) -> list[object]:
        race = asyncio.ensure_future(first_of(ctx.receive("n"), ctx.wait_for("stop")))
        await asyncio.sleep(0)
        other = asyncio.ensure_future(ctx.receive("n"))
        return [(await race)[0], await other]

    run = work.enqueue()
    drain(app)
    app.emit("stop")
    run.send("n", "hello")
    drain(app)
    assert run.result(timeout=5) == [[1], "hello"]


def test_a_receive_inside_asyncio_timeout_leaves_later_messages_to_the_next_receive(app):
    @app.task(name="work")
    async def work(ctx: Context) -> object:
        try:
            async with asyncio.timeout(0):
                await ctx.receive("n")
        except TimeoutError:
            return await ctx.receive("n")

    run = work.enqueue()
    drain(app)
    assert waits(app, run) == ["$message:n#2"]
    run.send("n", "hello")
    drain(app)
    assert run.result(timeout=5) == "hello"


def test_waits_cancelled_by_a_failing_group_are_registered_again_in_the_next_attempt(app, effects):
    """The failed step is retried and succeeds: this time nothing is cancelled."""

    @app.task(name="work", retry=QUICK)
    async def work(ctx: Context) -> list[object]:
        async with asyncio.TaskGroup() as group:
            flaky = group.create_task(ctx.step(effects.fail_until, "flaky", 2))
            message = group.create_task(ctx.receive("n"))
            event = group.create_task(ctx.wait_for("e"))
        return [flaky.result(), message.result(), event.result()]

    run = work.enqueue()
    drain(app)
    assert (state(run), sorted(withdrawn(run, app))) == ("waiting", ["$event:e#1", "$message:n#1"])
    assert waits(app, run) == ["$event:e#1", "$message:n#1"]
    run.send("n", "hello")
    drain(app)
    assert state(run) == "waiting"
    app.emit("e", "came")
    drain(app)
    assert run.result(timeout=5) == ["flaky", "hello", "came"]


def test_waits_of_every_kind_end_when_the_code_cancels_them(app, effects):
    @app.task(name="child")
    async def child(ctx: Context) -> None:
        await ctx.wait_for("never")

    @app.task(name="work")
    async def work(ctx: Context) -> str:
        spawned = await ctx.spawn(child)
        asked = [ctx.sleep(3600), ctx.wait_for("e"), ctx.receive("n"), ctx.join(spawned)]
        await first_of(*asked, ctx.step(effects.anote, "quick"))
        return await ctx.wait_for("go")

    run = work.enqueue()
    drain(app)
    assert waits(app, run) == ["$event:go#1"]
    assert len(withdrawn(run, app)) == 4
    app.emit("e")
    assert state(run) == "waiting", "nothing that was cancelled wakes it"
    app.emit("go", "gone")
    drain(app)
    assert run.result(timeout=5) == "gone"


def test_a_wait_that_was_cancelled_and_registered_again_can_be_cancelled_again(app, effects):
    @app.task(name="work", retry=QUICK)
    async def work(ctx: Context) -> object:
        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.step(effects.fail_until, "flaky", 2))
            receiving = group.create_task(ctx.receive("n"))
            await ctx.wait_for("stop")
            receiving.cancel()
        return await ctx.receive("n")

    run = work.enqueue()
    drain(app)
    assert waits(app, run) == ["$event:stop#1", "$message:n#1"]
    app.emit("stop")
    drain(app)
    assert waits(app, run) == ["$message:n#2"]
    run.send("n", "hello")
    drain(app)
    assert run.result(timeout=5) == "hello"


def test_a_task_created_right_before_a_recorded_step_starts_before_the_step_returns(app, effects):
    """As it did live: otherwise it is cancelled before its first request, and the next request is mistaken for it."""

    @app.task(name="work")
    async def work(ctx: Context) -> object:
        receiving = asyncio.ensure_future(ctx.receive("n"))
        await ctx.step(effects.anote, "quick")
        receiving.cancel()
        return await ctx.receive("n")

    run = work.enqueue()
    drain(app)
    assert waits(app, run) == ["$message:n#2"]
    run.send("n", "hello")
    drain(app)
    assert run.result(timeout=5) == "hello"


def test_a_message_taken_before_a_restart_stays_taken_when_the_same_receive_is_cancelled_after_it(app):
    @app.task(name="work")
    async def work(ctx: Context, got: list[int]) -> list[int]:
        if not got:
            await ctx.restart([await ctx.receive("n")])
        cut = asyncio.ensure_future(ctx.receive("n"))
        await asyncio.sleep(0)
        cut.cancel()
        return [*got, await ctx.receive("n")]

    run = work.enqueue([])
    run.send("n", 1)
    drain(app)
    assert state(run) == "waiting"
    run.send("n", 2)
    drain(app)
    assert run.result(timeout=5) == [1, 2]


def test_messages_raced_against_cancels_arrive_in_order_and_none_is_lost(app, ledger):
    """A worker releases its runs again and again, while messages arrive at any moment."""
    count, chance = 60, random.Random(4)
    seen: list[list[int]] = []

    async def pause(number: int) -> None:
        for _ in range(chance.randrange(60)):
            await asyncio.sleep(0)

    @app.task(name="work", max_crashes=1000)
    async def work(ctx: Context) -> list[int]:
        got: list[int] = []
        seen.append(got)
        while len(got) < count:
            at, values = await first_of(ctx.receive("n"), ctx.step(pause, len(got), name="pause"))
            if 0 in at:
                got.append(values[at.index(0)])
            ctx.check()
        return got

    run = work.enqueue()
    with app.worker():
        for n in range(count):
            run.send("n", n)
            if n % 15 == 7:
                wait_until(lambda: seen)
                run.cancel()
                run.retry()
        result = run.result(timeout=60)
    assert result == list(range(count))
    assert all(got == result[: len(got)] for got in seen)
