"""Start without a database, and stop requests during the start."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import threading
from pathlib import Path

import pytest

from holdfast.database.faults import AccessDenied
from holdfast.engine import startup
from holdfast.engine.startup import MAX_PAUSE_S, StartAborted, pause_after, retry_until_available
from holdfast.errors import StoreUnavailable
from tests.faults.conftest import APPS
from tests.support.wait_until import wait_until

ROOT = Path(__file__).resolve().parents[2]
NOWHERE = "postgresql://nobody@127.0.0.1:1/nothing"


@pytest.fixture
def start(processes, ledger):
    """Start `holdfast worker` for an app with this database."""

    def start(url, *options, hook=""):
        env = {"HOLDFAST_URL": url, "LEDGER": str(ledger.path), "PYTHONPATH": str(ROOT), "HOOK": hook}
        return processes.start("-m", "holdfast.cli", "worker", "--app", "starts:app", *options, cwd=APPS, env=env)

    return start


# Without a database


def test_a_worker_started_before_its_database_waits_and_logs_it(durable_server, connect, start):
    url = durable_server.create_database()
    durable_server.stop()
    worker = start(url)
    worker.wait_for("worker is waiting for its database", 60)
    worker.wait_for("attempts=2 retry_in=", 60)
    assert worker.alive
    durable_server.start()
    worker.wait_for("worker started", 60)
    assert "database available" in worker.log
    assert connect(url).remote("double").enqueue(21).result(timeout=30) == 42
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert "Traceback" not in worker.log


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "Ctrl-C"])
def test_a_worker_that_waits_for_its_database_stops_on_a_signal(start, number):
    worker = start(NOWHERE)
    worker.wait_for("attempts=2", 60)
    worker.signal(number)
    assert worker.wait(timeout=10) == 0
    assert "worker stopped before it had started" in worker.log
    assert "Traceback" not in worker.log


def test_a_worker_stops_on_a_signal_while_a_connection_hangs(start):
    """The server accepts the connection and never replies."""
    with socket.create_server(("127.0.0.1", 0), backlog=1) as silent:
        silent.settimeout(60)
        worker = start(f"postgresql://nobody@127.0.0.1:{silent.getsockname()[1]}/nothing?connect_timeout=600")
        taken, _ = silent.accept()
        with taken:
            worker.signal(signal.SIGTERM)
            assert worker.wait(timeout=10) == 0, worker.log


def test_with_fail_fast_a_worker_without_a_database_ends_at_once(start):
    worker = start(NOWHERE, "--fail-fast")
    assert worker.wait(60) == 2
    assert "cannot connect to" in worker.log
    assert "waiting" not in worker.log


@pytest.mark.parametrize(
    ("right", "wrong"), [("/holdfast_\\w+", "/no_such_database"), ("user=postgres", "user=nobody_here")]
)
def test_a_server_that_rejects_the_login_is_not_retried(start, postgres_url, right, wrong):
    url = re.sub(right, wrong, postgres_url, count=1)
    assert url != postgres_url
    assert_refused_in_one_line(start(url))


def test_a_path_that_is_not_a_file_is_not_retried(start, tmp_path):
    (tmp_path / "jobs.db").mkdir()
    assert_refused_in_one_line(start(f"sqlite:///{tmp_path / 'jobs.db'}"))


def assert_refused_in_one_line(worker):
    assert worker.wait(60) == 2
    assert len(worker.log.strip().splitlines()) == 1, worker.log


def test_a_supervisor_whose_workers_wait_does_not_give_up(durable_server, start):
    url = durable_server.create_database()
    durable_server.stop()
    supervisor = start(url, "--processes", "2")
    wait_until(lambda: supervisor.log.count("attempts=3") == 2, 60, lambda: supervisor.log)
    assert supervisor.alive
    durable_server.start()
    wait_until(lambda: supervisor.log.count("worker started") == 2, 60, lambda: supervisor.log)
    assert "worker process restarted" not in supervisor.log
    os.killpg(supervisor.pid, signal.SIGINT)
    assert supervisor.wait() == 0


def test_a_supervisor_stops_while_its_workers_wait(start):
    supervisor = start(NOWHERE, "--processes", "2")
    wait_until(lambda: supervisor.log.count("attempts=1") == 2, 60, lambda: supervisor.log)
    supervisor.signal(signal.SIGTERM)
    assert supervisor.wait(timeout=10) == 0
    assert "killed" not in supervisor.log


def test_a_supervisor_with_fail_fast_gives_up(start):
    supervisor = start(NOWHERE, "--processes", "2", "--fail-fast")
    assert supervisor.wait(60) == 2
    assert "supervisor gave up" in supervisor.log


def test_an_embedded_worker_raises_at_once_unless_wait_is_set(app, monkeypatch):
    tries = []

    def refuse_twice(*_):
        tries.append(1)
        if len(tries) < 3:
            raise StoreUnavailable("gone")

    monkeypatch.setattr(app.store, "prepare", refuse_twice)
    monkeypatch.setattr(startup, "FIRST_PAUSE_S", 0.01)
    with pytest.raises(StoreUnavailable):
        app.worker().drain()
    assert len(tries) == 1
    tries.clear()
    app.worker(wait_for_database=True).drain(timeout=60)
    assert len(tries) == 3


def test_a_worker_waits_for_a_database_lost_during_start_hooks(app, monkeypatch):
    opened = []
    open_session = app.store.sessions.open

    def refuse_once(*given):
        opened.append(1)
        if len(opened) == 1:
            raise StoreUnavailable("gone")
        open_session(*given)

    monkeypatch.setattr(app.store.sessions, "open", refuse_once)
    monkeypatch.setattr(startup, "FIRST_PAUSE_S", 0.01)
    app.worker(wait_for_database=True).drain(timeout=60)
    assert len(opened) == 2


def test_pauses_grow_to_a_bound():
    assert [pause_after(tries, 0.0) for tries in (1, 2, 3, 4, 5, 6, 99)] == [1, 2, 4, 8, MAX_PAUSE_S] + [
        MAX_PAUSE_S
    ] * 2
    assert pause_after(1, 1.0) == 0.75


def test_rejected_logins_are_not_retried():
    def refuse():
        raise AccessDenied("wrong password")

    with pytest.raises(AccessDenied):
        retry_until_available(refuse, lambda: False)


# Stop requests during the start


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "Ctrl-C"])
@pytest.mark.parametrize("hook", ["in_thread", "on_loop", "blocks_the_loop"])
def test_a_signal_during_a_long_start_hook_ends_the_worker_at_once(start, sqlite_url, ledger, hook, number):
    worker = start(sqlite_url, hook=hook)
    wait_until(lambda: "starting" in ledger.lines(), 60, lambda: worker.log)
    worker.signal(number)
    assert worker.wait(timeout=15) == 0, worker.log
    assert "Traceback" not in worker.log
    assert ("interrupted" in ledger.lines()) == (hook == "on_loop")
    if hook != "blocks_the_loop":  # its connection can't be closed then
        assert ledger.lines()[-2:] == ["closed too", "closed"]


def test_a_supervised_worker_stops_during_a_long_start_hook(start, sqlite_url, ledger):
    supervisor = start(sqlite_url, "--processes", "1", hook="in_thread")
    wait_until(lambda: "starting" in ledger.lines(), 60, lambda: supervisor.log)
    supervisor.signal(signal.SIGTERM)
    assert supervisor.wait(timeout=15) == 0
    assert "killed" not in supervisor.log
    assert ledger.lines()[-2:] == ["closed too", "closed"]


async def test_an_async_worker_can_be_stopped_during_its_start(app, ledger):
    @app.on_start
    def opened():
        yield
        ledger.write("closed")

    @app.on_start
    async def long():
        ledger.write("starting")
        await asyncio.sleep(600)

    worker = app.worker()
    running = asyncio.ensure_future(worker.arun())
    while "starting" not in ledger.lines():
        await asyncio.sleep(0.01)
    worker.stop()
    await asyncio.wait_for(running, 30)
    assert ledger.lines() == ["starting", "closed"]
    assert app.store.sessions.list_live() == []


async def test_an_async_worker_that_waits_for_its_database_can_be_cancelled(app, monkeypatch):
    tried = threading.Event()

    def refuse():
        tried.set()
        raise StoreUnavailable("gone")

    monkeypatch.setattr(app.store, "prepare", refuse)
    before = threading.active_count()
    entering = asyncio.ensure_future(app.worker(wait_for_database=True).__aenter__())
    while not tried.is_set():
        await asyncio.sleep(0.01)
    entering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await entering
    while threading.active_count() > before:
        await asyncio.sleep(0.01)


def test_a_stop_request_aborts_a_waiting_start():
    def refuse():
        raise StoreUnavailable("gone")

    with pytest.raises(StartAborted):
        retry_until_available(refuse, lambda: True)
