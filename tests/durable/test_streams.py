"""Streams: what a run writes for its followers."""

from __future__ import annotations

import asyncio
import threading

import pytest

from holdfast import Context, Retry, SyncContext
from holdfast.client.results import CompletionListener, PollBackoff
from holdfast.errors import RunNotFound
from tests.support.durable import drain, state
from tests.support.processes import Processes
from tests.support.wait_until import wait_until

FOLLOWER = """
import sys
from holdfast import Holdfast
with Holdfast(sys.argv[1]) as app:
    print("follows", flush=True)
    for chunk in app.get_run(sys.argv[2]).stream():
        print("chunk", chunk.seq, chunk.attempt, chunk.data, flush=True)
    print("over", flush=True)
"""


def test_chunks_arrive_once_and_in_order_as_json(app):
    @app.task(name="work")
    async def work(ctx: Context) -> None:
        for chunk in ("a", {"b": [1, None]}, 3):
            await ctx.write(chunk)
        await ctx.wait_for("go")
        await ctx.write("last")

    run = work.enqueue()
    drain(app)
    app.emit("go")
    drain(app)
    chunks = list(run.stream())
    assert [(chunk.seq, chunk.attempt, chunk.data) for chunk in chunks] == [
        (1, 1, "a"), (2, 1, {"b": [1, None]}), (3, 1, 3), (4, 1, "last")
    ]  # fmt: skip
    assert [chunk.data for chunk in run.stream(after=2)] == [3, "last"]


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_a_step_writes_too_and_chunks_of_a_lost_attempt_carry_its_number(app, kind):
    if kind == "async":

        @app.task(name="work", retry=Retry(max_attempts=2, delay=0))
        async def work(ctx: Context) -> None:
            async def inside(attempt: int) -> None:
                await ctx.write(f"from {attempt}")
                if attempt == 1:
                    raise ValueError

            await ctx.write("before")
            await ctx.options(name="inside").step(inside, ctx.attempt)
            await ctx.write("after")

    else:

        @app.task(name="work", retry=Retry(max_attempts=2, delay=0))
        def work(ctx: SyncContext) -> None:
            def inside(attempt: int) -> None:
                ctx.write(f"from {attempt}")
                if attempt == 1:
                    raise ValueError

            ctx.write("before")
            ctx.options(name="inside").step(inside, ctx.attempt)
            ctx.write("after")

    run = work.enqueue()
    drain(app)
    assert state(run) == "done"
    assert [(chunk.attempt, chunk.data) for chunk in run.stream()] == [
        (1, "before"), (1, "from 1"), (2, "from 2"), (2, "after")
    ]  # fmt: skip


class ThirdTimeLucky:
    """Raises in the first two calls with each name."""

    def __init__(self) -> None:
        self._calls: list[str] = []

    def __call__(self, name: str) -> None:
        self._calls.append(name)
        if self._calls.count(name) < 3:
            raise ValueError(name)


def declare_async(app, called, in_thread, tries):
    @app.task(name="work", retry=Retry(max_attempts=1))
    async def work(ctx: Context) -> None:
        async def inside(name: str) -> None:
            await ctx.write(name)
            called(name)

        def inside_thread(name: str) -> object:
            return inside(name)

        for name in ("a", "b"):
            await ctx.options(name="inside", **tries).step(inside_thread if in_thread else inside, name)
        await ctx.write("body")

    return work


def declare_sync(app, called, tries):
    @app.task(name="work", retry=Retry(max_attempts=1))
    def work(ctx: SyncContext) -> None:
        def inside(name: str) -> None:
            ctx.write(name)
            called(name)

        for name in ("a", "b"):
            ctx.options(name="inside", **tries).step(inside, name)
        ctx.write("body")

    return work


@pytest.mark.parametrize("kind", ["async", "async with a timeout", "def", "sync"])
def test_chunks_say_which_try_of_which_step_wrote_them(app, kind):
    tries = {"retry": Retry(max_attempts=3, delay=0), "timeout": 60 if "timeout" in kind else None}
    called = ThirdTimeLucky()
    work = declare_sync(app, called, tries) if kind == "sync" else declare_async(app, called, kind == "def", tries)
    run = work.enqueue()
    drain(app)
    assert state(run) == "done"
    chunks = list(run.stream())
    told = [(chunk.data, chunk.attempt, chunk.step_try) for chunk in chunks]
    assert told == [(name, 1, number) for name in ("a", "b") for number in (1, 2, 3)] + [("body", 1, 1)]
    first, *_, last = [chunk.step for chunk in chunks if chunk.data != "body"]
    assert first.startswith("inside-")
    assert first != last
    assert [chunk.step for chunk in chunks] == [first] * 3 + [last] * 3 + [None]


def test_another_process_follows_a_run_live_and_ends_with_it(app, database_url, tmp_path):
    @app.task(name="work")
    async def work(ctx: Context) -> None:
        for n in range(3):
            await ctx.write(f"piece{n}")
            await ctx.wait_for(f"event{n}")

    processes = Processes(tmp_path)
    script = tmp_path / "follower.py"
    script.write_text(FOLLOWER)
    try:
        with app.worker():
            run = work.enqueue()
            follower = processes.start(script, database_url, run.id)
            for n in range(3):
                follower.wait_for(f"chunk {n + 1} 1 piece{n}")
                assert "over" not in follower.log
                app.emit(f"event{n}")
            follower.wait_for("over")
            assert follower.wait() == 0
    finally:
        processes.close()


@pytest.fixture
def never_poll(monkeypatch):
    """Make callers wait for a wake-up instead of the next poll."""
    monkeypatch.setattr(PollBackoff, "pause", lambda *_: 3600.0)


def follow_in_steps(worker_app, follow):
    """Follow a run that writes a chunk after each event, and emit an event for each chunk that arrives."""

    @worker_app.task(name="work")
    async def work(ctx: Context) -> None:
        for n in range(3):
            await ctx.write(f"piece{n}")
            await ctx.wait_for(f"event{n}")

    got: list[object] = []
    with worker_app.worker():
        run = work.enqueue()
        follower = threading.Thread(target=follow, args=(run, got))
        follower.start()
        for n in range(3):
            wait_until(lambda n=n: len(got) == n + 1)
            worker_app.emit(f"event{n}")
        follower.join(30)
    assert not follower.is_alive()
    assert got == ["piece0", "piece1", "piece2"]


def follow_in_thread(run, got):
    got += (chunk.data for chunk in run.stream())


def follow_on_loop(run, got):
    async def follow() -> None:
        async for chunk in run.astream():
            got.append(chunk.data)

    asyncio.run(follow())


@pytest.mark.parametrize("follow", [follow_in_thread, follow_on_loop])
def test_a_worker_wakes_the_followers_in_its_process(app, never_poll, monkeypatch, follow):
    monkeypatch.setattr(CompletionListener, "request", lambda *_: None)
    follow_in_steps(app, follow)


@pytest.mark.parametrize("follow", [follow_in_thread, follow_on_loop])
def test_followers_of_another_process_are_notified_of_chunks_and_of_the_end(app, make_app, never_poll, follow):
    elsewhere = make_app()  # without the worker's signals, like another process
    follow_in_steps(app, lambda run, got: follow(elsewhere.get_run(run.id), got))


def test_a_stream_ends_with_a_run_that_fails_or_is_cancelled(app):
    @app.task(name="work")
    async def work(ctx: Context) -> None:
        await ctx.write("one")
        await ctx.wait_for("never")

    run = work.enqueue()
    drain(app)
    got: list[object] = []
    follower = threading.Thread(target=lambda: got.extend(chunk.data for chunk in run.stream()))
    follower.start()
    run.cancel()
    follower.join(30)
    assert not follower.is_alive()
    assert got == ["one"]


def test_astream_does_not_block_the_loop(app):
    @app.task(name="work")
    async def work(ctx: Context) -> None:
        await ctx.write("one")
        await ctx.write("two")

    async def follow():
        async with app.worker():
            run = await work.aenqueue()
            return [chunk.data async for chunk in run.astream()]

    assert asyncio.run(follow()) == ["one", "two"]


def test_a_stream_of_an_unknown_run_raises(app):
    @app.task(name="work")
    async def work(ctx: Context) -> None: ...

    run = work.enqueue()
    run._id = type(run.id)(int=5)
    with pytest.raises(RunNotFound):
        list(run.stream())


def test_many_chunks_are_followed_by_pages(app):
    @app.task(name="work")
    def work(ctx: SyncContext) -> None:
        def burst() -> None:
            for n in range(1500):
                ctx.write(n)

        ctx.step(burst, name="burst")

    run = work.enqueue()
    with app.worker():
        assert [chunk.data for chunk in run.stream()] == list(range(1500))
    wait_until(lambda: state(run) == "done")
