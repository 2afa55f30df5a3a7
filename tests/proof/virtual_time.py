"""Virtual time and seeded randomness, patched into all modules of the library."""

from __future__ import annotations

import asyncio
import heapq
import logging
import random
import secrets
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, wait
from contextlib import ExitStack, contextmanager, suppress
from types import SimpleNamespace
from typing import Any
from unittest import mock

from greenlet import getcurrent

from holdfast.engine import components, event_loop, write_queue
from holdfast.engine.durable import steps, sync_executor
from holdfast.model import ids
from holdfast.telemetry import log

SECOND_US = 1_000_000
POLL_INTERVAL_S = 0.005
EPOCH_US = 1_800_000_000 * SECOND_US


class Clock:
    """A clock in microseconds that only the simulation advances; the database clock may jump relative to it."""

    def __init__(self) -> None:
        self.micros = 1000 * SECOND_US
        self.jumped = 0

    def monotonic(self) -> float:
        return self.micros / SECOND_US

    def database(self) -> int:
        return EPOCH_US + self.micros + self.jumped

    def time_ns(self) -> int:
        return self.database() * 1000


class SteppedLoop(asyncio.AbstractEventLoop):
    """An event loop on virtual time that runs a given number of callbacks per step, in the order of asyncio.

    `raised` collects exceptions from callbacks. The loop of a dead worker accepts no more callbacks.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._count = 0
        self._left_of_turn = 0
        self._dead = False
        self.tasks: list[asyncio.Task[Any]] = []
        self.raised: list[BaseException] = []
        self.blocker: asyncio.Task[Any] | None = None
        """The task whose code blocks the loop."""
        self.on_ready: Callable[[], None] = lambda: None
        """Called when the time of the next callback has moved forward."""

    # Interface to asyncio

    def time(self) -> float:
        return self._clock.monotonic()

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:  # type: ignore[override]
        handle = asyncio.Handle(callback, args, self, context)
        if not self._dead:
            self._ready.append(handle)
            if len(self._ready) == 1:
                self.on_ready()
        return handle

    call_soon_threadsafe = call_soon

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:  # type: ignore[override]
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:  # type: ignore[override]
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._count += 1
        if not self._dead:
            heapq.heappush(self._timers, (when, self._count, handle))
            if not self._ready and self._timers[0][2] is handle:
                self.on_ready()
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Keep cancelled timers until they are due."""

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Any = None) -> asyncio.Task[Any]:  # type: ignore[override]
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        self.tasks.append(task)
        return task

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is not None and not self._dead and context["message"].startswith("Exception in callback"):
            self.raised.append(error)

    # Interface to the simulation

    def next_at(self) -> float | None:
        """Return the time of the next callback; 0 means now, None that no callback is scheduled."""
        while self._timers and self._timers[0][2].cancelled():
            heapq.heappop(self._timers)
        if self._ready:
            return 0.0
        return self._timers[0][0] if self._timers else None

    def step(self, most: int) -> int:
        """Run up to `most` callbacks and return their number."""
        asyncio._set_running_loop(self)
        try:
            for done in range(most):
                if not self._left_of_turn:
                    self._begin_turn()
                if not self._ready:
                    self._left_of_turn = 0
                    return done
                self._left_of_turn -= 1
                handle = self._ready.popleft()
                if not handle.cancelled():
                    handle._run()
            return most
        finally:
            asyncio._set_running_loop(None)

    def _begin_turn(self) -> None:
        now = self.time()
        while self._timers and self._timers[0][0] <= now:
            _, _, handle = heapq.heappop(self._timers)
            if not handle.cancelled():
                self._ready.append(handle)
        self._left_of_turn = len(self._ready)

    def die(self) -> None:
        """Drop all callbacks and timers, as when the process dies."""
        self._dead = True
        self._ready.clear()
        self._timers.clear()

    def discard(self) -> None:
        """Close unfinished tasks without warnings."""
        self.die()
        for task in self.tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            if not task.done():
                with suppress(BaseException):  # Errors of task code in a dead process have no effect.
                    task.get_coro().close()  # type: ignore[union-attr]
        self.tasks.clear()


class SameThreadAsyncio:
    """asyncio for task threads that are greenlets: calls to the loop run immediately in the same thread."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    @staticmethod
    def run_coroutine_threadsafe(coroutine: Any, loop: SteppedLoop) -> SimpleNamespace:
        try:
            coroutine.send(None)
        except StopIteration as end:
            value = end.value
            return SimpleNamespace(result=lambda: value)
        raise AssertionError("the coroutine must not wait")


class SteppedFuture(Future[Any]):
    """A future that a greenlet can wait for. `pause` lets other threads run meanwhile."""

    pause: Callable[[float], None]

    def result(self, timeout: float | None = None) -> Any:
        wait_for([self], timeout)
        return super().result(0)


def wait_for(futures: Iterable[Future[Any]], timeout: float | None = None) -> Any:
    """Replace `concurrent.futures.wait` for greenlets."""
    futures = list(futures)
    left = 1e9 if timeout is None else timeout
    while left > 0 and not all(future.done() for future in futures):
        SteppedFuture.pause(POLL_INTERVAL_S)
        left -= POLL_INTERVAL_S
    return wait(futures, 0)


def greenlet_id() -> int:
    """Return an id of the current greenlet, in place of a thread id."""
    return id(getcurrent())


@contextmanager
def virtual(clock: Clock, seed: int, sleep: Callable[[float], None], failed: Callable[..., None]) -> Iterator[None]:
    """Patch the library to use this clock, this seed and this `sleep`.

    `failed` is called when a loop or a thread of the engine raises an unexpected exception.
    """
    rng = random.Random(f"chance {seed}")
    fake_time = SimpleNamespace(
        monotonic=clock.monotonic, perf_counter=clock.monotonic, time=clock.monotonic, time_ns=clock.time_ns,
        sleep=sleep,
    )  # fmt: skip
    fake_secrets = SimpleNamespace(token_hex=lambda size: f"{rng.getrandbits(8 * size):0{2 * size}x}")
    stand_ins = {"time": (time, fake_time), "random": (random, rng), "secrets": (secrets, fake_secrets)}
    logger = logging.getLogger("holdfast")
    disabled, logger.disabled = logger.disabled, True
    ids._random.seed(seed)
    ids._last = 0
    with ExitStack() as stack:
        for name, module in list(sys.modules.items()):
            if name.startswith("holdfast."):
                for attribute, (real, fake) in stand_ins.items():
                    if getattr(module, attribute, None) is real:
                        stack.enter_context(mock.patch.object(module, attribute, fake))
        stack.enter_context(mock.patch.object(components, "worker_name", return_value="worker"))
        stack.enter_context(mock.patch.object(write_queue, "get_ident", greenlet_id))
        stack.enter_context(mock.patch.object(steps, "asyncio", SameThreadAsyncio()))
        blocker_of = SimpleNamespace(current_task=lambda loop: loop.blocker)
        stack.enter_context(mock.patch.object(event_loop, "asyncio", blocker_of))
        stack.enter_context(mock.patch.object(SteppedFuture, "pause", sleep, create=True))
        stack.enter_context(mock.patch.object(sync_executor, "Future", SteppedFuture))
        stack.enter_context(mock.patch.object(sync_executor, "wait_for_futures", wait_for))
        stack.enter_context(mock.patch.object(log, "loop_failed", failed))
        try:
            yield
        finally:
            logger.disabled = disabled
            ids._reset_after_fork()
            ids._last = 0
