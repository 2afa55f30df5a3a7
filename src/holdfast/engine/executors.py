"""The executors of an application: `concurrent.futures` executors in which tasks and steps with `run_in=name` run.

A call is awaited on the worker's event loop, so that cancelling the code that awaits it cancels its future. Opening an
executor and submitting to it may block and happen in a thread.

An executor whose process dies may lose all of its calls, and doesn't say which of them is to blame. So each of these
calls is repeated alone, in an executor of its own, one after the other: a call that breaks this one, too, is to blame.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import BrokenExecutor
from concurrent.futures import wait as wait_for_futures
from contextlib import suppress
from functools import partial
from typing import Any

from holdfast.engine.remote_call import RemoteCall
from holdfast.engine.threads import start_in_own_thread
from holdfast.errors import ConfigError, ExecutorLost
from holdfast.model.names import quoted
from holdfast.telemetry import log

SHUTDOWN_TIMEOUT_S = 5.0
"""How long a stopping worker waits for executors to shut down."""
MAX_SUBMITS = 3
"""How often a call is submitted, if the executor turns out to be broken or closed before it takes the call."""


class PendingCall:
    """A call from its submission to its outcome, which it delivers to a future of the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.outcome: asyncio.Future[Any] = loop.create_future()
        self._loop = loop
        self._future: Any = None
        self._is_cancelled = False
        self._lock = threading.Lock()

    def submitted(self, future: Any) -> None:
        """Deliver what this future of the executor will have. From any thread."""
        with self._lock:
            self._future = future
            is_cancelled = self._is_cancelled
        if is_cancelled:
            future.cancel()
        future.add_done_callback(self._finished)

    def cancel(self) -> None:
        """Cancel the future, now or as soon as there is one."""
        with self._lock:
            self._is_cancelled = True
            future = self._future
        if future is not None:
            future.cancel()

    def fail(self, error: BaseException) -> None:
        """Deliver an exception. From any thread."""
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._settle, None, error)

    def _finished(self, future: Any) -> None:
        if future.cancelled():
            self.fail(ExecutorLost("the executor cancelled the call, or lost it"))
        elif (error := future.exception()) is not None:
            self.fail(error)
        else:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._settle, future.result(), None)

    def _settle(self, value: Any, error: BaseException | None) -> None:
        if self.outcome.done():
            return
        if error is None:
            self.outcome.set_result(value)
        else:
            self.outcome.set_exception(error)


class Executors:
    """The executors of one worker, opened when they are first needed."""

    def __init__(self, factories: Mapping[str, Callable[[], Any]]) -> None:
        self._factories = factories
        self._open: dict[str, Any] = {}
        self._opening: dict[str, threading.Lock] = {}  # two calls must not open the same one
        self._alone: dict[str, asyncio.Lock] = {}
        self._lock = threading.Lock()

    def check(self, name: str) -> None:
        """Raise ConfigError if the application doesn't declare this executor."""
        if name not in self._factories:
            known = ", ".join(sorted(self._factories)) or "none"
            raise ConfigError(f"the app declares no executor {quoted(name)} with app.executor; it has {known}")

    async def call(self, name: str, call: RemoteCall) -> Any:
        """Await a call in an executor. Raises ExecutorLost if it breaks the executor twice, or if that cancels it."""
        self.check(name)
        try:
            return await self._call(name, call)
        except BrokenExecutor as error:
            log.executor_broken(name, call.name, error)
        async with self._alone.setdefault(name, asyncio.Lock()):
            try:
                return await self._call_alone(name, call)
            except BrokenExecutor as error:
                raise ExecutorLost(f"executor {name}: the process that executed the call died: {error}") from error

    async def _call(self, name: str, call: RemoteCall) -> Any:
        pending = PendingCall(asyncio.get_running_loop())
        start_in_own_thread(partial(self._submit, name, call, pending))
        return await _outcome(pending)

    def _submit(self, name: str, call: RemoteCall, pending: PendingCall) -> None:
        """Submit a call. If the executor has broken meanwhile, open another one."""
        tries = 0
        while True:
            tries += 1
            executor: Any = None
            try:
                executor = self._shared(name)
                future = executor.submit(call)
            except BaseException as error:
                is_closed = executor is not None and self._open.get(name) is not executor
                if isinstance(error, BrokenExecutor):
                    self._discard(name, executor)
                elif not is_closed:
                    pending.fail(error)
                    return
                if tries == MAX_SUBMITS:
                    pending.fail(ExecutorLost(f"executor {name} can't be used: {error!r}"))
                    return
                continue
            future.add_done_callback(partial(self._discard_if_broken, name, executor))
            pending.submitted(future)
            return

    async def _call_alone(self, name: str, call: RemoteCall) -> Any:
        """Await a call in an executor of its own."""
        pending = PendingCall(asyncio.get_running_loop())
        opened: list[Any] = []

        def submit() -> None:
            try:
                opened.append(self._factories[name]())
                pending.submitted(opened[0].submit(call))
            except BaseException as error:
                pending.fail(error)

        submitted = start_in_own_thread(submit)
        try:
            return await _outcome(pending)
        finally:
            submitted.add_done_callback(lambda _: [start_in_own_thread(partial(_shut_down, each)) for each in opened])

    def _shared(self, name: str) -> Any:
        with self._lock:
            opening = self._opening.setdefault(name, threading.Lock())
        with opening:
            if name not in self._open:
                executor = self._factories[name]()
                if not callable(getattr(executor, "submit", None)):
                    raise ConfigError(
                        f"executor {name}: its factory returned {type(executor).__name__}, which has no submit():"
                        " return a concurrent.futures.Executor"
                    )
                self._open[name] = executor
            return self._open[name]

    def _discard_if_broken(self, name: str, executor: Any, future: Any) -> None:
        if not future.cancelled() and isinstance(future.exception(), BrokenExecutor):
            self._discard(name, executor)

    def _discard(self, name: str, executor: Any) -> None:
        """Forget a broken executor, so that the next call opens another one."""
        with self._lock:
            if self._open.get(name) is not executor:
                return
            del self._open[name]
        start_in_own_thread(partial(_shut_down, executor))

    def close(self) -> None:
        """Shut all executors down. Their calls are cancelled, as far as they can be."""
        with self._lock:
            opened, self._open = self._open, {}
        closing = [start_in_own_thread(partial(_shut_down, each)) for each in opened.values()]
        wait_for_futures(closing, SHUTDOWN_TIMEOUT_S)


async def _outcome(pending: PendingCall) -> Any:
    """Await the outcome of a call; cancel it if the code that awaits it is cancelled."""
    try:
        return await pending.outcome
    except asyncio.CancelledError:
        pending.cancel()
        raise


def _shut_down(executor: Any) -> None:
    try:
        try:
            executor.shutdown(wait=False, cancel_futures=True)
        except TypeError:  # it has no such parameter: Dask's, for example
            executor.shutdown(wait=False)
    except Exception as error:
        log.executor_not_closed(type(executor).__name__, error)
