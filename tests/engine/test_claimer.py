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


@pytest.fixture
def idle_claimer(app, monkeypatch):
    """Return the claimer of an idle worker, without its thread: only the test starts its rounds. A job is ready."""

    @app.task(name="job")
    async def job() -> None: ...

    job.options(delay=3600).enqueue()  # so that the worker knows the lane
    monkeypatch.setattr(claimer.Claimer, "start", lambda _: None)
    monkeypatch.setattr(claimer.Claimer, "client_claim", lambda _: None)
    worker = app.worker()
    with worker:
        found = worker._components.claimer
        while found.tick() < claimer.POLL_INTERVAL_S / 2:
            pass
        job.enqueue()
        yield found


def test_slots_freed_while_most_are_free_cause_no_claim(idle_claimer, monkeypatch):
    """The job may end before the round that started it."""
    test_thread, woken = threading.get_ident(), []
    monkeypatch.setattr(idle_claimer, "wake", lambda: woken.append(threading.get_ident()))
    start = idle_claimer._runner.start

    def start_and_end(attempts):
        idle_claimer.slot_freed()
        return start(attempts)

    monkeypatch.setattr(idle_claimer._runner, "start", start_and_end)
    assert idle_claimer.tick() == claimer.QUIET_PAUSE_S
    idle_claimer.slot_freed()
    assert test_thread not in woken


def test_a_slot_freed_while_none_was_free_causes_a_claim(idle_claimer, monkeypatch):
    woken = []
    monkeypatch.setattr(idle_claimer, "wake", lambda: woken.append(threading.get_ident()))

    def no_slots():
        idle_claimer.slot_freed()  # after it was counted
        return 0, 100

    monkeypatch.setattr(idle_claimer, "_slots", no_slots)
    assert idle_claimer.tick() == claimer.UNTIL_WOKEN_S
    assert threading.get_ident() in woken


def test_a_round_after_a_quiet_claim_only_reads(app, idle_claimer, monkeypatch):
    assert idle_claimer.tick() == claimer.QUIET_PAUSE_S
    monkeypatch.setattr(app.store.claims, "claim", lambda *_: pytest.fail("claimed"))
    idle_claimer._is_timed_out = True
    assert idle_claimer.tick() == claimer.POLL_INTERVAL_S
    assert idle_claimer.empty_rounds == 1


def test_a_commit_beside_a_claim_tells_whether_runs_are_left_ready(app, idle_claimer, monkeypatch):
    monkeypatch.setattr(claimer, "MAX_COMMIT_CLAIM_WAIT_S", 0.0)
    session = idle_claimer._state.session
    with idle_claimer._claiming:
        claim = idle_claimer.begin_commit_claim(session.id)
    for ready, is_complete in ((0, True), (1, False)):

        def work(tx, ready=ready):
            tx.ready_runs += ready
            claim(tx)

        app.store.claims._transaction("commit", work)
        assert (claim.claims(), claim.is_complete) == ([], is_complete)
    idle_claimer.end_commit_claim(claim, is_committed=True)
    assert not idle_claimer._claiming.locked()


def test_timers_are_woken_after_the_claim_that_a_notification_asks_for(app, idle_claimer, monkeypatch):
    """They share a connection with the claim, which must not wait for them."""
    calls = []
    claim = app.store.claims.claim
    monkeypatch.setattr(app.store.claims, "claim", lambda *given: calls.append("claim") or claim(*given))
    monkeypatch.setattr(idle_claimer, "on_notified", lambda: calls.append("timers"))
    idle_claimer.notified()
    idle_claimer.tick()
    assert calls == ["claim", "timers"]
