"""Adversarial cases: none of them loses a run, affects other runs, or keeps a worker from stopping."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from datetime import timedelta

import pytest

from holdfast import Holdfast, Retry, RetryAfter, RunFailed
from holdfast.database import Statement
from holdfast.engine.threads import run_in_own_thread
from holdfast.errors import ConfigError
from tests.processes import tasks
from tests.support.wait_until import wait_until


def test_an_interrupt_in_a_transaction_loses_no_later_enqueue(app, database_url, monkeypatch):
    @app.task(name="work")
    def work(n: int) -> int:
        return n

    work.enqueue(0)
    connection = app.store.database.connection("client")._connection
    kind, begin = type(connection), type(connection).begin

    def interrupted(self):
        begin(self)
        monkeypatch.setattr(kind, "begin", begin)
        raise KeyboardInterrupt

    monkeypatch.setattr(kind, "begin", interrupted)
    with pytest.raises(KeyboardInterrupt):
        work.options(key="k").enqueue(1)
    run = work.enqueue(2)
    keyed = work.options(key="k").enqueue(1)
    with Holdfast(database_url) as other:
        assert {info.id for info in other.runs()} >= {run.id, keyed.id}


def test_the_longest_retry_delay_round_trips(app):
    @app.task(name="work")
    def work(n: int) -> int:
        return n

    longest = Retry(max_delay=timedelta(days=200 * 365))
    runs = [work.enqueue(1), work.options(retry=longest, priority=5).enqueue(2)]
    assert app.worker().drain(timeout=60) == 2
    assert [run.result(timeout=5) for run in runs] == [1, 2]


def test_unreadable_options_fall_back_to_the_declaration(app):
    @app.task(name="work")
    def work(n: int) -> int:
        return n

    neighbours = [work.enqueue(n) for n in range(3)]
    odd = work.options(timeout=5).enqueue(9)
    table = "holdfast_runs" if "sqlite" in app.url else "holdfast.runs"
    spoil = Statement("spoil", f"""update {table} set options = '{{"retry":5}}' where options is not null""", ())
    app.store.database.connection("client").run(lambda connection: connection.execute(spoil, {}))
    assert app.worker().drain(timeout=60) == 4
    assert [run.result(timeout=5) for run in (*neighbours, odd)] == [0, 1, 2, 9]


@pytest.mark.parametrize("first_too", [False, True], ids=["some threads", "no thread at all"])
def test_runs_are_released_if_no_thread_can_be_started(app, monkeypatch, first_too):
    @app.task(name="work")
    def work(n: int) -> int:
        return n

    runs = work.enqueue_many([(n,) for n in range(50)])
    start, refused = threading.Thread.start, []

    def scarce(self):
        if self.name.startswith("holdfast-thread-") and len(refused) < 60 and (first_too or self.name[-2:] != "-1"):
            refused.append(self.name)
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", scarce)
    with app.worker(concurrency=20):
        assert [run.result(timeout=100) for run in runs] == list(range(50))
    assert refused


class Careless(RetryAfter):
    def __init__(self) -> None:
        pass  # so that it has no delay


class Hostile(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt


@pytest.mark.parametrize("kind", [Careless, Hostile])
def test_an_exception_that_cannot_be_inspected_fails_only_its_run(app, kind):
    @app.task(name="on the loop", retry=Retry(max_attempts=1))
    async def on_loop() -> None:
        raise kind

    @app.task(name="in a thread", retry=Retry(max_attempts=1))
    def in_thread() -> None:
        raise kind

    @app.task(name="neighbour")
    async def neighbour() -> str:
        return "well"

    with app.worker():
        for run in (on_loop.enqueue(), in_thread.enqueue()):
            with pytest.raises(RunFailed, match=kind.__name__):
                run.result(timeout=60)
        assert neighbour.enqueue().result(timeout=60) == "well"


def test_a_start_hook_that_never_yields_raises(app):
    @app.on_start
    def silent():
        if os.environ.get("HOLDFAST_TEST_NEVER"):
            yield 1

    with pytest.raises(ConfigError, match="silent ended without a yield"):
        app.worker().drain(timeout=60)


def test_a_stop_hook_that_raises_stop_iteration_does_not_hang(app):
    @app.on_stop
    def empty():
        next(iter([]))

    assert app.worker().drain(timeout=60) == 0


def test_a_hung_stop_hook_delays_the_stop_by_the_grace_only(app):
    released = threading.Event()

    @app.on_stop
    def hanging():
        released.wait(600)

    @app.task(name="work")
    def work() -> None:
        released.wait(600)

    run = work.enqueue()
    with app.worker(grace=0.1):
        wait_until(lambda: run.info().state == "running")
    assert run.info().state == "ready"
    released.set()


async def test_stopping_continues_when_its_caller_is_cancelled(app):
    @app.task(name="work")
    async def work() -> None:
        await asyncio.sleep(600)

    others = set(threading.enumerate())
    run = await work.aenqueue()
    began = asyncio.Event()

    async def use() -> None:
        async with app.worker(grace=600):
            while (await run.ainfo()).state != "running":
                await asyncio.sleep(0.01)
            began.set()

    user = asyncio.create_task(use())
    await began.wait()
    await asyncio.sleep(0)
    user.cancel()
    with pytest.raises(asyncio.CancelledError):
        await user
    assert (await run.ainfo()).state == "ready"
    assert [entry.kind for entry in await run.ahistory()] == ["enqueued", "started", "handed_back"]
    assert not [thread for thread in set(threading.enumerate()) - others if thread.name == "holdfast-heartbeat"]


async def test_a_full_executor_of_the_loop_does_not_delay_the_stop(app):
    released = threading.Event()

    @app.task(name="work")
    async def work() -> None:
        await asyncio.to_thread(released.wait, 600)

    runs = await work.aenqueue_many([()] * 40)

    def states() -> set[str]:
        return {run.info().state for run in runs}

    async with app.worker(grace=0.1):
        await run_in_own_thread(wait_until, lambda: states() == {"running"})
    released.set()
    assert await run_in_own_thread(states) == {"ready"}


def test_a_blocked_loop_does_not_stop_timeouts_of_threads_and_processes(app, tmp_path):
    released = threading.Event()

    @app.task(name="block")
    async def block() -> None:
        released.wait(600)  # on the loop

    @app.task(name="thread", timeout=0.2, retry=Retry(max_attempts=1))
    def thread() -> None:
        released.wait(600)

    process = app.task(name="process", timeout=0.2, retry=Retry(max_attempts=1), run_in="process")(tasks.wait_for_ever)
    with app.worker(grace=0):
        blocking = block.enqueue()
        wait_until(lambda: blocking.info().state == "running")
        for run in (thread.enqueue(), process.enqueue(str(tmp_path / "mark"))):
            with pytest.raises(RunFailed, match="timeout"):
                run.result(timeout=60)
        assert blocking.info().state == "running"
        released.set()


def test_process_lanes_and_others_alternate_when_slots_are_few(app):
    @app.task(name="other")
    def other() -> None:
        time.sleep(0.001)

    process = app.task(name="process", run_in="process", priority=100)(tasks.own_pid)
    run = process.enqueue()
    others = other.enqueue_many([()] * 300)
    with app.worker(concurrency=1):
        run.result(timeout=60)
        assert others[-1].info().state == "ready", "it must not wait for all the others"
