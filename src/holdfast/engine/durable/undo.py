"""Replay a durable function without performing anything new, and undo a run.

To undo a run, its function is replayed, so that it registers its compensations again (they may be closures). Then the
compensations run in reverse order, each recorded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from holdfast.engine.attempt import Attempt
from holdfast.engine.durable.executor import QUIET_ITERATIONS, Arguments
from holdfast.engine.durable.history import Compensation
from holdfast.engine.durable.plans import OperationPlans, StepResult
from holdfast.errors import ErrorInfo
from holdfast.model.retry import Retry
from holdfast.store import AttemptEnd
from holdfast.store.commands import NewCheckpoint
from holdfast.task.context import Context, active_context
from holdfast.task.functions import inspect_function, is_async
from holdfast.task.operations import Step
from holdfast.task.scope import current_scope

if TYPE_CHECKING:
    from holdfast.engine.durable.async_executor import AsyncExecutor
    from holdfast.engine.durable.sync_executor import SyncExecutor

COMPENSATION_RETRY = Retry(max_attempts=3, delay=1)
"""Fewer tries than those of a task, because the run keeps its slot between them."""
QUIET_CHECK_INTERVAL_S = 0.01
MAX_QUIET_CHECKS = 50
"""How many checks a function may do nothing after all its compensations are registered."""


class ReplayOutcome(NamedTuple):
    """Whether a function ended in a replay, and what it raised."""

    ended: bool
    error: BaseException | None = None


async def replay_function(executor: AsyncExecutor, arguments: Arguments) -> ReplayOutcome:
    """Replay the recorded operations of an async function, without performing anything new."""
    args, kwargs = arguments
    context = Context(executor)
    token, context_token = current_scope.set(executor.current.body_scope()), active_context.set(context)
    try:
        body = asyncio.ensure_future(executor.current.signature.fn(context, *args, **kwargs))
    finally:
        current_scope.reset(token)
        active_context.reset(context_token)
    try:
        await _wait_until_quiet(executor, body)
        ended = body.done()  # What it raises after this is a result of its cancellation.
    finally:
        executor.close()
        body.cancel()
        await asyncio.wait([body])
    error = None if body.cancelled() else body.exception()
    return ReplayOutcome(ended, error if ended else None)


async def _wait_until_quiet(executor: AsyncExecutor, body: asyncio.Future[Any]) -> None:
    """Wait until the function has ended, or until all its branches have reached unrecorded operations.

    If all compensations are registered, a branch that does something else isn't waited for.
    """
    quiet_checks = 0
    while not body.done():
        activity = executor.activity
        await asyncio.sleep(QUIET_CHECK_INTERVAL_S)
        for _ in range(QUIET_ITERATIONS):
            await asyncio.sleep(0)
        is_quiet = executor.activity == activity and executor.is_idle
        quiet_checks = quiet_checks + 1 if is_quiet else 0
        if quiet_checks and executor.has_stopped:
            return
        is_undoing = executor.current.claim.ending is not None
        if quiet_checks > MAX_QUIET_CHECKS and is_undoing and not missing_undos(executor.plans):
            return


async def undo(executor: AsyncExecutor, arguments: Arguments) -> AttemptEnd:
    """Undo the run of an async function."""
    outcome = await replay_function(executor, arguments)
    if missing := missing_undos(executor.plans):
        return fail_missing_undos(executor.current, missing)
    executor.reopen()
    return await compensate(executor, outcome.error)


async def compensate(executor: AsyncExecutor | SyncExecutor, error: BaseException | None) -> AttemptEnd:
    """Run and record the compensations that a replay has registered; `error` is what the replay raised."""
    forget = () if error is None else executor.plans.failures_to_retry(error, with_timeouts=True)
    for compensation in _pending_compensations(executor.plans):
        result = await executor.run_step(_as_step(compensation), _undo_key(compensation))
        if result.error is not None:
            return executor.current.undo_failed(compensation.key, result.error)
        await executor.write(_undo_record(executor.plans, compensation, result))
    return replace(executor.current.undone(), forget=forget)


def _pending_compensations(plans: OperationPlans) -> list[Compensation]:
    """Return the compensations that haven't run, the last registered first."""
    pending = [compensation for compensation in plans.compensations if compensation.n not in plans.history.undone]
    return sorted(pending, key=lambda compensation: -compensation.n)


def missing_undos(plans: OperationPlans) -> list[str]:
    """Return the keys of steps that have to be undone, and that the code has removed or has no undo for."""
    removed = [(recorded.n, recorded.key) for recorded in plans.history.unconsumed.values() if recorded.undo]
    return [key for n, key in sorted(removed + plans.steps_without_undo) if n not in plans.history.undone]


def fail_missing_undos(attempt: Attempt, keys: list[str]) -> AttemptEnd:
    message = "its compensation is no longer in the code; restore it and retry the run"
    if keys[1:]:
        message += f"; also missing: {', '.join(keys[1:])}"
    return attempt.undo_failed(keys[0], ErrorInfo("undo", "TaskError", message))


def _as_step(compensation: Compensation) -> Step:
    """Return a compensation as a step: retried like its own step, or else a few times."""
    step = compensation.step
    fn: Callable[..., Any] = compensation.call
    if step is not None and step.undo is not None and is_async(step.undo):
        fn = partial(_awaited, compensation.call)
    name = step.name if step is not None else compensation.key
    retry = step.retry if step is not None and step.retry is not None else COMPENSATION_RETRY
    return Step(name, "", fn, inspect_function(fn), retry=retry, timeout=step.timeout if step is not None else None)


async def _awaited(call: Callable[[], Any]) -> None:
    await call()


def _undo_record(plans: OperationPlans, compensation: Compensation, result: StepResult) -> NewCheckpoint:
    n, key = plans.next_number(), _undo_key(compensation)
    return NewCheckpoint(*plans.run_token, n, key, "undone", str(compensation.n), result.duration_us)


def _undo_key(compensation: Compensation) -> str:
    """Return the key of a compensation. It differs from the step's: with the same idempotency key, another system would
    take the compensation for a repetition of the step."""
    return f"$undone:{compensation.key}"
