"""Hooks: functions of the application that run when a worker starts or stops, and when a run has failed."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeAlias

from holdfast.engine.threads import TimerThread, run_in_own_thread
from holdfast.errors import ConfigError, StoreUnavailable
from holdfast.model.interactive import is_defined_interactively
from holdfast.telemetry import log

MAX_CONCURRENT_HOOKS = 8
MAX_QUEUED = 1000
"""With this many failures queued, the worker stops claiming. Runs that fail meanwhile are still queued."""
MAX_QUEUED_AT_ALL = 100_000
"""Beyond this, failures are logged as not delivered: recovery and deadlines can fail any number of runs at once."""
SLOW_AFTER_S = 60.0
STALLED_AFTER_S = 60.0
WARNING_INTERVAL_S = 60.0
RETRY_PAUSE_S = 1.0

Hook: TypeAlias = Callable[..., Any]

_NOTHING = object()


class Hooks:
    """The functions registered with `@app.on_start` and its siblings, and the app's resources."""

    def __init__(self) -> None:
        self.on_start: list[Hook] = []
        self.on_stop: list[Hook] = []
        self.on_failure: list[Hook] = []
        self.middleware: list[Hook] = []
        self.around_calls: list[Callable[[], None]] = []
        """Called before and after user code in each pool thread and process, for integrations that keep resources
        per thread or process. They must be module-level functions, because processes import them."""
        self.at_thread_end: list[Callable[[], None]] = []
        """Called when a pool thread ends, and in a process after each call. Module-level functions too."""
        self.resources: dict[str, Any] = {}
        self.overrides: dict[str, Any] = {}
        """Resources that tests put in the place of others. An `on_start` function of that name isn't called."""

    @staticmethod
    def add(hooks: list[Hook], hook: Hook) -> None:
        """Add a function to one of the lists. In a notebook, a function of the same name replaces the one before."""
        if is_defined_interactively(hook):
            hooks[:] = [known for known in hooks if not (is_defined_interactively(known) and _same_name(known, hook))]
        hooks.append(hook)


class Lifespan:
    """Runs the start hooks of one worker in order, and its stop hooks in reverse order."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self._open: list[Iterator[Any] | AsyncIterator[Any]] = []

    @property
    def resources(self) -> Mapping[str, Any]:
        """What the start hooks have yielded, by name."""
        return self._hooks.resources

    async def start(self) -> None:
        """Run the start hooks. Store what they yield in `resources`, by the hook's name or as a mapping."""
        overridden, yielded = self._hooks.overrides, set[str]()
        for hook in self._hooks.on_start:
            if hook.__name__ in overridden:
                continue
            if inspect.isasyncgenfunction(hook):
                stream = hook()
                yielded |= self._store(hook, await anext(stream, _NOTHING))
                self._open.append(stream)
            elif inspect.isgeneratorfunction(hook):
                generator = hook()
                yielded |= self._store(hook, await run_in_own_thread(next, generator, _NOTHING))
                self._open.append(generator)
            else:
                await _call_hook(hook)
        known = {*yielded, *(hook.__name__ for hook in self._hooks.on_start)}
        if unknown := overridden.keys() - known:
            raise ConfigError(f"override: no @app.on_start function provides {', '.join(sorted(unknown))}")
        self._hooks.resources.update(overridden)

    def _store(self, hook: Hook, value: Any) -> set[str]:
        """Store what a hook yielded; return the names of the resources."""
        if value is _NOTHING:
            raise ConfigError(f"the on_start function {hook.__name__} ended without a yield")
        given = value if isinstance(value, Mapping) else {} if value is None else {hook.__name__: value}
        self._hooks.resources.update(given)
        return set(given)

    async def stop(self) -> None:
        """Run the stop hooks, then the rest of the start hooks. If one raises, the others still run."""
        for hook in reversed(self._hooks.on_stop):
            try:
                await _call_hook(hook)
            except Exception:
                log.hook_failed(f"on_stop {hook.__name__}")
        await self.abort()

    async def abort(self) -> None:
        """Run the code after the `yield` of all start hooks that reached it."""
        while self._open:
            opened = self._open.pop()
            try:
                if isinstance(opened, AsyncIterator):
                    await anext(opened, None)
                else:
                    await run_in_own_thread(next, opened, None)
            except Exception:
                log.hook_failed("on_start, after its yield,")


async def _call_hook(hook: Hook) -> None:
    """Call a coroutine function on the event loop and a plain function in a thread, because it may block."""
    if inspect.iscoroutinefunction(hook):
        await hook()
    else:
        await run_in_own_thread(hook)


class FailureDelivery:
    """One failed run whose hooks are being called."""

    __slots__ = ("hook", "run", "started_at", "warned")

    def __init__(self, run: str, started_at: float) -> None:
        self.run = run
        self.started_at = started_at
        self.hook = "(reading the run)"
        self.warned = False


class FailureNotifier:
    """Calls the `on_failure` hooks for failed runs: a bounded number at a time, the rest in a queue in memory.

    `def` hooks run in threads, `async def` hooks on the event loop. Delivery is best effort. While the queue is full,
    the worker claims no new runs, so that slow hooks slow the work down instead of filling the process with threads.
    Runs matter more than notifications, though: hooks that all hang don't keep the worker from claiming for longer
    than `STALLED_AFTER_S`.

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
        self.queue: deque[str] = deque()
        """The failed runs that wait for their hooks."""
        self._active: set[FailureDelivery] = set()
        self._closed = threading.Event()
        self._last_progress = 0.0
        self._last_warning = float("-inf")
        self._dropped = 0  # since the last warning
        self._check_is_scheduled = False

    @property
    def pending(self) -> int:
        """The number of failed runs that are queued or being delivered."""
        return len(self.queue) + len(self._active)

    def has_room(self) -> bool:
        """Return whether the worker may claim: the queue isn't full, or the hooks hang and waiting doesn't help."""
        return len(self.queue) < MAX_QUEUED or self._is_stalled()

    def notify(self, run: str) -> None:
        """Queue a failed run for its hooks. From any thread."""
        if not self._hooks:
            return
        with self._lock:
            closed = self._closed.is_set()
            if not closed and len(self.queue) < MAX_QUEUED_AT_ALL:
                self.queue.append(run)
            else:
                self._dropped += 1
        if closed:
            log.failures_not_delivered(1)
            return
        self._start_deliveries()
        if self._dropped or len(self.queue) >= MAX_QUEUED:
            self._warn()

    def close(self) -> None:
        """Start no further delivery, and log how many runs were not delivered."""
        with self._lock:
            self._closed.set()
            undelivered = self.pending
            self.queue.clear()
        if undelivered:
            log.failures_not_delivered(undelivered)

    # Delivering

    def _start_deliveries(self) -> None:
        while True:
            with self._lock:
                if not self.queue or len(self._active) >= MAX_CONCURRENT_HOOKS or self._closed.is_set():
                    return
                now = self._last_progress = self._monotonic()
                delivery = FailureDelivery(self.queue.popleft(), now)
                self._active.add(delivery)
                has_room_again = len(self.queue) == MAX_QUEUED - 1
                watch = not self._check_is_scheduled
                self._check_is_scheduled = True
            if has_room_again:
                self._on_room()
            if watch:
                self._timer_thread.call_later(SLOW_AFTER_S, self._warn_of_slow_hooks)
            try:
                self._run_in_thread(partial(self._deliver, delivery))
            except RuntimeError:  # the system can't start another thread now
                with self._lock:
                    self._active.discard(delivery)
                    self.queue.appendleft(delivery.run)
                self._timer_thread.call_later(RETRY_PAUSE_S, self._start_deliveries)
                return

    def _deliver(self, delivery: FailureDelivery) -> None:
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
            queued, dropped, self._dropped = len(self.queue), self._dropped, 0
        log.failure_hooks_behind(queued, MAX_CONCURRENT_HOOKS, dropped)

    def _warn_of_slow_hooks(self) -> None:
        now = self._monotonic()
        with self._lock:
            slow = [each for each in self._active if not each.warned and now - each.started_at >= SLOW_AFTER_S]
            for each in slow:
                each.warned = True
            self._check_is_scheduled = bool(self._active)
            again = self._check_is_scheduled
        for each in slow:
            log.failure_hook_slow(each.hook, each.run, now - each.started_at)
        if again:
            self._timer_thread.call_later(SLOW_AFTER_S, self._warn_of_slow_hooks)


def _same_name(hook: Hook, other: Hook) -> bool:
    return getattr(hook, "__qualname__", hook) == getattr(other, "__qualname__", other)


def _name_of(hook: Hook) -> str:
    return getattr(hook, "__name__", None) or repr(hook)
