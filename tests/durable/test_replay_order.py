"""Concurrent branches: a replay shows user code the recorded order. The tests force the orders."""

from __future__ import annotations

import asyncio
from itertools import permutations
from typing import Any

import pytest

from holdfast import Context, Retry
from holdfast.engine.durable.delivery import WritesAhead
from holdfast.store.commands import NewCheckpoint
from holdfast.store.journal import Journal
from tests.support.durable import drain, kinds, state
from tests.support.step_functions import step_function
from tests.support.wait_until import wait_until

ONCE = Retry(max_attempts=1)


class InOrder:
    """A step's function that lets concurrent calls return in a given order, each when the one before is recorded."""

    def __init__(self, app, ledger, order):
        self.app, self.ledger, self.order = app, ledger, list(order)

    @step_function
    def step(self, run: str, name: str) -> str:
        self.ledger.write(name)
        before = self.order[: self.order.index(name)]
        wait_until(lambda: self.on_record(run) >= len(before))
        return name

    def on_record(self, run):
        return sum(step.key.startswith("step") for step in self.app.store.queries.steps(run))


def gathered(ctx, fn, names):
    return asyncio.gather(*(ctx.step(fn, str(ctx.run_id), name) for name in names))


@pytest.mark.parametrize("order", ["".join(order) for order in permutations("abc")])
def test_gather_gives_results_in_the_order_of_the_calls_and_replays_the_order_of_completion(app, ledger, order):
    in_order = InOrder(app, ledger, order)
    seen: list[list[str]] = []

    @app.task(name="work")
    async def work(ctx: Context) -> list[str]:
        here: list[str] = []
        seen.append(here)

        async def branch(name: str) -> str:
            value = await ctx.step(in_order.step, str(ctx.run_id), name)
            here.append(name)
            return value

        got = await asyncio.gather(*map(branch, "abc"))
        await ctx.wait_for("go")
        return got

    run = work.enqueue()
    drain(app)
    app.emit("go")
    drain(app)
    assert run.result(timeout=5) == ["a", "b", "c"]
    assert seen == [list(order), list(order)]
    assert sorted(ledger.lines()) == ["a", "b", "c"]


@pytest.mark.parametrize("order", ["abc", "cab"])
def test_as_completed_and_wait_see_the_recorded_order_again(app, ledger, order):
    in_order = InOrder(app, ledger, order)

    @app.task(name="work")
    async def work(ctx: Context) -> list[list[str]]:
        run = str(ctx.run_id)
        completed = [await each for each in asyncio.as_completed([ctx.step(in_order.step, run, n) for n in "abc"])]
        tasks = {asyncio.ensure_future(ctx.step(in_order.step, run, n), loop=None): n for n in "abc"}
        first, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait(rest)
        ledger.write("saw", *completed, "first", *sorted(tasks[task] for task in first))
        await ctx.wait_for("go")
        return [completed]

    run = work.enqueue()
    drain(app)
    app.emit("go")
    drain(app)
    assert run.result(timeout=5) == [list(order)]
    first, again = [line for line in ledger.lines() if line.startswith("saw")]
    assert first == again
    assert first.startswith(f"saw {' '.join(order)} first")


def test_nested_groups_see_all_consequences_of_one_result_before_the_next(app, ledger):
    in_order = InOrder(app, ledger, "dacb")
    seen: list[list[str]] = []

    @app.task(name="work")
    async def work(ctx: Context) -> None:
        here: list[str] = []
        seen.append(here)

        async def pair(*names: str) -> None:
            async with asyncio.TaskGroup() as group:
                for name in names:
                    group.create_task(one(name))
            here.append("".join(names))

        async def one(name: str) -> None:
            await asyncio.gather(ctx.step(in_order.step, str(ctx.run_id), name))
            here.append(name)

        await asyncio.gather(pair("a", "b"), pair("c", "d"))
        await ctx.wait_for("go")

    run = work.enqueue()
    drain(app)
    app.emit("go")
    drain(app)
    run.result(timeout=5)
    assert seen == [["d", "a", "c", "cd", "b", "ab"]] * 2


def test_a_race_is_won_by_the_same_branch_again(app, ledger):
    """The losing branch was cancelled: it isn't recorded, and the replay doesn't wait for it."""
    started = asyncio.Event()

    async def quick(n: int) -> str:
        await started.wait()
        return f"quick {n}"

    async def slow(n: int) -> str:
        ledger.write("slow", n)
        started.set()
        await asyncio.sleep(3600)
        return "never"

    @app.task(name="work")
    async def work(ctx: Context) -> str:
        tasks = [
            asyncio.ensure_future(ctx.step(slow, 1, name="slow")),
            asyncio.ensure_future(ctx.step(quick, 1, name="quick")),
        ]
        done, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in rest:
            task.cancel()
        [winner] = done
        await ctx.wait_for("go")
        return winner.result()

    run = work.enqueue()
    drain(app)
    assert state(run) == "waiting"
    app.emit("go")
    drain(app)
    assert run.result(timeout=5) == "quick 1"


@pytest.mark.parametrize("finished", ["", "a", "c", "ab", "abc"])
def test_a_worker_that_stops_in_a_gather_leaves_finished_steps_done(app, ledger, finished):
    """Whatever subset was recorded, no finished step runs again, and results keep their order."""
    held = asyncio.Event()

    async def step(name: str) -> str:
        ledger.write(name)
        if name not in finished and ledger.counts()[name] == 1:
            await held.wait()
        return name

    @app.task(name="work", retry=ONCE)
    async def work(ctx: Context) -> list[str]:
        return await asyncio.gather(*(ctx.step(step, name, name="step") for name in "abcd"))

    run = work.enqueue()
    with app.worker(grace=0):
        wait_until(lambda: len(ledger.lines()) == 4)
        wait_until(lambda: len(app.store.queries.steps(str(run.id))) == len(finished))
    assert state(run) == "ready"
    drain(app)
    assert run.result(timeout=5) == ["a", "b", "c", "d"]
    assert ledger.counts() == {name: 1 if name in finished else 2 for name in "abcd"}
    assert kinds(run) == ["enqueued", "started", "handed_back", "started", "done"]


def test_identical_steps_in_a_gather_keep_their_results_apart(app, ledger):
    def count() -> int:
        ledger.write("ran")
        return len(ledger.lines())

    @app.task(name="work")
    async def work(ctx: Context) -> list[int]:
        got = await asyncio.gather(*(ctx.step(count, name="count") for _ in range(3)))
        ledger_saw.append(got)
        await ctx.wait_for("go")
        return got

    ledger_saw: list[list[int]] = []
    run = work.enqueue()
    drain(app)
    app.emit("go")
    drain(app)
    assert run.result(timeout=5) == ledger_saw[0] == ledger_saw[1]
    assert len(ledger.lines()) == 3


def test_a_failure_in_a_task_group_cancels_the_others_and_is_retried(app, effects, ledger):
    async def hang(name: str) -> None:
        ledger.write(name)
        await asyncio.sleep(3600 if ledger.counts()[name] == 1 else 0)

    @app.task(name="work", retry=Retry(max_attempts=2, delay=0))
    async def work(ctx: Context) -> str:
        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.step(hang, "hangs", name="hang"))
            group.create_task(ctx.step(effects.fail_until, "flaky", 2))
        return "ok"

    run = work.enqueue()
    drain(app)
    assert run.result(timeout=5) == "ok"
    assert ledger.counts() == {"hangs": 2, "flaky": 2}


def test_a_wait_behind_a_pending_spawn_is_numbered_when_it_is_registered(app, monkeypatch):
    """A wait is registered only when the children spawned before it are durable. Outcomes of other branches that user
    code sees until then come before it in a replay, too."""
    app.emit("early")
    spawned, noted = asyncio.Event(), asyncio.Event()
    wait_until_durable = WritesAhead.wait

    async def wait_until_noted(ahead: WritesAhead, *args: Any) -> None:
        await wait_until_durable(ahead, *args)
        await noted.wait()

    @app.task(name="child")
    async def child() -> None: ...

    seen: list[list[str]] = []

    @app.task(name="work")
    async def work(ctx: Context) -> None:
        here: list[str] = []
        seen.append(here)

        async def note() -> None:
            await ctx.step(spawned.wait, name="step")
            here.append("step")
            noted.set()

        async def spawn_and_wait() -> None:
            await ctx.spawn(child)
            spawned.set()
            await ctx.wait_for("early")
            here.append("event")

        await asyncio.gather(note(), spawn_and_wait())
        await ctx.wait_for("go")

    monkeypatch.setattr(WritesAhead, "wait", wait_until_noted)
    run = work.enqueue()
    drain(app)
    app.emit("go")
    drain(app)
    run.result(timeout=5)
    assert seen == [["step", "event"]] * 2


def test_the_outcome_of_a_wait_is_durable_before_a_function_with_branches_sees_it(app, monkeypatch):
    """Otherwise a crash could leave a later outcome recorded and this one not, and the replay would swap them."""
    write = Journal.write
    loops: list[asyncio.AbstractEventLoop] = []

    def write_late(journal: Journal, session: str, commands: Any, *args: Any) -> Any:
        """Let user code run before the outcome is written: if it was delivered already, the code sees it."""
        if any(isinstance(each, NewCheckpoint) and each.key == "$event:late#1" for each in commands):
            asyncio.run_coroutine_threadsafe(iterate(1000), loops[0]).result()
        return write(journal, session, commands, *args)

    async def iterate(times: int) -> None:
        for _ in range(times):
            await asyncio.sleep(0)

    @app.task(name="work")
    async def work(ctx: Context) -> list[str]:
        loops.append(asyncio.get_running_loop())
        never = asyncio.ensure_future(ctx.wait_for("never"))
        emitted = asyncio.ensure_future(ctx.step(emit_when_waiting, name="emit"))
        await ctx.wait_for("late")
        recorded = [step.key for step in app.store.queries.steps(str(ctx.run_id))]
        await emitted
        never.cancel()
        return recorded

    async def emit_when_waiting() -> None:
        await asyncio.to_thread(wait_until, lambda: {"late", "never"} <= waited_for(app))
        await app.aemit("late")

    monkeypatch.setattr(Journal, "write", write_late)
    run = work.enqueue()
    drain(app)
    assert "$event:late#1" in run.result(timeout=5)


def waited_for(app):
    rows, _ = app.store.events.awaited(None, 10)
    return {row.name for row in rows}
