"""The end of a child is final: a parent that doesn't catch it fails at once, without retries."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import Context, Fatal, Graph, Holdfast, Retry, Run, RunCancelled, RunFailed, SyncContext
from holdfast.errors import HoldfastError
from tests.support.durable import drain, kinds
from tests.support.wait_until import wait_until

ONCE = Retry(max_attempts=1)
PATIENT = Retry(max_attempts=3, delay=0)


@pytest.fixture
def broken(app: Holdfast, ledger):
    @app.task(name="broken", retry=ONCE)
    async def broken(what: str = "broken") -> None:
        ledger.write("child", what)
        raise ValueError(what)

    return broken


def parents(app: Holdfast, broken: Any, ledger: Any) -> dict[str, Any]:
    """Durable functions that fail with the failure of a child, by the way in which they wait for it."""

    @app.task(name="called", retry=PATIENT)
    async def called(ctx: Context) -> None:
        ledger.write("body")
        await ctx.call(broken)

    @app.task(name="joined", retry=PATIENT)
    async def joined(ctx: Context) -> None:
        ledger.write("body")
        await ctx.join(await ctx.spawn(broken))

    @app.task(name="mapped", retry=PATIENT)
    async def mapped(ctx: Context) -> None:
        ledger.write("body")
        await ctx.map(broken, ["a", "b"])

    @app.task(name="raised_later", retry=PATIENT)
    async def raised_later(ctx: Context) -> None:
        ledger.write("body")
        for each in await ctx.map(broken, ["a", "b"], errors="return"):
            raise each

    @app.task(name="grouped", retry=PATIENT)
    async def grouped(ctx: Context) -> None:
        ledger.write("body")
        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.call(broken, "a"))
            group.create_task(ctx.call(broken, "b"))

    @app.task(name="gathered", retry=PATIENT)
    async def gathered(ctx: Context) -> None:
        ledger.write("body")
        await asyncio.gather(ctx.call(broken, "a"), ctx.call(broken, "b"))

    @app.task(name="graphed", retry=PATIENT)
    async def graphed(ctx: Context) -> None:
        ledger.write("body")
        graph = Graph("broken-graph")
        graph.add(broken, "in a graph")
        await ctx.join(await ctx.submit(graph))

    @app.task(name="blocking", retry=PATIENT)
    def blocking(ctx: SyncContext) -> None:
        ledger.write("body")
        ctx.call(broken)

    made = [called, joined, mapped, raised_later, grouped, gathered, graphed, blocking]
    return {task.name: task for task in made}


WAYS = ["called", "joined", "mapped", "raised_later", "grouped", "gathered", "graphed", "blocking"]


def failures(run: Run[Any]) -> list[str]:
    return [kind for kind in kinds(run) if kind in ("retrying", "failed", "timed_out")]


@pytest.mark.parametrize("way", WAYS)
def test_an_uncaught_failure_of_a_child_fails_the_parent_at_once(app, broken, ledger, way):
    run = parents(app, broken, ledger)[way].enqueue()
    drain(app)
    assert failures(run) == ["failed"]
    assert run.info().state == "failed"
    assert ledger.lines().count("body") <= 2  # once more after a suspension


def test_the_error_names_the_child_and_its_run(app, broken, ledger):
    run = parents(app, broken, ledger)["called"].enqueue()
    drain(app)
    [child] = [info for info in app.runs() if info.parent == run.id]
    error = run.info().error
    assert (error.code, error.type) == ("error", "holdfast.errors.RunFailed")
    assert error.message == f"child broken (run {child.id}) failed (error): ValueError: broken"


def test_the_error_names_a_graph(app, broken, ledger):
    run = parents(app, broken, ledger)["graphed"].enqueue()
    drain(app)
    assert run.info().error.message.startswith("child broken-graph (run ")


def test_compensation_begins_at_once(app, broken, effects, ledger):
    @app.task(name="parent", retry=Retry(max_attempts=3, delay=3600))
    async def parent(ctx: Context) -> None:
        await ctx.step(effects.note, "booked", undo=lambda _: ledger.write("unbooked"))
        await ctx.call(broken)

    run = parent.enqueue()
    drain(app)
    assert ledger.lines() == ["booked", "child broken", "unbooked"]
    assert run.info().state == "failed"


def test_the_failure_hook_is_called_once(app):
    seen: list[Any] = []
    app.on_failure(seen.append)

    @app.task(name="broken", retry=ONCE)
    async def broken() -> None:
        raise ValueError

    @app.task(name="parent", retry=PATIENT)
    async def parent(ctx: Context) -> None:
        await ctx.call(broken)

    run = parent.enqueue()
    with app.worker():
        with pytest.raises(RunFailed):
            run.result(timeout=60)
        wait_until(lambda: any(each.task == "parent" for each in seen))
    assert [each.task for each in seen] == ["broken", "parent"]


@pytest.mark.parametrize(
    ("retry", "failed_attempts"),
    [
        (Retry(max_attempts=2, delay=0, on=RunFailed), 2),
        (Retry(max_attempts=2, delay=0, on=(OSError, RunFailed)), 2),
        (Retry(max_attempts=2, delay=0, on=HoldfastError), 1),
        (Retry(max_attempts=2, delay=0, on=Exception), 1),
        (Retry(max_attempts=2, delay=0, on=RunCancelled), 1),
    ],
    ids=["named", "among others", "by its base", "all", "another"],
)
def test_a_retry_policy_that_names_run_failed_retries_the_parent(app, broken, retry, failed_attempts):
    @app.task(name="parent", retry=retry)
    async def parent(ctx: Context) -> None:
        await ctx.call(broken)

    run = parent.enqueue()
    drain(app)
    assert len(failures(run)) == failed_attempts


def test_a_cancelled_child_fails_its_parent_at_once_too(app):
    @app.task(name="waiter")
    async def waiter(ctx: Context) -> None:
        await ctx.wait_for("never")

    @app.task(name="parent", retry=PATIENT)
    async def parent(ctx: Context) -> None:
        await ctx.call(waiter)

    run = parent.enqueue()
    drain(app)
    [child] = [info for info in app.runs() if info.parent == run.id]
    app.get_run(child.id).cancel("not needed")
    drain(app)
    assert failures(run) == ["failed"]
    assert run.info().error.message == f"child waiter (run {child.id}) was cancelled: not needed"


def test_the_failure_of_a_run_that_is_no_child_follows_the_retry_policy(app, broken, ledger):
    """Each try of the step creates a run of its own, so its outcome can change."""

    @app.task(name="parent", retry=Retry(max_attempts=2, delay=0))
    async def parent(ctx: Context) -> None:
        await ctx.step(enqueue_and_wait, name="enqueue and wait")

    @app.task(name="job", retry=Retry(max_attempts=2, delay=0))
    async def job() -> None:
        await enqueue_and_wait()

    async def enqueue_and_wait() -> None:
        await (await broken.aenqueue()).aresult(timeout=60)

    runs = [parent.enqueue(), job.enqueue()]
    with app.worker():
        for run in runs:
            with pytest.raises(RunFailed):
                run.result(timeout=60)
    assert [len(failures(run)) for run in runs] == [2, 2]
    assert ledger.lines() == ["child broken"] * 4


def test_a_child_that_an_operator_repairs_lets_the_parent_be_retried(app, ledger):
    """The parent has failed; a retry by an operator continues with the child's new result."""
    repaired: list[bool] = []

    @app.task(name="child")
    async def child() -> str:
        if not repaired:
            raise Fatal("not yet")
        return "fine"

    @app.task(name="parent", retry=PATIENT)
    async def parent(ctx: Context) -> str:
        return await ctx.call(child)

    run = parent.enqueue()
    drain(app)
    assert failures(run) == ["failed"]
    repaired.append(True)
    run.retry()
    drain(app)
    assert run.result(timeout=5) == "fine"
