"""Retry a run with other arguments, and change the time of a retry or of a sleep."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from holdfast import Context, Done, Graph, Machine, Retry, RunStarted, State, idempotency_key
from holdfast.control import Control
from holdfast.errors import BadArguments, ConfigError, GraphError, KeyConflict, RunFinished
from tests.support.durable import drain, kinds, state

ONCE = Retry(max_attempts=1)
START = datetime.fromtimestamp(1_800_000_000, UTC)


@pytest.fixture
def charge(app, ledger):
    @app.task(name="charge", retry=ONCE)
    def charge(order: int, note: str = "") -> int:
        ledger.write(order, note, idempotency_key())
        if order < 0:
            raise ValueError(f"no order {order}")
        return order

    return charge


def test_a_failed_job_is_retried_with_other_arguments(app, charge, ledger):
    run = charge.options(key="k").enqueue(-1, note="first")
    drain(app)
    assert run.retry(args=(7,), kwargs={"note": "fixed"}, by="ada") is True
    drain(app)
    assert run.result(timeout=10) == 7
    first, second = (line.split() for line in ledger.lines())
    assert (first[:2], second[:2]) == (["-1", "first"], ["7", "fixed"])
    assert first[2] != second[2]  # another call: other systems must not take it for the first
    (entry,) = [entry for entry in run.history() if entry.kind == "retried"]
    assert dict(entry.data) == {"by": "ada", "changed": ["args"], "starts_over": True}
    assert run.info().args == {"order": 7, "note": "fixed"}
    assert charge.options(key="k").enqueue(-1, note="first").id == run.id  # the key stands for the call as enqueued
    with pytest.raises(KeyConflict):
        charge.options(key="k").enqueue(7, note="fixed")


def test_a_durable_function_starts_over_and_keeps_nothing(app, ledger):
    @app.task(name="child", retry=ONCE)
    def child(text: str) -> None:
        raise ValueError(text)

    @app.task(name="order", retry=ONCE)
    async def order(ctx: Context, text: str) -> str:
        await ctx.step(ledger.write, "step", name="write")
        heard = await ctx.receive("topic")
        if text == "bad":
            await ctx.call(child, heard)
        return f"{text} {heard}"

    run = order.enqueue("bad")
    drain(app)
    run.send("topic", "hello")
    drain(app)
    assert state(run) == "failed"
    preview = Control(app.store).runs.preview_retry(run.id, changed=True)
    assert (preview.mode, preview.kept) == ("start", [])
    assert [step.label for step in preview.again] == ["write", "message topic", "spawn child"]
    assert run.retry(args=("good",)) is True
    drain(app)
    assert run.result(timeout=10) == "good hello"  # the message is received again
    assert ledger.lines() == ["step", "step"]
    details = Control(app.store).runs.details(run.id)
    assert (details.restarts, [child.state for child in details.children]) == (1, ["failed"])
    assert "restarted" not in kinds(run)


def seat(number: str) -> str:
    return number


def test_compensations_that_ran_are_not_run_again(app, ledger):
    @app.task(name="book", retry=ONCE)
    async def book(ctx: Context, fails: bool) -> str:
        await ctx.options(undo=ledger.write).step(seat, "12a")
        if fails:
            raise ValueError
        return "booked"

    run = book.enqueue(True)
    drain(app)
    assert (state(run), len(ledger.lines())) == ("failed", 1)
    run.retry(args=(False,))
    drain(app)
    assert (run.result(timeout=10), len(ledger.lines())) == ("booked", 1)


def test_a_child_is_retried_with_other_arguments_and_its_parent_waits_for_it(app, charge):
    @app.task(name="parent", retry=ONCE)
    async def parent(ctx: Context) -> int:
        return await ctx.join(await ctx.spawn(charge, -1))

    run = parent.enqueue()
    drain(app)
    assert state(run) == "failed"
    (child,) = app.runs(task="charge")
    app.get_run(child.id).retry(args=(5,))
    run.retry()
    drain(app)
    assert run.result(timeout=10) == 5


def test_a_machine_is_retried_in_another_state(app):
    class Counting(State):
        n: int

        async def run(self, ctx: Context):
            if self.n < 0:
                raise ValueError
            return Done(self.n)

    machine = app.machine("counting", Counting, retry=ONCE)
    assert isinstance(machine, Machine)
    run = machine.enqueue(Counting(n=-1))
    drain(app)
    assert state(run) == "failed"
    run.retry(args=(Counting(n=3),))
    drain(app)
    assert run.result(timeout=10) == 3


def test_retries_that_cannot_be_are_refused(app, charge):
    run = charge.enqueue(1)
    with pytest.raises(ConfigError, match="change this one with update"):
        run.retry(args=(2,))
    drain(app)
    with pytest.raises(RunFinished):
        run.retry(args=(2,))
    failed = charge.enqueue(-1)
    drain(app)
    with pytest.raises(BadArguments):
        failed.retry(args=("x",))
    with pytest.raises(BadArguments):
        failed.retry(kwargs={"colour": "red"})
    with pytest.raises(ConfigError, match="args must be a tuple"):
        failed.retry(args=7)
    app.limit("few", concurrency=1)
    limited = charge.options(limits=["few"]).enqueue(-1)
    g = Graph("g")
    g.add(charge, -1, name="a")
    graph = app.submit(g)
    drain(app)
    runs = Control(app.store).runs
    for call in (lambda: runs.retry(limited.id, args=[2]), lambda: runs.preview_retry(limited.id, changed=True)):
        with pytest.raises(ConfigError, match=r"has limits, .* call run\.retry in the application"):
            call()
    with pytest.raises(GraphError, match="is a graph, which has no arguments"):
        app.store.actions.retry(str(graph.id), None, "{}")
    assert state(failed) == "failed"


def test_a_run_with_limits_takes_those_of_its_new_arguments(app, charge):
    app.limit("order", concurrency=1, by="order")
    run = charge.options(limits=["order"]).enqueue(-1)
    drain(app)
    assert run.retry(args=(7,))
    (claim,) = claimed_limited(app)
    assert claim.limits == '["[\\"order\\",\\"7\\"]"]'


def claimed_limited(app):
    app.store.sessions.open("s", "w", 60_000_000, "{}")
    return app.store.claims.claim_limited("s", list(app.store.lanes.refresh()), 2)


def test_a_sleep_is_rescheduled_and_other_waits_are_not(timed_app, clock):
    @timed_app.task(name="sleeper")
    async def sleeper(ctx: Context, how: str) -> str:
        if how == "event":
            await ctx.wait_for("never", timeout=36000)
        await ctx.sleep(3600, name="pause")
        return how

    run, waiting = sleeper.enqueue("sleep"), sleeper.enqueue("event")
    drain(timed_app)
    assert (state(run), state(waiting)) == ("waiting", "waiting")
    run.update(run_at=START + timedelta(seconds=7200), by="ada")
    clock.forward(3601)
    drain(timed_app)
    assert state(run) == "waiting"
    run.update(run_at=START)
    drain(timed_app)
    assert run.result(timeout=10) == "sleep"
    changes = [dict(entry.data) for entry in run.history() if entry.kind == "updated"]
    assert changes == [{"by": "ada", "changed": ["run_at"]}, {"changed": ["run_at"]}]
    with pytest.raises(RunStarted, match="waits for event never: only the time of a single sleep"):
        waiting.update(run_at=START)


def test_several_sleeps_at_once_are_not_rescheduled(app):
    @app.task(name="two")
    async def two(ctx: Context) -> None:
        import asyncio

        await asyncio.gather(ctx.sleep(3600, name="a"), ctx.sleep(7200, name="b"))

    run = two.enqueue()
    drain(app)
    with pytest.raises(RunStarted, match="has 2 sleeps at once"):
        run.update(run_at=START)
    with pytest.raises(RunStarted, match="only the time"):
        run.update(priority=3)
