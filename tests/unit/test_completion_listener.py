"""The completion listener, tick by tick."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from uuid import UUID

import pytest

from holdfast.client import completion_listener, results
from holdfast.client.completion_listener import CompletionListenerLoop, rest_after
from holdfast.client.results import LoopPoller, PollBackoff, ResultWaiter
from holdfast.errors import StoreUnavailable


class Database:
    """A change listener whose notifications the test controls, and the table of watchers."""

    polling_only = False

    def __init__(self) -> None:
        self.log: list[str] = []
        self.notifies = True
        self.fault: Exception | None = None

    def wait(self, longest: float, stop: threading.Event) -> bool:
        self.log.append("wait")
        if self.fault is not None:
            raise self.fault
        return self.notifies

    def add(self, id: str, lasts: int, *, hears_workers: bool) -> None:
        self.log.append("add")

    def renew(self, id: str, lasts: int) -> None:
        self.log.append("renew")

    def remove(self, id: str) -> None:
        self.log.append("remove")

    def close(self) -> None:
        self.log.append("close")

    def interrupt(self) -> None:
        pass


@pytest.fixture
def database():
    return Database()


@pytest.fixture
def wanted():
    return [True]


@pytest.fixture
def listener(database, wanted):
    return CompletionListenerLoop(
        SimpleNamespace(watchers=database), database, lambda: database.log.append("reported"), lambda _: wanted[0]
    )


def test_a_tick_waits_then_registers_then_reports_completions(listener, database):
    assert listener.tick() >= completion_listener.MIN_REST_S
    assert database.log == ["wait", "add", "reported"]
    assert listener.is_listening


def test_completions_are_reported_only_after_a_notification(listener, database):
    listener.tick()
    database.notifies = False
    database.log.clear()
    assert listener.tick() == 0.0
    database.notifies = True
    listener.tick()
    assert database.log == ["wait", "wait", "reported"]


def test_the_registration_is_renewed_before_it_expires(listener, database, monkeypatch):
    assert (
        completion_listener.WATCHER_RENEWAL_S + 2 * completion_listener.MAX_WAIT_S < completion_listener.WATCHER_TTL_S
    )
    listener.tick()
    monkeypatch.setattr(completion_listener, "WATCHER_RENEWAL_S", 0.0)
    database.notifies = False
    listener.tick()
    assert database.log == ["wait", "add", "reported", "wait", "renew"]


def test_the_listener_unregisters_when_it_is_no_longer_wanted(listener, database, wanted):
    listener.tick()
    wanted[0] = False
    listener.tick()
    assert database.log == ["wait", "add", "reported", "close", "remove"]
    assert not listener.is_listening
    assert listener._stopping.is_set()


def test_a_stopped_listener_unregisters_once(listener, database, wanted):
    listener.tick()
    listener.stop()
    assert database.log[-2:] == ["close", "remove"]
    listener.stop()
    assert database.log.count("remove") == 1


def test_after_a_stop_without_waiting_the_thread_unregisters(listener, database, monkeypatch):
    listening, go = threading.Event(), threading.Event()
    monkeypatch.setattr(database, "wait", lambda longest, stop: (listening.set(), go.wait(60))[1])
    listener.start()
    assert listening.wait(60)
    listener.stop(0)
    assert database.log == []
    go.set()
    listener._thread.join(60)
    assert database.log == ["close"]


def test_after_an_outage_the_listener_backs_off_and_registers_again(listener, database):
    listener.tick()
    database.fault = StoreUnavailable("away")
    assert completion_listener.MIN_RETRY_S <= listener.tick() <= completion_listener.MAX_RETRY_S
    assert not listener.is_listening
    database.fault, database.notifies = None, False
    database.log.clear()
    listener.tick()
    assert database.log == ["wait", "add", "reported"], "runs that ended during the outage are reported"
    assert listener.is_listening


def test_a_listener_stopped_during_an_outage_does_not_unregister(listener, database, wanted):
    listener.tick()
    database.fault = StoreUnavailable("away")
    listener.tick()
    listener.stop()
    assert "remove" not in database.log


def test_a_polling_only_listener_does_not_register(listener, database):
    database.polling_only, database.notifies = True, False
    listener.tick()
    assert database.log == ["wait"]
    assert not listener.is_listening


def test_the_rest_after_a_poll_grows_with_its_duration():
    assert rest_after(0.0) == completion_listener.MIN_REST_S
    assert rest_after(1.0) == completion_listener.REST_FACTOR


async def test_notifications_during_a_poll_and_its_rest_cause_one_more_poll(monkeypatch):
    polls: list[set[str]] = []
    polled = threading.Event()
    run = UUID(int=1)

    def poll(ids):
        polls.append(set(ids))
        if len(polls) == 1:
            for _ in range(100):
                waiter.on_completion()
            polled.set()
        return {str(run): ("running" if len(polls) < 2 else "done", "1", None, None, None)}

    monkeypatch.setattr(results, "FIRST_POLL_INTERVAL_S", 3600.0)
    waiter = ResultWaiter(poll)
    assert (await asyncio.wait_for(waiter.wait(run, None), 60))[0] == "done"
    assert polled.is_set()
    assert len(polls) == 2


async def test_a_poller_does_not_poll_while_it_rests():
    poller = LoopPoller(ResultWaiter(lambda ids: {}))
    poller._resting = True
    poller.notify()
    assert not poller.wake.is_set()
    poller._rested()
    assert poller.wake.is_set()
    poller.wake.clear()
    poller._notified = False
    poller.notify()
    assert poller.wake.is_set(), "after its rest it polls at once"


@pytest.mark.parametrize("listens", [False, True])
def test_polling_slows_down_while_a_listener_is_active(listens):
    waiter = ResultWaiter(lambda ids: {}, SimpleNamespace(is_listening=listens))
    backoff = PollBackoff(UUID(int=1), None)
    pauses = [backoff.pause("running", waiter.max_interval()) for _ in range(40)]
    assert pauses[0] == results.FIRST_POLL_INTERVAL_S
    longest = "MAX_POLL_INTERVAL_LISTENING_S" if listens else "MAX_POLL_INTERVAL_S"
    assert max(pauses) == pauses[-1] == getattr(results, longest)


def test_only_long_waits_request_a_listener(monkeypatch):
    requested: list[float] = []
    waiter = ResultWaiter(
        lambda ids: {}, SimpleNamespace(request=lambda seconds, on_completion: requested.append(seconds))
    )
    waiter.request_listener(results.FIRST_POLL_INTERVAL_S)
    waiter.request_listener(0.5)
    assert requested == [0.5]


def test_a_closed_loop_does_not_keep_others_from_being_notified():
    loop = asyncio.new_event_loop()
    waiter = ResultWaiter(lambda ids: {})
    waiter._pollers[loop] = LoopPoller(waiter)
    loop.close()
    with waiter.thread(UUID(int=1), None) as sleeper:
        waiter.on_completion()
        assert sleeper._wake.is_set(), "there is no such run"
