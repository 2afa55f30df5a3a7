"""Claimed runs are started or released, never lost. Only idle workers subscribe to notifications."""

from __future__ import annotations

import threading

import pytest

from holdfast import Context
from holdfast.engine.loops import claimer
from holdfast.errors import StoreUnavailable


def kinds(run):
    return [entry.kind for entry in run.history()]


class Failing:
    """A call that fails once."""

    def __init__(self, real):
        self.real = real
        self.failed = False

    def __call__(self, *given, **others):
        if not self.failed:
            self.failed = True
            raise StoreUnavailable("not now")
        return self.real(*given, **others)


def test_runs_claimed_before_a_failing_claim_are_released_at_once(app, monkeypatch):
    app.limit("one", concurrency=1)

    @app.task(name="plain")
    async def plain() -> None: ...

    @app.task(name="limited", limits=["one"])
    async def limited() -> None: ...

    runs = [plain.enqueue(), limited.enqueue()]
    monkeypatch.setattr(app.store.claims, "claim_limited", Failing(app.store.claims.claim_limited))
    worker = app.worker(lease=600)  # the heartbeat would find it after 400 seconds
    worker._components.claimer._limited_first = True  # the last time
    with worker:
        for run in runs:
            run.result(timeout=30)
    assert kinds(runs[0]) == ["enqueued", "started", "handed_back", "started", "done"]
    assert kinds(runs[1]) == ["enqueued", "started", "done"]


@pytest.fixture
def woken(app):
    """Return a durable function with recorded history that is ready to resume."""

    @app.task(name="waits")
    async def waits(ctx: Context) -> str:
        return await ctx.step(lambda: "kept", name="first") + str(await ctx.wait_for("go"))

    run = waits.enqueue()
    app.worker().drain(timeout=30)
    app.emit("go", "!")
    return run


def test_runs_whose_history_cannot_be_loaded_are_released_at_once(app, woken, monkeypatch):
    monkeypatch.setattr(app.store.journal, "load", Failing(app.store.journal.load))
    with app.worker(lease=600):
        assert woken.result(timeout=30) == "kept!"
    assert kinds(woken)[-3:] == ["handed_back", "started", "done"]


def test_a_run_is_not_released_while_its_history_loads_slowly(app, woken, monkeypatch):
    worker = app.worker(lease=600)
    load = app.store.journal.load

    def slowly(*given, **others):
        for _ in range(3):
            worker._components.heartbeat.renew()
        return load(*given, **others)

    monkeypatch.setattr(app.store.journal, "load", slowly)
    with worker:
        assert woken.result(timeout=30) == "kept!"
    assert "handed_back" not in kinds(woken)


def test_a_busy_worker_turns_notifications_off(app, monkeypatch):
    """Otherwise every enqueue would pay for a notification that a busy worker doesn't need."""

    @app.task(name="plain")
    async def plain() -> None: ...

    said: list[bool] = []
    idle = threading.Event()
    mark_idle = app.store.sessions.mark_idle

    def noting(session, is_idle):
        mark_idle(session, is_idle)
        if said[-1:] != [is_idle]:  # an idle worker repeats it with every poll
            said.append(is_idle)
        if is_idle:
            idle.set()

    monkeypatch.setattr(app.store.sessions, "mark_idle", noting)
    monkeypatch.setattr(claimer, "POLL_INTERVAL_S", 0.001)  # what counts as working without a pause
    with app.worker(concurrency=1):
        assert idle.wait(30)
        idle.clear()
        for run in plain.enqueue_many([()] * 30):
            run.result(timeout=30)
        assert idle.wait(30)
    assert said[:3] == [True, False, True]
