"""Call the functions of steps and transactions: results, retries, timeouts, and the threads of `def` functions.

`StepCalls` calls them for an async durable function; a sync durable function calls them in its own thread.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import time
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.engine.attempt import Attempt
from holdfast.engine.durable.delivery import OrderedDelivery
from holdfast.engine.durable.history import RecordedHistory
from holdfast.engine.durable.plans import OperationPlans, StepResult
from holdfast.engine.durable.step_retry import RecordedTries, StepTimedOut, recorded_arguments
from holdfast.engine.services import WorkerServices
from holdfast.engine.threads import ABANDON_AFTER_S, ThreadCall
from holdfast.errors import ErrorInfo, PayloadError, StoreError
from holdfast.model.clock import MICROS_PER_SECOND
from holdfast.model.codec import encode
from holdfast.model.failure import describe_exception
from holdfast.model.payloads import PayloadContext, Payloads
from holdfast.model.step_keys import key_name
from holdfast.model.virtual_clock import real_seconds
from holdfast.policy.retry_decision import payload_error_code
from holdfast.store.commands import NewCheckpoint
from holdfast.store.rows import Claim
from holdfast.task.operations import FunctionCall, Step, Transaction
from holdfast.task.scope import Scope, current_scope

if TYPE_CHECKING:
    from holdfast.engine.durable.async_executor import AsyncExecutor

THREAD_POLL_INTERVAL_S = 0.005


def step_result(call: FunctionCall, value: Any, payloads: Payloads, claim: Claim, key: str) -> StepResult:
    """Return the result of a function that returned `value`, to be recorded under this key.

    A value that can't be stored fails the step without a retry, which would return it again.
    """
    try:
        text = encode(value, "the result of step", call.name)
        if len(text) <= payloads.plain_below:
            return StepResult(text, text)
        context = PayloadContext("step", claim.tenant, claim.id, key)
        return StepResult(text, payloads.pack(text, context, "the result of step", call.name))
    except PayloadError as error:
        info = describe_exception(error, payload_error_code(error))
        return StepResult(error=info, exception=error, args=recorded_arguments(call, payloads, claim, key))


class StepCalls:
    """Calls the step functions of one attempt: coroutines on the event loop, `def` functions in threads."""

    __slots__ = (
        "_loop", "_running", "_services", "attempt", "claim", "history", "new_scope", "payloads", "threads",
    )  # fmt: skip

    def __init__(
        self, attempt: Attempt, history: RecordedHistory, services: WorkerServices, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.attempt = attempt
        self.claim = attempt.claim
        self.history = history
        self.new_scope = partial(Scope, attempt.claim.id, True, attempt.claim.generation, attempt.stop_signal)
        """Returns the scope of a step that was never undone, by its key. The next attempt of a resident function has
        the same stop signal."""
        self._services = services
        self.payloads = services.store.payloads
        self._loop = loop
        self.threads = 0
        """How many threads run and weren't abandoned. A thread can't be stopped."""
        self._running: set[StepThreads] = set()

    def scope(self, key: str) -> Scope:
        return self.new_scope(self.history.idempotency_name(key))

    def was_stopped(self, error: BaseException) -> bool:
        """Return whether user code was stopped from outside; otherwise it raised the error itself and has failed.

        The worker stops user code with a stop reason. Other user code does it with `Task.cancel()`, except while
        compensations run: they run in the attempt's own task, which only the worker may cancel. A coroutine that is
        closed because its event loop is gone isn't run by a task.
        """
        task = asyncio.current_task(self._loop)
        if task is None:
            return True
        if not isinstance(error, asyncio.CancelledError):
            return False
        attempt = self.attempt
        return attempt.stop_reason is not None or (attempt.claim.ending is None and task.cancelling() > 0)

    async def run(
        self, executor: AsyncExecutor, step: Step, key: str, started_ns: int, error: BaseException | None = None
    ) -> StepResult:
        """Call a step function until it succeeds or fails permanently; `error` is that of a first call.

        The executor is an argument and no attribute: a reference cycle would keep both in memory until the garbage
        collector runs.
        """
        tries, claim = RecordedTries(step, key, self.payloads, self.claim, started_ns), self.claim
        threads = None if step.function_info.is_async else StepThreads()
        try:
            while True:
                if error is None:
                    try:
                        return step_result(step, await self._call(step, threads), self.payloads, claim, key)
                    except BaseException as raised:
                        if self.was_stopped(raised):
                            raise
                        error = raised
                outcome = await tries.failed(executor, error)
                if isinstance(outcome, StepResult):
                    return outcome
                error = None
                await asyncio.sleep(real_seconds(self._services.store.clock, outcome.pause_s))
                if threads is not None:
                    await self._wait_for_threads(threads)
                tries.next_try()
        except asyncio.CancelledError:
            if step.undo is not None and threads is not None:
                threads.on_late_value(
                    lambda value: executor.record_late(key, step_result(step, value, self.payloads, claim, key))
                )
            raise

    def _call(self, step: Step, threads: StepThreads | None) -> Coroutine[Any, Any, Any]:
        coroutine: Coroutine[Any, Any, Any]
        if threads is None:
            coroutine = step.fn(*step.args, **step.kwargs)
        else:
            coroutine = self._call_in_thread(partial(step.fn, *step.args, **step.kwargs), threads)
        return coroutine if step.timeout is None else _with_timeout(step.timeout / MICROS_PER_SECOND, coroutine)

    async def _call_in_thread(self, call: Callable[[], Any], threads: StepThreads) -> Any:
        value = await self.in_thread(call, threads)
        return await value if inspect.isawaitable(value) else value  # A `def` wrapper around an async function.

    # Threads

    async def transaction_in_thread(self, call: Callable[[], Any], key: str) -> Any:
        """Run the call of a transaction in a thread."""
        token = current_scope.set(self.scope(key))
        span = None if self.attempt.telemetry is None else self.attempt.telemetry.step(key_name(key), key)
        result: StepResult | None = None
        try:
            value = await self.in_thread(call)
            result = StepResult()
            return value
        except Exception as error:
            result = StepResult(error=ErrorInfo("error", type(error).__name__, ""))
            raise
        finally:
            if span is not None:
                span.end(result)
            current_scope.reset(token)

    async def in_thread(self, call: Callable[[], Any], threads: StepThreads | None = None) -> Any:
        """Run a call in a thread of the worker, and count the thread among those of its step."""
        counted = threads or StepThreads()
        done: asyncio.Future[Any] = self._loop.create_future()
        context = contextvars.copy_context()

        def finish(value: Any, error: BaseException | None) -> None:
            if handle in counted.handles:
                counted.finished(handle, value, error)
                self._forget(1, counted)
            if done.done():
                _close_coroutine(value)
            elif error is None:
                done.set_result(value)
            else:
                done.set_exception(error)

        def work() -> None:
            value, error = None, None
            try:
                value = context.run(call)
            except (StopIteration, GeneratorExit) as stop:
                # A future rejects a StopIteration, and a GeneratorExit would close the coroutine that awaits it.
                error = RuntimeError(f"the function raised {stop!r}")
            except BaseException as raised:
                error = raised  # type: ignore[assignment]
            self._loop.call_soon_threadsafe(finish, value, error)

        handle = self._services.run_in_thread(work)
        self.threads += 1
        counted.started(handle)
        self._running.add(counted)
        try:
            return await done
        except asyncio.CancelledError:
            if done.done() and not done.cancelled() and done.exception() is None:
                _close_coroutine(done.result())
            raise

    async def _wait_for_threads(self, threads: StepThreads) -> None:
        """Wait for a call that outlived its timeout, so that two don't run at once; abandon it if it doesn't end."""
        deadline = self._loop.time() + ABANDON_AFTER_S
        while threads.handles and self._loop.time() < deadline:
            await asyncio.sleep(THREAD_POLL_INTERVAL_S)
        self._forget(threads.abandon(), threads)

    def abandon_threads(self) -> None:
        """Stop waiting for the threads of all steps."""
        for threads in list(self._running):
            self._forget(threads.abandon(), threads)

    def _forget(self, count: int, threads: StepThreads) -> None:
        """Stop counting threads of a step that have ended or were abandoned."""
        if not threads.handles:
            self._running.discard(threads)
        if not count:
            return
        self.threads -= count
        if self.threads == 0 and self.attempt.on_threads_done is not None:
            self.attempt.on_threads_done()


class StepThreads:
    """The threads of one step that run and weren't abandoned."""

    __slots__ = ("_on_late_value", "_values", "handles")

    def __init__(self) -> None:
        self.handles: set[ThreadCall] = set()
        self._values: list[Any] = []  # What the last call returned.
        self._on_late_value: Callable[[Any], None] | None = None

    def started(self, handle: ThreadCall) -> None:
        self.handles.add(handle)
        self._values.clear()

    def finished(self, handle: ThreadCall, value: Any, error: BaseException | None) -> None:
        self.handles.discard(handle)
        if error is not None or inspect.iscoroutine(value):
            return  # A coroutine has done nothing yet.
        if self._on_late_value is None:
            self._values.append(value)
        else:
            self._on_late_value(value)

    def on_late_value(self, callback: Callable[[Any], None]) -> None:
        """Call back with what the threads return, or have just returned, because the step no longer awaits them."""
        self._on_late_value = callback
        for value in self._values:
            callback(value)

    def abandon(self) -> int:
        """Stop waiting for the threads; return how many there were."""
        abandoned, self.handles = self.handles, set()
        for handle in abandoned:
            handle.abandon()
        return len(abandoned)


def _close_coroutine(value: Any) -> None:
    """Close a coroutine that a `def` wrapper has returned and that is not going to be awaited."""
    if inspect.iscoroutine(value):
        value.close()


async def _with_timeout(seconds: float, coroutine: Coroutine[Any, Any, Any]) -> Any:
    timeout = asyncio.timeout(seconds)
    try:
        async with timeout:
            return await coroutine
    except TimeoutError as error:
        if timeout.expired():
            raise StepTimedOut from error
        raise


# Transactions


class TransactionCall:
    """One call of `ctx.transaction`. `run` is called in a thread, all other methods on the event loop."""

    def __init__(
        self,
        operation: Transaction,
        key: str,
        plans: OperationPlans,
        delivery: OrderedDelivery,
        loop: asyncio.AbstractEventLoop,
        calls: StepCalls,
    ) -> None:
        self.record = NewCheckpoint(*plans.run_token, 0, key, "step")
        self._operation = operation
        self._plans = plans
        self._delivery = delivery
        self._loop = loop
        self._calls = calls
        self._given_up = False
        self._started = time.monotonic()

    def run(self, connection: Any) -> str:
        """Call the user's function and return its result as text.

        The checkpoint's number is taken after the call, so that it is in order with the outcomes of other branches. A
        repetition of the transaction uses the same number.
        """
        operation = self._operation
        value = operation.fn(connection, *operation.args, **operation.kwargs)
        result = step_result(operation, value, self._calls.payloads, self._calls.claim, self.record.key)
        if result.exception is not None:
            raise result.exception
        self.record.took = int((time.monotonic() - self._started) * MICROS_PER_SECOND)
        if not self.record.n:
            self.record.n = asyncio.run_coroutine_threadsafe(self._take_number(), self._loop).result()
        return result.text or "null"

    async def _take_number(self) -> int:
        n = self._plans.next_number()
        if not self._given_up:
            self._delivery.expect(n)
        return n

    async def result(self, executor: AsyncExecutor, thread: Awaitable[str | None]) -> StepResult:
        """Return the result of the thread: with neither text nor error if the run was lost and all rolled back."""
        try:
            text = await thread
        except BaseException as error:
            self._give_up()
            if self._calls.was_stopped(error):
                raise
            if self.record.n:
                self._plans.skip_number(self.record.n)
            if isinstance(error, StoreError):
                raise
            calls = self._calls
            tries = RecordedTries(self._operation, self.record.key, calls.payloads, calls.claim)
            failed = await tries.failed(executor, error)
            assert isinstance(failed, StepResult)
            failed.duration_us = int((time.monotonic() - self._started) * MICROS_PER_SECOND)
            return failed
        return StepResult(text, n=self.record.n)

    def _give_up(self) -> None:
        """Let other outcomes pass: user code doesn't wait for the thread any more, or the transaction failed."""
        self._given_up = True
        if self.record.n:
            self._delivery.cancel(self.record.n)
