"""Agents across worker processes that are killed: MCP calls, a budget and a rate of model calls."""

from __future__ import annotations

import random
from collections import Counter
from decimal import Decimal

import pytest

from tests.faults.conftest import APPS
from tests.support.history_queries import fetch, states, taken_over
from tests.support.permits import in_use, recount
from tests.support.wait_until import wait_until

CALL = Decimal("0.02")
"""What a model call costs."""
MODEL_CALLS, TOOL_CALLS = 4, 3
RUNS, WORKERS, KILLS = 24, 2, 4


async def buy() -> str:
    """Declare a task of the worker processes."""
    raise NotImplementedError


@pytest.mark.slow
def test_killed_workers_repeat_only_calls_that_were_under_way(app, processes, ledger, database_url):
    task = app.task(name="buy")(buy)
    runs = {str(task.options(tenant="acme").enqueue().id) for _ in range(RUNS)}
    everything = RUNS * MODEL_CALLS * CALL
    limit = everything / 2
    running = [start(processes, database_url, ledger, limit) for _ in range(WORKERS)]
    chance = random.Random(RUNS)

    def kill_at(lines):
        wait_until(lambda: len(ledger.lines()) >= lines, 120)
        victim = running.pop(chance.randrange(len(running)))
        victim.kill()
        running.append(start(processes, database_url, ledger, limit))

    calls = RUNS * (MODEL_CALLS + TOOL_CALLS)
    for kill in range(KILLS // 2):
        kill_at((kill + 1) * calls // (2 * KILLS))
    wait_until(lambda: set(states(app)) <= {"waiting", "done"}, 120, lambda: str(states(app)))
    total = app.budgets.total("usd", tenant="acme").spent
    assert limit < total <= limit + RUNS * CALL, "each run exceeds the budget by one call at most"
    assert states(app)["waiting"] > 0, "the budget has stopped no run"

    begun = len(ledger.lines())
    app.budgets.set("usd", float(everything), by="ada")
    for kill in range(KILLS // 2):
        kill_at(begun + (kill + 1) * (calls - begun) // KILLS)
    wait_until(lambda: states(app) == {"done": RUNS}, 120, lambda: str(states(app)))

    assert app.budgets.total("usd", tenant="acme").spent == everything
    assert {run: app.get_run(run).spent()["usd"] for run in runs} == dict.fromkeys(runs, MODEL_CALLS * CALL)
    made = Counter(tuple(words[:3]) for words in ledger.words())
    distinct = Counter((kind, run) for kind, run, _ in made)
    assert distinct == {**{("model", run): MODEL_CALLS for run in runs}, **{("pay", run): TOOL_CALLS for run in runs}}
    lost = "select cast(run as text), count(*) from {}history where kind in ('crashed', 'worker_lost') group by run"
    interruptions = dict(fetch(app, lost))
    for run in runs:
        repeated = sum(count - 1 for call, count in made.items() if call[1] == run)
        assert repeated <= interruptions.get(run, 0), f"run {run}: a call was repeated that no kill has interrupted"
    assert taken_over(app) > 0, "no kill has interrupted a run"
    assert in_use(app.store) == recount(app.store) == {}


def start(processes, url, ledger, limit):
    return processes.start(APPS / "buying_agents.py", url, ledger.path, str(limit), "--lease", "1")
