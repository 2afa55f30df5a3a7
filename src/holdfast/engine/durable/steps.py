"""Runs the author's functions of one attempt on the event loop, or in threads beside it: the calls of its steps."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import random
from collections.abc import Callable, Coroutine
from functools import partial
from time import monotonic_ns
from typing import Any, Protocol

from holdfast.engine.attempt import NO_RETRY, Attempt
from holdfast.engine.durable.history import RecordedHistory
from holdfast.engine.durable.plans import StepResult
from holdfast.engine.services import WorkerServices
from holdfast.engine.threads import ABANDON_AFTER_S, ThreadCall
from holdfast.errors import ErrorInfo, PayloadError
from holdfast.model.clock import MICROS_PER_SECOND
from holdfast.model.codec import encode
from holdfast.model.failure import describe_exception
from holdfast.model.payloads import Payloads
from holdfast.model.retry import Retry
from holdfast.model.step_keys import key_name
from holdfast.model.virtual_clock import real_seconds
from holdfast.policy.retry_decision import RetryDecision, decide_after_failure, decide_after_timeout, payload_error_code
from holdfast.task.operations import Call, Step
from holdfast.task.scope import Scope, current_scope


class StepTimedOut(Exception):
    """A step's own timeout has passed."""


def returned(call: Call, value: Any, payloads: Payloads) -> StepResult:
    """Author code returned. A value that can't be kept fails the step: another try would return it again."""
    try:
        text = encode(value, "the result of step", call.name)
        return StepResult(text, payloads.pack(text, "the result of step", call.name))
    except PayloadError as error:
        return StepResult(error=describe_exception(error, payload_error_code(error)), exception=error)


class StepRetries:
    """The tries of one step, counted."""

    __slots__ = ("_call", "_failures", "_retry", "_timeout")

    def __init__(self, call: Call, retry: Retry | None, timeout: int | None) -> None:
        self._call = call
        self._retry = retry or NO_RETRY
        self._timeout = timeout
        self._failures = 0

    def failed(self, exception: BaseException) -> StepResult | float:
        """Author code raised: how it ended, or the seconds until the next try."""
        if isinstance(exception, StepTimedOut):
            outcome = decide_after_timeout(self._retry, self._failures, random.random)
            seconds = (self._timeout or 0) / MICROS_PER_SECOND
            error = ErrorInfo("timeout", "TimeoutError", f"the step took longer than its timeout of {seconds:g} s")
        else:
            outcome, error = self._described(exception)
        self._failures += 1
        if outcome.retry_in is not None:
            return outcome.retry_in / MICROS_PER_SECOND
        return StepResult(error=error, exception=TimeoutError(error.message) if error.code == "timeout" else exception)

    def _described(self, exception: BaseException) -> tuple[RetryDecision, ErrorInfo]:
        try:
            outcome = decide_after_failure(self._retry, self._failures, exception, random.random)
            return outcome, describe_exception(exception, outcome.code)
        except BaseException as trouble:  # an exception that can't even be looked at
            message = f"it can't be described: looking at it raised {type(trouble).__name__}"
            return RetryDecision("error"), ErrorInfo("error", type(exception).__name__, message)


LOOK = 0.005


class Caller(Protocol):
    """Who has steps run. Given with each of them, not kept: the two would have each other, and only the garbage
    collector could free them."""

    def given_up(self, key: str, tried: StepResult) -> None:
        """What came of a step that has an undo, and whose thread went on when its caller was cancelled."""


class StepCalls:
    """The calls of one attempt's steps. A thread can't be stopped: `threads` counts those that run and weren't
    abandoned."""

    __slots__ = ("_attempt", "_generation", "_history", "_loop", "_run", "_running", "_services", "payloads", "threads")

    def __init__(
        self, attempt: Attempt, history: RecordedHistory, services: WorkerServices, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._attempt = attempt
        self._run = attempt.claim.id
        self._generation = attempt.claim.generation
        self._history = history
        self._services = services
        self.payloads = services.store.payloads
        self._loop = loop
        self.threads = 0
        self._running: set[StepThreads] = set()

    def _scope(self, key: str) -> Scope:
        step = self._history.tried_as(key) if self._history.undone else key
        return Scope(self._run, True, self._generation, step, self._attempt.stop_signal)

    def stopped(self, error: BaseException) -> bool:
        """Return whether author code was stopped from outside; otherwise it raised the error itself, and has failed.

        The worker stops author code with an order. Other author code does it with `Task.cancel()`, except while
        compensations run: they run in the attempt's own task, which only the worker may cancel. A coroutine that is
        closed, because its loop is gone, isn't run by a task.
        """
        task = asyncio.current_task(self._loop)
        if task is None:
            return True
        if not isinstance(error, asyncio.CancelledError):
            return False
        attempt = self._attempt
        return attempt.order is not None or (attempt.claim.ending is None and task.cancelling() > 0)

    async def run_in_thread(self, call: Callable[[], Any], key: str) -> Any:
        """A plain function as part of a step."""
        token = current_scope.set(self._scope(key))
        watched = None if self._attempt.watched is None else self._attempt.watched.step(key_name(key), key)
        tried: StepResult | None = None
        try:
            value = await self.in_thread(call)
            tried = StepResult()
            return value
        except Exception as error:
            tried = StepResult(error=ErrorInfo("error", type(error).__name__, ""))
            raise
        finally:
            if watched is not None:
                watched.end(tried)
            current_scope.reset(token)

    async def run(self, caller: Caller, step: Step, key: str) -> StepResult:
        """A step with its retries."""
        started = monotonic_ns()
        token = current_scope.set(self._scope(key))
        watched = None if self._attempt.watched is None else self._attempt.watched.step(step.name, key)
        tried: StepResult | None = None
        try:
            if step.timeout is None and step.function_info.is_async:
                try:
                    tried = returned(step, await step.fn(*step.args, **step.kwargs), self.payloads)
                except BaseException as error:
                    if self.stopped(error):
                        raise
                    tried = await self._try_again(caller, step, key, error)
            else:
                tried = await self._try_again(caller, step, key)
            tried.took = (monotonic_ns() - started) // 1000
            return tried
        finally:
            if watched is not None:
                watched.end(tried)
            current_scope.reset(token)

    async def _try_again(self, caller: Caller, step: Step, key: str, error: BaseException | None = None) -> StepResult:
        """The tries of a step, behind the first where that raised an error."""
        tries = StepRetries(step, step.retry, step.timeout)
        under_way = None if step.function_info.is_async else StepThreads()
        try:
            while True:
                if error is None:
                    try:
                        return returned(step, await self._call(step, under_way), self.payloads)
                    except BaseException as raised:
                        if self.stopped(raised):
                            raise
                        error = raised
                tried = tries.failed(error)
                if isinstance(tried, StepResult):
                    return tried
                error = None
                await asyncio.sleep(real_seconds(self._services.store.clock, tried))
                if under_way is not None:
                    await self._wait_for_threads(under_way)
        except asyncio.CancelledError:
            if step.undo is not None and under_way is not None:
                under_way.leave(partial(_came_late, caller, step, key, self.payloads))
            raise

    async def _wait_for_threads(self, under_way: StepThreads) -> None:
        """Wait for a try that outlived its timeout, so that two don't run at once; abandon it if it doesn't end."""
        until = self._loop.time() + ABANDON_AFTER_S
        while under_way.threads and self._loop.time() < until:
            await asyncio.sleep(LOOK)
        self._forget(under_way.abandon(), under_way)

    def abandon_threads(self) -> None:
        """Stop waiting for the threads of all steps."""
        for under_way in list(self._running):
            self._forget(under_way.abandon(), under_way)

    def _call(self, step: Step, under_way: StepThreads | None) -> Coroutine[Any, Any, Any]:
        """The function as a coroutine; `under_way` is for the threads of a plain one."""
        coroutine: Coroutine[Any, Any, Any]
        if under_way is None:
            coroutine = step.fn(*step.args, **step.kwargs)
        else:
            coroutine = self._in_thread_or_awaited(partial(step.fn, *step.args, **step.kwargs), under_way)
        return coroutine if step.timeout is None else _within(step.timeout / MICROS_PER_SECOND, coroutine)

    async def _in_thread_or_awaited(self, call: Callable[[], Any], under_way: StepThreads) -> Any:
        value = await self.in_thread(call, under_way)
        return await value if inspect.isawaitable(value) else value  # a plain wrapper around an async function

    async def in_thread(self, call: Callable[[], Any], under_way: StepThreads | None = None) -> Any:
        """A plain function in a thread of the worker's."""
        counted = under_way or StepThreads()
        done: asyncio.Future[Any] = self._loop.create_future()
        context = contextvars.copy_context()

        def finish(value: Any, error: BaseException | None) -> None:
            if handle in counted.handles:
                counted.ended(handle, value, error)
                self._forget(1, counted)
            if done.done():
                return
            if error is None:
                done.set_result(value)
            else:
                done.set_exception(error)

        def work() -> None:
            value, error = None, None
            try:
                value = context.run(call)
            except (StopIteration, GeneratorExit) as stop:  # a future rejects the first; the second closes its awaiter
                error = RuntimeError(f"the function raised {stop!r}")
            except BaseException as raised:
                error = raised  # type: ignore[assignment]
            self._loop.call_soon_threadsafe(finish, value, error)

        handle = self._services.run_in_thread(work)
        self.threads += 1
        counted.begin(handle)
        self._running.add(counted)
        return await done

    def _forget(self, threads: int, under_way: StepThreads) -> None:
        """Stop counting threads of a step that have ended or were abandoned."""
        if not under_way.threads:
            self._running.discard(under_way)
        if not threads:
            return
        self.threads -= threads
        if self.threads == 0 and self._attempt.threads_over is not None:
            self._attempt.threads_over()


def _came_late(caller: Caller, step: Step, key: str, payloads: Payloads, value: Any) -> None:
    caller.given_up(key, returned(step, value, payloads))


class StepThreads:
    """The threads of one step that run, and weren't abandoned."""

    __slots__ = ("_came", "_late", "handles")

    def __init__(self) -> None:
        self.handles: set[ThreadCall] = set()
        self._came: list[Any] = []  # what the last of them returned
        self._late: Callable[[Any], None] | None = None

    @property
    def threads(self) -> int:
        return len(self.handles)

    def begin(self, handle: ThreadCall) -> None:
        self.handles.add(handle)
        self._came.clear()

    def abandon(self) -> int:
        """Stop waiting for the threads; return how many there were."""
        abandoned, self.handles = self.handles, set()
        for handle in abandoned:
            handle.abandon()
        return len(abandoned)

    def ended(self, handle: ThreadCall, value: Any, error: BaseException | None) -> None:
        self.handles.discard(handle)
        if error is not None:
            return
        if self._late is None:
            self._came.append(value)
        else:
            self._late(value)

    def leave(self, late: Callable[[Any], None]) -> None:
        """Nobody waits for them any more: what they return, or have just returned, is given to `late`."""
        self._late = late
        for value in self._came:
            late(value)


async def _within(seconds: float, coroutine: Coroutine[Any, Any, Any]) -> Any:
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            return await coroutine
    except TimeoutError as error:
        if limit.expired():
            raise StepTimedOut from error
        raise
