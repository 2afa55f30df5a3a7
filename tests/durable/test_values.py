"""Values that a run publishes: the latest per name, never an old one again, followed by clients."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass

import pytest

from holdfast import Context, Retry, SyncContext
from holdfast.errors import ConfigError, PayloadError, ResultTimeout, RunFinished, RunNotFound, TooLarge
from holdfast.store import interaction
from tests.support.durable import drain, state
from tests.support.wait_until import wait_until

ONCE = Retry(max_attempts=1)


@dataclass
class Phase:
    name: str
    done: int


def test_the_latest_value_of_a_name_is_shown_and_a_replay_sets_no_old_one(app):
    @app.task(name="work")
    async def work(ctx: Context) -> None:
        await ctx.set("phase", "packing")
        await ctx.set("count", 1)
        await ctx.wait_for("go")
        await ctx.set("phase", "shipping")
        await ctx.wait_for("again")
        assert await run.aget("phase") == "shipping", "a replay has set the first value again"

    run = work.enqueue()
    assert run.values() == {}
    assert run.get("phase", "unknown") == "unknown"
    drain(app, max_resident=0)
    assert run.values() == {"count": 1, "phase": "packing"}
    app.emit("go")
    drain(app, max_resident=0)
    assert run.get("phase") == "shipping"
    app.emit("again")
    drain(app, max_resident=0)
    assert state(run) == "done"
    assert run.values() == {"count": 1, "phase": "shipping"}, "also after the end"


def test_values_have_types(app):
    @app.task(name="work")
    def work(ctx: SyncContext) -> None:
        ctx.set("phase", Phase("packing", 3))

    run = work.enqueue()
    drain(app)
    assert run.get("phase") == {"name": "packing", "done": 3}
    assert run.get("phase", type=Phase) == Phase("packing", 3)
    assert asyncio.run(run.aget("phase", type=Phase)) == Phase("packing", 3)
    assert asyncio.run(run.avalues()) == {"phase": {"name": "packing", "done": 3}}
    with pytest.raises(PayloadError, match=f"the value 'phase' of run {run.id}: the JSON can't be decoded as int"):
        run.get("phase", type=int)
    with pytest.raises(PayloadError, match=f"the value 'phase' of run {run.id}"):
        next(iter(run.watch("phase", type=int)))
    with pytest.raises(ConfigError, match="name of a value must not be empty"):
        run.get("")


def test_a_client_waits_for_a_value(app):
    @app.task(name="work", retry=ONCE)
    async def work(ctx: Context) -> None:
        await ctx.wait_for("go")
        await ctx.set("ready", None)
        await ctx.wait_for("end")

    run = work.enqueue()
    with pytest.raises(ResultTimeout, match=r"did not set the value 'ready' within 0.01 s"):
        run.get("ready", wait=True, timeout=0.01)
    with pytest.raises(ResultTimeout, match="did not set the value"):
        asyncio.run(run.aget("ready", wait=True, timeout=0.01))
    with app.worker():
        wait_until(lambda: state(run) == "waiting")
        app.emit("go")
        assert run.get("ready", 5, wait=True, timeout=20) is None
        assert asyncio.run(run.aget("ready", wait=True, timeout=20)) is None
        app.emit("end")
        with pytest.raises(RunFinished, match="is done and has not set the value 'other'"):
            run.get("other", wait=True, timeout=20)


def test_a_watcher_sees_each_new_value_until_the_run_ends(app):
    @app.task(name="work")
    async def work(ctx: Context) -> None:
        for number in range(4):
            await ctx.wait_for(f"go{number}")
            await ctx.set("number", number)
            await ctx.set("other", number)

    run = work.enqueue()
    seen: list[int] = []

    async def watch() -> list[int]:
        return [value async for value in run.awatch("number", type=int)]

    with app.worker():
        results: list[list[int]] = []
        thread = threading.Thread(target=lambda: results.append(asyncio.run(watch())))
        thread.start()
        app.emit("go0")
        for value in run.watch("number"):
            seen.append(value)
            app.emit(f"go{value + 1}")
        thread.join(20)
    assert seen == [0, 1, 2, 3]
    assert results[0][-1] == 3
    assert results[0] == sorted(set(results[0])), "it may skip some, but never goes back"
    assert list(run.watch("number")) == [3]
    assert list(run.watch("missing")) == []


def test_values_are_bounded_and_a_refused_one_changes_nothing(app, monkeypatch):
    monkeypatch.setattr(interaction, "MAX_VALUES", 2)
    monkeypatch.setattr(interaction, "MAX_VALUES_BYTES", 100)
    refusals: list[str] = []

    @app.task(name="work")
    async def work(ctx: Context) -> None:
        refusals.clear()
        for name, value in (("a", 1), ("b", 2), ("c", 3), ("b", "x" * 100), ("a", 4)):
            try:
                await ctx.set(name, value)
            except TooLarge as error:
                refusals.append(str(error))
        await ctx.wait_for("go")

    run = work.enqueue()
    drain(app, max_resident=0)
    app.emit("go")
    drain(app, max_resident=0)
    assert state(run) == "done"
    assert [error.partition(" may have ")[2] for error in refusals] == [
        "values of at most 2 names, not 3", "at most 100 bytes together, not 103"
    ], "the replay raises the same"  # fmt: skip
    assert run.values() == {"a": 4, "b": 2}


def test_values_stay_when_the_run_restarts_and_a_fork_sets_its_own(app):
    @app.task(name="work")
    async def work(ctx: Context, number: int) -> None:
        await ctx.set("number", number)
        if number < 2:
            await ctx.set(f"only{number}", True)
            await ctx.restart(number + 1)
        await ctx.step(int, "1", name="step")

    run = work.enqueue(0)
    drain(app)
    assert run.values() == {"number": 2, "only0": True, "only1": True}
    fork = run.fork("step")
    drain(app)
    assert fork.values() == {"number": 2}


def test_values_go_when_the_run_is_pruned(app):
    @app.task(name="work")
    async def work(ctx: Context) -> None:
        await ctx.set("a", 1)

    run = work.enqueue()
    drain(app)
    app.store.retention.prune_these([str(run.id)])
    with pytest.raises(RunNotFound):
        run.values()
    assert app.store.values.read(str(run.id)) is None
