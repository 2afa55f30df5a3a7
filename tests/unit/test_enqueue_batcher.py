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


class BlockingStore:
    """Creates runs when the test sets `go`, and records each batch."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.go = threading.Event()

    def __call__(self, runs: Sequence[NewRun]) -> list[str]:
        ids = [run.id for run in runs]
        self.batches.append(ids)
        assert self.go.wait(60)
        if "bad" in ids:
            raise StoreError("one of them can't be written")
        return [f"created {id}" for id in ids]


async def until(condition) -> None:
    while not condition():
        await asyncio.sleep(0)


async def test_enqueues_of_one_loop_iteration_are_written_together_and_later_ones_next():
    add = BlockingStore()
    batcher = EnqueueBatcher(add)
    first = [asyncio.create_task(batcher.add([new(f"a{n}")])) for n in range(3)]
    await until(lambda: add.batches)
    later = [asyncio.create_task(batcher.add([new(f"b{n}"), new(f"c{n}")])) for n in range(2)]
    await asyncio.sleep(0)
    add.go.set()
    assert await asyncio.gather(*first) == [["created a0"], ["created a1"], ["created a2"]]
    assert await asyncio.gather(*later) == [["created b0", "created c0"], ["created b1", "created c1"]]
    assert add.batches == [["a0", "a1", "a2"], ["b0", "c0", "b1", "c1"]]
    assert await batcher.add([new("d")]) == ["created d"]


async def test_a_rejected_enqueue_fails_alone():
    add = BlockingStore()
    add.go.set()
    batcher = EnqueueBatcher(add)
    calls = [batcher.add([new(id)]) for id in ("a", "bad", "c")]
    created, failed, other = await asyncio.gather(*calls, return_exceptions=True)
    assert (created, other) == (["created a"], ["created c"])
    assert isinstance(failed, StoreError)


async def test_an_unreachable_database_is_tried_once_for_the_whole_batch():
    tried = []

    def add(runs: Sequence[NewRun]) -> list[str]:
        tried.append(len(runs))
        raise StoreUnavailable("the database can't be reached")

    batcher = EnqueueBatcher(add)
    errors = await asyncio.gather(*(batcher.add([new(str(n))]) for n in range(5)), return_exceptions=True)
    assert tried == [5]
    assert [str(error) for error in errors] == ["the database can't be reached"] * 5
    assert len(set(map(id, errors))) == 5, "each caller has its own exception"


async def test_a_cancelled_caller_does_not_affect_others():
    add = BlockingStore()
    batcher = EnqueueBatcher(add)
    gone, stays = (asyncio.create_task(batcher.add([new(id)])) for id in ("a", "b"))
    await until(lambda: add.batches)
    gone.cancel()
    add.go.set()
    assert await stays == ["created b"]
    with pytest.raises(asyncio.CancelledError):
        await gone


async def test_batches_do_not_exceed_the_size_of_a_statement():
    add = BlockingStore()
    add.go.set()
    batcher = EnqueueBatcher(add)
    ids = await asyncio.gather(*(batcher.add([new(f"{n}-{at}") for at in range(3)]) for n in range(MAX_BATCH_ROWS)))
    assert [len(each) for each in ids] == [3] * MAX_BATCH_ROWS
    assert max(map(len, add.batches)) <= MAX_BATCH_ROWS
    assert sum(map(len, add.batches)) == 3 * MAX_BATCH_ROWS


def test_a_loop_that_ends_during_a_write_leaves_nothing_for_the_next_loop():
    add = BlockingStore()
    batcher = EnqueueBatcher(add)

    async def leave() -> None:
        asyncio.ensure_future(batcher.add([new("a")]))  # noqa: RUF006 - left behind
        await until(lambda: add.batches)
        waiting = asyncio.ensure_future(batcher.add([new("b")]))
        await asyncio.sleep(0)
        add.go.set()
        waiting.cancel()

    asyncio.run(leave())
    assert asyncio.run(batcher.add([new("c")])) == ["created c"]


def test_only_runs_without_locks_are_batched():
    assert can_batch([new("a")])
    for more in ({"key": "k"}, {"unique": "u"}, {"fair": {}}):
        assert not can_batch([new("a"), new("b", **more)])
    assert not can_batch([new("a")] * MAX_BATCH_ROWS)
