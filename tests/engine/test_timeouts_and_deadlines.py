"""Timeouts of attempts and deadlines of runs."""

from __future__ import annotations

import asyncio
import gc
import threading

import pytest

from holdfast import Retry, RunFailed
from holdfast.engine.attempt import Attempt
from tests.support.wait_until import wait_until

ONCE = Retry(max_attempts=1)


def kinds(run):
    return [entry.kind for entry in run.history()]


def held(app, run):
    return app.store.queries.run(str(run.id)).held


def test_a_coroutine_past_its_timeout_is_cancelled_and_retried(app, ledger):
    @app.task(name="slow", timeout=0.2, retry=Retry(max_attempts=2, delay=0))
    async def slow() -> None:
        ledger.write("began")
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            ledger.write("cancelled")
            raise

    run = slow.enqueue()
    app.worker().drain(timeout=60)
    assert ledger.counts() == {"began": 2, "cancelled": 2}
    assert kinds(run) == ["enqueued", "started", "timed_out", "started", "failed"]
    with pytest.raises(RunFailed, match=r"timeout of 0\.2 s") as failed:
        run.result(timeout=5)
    assert failed.value.error.code == "timeout"


def test_a_timeout_given_at_enqueue_overrides_the_tasks_own(app):
    @app.task(name="slow", timeout=600, retry=ONCE)
    async def slow() -> None:
        await asyncio.sleep(600)

    run = slow.options(timeout=0.1).enqueue()
    app.worker().drain(timeout=60)
    assert run.info().error.code == "timeout"


def test_a_coroutine_that_swallows_its_cancellation_is_abandoned(app, ledger):
    release = threading.Event()

    @app.task(name="stubborn", timeout=0.1, retry=ONCE)
    async def stubborn() -> None:
        while not release.is_set():
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                ledger.write("swallowed")
        ledger.write("returned")

    with app.worker():
        run = stubborn.enqueue()
        wait_until(lambda: run.info().state == "failed")
        assert ledger.lines() == ["swallowed"]
        release.set()
        wait_until(lambda: "let_go" in kinds(run))
    assert kinds(run) == ["enqueued", "started", "failed", "let_go"]
    assert run.info().error.code == "timeout"


def test_a_thread_that_outlives_its_timeout_keeps_its_slot_and_the_retry_waits_for_it(app, ledger):
    release = threading.Event()

    @app.task(name="hung", timeout=0.2, retry=Retry(max_attempts=2, delay=0))
    def hung() -> str:
        ledger.write("began")
        if len(ledger.lines()) == 1:
            assert release.wait(60)
        ledger.write("ended")
        return "second" if ledger.counts()["ended"] == 2 else "first"

    @app.task(name="other")
    def other() -> None:
        ledger.write("other")

    with app.worker(concurrency=1):
        run = hung.enqueue()
        wait_until(lambda: "timed_out" in kinds(run))
        assert held(app, run) == "quiescing"
        other.enqueue()
        wait_until(lambda: app.store.queries.run(str(run.id)).state == "ready")  # due, yet held
        assert ledger.lines() == ["began"]
        release.set()
        assert run.result(timeout=30) == "second"
        wait_until(lambda: "other" in ledger.lines())
    assert kinds(run) == ["enqueued", "started", "timed_out", "let_go", "started", "done"]
    assert ledger.counts() == {"began": 2, "ended": 2, "other": 1}


def test_a_deadline_ends_a_run_that_is_scheduled(timed_app, clock, ledger):
    @timed_app.task(name="late", deadline=100)
    def late() -> None:
        ledger.write("ran")

    run = late.options(delay=200).enqueue()
    clock.forward(100)
    timed_app.worker().drain(timeout=60)
    assert (run.info().state, run.info().error.code) == ("failed", "deadline")
    clock.forward(200)
    timed_app.worker().drain(timeout=60)
    assert kinds(run) == ["enqueued", "failed"]
    assert ledger.lines() == []


def test_a_deadline_ends_a_run_that_was_never_claimed(timed_app, clock, ledger):
    @timed_app.task(name="late")
    def late() -> None:
        ledger.write("ran")

    run = late.options(deadline=100, queue="nobody").enqueue()
    clock.forward(100)
    timed_app.worker(queues=["somebody"]).drain(timeout=60)
    assert (run.info().state, run.info().error.code) == ("failed", "deadline")


def test_a_deadline_ends_a_run_between_two_attempts(timed_app, clock):
    @timed_app.task(name="late", deadline=100, retry=Retry(max_attempts=9, delay=60, jitter=0, factor=1))
    def late() -> None:
        raise ValueError("again")

    run = late.enqueue()
    for _ in range(3):
        timed_app.worker().drain(timeout=60)
        clock.forward(60)
    assert (run.info().state, run.info().error.code, run.info().attempt) == ("failed", "deadline", 2)


def test_a_run_that_is_due_and_overdue_is_not_promoted(timed_app, clock):
    @timed_app.task(name="late", deadline=100)
    def late() -> None: ...

    run = late.options(delay=50).enqueue()
    clock.forward(200)
    timekeeper = timed_app.worker()._components.timers
    timekeeper._promoted = lambda: pytest.fail("it was made ready")  # type: ignore[method-assign]
    timekeeper.tick()
    assert kinds(run) == ["enqueued", "failed"]


@pytest.mark.parametrize("is_async", [True, False], ids=["coroutine", "thread"])
def test_a_run_claimed_after_its_deadline_does_not_start(timed_app, clock, ledger, monkeypatch, is_async):
    """The timer loop may be late."""

    async def late() -> None:
        ledger.write("ran")

    def late_in_thread() -> None:
        ledger.write("ran")

    run = timed_app.task(name="late", deadline=100)(late if is_async else late_in_thread).enqueue()
    clock.forward(100)
    worker = timed_app.worker()
    monkeypatch.setattr(worker._components.timers, "tick", lambda: 3600.0)
    with worker:
        wait_until(lambda: run.info().final)
    assert (run.info().state, run.info().error.code, run.info().attempt) == ("failed", "deadline", 1)
    assert ledger.lines() == []


@pytest.mark.parametrize("is_async", [True, False], ids=["coroutine", "thread"])
def test_a_deadline_ends_a_running_run(app, ledger, is_async):
    release = threading.Event()

    async def wait() -> None:
        ledger.write("began")
        await asyncio.sleep(600)

    def block() -> None:
        ledger.write("began")
        release.wait(60)

    task = app.task(name="long", deadline=0.5)(wait if is_async else block)
    with app.worker():
        run = task.enqueue()
        wait_until(lambda: run.info().state == "failed")
        assert run.info().error.code == "deadline"
        release.set()
        wait_until(lambda: app.store.queries.run(str(run.id)).session is None)
    assert ledger.lines() == ["began"]
    assert kinds(run)[:3] == ["enqueued", "started", "failed"]


def test_the_timer_of_an_ended_attempt_is_cancelled(app):
    """An hour's timeout must not keep the arguments of every finished run in memory for an hour."""

    @app.task(name="quick", timeout=3600)
    async def quick(text: str) -> None: ...

    @app.task(name="quick in a thread", timeout=3600)
    def quick_in_thread(text: str) -> None: ...

    worker = app.worker()
    with worker:
        runs = [*quick.enqueue_many([("x",)] * 50), *quick_in_thread.enqueue_many([("x",)] * 50)]
        for run in runs:
            run.result(timeout=30)
        ours = {str(run.id) for run in runs}
        wait_until(lambda: not [each for each in gc.get_objects() if type(each) is Attempt and each.claim.id in ours])
