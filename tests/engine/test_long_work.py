"""Work that takes many leases, and work that keeps the event loop to itself, stays with its worker."""

from __future__ import annotations

import threading
import time

import pytest

from tests.support.waiting import wait_until

LEASE = 1.0


@pytest.mark.parametrize("is_async", [True, False], ids=["blocked loop", "thread"])
def test_work_of_several_leases_is_not_claimed_by_another_worker(app, make_app, ledger, is_async):
    """The async one blocks its event loop with a sleep that isn't awaited."""
    release = threading.Event()
    apps = [app, make_app()]

    def block() -> str:
        ledger.write("began")
        release.wait(60)
        ledger.write("ended")
        return "ok"

    async def block_loop() -> str:
        return block()

    for each in apps:
        each.task(name="block")(block_loop if is_async else block)
    with apps[0].worker(lease=LEASE) as first, apps[1].worker(lease=LEASE):
        run = apps[0].registry.get("block").enqueue()
        wait_until(ledger.lines)
        until = leases_seen(app, str(run.id))
        wait_until(lambda: until() >= (15 if is_async else 30))  # there are three renewals in a lease
        assert run.info().state == "running"
        assert ledger.lines() == ["began"]
        release.set()
        assert run.result(timeout=30) == "ok"
        assert not first._crew.duty.in_hand()
    assert ledger.lines() == ["began", "ended"]
    assert [entry.kind for entry in run.history()] == ["enqueued", "started", "done"]


def leases_seen(app, run):
    """Counts the renewals of the session that holds the run, as the database has them."""
    seen: set[int] = set()

    def count() -> int:
        holder = app.store.views.run(run).session
        seen.update(lease_until for session, _, _, lease_until, _ in app.store.workers.live() if session == holder)
        return len(seen)

    return count


def test_the_blocked_loop_of_one_run_does_not_stop_threads_from_working(app, ledger):
    release = threading.Event()

    @app.task(name="block")
    async def block() -> None:
        ledger.write("blocked")
        release.wait(60)

    @app.task(name="thread")
    def in_thread() -> float:
        return time.monotonic()

    with app.worker(lease=LEASE):
        blocked = block.enqueue()
        wait_until(ledger.lines)
        assert in_thread.enqueue().result(timeout=30)
        assert blocked.info().state == "running"
        release.set()
        blocked.result(timeout=30)
