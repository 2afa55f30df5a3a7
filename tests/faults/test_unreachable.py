"""A database that doesn't answer, because packets are dropped, and listeners that die silently."""

from __future__ import annotations

import os
import signal
import time

import psycopg
import pytest

from holdfast import Holdfast
from holdfast.testing.server import PostgresServer
from tests.support.blackhole import BlackHole
from tests.support.wait_until import wait_until

LEASE = 2.0
OUTAGE_S = 6.0
CONNECTIONS = 6  # connections and listener of a worker, which retry independently


@pytest.fixture(scope="module")
def server():
    with PostgresServer(port=0, fsync=False) as server:
        yield server


@pytest.fixture
def proxy(server):
    black_hole = BlackHole(server.port)
    yield black_hole
    black_hole.close()


def times(ledger, what):
    return [float(words[2]) for words in ledger.words() if words[0] == what]


def test_a_disconnected_worker_stops_its_runs_before_the_lease_expires_and_reconnects(
    server, proxy, connect, start_worker, ledger
):
    url = server.create_database()
    app = connect(url)
    worker = start_worker(url.replace(f"port={server.port}", f"port={proxy.port}"), lease=LEASE)
    wait_until(lambda: len(proxy.accepted) >= 4, what="connections through the proxy")
    run = app.remote("hold").enqueue()
    wait_until(lambda: times(ledger, "began"))
    proxy.block()
    cut_at = time.monotonic()
    wait_until(lambda: times(ledger, "cancelled"))
    [(_, _, _, lease_until, _)] = app.store.sessions.list_live()
    assert times(ledger, "cancelled")[0] < lease_until / 1e6, "it still ran when its lease had expired"
    wait_until(lambda: time.monotonic() > cut_at + OUTAGE_S)
    tries = [at for at in proxy.accepted if at > cut_at]
    assert 1 <= len(tries) <= CONNECTIONS * (OUTAGE_S + 1)
    assert worker.alive
    assert app.store.sessions.list_live() == []
    ledger.path.with_name("release1").touch()
    proxy.unblock()
    assert run.result(timeout=60) == 1
    kinds = [entry.kind for entry in run.history()]
    # "crashed" if the machine was so busy that the worker's threads seemed frozen: then it excuses no session.
    assert kinds in (["enqueued", "started", lost, "started", "done"] for lost in ("worker_lost", "crashed"))
    assert len(times(ledger, "began")) == 2
    assert "Traceback" not in worker.log
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0


def test_no_connection_is_retried_more_than_once_a_second(server, proxy, start_worker):
    """A refused connection fails at once, so only the worker's own pauses limit the rate."""
    url = server.create_database()
    worker = start_worker(url.replace(f"port={server.port}", f"port={proxy.port}"), lease=LEASE)
    proxy._target = 1  # nobody listens there: the connection is closed at once
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where application_name like 'holdfast %'"
        )
    before = len(proxy.accepted)
    began = time.monotonic()
    wait_until(lambda: time.monotonic() > began + 5)
    seconds = time.monotonic() - began
    tries = len(proxy.accepted) - before
    assert worker.alive
    assert 3 <= tries <= CONNECTIONS * (seconds + 2)


def listeners(url):
    with psycopg.connect(url) as connection:
        rows = connection.execute(
            "select pid from pg_stat_activity"
            " where datname = current_database() and application_name = 'holdfast heartbeat'"
        ).fetchall()
    return {pid for (pid,) in rows}


@pytest.mark.parametrize("how", ["frozen", "ended"])
def test_polling_finds_work_while_the_listener_is_dead_and_the_listener_reconnects(
    server, ledger, monkeypatch, connect, how
):
    """The server process of the listener's connection is stopped, so neither notifications nor errors arrive.

    It is the heartbeat's connection, whose calls are aborted.
    """
    url = server.create_database()
    heard = []
    with Holdfast(url) as app:

        @app.task(name="note")
        async def note(n: int) -> None:
            ledger.write(n)

        worker = app.worker(lease=LEASE)
        real = worker._components.listener._on_commit
        monkeypatch.setattr(worker._components.listener, "_on_commit", lambda: (heard.append(1), real()))
        other = connect(url).remote("note")
        with worker:
            [victim] = wait_until(lambda: listeners(url))
            other.enqueue(0)
            wait_until(lambda: ledger.lines() == ["0"])
            os.kill(victim, signal.SIGSTOP if how == "frozen" else signal.SIGTERM)
            try:
                for n in range(1, 4):
                    other.enqueue(n).result(timeout=30)
                wait_until(lambda: listeners(url) - {victim})
            finally:
                if how == "frozen":
                    os.kill(victim, signal.SIGCONT)
            wait_until(lambda: listeners(url) and victim not in listeners(url))
            count = len(heard)
            other.enqueue(9)
            wait_until(lambda: "9" in ledger.lines())
            wait_until(lambda: len(heard) > count, what="a notification after the listener came back")
    assert ledger.counts() == {str(n): 1 for n in (0, 1, 2, 3, 9)}
