"""The heartbeat reconciles claimed runs with the database; a lost session is followed by a new one."""

from __future__ import annotations

import asyncio
import threading

import pytest

from holdfast import ResultTimeout
from tests.support.wait_until import wait_until


def kinds(run):
    return [entry.kind for entry in run.history()]


@pytest.fixture
def long(app, ledger):
    @app.task(name="long")
    async def long() -> str:
        ledger.write("began")
        try:
            await asyncio.sleep(600 if len(ledger.lines()) == 1 else 0)
        except asyncio.CancelledError:
            ledger.write("cancelled")
            raise
        return "ok"

    return long


def test_a_claim_whose_reply_was_lost_is_released_after_two_heartbeats(app, long, caplog):
    run = long.enqueue()
    worker = app.worker(queues=["other"], lease=60)
    with worker:
        components = worker._components
        components.heartbeat.stop()  # its own first beat may come late
        claimed = app.store.claims.claim(components.state.session.id, app.store.lanes.refresh(), 10)
        assert [claim.id for claim in claimed] == [str(run.id)]
        components.heartbeat.renew()
        assert run.info().state == "running", "the first time it may be on its way to us"
        components.heartbeat.renew()
        assert run.info().state == "ready"
    assert kinds(run) == ["enqueued", "started", "handed_back"]
    assert "never received" in caplog.text


def test_a_lost_claim_of_a_cancelled_run_is_released(app, long):
    run = long.enqueue()
    worker = app.worker(queues=["other"], lease=60)
    with worker:
        components = worker._components
        app.store.claims.claim(components.state.session.id, app.store.lanes.refresh(), 10)
        run.cancel()
        components.heartbeat.renew()
        components.heartbeat.renew()
        assert app.store.queries.run(str(run.id)).session is None
    assert kinds(run) == ["enqueued", "started", "cancelled", "let_go"]


def test_claimed_runs_are_never_released_by_reconciliation(app, long, ledger):
    worker = app.worker(lease=60, grace=0)
    with worker:
        run = long.enqueue()
        wait_until(ledger.lines)
        for _ in range(5):
            worker._components.heartbeat.renew()
        assert run.info().state == "running"
    assert ledger.lines() == ["began", "cancelled"]


def test_an_expired_session_is_followed_by_a_new_one(timed_app, clock, ledger, caplog):
    app = timed_app

    @app.task(name="long")
    async def long() -> str:
        ledger.write("began")
        try:
            await asyncio.sleep(600 if len(ledger.lines()) == 1 else 0)
        except asyncio.CancelledError:
            ledger.write("cancelled")
            raise
        return "ok"

    worker = app.worker(lease=60)
    with worker:
        components = worker._components
        run = long.enqueue()
        wait_until(ledger.lines)
        first = components.state.session
        clock.forward(60)
        assert app.store.sessions.renew(first.id, 60_000_000) is False, "though nobody has recovered it yet"
        components.heartbeat.renew()
        wait_until(lambda: "cancelled" in ledger.lines())
        components.heartbeat.wake()
        wait_until(lambda: components.state.session is not None)
        assert components.state.session.id != first.id
        components.recovery.wake()
        assert run.result(timeout=30) == "ok"
    assert ledger.lines() == ["began", "cancelled", "began"]
    assert kinds(run) == ["enqueued", "started", "worker_lost", "started", "done"]
    assert run.info().crashes == 0
    assert "its lease expired" in caplog.text
    assert f"worker lost worker={first.name} session={first.id} runs_requeued=1 runs_failed=0" in caplog.text


def test_the_result_of_an_old_session_is_discarded(timed_app, clock, ledger):
    app = timed_app
    release = threading.Event()

    @app.task(name="long")
    def long() -> str:
        ledger.write("began")
        if len(ledger.lines()) == 1:
            release.wait(60)
            ledger.write("ended")
            return "old"
        return "new"

    worker = app.worker(lease=60)
    with worker:
        components = worker._components
        run = long.enqueue()
        wait_until(ledger.lines)
        clock.forward(61)
        components.heartbeat.renew()
        components.heartbeat.wake()
        components.recovery.wake()
        assert run.result(timeout=30) == "new"
        release.set()
        wait_until(lambda: components.runner.busy_slots == 0 and components.queue.backlog == 0)
        assert run.result(timeout=5) == "new"
    assert ledger.lines() == ["began", "began", "ended"]
    assert kinds(run) == ["enqueued", "started", "worker_lost", "started", "done"]


def test_a_claim_that_returns_after_its_session_was_lost_does_not_start(app, ledger, monkeypatch):
    @app.task(name="work")
    async def work() -> str:
        ledger.write(app.runs.__self__ is app)
        return "ok"

    worker = app.worker(lease=1)
    components = worker._components
    real, lost = app.store.claims.claim, []

    def claim(session, lanes, wanted):
        claims = real(session, lanes, wanted)
        if claims and not lost:
            lost.append(components.state.session)
            components.lose_session(components.state.session, "for the test")
        return claims

    monkeypatch.setattr(app.store.claims, "claim", claim)
    run = work.enqueue()  # before the worker starts: its claimer claims the run, not the client's commit
    with worker:
        assert run.result(timeout=30) == "ok"
    assert lost
    assert len(ledger.lines()) == 1, "user code ran under a lost lease"
    assert kinds(run) == ["enqueued", "started", "crashed", "started", "done"]


def test_a_coroutine_that_was_stopped_before_its_first_step_frees_its_slot(app, ledger, monkeypatch):
    @app.task(name="work")
    async def work() -> str:
        ledger.write("ran")
        return "ok"

    worker = app.worker(concurrency=1, lease=1)
    components = worker._components
    real, stopped = components.runner.start, []

    def start(attempts):
        def both():
            components.runner._start_on_loop(attempts)
            components.runner._cancel([attempt for attempt in attempts if attempt.request_stop("lost")])

        if stopped:
            real(attempts)
        else:
            stopped.append(True)
            with components.runner._lock:
                components.runner.busy_slots += len(attempts)
            components.runner.loop.call_soon_threadsafe(both)

    monkeypatch.setattr(components.runner, "start", start)
    with worker:
        work.enqueue()
        wait_until(lambda: stopped)
        wait_until(lambda: components.runner.busy_slots == 0)
    assert ledger.lines() == []


def test_a_worker_with_a_dead_workers_name_takes_over_nothing(app, make_app, long, ledger):
    """A new process may get the same name, which consists of host and pid."""
    from holdfast.engine.attempt import worker_name

    app.store.sessions.open(f"{worker_name()}:dead", worker_name(), 600_000_000, "{}")
    run = long.enqueue()
    [claim] = app.store.claims.claim(f"{worker_name()}:dead", app.store.lanes.refresh(), 1)
    worker = app.worker(lease=0.5)
    with worker:
        assert worker._components.state.session.name == worker_name()
        with pytest.raises(ResultTimeout):
            run.result(timeout=1)
        assert ledger.lines() == []
        assert app.store.queries.run(str(run.id)).session == f"{worker_name()}:dead"
    assert run.info().state == "running"
    assert claim.fence == 1


def test_the_loss_of_a_worker_without_runs_is_logged_too(timed_app, clock, caplog):
    timed_app.store.sessions.open("idle", "mail-7", 1_000_000, "{}")
    clock.forward(2)
    recovery = timed_app.worker()._components.recovery
    recovery.tick()
    recovery.tick()
    assert caplog.text.count("worker lost worker=mail-7 session=idle runs_requeued=0 runs_failed=0") == 1
