"""Limits across worker processes: never exceeded and never stuck, although workers die."""

from __future__ import annotations

import random

import pytest

from tests.faults.conftest import APPS
from tests.support.history_queries import fetch, states
from tests.support.permits import in_use, parked_and_forgotten, recount, starts
from tests.support.wait_until import wait_until

SECOND = 1_000_000
ANY = "1000/s"


@pytest.fixture
def start(processes, ledger, database_url):
    return lambda rate=ANY: processes.start(APPS / "limited.py", database_url, ledger.path, rate)


def work_with_kills(app, start, ledger, *, workers, jobs, keys, kills, timeout, limit, name):
    """Run jobs of a few keys; replace a killed worker each time a share has started."""
    app.limit(limit, concurrency={"alone": 1, "few": 3}[limit], by="key")
    task = app.task(name=name, limits=[limit] if name == limit else [])(work)
    task.enqueue_many([(f"k{number % keys}", number, 0.02) for number in range(jobs)])
    running = [start() for _ in range(workers)]
    chance = random.Random(jobs)
    for kill in range(kills):
        begun = (kill + 1) * jobs // (kills + 2)
        wait_until(lambda begun=begun: len(ledger.lines()) >= begun, timeout)
        running[-1].wait_for("worker started", timeout)
        victim = chance.choice(running)
        victim.kill()
        running.remove(victim)
        running.append(start())
    wait_until(lambda: states(app).keys() <= {"done", "failed"}, timeout)
    assert states(app) == {"done": jobs}
    assert {words[1] for words in ledger.words()} == {str(number) for number in range(jobs)}
    assert in_use(app.store) == recount(app.store) == {}
    assert fetch(app, "select * from {}step_permits") == []
    assert parked_and_forgotten(app.store) == []


def work_alone_with_kills(app, start, ledger, *, name="alone", **load):
    work_with_kills(app, start, ledger, limit="alone", name=name, **load)
    assert [line for line in ledger.lines() if line.startswith("clash")] == []


async def work(key: str, number: int, seconds: float) -> int:
    """Declare a task of the worker processes."""
    raise NotImplementedError


def test_a_key_never_runs_twice_at_once_although_workers_are_killed(app, start, ledger):
    work_alone_with_kills(app, start, ledger, workers=3, jobs=60, keys=6, kills=2, timeout=120)


@pytest.mark.slow
def test_a_key_never_runs_twice_at_once_with_eight_workers_and_many_kills(app, start, ledger):
    work_alone_with_kills(app, start, ledger, workers=8, jobs=2000, keys=40, kills=12, timeout=600)


def test_a_step_never_runs_twice_at_once_although_workers_are_killed(app, start, ledger):
    work_alone_with_kills(app, start, ledger, workers=2, jobs=24, keys=3, kills=1, timeout=120, name="stepped")


@pytest.mark.slow
def test_a_step_never_runs_twice_at_once_with_eight_workers_and_many_kills(app, start, ledger):
    work_alone_with_kills(app, start, ledger, workers=8, jobs=600, keys=20, kills=10, timeout=600, name="stepped")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["few", "stepped_few"])
def test_a_key_is_used_by_three_at_most_with_eight_workers_and_many_kills(app, start, ledger, name):
    work_with_kills(app, start, ledger, workers=8, jobs=900, keys=4, kills=10, timeout=600, limit="few", name=name)
    together = [int(count) for _, _, count in ledger.words()]
    assert max(together) == 3, "the limit allows three, and there is enough work for as many"


def start_often(app, start, *, workers, count, period, periods, timeout):
    """Run rate-limited jobs on several workers and return their start times by the database's clock."""
    rate = f"{count}/{period}s"
    app.limit("often", rate=rate)
    jobs = count * periods

    async def often(number: int) -> int:
        raise NotImplementedError

    app.task(name="often", limits=["often"])(often).enqueue_many([(number,) for number in range(jobs)])
    for _ in range(workers):
        start(rate)
    wait_until(lambda: states(app) == {"done": jobs}, timeout)
    began = starts(app)
    assert len(began) == jobs
    too_soon = [at for at, later in zip(began, began[count:], strict=False) if later - at < period * SECOND]
    assert too_soon == [], "more in a window than the rate allows"
    return began


def test_no_window_exceeds_the_rate(app, start):
    start_often(app, start, workers=2, count=10, period=1, periods=4, timeout=120)


@pytest.mark.slow
def test_several_workers_use_the_full_rate(app, start):
    began = start_often(app, start, workers=4, count=40, period=4, periods=8, timeout=300)
    taken = (began[-1] - began[0]) / SECOND
    assert 7 * 4 / taken >= 0.95, f"eight windows in {taken:.2f} s; the minimum is 28 s"
