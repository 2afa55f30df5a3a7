"""Workers of serving functions killed with -9: each ask is answered once and in order, and no value goes back."""

from __future__ import annotations

from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest

from tests.faults.conftest import APPS
from tests.support.asks import send_ask
from tests.support.wait_until import wait_until

TIMEOUT = 120


def ask_in_order(run, asks):
    """Ask one after the other: every second ask is sent without waiting, so that asks are pending too."""
    replies = {}
    for number in range(asks):
        key = f"k{number}"
        if number % 2:
            replies[key] = run.ask("add", key, key=key, timeout=TIMEOUT)
        else:
            send_ask(run, "add", key, key)
    return replies


def serve_with_kills(app, url, processes, ledger, *, functions, asks, kill_at, clients):
    """Ask functions, kill a worker when the first function is at each of these places, and check every answer."""

    def start():
        return processes.start(APPS / "asked.py", url, ledger.path)

    for place in kill_at:
        ledger.path.with_name(f"die-{place}").touch()
    runs = [app.remote("serving").enqueue(0) for _ in range(functions)]
    workers = [start(), start()]
    with ThreadPoolExecutor(clients) as pool, ThreadPoolExecutor(3) as watchers:
        watched = [watchers.submit(lambda run=run: list(run.watch("handled"))) for run in runs[:3]]
        asked = [pool.submit(ask_in_order, run, asks) for run in runs]
        try:
            replace_killed(workers, start, asked, len(kill_at))
            for run, each in zip(runs, asked, strict=True):
                check_answers(run, each.result(), asks)
        finally:
            for run in runs:
                run.cancel()  # ends the watchers if a check has failed
        for each in watched:
            values = each.result(timeout=TIMEOUT)
            assert values[-1] == asks
            assert all(before < after for before, after in pairwise(values)), "a value went back"
    check_ledger(runs, ledger, asks)
    repeated = len(ledger.lines()) - functions * asks
    assert repeated >= sum(place % 2 == 0 for place in kill_at), "no kill hit a function that handled an ask"


def replace_killed(workers, start, asked, kills):
    """Start a worker for each one that died, until as many died."""

    def has_failed():
        return any(each.done() and each.exception() for each in asked)

    killed = 0
    while killed < kills and not has_failed():
        wait_until(lambda: has_failed() or not all(worker.alive for worker in workers), TIMEOUT)
        for dead in [worker for worker in workers if not worker.alive]:
            workers.remove(dead)
            workers.append(start())
            killed += 1


def check_answers(run, replied, asks):
    """Check that asks have the replies that they had before, in the order in which they were sent; end the function."""
    keys = [f"k{number}" for number in range(asks)]
    again = {key: run.ask("add", key, key=key, timeout=TIMEOUT) for key in keys}
    assert again == {key: number + 1 for number, key in enumerate(keys)}, "lost, handled twice or out of order"
    assert again.items() >= replied.items(), "a reply has changed"
    assert run.ask("count", timeout=TIMEOUT) == run.get("handled") == asks
    assert run.ask("close", timeout=TIMEOUT) == asks
    assert run.result(timeout=TIMEOUT) == asks


def check_ledger(runs, ledger, asks):
    """Check that each ask took effect at its place, with one idempotency key however often its step was repeated."""
    effects = defaultdict(dict)
    for run, key, place, effect in ledger.words():
        assert effects[run].setdefault(key, (place, effect)) == (place, effect), f"{key} of {run} was handled twice"
    expected = {f"k{place}": str(place) for place in range(asks)}
    assert {run: {key: place for key, (place, _) in found.items()} for run, found in effects.items()} == {
        str(run.id): expected for run in runs
    }


def test_asks_survive_killed_workers(app, database_url, processes, ledger):
    serve_with_kills(app, database_url, processes, ledger, functions=5, asks=20, kill_at=(4, 9, 16), clients=5)


@pytest.mark.slow
def test_ten_thousand_asks_survive_twenty_kills(app, database_url, processes, ledger):
    serve_with_kills(
        app, database_url, processes, ledger, functions=100, asks=100, kill_at=range(3, 100, 5), clients=20
    )
