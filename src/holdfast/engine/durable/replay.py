"""Plays durable functions: an attempt from its beginning to its suspension or end; or its history alone, to undo it.

To undo, the function is replayed as far as its history goes, so that it registers its compensations again (they may be
closures); then those are run in reverse order, each recorded. Author code runs on the loop here; its plain twin, which
needs no order among branches, is at the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import msgspec

from holdfast.engine.attempt import Attempt
from holdfast.engine.durable.async_executor import AsyncExecutor
from holdfast.engine.durable.executor import QUIET_ITERATIONS, SUSPEND_DELAY_S
from holdfast.engine.durable.history import Compensation
from holdfast.engine.durable.plans import OperationPlans, StepEffect, StepResult
from holdfast.engine.durable.sync_executor import SyncExecutor, Unwind
from holdfast.errors import ErrorInfo
from holdfast.model.retry import Retry
from holdfast.store import End
from holdfast.store.commands import Record
from holdfast.task.context import Context
from holdfast.task.functions import inspect_function, is_async
from holdfast.task.operations import Step
from holdfast.task.scope import Scope, current_scope
from holdfast.task.sync_context import SyncContext

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


MAX_QUIET_CHECKS = 50
"""How many looks, a hundredth of a second apart, a function may stand still behind what is on record."""


def body_scope(attempt: Attempt) -> Scope:
    claim = attempt.claim
    return Scope(claim.id, durable=True, generation=claim.generation, stop=attempt.stop_signal)


# On the loop


async def run_async(executor: AsyncExecutor, arguments: Arguments) -> End:
    """Run a durable function as far as it goes."""
    attempt = executor.current
    if attempt.claim.ending is not None:
        try:
            return await _undo(executor, arguments)
        except BaseException as error:  # mostly the attempt was stopped; then its order decides how it ends
            return attempt.undo_interrupted(error)
    args, kwargs = arguments
    token = current_scope.set(body_scope(attempt))
    try:
        end = attempt.returned(await attempt.signature.fn(Context(executor), *args, **kwargs))
    except BaseException as error:
        end = end_with_failure(attempt, executor.plans, error)
    finally:
        current_scope.reset(token)
        executor.close()
    return with_drift(end, executor.plans)


async def _undo(executor: AsyncExecutor, arguments: Arguments) -> End:
    await replay_async(executor, arguments)
    missing = missing_undos(executor.plans)
    if missing:
        return _cannot_undo(executor.current, missing)
    executor.reopen()
    for registered in _to_undo(executor.plans):
        tried = await executor.run_step(StepEffect(_as_step(registered), _undone_key(registered)))
        if tried.error is not None:
            return executor.current.undo_failed(registered.key, tried.error)
        await executor.write(_undone(executor.plans, registered, tried))
    return executor.current.undone()


class ReplayOutcome(NamedTuple):
    """Whether a function came to its end in a replay_async, and what it raised then."""

    ended: bool
    error: BaseException | None = None


async def replay_async(executor: AsyncExecutor, arguments: Arguments) -> ReplayOutcome:
    """Let a durable function do again what is on record, and nothing new."""
    args, kwargs = arguments
    token = current_scope.set(body_scope(executor.current))
    try:
        body = asyncio.ensure_future(executor.current.signature.fn(Context(executor), *args, **kwargs))
    finally:
        current_scope.reset(token)
    try:
        await _until_quiet(executor, body)
        ended = body.done()  # what comes out of it later is our doing
    finally:
        executor.close()
        body.cancel()
        await asyncio.wait([body])
    error = None if body.cancelled() else body.exception()
    return ReplayOutcome(ended, error if ended else None)


async def _until_quiet(executor: AsyncExecutor, body: asyncio.Future[Any]) -> None:
    """Until the function has ended, or can't go on, and no branch of it moves any more. One that does something of its
    own behind all that has to be undone isn't waited for."""
    still = 0
    while not body.done():
        moves = executor.moves
        await asyncio.sleep(SUSPEND_DELAY_S / 5)
        for _ in range(QUIET_ITERATIONS):
            await asyncio.sleep(0)
        still = still + 1 if executor.moves == moves and executor.quiet else 0
        if still and executor.unrecorded:
            return
        if still > MAX_QUIET_CHECKS and executor.current.claim.ending is not None and not missing_undos(executor.plans):
            return


# In a thread


def run_sync(executor: SyncExecutor, arguments: Arguments) -> End:
    """Run a plain durable function as far as it goes."""
    attempt = executor.current
    if attempt.claim.ending is not None:
        try:
            return _undo_plainly(executor, arguments)
        except BaseException as error:  # mostly the attempt was stopped; then its order decides how it ends
            return attempt.undo_interrupted(error)
    args, kwargs = arguments
    token = current_scope.set(body_scope(attempt))
    try:
        end = attempt.returned(attempt.signature.fn(SyncContext(executor), *args, **kwargs))
    except Unwind:
        end = attempt.handed_back(lingers=False)  # how it really ended, the order that it got says
    except BaseException as error:
        end = end_with_failure(attempt, executor.plans, error)
    finally:
        current_scope.reset(token)
        executor.close()
    return with_drift(end, executor.plans)


def replay_sync(executor: SyncExecutor, arguments: Arguments) -> ReplayOutcome:
    args, kwargs = arguments
    token = current_scope.set(body_scope(executor.current))
    error: BaseException | None = None
    try:
        executor.current.signature.fn(SyncContext(executor), *args, **kwargs)
    except BaseException as raised:
        error = raised
    finally:
        current_scope.reset(token)
    return ReplayOutcome(False) if executor.unrecorded else ReplayOutcome(True, error)


def _undo_plainly(executor: SyncExecutor, arguments: Arguments) -> End:
    replay_sync(executor, arguments)
    missing = missing_undos(executor.plans)
    if missing:
        return _cannot_undo(executor.current, missing)
    for registered in _to_undo(executor.plans):
        tried = executor.run_step(StepEffect(_as_step(registered), _undone_key(registered)))
        if tried.error is not None:
            return executor.current.undo_failed(registered.key, tried.error)
        executor.write(_undone(executor.plans, registered, tried))
    return executor.current.undone()


# Shared


def end_with_failure(attempt: Attempt, plans: OperationPlans, error: BaseException) -> End:
    """What follows from an exception of the function; steps whose failure it was are tried again next time."""
    end = attempt.failed(error)
    end.forget = plans.forgotten(error)
    return end


def with_drift(end: End, plans: OperationPlans) -> End:
    drift = plans.history.drift()
    if drift:
        end.drift = msgspec.json.encode({"steps": drift}).decode()
    return end


def _to_undo(plans: OperationPlans) -> list[Compensation]:
    """What is still to be undone, the last first."""
    todo = [registered for registered in plans.registered if registered.n not in plans.history.undone]
    return sorted(todo, key=lambda registered: -registered.n)


def missing_undos(plans: OperationPlans) -> list[str]:
    """Steps that are to be undone, and that the function of now doesn't come by any more, or has no undo for."""
    unasked = [(kept.n, kept.key) for kept in plans.history.unasked.values() if kept.undo]
    return [key for n, key in sorted(unasked + plans.missing_undo) if n not in plans.history.undone]


def _cannot_undo(attempt: Attempt, keys: list[str]) -> End:
    message = f"its compensation isn't in the code any more; put it back, and retry the run; others too: {keys[1:]}"
    return attempt.undo_failed(keys[0], ErrorInfo("undo", "TaskError", message))


def _as_step(registered: Compensation) -> Step:
    """A compensation as a step: retried as its step would be, and otherwise as a task."""
    step = registered.step
    fn: Callable[..., Any] = registered.call
    if step is not None and step.undo is not None and is_async(step.undo):
        fn = partial(_awaited, registered.call)
    name = step.name if step is not None else registered.key
    retry = step.retry if step is not None and step.retry is not None else Retry()
    return Step(name, "", fn, inspect_function(fn), retry=retry, timeout=step.timeout if step is not None else None)


async def _awaited(call: Callable[[], Any]) -> None:
    await call()


def _undone(plans: OperationPlans, registered: Compensation, tried: StepResult) -> Record:
    return Record(*plans.run_token, plans.number(), _undone_key(registered), "undone", str(registered.n), tried.took)


def _undone_key(registered: Compensation) -> str:
    """Not the step's own: an outside system would take the one for a repeat of the other."""
    return f"$undone:{registered.key}"
