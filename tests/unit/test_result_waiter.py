"""Coroutines that wait for results share their polls."""

from __future__ import annotations

import asyncio
import threading
from uuid import UUID

import pytest

from holdfast.client import results
from holdfast.client.results import ResultWaiter
from holdfast.errors import ResultTimeout, StoreUnavailable

RUNS = [UUID(int=n) for n in range(1, 4)]


class Runs:
    """The states of runs, and every look at them."""

    def __init__(self) -> None:
        self.states = {str(id): "running" for id in RUNS}
        self.looks: list[set[str]] = []
        self.fault: Exception | None = None
        self.looked = threading.Event()

    def __call__(self, ids):
        self.looks.append(set(ids))
        self.looked.set()
        if self.fault is not None:
            raise self.fault
        return {id: (self.states[id], "1", None, None, None) for id in ids if id in self.states}

    async def look(self) -> None:
        self.looked.clear()
        await asyncio.to_thread(self.looked.wait, 60)


@pytest.fixture
def runs():
    return Runs()


@pytest.fixture
def rare_looks(monkeypatch):
    """No look by itself once the first was made."""
    monkeypatch.setattr(results, "FIRST_POLL_INTERVAL_S", 3600.0)
    monkeypatch.setattr(results, "MAX_POLL_INTERVAL_S", 3600.0)


def waiting(waits: ResultWaiter, *more: object) -> list[asyncio.Task]:
    return [asyncio.create_task(waits.wait(id, None)) for id in RUNS]


async def test_all_who_wait_are_looked_for_at_once_and_hear_when_something_ended(runs, rare_looks):
    waits = ResultWaiter(runs)
    tasks = waiting(waits)
    await runs.look()
    assert runs.looks == [{str(id) for id in RUNS}]
    runs.states[str(RUNS[1])] = "done"
    waits.poll_now()
    assert (await tasks[1])[0] == "done"
    assert not tasks[0].done()
    runs.states.update(dict.fromkeys(runs.states, "failed"))
    waits.poll_now()
    assert [(await task)[0] for task in tasks] == ["failed", "done", "failed"]
    assert runs.looks[-1] == {str(RUNS[0]), str(RUNS[2])}
    assert (await waits.wait(RUNS[0], None))[0] == "failed"


async def test_a_newcomer_is_looked_for_at_once(runs, rare_looks):
    waits = ResultWaiter(runs)
    tasks = waiting(waits)
    await runs.look()
    assert await waits.wait(UUID(int=9), None) is None
    for task in tasks:
        task.cancel()


async def test_without_a_word_they_are_looked_for_again(runs):
    waits = ResultWaiter(runs)
    task = asyncio.create_task(waits.wait(RUNS[0], None))
    await runs.look()
    runs.states[str(RUNS[0])] = "cancelled"
    assert (await task)[0] == "cancelled"


async def test_time_is_over_for_one_and_not_for_the_others(runs, rare_looks):
    waits = ResultWaiter(runs)
    tasks = waiting(waits)
    with pytest.raises(ResultTimeout, match="still running"):
        await waits.wait(RUNS[0], 0)
    assert not any(task.done() for task in tasks)
    for task in tasks:
        task.cancel()


async def test_a_database_that_is_away_is_told_to_all(runs):
    waits = ResultWaiter(runs)
    runs.fault = StoreUnavailable("away")
    found = await asyncio.gather(*waiting(waits), return_exceptions=True)
    assert found == [runs.fault] * len(RUNS)
    runs.fault = None
    runs.states[str(RUNS[0])] = "done"
    assert (await waits.wait(RUNS[0], None))[0] == "done"


def test_a_loop_that_ends_meanwhile_leaves_nothing_behind(runs):
    waits = ResultWaiter(runs)

    async def leave() -> None:
        asyncio.ensure_future(waits.wait(RUNS[0], None))  # noqa: RUF006 - left behind
        await runs.look()

    asyncio.run(leave())
    waits.poll_now()
    runs.states[str(RUNS[0])] = "done"
    assert asyncio.run(waits.wait(RUNS[0], None))[0] == "done"
