"""PostgreSQL killed with -9 under the workers, again and again, and in the middle of a recovery."""

from __future__ import annotations

import threading

import psycopg
import pytest

from holdfast.errors import StoreUnavailable
from tests.support.history_queries import ended_once, fetch, records, states
from tests.support.wait_until import wait_until


def when_up(call):
    """Return the rows of a query, or none while the server is down."""
    try:
        return call()
    except StoreUnavailable:
        return None


def drain_with_crashes(server, connect, start_worker, ledger, *, jobs, crashes, timeout):
    url = server.create_database()
    app = connect(url)
    app.remote("count").enqueue_many([(n, 0.02) for n in range(jobs)])
    workers = [start_worker(url, lease=3) for _ in range(2)]
    for crash in range(crashes):
        wait_until(lambda crash=crash: len(ledger.lines()) >= (crash + 1) * jobs // (crashes + 2), timeout)
        assert when_up(lambda: states(app))["done"] < jobs, "all runs ended before the server crashed"
        server.kill()
        assert not server.running
        server.start()
    wait_until(lambda: when_up(lambda: states(app)) == {"done": jobs}, timeout)
    assert all(worker.alive for worker in workers)
    assert {words[0] for words in ledger.words()} == {str(n) for n in range(jobs)}
    assert ended_once(app)
    assert fetch(app, "select count(*) from {}runs where session is not null") == [(0,)]
    assert len(ledger.lines()) - jobs <= crashes * 2 * 10
    assert all("Traceback" not in worker.log for worker in workers)


def test_a_drain_survives_crashes_of_the_server(durable_server, connect, start_worker, ledger):
    drain_with_crashes(durable_server, connect, start_worker, ledger, jobs=600, crashes=3, timeout=120)


@pytest.mark.slow
def test_a_drain_survives_ten_crashes_of_the_server(durable_server, connect, start_worker, ledger):
    drain_with_crashes(durable_server, connect, start_worker, ledger, jobs=4000, crashes=10, timeout=300)


def test_drain_itself_survives_a_crash_of_the_server(durable_server, connect, ledger):
    app = connect(durable_server.create_database())

    @app.task(name="note")
    async def note(n: int) -> None:
        ledger.write(n)

    note.enqueue_many([(n,) for n in range(2000)])
    note.enqueue(1)
    ended = []
    thread = threading.Thread(target=lambda: ended.append(app.worker(lease=3, concurrency=4).drain(timeout=100)))
    thread.start()
    wait_until(lambda: len(ledger.lines()) > 100)
    durable_server.kill()
    assert thread.is_alive()
    durable_server.start()
    thread.join(120)
    assert ended
    assert states(app) == {"done": 2001}


def test_dead_sessions_own_no_runs_after_a_server_crash_during_recovery(durable_server, connect, start_worker, ledger):
    """Recovery skips rows that the test has locked, so it is half done when the server dies."""
    url = durable_server.create_database()
    app = connect(url)
    app.remote("count").enqueue_many([(n, 600.0) for n in range(800)])
    dead = start_worker(url, lease=2, concurrency=1000)
    wait_until(lambda: len(ledger.lines()) == 800, 60)
    dead.kill()
    holder = psycopg.connect(url)
    locked = holder.execute("select id from holdfast.runs order by seq limit 300 for update").fetchall()
    assert len(locked) == 300
    peer = start_worker(url, lease=2, concurrency=1)
    wait_until(lambda: when_up(lambda: records(app))["worker_lost"] == 500)
    assert states(app)["running"] >= 300
    durable_server.kill()
    holder.close()
    durable_server.start()
    wait_until(lambda: (when_up(lambda: records(app)) or {"worker_lost": 0})["worker_lost"] >= 800, 60)
    assert fetch(app, f"select count(*) from {{}}runs where session like '%:{dead.pid}:%'") == [(0,)]
    assert peer.alive
    # each can be claimed again
    app.store.sessions.open("test", "test", 60_000_000, "{}")
    claimed = sum(len(app.store.claims.claim("test", app.store.lanes.refresh(), 512)) for _ in range(3))
    assert claimed >= 790
