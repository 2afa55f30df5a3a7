"""Chunks of a model's answer: written in order, without holding up the model, durable before their step is recorded."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from holdfast import Context
from holdfast.integrations.agents import MAX_PENDING_CHUNKS, chunk_writer


class SlowContext:
    """Submits chunks in order; each is durable when the test commits, or fails."""

    def __init__(self) -> None:
        self.submitted: list[Any] = []
        self._commit = asyncio.Event()
        self._error: Exception | None = None

    async def write(self, chunk: Any) -> None:
        self.submitted.append(chunk)
        await self._commit.wait()
        if self._error is not None:
            raise self._error

    def commit(self, error: Exception | None = None) -> None:
        self._error = error
        self._commit.set()


def as_context(slow: SlowContext) -> Context:
    return cast(Context, slow)


def test_the_model_goes_on_while_chunks_wait_for_their_commit_and_the_step_ends_after_it():
    async def check() -> None:
        slow = SlowContext()
        steps: list[str] = []

        async def step() -> None:
            async with chunk_writer(as_context(slow)) as writer:
                for number in range(5):
                    await writer.write(number)
                steps.append("the model has answered")
            steps.append("all chunks are durable")

        running = asyncio.create_task(step())
        for _ in range(100):
            await asyncio.sleep(0)
        assert slow.submitted == [0, 1, 2, 3, 4]
        assert steps == ["the model has answered"]
        slow.commit()
        await running
        assert steps[-1] == "all chunks are durable"

    asyncio.run(check())


def test_a_model_gets_only_so_far_ahead_of_the_database():
    async def check() -> None:
        slow = SlowContext()

        async def step() -> None:
            async with chunk_writer(as_context(slow)) as writer:
                for number in range(3 * MAX_PENDING_CHUNKS):
                    await writer.write(number)

        running = asyncio.create_task(step())
        for _ in range(10 * MAX_PENDING_CHUNKS):
            await asyncio.sleep(0)
        assert len(slow.submitted) == MAX_PENDING_CHUNKS + 1
        slow.commit()
        await running
        assert slow.submitted == list(range(3 * MAX_PENDING_CHUNKS))

    asyncio.run(check())


def test_a_chunk_that_cannot_be_written_fails_the_step():
    async def check() -> None:
        slow = SlowContext()
        slow.commit(ValueError("too large"))
        with pytest.raises(ValueError, match="too large"):
            async with chunk_writer(as_context(slow)) as writer:
                await writer.write("a chunk")

    asyncio.run(check())


def test_chunks_of_an_answer_that_broke_off_are_durable_before_the_error_is_raised():
    async def check() -> None:
        slow = SlowContext()
        broke_off = asyncio.Event()

        async def step() -> None:
            async with chunk_writer(as_context(slow)) as writer:
                await writer.write("half")
                broke_off.set()
                raise ConnectionError("the provider is gone")

        running = asyncio.create_task(step())
        await broke_off.wait()
        await asyncio.sleep(0)
        assert not running.done(), "the next try must not write before this one's chunks"
        slow.commit()
        with pytest.raises(ConnectionError):
            await running

    asyncio.run(check())


def test_a_cancelled_step_does_not_wait_for_its_chunks():
    async def check() -> None:
        slow = SlowContext()

        async def step() -> None:
            async with chunk_writer(as_context(slow)) as writer:
                await writer.write("half")
                await asyncio.Event().wait()

        running = asyncio.create_task(step())
        for _ in range(10):
            await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(check())
