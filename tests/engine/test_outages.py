"""A lease that was lost because the database didn't answer charges nobody, whichever worker recovers its runs first."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from holdfast.engine import attempt
from holdfast.engine.loops import heartbeat, recovery
from holdfast.engine.loops.heartbeat import FreezeDetector, OutageDetector
from holdfast.errors import StoreUnavailable

LEASE_S = 4.0


class Clocks:
    """The monotonic clock of the loops, and the clock of the database, which move together."""

    def __init__(self, clock):
        self.now = 1000.0
        self._clock = clock

    def forward(self, seconds):
        self.now += seconds
        self._clock.forward(seconds)


class Process:
    """The loops of a worker process, ticked by the test."""

    def __init__(self, app):
        app.task(lambda: None, name="work")
        self.app = app
        components = app.worker(lease=LEASE_S)._components
        self.heartbeat, self.guard, self.recovery = components.heartbeat, components.lease_guard, components.recovery
        self.state = components.state
        self.heartbeat.renew()
        self.recovery.tick()

    def claim(self):
        run = self.app.registry.get("work").enqueue()
        [claim] = self.app.store.claims.claim(self.state.session_id(), self.app.store.lanes.refresh(), 1)
        assert claim.id == str(run.id)
        return run

    def fail(self):
        """Tick while the database doesn't answer."""
        for tick in (self.heartbeat.renew, self.recovery.tick):
            with pytest.raises(StoreUnavailable):
                tick()
        self.guard.tick()


@contextmanager
def outage(monkeypatch, *processes):
    """Let every call of these processes fail."""

    def fail(work):
        raise StoreUnavailable("the server is down")

    with monkeypatch.context() as patch:
        for process in processes:
            for purpose in ("heartbeat", "housekeeping", "poll"):
                patch.setattr(process.app.store.database.connection(purpose), "run", fail)
        yield


@pytest.fixture
def clocks(clock, monkeypatch):
    clocks = Clocks(clock)
    for module in (attempt, heartbeat, recovery):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clocks.now))
    return clocks


@pytest.fixture
def start(make_app, clock):
    return lambda: Process(make_app(clock=clock))


def crashes(run):
    last = [entry.kind for entry in run.history()][-1]
    return run.info().crashes, last


def test_a_worker_that_recovers_its_own_run_after_an_outage_charges_nobody(start, clocks, monkeypatch):
    own = start()
    run = own.claim()
    with outage(monkeypatch, own):
        clocks.forward(LEASE_S - 0.1)
        own.fail()
        assert own.state.session is None
    clocks.forward(0.5)
    own.recovery.tick()  # before the heartbeat opens a new session
    assert crashes(run) == (0, "worker_lost")


def test_a_worker_leaves_its_own_session_to_its_heartbeat(start, clocks, clock):
    own = start()
    run = own.claim()
    clock.forward(LEASE_S + 0.1)  # the heartbeat sends its renewal in time, but it arrives late
    own.recovery.tick()
    assert run.info().state == "running"
    own.heartbeat.renew()
    own.recovery.tick()
    assert crashes(run) == (0, "worker_lost")


@pytest.mark.parametrize("late_s", [0.5, -0.5], ids=["during the outage", "soon after it"])
def test_a_worker_that_had_no_database_charges_nobody_whose_lease_expired(start, clocks, monkeypatch, late_s):
    other, recoverer = start(), start()
    run = other.claim()
    with outage(monkeypatch, other, recoverer):
        clocks.forward(LEASE_S / 2)
        recoverer.fail()
        clocks.forward(LEASE_S / 2 + late_s)
    recoverer.recovery.tick()
    clocks.forward(1)
    recoverer.recovery.tick()
    assert crashes(run) == (0, "worker_lost")


@pytest.mark.parametrize("outage_at", ["before", "after"])
def test_a_lease_that_expired_before_or_long_after_an_outage_is_charged(start, clocks, monkeypatch, outage_at):
    recoverer = start()

    def live():
        for _ in range(8):
            clocks.forward(LEASE_S / 4)
            recoverer.heartbeat.renew()

    def fail_once():
        with outage(monkeypatch, recoverer):
            recoverer.fail()

    if outage_at == "before":
        fail_once()
        live()
    run = start().claim()
    live()
    if outage_at == "after":
        fail_once()
    recoverer.recovery.tick()
    assert crashes(run) == (1, "crashed")


def test_a_late_recovery_of_a_worker_whose_heartbeat_got_its_answers_charges(start, clocks):
    recoverer, dead = start(), start()
    run = dead.claim()
    for _ in range(10):
        clocks.forward(1)
        recoverer.heartbeat.renew()
    recoverer.recovery.tick()
    assert crashes(run) == (1, "crashed")


def test_a_process_that_is_known_to_have_exited_is_charged_even_during_an_outage(start, clocks, monkeypatch):
    exited, recoverer = start(), start()
    run = exited.claim()
    with outage(monkeypatch, recoverer):
        recoverer.fail()
    recoverer.recovery.session_ended(exited.state.session_id())
    recoverer.recovery.tick()
    assert crashes(run) == (1, "crashed")


@pytest.mark.parametrize("frozen", [False, True])
def test_a_long_silence_is_an_outage_unless_the_process_was_frozen(clocks, frozen):
    freezes = FreezeDetector(SimpleNamespace(claimed=dict), LEASE_S)
    outages = OutageDetector(LEASE_S, freezes)
    freezes.record_progress()
    outages.record_answer()
    began_at = clocks.now
    for _ in range(3):
        clocks.forward(1)
        if not frozen:
            freezes.record_progress()
    freezes.record_progress()
    outages.record_answer()
    assert outages.may_explain(began_at + 2) is not frozen
    assert outages.may_explain(clocks.now + 1) is not frozen
    assert not outages.may_explain(began_at - 1)
    clocks.forward(100)
    assert not outages.may_explain(clocks.now)
