"""Durable functions called directly, with contexts in memory."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from holdfast import (
    Context,
    GateRejected,
    Graph,
    Holdfast,
    Retry,
    RunFailed,
    StepFailed,
    SyncContext,
    WaitTimeout,
    idempotency_key,
)
from holdfast.errors import TaskError
from holdfast.testing import Restarted, context, fake, sync_context

app = Holdfast("sqlite:///never-made.db")
NEW_YEAR = datetime(2027, 1, 1, tzinfo=UTC)


def double(number: int) -> int:
    return 2 * number


async def adouble(number: int) -> int:
    return 2 * number


def when() -> datetime:
    return NEW_YEAR


def fail() -> None:
    raise ValueError("no")


@app.task(name="job")
def job(number: int) -> int:
    if number < 0:
        raise ValueError("negative")
    return number + 1


@app.task(name="child")
async def child(ctx: Context, number: int) -> int:
    return await ctx.step(double, number)


@app.task(name="sync-child")
def sync_child(ctx: SyncContext, number: int) -> int:
    return ctx.step(double, number)


@app.task(name="parent")
async def parent(ctx: Context, number: int) -> list[int]:
    first = await ctx.step(adouble, number)
    run = await ctx.spawn(child, first)
    many = await ctx.map(job, [first, first + 1])
    return [first, await ctx.join(run), await ctx.call(sync_child, 5), *many]


@app.task(name="sync-parent")
def sync_parent(ctx: SyncContext, number: int) -> list[int]:
    first = ctx.step(double, number)
    run = ctx.spawn(child, first)
    many = ctx.map(job, [first, first + 1])
    return [first, ctx.join(run), ctx.call(sync_child, 5), *many]


RESULT = [4, 8, 10, 5, 6]
STEPS = ["double", "double"]


async def test_steps_and_children_are_called():
    ctx = context()
    assert await parent(ctx, 2) == RESULT
    assert ctx.steps == ["adouble", *STEPS]
    assert [request.task for request in ctx.enqueued] == ["child", "job", "job", "sync-child"]


def test_steps_and_children_of_a_plain_function_are_called():
    ctx = sync_context()
    assert sync_parent(ctx, 2) == RESULT
    assert ctx.steps == ["double", *STEPS]


async def test_a_plain_function_can_be_called_in_an_async_test():
    assert sync_parent(sync_context(), 2) == RESULT


async def test_a_step_returns_the_decoded_result():
    assert await context().step(when) == NEW_YEAR
    assert sync_context().step(lambda: (1, 2), name="pair") == [1, 2]


async def test_concurrent_steps_return_their_own_results():
    ctx = context()
    assert await asyncio.gather(*(ctx.step(adouble, n) for n in range(3)), ctx.step(double, 9)) == [0, 2, 4, 18]


async def test_a_failing_step_is_retried_without_delays_and_then_fails():
    tries = []

    def flaky() -> int:
        tries.append(1)
        raise ValueError("no")

    with pytest.raises(StepFailed, match="no"):
        await context().step(flaky, name="flaky", retry=Retry(max_attempts=3, delay=3600))
    assert len(tries) == 3
    with pytest.raises(ValueError, match="no"):
        sync_context().options(raises=ValueError).step(fail)


async def test_a_failing_child_fails_its_join_and_is_returned_by_map():
    with pytest.raises(RunFailed, match="negative"):
        await context().call(job, -1)
    good, bad = await context().map(job, [1, -1], errors="return")
    assert good == 2
    assert isinstance(bad, RunFailed)
    with pytest.raises(RunFailed):
        sync_context().map(job, [1, -1])


async def test_sleeps_return_at_once_and_advance_the_time():
    ctx = context(now=NEW_YEAR)
    await ctx.sleep(timedelta(days=30))
    await ctx.sleep_until(NEW_YEAR)
    assert await ctx.now() == ctx.time == NEW_YEAR + timedelta(days=30)


async def test_waits_receive_the_events_and_messages_of_the_test():
    ctx = context(events={"approved": {"by": "ada"}}, messages={"note": ["first", "second"]})
    assert await ctx.wait_for("approved") == {"by": "ada"}
    assert [await ctx.receive("note"), await ctx.receive("note")] == ["first", "second"]
    assert await ctx.emit("shipped", 42) is True
    assert await ctx.emit("shipped", 43) is False
    assert await ctx.wait_for("shipped") == 42
    assert ctx.emitted == {"shipped": 42}


async def test_a_wait_without_an_event_times_out_or_raises():
    ctx = context(now=NEW_YEAR)
    with pytest.raises(WaitTimeout):
        await ctx.wait_for("approved", timeout=60)
    assert ctx.time == NEW_YEAR + timedelta(minutes=1)
    with pytest.raises(TaskError, match=r"event 'approved' never occurs: pass it with context\(events="):
        await ctx.wait_for("approved")
    with pytest.raises(TaskError, match=r"context\(messages=\{'note': \[…\]\}\)"):
        sync_context().receive("note")


async def test_enqueued_runs_and_chunks_can_be_inspected():
    ctx = context()
    run = await ctx.enqueue(job, 1)
    await ctx.write({"page": 1})
    await ctx.progress(1, 2)
    assert [request.args for request in ctx.enqueued] == [job.request(1).args]
    assert ctx.written == [{"page": 1}]
    assert run.task == "job"
    with pytest.raises(TaskError, match="isn't in a store"):
        run.result()


async def test_a_transaction_gets_the_connection_of_the_test():
    def add(connection: list[int], number: int) -> int:
        connection.append(number)
        return number

    rows: list[int] = []
    assert await context(connection=rows).transaction(add, 1) == 1
    assert sync_context(connection=rows).transaction(add, 2) == 2
    assert rows == [1, 2]
    with pytest.raises(TaskError, match=r"needs a connection: pass context\(connection=…\)"):
        await context().transaction(add, 1)
    with pytest.raises(StepFailed, match="AttributeError"):
        await context(connection=3).transaction(add, 1)


async def test_a_restart_ends_the_call():
    @app.task(name="again")
    async def again(ctx: Context, number: int) -> None:
        try:
            await ctx.restart(number + 1)
        except Exception:
            pytest.fail("a restart isn't the author's to catch")

    with pytest.raises(Restarted) as restarted:
        await again(context(), 1)
    assert restarted.value.arguments == (2,)


async def test_each_step_has_its_own_idempotency_key():
    first, second = context(), context()
    keys = [await ctx.step(idempotency_key) for ctx in (first, first, second)]
    keys += [sync_context().step(idempotency_key)]
    assert len(set(keys)) == 4
    with pytest.raises(TaskError, match="outside a run"):
        idempotency_key()


async def test_the_context_cannot_be_used_in_a_step():
    ctx = context()

    async def inner() -> None:
        await ctx.step(double, 1)

    with pytest.raises(StepFailed, match="inside step"):
        await ctx.step(inner, name="inner")


async def test_graphs_and_remote_tasks_need_the_kit():
    graph = Graph("g")
    graph.add(job, 1, name="a")
    with pytest.raises(TaskError, match="use the kit"):
        await context().submit(graph)
    with pytest.raises(TaskError, match="remote task"):
        await context().call(app.remote("far"), 1)


async def test_undo_and_recorded_values_work():
    ctx = context()
    await ctx.undo(double, 1)
    assert await ctx.step(double, 2, undo=print) == 4
    assert 0 <= await ctx.random() < 1
    assert await ctx.uuid() != ctx.run_id
    ctx.check()
    assert context(scheduled_for=NEW_YEAR).scheduled_for == NEW_YEAR


async def test_fakes_work_in_direct_calls():
    with fake(double, returns=7) as doubled:
        assert await child(context(), 1) == 7
    assert [call.args for call in doubled.calls] == [(1,)]


async def test_children_and_remote_tasks_are_faked_in_direct_calls():
    with fake(child, returns=7) as called, fake("far", does=lambda a, b: a + b):
        assert await context().call(child, 1) == 7
        assert await context().call(app.remote("far"), 1, b=2) == 3
    assert [call.args for call in called.calls] == [(1,)]


def test_a_durable_function_without_a_context_says_where_to_get_one():
    with pytest.raises(TaskError, match=r"holdfast\.testing\.context\(\)"):
        child(1)


async def decided(ctx: Context) -> str:
    try:
        return str(await ctx.gate("approve", type=bool, timeout=60))
    except GateRejected as rejected:
        return str(rejected)
    except WaitTimeout as timeout:
        return str(timeout)


async def test_gates_are_decided_by_the_test():
    assert await decided(context(gates={"approve": True})) == "True"
    assert await decided(context(gates={"approve": ValueError("no")})) == "gate approve was rejected: no"
    ctx = context(now=NEW_YEAR)
    assert await decided(ctx) == "gate approve was not completed in time"
    assert ctx.time == NEW_YEAR + timedelta(seconds=60)
    with pytest.raises(TaskError, match=r"gate 'approve' is never completed: .*gates="):
        await context().gate("approve")
