"""Lets results reach the code of one run in the order of their numbers, live as in a replay.

Code that runs several branches at once sees in which order they come to something: `as_completed`, `wait`, a shared
list. A replay must show it the same order. So results are handed over one at a time:

* Of what is on record, the lowest number comes first. One that nobody asks for (its step was removed) is waited for as
  long as the loop still has something to do, a number of turns, and then holds up nothing any more.
* While several tasks are at it, the loop gets some turns before each result, counted from the last one and from the
  last thing asked for: so one has had all its consequences before the next is seen, and a branch that takes a few turns
  to its first question has asked it. A function that does one thing after the other isn't slowed down.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Iterable
from typing import Any

ITERATIONS_BETWEEN_RESULTS = 25
"""Turns of the loop between two results of concurrent branches: enough for groups within groups to notice."""
ITERATIONS_BEFORE_SKIP = 50
"""Turns that a recorded result gets to be asked for."""


class OrderedDelivery:
    """The results of one run on their way to its code. `several` says whether more than one task is at it."""

    __slots__ = (
        "_asked", "_expected", "_given_up", "_gone", "_lone", "_loop", "_pumping", "_quiet", "_ready", "several",
    )  # fmt: skip

    def __init__(self, loop: asyncio.AbstractEventLoop, recorded: Iterable[int]) -> None:
        self._loop = loop
        self.several = False
        """Whether other tasks than the function's own are at it."""
        self._expected = list(recorded)
        heapq.heapify(self._expected)
        self._asked: set[int] = set()
        self._ready: dict[int, tuple[asyncio.Future[Any], Any]] = {}
        self._gone: set[int] = set()
        self._given_up: set[int] = set()
        self._quiet = ITERATIONS_BETWEEN_RESULTS
        self._pumping = False
        self._lone = 0
        """The number that a function without branches waits for, when nothing else is on its way: mostly it is so, and
        then there is no order to keep."""

    def ask(self, n: int, *, recorded: bool = False) -> None:
        """A result will come under this number."""
        if self._lone:
            self._line_up()
        elif not (self.several or recorded or self._expected):
            self._lone = n
            return
        if not recorded:
            heapq.heappush(self._expected, n)
        elif n in self._given_up:
            self._given_up.discard(n)
            heapq.heappush(self._expected, n)
        self._asked.add(n)
        if self.several:
            self.opened()

    def _line_up(self) -> None:
        """The lone number gets company."""
        heapq.heappush(self._expected, self._lone)
        self._asked.add(self._lone)
        self._lone = 0

    def drop(self, n: int) -> None:
        """Nothing will come under this number after all."""
        if n == self._lone:
            self._lone = 0
            return
        self._asked.discard(n)
        self._gone.add(n)
        self._start()

    def deliver(self, n: int, future: asyncio.Future[Any], value: Any) -> None:
        """The result of a number is here: it is handed over when its turn comes."""
        if n == self._lone:
            if not self.several:
                self._lone = 0
                if not future.done():
                    future.set_result(value)
                return
            self._line_up()
        if not self._pumping and self._quiet >= ITERATIONS_BETWEEN_RESULTS and self._lowest() == n:
            self._hand_over(n, future, value)
        else:
            self._ready[n] = (future, value)
        self._start()

    def opened(self) -> None:
        """A branch waits for something more."""
        if self.several:
            self._quiet = 0
            self._start()

    @property
    def idle(self) -> bool:
        """Whether nothing is on its way."""
        return not (self._ready or self._asked or self._lone or self._pumping)

    def _start(self) -> None:
        if not self._pumping and (self._ready or self._quiet < ITERATIONS_BETWEEN_RESULTS):
            self._pumping = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        """One turn of the loop."""
        self._pumping = False
        lowest = self._lowest()
        if lowest is not None and lowest in self._ready:
            if self._quiet >= ITERATIONS_BETWEEN_RESULTS:
                self._hand_over(lowest, *self._ready.pop(lowest))
        elif self._ready and lowest not in self._asked and self._quiet >= ITERATIONS_BEFORE_SKIP:
            assert lowest is not None
            self._given_up.add(heapq.heappop(self._expected))
        self._quiet += 1
        if self._ready and lowest in self._asked and lowest not in self._ready and self._quiet > ITERATIONS_BEFORE_SKIP:
            return  # something that is under way comes first: it starts the pump again
        self._start()

    def _lowest(self) -> int | None:
        while self._expected and self._expected[0] in self._gone:
            self._gone.discard(heapq.heappop(self._expected))
        return self._expected[0] if self._expected else None

    def _hand_over(self, n: int, future: asyncio.Future[Any], value: Any) -> None:
        heapq.heappop(self._expected)  # it is the lowest
        self._asked.discard(n)
        self._quiet = 0 if self.several else ITERATIONS_BETWEEN_RESULTS
        if not future.done():
            future.set_result(value)


class Branches:
    """Tells the delivery whether there are any."""

    __slots__ = ("_delivery", "_tasks")

    def __init__(self, delivery: OrderedDelivery) -> None:
        self._delivery = delivery
        self._tasks: set[asyncio.Task[Any]] = set()

    def add(self, task: asyncio.Task[Any]) -> None:
        """A task takes part from now on, until it ends."""
        if task not in self._tasks:
            self._tasks.add(task)
            task.add_done_callback(self._leaves)
            self._delivery.several = True

    def _leaves(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        self._delivery.several = bool(self._tasks)

    def cancel(self) -> None:
        """Cancel all of them but the one that says so."""
        current = asyncio.current_task()
        for task in list(self._tasks):
            if task is not current and not task.done():
                task.cancel()
