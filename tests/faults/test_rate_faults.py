"""Weighted rates across worker processes that die: no period exceeds them, and nothing starts without a permit."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tests.faults.conftest import APPS
from tests.support.grants import most_in_a_window, read_grants, record_grants
from tests.support.history_queries import fetch, states, taken_over
from tests.support.permits import in_use, parked_and_forgotten, recount
from tests.support.wait_until import wait_until

SECOND = 1_000_000
MAX_COST = 9


@pytest.fixture
def start(processes, ledger, database_url):
    return lambda rate, lease: processes.start(
        APPS / "limited.py", database_url, ledger.path, f"{rate}/s", "--lease", lease
    )


async def spend(number: int, cost: int, used: int, seconds: float, hangs: bool) -> int:
    """Declare a task of the worker processes."""
    raise NotImplementedError


def enqueue(app, tasks, rate, count, kills, chance):
    """Enqueue runs with random costs; return the cost and the use of each, and those whose first attempt hangs."""
    app.limit("tokens", rate=f"{rate}/s", cost="cost")
    declared = [app.task(name=name, limits=["tokens"] if name == "weighted" else [])(spend) for name in tasks]
    hanging = {(kill + 1) * count // (kills + 2) for kill in range(kills)}
    costs: dict[str, tuple[int, int]] = {}
    hangs: list[str] = []
    for number in range(count):
        task = declared[number % len(declared)]
        cost = chance.randint(1, MAX_COST)
        used = cost if task.name == "weighted" else chance.randint(0, cost)
        run = str(task.enqueue(number, cost, used, chance.uniform(0.0, 0.1), number in hanging).id)
        costs[run] = cost, used
        hangs += [run] if number in hanging else []
    return costs, hangs


def spend_with_kills(app, start, ledger, url, *, tasks, workers, runs, kills, rate, lease, timeout):
    """Kill each worker that a hanging run is in, a few starts later; then compare what was granted with the effects."""
    chance = random.Random(runs)
    costs, hanging = enqueue(app, tasks, rate, runs, kills, chance)
    record_grants(url)
    running = [start(rate, lease) for _ in range(workers)]
    for run in hanging:
        wait_until(lambda run=run: pids_of(ledger, run), timeout)
        more = min(len(ledger.lines()) + chance.randrange(8), runs - kills)
        wait_until(lambda more=more: len(ledger.lines()) >= more, timeout)
        pids = pids_of(ledger, run)
        for victim in [process for process in running if process.pid in pids]:  # none if it died with an earlier one
            victim.kill()
            running.remove(victim)
            running.append(start(rate, lease))
    wait_until(lambda: states(app).keys() <= {"done", "failed"}, timeout, lambda: str(states(app)))

    assert states(app) == {"done": runs}
    grants = read_grants(app)
    counted = [(grant.at, cost) for grant, cost in zip(grants, final_costs(grants, costs), strict=True)]
    assert most_in_a_window(counted, SECOND) <= rate
    effects = Counter((run, int(attempt)) for run, attempt, _ in ledger.words())
    assert effects - Counter((grant.run, grant.attempt) for grant in grants) == Counter(), "started without a permit"
    assert {run for run, _ in effects} == set(costs)
    assert taken_over(app) >= len(hanging)
    assert in_use(app.store) == recount(app.store) == {}
    assert fetch(app, "select * from {}step_permits") == []
    assert parked_and_forgotten(app.store) == []


def pids_of(ledger, run):
    """Return the processes in which a run has started."""
    return {int(pid) for id, _, pid in ledger.words() if id == run}


def final_costs(grants, costs):
    """Yield what each grant counts in the end: the last one of a run was adjusted, the others ended with a process."""
    last = {grant.run: grant for grant in grants}
    for grant in grants:
        cost, used = costs[grant.run]
        yield used if last[grant.run] is grant else cost


def test_no_window_exceeds_a_weighted_rate_although_workers_are_killed(app, start, ledger, database_url):
    spend_with_kills(
        app, start, ledger, database_url,
        tasks=["weighted", "metered"], workers=2, runs=40, kills=2, rate=60, lease=1, timeout=120,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("tasks", [["weighted"], ["metered"], ["weighted", "metered"]], ids="-".join)
def test_no_window_exceeds_a_weighted_rate_with_eight_workers_and_many_kills(app, start, ledger, database_url, tasks):
    spend_with_kills(
        app, start, ledger, database_url,
        tasks=tasks, workers=8, runs=400, kills=10, rate=100, lease=2, timeout=600,
    )  # fmt: skip
