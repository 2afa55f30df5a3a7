"""Debounced calls of many processes, of which some are killed: nothing is lost, and the newest arguments run."""

from __future__ import annotations

import random
from collections import defaultdict

import msgspec
import pytest

from tests.faults.conftest import APPS
from tests.support.history_queries import fetch, states
from tests.support.ledger import Ledger
from tests.support.wait_until import wait_until


class Calls:
    """What the clients recorded about the calls of one key: number, time before the call, time of the reply."""

    def __init__(self) -> None:
        self.begun: dict[int, float] = {}
        self.acknowledged: dict[int, float] = {}

    def max_runs(self, delay: float) -> int:
        """Return how many runs there may be: one more than the pauses that may have been as long as the delay."""
        numbers = sorted(self.begun)
        ends = [self.acknowledged.get(number, float("inf")) for number in numbers]
        pairs = zip(numbers, ends[1:], strict=False)
        return 1 + sum(end - self.begun[number] >= delay for number, end in pairs)


def call_with_kills(app, processes, ledger, url, *, clients, keys, calls, kills, delay, timeout):
    """Let each client call its keys in turn; kill and restart clients and workers meanwhile."""

    def start(*arguments: object):
        return processes.start(APPS / "debounced.py", url, ledger.path, *arguments)

    def start_client(number: int):
        return start("call", number, keys, calls, delay)

    def made() -> int:
        return sum(len(Ledger(f"{ledger.path}.{number}").lines()) for number in range(clients)) // 2

    app.store.prepare()
    workers = [start("work"), start("work")]
    running = {number: start_client(number) for number in range(clients)}
    chance = random.Random(calls)
    for kill in range(kills):
        wait_until(lambda kill=kill: made() >= (kill + 1) * clients * calls // (kills + 1), timeout)
        victim = chance.randrange(clients)
        running[victim].kill()
        running[victim] = start_client(victim)
        workers[kill % 2].kill()
        workers[kill % 2] = start("work")
    for process in running.values():
        assert process.wait(timeout) == 0, process.log
    wait_until(lambda: set(states(app)) == {"done"}, timeout, lambda: str(states(app)))

    history: defaultdict[str, Calls] = defaultdict(Calls)
    for number in range(clients):
        for what, key, call, at in Ledger(f"{ledger.path}.{number}").words():
            times = history[key].begun if what == "calling" else history[key].acknowledged
            times[int(call)] = float(at)
    runs: defaultdict[str, list[int]] = defaultdict(list)
    for (args,) in fetch(app, "select args from {}runs order by seq"):
        runs[msgspec.json.decode(args)["key"]].append(msgspec.json.decode(args)["number"])
    assert len(history) == clients * keys
    assert {(key, int(call)) for _, key, call in ledger.words()} == {(key, n) for key in runs for n in runs[key]}
    for key, seen in history.items():
        assert runs[key][-1] >= max(seen.acknowledged), f"the newest call of {key} was lost: {runs[key]}, {seen.begun}"
        assert runs[key] == sorted(runs[key]), f"a run of {key} has older arguments than the one before: {runs[key]}"
        assert set(runs[key]) <= set(seen.begun)
        assert len(runs[key]) <= seen.max_runs(delay), f"{key} had runs {runs[key]} for {seen.begun}"
    return sum(map(len, runs.values()))


def test_debounced_calls_of_killed_clients_run_with_the_newest_arguments(app, processes, ledger, database_url):
    runs = call_with_kills(
        app, processes, ledger, database_url, clients=2, keys=5, calls=100, kills=1, delay=0.5, timeout=60
    )
    assert runs < 100


@pytest.mark.slow
def test_a_hundred_thousand_debounced_calls_of_a_thousand_keys(app, processes, ledger, database_url):
    runs = call_with_kills(
        app, processes, ledger, database_url, clients=8, keys=125, calls=12_500, kills=16, delay=5.0, timeout=1200
    )
    assert runs < 20_000
