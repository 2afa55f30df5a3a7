"""Keep suspended `async def` functions in memory, so that they resume in place instead of being replayed.

A resident function holds no slot, no permit and no lease: in the database its run waits like any other, and any worker
may claim and replay it. If this worker claims it next, the function continues where it waits. Two conditions ensure
that its memory equals what a replay would rebuild:

* The end of its last attempt is durable, and with it everything that the attempt wrote before. `confirm` reports that.
* Nobody has claimed the run since: its fence is the next one, in the same session and generation.

Otherwise the copy in memory is discarded, and the run is replayed.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING

from holdfast.engine.attempt import Attempt

if TYPE_CHECKING:
    from holdfast.engine.durable.async_executor import AsyncExecutor

BYTES_PER_FUNCTION = 20 * 1024
"""About what a function with few variables takes: its coroutine, its task, its context and its waits."""
BYTES_PER_OUTCOME = 200
"""About what the executor remembers of each operation, such as its key."""
BYTES_PER_PAYLOAD_BYTE = 4
"""About how much larger Python objects are than their JSON text."""


@dataclass(slots=True)
class ResidentFunction:
    """A suspended function in memory, and the attempt that it was suspended in."""

    executor: AsyncExecutor
    attempt: Attempt
    size: int
    is_confirmed: bool = False
    """Whether its suspension is durable."""

    def is_current(self, next_attempt: Attempt) -> bool:
        """Return whether nothing has happened to the run between the two attempts but outcomes of its waits."""
        mine, claim = self.attempt.claim, next_attempt.claim
        return (
            self.is_confirmed
            and not self.executor.is_discarded
            and claim.fence == mine.fence + 1
            and claim.generation == mine.generation
            and claim.spent > mine.spent  # it starts over if the run was cancelled and retried
            and claim.ending is None
            and next_attempt.session == self.attempt.session
            and next_attempt.task is self.attempt.task
        )


class ResidentFunctions:
    """The resident functions of one worker, bounded in number and bytes: the least recently suspended go first."""

    def __init__(self, max_count: int, max_bytes: int) -> None:
        self._max_count = max_count
        self._max_bytes = max_bytes
        self._functions: OrderedDict[str, ResidentFunction] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()
        self.loop: asyncio.AbstractEventLoop | None = None

    def __len__(self) -> int:
        return len(self._functions)

    def accepts(self, executor: AsyncExecutor) -> bool:
        """Return whether a function may stay in memory.

        Its spans end with each attempt, so a traced function is replayed in a new one. A thread that still runs belongs
        to the attempt that started it.
        """
        attempt = executor.current
        is_traced = attempt.telemetry is not None and attempt.telemetry.span is not None
        is_small = _size(executor) <= self._max_bytes and self._max_count > 0
        return is_small and not is_traced and not attempt.isolated and not executor.calls.threads

    def add(self, executor: AsyncExecutor) -> None:
        """Keep a function that is being suspended. On the event loop."""
        attempt, size = executor.current, _size(executor)
        with self._lock:
            evicted = self._remove(attempt.claim.id)
            self._functions[attempt.claim.id] = ResidentFunction(executor, attempt, size)
            self._bytes += size
            while len(self._functions) > self._max_count or self._bytes > self._max_bytes:
                evicted += self._remove(next(iter(self._functions)))
        for function in evicted:
            function.executor.discard()

    def confirm(self, attempt: Attempt) -> None:
        """Note that the suspension in which an attempt ended is durable. From any thread."""
        with self._lock:
            function = self._functions.get(attempt.claim.id)
            if function is not None and function.attempt is attempt:
                function.is_confirmed = True

    def take(self, attempt: Attempt) -> AsyncExecutor | None:
        """Return the executor that continues as this attempt; None if the run has to be replayed. From any thread."""
        if not self._functions:
            return None
        with self._lock:
            removed = self._remove(attempt.claim.id)
        for function in removed:
            if function.is_current(attempt):
                return function.executor
            self.discard(function.executor)
        return None

    def retain(self, find_suspended: Callable[[Sequence[str]], Set[tuple[str, int]]]) -> None:
        """Discard functions whose run has ended or belongs to another worker. From any thread; reads the database.

        `find_suspended` returns id and fence of those of the given runs that are suspended.
        """
        with self._lock:
            known = {run: each.attempt for run, each in self._functions.items() if each.is_confirmed}
        if not known:
            return
        suspended = find_suspended(list(known))
        for run, attempt in known.items():
            if (run, attempt.claim.fence) not in suspended:
                self.reject(attempt)

    def reject(self, attempt: Attempt) -> None:
        """Discard the function that was suspended in this attempt, if there is one. From any thread."""
        if not self._functions:
            return
        run = attempt.claim.id
        with self._lock:
            function = self._functions.get(run)
            removed = self._remove(run) if function is not None and function.attempt is attempt else []
        for each in removed:
            self.discard(each.executor)

    def discard(self, executor: AsyncExecutor) -> None:
        """Cancel the code of a function that won't continue here. From any thread."""
        if self.loop is not None:
            with suppress(RuntimeError):  # the loop was closed
                self.loop.call_soon_threadsafe(executor.discard)

    def close(self) -> list[asyncio.Task[None]]:
        """Discard all functions; return the tasks that clean up after them. From any thread."""
        with self._lock:
            functions, self._functions = list(self._functions.values()), OrderedDict()
            self._bytes = 0
        for function in functions:
            self.discard(function.executor)
        tasks = [function.attempt.loop_task for function in functions]
        return [task for task in tasks if task is not None]

    def _remove(self, run: str) -> list[ResidentFunction]:
        function = self._functions.pop(run, None)
        if function is None:
            return []
        self._bytes -= function.size
        return [function]


def _size(executor: AsyncExecutor) -> int:
    """Estimate the memory of a function, in bytes."""
    outcomes = BYTES_PER_OUTCOME * executor.plans.history.last_number
    return BYTES_PER_FUNCTION + BYTES_PER_PAYLOAD_BYTE * executor.payload_chars + outcomes
