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
from holdfast.client.completion_listener import CompletionListener
from holdfast.client.results import ResultWaiter
from holdfast.database.postgres import PostgresConnection
from holdfast.errors import StoreUnavailable
from holdfast.testing import Kit
from tests.support.history_queries import fetch
from tests.support.wait_until import wait_until

BEFORE: list[threading.Thread] = []
FOREVER = 120
"""Seconds, at whose end there is another look: none of these tests waits for that."""
CANCEL = "import sys; from holdfast import Holdfast; Holdfast(sys.argv[1]).get_run(sys.argv[2]).cancel()"


@pytest.fixture
def rare_looks(monkeypatch):
    """No look by itself once the first was made: only what is heard leads to another."""
    for name in ("FIRST_POLL_INTERVAL_S", "MAX_POLL_INTERVAL_S", "MAX_POLL_INTERVAL_LISTENING_S"):
        monkeypatch.setattr(results, name, 3600.0)


@pytest.fixture
def told(monkeypatch):
    """Those who have heard something and looked, once for each time."""
    calls: list[ResultWaiter] = []
    real = ResultWaiter.on_completion

    def heard(self: ResultWaiter) -> None:
        real(self)
        calls.append(self)

    monkeypatch.setattr(ResultWaiter, "on_completion", heard)
    return calls


@pytest.fixture
def work(app):
    @app.task(name="work")
    async def work(x: int) -> int:
        return 2 * x

    return work


@pytest.fixture
def other(make_app, work):
    """The same tasks in another process."""
    other = make_app()
    other.task(name="work")(work.fn)
    return other


@pytest.fixture
def threads():
    with ThreadPoolExecutor(20) as threads:
        yield threads


@pytest.fixture(autouse=True)
def before():
    """Threads of others, who may not have closed their apps."""
    BEFORE[:] = threading.enumerate()


def ends_of(app: Holdfast) -> ResultWaiter:
    return app._client.results.waiter


def hears(app: Holdfast) -> CompletionListener:
    return ends_of(app)._listener


def listening_threads() -> list[threading.Thread]:
    return [
        thread for thread in threading.enumerate() if thread.name == "holdfast-completions" and thread not in BEFORE
    ]


def connections(app: Holdfast) -> int:
    """How many there are on PostgreSQL for hearing of ends."""
    if app.url.startswith("sqlite"):
        return 0
    count = "select count(*) from pg_stat_activity where datname = current_database()"
    return fetch(app, f"{count} and application_name = 'holdfast ends'")[0][0]


def rows(app: Holdfast) -> int:
    return fetch(app, "select count(*) from {}watchers")[0][0]


def is_postgres(app: Holdfast) -> int:
    return int(app.url.startswith("postgres"))


def test_a_thread_hears_of_the_end(app, work, other, rare_looks, told, threads):
    run = work.enqueue(2)
    result = threads.submit(run.result, FOREVER)
    wait_until(lambda: ends_of(app) in told)
    other.worker().drain(60)
    assert result.result(60) == 4


async def test_a_coroutine_hears_of_the_end(app, work, other, rare_looks, told):
    runs = await work.aenqueue_many([(1,), (2,)])
    results = asyncio.gather(*(run.aresult(FOREVER) for run in runs))
    await asyncio.to_thread(wait_until, lambda: ends_of(app) in told)
    await other.worker().adrain(60)
    assert await asyncio.wait_for(results, 60) == [2, 4]


@pytest.mark.parametrize("awaited", [False, True])
def test_an_end_in_another_process_is_heard_of(app, work, database_url, rare_looks, told, threads, awaited):
    run = work.enqueue(2)
    result = threads.submit((lambda: asyncio.run(run.aresult(FOREVER))) if awaited else lambda: run.result(FOREVER))
    wait_until(lambda: ends_of(app) in told)
    subprocess.run([sys.executable, "-c", CANCEL, database_url, str(run.id)], check=True, timeout=60)
    with pytest.raises(RunCancelled):
        result.result(60)


@pytest.mark.parametrize("awaited", [False, True])
def test_what_ends_before_it_is_listened_for_is_found_then(app, work, other, rare_looks, threads, monkeypatch, awaited):
    """It has been looked at by then, and was unfinished."""
    run, real = work.enqueue(2), CompletionListener.request

    def want(self, seconds: float, heard: Callable[[], None]) -> None:
        threading.Thread(target=lambda: other.get_run(run.id).cancel()).start()
        wait_until(lambda: fetch(other, "select 1 from {}runs where state = 'cancelled'"))
        real(self, seconds, heard)

    monkeypatch.setattr(CompletionListener, "request", want)
    with pytest.raises(RunCancelled):
        result = threads.submit((lambda: asyncio.run(run.aresult(FOREVER))) if awaited else lambda: run.result(FOREVER))
        result.result(60)


def test_all_who_wait_share_one_listener(app, work, other, rare_looks, told, threads):
    runs = work.enqueue_many([(n,) for n in range(12)])

    async def wait_for_two(n: int) -> list[int]:
        return await asyncio.gather(runs[n].aresult(FOREVER), runs[n + 1].aresult(FOREVER))

    futures = [threads.submit(run.result, FOREVER) for run in runs[:6]]
    futures += [threads.submit(asyncio.run, wait_for_two(n)) for n in (6, 8, 10)]
    wait_until(lambda: ends_of(app) in told and (len(ends_of(app)._pollers), len(ends_of(app)._threads)) == (3, 6))
    assert len(listening_threads()) == 1
    assert (connections(app), rows(app)) == (is_postgres(app),) * 2
    other.worker().drain(60)
    assert [result.result(60) for result in futures] == [0, 2, 4, 6, 8, 10, [12, 14], [16, 18], [20, 22]]


def test_only_threads_that_are_concerned_are_woken(app, work, other, rare_looks, told, threads, monkeypatch):
    woken = []
    real = results.WaitingThread.wake
    monkeypatch.setattr(results.WaitingThread, "wake", lambda self: (woken.append(self.id), real(self)))
    runs = work.enqueue_many([(1,), (2,)])
    futures = [threads.submit(run.result, FOREVER) for run in runs]
    wait_until(lambda: ends_of(app) in told and len(ends_of(app)._threads) == 2)
    other.get_run(runs[1].id).cancel()
    with pytest.raises(RunCancelled):
        futures[1].result(60)
    assert set(woken) == {str(runs[1].id)}
    other.get_run(runs[0].id).cancel()
    with pytest.raises(RunCancelled):
        futures[0].result(60)


def test_each_app_hears_for_itself(app, work, other, make_app, rare_looks, told, threads):
    run = work.enqueue(2)
    apps = [app, make_app()]
    futures = [threads.submit(each.get_run(run.id).result, FOREVER) for each in apps]
    wait_until(lambda: {ends_of(each) for each in apps} <= set(told))
    assert len(listening_threads()) == 2
    other.worker().drain(60)
    assert [result.result(60) for result in futures] == [4, 4]


def test_when_nobody_waits_any_more_the_listener_leaves_and_comes_again_when_it_is_wanted(
    app, work, other, rare_looks, told, threads
):
    for n in range(2):
        told.clear()
        run = work.enqueue(n)
        result = threads.submit(run.result, FOREVER)
        wait_until(lambda: ends_of(app) in told)
        assert rows(app) == is_postgres(app)
        other.worker().drain(60)
        assert result.result(60) == 2 * n
        assert hears(app).is_listening, "it lingers"
        hears(app)._wanted_until = 0.0  # and now that is over
        wait_until(lambda: not listening_threads())
        assert rows(app) == 0
        wait_until(lambda: connections(app) == 0)
        assert not hears(app).is_listening


def test_a_wait_that_is_short_is_worth_no_listener(app, work, monkeypatch):
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


def test_closing_the_app_ends_the_listener_and_who_waits_goes_on(app, work, other, rare_looks, told, threads):
    run = work.enqueue(2)
    result = threads.submit(run.result, FOREVER)
    wait_until(lambda: ends_of(app) in told)
    app.close()
    assert not listening_threads()
    assert rows(other) == 0
    wait_until(lambda: connections(other) == 0)
    told.clear()
    second = threads.submit(run.result, FOREVER)
    wait_until(lambda: ends_of(app) in told)
    other.worker().drain(60)
    assert (result.result(60), second.result(60)) == (4, 4)


async def test_closing_in_a_coroutine_ends_it_too(app, work, rare_looks, told):
    run = await work.aenqueue(2)
    result = asyncio.ensure_future(run.aresult(FOREVER))
    await asyncio.to_thread(wait_until, lambda: ends_of(app) in told)
    result.cancel()  # who goes on waiting would want a listener again
    await asyncio.wait([result])
    assert listening_threads(), "it lingers"
    await app.aclose()
    assert not listening_threads()


def test_another_store_has_another_listener(app, work, other, rare_looks, told, threads):
    """As the test kit gives an app one."""
    run = work.enqueue(2)
    result = threads.submit(run.result, FOREVER)
    wait_until(lambda: ends_of(app) in told)
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


def test_a_clock_of_a_tests_own_has_no_listener(make_app, monkeypatch):
    monkeypatch.setattr(results, "LISTEN_FROM_S", 0.0)
    app = make_app(clock=lambda: 1_800_000_000_000_000)
    run = app.remote("work").enqueue(1)
    with pytest.raises(ResultTimeout):
        run.result(0.05)
    assert not listening_threads()


def test_an_interrupt_ends_a_wait_at_once(app, work, rare_looks, told):
    def interrupt() -> None:
        wait_until(lambda: ends_of(app) in told)
        os.kill(os.getpid(), signal.SIGINT)

    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    with pytest.raises(KeyboardInterrupt):
        work.enqueue(1).result(60)
    interrupting.join()
    assert not ends_of(app)._threads


def test_a_listener_that_fails_is_no_error_and_looking_goes_on(app, work, other, threads, monkeypatch):
    tried = []

    def fail(self) -> float:
        tried.append(1)
        raise StoreUnavailable("away")

    monkeypatch.setattr(completion_listener, "MIN_RETRY_S", 0.0)
    monkeypatch.setattr(completion_listener, "MAX_RETRY_S", 0.001)
    monkeypatch.setattr(completion_listener.CompletionListenerLoop, "_listen", fail)
    result = threads.submit(work.enqueue(2).result, FOREVER)
    wait_until(lambda: len(tried) > 2)
    assert not hears(app).is_listening
    assert ends_of(app).max_interval() == results.MAX_POLL_INTERVAL_S
    other.worker().drain(60)
    assert result.result(60) == 4


def test_a_listener_whose_connection_is_lost_comes_back_and_looks(postgres_url, monkeypatch, rare_looks, told, threads):
    monkeypatch.setattr(completion_listener, "MIN_RETRY_S", 0.0)
    monkeypatch.setattr(completion_listener, "MAX_RETRY_S", 0.001)
    with Holdfast(postgres_url) as app, psycopg.connect(postgres_url, autocommit=True) as server:
        run = app.remote("work").enqueue(1)
        result = threads.submit(run.result, FOREVER)
        wait_until(lambda: ends_of(app) in told)
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


def test_behind_a_pooler_there_is_no_listener_and_looking_goes_on(postgres_url, monkeypatch, threads):
    monkeypatch.setattr(PostgresConnection, "_is_pooled", lambda self: True)
    monkeypatch.setattr(results, "LISTEN_FROM_S", 0.0)
    with Holdfast(postgres_url) as app:
        run = app.remote("work").enqueue(1)
        result = threads.submit(run.result, FOREVER)
        wait_until(lambda: hears(app)._polling_only and not listening_threads())
        wait_until(lambda: connections(app) == 0)
        assert rows(app) == 0
        run.cancel()
        with pytest.raises(RunCancelled):
            result.result(60)
        assert not listening_threads(), "it isn't tried again"
