"""What the executors of async and sync durable functions have in common.

An attempt runs the function from its start: recorded operations replay their outcomes, and the first operation that
isn't recorded continues the work. To undo a run, the function is replayed without performing anything new, so that it
registers its compensations again (they may be closures). Then the compensations run in reverse order, each recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias
from uuid import UUID

from msgspec.structs import replace

from holdfast.engine.attempt import Attempt
from holdfast.engine.durable.history import Compensation
from holdfast.engine.durable.plans import OperationPlans, StepResult
from holdfast.errors import ErrorInfo, WaitTimeout
from holdfast.model.retry import Retry
from holdfast.store import AttemptEnd
from holdfast.store.commands import NewCheckpoint
from holdfast.task.functions import inspect_function, is_async
from holdfast.task.operations import Step

if TYPE_CHECKING:
    from holdfast.engine.durable.async_executor import AsyncExecutor
    from holdfast.engine.durable.sync_executor import SyncExecutor
    from holdfast.task.task import Task

Arguments: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]

COMPENSATION_RETRY = Retry(max_attempts=3, delay=1)
"""Not as patient as that of a task: the run keeps its slot between the tries."""
MAX_WRITES_AHEAD = 200
"""How many children one function may have spawned that aren't durable yet."""
SUSPEND_DELAY_S = 0.05
"""How long a run that only waits stays in memory if a wait may be resolved soon: most children and many events are."""
BUSY_SUSPEND_DELAY_S = 0.005
"""The same when other runs need its slot, or when it only waits for a time far ahead."""
REPLAY_S_PER_OUTCOME = 0.0001
"""About how long a replay takes for each recorded outcome."""
MAX_REPLAY_S = 1.0
MAX_BUSY_RESUMES = 50
"""After this many waits that were resolved in memory, a run on a full worker is suspended without delay.

Otherwise a function whose waits are all shorter than `BUSY_SUSPEND_DELAY_S`, such as sleeps of 1 ms, would keep its
slot, and runs that became ready earlier would starve."""


class ReplayOutcome(NamedTuple):
    """Whether a function ended in a replay, and what it raised."""

    ended: bool
    error: BaseException | None = None


class Executor:
    """Performs the operations of one attempt of a durable function."""

    __slots__ = ()

    current: Attempt
    """The attempt that is executed; `attempt` is only its number, as contexts show it."""

    @property
    def task(self) -> Task[..., Any]:
        return self.current.task

    @property
    def run_id(self) -> UUID:
        return UUID(self.current.claim.id)

    @property
    def attempt(self) -> int:
        return self.current.claim.attempt

    @property
    def scheduled_for(self) -> datetime | None:
        return self.current.scheduled_for


def suspend_delay_s(
    *, due_in_s: float, waits_for_others: bool, has_free_slots: bool, resumes: int, outcomes: int
) -> float:
    """Return how long a run that only waits stays in memory before it is suspended.

    `due_in_s` is the time until its next wait is due. `waits_for_others` says whether it waits for more than time.
    `resumes` counts the waits of this attempt that were resolved while the run was in memory, `outcomes` what a replay
    would have to deliver. A run that waits for others stays for as long as its replay would take, and is suspended only
    after as many resumes as it has outcomes: so replays of a function with thousands of children cost no more than the
    rest of its work.
    """
    if not has_free_slots and resumes >= max(MAX_BUSY_RESUMES, outcomes):
        return 0.0
    may_be_soon = waits_for_others or due_in_s < SUSPEND_DELAY_S
    delay_s = SUSPEND_DELAY_S if has_free_slots and may_be_soon else BUSY_SUSPEND_DELAY_S
    replay_s = min(outcomes * REPLAY_S_PER_OUTCOME, MAX_REPLAY_S)
    return max(delay_s, replay_s) if waits_for_others else delay_s


def failed_end(attempt: Attempt, plans: OperationPlans, error: BaseException) -> AttemptEnd:
    """Return the end of an attempt whose function raised an error, with the failures that the next attempt runs again.

    An automatic retry replays the timeouts of waits, unless the policy names them; an operator's retry waits again.
    """
    end = attempt.failed(error)
    waits_again = end.kind == "failed" or attempt.retry.names(WaitTimeout)
    end.forget = plans.failures_to_retry(error, with_timeouts=waits_again)
    return end


# Undo


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
