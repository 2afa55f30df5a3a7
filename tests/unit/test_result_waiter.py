"""Coroutines that wait for results share their polls."""

from __future__ import annotations

import asyncio
import threading
from uuid import UUID

import pytest

from holdfast.client import results
from holdfast.client.results import ResultWaiter
from holdfast.errors import ResultTimeout, StoreUnavailable
from holdfast.store import AttemptEnd

RUNS = [UUID(int=n) for n in range(1, 4)]


class Runs:
    """The states of runs, and every poll for them."""

    def __init__(self) -> None:
        self.states = {str(id): "running" for id in RUNS}
        self.polls: list[set[str]] = []
        self.fault: Exception | None = None
        self.polled = threading.Event()

    def __call__(self, ids):
        self.polls.append(set(ids))
        self.polled.set()
        if self.fault is not None:
            raise self.fault
        return {id: (self.states[id], "1", None, None, None) for id in ids if id in self.states}

    async def next_poll(self) -> None:
        self.polled.clear()
        await asyncio.to_thread(self.polled.wait, 60)


def ended(kind, result="1"):
    """Return the end of an attempt of a run."""
    result, error = (None, "{}") if kind == "failed" else (result, None)
    return AttemptEnd("", 0, 1, kind, kind, result=result, error=error)


@pytest.fixture
def runs():
    return Runs()


@pytest.fixture
def no_repeated_polls(monkeypatch):
    """Never poll again by itself after the first poll."""
    monkeypatch.setattr(results, "FIRST_POLL_INTERVAL_S", 3600.0)
    monkeypatch.setattr(results, "MAX_POLL_INTERVAL_S", 3600.0)


def waiting(waiter: ResultWaiter) -> list[asyncio.Task]:
    return [asyncio.create_task(waiter.wait(id, None)) for id in RUNS]


async def test_one_poll_serves_all_waiting_coroutines(runs, no_repeated_polls):
    waiter = ResultWaiter(runs)
    tasks = waiting(waiter)
    await runs.next_poll()
    assert runs.polls == [{str(id) for id in RUNS}]
    runs.states[str(RUNS[1])] = "done"
    waiter.on_local_ends({str(RUNS[1]): None})
    assert (await tasks[1])[0] == "done"
    assert not tasks[0].done()
    runs.states.update(dict.fromkeys(runs.states, "failed"))
    waiter.on_local_ends({str(id): None for id in RUNS})
    assert [(await task)[0] for task in tasks] == ["failed", "done", "failed"]
    assert runs.polls[-1] == {str(RUNS[0]), str(RUNS[2])}
    assert (await waiter.wait(RUNS[0], None))[0] == "failed"


async def test_the_outcome_of_a_local_run_is_handed_over_without_a_poll(runs, no_repeated_polls):
    waiter = ResultWaiter(runs)
    tasks = waiting(waiter)
    await runs.next_poll()
    done, failed, cancelled = ended("done"), ended("failed"), ended("cancelled")
    waiter.on_local_ends({str(RUNS[0]): done, str(RUNS[1]): failed})
    assert [await task for task in tasks[:2]] == [
        ("done", "1", None, None, None, None), ("failed", None, "{}", None, None, None),
    ]  # fmt: skip
    assert len(runs.polls) == 1
    runs.states[str(RUNS[2])] = "cancelled"
    waiter.on_local_ends({str(RUNS[2]): cancelled})  # whose reason only the database knows
    assert (await tasks[2])[0] == "cancelled"
    assert runs.polls[1:] == [{str(RUNS[2])}]


def test_a_thread_takes_the_outcome_of_a_local_run(runs, no_repeated_polls):
    waiter = ResultWaiter(runs)
    with waiter.thread(RUNS[0], None) as thread:
        waiter.on_local_ends({str(RUNS[0]): ended("done", "~packed")})  # which a read unpacks
        assert thread.outcome is None
        waiter.on_local_ends({str(RUNS[0]): ended("done")})
        thread.pause("running")
        assert thread.outcome == ("done", "1", None, None, None, None)
    assert runs.polls == []


async def test_a_run_that_a_local_worker_executes_is_not_polled_at_first(runs, monkeypatch):
    claimed = {str(RUNS[0])}
    waiter = ResultWaiter(runs, is_claimed_here=claimed.__contains__)
    task = asyncio.create_task(waiter.wait(RUNS[0], None))
    await runs.next_poll()  # after a moment, in case that the worker reports nothing
    assert len(runs.polls) == 1
    claimed.clear()
    runs.states[str(RUNS[0])] = "done"
    assert (await task)[0] == "done"

    claimed.update(map(str, RUNS[:2]))
    monkeypatch.setattr(results, "LISTEN_FROM_S", 3600.0)
    runs.polls.clear()
    tasks = waiting(waiter)
    await runs.next_poll()
    assert {id for poll in runs.polls for id in poll} == {str(RUNS[2])}, "the one that no local worker executes"
    waiter.on_local_ends({str(id): ended("done") for id in RUNS})
    assert [(await task)[0] for task in tasks] == ["done"] * 3


async def test_a_new_waiter_is_polled_for_at_once(runs, no_repeated_polls):
    waiter = ResultWaiter(runs)
    tasks = waiting(waiter)
    await runs.next_poll()
    assert await waiter.wait(UUID(int=9), None) is None
    for task in tasks:
        task.cancel()


async def test_polling_continues_without_notifications(runs):
    waiter = ResultWaiter(runs)
    task = asyncio.create_task(waiter.wait(RUNS[0], None))
    await runs.next_poll()
    runs.states[str(RUNS[0])] = "cancelled"
    assert (await task)[0] == "cancelled"


async def test_a_timeout_ends_only_its_own_wait(runs, no_repeated_polls):
    waiter = ResultWaiter(runs)
    tasks = waiting(waiter)
    with pytest.raises(ResultTimeout, match="still running"):
        await waiter.wait(RUNS[0], 0)
    assert not any(task.done() for task in tasks)
    for task in tasks:
        task.cancel()


async def test_an_unreachable_database_is_reported_to_all_waiters(runs):
    waiter = ResultWaiter(runs)
    runs.fault = StoreUnavailable("unreachable")
    found = await asyncio.gather(*waiting(waiter), return_exceptions=True)
    assert found == [runs.fault] * len(RUNS)
    runs.fault = None
    runs.states[str(RUNS[0])] = "done"
    assert (await waiter.wait(RUNS[0], None))[0] == "done"


def test_a_loop_that_ends_leaves_no_waiters_behind(runs):
    waiter = ResultWaiter(runs)

    async def leave() -> None:
        asyncio.ensure_future(waiter.wait(RUNS[0], None))  # noqa: RUF006 - left behind
        await runs.next_poll()

    asyncio.run(leave())
    waiter.on_local_ends({str(RUNS[0]): None})
    runs.states[str(RUNS[0])] = "done"
    assert asyncio.run(waiter.wait(RUNS[0], None))[0] == "done"
