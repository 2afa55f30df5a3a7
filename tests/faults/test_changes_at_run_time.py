"""Limits, schedules and pauses that change while several worker processes are busy: all follow within a second.

All times are those of the database, in microseconds, so that the speed of the machine doesn't matter.
"""

from __future__ import annotations

import pytest

from holdfast.engine.loops.claimer import POLL_INTERVAL_S
from holdfast.engine.loops.heartbeat import CANCEL_POLL_INTERVAL_S
from holdfast.engine.loops.scheduler import POLL_INTERVAL_S as SCHEDULE_POLL_INTERVAL_S
from tests.faults.conftest import APPS
from tests.support.history_queries import fetch
from tests.support.permits import rows
from tests.support.wait_until import wait_until

SECOND = 1_000_000
WORKERS = 3
MORE = 40


class Fleet:
    """Worker processes that are busy, and what they did."""

    def __init__(self, app, processes, ledger, url):
        self.app = app
        self.ledger = ledger
        self.processes = [processes.start(APPS / "changed.py", url, ledger.path) for _ in range(WORKERS)]
        app.limit("few", concurrency=6)
        app.remote("work").options(limits=["few"]).enqueue_many([(number,) for number in range(5000)])
        wait_until(lambda: len({pid for _, pid in ledger.words()}) == WORKERS, 60)

    def now(self) -> int:
        ((now,),) = rows(self.app.store, "select {clock}")
        return int(now)

    def attempts(self, task: str = "work") -> list[tuple[int, int]]:
        """Return when attempts of a task began and ended."""
        return fetch(
            self.app,
            "select h.since, h.at from {}history h join {}runs r on r.id = h.run join {}lanes l on l.id = r.lane"
            f" where h.since is not null and l.task = '{task}' order by h.since",
        )

    def wait_for_more(self) -> None:
        """Wait until many runs have started."""
        wanted = len(self.ledger.lines()) + MORE
        wait_until(lambda: len(self.ledger.lines()) >= wanted, 60)

    def wait_for_slots(self, count: int) -> None:
        """Wait for slots that begin more than a second from now: no worker is stuck, and the time has passed."""
        now = self.now()
        wait_until(lambda: sum(slot > now + SECOND for slot, _ in self.slots()) >= count, 60)

    def slots(self) -> list[tuple[int, int]]:
        """Return the slots that have runs, and what their arguments say."""
        runs = self.app.runs(task="tick", limit=1000)
        return sorted((int(run.scheduled_for.timestamp() * SECOND), run.args["version"]) for run in runs)


def most_at_once(attempts, since):
    """Return how many attempts that began after a time were executed at the same time."""
    later = [each for each in attempts if each[0] > since]
    return max(sum(begin <= at < end for begin, end in later) for at, _ in later)


def test_every_worker_polls_for_changes_at_least_once_per_second():
    assert max(POLL_INTERVAL_S, SCHEDULE_POLL_INTERVAL_S, CANCEL_POLL_INTERVAL_S) <= 1


@pytest.mark.slow
def test_busy_workers_follow_changes_within_a_second(app, processes, ledger, database_url):
    fleet = Fleet(app, processes, ledger, database_url)
    tick = app.remote("tick").options(queue="ticks")
    app.schedules.create("tick", tick.request(version=1), every=1)
    fleet.wait_for_slots(1)
    assert most_at_once(fleet.attempts(), 0) > 1

    app.limits.set("few", concurrency=1)
    limited = fleet.now()
    fleet.wait_for_slots(1)
    fleet.wait_for_more()
    app.limits.reset("few")
    reset = fleet.now()
    fleet.wait_for_more()
    attempts = fleet.attempts()
    assert most_at_once([each for each in attempts if each[0] < reset], limited + SECOND) == 1
    assert most_at_once(attempts, reset) > 1

    for target in ({"task": "work"}, {"queue": "default"}):
        app.pause(**target)
        paused = fleet.now()
        fleet.wait_for_slots(2)
        resumed = fleet.now()
        app.resume(**target)
        fleet.wait_for_more()
        assert [at for at, _ in fleet.attempts() if paused + SECOND < at < resumed] == []

    app.schedules.update("tick", tick.request(version=2))
    updated = fleet.now()
    fleet.wait_for_slots(2)
    app.schedules.pause("tick")
    stopped = fleet.now()
    fleet.wait_for_more()
    slots = fleet.slots()
    assert {version for slot, version in slots if slot > updated + SECOND} == {2}
    assert {version for slot, version in slots if slot < updated} == {1}
    assert max(slot for slot, _ in slots) <= stopped + SECOND
    assert len({slot for slot, _ in slots}) == len(slots), "a slot has two runs"
