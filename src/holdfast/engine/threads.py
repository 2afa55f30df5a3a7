"""Threads: the pool for user code that is a plain `def`, single calls in threads of their own, and timers.

The pool isn't the standard library's, which is joined when the interpreter exits: a hung function would keep the
process alive. All threads here are daemons.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import itertools
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any, TypeVar

from holdfast.engine.loops.base import UNTIL_WOKEN_S, Loop
from holdfast.telemetry import log

T = TypeVar("T")
ABANDON_AFTER_S = 1.0
"""How long code that was asked to stop may continue before its run continues without it."""


class ThreadCall:
    """One call in a pool thread. A thread can't be killed: a call that doesn't return can only be abandoned."""

    __slots__ = ("_lost", "_pool", "_returned", "_run")

    def __init__(self, pool: ThreadPool, run: Callable[[], None]) -> None:
        self._pool = pool
        self._run: Callable[[], None] | None = run
        self._returned = False
        self._lost = False

    def __call__(self) -> None:
        assert self._run is not None
        try:
            self._run()
        finally:
            self._run = None  # an idle thread must not keep the arguments alive
            self._settle(returned=True)

    def abandon(self) -> None:
        """Count its thread as lost until it returns, if it hasn't returned."""
        self._settle(returned=False)

    def _settle(self, *, returned: bool) -> None:
        with self._pool.lock:
            if self._returned:
                return
            self._returned = returned
            was_lost, self._lost = self._lost, not returned
            self._pool.lost += self._lost - was_lost
            self._pool.unreturned -= returned


class ThreadPool:
    """Runs each call in a thread of its own, reusing idle ones. The caller limits how many there are.

    `lost` counts the threads whose calls were abandoned and have not returned.

    Args:
        around_calls: Called by each thread before and after a call, for integrations that keep resources per thread.
        at_end: Called by each thread when it ends.
    """

    def __init__(
        self, around_calls: Sequence[Callable[[], None]] = (), at_end: Sequence[Callable[[], None]] = ()
    ) -> None:
        self._around_calls = around_calls
        self._at_end = at_end
        self._calls: queue.SimpleQueue[ThreadCall | None] = queue.SimpleQueue()  # None ends a thread
        self._idle = 0
        self._alive = 0
        self._owed = 0  # queued calls that wait for a busy thread
        self._numbers = itertools.count(1)
        self._closed = False
        self._peak = 0  # the most calls at once since the last `shrink`
        self.lost = 0
        self.unreturned = 0
        """How many calls have not returned."""
        self.lock = threading.Lock()
        self._on_end = threading.Condition(self.lock)

    def run(self, call: Callable[[], None]) -> ThreadCall:
        """Run the call soon.

        If the system can't start more threads, the call waits for a busy one. Raises RuntimeError if there is none.
        """
        with self.lock:
            if self._idle:
                self._idle -= 1
            else:
                self._start_or_wait()
            self.unreturned += 1
            self._peak = max(self._peak, self.unreturned)
        handle = ThreadCall(self, call)
        self._calls.put(handle)
        return handle

    def _start_or_wait(self) -> None:
        name = f"holdfast-thread-{next(self._numbers)}"
        try:
            threading.Thread(target=self._serve, name=name, daemon=True).start()
        except RuntimeError:
            if not self._alive:
                raise
            self._owed += 1
        else:
            self._alive += 1

    def shrink(self) -> bool:
        """End idle threads that were not needed since the last call of this; return whether any thread is left.

        Idle threads take turns, so that without this, all threads of a burst would stay, with what they hold.
        """
        with self.lock:
            excess = min(self._idle, self._alive - self._peak)
            self._end_idle(excess)
            self._peak = self.unreturned
            return self._alive > excess

    def close(self, wait_s: float = 0.0) -> None:
        """End all threads that are idle, and the others after their call; wait for those whose call has returned."""
        deadline = time.monotonic() + wait_s
        with self.lock:
            self._closed = True
            self._end_idle(self._idle)
            while self._alive > self.unreturned and (left := deadline - time.monotonic()) > 0:
                self._on_end.wait(left)

    def _end_idle(self, count: int) -> None:
        for _ in range(count):
            self._idle -= 1
            self._calls.put(None)

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            self._call_all(self._around_calls)
            try:
                contextvars.Context().run(call)
            except BaseException:
                log.loop_failed("thread")
            del call
            self._call_all(self._around_calls)
            with self.lock:
                if self._owed:
                    self._owed -= 1
                elif self._closed:
                    break
                else:
                    self._idle += 1
        self._call_all(self._at_end)
        with self.lock:
            self._alive -= 1
            self._on_end.notify_all()

    @staticmethod
    def _call_all(functions: Sequence[Callable[[], None]]) -> None:
        for function in functions:
            try:
                function()
            except Exception:
                log.hook_failed(function.__qualname__)


# Single calls. Not in the event loop's default pool, which user code may have filled.


async def run_in_own_thread(call: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Run a blocking call in a new thread and await it."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(set_outcome: Callable[[Any], None], outcome: Any) -> None:
        if not future.done():
            set_outcome(outcome)

    def run() -> None:
        set_outcome: Callable[[Any], None] = future.set_result
        try:
            outcome: Any = call(*args, **kwargs)
        except StopIteration as error:  # a future can't carry it
            set_outcome, outcome = future.set_exception, RuntimeError(f"{call} raised {error!r}")
        except BaseException as error:
            set_outcome, outcome = future.set_exception, error
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, set_outcome, outcome)

    threading.Thread(target=run, name="holdfast-call", daemon=True).start()
    return await future


def start_in_own_thread(call: Callable[[], T]) -> Future[T]:
    """Start a blocking call in a new thread and return its future. Cancelling the future doesn't stop the thread."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            outcome = call()
        except BaseException as error:
            with suppress(InvalidStateError):  # cancelled
                future.set_exception(error)
        else:
            with suppress(InvalidStateError):
                future.set_result(outcome)

    threading.Thread(target=run, name="holdfast-call", daemon=True).start()
    return future


def run_uninterrupted(call: Callable[[], None], on_interrupt: Callable[[], None]) -> None:
    """Run a blocking call to its end. If a signal interrupts the wait, call `on_interrupt`, and raise afterwards."""
    future = start_in_own_thread(call)
    interrupted: BaseException | None = None
    while not future.done():
        try:
            future.exception()
        except BaseException as error:
            interrupted = error
            on_interrupt()
    if interrupted is not None:
        raise interrupted
    future.result()


# Timers


class ScheduledCall:
    """A call of the timer thread that can be cancelled."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[[], None]) -> None:
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        """Forget the call at once, with everything that it references."""
        self.call = None


class TimerThread(Loop):
    """Makes calls at given times, even while user code blocks the event loop."""

    name = "timer_thread"

    def __init__(self) -> None:
        super().__init__()
        self._scheduled: list[tuple[float, int, ScheduledCall]] = []
        self._numbers = itertools.count()
        self._lock = threading.Lock()

    def call_later(self, seconds: float, call: Callable[[], None]) -> ScheduledCall:
        """Make the call after `seconds`, on this thread."""
        scheduled = ScheduledCall(call)
        with self._lock:
            heapq.heappush(self._scheduled, (time.monotonic() + seconds, next(self._numbers), scheduled))
            is_first = self._scheduled[0][2] is scheduled
        if is_first:
            self.wake()
        return scheduled

    def tick(self) -> float:
        while True:
            with self._lock:
                if not self._scheduled:
                    return UNTIL_WOKEN_S
                left = self._scheduled[0][0] - time.monotonic()
                if left > 0:
                    return left
                _, _, scheduled = heapq.heappop(self._scheduled)
            call = scheduled.call
            if call is not None:
                call()
