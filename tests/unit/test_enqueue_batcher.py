"""Enqueues of concurrent coroutines share a write, and fail independently."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from holdfast.client.enqueue_batcher import EnqueueBatcher, can_batch
from holdfast.errors import StoreError, StoreUnavailable
from holdfast.store import NewRun
from holdfast.store.module import MAX_BATCH_ROWS


def new(id: str, **more) -> NewRun:
    return NewRun(id=id, queue="q", task="t", args="{}", keep=0, max_crashes=1, **more)


class Adding:
    """Makes runs, and notes each group. The first waits until it is let go."""

    def __init__(self) -> None:
        self.groups: list[list[str]] = []
        self.go = threading.Event()

    def __call__(self, runs: Sequence[NewRun]) -> list[str]:
        ids = [run.id for run in runs]
        self.groups.append(ids)
        assert self.go.wait(60)
        if "bad" in ids:
            raise StoreError("one of them can't be written")
        return [f"made {id}" for id in ids]


async def until(condition) -> None:
    while not condition():
        await asyncio.sleep(0)


async def test_what_comes_in_one_turn_is_written_together_and_what_comes_meanwhile_next():
    add = Adding()
    batcher = EnqueueBatcher(add)
    first = [asyncio.create_task(batcher.add([new(f"a{n}")])) for n in range(3)]
    await until(lambda: add.groups)
    later = [asyncio.create_task(batcher.add([new(f"b{n}"), new(f"c{n}")])) for n in range(2)]
    await asyncio.sleep(0)
    add.go.set()
    assert await asyncio.gather(*first) == [["made a0"], ["made a1"], ["made a2"]]
    assert await asyncio.gather(*later) == [["made b0", "made c0"], ["made b1", "made c1"]]
    assert add.groups == [["a0", "a1", "a2"], ["b0", "c0", "b1", "c1"]]
    assert await batcher.add([new("d")]) == ["made d"]


async def test_one_that_cannot_be_written_fails_alone():
    add = Adding()
    add.go.set()
    batcher = EnqueueBatcher(add)
    calls = [batcher.add([new(id)]) for id in ("a", "bad", "c")]
    made, failed, other = await asyncio.gather(*calls, return_exceptions=True)
    assert (made, other) == (["made a"], ["made c"])
    assert isinstance(failed, StoreError)


async def test_a_database_that_cannot_be_reached_is_asked_once_for_all():
    tried = []

    def add(runs: Sequence[NewRun]) -> list[str]:
        tried.append(len(runs))
        raise StoreUnavailable("the database can't be reached")

    batcher = EnqueueBatcher(add)
    told = await asyncio.gather(*(batcher.add([new(str(n))]) for n in range(5)), return_exceptions=True)
    assert tried == [5]
    assert [str(error) for error in told] == ["the database can't be reached"] * 5
    assert len(set(map(id, told))) == 5, "each has an exception of its own"


async def test_a_caller_that_is_cancelled_takes_nobody_along():
    add = Adding()
    batcher = EnqueueBatcher(add)
    gone, stays = (asyncio.create_task(batcher.add([new(id)])) for id in ("a", "b"))
    await until(lambda: add.groups)
    gone.cancel()
    add.go.set()
    assert await stays == ["made b"]
    with pytest.raises(asyncio.CancelledError):
        await gone


async def test_groups_are_no_larger_than_a_statement_takes():
    add = Adding()
    add.go.set()
    batcher = EnqueueBatcher(add)
    ids = await asyncio.gather(*(batcher.add([new(f"{n}-{at}") for at in range(3)]) for n in range(MAX_BATCH_ROWS)))
    assert [len(each) for each in ids] == [3] * MAX_BATCH_ROWS
    assert max(map(len, add.groups)) <= MAX_BATCH_ROWS
    assert sum(map(len, add.groups)) == 3 * MAX_BATCH_ROWS


def test_a_loop_that_ends_meanwhile_leaves_nothing_for_the_next():
    add = Adding()
    batcher = EnqueueBatcher(add)

    async def leave() -> None:
        asyncio.ensure_future(batcher.add([new("a")]))  # noqa: RUF006 - left behind
        await until(lambda: add.groups)
        waiting = asyncio.ensure_future(batcher.add([new("b")]))
        await asyncio.sleep(0)
        add.go.set()
        waiting.cancel()

    asyncio.run(leave())
    assert asyncio.run(batcher.add([new("c")])) == ["made c"]


def test_only_what_locks_nothing_waits_for_others():
    assert can_batch([new("a")])
    for more in ({"key": "k"}, {"unique": "u"}, {"fair": {}}):
        assert not can_batch([new("a"), new("b", **more)])
    assert not can_batch([new("a")] * MAX_BATCH_ROWS)
