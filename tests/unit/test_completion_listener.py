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
    """A watch that hears what it is told to, and the rows of those who wait."""

    polling_only = False

    def __init__(self) -> None:
        self.log: list[str] = []
        self.hears = True
        self.fault: Exception | None = None

    def wait(self, longest: float, stop: threading.Event) -> bool:
        self.log.append("wait")
        if self.fault is not None:
            raise self.fault
        return self.hears

    def add(self, id: str, lasts: int) -> None:
        self.log.append("add")

    def renew(self, id: str, lasts: int) -> None:
        self.log.append("renew")

    def remove(self, id: str) -> None:
        self.log.append("drop")

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
        SimpleNamespace(watchers=database), database, lambda: database.log.append("heard"), lambda _: wanted[0]
    )


def test_it_listens_says_so_and_looks_in_this_order(listener, database):
    assert listener.tick() >= completion_listener.MIN_REST_S
    assert database.log == ["wait", "add", "heard"]
    assert listener.is_listening


def test_it_tells_of_what_it_hears_and_of_nothing_else(listener, database):
    listener.tick()
    database.hears = False
    database.log.clear()
    assert listener.tick() == 0.0
    database.hears = True
    listener.tick()
    assert database.log == ["wait", "wait", "heard"]


def test_it_says_again_that_it_listens_before_that_is_over(listener, database, monkeypatch):
    assert (
        completion_listener.WATCHER_RENEWAL_S + 2 * completion_listener.MAX_WAIT_S < completion_listener.WATCHER_TTL_S
    )
    listener.tick()
    monkeypatch.setattr(completion_listener, "WATCHER_RENEWAL_S", 0.0)
    database.hears = False
    listener.tick()
    assert database.log == ["wait", "add", "heard", "wait", "renew"]


def test_it_leaves_when_it_isnt_wanted_any_more(listener, database, wanted):
    listener.tick()
    wanted[0] = False
    listener.tick()
    assert database.log == ["wait", "add", "heard", "close", "drop"]
    assert not listener.is_listening
    assert listener._stopping.is_set()


def test_stopped_from_outside_it_leaves_too_and_only_once(listener, database, wanted):
    listener.tick()
    listener.stop()
    assert database.log[-2:] == ["close", "drop"]
    listener.stop()
    assert database.log.count("drop") == 1


def test_who_doesnt_wait_for_its_end_leaves_that_to_its_thread(listener, database, monkeypatch):
    listening, go = threading.Event(), threading.Event()
    monkeypatch.setattr(database, "wait", lambda longest, stop: (listening.set(), go.wait(60))[1])
    listener.start()
    assert listening.wait(60)
    listener.stop(0)
    assert database.log == []
    go.set()
    listener._thread.join(60)
    assert database.log == ["close"]


def test_a_database_in_trouble_is_left_in_peace_and_told_of_us_anew(listener, database):
    listener.tick()
    database.fault = StoreUnavailable("away")
    assert completion_listener.MIN_RETRY_S <= listener.tick() <= completion_listener.MAX_RETRY_S
    assert not listener.is_listening
    database.fault, database.hears = None, False
    database.log.clear()
    listener.tick()
    assert database.log == ["wait", "add", "heard"], "what ended meanwhile is looked for"
    assert listener.is_listening


def test_in_trouble_it_leaves_without_a_word(listener, database, wanted):
    listener.tick()
    database.fault = StoreUnavailable("away")
    listener.tick()
    listener.stop()
    assert "drop" not in database.log


def test_a_deaf_one_says_nothing_and_is_never_taken_for_listening(listener, database):
    database.polling_only, database.hears = True, False
    listener.tick()
    assert database.log == ["wait"]
    assert not listener.is_listening


def test_a_look_that_takes_long_is_followed_by_a_long_rest():
    assert rest_after(0.0) == completion_listener.MIN_REST_S
    assert rest_after(1.0) == completion_listener.REST_FACTOR


async def test_news_that_comes_during_a_look_or_the_rest_behind_it_leads_to_one_look_after_the_rest(monkeypatch):
    looks: list[set[str]] = []
    heard = threading.Event()
    run = UUID(int=1)

    def look(ids):
        looks.append(set(ids))
        if len(looks) == 1:
            for _ in range(100):
                all_ends.on_completion()
            heard.set()
        return {str(run): ("running" if len(looks) < 2 else "done", "1", None, None, None)}

    monkeypatch.setattr(results, "FIRST_POLL_INTERVAL_S", 3600.0)
    all_ends = ResultWaiter(look)
    assert (await asyncio.wait_for(all_ends.wait(run, None), 60))[0] == "done"
    assert heard.is_set()
    assert len(looks) == 2


async def test_a_watch_doesnt_look_while_it_rests():
    watch = LoopPoller(ResultWaiter(lambda ids: {}))
    watch._resting = True
    watch.notify()
    assert not watch.wake.is_set()
    watch._rested()
    assert watch.wake.is_set()
    watch.wake.clear()
    watch._notified = False
    watch.notify()
    assert watch.wake.is_set(), "rested, it looks at once"


@pytest.mark.parametrize("listens", [False, True])
def test_who_hears_looks_less_often_by_itself(listens):
    waits = ResultWaiter(lambda ids: {}, SimpleNamespace(is_listening=listens))
    looks = PollBackoff(UUID(int=1), None)
    pauses = [looks.pause("running", waits.max_interval()) for _ in range(40)]
    assert pauses[0] == results.FIRST_POLL_INTERVAL_S
    longest = "MAX_POLL_INTERVAL_LISTENING_S" if listens else "MAX_POLL_INTERVAL_S"
    assert max(pauses) == pauses[-1] == getattr(results, longest)


def test_a_listener_is_wanted_only_for_waits_that_are_long(monkeypatch):
    wants: list[float] = []
    waits = ResultWaiter(lambda ids: {}, SimpleNamespace(request=lambda seconds, heard: wants.append(seconds)))
    waits.request_listener(results.FIRST_POLL_INTERVAL_S)
    waits.request_listener(0.5)
    assert wants == [0.5]


def test_a_loop_that_is_closed_doesnt_keep_the_others_from_hearing():
    loop = asyncio.new_event_loop()
    waits = ResultWaiter(lambda ids: {})
    waits._pollers[loop] = LoopPoller(waits)
    loop.close()
    with waits.thread(UUID(int=1), None) as sleeper:
        waits.on_completion()
        assert sleeper._wake.is_set(), "there is no such run"
