"""A claim delayed by an external lock doesn't keep its worker from ready work afterwards."""

from __future__ import annotations

import signal

import psycopg

from tests.support.wait_until import wait_until

LOCKED_S = 4
BLOCKED_CLAIM = f"""
select 1 from pg_stat_activity
where wait_event_type = 'Lock' and (query like '%candidates as materialized%' or query like '%isolated%')
and clock_timestamp() - query_start > interval '{LOCKED_S} seconds'
"""


def test_after_a_claim_that_was_blocked_an_idle_worker_starts_low_priorities_and_released_runs_at_once(
    postgres_url, connect, start_worker, ledger
):
    """Regression: for each second of a DBA's lock, the worker didn't scan the head of its lanes for nine seconds."""
    app = connect(postgres_url)
    holder = start_worker(postgres_url, lease=60, concurrency=1)
    held = app.remote("hold").enqueue()
    wait_until(lambda: any(words[0] == "began" for words in ledger.words()))
    idle = start_worker(postgres_url, lease=60, concurrency=100)
    assert app.remote("count").enqueue(1).result(timeout=30) == 1
    assert app.remote("hold").enqueue()  # behind the one that is handed back below
    wait_until(lambda: sum(words[0] == "began" for words in ledger.words()) == 2)
    with psycopg.connect(postgres_url) as dba, psycopg.connect(postgres_url, autocommit=True) as looking:
        dba.execute("select from holdfast.workers for update")
        slow = app.remote("count").enqueue(3)  # an idle worker claims only if it has seen a ready run
        wait_until(lambda: looking.execute(BLOCKED_CLAIM).fetchone(), 60)
    minor = app.remote("count").options(priority=-5).enqueue(2)
    wait_until(lambda: ["2", str(idle.pid)] in ledger.words(), LOCKED_S * 3)
    assert (minor.result(timeout=30), slow.result(timeout=30)) == (2, 3)
    holder.signal(signal.SIGTERM)
    assert holder.wait() == 0
    wait_until(lambda: [words[:2] for words in ledger.words()].count(["began", str(idle.pid)]) == 2, LOCKED_S * 3)
    for n in range(3):
        ledger.path.with_name(f"release{n}").touch()
    held.result(timeout=30)
