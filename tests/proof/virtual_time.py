"""Virtual time and seeded chance, put in the place of the real ones in all modules of the library."""

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
from holdfast.engine.durable import async_executor, sync_executor
from holdfast.model import ids
from holdfast.telemetry import log

SECOND_US = 1_000_000
POLL_INTERVAL_S = 0.005
EPOCH_US = 1_800_000_000 * SECOND_US


class Clock:
    """Microseconds since the start, which only the simulation moves; the database's clock may jump beside it."""

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
    """An event loop that runs as many callbacks as it is told to, in the order in which asyncio would, on virtual time.

    What a callback raised is kept in `raised`. A loop whose worker has died takes nothing more.
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
        """The task whose code blocks it."""
        self.on_ready: Callable[[], None] = lambda: None
        """Called when there is something to do sooner than before."""

    # What asyncio asks for

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
        """Cancelled timers stay until their time comes."""

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

    # What the simulation does

    def next_at(self) -> float | None:
        """When there is something to do: now, later, or not before something happens."""
        while self._timers and self._timers[0][2].cancelled():
            heapq.heappop(self._timers)
        if self._ready:
            return 0.0
        return self._timers[0][0] if self._timers else None

    def step(self, most: int) -> int:
        """Run so many callbacks; how many there were."""
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
        """Nothing of it goes on."""
        self._dead = True
        self._ready.clear()
        self._timers.clear()

    def discard(self) -> None:
        """Let go of what was under way, in silence."""
        self.die()
        for task in self.tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            if not task.done():
                with suppress(BaseException):  # what author code does when it dies is nobody's business
                    task.get_coro().close()  # type: ignore[union-attr]
        self.tasks.clear()


class SameThreadAsyncio:
    """asyncio as a thread of author code sees it, where that is no thread: what it asks of the loop happens at once."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    @staticmethod
    def run_coroutine_threadsafe(coroutine: Any, loop: SteppedLoop) -> SimpleNamespace:
        try:
            coroutine.send(None)
        except StopIteration as end:
            value = end.value
            return SimpleNamespace(result=lambda: value)
        raise AssertionError("it waits for something, which it can't here")


class SteppedFuture(Future[Any]):
    """A future that a thread waits for, where that is no thread. `look` lets others go on for a moment."""

    pause: Callable[[float], None]

    def result(self, timeout: float | None = None) -> Any:
        wait_for([self], timeout)
        return super().result(0)


def wait_for(futures: Iterable[Future[Any]], timeout: float | None = None) -> Any:
    """`concurrent.futures.wait`, in the same way."""
    futures = list(futures)
    left = 1e9 if timeout is None else timeout
    while left > 0 and not all(future.done() for future in futures):
        SteppedFuture.pause(POLL_INTERVAL_S)
        left -= POLL_INTERVAL_S
    return wait(futures, 0)


def greenlet_id() -> int:
    """What runs in a greenlet of its own would run in a thread of its own."""
    return id(getcurrent())


@contextmanager
def virtual(clock: Clock, seed: int, sleep: Callable[[float], None], failed: Callable[..., None]) -> Iterator[None]:
    """The library lives on this clock and this seed. `sleep` is called instead of the real one, and `failed` when a
    loop or a thread of the engine raised something that it didn't expect."""
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
        stack.enter_context(mock.patch.object(async_executor, "asyncio", SameThreadAsyncio()))
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
