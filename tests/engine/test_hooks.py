"""Hooks and resources: on_start, on_stop, on_failure."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import Retry
from holdfast.errors import StoreUnavailable


def test_start_hooks_of_every_kind_provide_resources_and_close_in_reverse(app, ledger):
    @app.on_start
    def plain():
        app.resources["plain"] = 1
        ledger.write("start plain")

    @app.on_start
    async def awaited():
        await asyncio.sleep(0)
        app.resources["awaited"] = 2
        ledger.write("start awaited")

    @app.on_start
    def client():
        ledger.write("start client")
        yield "a client"
        ledger.write("stop client")

    @app.on_start
    async def several():
        ledger.write("start several")
        yield {"model": "m", "cache": "c"}
        ledger.write("stop several")

    @app.on_stop
    def first():
        ledger.write("on_stop first")

    @app.on_stop
    async def second():
        ledger.write("on_stop second")

    @app.task(name="use")
    def use() -> dict[str, object]:
        ledger.write("task")
        return dict(app.resources)

    run = use.enqueue()
    app.worker().drain(timeout=60)
    assert run.result(timeout=5) == {"plain": 1, "awaited": 2, "client": "a client", "model": "m", "cache": "c"}
    assert ledger.lines() == [
        *["start plain", "start awaited", "start client", "start several", "task"],
        *["on_stop second", "on_stop first", "stop several", "stop client"],
    ]


async def test_async_hooks_run_on_the_loop_of_an_async_worker(app):
    loops = []

    @app.on_start
    async def start():
        loops.append(asyncio.get_running_loop())

    @app.on_stop
    async def stop():
        loops.append(asyncio.get_running_loop())

    @app.task(name="where")
    async def where() -> None:
        loops.append(asyncio.get_running_loop())

    await where.aenqueue()
    await app.worker().adrain(timeout=60)
    assert loops == [asyncio.get_running_loop()] * 3


def test_a_start_hook_that_raises_keeps_the_worker_from_starting_and_closes_the_others(app, ledger):
    @app.on_start
    def opened():
        yield 1
        ledger.write("closed")

    @app.on_start
    def broken():
        raise RuntimeError("no licence")

    @app.task(name="work")
    def work() -> None:
        ledger.write("worked")

    run = work.enqueue()
    with pytest.raises(RuntimeError, match="no licence"):
        app.worker().drain(timeout=10)
    assert ledger.lines() == ["closed"]
    assert run.info().state == "ready"
    assert app.store.sessions.list_live() == []


def test_a_worker_that_cannot_reach_its_database_closes_what_its_hooks_opened(app, ledger, monkeypatch):
    @app.on_start
    def opened():
        yield 1
        ledger.write("closed")

    def refuse(*_):
        raise StoreUnavailable("gone")

    app.store.prepare()
    monkeypatch.setattr(app.store.sessions, "open", refuse)
    with pytest.raises(StoreUnavailable):
        app.worker().drain(timeout=10)
    assert ledger.lines() == ["closed"]


def test_a_stop_hook_that_raises_does_not_keep_others_from_running(app, ledger, caplog):
    @app.on_start
    def opened():
        yield 1
        raise ValueError("after its yield")

    @app.on_stop
    def last():
        ledger.write("last")

    @app.on_stop
    def broken():
        raise ValueError("in on_stop")

    app.worker().drain(timeout=60)
    assert ledger.lines() == ["last"]
    assert 'hook raised hook="on_stop broken"' in caplog.text
    assert "after its yield" in caplog.text
    assert app.store.sessions.list_live() == []


def test_stop_hooks_get_a_moment_even_in_a_hurried_stop(app, ledger, caplog):
    @app.on_stop
    async def last():
        for _ in range(10):
            await asyncio.sleep(0)
        ledger.write("last")

    worker = app.worker()
    with worker:
        worker.stop()
        worker.stop()
    assert ledger.lines() == ["last"]
    assert "hooks" not in caplog.text


def test_failure_hooks_run_before_the_worker_has_stopped(app, ledger):
    seen = []

    @app.on_failure
    async def hear(info):
        await asyncio.sleep(0.05)
        seen.append(info)

    @app.on_failure
    def also(info):
        ledger.write(info.task, info.error.code)
        raise ValueError("a hook's own trouble")

    @app.on_stop
    def stop():
        ledger.write("on_stop", len(seen))

    @app.task(name="flaky", retry=Retry(max_attempts=2, delay=0))
    def flaky() -> None:
        raise LookupError("gone")

    @app.task(name="fine")
    def fine() -> None: ...

    run = flaky.enqueue()
    fine.enqueue()
    app.worker().drain(timeout=60)
    assert [(info.id, info.state, info.attempt, info.error.message) for info in seen] == [(run.id, "failed", 2, "gone")]
    assert ledger.lines() == ["flaky error", "on_stop 1"]


def test_failure_hooks_run_for_overdue_and_crashed_runs(timed_app, clock):
    app = timed_app
    seen = []
    app.on_failure(lambda info: seen.append((info.task, info.error.code)))

    @app.task(name="late", deadline=10)
    def late() -> None: ...

    @app.task(name="deadly", max_crashes=0)
    def deadly() -> None: ...

    late.options(delay=100).enqueue()
    deadly.enqueue()
    app.store.sessions.open("dead", "dead", 1_000_000, "{}")
    lanes = app.store.lanes.refresh()
    assert len(app.store.claims.claim("dead", lanes, 10)) == 1
    clock.forward(20)
    app.worker().drain(timeout=60)
    assert sorted(seen) == [("deadly", "crashed"), ("late", "deadline")]


def test_around_calls_run_before_and_after_each_call_and_may_fail(app, ledger, caplog):
    def look_after():
        ledger.write("between")
        raise ValueError("out of order")

    app._hooks.around_calls.append(look_after)

    @app.task(name="work")
    def work() -> str:
        ledger.write("work")
        return "done"

    run = work.enqueue()
    app.worker().drain()
    assert run.result(timeout=10) == "done"
    assert ledger.lines() == ["between", "work", "between"]
    assert "look_after" in caplog.text
