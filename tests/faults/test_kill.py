"""Worker processes killed with -9: no job is lost, none ends twice, and only running jobs are repeated."""

from __future__ import annotations

import random

import pytest

from tests.support.history_queries import ended_once, records, states, taken_over
from tests.support.wait_until import wait_until

WORKERS = 4
CONCURRENCY = 10


def drain_with_kills(app, url, start_worker, ledger, *, jobs, kills, seconds, timeout):
    """Run jobs; replace a killed worker each time a share of them has started."""
    remote = app.remote("count")
    for at in range(0, jobs, 1000):
        remote.enqueue_many([(n, seconds) for n in range(at, min(at + 1000, jobs))])
    workers = [start_worker(url, wait=False, concurrency=CONCURRENCY) for _ in range(WORKERS)]
    chance = random.Random(jobs)
    for kill in range(kills):
        begun = (kill + 1) * jobs // (kills + 2)
        wait_until(lambda begun=begun: len(ledger.lines()) >= begun, timeout)
        busy = [worker for worker in workers if f" {worker.pid}" in "\n".join(ledger.lines()[-200:])]
        victim = chance.choice(busy)
        assert victim.alive
        victim.kill()
        workers.remove(victim)
        workers.append(start_worker(url, wait=False, concurrency=CONCURRENCY))
    wait_until(lambda: states(app) == {"done": jobs}, timeout)
    return workers


def check(app, ledger, *, jobs, kills):
    ran = [words[0] for words in ledger.words()]
    extra = len(ran) - jobs
    assert set(ran) == {str(n) for n in range(jobs)}, "lost"
    assert ended_once(app)
    assert records(app)["done"] == jobs
    most = kills * 2 * CONCURRENCY  # the running jobs, and as many ends that were not committed
    assert 1 <= extra <= most, "either no kill hit a running job, or finished work was repeated"
    assert extra <= taken_over(app) <= most
    return extra


def test_jobs_survive_workers_killed_at_random(app, database_url, start_worker, ledger):
    drain_with_kills(app, database_url, start_worker, ledger, jobs=600, kills=5, seconds=0.05, timeout=120)
    check(app, ledger, jobs=600, kills=5)


@pytest.mark.slow
def test_twenty_thousand_jobs_survive_twenty_kills(app, database_url, start_worker, ledger, capsys):
    drain_with_kills(app, database_url, start_worker, ledger, jobs=20_000, kills=20, seconds=0.02, timeout=600)
    extra = check(app, ledger, jobs=20_000, kills=20)
    with capsys.disabled():
        crashed = taken_over(app)
        print(f"\n20,000 jobs, 20 kills, {WORKERS} workers: {extra} executions repeated, {crashed} taken over, 0 lost")  # noqa: T201
