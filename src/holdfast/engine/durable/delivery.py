"""Deliver outcomes to the code of one run in the order of their numbers, both live and in a replay.

Code with concurrent branches can observe the order in which they finish (`as_completed`, `wait`, a shared list). A
replay must show it the same order, so outcomes are delivered one at a time:

* The recorded outcome with the lowest number comes first. If the code never requests it, because its step was removed,
  it is skipped after the event loop has run for some iterations without other activity.
* While the function has several tasks, the event loop runs for some iterations before each outcome, counted from the
  previous outcome or request. So one outcome has all its consequences before the next is delivered, and a branch that
  takes a few iterations to its first request has made it. A function without branches isn't slowed down.

`WritesAhead` counts writes whose outcome user code got before they were durable.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Iterable
from typing import Any

from holdfast.engine.write_queue import WriteResult
from holdfast.store.commands import RUN_LOST

ITERATIONS_BETWEEN_OUTCOMES = 25
"""Iterations of the event loop between two outcomes of concurrent branches; enough for nested groups to react."""
ITERATIONS_BEFORE_SKIP = 50
"""Iterations without activity after which a recorded outcome that nobody requested is skipped."""


class OrderedDelivery:
    """The outcomes of one run on their way to its code, and the branches that they are delivered to."""

    __slots__ = (
        "_branches", "_cancelled", "_expected", "_idle_iterations", "_is_scheduled", "_loop", "_only", "_ready",
        "_requested", "_skipped", "futures", "has_branches",
    )  # fmt: skip

    def __init__(self, loop: asyncio.AbstractEventLoop, recorded: Iterable[int]) -> None:
        self._loop = loop
        self.has_branches = False
        """Whether user code runs tasks beside the function's own."""
        self.futures: set[asyncio.Future[Any]] = set()
        """Futures that user code awaits."""
        self._branches: set[asyncio.Task[Any]] = set()
        self._expected = list(recorded)  # A heap of the numbers to deliver.
        heapq.heapify(self._expected)
        self._requested: set[int] = set()
        self._ready: dict[int, tuple[asyncio.Future[Any], Any]] = {}
        self._cancelled: set[int] = set()
        self._skipped: set[int] = set()
        self._idle_iterations = ITERATIONS_BETWEEN_OUTCOMES
        self._is_scheduled = False
        self._only = 0
        """The number that a function without branches waits for while nothing else is expected, which is the usual
        case and needs no ordering; else 0."""

    # Branches

    def add_branch(self, task: asyncio.Task[Any]) -> None:
        """Deliver to this task too, until it ends."""
        if task not in self._branches:
            self._branches.add(task)
            task.add_done_callback(self._remove_branch)
            self.has_branches = True

    def _remove_branch(self, task: asyncio.Task[Any]) -> None:
        self._branches.discard(task)
        self.has_branches = bool(self._branches)

    def cancel_branches(self) -> None:
        """Cancel all branches except the calling one."""
        current = asyncio.current_task()
        for task in list(self._branches):
            if task is not current and not task.done():
                task.add_done_callback(_ignore_exception)
                task.cancel()

    # Outcomes

    def expect(self, n: int, *, recorded: bool = False) -> None:
        """Note that user code has requested the outcome with this number."""
        if self._only:
            self._enqueue_only()
        elif not (self.has_branches or recorded or self._expected):
            self._only = n
            return
        if not recorded:
            heapq.heappush(self._expected, n)
        elif n in self._skipped:
            self._skipped.discard(n)
            heapq.heappush(self._expected, n)
        self._requested.add(n)
        if self.has_branches:
            self.note_activity()

    def _enqueue_only(self) -> None:
        """Order the only expected outcome among others from now on."""
        heapq.heappush(self._expected, self._only)
        self._requested.add(self._only)
        self._only = 0

    def cancel(self, n: int) -> None:
        """Note that no outcome comes with this number."""
        if n == self._only:
            self._only = 0
            return
        self._requested.discard(n)
        self._cancelled.add(n)
        self._schedule()

    def deliver(self, n: int, future: asyncio.Future[Any], value: Any) -> None:
        """Resolve the future with the value when it is this number's turn."""
        if n == self._only:
            if not self.has_branches:
                self._only = 0
                self.futures.discard(future)
                if not future.done():
                    future.set_result(value)
                return
            self._enqueue_only()
        is_due = not self._is_scheduled and self._idle_iterations >= ITERATIONS_BETWEEN_OUTCOMES
        if is_due and self._next() == n:
            self._resolve_next(future, value)
        else:
            self._ready[n] = (future, value)
        self._schedule()

    def note_activity(self) -> None:
        """Restart the count of idle iterations, because a branch requested something."""
        if self.has_branches:
            self._idle_iterations = 0
            self._schedule()

    @property
    def is_idle(self) -> bool:
        """Whether no outcome is on its way."""
        return not (self._ready or self._requested or self._only or self._is_scheduled)

    def _schedule(self) -> None:
        if not self._is_scheduled and (self._ready or self._idle_iterations < ITERATIONS_BETWEEN_OUTCOMES):
            self._is_scheduled = True
            self._loop.call_soon(self._iterate)

    def _iterate(self) -> None:
        """Deliver at most one outcome, in one iteration of the event loop."""
        self._is_scheduled = False
        n = self._next()
        if n is not None and n in self._ready:
            if self._idle_iterations >= ITERATIONS_BETWEEN_OUTCOMES:
                self._resolve_next(*self._ready.pop(n))
        elif self._ready and n not in self._requested and self._idle_iterations >= ITERATIONS_BEFORE_SKIP:
            self._skipped.add(heapq.heappop(self._expected))
        self._idle_iterations += 1
        waits_for_next = self._ready and n in self._requested and n not in self._ready
        if waits_for_next and self._idle_iterations > ITERATIONS_BEFORE_SKIP:
            return  # The delivery of that outcome schedules the next iteration.
        self._schedule()

    def _next(self) -> int | None:
        while self._expected and self._expected[0] in self._cancelled:
            self._cancelled.discard(heapq.heappop(self._expected))
        return self._expected[0] if self._expected else None

    def _resolve_next(self, future: asyncio.Future[Any], value: Any) -> None:
        self._requested.discard(heapq.heappop(self._expected))
        self._idle_iterations = 0 if self.has_branches else ITERATIONS_BETWEEN_OUTCOMES
        self.futures.discard(future)
        if not future.done():
            future.set_result(value)


class WritesAhead:
    """The writes of one attempt that its code didn't wait for."""

    __slots__ = ("_failure", "_waiters", "count")

    def __init__(self) -> None:
        self.count = 0
        self._failure: Exception | None = None
        self._waiters: list[asyncio.Future[Any]] = []

    def answered(self, result: WriteResult) -> None:
        """Note the result of a write. If the run is lost, nobody is woken: user code is being cancelled."""
        if result is RUN_LOST:
            return
        self.count -= 1
        if isinstance(result, Exception) and self._failure is None:
            self._failure = result
        if not self.count:
            waiters, self._waiters = self._waiters, []
            for future in waiters:
                if not future.done():
                    future.set_result(None)

    async def wait(self, new_future: Callable[[], asyncio.Future[Any]]) -> None:
        """Wait until all are durable; raise the error of one that couldn't be written."""
        while self.count:
            self._waiters.append(future := new_future())
            await future
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure


def _ignore_exception(task: asyncio.Task[Any]) -> None:
    """Keep asyncio from reporting what a cancelled branch raised, such as in a `finally` block: nobody awaits it."""
    if not task.cancelled():
        task.exception()
