"""Triggers whose worker dies during a poll: another worker takes over without loss or duplicates."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.support.wait_until import wait_until

APP = Path(__file__).resolve().parent / "apps" / "polled.py"
REQUESTS = 250
CHUNK = 100

PLACES = {
    "after acquire_due": 0,
    "add_runs": 0,
    "after enqueue": CHUNK,
    "the middle": 2 * CHUNK,
    "finish_poll": REQUESTS,
    "after finish_poll": REQUESTS,
}
"""Where a worker dies, and the number of runs at that point."""


@pytest.mark.parametrize(("place", "made"), PLACES.items())
def test_a_worker_killed_during_a_poll_loses_nothing_and_another_continues(
    app, processes, ledger, database_url, place, made
):
    victim = processes.start(APP, database_url, ledger.path, "--die-at", place)
    assert victim.wait(60) == -signal.SIGKILL, victim.log
    assert ledger.path.with_name("died").exists(), "it died for another reason"
    assert len(app.runs(limit=1000)) == made
    recorded = place == "after finish_poll"
    assert len(app.store.triggers.last_polls("numbers")) == recorded

    processes.start(APP, database_url, ledger.path, "--ahead", 120)
    wait_until(lambda: len(ledger.lines()) >= REQUESTS, 60)
    wait_until(lambda: len(app.store.triggers.last_polls("numbers")) == 1, 60)
    (poll,) = app.store.triggers.last_polls("numbers")
    assert (poll.found, poll.made, poll.error) == (REQUESTS, REQUESTS if recorded else REQUESTS - made, None)
    assert len(app.runs(limit=1000)) == REQUESTS
    assert sorted(ledger.lines(), key=int) == [str(n) for n in range(REQUESTS)], "each once"


def test_no_worker_polls_until_the_lease_of_a_dead_poller_expires(app, processes, ledger, database_url):
    victim = processes.start(APP, database_url, ledger.path, "--die-at", "after acquire_due")
    assert victim.wait(60) == -signal.SIGKILL, victim.log
    early = processes.start(APP, database_url, ledger.path)
    early.wait_for("worker started", timeout=60)
    left = app.store.triggers.until_next(["numbers"])
    assert left is not None
    assert left > 30_000_000, "a poll has a minute, and its poller a little more"
    assert app.store.triggers.acquire_due("another", {"numbers": (1_000_000, 1_000_000)}) == {}
    assert len(app.runs()) == 0
