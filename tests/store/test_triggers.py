"""Triggers in the store: one poller at a time, leases that expire, outcomes of the last polls."""

from __future__ import annotations

import threading
from typing import Any

from holdfast.policy.schedule_timing import Timing
from holdfast.store.schedule_definitions import DeclaredSchedule
from holdfast.store.schedules import PollResult
from tests.support.store_harness import SECOND, StoreHarness

WANTED = {"files": (10 * SECOND, 30 * SECOND)}


def declare(harness: StoreHarness, *names: str) -> None:
    harness.store.schedules.declare("shop", [DeclaredSchedule(name, Timing(every=30 * SECOND)) for name in names])


def end(harness: StoreHarness, poller: str, number: int, *, again: bool = False, **more: Any) -> bool:
    came = PollResult(**{"took": 5, "found": 3, "made": 2, "error": None, **more})
    return harness.store.triggers.finish_poll(poller, "files", number, came, again=again)


def test_a_new_trigger_is_due_at_once_and_then_at_its_interval(harness, clock):
    declare(harness, "files")
    triggers = harness.store.triggers
    assert triggers.until_next(["files"]) == 0
    assert triggers.acquire_due("a", WANTED) == {"files": 1}
    assert triggers.acquire_due("a", WANTED) == triggers.acquire_due("b", WANTED) == {}
    assert end(harness, "a", 1)
    assert triggers.until_next(["files"]) == 30 * SECOND
    assert triggers.acquire_due("b", WANTED) == {}
    clock.advance(30)
    assert triggers.acquire_due("b", WANTED) == {"files": 2}


def test_a_poll_that_takes_longer_than_the_interval_is_followed_at_once(harness, clock):
    declare(harness, "files")
    harness.store.triggers.acquire_due("a", {"files": (100 * SECOND, 30 * SECOND)})
    clock.advance(50)
    assert harness.store.triggers.until_next(["files"]) == 50 * SECOND, "unless it ends before"
    assert harness.store.triggers.acquire_due("b", WANTED) == {}
    end(harness, "a", 1)
    assert harness.store.triggers.until_next(["files"]) == -20 * SECOND
    assert harness.store.triggers.acquire_due("b", WANTED) == {"files": 2}


def test_the_lease_of_a_dead_poller_expires_and_its_late_result_is_rejected(harness, clock):
    declare(harness, "files")
    harness.store.triggers.acquire_due("a", {"files": (40 * SECOND, 30 * SECOND)})
    clock.advance(39)
    assert harness.store.triggers.acquire_due("b", WANTED) == {}
    clock.advance(1)
    assert harness.store.triggers.acquire_due("b", WANTED) == {"files": 2}
    assert not end(harness, "a", 1)
    assert harness.store.triggers.last_polls("files") == []
    assert end(harness, "b", 2)
    assert not end(harness, "b", 2), "once"


def test_a_dead_poll_is_repeated_when_its_lease_expires_however_long_the_interval(harness, clock):
    declare(harness, "files")
    daily = {"files": (40 * SECOND, 86_400 * SECOND)}
    harness.store.triggers.acquire_due("a", daily)
    clock.advance(39)
    assert harness.store.triggers.until_next(["files"]) == SECOND
    assert harness.store.triggers.acquire_due("b", daily) == {}
    clock.advance(1)
    assert harness.store.triggers.acquire_due("b", daily) == {"files": 2}
    assert end(harness, "b", 2)
    assert harness.store.triggers.until_next(["files"]) == 86_400 * SECOND, "the next one is counted from its beginning"


def test_an_interrupted_poll_is_due_at_once(harness, clock):
    declare(harness, "files")
    harness.store.triggers.acquire_due("a", WANTED)
    clock.advance(5)
    assert end(harness, "a", 1, again=True, error='{"code":"error"}')
    assert harness.store.triggers.until_next(["files"]) == 0
    assert harness.store.triggers.acquire_due("b", WANTED) == {"files": 2}


def test_eight_pollers_acquire_a_trigger_once(harness, clock):
    declare(harness, "files", "mails")
    stores = [harness.another_store() for _ in range(8)]
    wanted = {**WANTED, "mails": (10 * SECOND, 30 * SECOND)}
    for store in stores:
        store.triggers.until_next(["files"])
    together, taken = threading.Barrier(8), []

    def take(store: Any, poller: str) -> None:
        together.wait()
        taken.extend(store.triggers.acquire_due(poller, wanted))

    threads = [threading.Thread(target=take, args=(store, str(n))) for n, store in enumerate(stores)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == ["files", "mails"]


def test_the_last_polls_are_kept(harness, clock):
    declare(harness, "files")
    for number in range(1, 26):
        assert harness.store.triggers.acquire_due("a", WANTED) == {"files": number}
        end(harness, "a", number, found=number, error='{"code":"error"}' if number == 24 else None)
        clock.advance(30)
    polls = harness.store.triggers.last_polls("files")
    assert [poll.found for poll in polls] == list(range(25, 5, -1))
    assert [poll.error for poll in polls[:3]] == [None, '{"code":"error"}', None]
    (row,) = harness.store.schedules.list_all()
    assert (row.kind, row.found, row.made, row.polled_at) == ("trigger", 25, 2, clock.now - 30 * SECOND)


def test_paused_and_orphaned_triggers_are_not_polled_and_run_now_polls_at_once(harness, clock):
    declare(harness, "files")
    triggers, schedules = harness.store.triggers, harness.store.schedules
    schedules.pause(["files"], "ada")
    assert (triggers.until_next(["files"]), triggers.acquire_due("a", WANTED)) == (None, {})
    schedules.resume(["files"], "ada")
    assert triggers.acquire_due("a", WANTED) == {"files": 1}
    end(harness, "a", 1)
    assert schedules.run_now("files", "ada") is None
    assert triggers.acquire_due("a", WANTED) == {"files": 2}
    end(harness, "a", 2)
    declare(harness)
    clock.advance(60)
    assert (triggers.until_next(["files"]), triggers.acquire_due("a", WANTED)) == (None, {})
    declare(harness, "files")
    assert triggers.acquire_due("a", WANTED) == {"files": 3}


def test_a_trigger_has_no_slots_and_a_schedule_is_not_polled(harness, clock):
    declare(harness, "files")
    clock.advance(60)
    assert harness.store.schedules.until_next() is None
    assert harness.store.schedules.fire().created == []
    schedule = DeclaredSchedule("tick", Timing(every=60 * SECOND), template=harness.new())
    harness.store.schedules.declare("other", [schedule])
    clock.advance(60)
    assert harness.store.triggers.acquire_due("a", {"tick": WANTED["files"]}) == {}
