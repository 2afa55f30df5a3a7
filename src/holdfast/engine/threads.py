"""Threads for author code that is a plain `def`.

Not the standard library's pool: that one is joined when the interpreter ends, so that a hung function would keep the
process from ending. These are daemons, made when needed and kept.
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

from holdfast.engine.loops.base import NOT_BEFORE_WOKEN, Loop
from holdfast.telemetry import log

ABANDON_AFTER_S = 1.0
"""How long code that was ordered to stop may continue before its run continues without it."""


class ThreadCall:
    """One call in a thread. A thread can't be killed: a call that doesn't return can only be abandoned."""

    __slots__ = ("_lost", "_pool", "_returned", "_run")

    def __init__(self, pool: Threads, run: Callable[[], None]) -> None:
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


class Threads:
    """Runs each call in a thread of its own, reusing idle ones. The caller limits how many there are.

    `lost` counts the threads whose calls were abandoned and have not returned.
    """

    def __init__(self, between: Sequence[Callable[[], None]] = ()) -> None:
        self._between = between
        self._calls: queue.SimpleQueue[ThreadCall | None] = queue.SimpleQueue()
        self._idle = 0
        self._started = 0
        self._owed = 0  # calls that wait for a thread that is busy now
        self.lost = 0
        self.lock = threading.Lock()

    def run(self, call: Callable[[], None]) -> ThreadCall:
        """Run the call soon. If the system gives no more threads, the call waits for one that becomes free;
        RuntimeError if there is none at all."""
        with self.lock:
            if self._idle:
                self._idle -= 1
            else:
                self._start_or_wait()
        handle = ThreadCall(self, call)
        self._calls.put(handle)
        return handle

    def _start_or_wait(self) -> None:
        try:
            threading.Thread(target=self._serve, name=f"holdfast-thread-{self._started + 1}", daemon=True).start()
        except RuntimeError:
            if not self._started:
                raise
            self._owed += 1
        else:
            self._started += 1

    def close(self) -> None:
        """Let the threads end when they are idle."""
        for _ in range(self._started):
            self._calls.put(None)

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            self._prepare()
            try:
                contextvars.Context().run(call)
            except BaseException:
                log.loop_failed("thread")
            del call
            self._prepare()
            with self.lock:
                if self._owed:
                    self._owed -= 1
                else:
                    self._idle += 1

    def _prepare(self) -> None:
        """The thread is about to be used, or was: what an integration keeps for it is looked after."""
        for function in self._between:
            try:
                function()
            except Exception:
                log.hook_failed(function.__qualname__)


# aside

T = TypeVar("T")


async def aside(call: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Run a blocking call beside the loop and wait for it."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(set_outcome: Callable[[Any], None], outcome: Any) -> None:
        if not future.done():
            set_outcome(outcome)

    def run() -> None:
        set_outcome: Callable[[Any], None] = future.set_result
        try:
            outcome: Any = call(*args, **kwargs)
        except StopIteration as error:  # which no future can carry
            set_outcome, outcome = future.set_exception, RuntimeError(f"{call} raised {error!r}")
        except BaseException as error:
            set_outcome, outcome = future.set_exception, error
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, set_outcome, outcome)

    threading.Thread(target=run, name="holdfast-aside", daemon=True).start()
    return await future


def beside(call: Callable[[], T]) -> Future[T]:
    """Start a blocking call in a thread and return its future. Cancelling the future doesn't stop the thread."""
    ended: Future[T] = Future()

    def run() -> None:
        try:
            outcome = call()
        except BaseException as error:
            with suppress(InvalidStateError):  # cancelled
                ended.set_exception(error)
        else:
            with suppress(InvalidStateError):
                ended.set_result(outcome)

    threading.Thread(target=run, name="holdfast-aside", daemon=True).start()
    return ended


def to_the_end(call: Callable[[], None], hurry: Callable[[], None]) -> None:
    """Wait for a blocking call, also when a signal interrupts us: that hurries the call, and is raised after it."""
    ended = beside(call)
    interrupted: BaseException | None = None
    while not ended.done():
        try:
            ended.exception()
        except BaseException as error:
            interrupted = error
            hurry()
    if interrupted is not None:
        raise interrupted
    ended.result()


# timer_thread


class Alarm:
    """A call to be made at a time, unless it is cancelled before."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[[], None]) -> None:
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        """Forget the call, and what it holds, now."""
        self.call = None


class TimerThread(Loop):
    """Makes calls when their time has come."""

    name = "timer_thread"

    def __init__(self) -> None:
        super().__init__()
        self._waiting: list[tuple[float, int, Alarm]] = []
        self._numbers = itertools.count()
        self._lock = threading.Lock()

    def set(self, seconds: float, call: Callable[[], None]) -> Alarm:
        """Make the call in so many seconds, on the thread of the timer_thread."""
        alarm = Alarm(call)
        with self._lock:
            heapq.heappush(self._waiting, (time.monotonic() + seconds, next(self._numbers), alarm))
            first = self._waiting[0][2] is alarm
        if first:
            self.wake()
        return alarm

    def tick(self) -> float:
        while True:
            with self._lock:
                if not self._waiting:
                    return NOT_BEFORE_WOKEN
                left = self._waiting[0][0] - time.monotonic()
                if left > 0:
                    return left
                _, _, alarm = heapq.heappop(self._waiting)
            call = alarm.call
            if call is not None:
                call()
