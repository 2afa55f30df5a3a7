"""Budgets across worker processes that are killed: exact totals, at most one step each beyond the limit."""

from __future__ import annotations

import random
import time
from decimal import Decimal

import pytest

from tests.faults.conftest import APPS
from tests.support.history_queries import states, taken_over
from tests.support.wait_until import wait_until

CENT = Decimal("0.01")
STEPS = 4


@pytest.fixture
def start(processes, ledger, database_url):
    return lambda limit: processes.start(APPS / "budgeted.py", database_url, ledger.path, str(limit), "--lease", "1")


async def spend(amounts: list[float]) -> int:
    """Declare a task of the worker processes."""
    raise NotImplementedError


def spend_with_kills(app, start, ledger, *, runs, workers, kills, timeout):
    """Spend up to the limit and beyond, kill workers all the time, raise the budget, and account to the cent."""
    chance = random.Random(runs)
    tasks = [app.task(name=name)(spend) for name in ("after", "inside")]
    amounts = {}
    for number in range(runs):
        cents = [chance.randint(1, 9) for _ in range(STEPS)]
        run = tasks[number % 2].options(tenant="acme").enqueue([cent / 100 for cent in cents])
        amounts[str(run.id)] = [cent * CENT for cent in cents]
    everything = sum(map(sum, amounts.values()))
    limit = (everything / 2).quantize(CENT)
    running = [start(limit) for _ in range(workers)]

    def kill_at(lines):
        wait_until(lambda: len(ledger.lines()) >= lines, timeout)
        victim = running.pop(chance.randrange(len(running)))
        victim.kill()
        running.append(start(limit))

    for kill in range(kills):
        kill_at((kill + 1) * runs // (kills + 1))
    wait_until(lambda: set(states(app)) <= {"waiting", "done"}, timeout, lambda: str(states(app)))
    found = states(app)
    total = app.budgets.total("usd", tenant="acme").spent
    spent = {run: units_of(app, run) for run in amounts}
    assert total == sum(spent.values())
    for run, amount in spent.items():
        assert amount in {sum(amounts[run][:count], Decimal(0)) for count in range(STEPS + 1)}, "twice, or in part"
    assert limit < total <= limit + sum(max(amounts[run]) for run in amounts if spent[run]), "more than one step each"
    assert found["waiting"] > runs // 4, f"the budget hasn't stopped the runs: {found}"

    before, began = len(ledger.lines()), time.monotonic()
    app.budgets.set("usd", float(everything), by="ada")
    wait_until(lambda: len(ledger.lines()) > before, timeout)
    resumed_after = time.monotonic() - began
    for kill in range(kills):
        kill_at(min(before + (kill + 1) * 5, len(ledger.lines()) + 5))
    wait_until(lambda: states(app) == {"done": runs}, timeout, lambda: str(states(app)))
    assert app.budgets.total("usd", tenant="acme").spent == everything
    assert {run: units_of(app, run) for run in amounts} == {run: sum(cents) for run, cents in amounts.items()}
    paid = {(run, int(number)) for run, number, _ in ledger.words()}
    assert paid == {(run, number) for run in amounts for number in range(STEPS)}
    return found, total - limit, resumed_after


def units_of(app, run):
    return app.get_run(run).spent().get("usd", Decimal(0))


def test_killed_workers_count_no_cent_twice_and_lose_none(app, start, ledger):
    *_, resumed_after = spend_with_kills(app, start, ledger, runs=24, workers=2, kills=2, timeout=60)
    assert resumed_after < 5


@pytest.mark.slow
def test_a_thousand_runs_account_to_the_cent_under_kills(app, start, ledger):
    found, beyond, resumed_after = spend_with_kills(app, start, ledger, runs=1000, workers=4, kills=12, timeout=300)
    assert taken_over(app) > 0, "no kill has interrupted a run"
    assert resumed_after < 1, f"{found} at the limit, {beyond} beyond it"
