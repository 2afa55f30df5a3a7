"""A client waits for a result while the worker dies, the server restarts, or an operator retries the run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.errors import ResultTimeout, RunFailed, StoreUnavailable
from holdfast.store import AttemptEnd, Claim
from tests.support.history_queries import fetch
from tests.support.wait_until import wait_until

TIMEOUT_S = 90
ERROR = '{"code": "error", "type": "ValueError", "message": "not yet"}'

Wait = Callable[[Any], "list[Future[Any]]"]


@pytest.fixture
def wait() -> Iterator[Wait]:
    """Wait for the result of a run in a thread, and in a coroutine."""
    with ThreadPoolExecutor(2) as threads:

        def wait(run: Any) -> list[Future[Any]]:
            return [
                threads.submit(run.result, TIMEOUT_S),
                threads.submit(lambda: asyncio.run(run.aresult(TIMEOUT_S))),
            ]

        yield wait


def has_waiting_client(app: Holdfast) -> bool:
    """Return whether a client has polled a run and waits."""
    return fetch(app, "select count(*) from {}watchers") != [(0,)]


def release(ledger: Any) -> None:
    for number in range(10):
        ledger.path.with_name(f"release{number}").touch()


def test_a_client_gets_the_result_although_the_worker_is_killed(app, database_url, start_worker, ledger, wait):
    first = start_worker(database_url)
    run = app.remote("hold").enqueue()
    waiting = wait(run)
    wait_until(lambda: len(ledger.lines()) == 1)
    first.kill()
    start_worker(database_url)
    wait_until(lambda: len(ledger.lines()) == 2)
    assert not any(each.done() for each in waiting)
    release(ledger)
    assert [each.result(TIMEOUT_S) for each in waiting] == [1, 1]


def test_a_client_gets_the_result_although_the_server_restarts(durable_server, connect, start_worker, ledger, wait):
    url = durable_server.create_database()
    app = connect(url)
    start_worker(url, lease=3)
    run = app.remote("hold").enqueue()
    waiting = wait(run)
    wait_until(lambda: ledger.lines() and has_waiting_client(app))
    durable_server.kill()
    assert not durable_server.running
    looked = time.monotonic() + 2  # so that clients poll during the outage
    wait_until(lambda: time.monotonic() > looked)
    assert not any(each.done() for each in waiting)
    durable_server.start()
    release(ledger)
    results = {each.result(TIMEOUT_S) for each in waiting}
    assert len(results) == 1
    assert results == {run.result(TIMEOUT_S)}


def test_a_client_times_out_during_a_server_outage(durable_server, connect):
    """It waits until its timeout and gets an error that names the outage."""
    app = connect(durable_server.create_database())
    run = app.remote("hold").enqueue()
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(run.result, 2.0)
        wait_until(lambda: has_waiting_client(app))
        durable_server.kill()
        with pytest.raises(ResultTimeout, match="cannot connect to"):
            waiting.result(TIMEOUT_S)
    with pytest.raises(StoreUnavailable):
        run.result(2.0)


class Operator:
    """Acts as worker and operator: decides when a run fails, is retried and ends."""

    def __init__(self, app: Holdfast) -> None:
        self.app = app
        app.store.sessions.open("test", "test", 600_000_000, "{}")

    def _claim(self) -> Claim:
        (claim,) = self.app.store.claims.claim("test", list(self.app.store.lanes.refresh()), 1)
        return claim

    def end(self, kind: Any, **more: Any) -> None:
        claim = self._claim()
        self.app.store.attempts.end("test", [AttemptEnd(claim.id, claim.seq, claim.fence, kind, kind, **more)])


def test_a_client_that_asks_again_gets_the_outcome_of_a_retry(app, wait):
    """A client that got the failure has its result; only the next call sees the retry."""
    operator = Operator(app)
    run = app.remote("work").enqueue()
    waiting = wait(run)
    operator.end("failed", error=ERROR)
    for each in waiting:
        with pytest.raises(RunFailed, match="not yet"):
            each.result(TIMEOUT_S)
    run.retry()
    waiting = wait(run)
    operator.end("done", result="7")
    assert [each.result(TIMEOUT_S) for each in waiting] == [7, 7]


def test_a_client_that_waits_during_a_retry_gets_one_of_the_outcomes(app, wait):
    """It may or may not poll between the failure and the retry, but it never waits forever."""
    operator = Operator(app)
    run = app.remote("work").enqueue()
    waiting = wait(run)
    for _ in range(5):
        operator.end("failed", error=ERROR)
        run.retry()
    operator.end("done", result="7")
    for each in waiting:
        failed = each.exception(TIMEOUT_S)
        assert isinstance(failed, RunFailed) or each.result() == 7
    assert run.result(TIMEOUT_S) == 7
