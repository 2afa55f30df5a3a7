"""All workers die at once with hundreds of running runs, none of which is the cause."""

from __future__ import annotations

import time

from tests.support.history_queries import fetch
from tests.support.wait_until import wait_until

WORKERS = 4
RUNS = 400
LEASE_S = 2.0


def test_all_runs_are_running_again_soon_after_a_power_cut(app, database_url, start_worker, ledger, capsys):

    def start():
        started = [start_worker(database_url, wait=False, lease=LEASE_S, concurrency=RUNS // WORKERS) for _ in range(4)]
        for worker in started:
            worker.wait_for("worker started", timeout=60)
        return started

    def begun(workers):
        pids = {str(worker.pid) for worker in workers}
        return {words[0] for words in ledger.words() if words[1] in pids}

    app.remote("count").enqueue_many([(n, 3600.0) for n in range(RUNS)])
    first = start()
    wait_until(lambda: len(begun(first)) == RUNS, 60)
    for worker in first:
        worker.kill()
    cut_at = time.monotonic()
    second = start()
    started_at = time.monotonic()
    wait_until(lambda: len(begun(second)) == RUNS, 60)
    again_at = time.monotonic()
    assert all(worker.alive for worker in second)
    assert len(ledger.lines()) == 2 * RUNS, "each once by the first workers and once by the second"
    counted = "select count(*), sum(crashes), count(isolation) from {}runs where state = 'running' and held is null"
    assert fetch(app, counted) == [(RUNS, 0, 0)], "all at once, none charged, none isolated"
    with capsys.disabled():
        print(  # noqa: T201
            f"\n{RUNS} runs after a power cut, lease {LEASE_S:g} s: workers up after {started_at - cut_at:.1f} s, all"
            f" runs under way after {again_at - cut_at:.1f} s"
        )
