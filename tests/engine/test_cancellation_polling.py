"""The heartbeat polls for cancelled runs between renewals, and only for attempts that run long enough."""

from __future__ import annotations

import asyncio
import threading
import time
from itertools import pairwise
from types import SimpleNamespace

import pytest

from holdfast import stop_requested
from holdfast.engine.loops import heartbeat as heartbeat_module
from holdfast.engine.loops.heartbeat import CANCEL_POLL_INTERVAL_S
from holdfast.errors import StoreUnavailable
from tests.support.wait_until import wait_until


class HandClock:
    """A manual monotonic clock for the heartbeat."""

    def __init__(self) -> None:
        self.seconds = time.monotonic()  # sessions compare it with the real one

    def monotonic(self) -> float:
        return self.seconds


@pytest.fixture
def hand_clock(monkeypatch):
    clock = HandClock()
    monkeypatch.setattr(heartbeat_module, "time", clock)
    return clock


@pytest.fixture
def beating(app, hand_clock, monkeypatch):
    """A worker with a lease of 60 s whose heartbeat the test ticks, and the statements of the heartbeat."""
    worker = app.worker(lease=60, grace=0)
    asked: list[tuple[str, float]] = []
    renew, still_held = app.store.sessions.renew, app.store.claims.find_running

    def counted(name, call):
        def wrapper(*given):
            asked.append((name, hand_clock.seconds))
            return call(*given)

        return wrapper

    monkeypatch.setattr(app.store.sessions, "renew", counted("renew", renew))
    monkeypatch.setattr(app.store.claims, "find_running", counted("poll", still_held))
    with worker:
        components = worker._components
        components.heartbeat.stop()
        components.lease_guard.stop()  # it goes by the real clock
        asked.clear()

        def run_for(seconds: float) -> None:
            until = hand_clock.seconds + seconds
            while hand_clock.seconds < until:
                hand_clock.seconds += components.heartbeat.tick()

        yield SimpleNamespace(components=components, asked=asked, run_for=run_for)


def test_two_intervals_are_less_than_a_second():
    assert 2 * CANCEL_POLL_INTERVAL_S < 1.0


def test_an_idle_worker_renews_every_third_of_its_lease_and_polls_for_nothing(beating):
    beating.run_for(101)
    assert {name for name, _ in beating.asked} == {"renew"}
    times = [at for _, at in beating.asked]
    assert [after - before for before, after in pairwise(times)] == pytest.approx([20.0] * 4)


def test_renewals_keep_their_pace_while_a_long_run_is_polled_for(app, beating):
    release = threading.Event()

    @app.task(name="long")
    def long() -> None:
        release.wait(60)

    run = long.enqueue()
    wait_until(lambda: beating.components.runner.busy_slots == 1)
    beating.run_for(61)
    renewals = [at for name, at in beating.asked if name == "renew"]
    polls = [at for name, at in beating.asked if name == "poll"]
    assert [after - before for before, after in pairwise(renewals)] == pytest.approx([20.0] * 2)
    assert all(after - before < 2 * CANCEL_POLL_INTERVAL_S for before, after in pairwise(polls))
    assert 120 < len(polls) < 160
    release.set()
    run.result(timeout=30)


@pytest.mark.parametrize("ticks_before", [0, 1, 5])
def test_a_cancelled_run_is_stopped_within_two_intervals(app, beating, hand_clock, ticks_before):
    told = threading.Event()

    @app.task(name="long")
    async def long() -> None:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            told.set()
            raise

    beating.components.heartbeat.renew()
    run = long.enqueue()
    wait_until(lambda: any(attempt.started for attempt in beating.components.state.unfinished()))
    for _ in range(ticks_before):
        hand_clock.seconds += beating.components.heartbeat.tick()
    cancelled_at = hand_clock.seconds
    assert run.cancel()
    [attempt] = beating.components.state.unfinished()
    while attempt.stop_reason is None:
        assert hand_clock.seconds - cancelled_at < 1.0
        hand_clock.seconds += beating.components.heartbeat.tick()
    assert attempt.stop_reason == "lost"
    assert told.wait(30)


def test_a_stopped_run_is_not_polled_for_again(app, beating):
    release = threading.Event()

    @app.task(name="long")
    def long() -> bool:
        release.wait(60)
        return stop_requested()

    run = long.enqueue()
    wait_until(lambda: beating.components.runner.busy_slots == 1)
    [attempt] = beating.components.state.unfinished()
    assert run.cancel()
    beating.run_for(2)
    assert attempt.stop_reason == "lost"
    beating.asked.clear()
    beating.run_for(5)
    assert "poll" not in [name for name, _ in beating.asked]
    release.set()


def test_a_poll_that_fails_does_not_delay_the_renewal(app, beating, monkeypatch):
    release = threading.Event()

    @app.task(name="long")
    def long() -> None:
        release.wait(60)

    def refuse(*_):
        raise StoreUnavailable("gone")

    monkeypatch.setattr(app.store.claims, "find_running", refuse)
    run = long.enqueue()
    wait_until(lambda: beating.components.runner.busy_slots == 1)
    beating.run_for(61)
    assert [name for name, _ in beating.asked] == ["renew"] * 3
    release.set()
    run.result(timeout=30)


def test_stop_requested_is_false_outside_a_run_and_in_a_healthy_run(app):
    @app.task(name="ask")
    def ask() -> bool:
        return stop_requested()

    assert stop_requested() is False
    run = ask.enqueue()
    app.worker().drain(timeout=60)
    assert run.result(timeout=5) is False
