"""Callers that wait for a result are notified of completions in other processes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from holdfast import Holdfast, ResultTimeout, RunCancelled
from holdfast.client import completion_listener, results
from holdfast.client.results import CompletionListener, ResultWaiter
from holdfast.database.postgres import PostgresConnection
from holdfast.errors import StoreUnavailable
from holdfast.testing import Kit
from tests.support.history_queries import fetch
from tests.support.wait_until import wait_until

THREADS_BEFORE: list[threading.Thread] = []
FOREVER = 120
"""A timeout in seconds that no test reaches."""
CANCEL = "import sys; from holdfast import Holdfast; Holdfast(sys.argv[1]).get_run(sys.argv[2]).cancel()"


@pytest.fixture
def no_polling(monkeypatch):
    """Disable polling after the first poll, so that only notifications cause another."""
    for name in ("FIRST_POLL_INTERVAL_S", "MAX_POLL_INTERVAL_S", "MAX_POLL_INTERVAL_LISTENING_S"):
        monkeypatch.setattr(results, name, 3600.0)


@pytest.fixture
def notified(monkeypatch):
    """Return the waiters that polled after a notification, one entry per notification."""
    calls: list[ResultWaiter] = []
    real = ResultWaiter.on_completion

    def record_call(self: ResultWaiter) -> None:
        real(self)
        calls.append(self)

    monkeypatch.setattr(ResultWaiter, "on_completion", record_call)
    return calls


@pytest.fixture
def work(app):
    @app.task(name="work")
    async def work(x: int) -> int:
        return 2 * x

    return work


@pytest.fixture
def other(make_app, work):
    """Return an app with the same tasks, as another process has it."""
    other = make_app()
    other.task(name="work")(work.fn)
    return other


@pytest.fixture
def threads():
    with ThreadPoolExecutor(20) as threads:
        yield threads


@pytest.fixture(autouse=True)
def before():
    """Remember threads of earlier tests that didn't close their apps."""
    THREADS_BEFORE[:] = threading.enumerate()


def waiter_of(app: Holdfast) -> ResultWaiter:
    return app._client.results.waiter


def listener_of(app: Holdfast) -> CompletionListener:
    return waiter_of(app)._listener


def listening_threads() -> list[threading.Thread]:
    return [
        thread
        for thread in threading.enumerate()
        if thread.name == "holdfast-completions" and thread not in THREADS_BEFORE
    ]


def connections(app: Holdfast) -> int:
    """Count the PostgreSQL connections that listen for completions."""
    if app.url.startswith("sqlite"):
        return 0
    count = "select count(*) from pg_stat_activity where datname = current_database()"
    return fetch(app, f"{count} and application_name = 'holdfast ends'")[0][0]


def rows(app: Holdfast) -> int:
    return fetch(app, "select count(*) from {}watchers")[0][0]


def is_postgres(app: Holdfast) -> int:
    return int(app.url.startswith("postgres"))


def test_a_waiting_thread_is_notified(app, work, other, no_polling, notified, threads):
    run = work.enqueue(2)
    result = threads.submit(run.result, FOREVER)
    wait_until(lambda: waiter_of(app) in notified)
    other.worker().drain(60)
    assert result.result(60) == 4


async def test_a_waiting_coroutine_is_notified(app, work, other, no_polling, notified):
    runs = await work.aenqueue_many([(1,), (2,)])
    results = asyncio.gather(*(run.aresult(FOREVER) for run in runs))
    await asyncio.to_thread(wait_until, lambda: waiter_of(app) in notified)
    await other.worker().adrain(60)
    assert await asyncio.wait_for(results, 60) == [2, 4]


@pytest.mark.parametrize("awaited", [False, True])
def test_an_end_in_another_process_notifies_the_client(app, work, database_url, no_polling, notified, threads, awaited):
    run = work.enqueue(2)
    result = threads.submit((lambda: asyncio.run(run.aresult(FOREVER))) if awaited else lambda: run.result(FOREVER))
    wait_until(lambda: waiter_of(app) in notified)
    subprocess.run([sys.executable, "-c", CANCEL, database_url, str(run.id)], check=True, timeout=60)
    with pytest.raises(RunCancelled):
        result.result(60)


@pytest.mark.parametrize("awaited", [False, True])
def test_an_end_before_the_listener_registers_is_found_by_its_first_poll(
    app, work, other, no_polling, threads, monkeypatch, awaited
):
    """The client has already polled the run once, when it was unfinished."""
    run, real = work.enqueue(2), CompletionListener.request

    def want(self, seconds: float, record_call: Callable[[], None]) -> None:
        threading.Thread(target=lambda: other.get_run(run.id).cancel()).start()
        wait_until(lambda: fetch(other, "select 1 from {}runs where state = 'cancelled'"))
        real(self, seconds, record_call)

    monkeypatch.setattr(CompletionListener, "request", want)
    with pytest.raises(RunCancelled):
        result = threads.submit((lambda: asyncio.run(run.aresult(FOREVER))) if awaited else lambda: run.result(FOREVER))
        result.result(60)


def test_all_waiters_share_one_listener(app, work, other, no_polling, notified, threads):
    runs = work.enqueue_many([(n,) for n in range(12)])

    async def wait_for_two(n: int) -> list[int]:
        return await asyncio.gather(runs[n].aresult(FOREVER), runs[n + 1].aresult(FOREVER))

    futures = [threads.submit(run.result, FOREVER) for run in runs[:6]]
    futures += [threads.submit(asyncio.run, wait_for_two(n)) for n in (6, 8, 10)]
    wait_until(
        lambda: waiter_of(app) in notified and (len(waiter_of(app)._pollers), len(waiter_of(app).callers)) == (3, 6)
    )
    assert len(listening_threads()) == 1
    assert (connections(app), rows(app)) == (is_postgres(app),) * 2
    other.worker().drain(60)
    assert [result.result(60) for result in futures] == [0, 2, 4, 6, 8, 10, [12, 14], [16, 18], [20, 22]]


def test_only_threads_whose_runs_ended_are_woken(app, work, other, no_polling, notified, threads, monkeypatch):
    woken = []
    real = results.WaitingThread.wake
    monkeypatch.setattr(results.WaitingThread, "wake", lambda self: (woken.append(self.id), real(self)))
    runs = work.enqueue_many([(1,), (2,)])
    futures = [threads.submit(run.result, FOREVER) for run in runs]
    wait_until(lambda: waiter_of(app) in notified and len(waiter_of(app).callers) == 2)
    other.get_run(runs[1].id).cancel()
    with pytest.raises(RunCancelled):
        futures[1].result(60)
    assert set(woken) == {str(runs[1].id)}
    other.get_run(runs[0].id).cancel()
    with pytest.raises(RunCancelled):
        futures[0].result(60)


def test_each_app_has_its_own_listener(app, work, other, make_app, no_polling, notified, threads):
    run = work.enqueue(2)
    apps = [app, make_app()]
    futures = [threads.submit(each.get_run(run.id).result, FOREVER) for each in apps]
    wait_until(lambda: {waiter_of(each) for each in apps} <= set(notified))
    assert len(listening_threads()) == 2
    other.worker().drain(60)
    assert [result.result(60) for result in futures] == [4, 4]


def test_the_listener_stops_without_waiters_and_starts_again_on_demand(app, work, other, no_polling, notified, threads):
    for n in range(2):
        notified.clear()
        run = work.enqueue(n)
        result = threads.submit(run.result, FOREVER)
        wait_until(lambda: waiter_of(app) in notified)
        assert rows(app) == is_postgres(app)
        other.worker().drain(60)
        assert result.result(60) == 2 * n
        assert listener_of(app).is_listening, "it lingers"
        listener_of(app)._wanted_until = 0.0  # and now that is over
        wait_until(lambda: not listening_threads())
        assert rows(app) == 0
        wait_until(lambda: connections(app) == 0)
        assert not listener_of(app).is_listening


def test_a_short_wait_starts_no_listener(app, work, monkeypatch):
    started = []
    monkeypatch.setattr(completion_listener.CompletionListenerLoop, "start", lambda self: started.append(self))
    monkeypatch.setattr(results, "LISTEN_FROM_S", 0.2)
    with pytest.raises(ResultTimeout):
        work.enqueue(1).result(0.1)
    assert not started
    monkeypatch.setattr(results, "LISTEN_FROM_S", 0.0)
    with pytest.raises(ResultTimeout):
        work.enqueue(1).result(0.1)
    assert len(started) == 1


def test_closing_the_app_stops_the_listener_and_waiters_continue(app, work, other, no_polling, notified, threads):
    run = work.enqueue(2)
    result = threads.submit(run.result, FOREVER)
    wait_until(lambda: waiter_of(app) in notified)
    app.close()
    assert not listening_threads()
    assert rows(other) == 0
    wait_until(lambda: connections(other) == 0)
    notified.clear()
    second = threads.submit(run.result, FOREVER)
    wait_until(lambda: waiter_of(app) in notified)
    other.worker().drain(60)
    assert (result.result(60), second.result(60)) == (4, 4)


async def test_aclose_stops_the_listener(app, work, no_polling, notified):
    run = await work.aenqueue(2)
    result = asyncio.ensure_future(run.aresult(FOREVER))
    await asyncio.to_thread(wait_until, lambda: waiter_of(app) in notified)
    result.cancel()  # who goes on waiting would want a listener again
    await asyncio.wait([result])
    assert listening_threads(), "it lingers"
    await app.aclose()
    assert not listening_threads()


def test_another_store_has_another_listener(app, work, other, no_polling, notified, threads):
    """The test kit replaces the store of an app."""
    run = work.enqueue(2)
    result = threads.submit(run.result, FOREVER)
    wait_until(lambda: waiter_of(app) in notified)
    other.worker().drain(60)
    assert result.result(60) == 4
    with Kit(app) as kit:
        assert not listening_threads()
        inside = work.enqueue(3)
        kit.drain()
        assert inside.result(60) == 6
        with pytest.raises(ResultTimeout):
            work.enqueue(4).result(0.1)
        assert not listening_threads(), "nobody else writes to a database in memory"


def test_a_database_in_memory_has_no_listener(monkeypatch):
    monkeypatch.setattr(results, "LISTEN_FROM_S", 0.0)
    with Holdfast("sqlite:///:memory:") as app:
        with pytest.raises(ResultTimeout):
            app.remote("work").enqueue(1).result(0.05)
        assert not listening_threads()


def test_an_app_with_a_test_clock_has_no_listener(make_app, monkeypatch):
    monkeypatch.setattr(results, "LISTEN_FROM_S", 0.0)
    app = make_app(clock=lambda: 1_800_000_000_000_000)
    run = app.remote("work").enqueue(1)
    with pytest.raises(ResultTimeout):
        run.result(0.05)
    assert not listening_threads()


def test_an_interrupt_ends_a_wait_at_once(app, work, no_polling, notified):
    def interrupt() -> None:
        wait_until(lambda: waiter_of(app) in notified)
        os.kill(os.getpid(), signal.SIGINT)

    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    with pytest.raises(KeyboardInterrupt):
        work.enqueue(1).result(60)
    interrupting.join()
    assert not waiter_of(app).callers


def test_a_failing_listener_raises_no_error_and_polling_continues(app, work, other, threads, monkeypatch):
    tried = []

    def fail(self) -> float:
        tried.append(1)
        raise StoreUnavailable("away")

    monkeypatch.setattr(completion_listener, "MIN_RETRY_S", 0.0)
    monkeypatch.setattr(completion_listener, "MAX_RETRY_S", 0.001)
    monkeypatch.setattr(completion_listener.CompletionListenerLoop, "_listen", fail)
    result = threads.submit(work.enqueue(2).result, FOREVER)
    wait_until(lambda: len(tried) > 2)
    assert not listener_of(app).is_listening
    assert waiter_of(app).max_interval() == results.MAX_POLL_INTERVAL_S
    other.worker().drain(60)
    assert result.result(60) == 4


def test_a_listener_that_lost_its_connection_reconnects_and_polls(
    postgres_url, monkeypatch, no_polling, notified, threads
):
    monkeypatch.setattr(completion_listener, "MIN_RETRY_S", 0.0)
    monkeypatch.setattr(completion_listener, "MAX_RETRY_S", 0.001)
    monkeypatch.setattr(completion_listener, "WATCHER_RENEWAL_S", 0.5)
    with Holdfast(postgres_url) as app, psycopg.connect(postgres_url, autocommit=True) as server:
        run = app.remote("work").enqueue(1)
        result = threads.submit(run.result, FOREVER)
        wait_until(lambda: waiter_of(app) in notified)
        server.execute("delete from holdfast.watchers")  # what is over by the time that it comes back
        server.execute(
            "update holdfast.runs set state = 'cancelled', finished_at = 1, error = '{\"code\":\"cancelled\"}'"
        )
        server.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where datname = current_database() and application_name = 'holdfast ends'"
        )
        with pytest.raises(RunCancelled):
            result.result(60)
        wait_until(lambda: rows(app) == 1)


def test_behind_a_pooler_there_is_no_listener_and_polling_continues(postgres_url, monkeypatch, threads):
    connect = PostgresConnection.__init__

    def connect_through_pooler(self, *given, **more):
        connect(self, *given, **more)
        self.pooled = True

    monkeypatch.setattr(PostgresConnection, "__init__", connect_through_pooler)
    monkeypatch.setattr(results, "LISTEN_FROM_S", 0.0)
    with Holdfast(postgres_url) as app:
        run = app.remote("work").enqueue(1)
        result = threads.submit(run.result, FOREVER)
        wait_until(lambda: listener_of(app)._polling_only and not listening_threads())
        wait_until(lambda: connections(app) == 0)
        assert rows(app) == 0
        run.cancel()
        with pytest.raises(RunCancelled):
            result.result(60)
        assert not listening_threads(), "it isn't tried again"
