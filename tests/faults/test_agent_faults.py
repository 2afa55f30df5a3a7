"""Agents across worker processes that are killed: calls of models and tools, streams, a budget and a rate of tokens."""

from __future__ import annotations

import random
from collections import Counter
from decimal import Decimal
from typing import Any

import pytest

from tests.faults.conftest import APPS
from tests.support.agent_calls import final_chunks
from tests.support.grants import most_in_a_window, read_grants, record_grants
from tests.support.history_queries import fetch, states, taken_over
from tests.support.permits import in_use, recount
from tests.support.wait_until import wait_until

CALL, CALL_TOKENS = Decimal("0.02"), 15
"""What a model call costs, and the tokens that it takes."""
TOKENS_PER_S = 300
SECOND = 1_000_000
RUNS, WORKERS, KILLS = 24, 2, 4


async def buy() -> Any:
    """Declare a task of the worker processes."""
    raise NotImplementedError


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "model_calls", "tool_calls"),
    [("mcp", 4, 3), ("toolset", 4, 3), ("streamed", 5, 2)],
    ids=lambda it: str(it),
)
def test_killed_workers_repeat_only_calls_that_were_under_way(
    app, processes, ledger, database_url, kind, model_calls, tool_calls
):
    task = app.task(name="buy")(buy)
    record_grants(database_url)
    runs = {str(task.options(tenant="acme").enqueue().id) for _ in range(RUNS)}
    everything = RUNS * model_calls * CALL
    limit = everything / 2
    running = [start(processes, database_url, ledger, limit, kind) for _ in range(WORKERS)]
    chance = random.Random(RUNS)

    def kill_at(lines):
        wait_until(lambda: len(ledger.lines()) >= lines, 120)
        victim = running.pop(chance.randrange(len(running)))
        victim.kill()
        running.append(start(processes, database_url, ledger, limit, kind))

    calls = RUNS * (model_calls + tool_calls)
    for kill in range(KILLS // 2):
        kill_at((kill + 1) * calls // (2 * KILLS))
    wait_until(lambda: wait_for_budget(app), 120, lambda: str(states(app)))
    total = app.budgets.total("usd", tenant="acme").spent
    assert limit < total <= limit + RUNS * CALL, "each run exceeds the budget by one call at most"
    assert states(app)["waiting"] > 0, "the budget has stopped no run"

    begun = len(ledger.lines())
    app.budgets.set("usd", float(everything), by="ada")
    for kill in range(KILLS // 2):
        kill_at(begun + (kill + 1) * (calls - begun) // KILLS)
    wait_until(lambda: states(app) == {"done": RUNS}, 120, lambda: str(states(app)))

    assert app.budgets.total("usd", tenant="acme").spent == everything
    assert {run: app.get_run(run).spent()["usd"] for run in runs} == dict.fromkeys(runs, model_calls * CALL)
    made = Counter(tuple(words) for words in ledger.words())
    distinct = Counter((name, run) for name, run, _ in made)
    assert distinct == {("model", run): model_calls for run in runs} | {("tool", run): tool_calls for run in runs}, (
        "a call was repeated after it was recorded, or with another key"
    )
    lost = "select cast(run as text), count(*) from {}history where kind in ('crashed', 'worker_lost') group by run"
    interruptions = dict(fetch(app, lost))
    for run in runs:
        repeated = sum(count - 1 for call, count in made.items() if call[1] == run)
        assert repeated <= interruptions.get(run, 0), f"run {run}: a call was repeated that no kill has interrupted"
    assert taken_over(app) > 0, "no kill has interrupted a run"
    check_results(app, runs, kind)
    check_rate(app, made)


def start(processes, url, ledger, limit, kind):
    return processes.start(APPS / "buying_agents.py", url, ledger.path, str(limit), kind, "--lease", "1")


def wait_for_budget(app):
    """Return whether all runs that aren't done wait for the budget, and none for the rate."""
    found = states(app)
    return found.keys() <= {"waiting", "done"} and found["waiting"] == app.budgets.total("usd", tenant="acme").waiting


def check_results(app, runs, kind):
    results = [app.get_run(run).result(timeout=0) for run in runs]
    if kind != "streamed":
        assert results == ["paid all"] * RUNS
        return
    output, events = results[0]
    assert output == "paid all, buy rope"
    assert events.count("tool_output") == 3
    assert results == [[output, events]] * RUNS, "the functions got the same events, whatever crashed"
    for run in runs:
        assert final_chunks(app.get_run(run)) == ["buy", " rope", "paid", " all", ", buy rope"]


def check_rate(app, made):
    grants = read_grants(app)
    assert most_in_a_window(((grant.at, CALL_TOKENS) for grant in grants), SECOND) <= TOKENS_PER_S
    granted = Counter(grant.run for grant in grants)
    called = Counter(run for (name, run, _), count in made.items() for _ in range(count) if name == "model")
    assert called - granted == Counter(), "a model was called without a permit"
    assert in_use(app.store) == recount(app.store) == {}
