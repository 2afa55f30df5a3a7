"""What the executors of async and sync durable functions have in common.

An attempt runs the function from its start: recorded operations replay their outcomes, and the first operation that
isn't recorded continues the work. `undo.py` undoes a run.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import UUID

from holdfast.engine.attempt import Attempt
from holdfast.engine.durable.plans import OperationPlans
from holdfast.errors import WaitTimeout
from holdfast.store import AttemptEnd, Store
from holdfast.store.threads import HeldClaim

if TYPE_CHECKING:
    from holdfast.engine.services import WorkerServices
    from holdfast.task.task import Task

Arguments: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]

QUIET_ITERATIONS = 20
"""Iterations of the event loop without any activity before a run is suspended, or a replay has stopped."""
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


class Executor:
    """Performs the operations of one attempt of a durable function."""

    __slots__ = ()

    current: Attempt
    """The attempt that is executed; `attempt` is only its number, as contexts show it."""
    _services: WorkerServices

    @property
    def task(self) -> Task[..., Any]:
        return self.current.task

    @property
    def run_id(self) -> UUID:
        return UUID(self.current.claim.id)

    @property
    def attempt(self) -> int:
        return self.current.claim.attempt

    def held_claim(self) -> tuple[Store, str | None, HeldClaim]:
        """Return the store, the tenant of the run and the claim of this attempt, for what is written in steps."""
        attempt = self.current
        claim = attempt.claim
        return self._services.store, claim.tenant, HeldClaim(attempt.session, claim.id, claim.fence)

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
