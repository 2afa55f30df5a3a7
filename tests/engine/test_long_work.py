"""Long attempts, and attempts that block the event loop, stay with their worker."""

from __future__ import annotations

import threading

import pytest

from tests.support.wait_until import wait_until

LEASE = 3.0  # of the tests in real time: longer than a busy machine may stall


@pytest.fixture
def blocking(ledger):
    """A function that blocks until it is released."""
    release = threading.Event()

    def block() -> str:
        ledger.write("began")
        release.wait(60)
        ledger.write("ended")
        return "ok"

    yield block, release
    release.set()


@pytest.mark.parametrize("is_async", [True, False], ids=["blocked loop", "thread"])
def test_an_attempt_of_ten_leases_is_not_claimed_by_another_worker(make_app, clock, ledger, blocking, is_async):
    block, release = blocking

    async def block_loop() -> str:
        return block()

    apps = [make_app(clock=clock), make_app(clock=clock)]
    for each in apps:
        each.task(name="block")(block_loop if is_async else block)
    first, second = apps[0].worker(lease=60), apps[1].worker(lease=60)
    with first:
        run = apps[0].registry.get("block").enqueue()
        wait_until(ledger.lines)
        with second:
            for _ in range(30):
                clock.forward(20)
                first._components.heartbeat.renew()
                second._components.heartbeat.renew()
                second._components.recovery.tick()
                second._components.claimer.wake()
                assert run.info().state == "running"
            assert ledger.lines() == ["began"]
            release.set()
            assert run.result(timeout=30) == "ok"
    assert ledger.lines() == ["began", "ended"]
    assert [entry.kind for entry in run.history()] == ["enqueued", "started", "done"]


def test_a_stall_shorter_than_the_lease_affects_no_other_run(app, make_app, ledger, blocking):
    block, release = blocking

    async def block_loop() -> str:
        return block()

    other = make_app()
    for each in (app, other):
        each.task(name="block")(block_loop)
    worker = app.worker(lease=60)
    with worker, other.worker(lease=60):
        run = app.registry.get("block").enqueue()
        wait_until(ledger.lines)
        renewals = leases_seen(app, str(run.id))
        wait_until(lambda: renewals() >= 3 or worker._components.heartbeat.renew_soon())
        assert ledger.lines() == ["began"]
        release.set()
        assert run.result(timeout=30) == "ok"
    assert [entry.kind for entry in run.history()] == ["enqueued", "started", "done"]


def leases_seen(app, run):
    """Counts the renewals of the session that holds the run, as the database has them."""
    seen: set[int] = set()

    def count() -> int:
        holder = app.store.queries.run(run).session
        seen.update(
            lease_until for session, _, _, lease_until, _ in app.store.sessions.list_live() if session == holder
        )
        return len(seen)

    return count


def test_the_blocked_loop_of_one_run_does_not_stop_threads_that_run(app, ledger):
    go_on, release = threading.Event(), threading.Event()

    @app.task(name="block")
    async def block() -> None:
        ledger.write("blocked")
        release.wait(60)

    @app.task(name="thread")
    def in_thread() -> str:
        ledger.write("began")
        go_on.wait(60)
        return "done"

    with app.worker(lease=60):
        thread = in_thread.enqueue()
        wait_until(ledger.lines)
        blocked = block.enqueue()
        wait_until(lambda: "blocked" in ledger.lines())
        go_on.set()
        assert thread.result(timeout=30) == "done"
        assert blocked.info().state == "running"
        release.set()
        blocked.result(timeout=30)
