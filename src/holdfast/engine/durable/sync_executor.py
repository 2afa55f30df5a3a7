"""Execute a `def` durable function in a thread, one operation after the other.

The methods that plans await are coroutines that block the thread and never suspend.
A wait that isn't resolved soon raises `Unwind`, which is no `Exception`, through user code: the run is suspended.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from concurrent.futures import wait as wait_for_futures
from contextvars import copy_context
from functools import partial, update_wrapper
from typing import Any, NoReturn

import msgspec

from holdfast.engine.attempt import Attempt, StopReason
from holdfast.engine.durable.executor import (
    MAX_WRITES_AHEAD,
    Arguments,
    Executor,
    failed_end,
    suspend_delay_s,
)
from holdfast.engine.durable.plans import OperationPlans, Read, StepResult, WaitResult
from holdfast.engine.durable.step_retry import FailedTry, RecordedTries, StepTimedOut
from holdfast.engine.durable.steps import step_result
from holdfast.engine.durable.undo import ReplayOutcome, compensate, fail_missing_undos, missing_undos
from holdfast.engine.remote_call import RemoteCall, remote_call
from holdfast.engine.services import WorkerServices
from holdfast.engine.threads import ABANDON_AFTER_S, ThreadCall
from holdfast.engine.write_queue import PendingWrite, WriteResult
from holdfast.errors import StoreError, TaskError
from holdfast.model.clock import MICROS_PER_SECOND
from holdfast.model.virtual_clock import real_seconds
from holdfast.store import AttemptEnd
from holdfast.store.commands import (
    RUN_LOST,
    Checkpoint,
    Command,
    NewCheckpoint,
    NewStepCheckpoint,
    SpawnCommand,
    WaitCommand,
    WaitOutcome,
    WaitRegistered,
    Written,
)
from holdfast.store.waits import encode_outcome
from holdfast.task.operations import Operation, Step, Transaction
from holdfast.task.scope import Scope, current_scope
from holdfast.task.sync_context import SyncContext

STOP_POLL_INTERVAL_S = 0.1


class Unwind(BaseException):
    """Ends user code, because the run is suspended, restarted or lost."""


class SyncExecutor(Executor):
    """Performs the operations of one attempt of a `def` durable function."""

    def __init__(self, attempt: Attempt, plans: OperationPlans, services: WorkerServices) -> None:
        self.current = attempt
        attempt.resolve_wait = self.resolve_wait
        self.plans = plans
        self.unrecorded: list[str] = []
        """Keys of the unrecorded operations that a replay has reached."""
        self._services = services
        self._closed = False
        self._ahead: list[Future[WriteResult]] = []  # Writes that user code didn't wait for.
        self._open_waits: dict[str, Future[WaitOutcome]] = {}
        self._resumes = 0
        self._outliving: dict[Future[Any], ThreadCall] = {}  # Calls of step functions that outlived their timeouts.
        for record in [] if plans.replay_only else plans.history.resolved_waits:
            self._submit(record)

    # The function

    def run(self, arguments: Arguments) -> AttemptEnd:
        """Run an attempt of the function until it ends or is suspended."""
        attempt = self.current
        if attempt.claim.ending is not None:
            try:
                return self._undo(arguments)
            except BaseException as error:  # Usually the attempt was stopped; then its stop reason decides how it ends.
                return attempt.undo_interrupted(error)
        args, kwargs = arguments
        token = current_scope.set(attempt.body_scope())
        try:
            value = attempt.signature.fn(SyncContext(self), *args, **kwargs)
            self._await_writes_ahead()
            end = attempt.returned(value)
        except Unwind:
            end = attempt.released()  # The attempt's stop reason decides how it really ends.
        except BaseException as error:
            end = failed_end(attempt, self.plans, error)
        finally:
            current_scope.reset(token)
            if progress := self.plans.late_progress():
                self._submit(progress)
            self.close()
        suspended = attempt.stop_reason == "suspend"
        if drift := self.plans.history.drift(returned=end.kind == "done", suspended=suspended):
            end.drift = drift.to_json()
        return end

    def replay_function(self, arguments: Arguments) -> ReplayOutcome:
        """Replay the recorded operations of the function, without performing anything new."""
        args, kwargs = arguments
        token = current_scope.set(self.current.body_scope())
        error: BaseException | None = None
        try:
            self.current.signature.fn(SyncContext(self), *args, **kwargs)
        except BaseException as raised:
            error = raised
        finally:
            current_scope.reset(token)
        return ReplayOutcome(False) if self.has_stopped else ReplayOutcome(True, error)

    @property
    def has_stopped(self) -> bool:
        """Whether a replay has stopped at an unrecorded operation."""
        return bool(self.unrecorded)

    def _undo(self, arguments: Arguments) -> AttemptEnd:
        outcome = self.replay_function(arguments)
        if missing := missing_undos(self.plans):
            return fail_missing_undos(self.current, missing)
        end: AttemptEnd = complete(compensate(self, outcome.error))
        return end

    # Operations

    def perform(self, operation: Operation) -> Any:
        """Perform an operation of the function; return its result to user code."""
        self.check()
        return complete(self.plans.start(self, operation))

    def check(self) -> None:
        """Raise if user code has to end."""
        if self._closed or self.current.stop_reason is not None:
            raise Unwind

    def close(self) -> None:
        self._closed = True

    # Replay and writes

    async def replay(self, checkpoint: Checkpoint, read: Read | None = None) -> Any:
        value = self._read(read)
        self.plans.history.note_replayed(checkpoint.n)
        return value

    def _read(self, read: Read | None) -> Any:
        return None if read is None else self._services.read(self.current, read)

    async def write(self, command: Command | NewStepCheckpoint) -> Any:
        result = self._result_of(self._submit(command))
        assert isinstance(result, Written)
        return result.value

    async def write_ahead(self, command: SpawnCommand) -> Any:
        if len(self._ahead) >= MAX_WRITES_AHEAD:
            self._await_writes_ahead()
        self._ahead.append(self._submit(command))
        return command.value

    def _await_writes_ahead(self) -> None:
        ahead, self._ahead = self._ahead, []
        for future in ahead:
            self._result_of(future)

    def _submit(self, command: Command | NewStepCheckpoint) -> Future[WriteResult]:
        future: Future[WriteResult] = Future()
        self._services.submit(PendingWrite(self.current, command, _set_result, False, future))
        return future

    def _result_of(self, future: Future[WriteResult]) -> WriteResult:
        """Wait for the result of a write; raise if the run is lost."""
        while not wait_for_futures([future], STOP_POLL_INTERVAL_S).done:
            if self.current.stop_reason == "lost":
                raise Unwind
        result = future.result()
        if result is RUN_LOST:
            raise Unwind
        if isinstance(result, Exception):
            raise result
        return result

    # Waits

    async def wait(self, wait: WaitCommand, read: Read | None = None, child: str | None = None) -> WaitResult:  # noqa: ARG002
        self._await_writes_ahead()
        if wait.kind == "limit":
            return self._wait_for_permits(wait)
        known = self.plans.history.open_waits.pop(wait.key, None)
        if known is None:
            wait.n = self.plans.next_number()
            result = self._result_of(self._submit(wait))
            if isinstance(result, WaitOutcome):
                return WaitResult(wait.n, result, self._read(read))
            assert isinstance(result, WaitRegistered)
            due_in = result.due_in
            self.plans.skip_number(wait.n)
        else:
            due_in = known.due_in
        outcome = self._wait_in_memory(wait.key, wait.kind, due_in)
        if outcome is None:
            self.current.waits_for = [wait.key]
            self._stop("suspend")
        n = self.plans.next_number()
        kind, value = encode_outcome(wait.kind, outcome)
        self._submit(NewCheckpoint(*self.plans.run_token, n, wait.key, kind, value, waited=True))
        return WaitResult(n, outcome, self._read(read))

    def _wait_for_permits(self, wait: WaitCommand) -> WaitResult:
        """Take permits for a step; if there are none, try again when there may be room."""
        while True:
            wait.n = self.plans.next_number()
            self.plans.skip_number(wait.n)
            result = self._result_of(self._submit(wait))
            if isinstance(result, WaitOutcome):
                return WaitResult(wait.n, result)
            if self._wait_in_memory(wait.key, wait.kind, None) is None:
                self.current.waits_for = [wait.key]
                self._stop("suspend")

    def _wait_in_memory(self, key: str, kind: str, due_in: int | None) -> WaitOutcome | None:
        """Wait for a moment, because most waits are resolved soon; return None if this one isn't."""
        future: Future[WaitOutcome] = Future()
        self._open_waits[key] = future
        self._services.watch(self, is_timed=due_in is not None)
        delay_s = suspend_delay_s(
            due_in_s=float("inf") if due_in is None else due_in / MICROS_PER_SECOND,
            waits_for_others=kind != "sleep",
            has_free_slots=self._services.has_free_slots(),
            resumes=self._resumes,
            outcomes=self.plans.history.last_number,
        )
        try:
            outcome = future.result(delay_s)
            self._resumes += 1
            return outcome
        except FutureTimeout:
            return None
        finally:
            self._open_waits.pop(key, None)

    def resolve_wait(self, key: str, outcome: WaitOutcome) -> None:
        future = self._open_waits.pop(key, None)
        if future is not None:
            future.set_result(outcome)

    def _stop(self, reason: StopReason) -> NoReturn:
        self._services.stop(self.current, reason)
        raise Unwind

    async def restart(self, args: str) -> NoReturn:
        self._await_writes_ahead()
        self.current.waits_for = []
        self.current.restart_args = args
        self._stop("restart")

    async def stop_at_unrecorded(self, key: str) -> NoReturn:
        self.unrecorded.append(key)
        raise Unwind

    # Steps

    def in_executor(self, step: Step, executor: str) -> Step:
        self._services.executors.check(executor)

        def run(*args: Any, **kwargs: Any) -> Any:
            return self._call_remotely(executor, remote_call(step.name, step.fn, args, kwargs), step.timeout)

        return msgspec.structs.replace(step, fn=update_wrapper(run, step.fn))

    def _call_remotely(self, executor: str, call: RemoteCall, timeout: int | None) -> Any:
        """Await a call in an executor. Cancel it if user code has to end, or at the timeout of its step."""
        deadline = None if timeout is None else time.monotonic() + timeout / MICROS_PER_SECOND
        future = self._services.call_in_executor(executor, call)
        try:
            while True:
                left = STOP_POLL_INTERVAL_S if deadline is None else deadline - time.monotonic()
                if wait_for_futures([future], max(min(left, STOP_POLL_INTERVAL_S), 0.0)).done:
                    return future.result()
                self.check()
                if left <= 0:
                    raise StepTimedOut
        finally:
            future.cancel()

    async def run_step(self, step: Step, key: str) -> StepResult:
        self._await_writes_ahead()
        if self.current.pause_requested:
            self._stop("release")
        payloads, claim = self._services.store.payloads, self.current.claim
        tries = RecordedTries(step, key, payloads, claim)
        call = partial(step.fn, *step.args, **step.kwargs)
        timeout = step.timeout if step.executor is None else None  # `_call_remotely` has its own
        token = current_scope.set(self._scope(key))
        started = time.monotonic()
        result: StepResult | FailedTry | None = None
        span = None if self.current.telemetry is None else self.current.telemetry.step(step.name, key)
        try:
            while True:
                try:
                    result = step_result(step, self._call(call, timeout), payloads, claim, key)
                except Unwind:
                    raise
                except BaseException as error:
                    result = await tries.failed(self, error)
                if isinstance(result, StepResult):
                    result.duration_us = int((time.monotonic() - started) * MICROS_PER_SECOND)
                    return result
                self._sleep(real_seconds(self._services.store.clock, result.pause_s))
                self.wait_for_threads()
                tries.next_try()
        finally:
            if span is not None:
                span.end(result)
            current_scope.reset(token)

    def _sleep(self, seconds: float) -> None:
        """Sleep between two tries of a step; raise if user code has to end."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self.check()
            time.sleep(min(left, STOP_POLL_INTERVAL_S))

    def _call(self, call: Callable[[], Any], timeout: int | None) -> Any:
        if timeout is None:
            return _reject_coroutine(call())
        done: Future[Any] = Future()
        context = copy_context()

        def work() -> None:
            try:
                done.set_result(context.run(call))
            except BaseException as error:
                done.set_exception(error)

        handle = self._services.run_in_thread(work)
        try:
            return _reject_coroutine(done.result(timeout / MICROS_PER_SECOND))
        except FutureTimeout as error:
            if done.done():
                return _reject_coroutine(done.result())
            self._outliving[done] = handle
            raise StepTimedOut from error

    @property
    def threads(self) -> int:
        """How many step functions still run in threads, beyond their timeouts."""
        return sum(not each.done() for each in self._outliving)

    def wait_for_threads(self) -> None:
        """Wait for step functions that outlived their timeouts; abandon those that don't return in time."""
        deadline = time.monotonic() + ABANDON_AFTER_S
        while wait_for_futures(self._outliving, STOP_POLL_INTERVAL_S).not_done and time.monotonic() < deadline:
            if not self._closed:
                self.check()
        outliving, self._outliving = self._outliving, {}
        for handle in outliving.values():
            handle.abandon()

    def _scope(self, key: str) -> Scope:
        claim = self.current.claim
        step, stop = self.plans.history.idempotency_name(key), self.current.stop_signal
        return Scope(claim.id, durable=True, generation=claim.generation, step=step, stop=stop)

    async def run_transaction(self, operation: Transaction, key: str) -> StepResult:
        self._await_writes_ahead()
        record = NewCheckpoint(*self.plans.run_token, 0, key, "step")
        payloads, claim = self._services.store.payloads, self.current.claim
        tries = RecordedTries(operation, key, payloads, claim)
        token = current_scope.set(self._scope(key))
        started = time.monotonic()

        def run(connection: Any) -> str:
            value = operation.fn(connection, *operation.args, **operation.kwargs)
            encoded = step_result(operation, value, payloads, claim, key)
            if encoded.exception is not None:
                raise encoded.exception
            record.took = int((time.monotonic() - started) * MICROS_PER_SECOND)
            record.n = record.n or self.plans.next_number()
            return encoded.text or "null"

        span = None if self.current.telemetry is None else self.current.telemetry.step(operation.name, key)
        result: StepResult | None = None
        try:
            text = self._services.transact(self.current, record, run)
            result = StepResult(text, n=record.n)
        except Unwind:
            raise
        except BaseException as error:
            if record.n:
                self.plans.skip_number(record.n)
            if isinstance(error, StoreError):
                raise
            failed = await tries.failed(self, error)
            assert isinstance(failed, StepResult)
            failed.duration_us = int((time.monotonic() - started) * MICROS_PER_SECOND)
            result = failed
            return failed
        finally:
            if span is not None:
                span.end(result)
            current_scope.reset(token)
        if text is None:
            raise Unwind
        return result


def complete(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine that never suspends, because all that it awaits blocks; return its result."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("a coroutine of a sync executor was suspended")


def _set_result(write: PendingWrite, result: WriteResult) -> None:
    write.context.set_result(result)


def _reject_coroutine(value: Any) -> Any:
    if inspect.iscoroutine(value):
        value.close()
        raise TaskError(
            "a step function called with a SyncContext returned a coroutine: pass a `def` function, or use a Context"
        )
    return value
