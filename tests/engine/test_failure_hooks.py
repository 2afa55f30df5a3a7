"""Hooks for failed runs: a few at a time, others queued. Full queues slow the worker down; hung hooks don't stop it."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace

import pytest

from holdfast import Retry
from holdfast.engine import hooks as failure_notifier
from holdfast.engine.hooks import MAX_CONCURRENT_HOOKS, FailureNotifier, Hooks
from holdfast.errors import StoreUnavailable
from tests.support.wait_until import wait_until

FAILURES = 1500


@pytest.fixture
def fail(app):
    @app.task(name="fail", retry=Retry(max_attempts=1))
    async def fail(n: int) -> None:
        raise ValueError(n)

    return fail


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_slow_hooks_use_few_threads_and_get_every_failure(app, fail, ledger, kind):
    before = threading.active_count()
    most = 0
    at_once = 0
    lock = threading.Lock()

    def begin() -> None:
        nonlocal at_once, most
        with lock:
            at_once += 1
            most = max(most, at_once)

    def end(info) -> None:
        nonlocal at_once
        with lock:
            at_once -= 1
        ledger.write(info.id)

    def hook(info):
        begin()
        threading.Event().wait(0.005)
        end(info)

    async def async_hook(info):
        begin()
        await asyncio.sleep(0.005)
        end(info)

    app.on_failure(hook if kind == "def" else async_hook)
    runs = fail.enqueue_many([(n,) for n in range(FAILURES)])
    threads = []
    with app.worker(grace=60):
        while len(ledger.lines()) < FAILURES:
            threads.append(threading.active_count())
            threading.Event().wait(0.01)
    assert sorted(ledger.lines()) == sorted(str(run.id) for run in runs)
    assert most <= MAX_CONCURRENT_HOOKS
    assert max(threads) - before < 50, "a worker's own threads, and twice as many as hooks at most"


def test_a_full_queue_keeps_the_worker_from_claiming_until_there_is_room(app, fail, monkeypatch, caplog):
    monkeypatch.setattr(failure_notifier, "MAX_QUEUED", 20)
    release = threading.Event()
    heard = []

    @app.on_failure
    def hook(info):
        release.wait(60)
        heard.append(info.id)

    runs = fail.enqueue_many([(n,) for n in range(200)])
    worker = app.worker(concurrency=5)
    with worker:
        components = worker._components
        wait_until(lambda: not components.failures.has_room())
        components.claimer.tick()  # waits for the claim under way, which may have begun while there was room
        wait_until(lambda: not components.state.claimed())
        assert components.claimer.tick() > 0.0
        assert not components.state.claimed(), "it doesn't claim"
        failed = list(app.runs(state="failed", limit=200))
        assert len(failed) < 50, "what was claimed before is queued too"
        assert components.failures.pending == len(failed)
        assert "on_failure hooks are behind" in caplog.text
        release.set()
        wait_until(lambda: len(heard) == 200, what=lambda: str(len(heard)))
    assert set(heard) == {run.id for run in runs}
    assert caplog.text.count("on_failure hooks are behind") == 1


def test_a_stopping_worker_logs_how_many_failures_were_not_delivered(app, fail, caplog):
    release = threading.Event()
    app.on_failure(lambda _: release.wait(60))
    runs = fail.enqueue_many([(n,) for n in range(20)])
    worker = app.worker(grace=0)
    with worker:
        for run in runs:
            wait_until(lambda run=run: run.info().state == "failed")
    release.set()
    assert "undelivered_runs=20" in caplog.text


class Setup:
    """A notifier with threads, timers and a clock that the test controls."""

    def __init__(self, read_info=lambda run: run, hook=lambda _: None):
        hooks = Hooks()
        hooks.on_failure.append(hook)
        self.now = 0.0
        self.threads, self.alarms, self.room = [], [], []
        alarms = SimpleNamespace(call_later=lambda seconds, call: self.alarms.append((seconds, call)))
        self.notifier = FailureNotifier(
            hooks,
            read_info,
            lambda call: self.threads.append(call),
            lambda: None,
            alarms,
            lambda: self.room.append(1),
            lambda: self.now,
        )

    def fill(self, queued: int) -> None:
        for n in range(queued + MAX_CONCURRENT_HOOKS):
            self.notifier.notify(str(n))


def test_the_number_of_concurrent_hooks_is_bounded():
    setup = Setup()
    setup.fill(queued=30)
    assert len(setup.threads) == MAX_CONCURRENT_HOOKS
    while setup.threads:
        setup.threads.pop(0)()
    assert setup.notifier.pending == 0


def test_has_room_follows_the_length_of_the_queue():
    setup = Setup()
    setup.fill(queued=failure_notifier.MAX_QUEUED - 1)
    assert setup.notifier.has_room()
    setup.notifier.notify("one more")
    assert not setup.notifier.has_room()
    assert setup.room == []
    setup.threads.pop(0)()
    assert setup.notifier.has_room()
    assert setup.room == [1]


def test_hung_hooks_do_not_stop_claims_forever():
    setup = Setup()
    setup.fill(queued=failure_notifier.MAX_QUEUED)
    setup.now = failure_notifier.STALLED_AFTER_S
    assert not setup.notifier.has_room()
    setup.now += 1
    assert setup.notifier.has_room()
    setup.threads.pop(0)()
    setup.notifier.notify("full again")
    assert not setup.notifier.has_room(), "one has ended: the others may do so too"


def test_a_hung_hook_occupies_one_slot_and_is_logged_once(caplog):
    setup = Setup()
    setup.fill(queued=5)
    hanging = setup.threads.pop(0)
    while setup.threads:
        setup.threads.pop(0)()
    assert setup.notifier.pending == 1, "the others didn't wait for it"
    seconds, warn = setup.alarms.pop()
    setup.now = seconds
    warn()
    setup.now += seconds
    setup.alarms.pop()[1]()
    assert caplog.text.count("run=0 running_for=60s") == 1
    hanging()
    setup.alarms.pop()[1]()
    assert setup.alarms == [], "nothing is left to watch"


def test_failures_beyond_the_largest_queue_are_logged(monkeypatch, caplog):
    monkeypatch.setattr(failure_notifier, "MAX_QUEUED_AT_ALL", 10)
    setup = Setup()
    setup.fill(queued=13)
    assert setup.notifier.pending == 10 + MAX_CONCURRENT_HOOKS
    assert "dropped=1" in caplog.text
    setup.now += failure_notifier.WARNING_INTERVAL_S
    setup.notifier.notify("another")
    assert "dropped=3" in caplog.text


def test_hooks_wait_for_an_unavailable_database(monkeypatch):
    monkeypatch.setattr(failure_notifier, "RETRY_PAUSE_S", 0.0)
    answers = [StoreUnavailable("gone"), StoreUnavailable("gone"), "info"]
    heard = []

    def read_info(run):
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return f"{answer} of {run}"

    setup = Setup(read_info, heard.append)
    setup.notifier.notify("a")
    setup.threads.pop()()
    assert heard == ["info of a"]


def test_a_failure_stays_queued_while_no_thread_can_be_started():
    setup = Setup()

    def refuse(call):
        raise RuntimeError("can't start new thread")

    setup.notifier._run_in_thread = refuse
    setup.notifier.notify("a")
    assert setup.notifier.pending == 1
    setup.notifier._run_in_thread = lambda call: call()
    again = [call for seconds, call in setup.alarms if seconds == failure_notifier.RETRY_PAUSE_S]
    again[0]()
    assert setup.notifier.pending == 0
