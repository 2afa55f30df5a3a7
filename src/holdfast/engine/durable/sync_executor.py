"""Carries out the operations of a plain `def` durable function, in the thread that runs it, one after the other.

A wait that doesn't come soon raises `Unwind`, which is no `Exception`, through author code: the run is suspended.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from concurrent.futures import TimeoutError as NotYet
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from holdfast.engine.durable.executor import SUSPEND_DELAY_S, Executor, SuspendDelay
from holdfast.engine.durable.plans import (
    Effect,
    OperationPlans,
    ReplayEffect,
    RestartEffect,
    StepEffect,
    StepResult,
    TransactionEffect,
    UnrecordedEffect,
    WaitEffect,
    WaitResult,
    WriteEffect,
)
from holdfast.engine.durable.steps import StepRetries, StepTimedOut, returned
from holdfast.engine.services import WorkerServices
from holdfast.engine.threads import ABANDON_AFTER_S, ThreadCall
from holdfast.engine.write_queue import PendingWrite, WriteResult
from holdfast.errors import StoreError, TaskError
from holdfast.model.clock import MICROS_PER_SECOND
from holdfast.model.virtual_clock import real_seconds
from holdfast.store.commands import LOST, Command, Open, Outcome, Record, Wrote
from holdfast.store.waking import recorded_as
from holdfast.task.operations import Operation
from holdfast.task.scope import Scope, current_scope

if TYPE_CHECKING:
    from holdfast.engine.attempt import Attempt, Order


LOOK = 0.1


class Unwind(BaseException):
    """Author code has to end here: the run is suspended, restarted, or not ours any more."""


class SyncExecutor(Executor):
    """One attempt of a plain `def` durable function."""

    def __init__(self, attempt: Attempt, plans: OperationPlans, services: WorkerServices) -> None:
        self.current = attempt
        self.plans = plans
        self.unrecorded: list[str] = []
        self._services = services
        self._closed = False
        self._open: dict[str, tuple[str, Future[Outcome]]] = {}
        self._lingering = SuspendDelay()
        self._outliving: dict[Future[Any], ThreadCall] = {}  # functions of steps that outlived their timeouts
        for record in [] if plans.replay_only else plans.history.settled:
            self._ask(record)

    def perform(self, operation: Operation) -> Any:
        self.check()
        plan = self.plans.plan(operation)
        try:
            effect = next(plan)
            while True:
                effect = plan.send(self._carry_out(effect))
        except StopIteration as end:
            return end.value

    @property
    def threads(self) -> int:
        """How many functions of steps still run in threads, beyond their timeouts."""
        return sum(not each.done() for each in self._outliving)

    def wait_for_threads(self) -> None:
        """Wait for functions of steps that outlived their timeouts; abandon those that don't return in time."""
        until = time.monotonic() + ABANDON_AFTER_S
        while wait(self._outliving, LOOK).not_done and time.monotonic() < until:
            if not self._closed:
                self.check()
        outliving, self._outliving = self._outliving, {}
        for handle in outliving.values():
            handle.abandon()

    def write(self, command: Command) -> Any:
        """Have something written, and wait until it is durable."""
        return self._submit(WriteEffect(command))

    def check(self) -> None:
        """Raise when author code has to end."""
        if self._closed or self.current.order is not None:
            raise Unwind

    def close(self) -> None:
        self._closed = True

    def _carry_out(self, effect: Effect) -> Any:
        return _EFFECTS[type(effect)](self, effect)

    def _replay(self, effect: ReplayEffect) -> Any:
        return None if effect.read is None else effect.read()

    def _submit(self, effect: WriteEffect) -> Any:
        answer = self._wait_for(self._ask(effect.command))
        assert isinstance(answer, Wrote)
        return answer.value

    def _ask(self, command: Command) -> Future[WriteResult]:
        answer: Future[WriteResult] = Future()
        self._services.submit(PendingWrite.of(self.current, command, _pass_on, False, answer))
        return answer

    def _wait_for(self, future: Future[WriteResult]) -> WriteResult:
        """Wait for an answer, but not when author code has to end anyway."""
        while not wait([future], LOOK).done:
            if self.current.order == "lost":
                raise Unwind
        answer = future.result()
        if answer is LOST:
            raise Unwind
        if isinstance(answer, Exception):
            raise answer
        return answer

    # Waiting

    def _wait(self, effect: WaitEffect) -> WaitResult:
        asked = effect.wait
        known = self.plans.history.open.pop(asked.key, None)
        if known is None:
            answer = self._wait_for(self._ask(asked))
            if isinstance(answer, Outcome):
                return WaitResult(asked.n, answer, self._read(effect))
            assert isinstance(answer, Open)
            due_in = answer.due_in
        else:
            due_in = known.due_in
        self.plans.unused(asked.n)
        outcome = self._linger(asked.key, asked.kind, due_in)
        if outcome is None:
            self._stop("suspend", [asked.key])
        n = self.plans.number()
        recorded, value = recorded_as(asked.kind, outcome)
        self._ask(Record(*self.plans.run_token, n, asked.key, recorded, value, waited=True))
        return WaitResult(n, outcome, self._read(effect))

    @staticmethod
    def _read(effect: WaitEffect) -> Any:
        return None if effect.read is None else effect.read()

    def _linger(self, key: str, kind: str, due_in: int | None) -> Outcome | None:
        """Stay in memory for a moment: most of what is waited for comes soon."""
        came: Future[Outcome] = Future()
        self._open[key] = (kind, came)
        self._services.watch(self)
        soon = kind != "sleep" or (due_in is not None and due_in / MICROS_PER_SECOND < SUSPEND_DELAY_S)
        try:
            outcome = came.result(self._lingering.wait_s(soon=soon, has_room=self._services.has_room()))
            self._lingering.resumed()
            return outcome
        except NotYet:
            return None
        finally:
            self._open.pop(key, None)

    def hear(self, key: str, kind: str, outcome: Outcome) -> None:  # noqa: ARG002 - a wait has one kind
        opened = self._open.pop(key, None)
        if opened is not None:
            opened[1].set_result(outcome)

    def _stop(self, order: Order, waits_for: list[str] | None = None) -> NoReturn:
        self.current.waits_for = waits_for or []
        self._services.stop(self.current, order)
        raise Unwind

    def _restart(self, effect: RestartEffect) -> Any:
        self.current.restart_args = effect.args
        self._stop("restart")

    def _be_stuck(self, effect: UnrecordedEffect) -> Any:
        self.unrecorded.append(effect.key)
        raise Unwind

    # Author code

    def run_step(self, effect: StepEffect) -> StepResult:
        """Author code, with its retries."""
        step = effect.step
        tries = StepRetries(step, step.retry, step.timeout)
        call = partial(step.fn, *step.args, **step.kwargs)
        token = current_scope.set(self._scope(effect.key))
        started = time.monotonic()
        tried: StepResult | float | None = None
        watched = None if self.current.watched is None else self.current.watched.step(step.name, effect.key)
        try:
            while True:
                try:
                    tried = returned(step, self._call(call, step.timeout), self._services.store.payloads)
                except Unwind:
                    raise
                except BaseException as error:
                    tried = tries.failed(error)
                if isinstance(tried, StepResult):
                    tried.took = int((time.monotonic() - started) * MICROS_PER_SECOND)
                    return tried
                self._pause(real_seconds(self._services.store.clock, tried))
                self.wait_for_threads()
        finally:
            if watched is not None:
                watched.end(tried)
            current_scope.reset(token)

    def _pause(self, seconds: float) -> None:
        """Between two tries of a step: as long as author code hasn't got to end."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self.check()
            time.sleep(min(left, LOOK))

    def _call(self, call: Callable[[], Any], timeout: int | None) -> Any:
        if timeout is None:
            return _no_coroutine(call())
        done: Future[Any] = Future()
        context = copy_context()

        def work() -> None:
            try:
                done.set_result(context.run(call))
            except BaseException as error:
                done.set_exception(error)

        handle = self._services.run_in_thread(work)
        try:
            return _no_coroutine(done.result(timeout / MICROS_PER_SECOND))
        except NotYet as error:
            if done.done():
                return _no_coroutine(done.result())
            self._outliving[done] = handle
            raise StepTimedOut from error

    def _scope(self, key: str) -> Scope:
        claim = self.current.claim
        step, stop = self.plans.history.tried_as(key), self.current.stop_signal
        return Scope(claim.id, durable=True, generation=claim.generation, step=step, stop=stop)

    def _transact(self, effect: TransactionEffect) -> StepResult:
        call = effect.operation
        command = Record(*self.plans.run_token, 0, effect.key, "step")
        tries = StepRetries(call, None, None)
        token = current_scope.set(self._scope(effect.key))
        started = time.monotonic()

        def work(connection: Any) -> str:
            value = call.fn(connection, *call.args, **call.kwargs)
            tried = returned(call, value, self._services.store.payloads)
            if tried.exception is not None:
                raise tried.exception
            command.took = int((time.monotonic() - started) * MICROS_PER_SECOND)
            command.n = command.n or self.plans.number()
            return tried.text or "null"

        watched = None if self.current.watched is None else self.current.watched.step(call.name, effect.key)
        ended: StepResult | None = None
        try:
            text = self._services.transact(self.current, command, work)
        except Unwind:
            raise
        except BaseException as error:
            if command.n:
                self.plans.unused(command.n)
            if isinstance(error, StoreError):
                raise
            failed = tries.failed(error)
            assert isinstance(failed, StepResult)
            ended = failed
            return failed
        else:
            ended = StepResult(text, n=command.n)
        finally:
            if watched is not None:
                watched.end(ended)
            current_scope.reset(token)
        if text is None:
            raise Unwind
        return ended


def _pass_on(write: PendingWrite, answer: WriteResult) -> None:
    write.context.set_result(answer)


def _no_coroutine(value: Any) -> Any:
    if inspect.iscoroutine(value):
        value.close()
        raise TaskError("a step of a SyncContext returned a coroutine: use a plain function, or a Context")
    return value


_EFFECTS: dict[type[Any], Callable[[SyncExecutor, Any], Any]] = {
    ReplayEffect: SyncExecutor._replay,
    WriteEffect: SyncExecutor._submit,
    WaitEffect: SyncExecutor._wait,
    StepEffect: SyncExecutor.run_step,
    TransactionEffect: SyncExecutor._transact,
    RestartEffect: SyncExecutor._restart,
    UnrecordedEffect: SyncExecutor._be_stuck,
}
