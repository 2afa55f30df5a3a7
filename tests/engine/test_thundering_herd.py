"""A thundering herd: thousands of retries and sleeps that are due at the same moment, as after an outage.

The worker promotes them in batches, without extra connections, and more urgent work doesn't wait for them. The tests
count ticks, claims and starts, not seconds.
"""

from __future__ import annotations

import logging
from collections import Counter

import psycopg
import pytest

from holdfast import Context, Holdfast, Retry
from holdfast.model.clock import MICROS_PER_SECOND
from holdfast.store.module import MAX_BATCH_ROWS
from tests.support.history_queries import fetch
from tests.support.ledger import Ledger
from tests.support.wait_until import wait_until

SIZES = [(1_000, 500), pytest.param((10_000, 5_000), marks=pytest.mark.slow)]
"""Number of retries and of sleeping runs."""
DELAY = 100
SLOTS = 16


class Herd:
    """Runs that all become due when the clock is advanced. Each start is written to the ledger."""

    def __init__(self, app: Holdfast, ledger: Ledger, retries: int, sleepers: int) -> None:
        self.app = app
        self.size = retries + sleepers
        self.away = True
        self.effects = Counter([f"retried {n}" for n in range(retries)] + [f"slept {n}" for n in range(sleepers)])

        @app.task(name="retried", retry=Retry(max_attempts=2, delay=DELAY, jitter=0.25))
        async def retried(n: int) -> None:
            if self.away:
                raise OSError("the other side is away")
            ledger.write("retried", n)

        @app.task(name="slept")
        async def slept(ctx: Context, n: int) -> None:
            await ctx.sleep(DELAY)
            ledger.write("slept", n)

        @app.task(name="fresh")
        async def fresh(name: str) -> None:
            ledger.write("fresh", name)

        self.fresh = fresh
        retried.enqueue_many([(n,) for n in range(retries)])
        slept.enqueue_many([(n,) for n in range(sleepers)])
        fresh.enqueue("first")  # so that its lane is known
        app.worker(concurrency=500).drain(timeout=600)
        self.away = False

    def states(self) -> dict[str, int]:
        counted = self.app.store.counts.unfinished()
        return {state: sum(counts.by_lane.values()) for state, counts in counted.items()}

    def due_times(self) -> list[int]:
        scheduled = "select r.due_at from {}runs r join {}lanes l on l.id = r.lane where l.task = 'retried'"
        return [due_at for (due_at,) in fetch(self.app, f"{scheduled} and r.state = 'scheduled'")]


@pytest.fixture(params=SIZES, ids=lambda sizes: f"{sum(sizes)}")
def herd(timed_app, ledger, request, caplog) -> Herd:
    caplog.set_level(logging.ERROR, "holdfast")  # a line for each failure tells nothing here
    return Herd(timed_app, ledger, *request.param)


def test_many_due_runs_become_ready_in_batches_behind_urgent_work(herd, clock):
    app = herd.app
    due = herd.due_times()
    assert herd.states() == {"scheduled": len(due), "waiting": herd.size - len(due)}
    parts = Counter((at - clock()) * 50 // (DELAY * MICROS_PER_SECOND) for at in due)
    assert 20 <= len(parts) <= 26, "the jitter spreads retries over a quarter of their delay to both sides"
    assert max(parts.values()) < len(due) / 10, "and evenly"

    clock.forward(10 * DELAY)
    worker = app.worker()
    timekeeper, lanes = worker._components.timers, list(app.store.lanes.refresh())
    app.store.sessions.open("s", "w", 60 * MICROS_PER_SECOND, "{}")
    ticks = started = 0
    while timekeeper.tick() == 0.0:
        ticks += 1
        ready = herd.states()["ready"]
        assert ready <= 2 * MAX_BATCH_ROWS * ticks - started, (
            "a tick lets in a batch of runs and a batch of waits at most"
        )
        herd.fresh.options(priority=1).enqueue(f"urgent {ticks}")
        claims = app.store.claims.claim("s", lanes, 8)
        assert [claim.priority for claim in claims] == [1] + [0] * 7, "urgent work is in the very next claim"
        started += 7
    assert ticks >= len(due) / MAX_BATCH_ROWS
    assert herd.states() == {"ready": herd.size - started, "running": started + ticks}


def test_many_due_runs_all_run_and_other_work_in_between(herd, clock, ledger, database_url):
    app = herd.app
    clock.forward(10 * DELAY)
    asked = []
    with app.worker(concurrency=SLOTS):
        while len(ledger.lines()) < herd.size:
            before = len(ledger.lines())
            name = f"{len(asked)}"
            run = herd.fresh.options(priority=1).enqueue(name)
            asked.append((name, len(ledger.lines())))
            run.result(timeout=60)
            assert connections(database_url) <= 6
            step = before + herd.size // 10
            wait_until(lambda step=step: len(ledger.lines()) >= min(step, herd.size), 120)
        behind = herd.fresh.enqueue("behind")
        behind.result(timeout=60)
    lines = ledger.lines()
    for name, at in asked:
        waited_for = lines.index(f"fresh {name}") - at
        assert waited_for <= 3 * SLOTS, "more started before it than were in hand, and in one claim under way"
    ran = Counter(line for line in lines if not line.startswith("fresh"))
    assert ran == herd.effects, "each once"


def connections(url: str) -> int:
    """Count Holdfast's connections to this database."""
    if not url.startswith("postgres"):
        return 0
    with psycopg.connect(url) as looking:
        ours = "select application_name from pg_stat_activity where datname = current_database()"
        return sum(name.startswith("holdfast ") for (name,) in looking.execute(ours))
