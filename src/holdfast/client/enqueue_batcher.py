"""Groups what concurrent coroutines enqueue: while one group is being written, the next gathers.

A lone call is written at once; a hundred at once share a statement, a commit and a thread. Each call stands for itself:
when a group can't be written, its calls are tried one by one, and each gets its own answer. Only of a database that
can't be reached all are told at once: one by one they would each wait for it again.
"""

from __future__ import annotations

import contextvars
import weakref
from collections.abc import Callable, Sequence
from copy import copy
from typing import TYPE_CHECKING, NamedTuple

from holdfast.errors import StoreUnavailable
from holdfast.model.blocking_calls import run_in_thread
from holdfast.store import NewRun
from holdfast.store.module import MAX_BATCH_ROWS

if TYPE_CHECKING:
    import asyncio

Add = Callable[[Sequence[NewRun]], list[str]]


def can_batch(runs: Sequence[NewRun]) -> bool:
    """Whether runs can be made together with those of other calls: no keys, names or turns to be locked, and few."""
    return len(runs) < MAX_BATCH_ROWS and all(
        run.key is None and run.unique is None and run.fair is None for run in runs
    )


class PendingEnqueue(NamedTuple):
    """One call that waits: its runs, and where their ids go."""

    runs: Sequence[NewRun]
    ids: asyncio.Future[list[str]]

    def tell(self, ids: list[str]) -> None:
        if not self.ids.done():  # its caller was cancelled
            self.ids.set_result(ids)

    def fail(self, error: Exception) -> None:
        if not self.ids.done():
            self.ids.set_exception(error)


class EnqueueBatcher:
    """The calls of all event loops, each loop for itself. `add` makes runs, blocking."""

    def __init__(self, add: Add) -> None:
        self._add = add
        self._waiting: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, list[PendingEnqueue]] = (
            weakref.WeakKeyDictionary()
        )
        self._writing: set[asyncio.Task[None]] = set()  # a loop keeps only weak references to its tasks

    async def add(self, runs: Sequence[NewRun]) -> list[str]:
        """Make the runs of one call, all or none, with those of others; their ids."""
        import asyncio

        loop = asyncio.get_running_loop()
        call = PendingEnqueue(runs, loop.create_future())
        waiting = self._waiting.get(loop)
        if waiting is not None:
            waiting.append(call)
        else:
            self._waiting[loop] = [call]
            task = loop.create_task(self._write_all(loop), context=contextvars.Context())
            self._writing.add(task)
            task.add_done_callback(self._writing.discard)
        return await call.ids

    async def _write_all(self, loop: asyncio.AbstractEventLoop) -> None:
        """Write until nothing waits any more."""
        waiting = self._waiting[loop]
        try:
            while waiting:
                size = _group_size(waiting)
                group, waiting[:size] = waiting[:size], []
                await self._write(group)
        finally:
            del self._waiting[loop]
            for call in waiting:  # the loop is ending
                call.ids.cancel()

    async def _write(self, group: list[PendingEnqueue]) -> None:
        try:
            ids = await run_in_thread(self._add, [run for call in group for run in call.runs])
        except StoreUnavailable as error:
            for call in group:
                call.fail(_another(error))
        except Exception as error:
            if len(group) == 1:
                group[0].fail(error)
            else:
                for call in group:
                    await self._write([call])
        except BaseException:  # the loop is ending; whether the runs were made is known to nobody
            for call in group:
                call.ids.cancel()
            raise
        else:
            for call in group:
                call.tell(ids[: len(call.runs)])
                ids = ids[len(call.runs) :]


def _another(error: StoreUnavailable) -> StoreUnavailable:
    """The same for another caller: whoever raises an exception writes into it."""
    other = copy(error).with_traceback(error.__traceback__)
    other.__cause__ = error.__cause__
    return other


def _group_size(waiting: list[PendingEnqueue]) -> int:
    """How many calls fit into one statement; at least one."""
    runs = 0
    for at, call in enumerate(waiting):
        runs += len(call.runs)
        if runs > MAX_BATCH_ROWS:
            return max(at, 1)
    return len(waiting)
