"""Batch the enqueues of concurrent coroutines: while one batch is being written, the next one collects.

A single call is written at once; a hundred concurrent calls share a statement, a commit and a thread. Calls stay
independent: if a batch fails, its calls are retried one by one, and each gets its own result. Only when the database is
unavailable do all calls of a batch fail at once, because each retry would wait for the connection again.
"""

from __future__ import annotations

import contextvars
import weakref
from collections.abc import Callable, Sequence
from copy import copy
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from holdfast.errors import StoreUnavailable
from holdfast.model.blocking_calls import run_in_thread
from holdfast.store import NewRun
from holdfast.store.module import MAX_BATCH_ROWS

if TYPE_CHECKING:
    import asyncio

Insert: TypeAlias = Callable[[Sequence[NewRun]], list[str]]


def can_batch(runs: Sequence[NewRun]) -> bool:
    """Return whether runs may share a transaction with other calls: few, and without keys, names or turns to lock."""
    return len(runs) < MAX_BATCH_ROWS and all(not run.has_name and run.fair is None for run in runs)


class PendingEnqueue(NamedTuple):
    """A call that waits for its batch."""

    runs: Sequence[NewRun]
    ids: asyncio.Future[list[str]]

    def resolve(self, ids: list[str]) -> None:
        if not self.ids.done():  # The caller may have been cancelled.
            self.ids.set_result(ids)

    def reject(self, error: Exception) -> None:
        if not self.ids.done():
            self.ids.set_exception(error)


class EnqueueBatcher:
    """Collects the calls of each event loop. `insert` writes runs and blocks."""

    def __init__(self, insert: Insert) -> None:
        self._insert = insert
        self._pending: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, list[PendingEnqueue]]
        self._pending = weakref.WeakKeyDictionary()
        self._writers: set[asyncio.Task[None]] = set()  # A loop keeps only weak references to its tasks.

    async def add(self, runs: Sequence[NewRun]) -> list[str]:
        """Insert the runs of one call, all or none, and return their ids."""
        import asyncio

        loop = asyncio.get_running_loop()
        call = PendingEnqueue(runs, loop.create_future())
        pending = self._pending.get(loop)
        if pending is not None:
            pending.append(call)
        else:
            self._pending[loop] = [call]
            task = loop.create_task(self._write_all(loop), context=contextvars.Context())
            self._writers.add(task)
            task.add_done_callback(self._writers.discard)
        return await call.ids

    async def _write_all(self, loop: asyncio.AbstractEventLoop) -> None:
        """Write batches until no call is pending."""
        pending = self._pending[loop]
        try:
            while pending:
                size = _batch_size(pending)
                batch, pending[:size] = pending[:size], []
                await self._write(batch)
        finally:
            del self._pending[loop]
            for call in pending:  # The loop is shutting down.
                call.ids.cancel()

    async def _write(self, batch: list[PendingEnqueue]) -> None:
        try:
            ids = await run_in_thread(self._insert, [run for call in batch for run in call.runs])
        except StoreUnavailable as error:
            for call in batch:
                call.reject(_copy_of(error))
        except Exception as error:
            if len(batch) == 1:
                batch[0].reject(error)
            else:
                for call in batch:
                    await self._write([call])
        except BaseException:  # The loop is shutting down; whether the runs were committed is unknown.
            for call in batch:
                call.ids.cancel()
            raise
        else:
            for call in batch:
                call.resolve(ids[: len(call.runs)])
                ids = ids[len(call.runs) :]


def _copy_of(error: StoreUnavailable) -> StoreUnavailable:
    """Copy an error for another caller, because raising an exception modifies it."""
    other = copy(error).with_traceback(error.__traceback__)
    other.__cause__ = error.__cause__
    return other


def _batch_size(pending: list[PendingEnqueue]) -> int:
    """Return how many calls fit into one statement, at least one."""
    runs = 0
    for at, call in enumerate(pending):
        runs += len(call.runs)
        if runs > MAX_BATCH_ROWS:
            return max(at, 1)
    return len(pending)
