"""The author's functions around the work: at the start and the stop of a worker, and when a run has failed."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeAlias

from holdfast.engine.threads import TimerThread, aside
from holdfast.errors import ConfigError, StoreUnavailable
from holdfast.telemetry import log

Hook: TypeAlias = Callable[..., Any]
Between: TypeAlias = Callable[[], None]


class Hooks:
    """What `@app.on_start`, `@app.on_stop` and `@app.on_failure` registered, and what tasks get from it."""

    def __init__(self) -> None:
        self.on_start: list[Hook] = []
        self.on_stop: list[Hook] = []
        self.on_failure: list[Hook] = []
        self.between: list[Between] = []
        """Called before and after author code in each thread and process of ours, for what belongs to these: functions
        of modules, since a process imports them."""
        self.resources: dict[str, Any] = {}


# lifespan

NOTHING = object()


class Lifespan:
    """Runs the hooks of one worker: those at the start in order, those at the stop in reverse."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self._open: list[Iterator[Any] | AsyncIterator[Any]] = []

    async def start(self) -> None:
        """What a start hook yields is kept in `resources`: a mapping as it is, anything else under the hook's name."""
        for hook in self._hooks.on_start:
            if inspect.isasyncgenfunction(hook):
                stream = hook()
                self._keep(hook, await anext(stream, NOTHING))
                self._open.append(stream)
            elif inspect.isgeneratorfunction(hook):
                generator = hook()
                self._keep(hook, await aside(next, generator, NOTHING))
                self._open.append(generator)
            else:
                await _call(hook)

    def _keep(self, hook: Hook, value: Any) -> None:
        if value is NOTHING:
            raise ConfigError(f"the on_start function {hook.__name__} ended without a yield")
        if isinstance(value, Mapping):
            self._hooks.resources.update(value)
        elif value is not None:
            self._hooks.resources[hook.__name__] = value

    async def stop(self) -> None:
        """Run the stop hooks, then what stands after the yield of start hooks. One that raises doesn't keep others."""
        for hook in reversed(self._hooks.on_stop):
            try:
                await _call(hook)
            except Exception:
                log.hook_failed(f"on_stop {hook.__name__}")
        await self.abort()

    async def abort(self) -> None:
        """Run what stands after the yield of the start hooks that got so far."""
        while self._open:
            opened = self._open.pop()
            try:
                if isinstance(opened, AsyncIterator):
                    await anext(opened, None)
                else:
                    await aside(next, opened, None)
            except Exception:
                log.hook_failed("on_start, after its yield,")


async def _call(hook: Hook) -> None:
    """Coroutines on the loop, plain functions in a thread: they may block, and may use the blocking verbs."""
    if inspect.iscoroutinefunction(hook):
        await hook()
    else:
        await aside(hook)


# failure_notifier

MAX_CONCURRENT_HOOKS = 8
MAX_QUEUED = 1000
"""With this many queued, the worker stops claiming. Runs that fail meanwhile are still queued."""
MAX_QUEUED_AT_ALL = 100_000
"""Beyond this, failures are logged as not delivered: recovery and deadlines can fail any number of runs at once."""
SLOW_AFTER_S = 60.0
STALLED_AFTER_S = 60.0
WARNING_INTERVAL_S = 60.0
RETRY_PAUSE_S = 1.0


class Delivery:
    """One failed run whose hooks are being called."""

    __slots__ = ("hook", "run", "started_at", "warned")

    def __init__(self, run: str, started_at: float) -> None:
        self.run = run
        self.started_at = started_at
        self.hook = "(reading the run)"
        self.warned = False


class FailureNotifier:
    """Queues failed runs and calls the hooks for each: `def` hooks in threads, `async def` ones on the event loop.

    `notify` never blocks. `on_room` is called when the queue has room again.
    """

    def __init__(
        self,
        hooks: Hooks,
        read_info: Callable[[str], Any],
        run_in_thread: Callable[[Callable[[], None]], object],
        loop: Callable[[], asyncio.AbstractEventLoop],
        timer_thread: TimerThread,
        on_room: Callable[[], None],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._hooks: list[Hook] = hooks.on_failure
        self._read_info = read_info
        self._run_in_thread = run_in_thread
        self._loop = loop
        self._timer_thread = timer_thread
        self._on_room = on_room
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._queue: deque[str] = deque()
        self._active: set[Delivery] = set()
        self._closed = threading.Event()
        self._last_progress = 0.0
        self._last_warning = float("-inf")
        self._dropped = 0  # since the last warning
        self._alarm_is_set = False

    @property
    def pending(self) -> int:
        """Return how many failed runs are queued or being delivered."""
        return len(self._queue) + len(self._active)

    def has_room(self) -> bool:
        """Return whether the worker may claim: the queue isn't full, or the hooks hang and waiting doesn't help."""
        return len(self._queue) < MAX_QUEUED or self._is_stalled()

    def notify(self, run: str) -> None:
        """Call the hooks for a run that has failed, as soon as there is room for it. From any thread."""
        if not self._hooks:
            return
        with self._lock:
            closed = self._closed.is_set()
            if not closed and len(self._queue) < MAX_QUEUED_AT_ALL:
                self._queue.append(run)
            else:
                self._dropped += 1
        if closed:
            log.failures_not_delivered(1)
            return
        self._start_deliveries()
        if self._dropped or len(self._queue) >= MAX_QUEUED:
            self._warn()

    def close(self) -> None:
        """Start no further delivery, and log how many runs were not delivered."""
        with self._lock:
            self._closed.set()
            undelivered = self.pending
            self._queue.clear()
        if undelivered:
            log.failures_not_delivered(undelivered)

    # Delivering

    def _start_deliveries(self) -> None:
        while True:
            with self._lock:
                if not self._queue or len(self._active) >= MAX_CONCURRENT_HOOKS or self._closed.is_set():
                    return
                now = self._last_progress = self._monotonic()
                delivery = Delivery(self._queue.popleft(), now)
                self._active.add(delivery)
                has_room_again = len(self._queue) == MAX_QUEUED - 1
                watch = not self._alarm_is_set
                self._alarm_is_set = True
            if has_room_again:
                self._on_room()
            if watch:
                self._timer_thread.set(SLOW_AFTER_S, self._warn_of_slow_hooks)
            try:
                self._run_in_thread(partial(self._deliver, delivery))
            except RuntimeError:  # the system has no thread left just now
                with self._lock:
                    self._active.discard(delivery)
                    self._queue.appendleft(delivery.run)
                self._timer_thread.set(RETRY_PAUSE_S, self._start_deliveries)
                return

    def _deliver(self, delivery: Delivery) -> None:
        try:
            info = self._read(delivery.run)
            for hook in self._hooks if info is not None else ():
                delivery.hook = _name_of(hook)
                self._call(hook, info)
        except BaseException:
            log.hook_failed(f"on_failure, for run {delivery.run},")
        finally:
            with self._lock:
                self._active.discard(delivery)
                self._last_progress = self._monotonic()
            self._start_deliveries()

    def _read(self, run: str) -> Any:
        """Read the run, with retries while the database is unavailable; None if the worker stops first."""
        while not self._closed.is_set():
            try:
                return self._read_info(run)
            except StoreUnavailable:
                self._closed.wait(RETRY_PAUSE_S)
        return None

    def _call(self, hook: Hook, info: Any) -> None:
        """Call one hook. If it raises, the other hooks are still called."""
        try:
            if inspect.iscoroutinefunction(hook):
                asyncio.run_coroutine_threadsafe(hook(info), self._loop()).result()
            else:
                hook(info)
        except BaseException:
            log.hook_failed(f"on_failure {_name_of(hook)}")

    # Warning

    def _is_stalled(self) -> bool:
        """Return whether all deliveries under way have made no progress for `STALLED_AFTER_S`."""
        full = len(self._active) >= MAX_CONCURRENT_HOOKS
        return full and self._monotonic() - self._last_progress > STALLED_AFTER_S

    def _warn(self) -> None:
        now = self._monotonic()
        with self._lock:
            if now - self._last_warning < WARNING_INTERVAL_S:
                return
            self._last_warning = now
            queued, dropped, self._dropped = len(self._queue), self._dropped, 0
        log.failure_hooks_behind(queued, MAX_CONCURRENT_HOOKS, dropped)

    def _warn_of_slow_hooks(self) -> None:
        now = self._monotonic()
        with self._lock:
            slow = [each for each in self._active if not each.warned and now - each.started_at >= SLOW_AFTER_S]
            for each in slow:
                each.warned = True
            self._alarm_is_set = bool(self._active)
            again = self._alarm_is_set
        for each in slow:
            log.failure_hook_slow(each.hook, each.run, now - each.started_at)
        if again:
            self._timer_thread.set(SLOW_AFTER_S, self._warn_of_slow_hooks)


def _name_of(hook: Hook) -> str:
    return getattr(hook, "__name__", None) or repr(hook)
