"""The life cycle of loops: they survive failing ticks and back off while the database is unavailable."""

from __future__ import annotations

import threading
import time

import pytest

from holdfast.engine.loops import base
from holdfast.engine.loops.base import Loop
from holdfast.errors import StoreUnavailable
from tests.support.wait_until import wait_until


class Counting(Loop):
    name = "counting"

    def __init__(self, *results: float | Exception) -> None:
        super().__init__()
        self.times: list[float] = []
        self._results = list(results)

    def tick(self) -> float:
        self.times.append(time.monotonic())
        result = self._results.pop(0) if self._results else 3600.0
        if isinstance(result, Exception):
            raise result
        return result

    def gaps(self) -> list[float]:
        return [after - before for before, after in zip(self.times, self.times[1:], strict=False)]


@pytest.fixture
def run():
    started = []

    def start(loop):
        started.append(loop)
        loop.start()
        return loop

    yield start
    for loop in started:
        loop.stop(10)
        assert not loop.running


@pytest.fixture
def first_pause_s(monkeypatch):
    """A shorter pause after the first failure, so that the test takes less time."""
    assert base.FIRST_RETRY_PAUSE_S >= 1
    monkeypatch.setattr(base, "FIRST_RETRY_PAUSE_S", 0.2)
    monkeypatch.setattr(base, "MAX_RETRY_PAUSE_S", 1.0)
    return 0.2


def test_a_tick_that_raises_does_not_end_its_loop(run, caplog, first_pause_s):
    loop = run(Counting(ValueError("a bug"), KeyError("another"), 0.0))
    wait_until(lambda: len(loop.times) == 4)
    assert caplog.text.count("unexpected error, continuing loop=counting") == 2
    assert "a bug" in caplog.text


def test_a_loop_pauses_before_it_retries_an_unavailable_database(run, caplog, first_pause_s):
    loop = run(Counting(*[StoreUnavailable("gone")] * 3, 0.0))
    wait_until(lambda: len(loop.times) == 5)
    assert all(gap >= first_pause_s for gap in loop.gaps()[:3])
    assert caplog.text.count("database error, retrying") == 1, "logged once, not with every try"


def test_a_wake_up_does_not_shorten_the_pause_after_a_failure(run, first_pause_s):
    loop = run(Counting(StoreUnavailable("gone"), StoreUnavailable("gone"), 0.0))

    def woken_often() -> bool:
        loop.wake()
        return len(loop.times) >= 4

    wait_until(woken_often)
    assert all(gap >= first_pause_s for gap in loop.gaps()[:2])


def test_a_wake_during_a_tick_is_not_lost(run):
    inside, go = threading.Event(), threading.Event()

    class Slow(Counting):
        def tick(self) -> float:
            inside.set()
            assert go.wait(30)
            return super().tick()

    loop = run(Slow())
    assert inside.wait(30)
    loop.wake()
    go.set()
    wait_until(lambda: len(loop.times) == 2)


def test_a_failing_loop_stops_at_once(run):
    loop = run(Counting(*[StoreUnavailable("gone")] * 100))
    wait_until(lambda: loop.times)
    loop.stop(10)
    assert not loop.running


def test_every_loop_of_a_worker_survives_a_failing_tick(app, monkeypatch, ledger):
    @app.task(name="work")
    def work(n: int) -> None:
        ledger.write(n)

    failed: set[str] = set()
    worker = app.worker()
    components = worker._components
    loops = [
        *components.background_loops,
        components.claimer,
        components.committer,
        components.heartbeat,
        components.lease_guard,
    ]
    for loop in loops:

        def once(loop=loop, real=loop.tick) -> float:
            if loop.running and loop.name not in failed:
                failed.add(loop.name)
                raise RuntimeError(f"a bug in the {loop.name}")
            return real()

        monkeypatch.setattr(loop, "tick", once)
    with worker:
        run = work.enqueue(1)
        assert run.result(timeout=30) is None
        wait_until(lambda: len(failed) == len(loops))
        assert all(loop.running for loop in (*components.background_loops, components.claimer, components.committer))
        assert work.enqueue(2).result(timeout=30) is None
    assert ledger.lines() == ["1", "2"]
