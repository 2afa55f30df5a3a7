"""Limits of steps: take permits before a step runs, return them with its checkpoint, and correct its cost afterwards.

Part of the plans: nothing here does I/O, and both executors run it. What a step took of weighted limits is recorded
beside its checkpoint, so that a replay can still adjust it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.errors import CostExceedsLimit, LimitNotTaken, TaskError
from holdfast.model.codec import decode, encode
from holdfast.store import commands
from holdfast.store.commands import NewCheckpoint, NewStepCheckpoint
from holdfast.store.limits import parse_counter_key, parse_permits, weighted_permits
from holdfast.task import operations as op
from holdfast.task.scope import current_scope

if TYPE_CHECKING:
    from holdfast.engine.durable.plans import OperationPlans, PlanExecutor

MARKER = "$limit:"
"""How the key of a step's wait for permits begins, and of the record of what it took; the key of the step follows."""


class Take(msgspec.Struct):
    """What a step took of a weighted limit. `used`: the adjusted cost. Without `taken_at` it can't be corrected."""

    step: str
    counter: str
    cost: int
    taken_at: int
    used: int | None = None

    @property
    def limit(self) -> str:
        return parse_counter_key(self.counter)[0]


class StepLimits:
    """The permits of the steps of one attempt."""

    def __init__(self, plans: OperationPlans) -> None:
        self._plans = plans
        self._takes: list[Take] = []  # of steps that have ended, in the order of the code
        self._running: dict[str, list[Take]] = {}  # by the name of the step in its scope
        self._adjusted_starts: set[tuple[str, int]] = set()  # limits and fences of starts of the run itself

    async def acquire(self, executor: PlanExecutor, step: op.Step, key: str) -> bool:
        """Wait until all permits of a step are taken; return False if it needs none."""
        plans = self._plans
        limits = plans.client.step_permits(step)
        if limits is None or not plans.client.has_limits:
            return False
        own = {permit.counter for permit in parse_permits(plans.claim.limits)}
        if shared := next((permit.counter for permit in parse_permits(limits) if permit.counter in own), None):
            name = parse_counter_key(shared)[0]
            raise TaskError(
                f"step {step.name} has limit {name}, of which its run holds a permit: it could wait for itself. Remove"
                f" the limit from the task {executor.task.name} or from the step"
            )
        plans.has_waited = plans.holds_permits = True
        wait = commands.WaitCommand(plans.run_token, MARKER + key, "limit", limits, name=key)
        outcome = (await executor.wait(wait)).outcome
        if outcome.kind == "refused":
            raise CostExceedsLimit(f"step {step.name} {outcome.value}")
        taken_at = int(outcome.value or 0)
        takes = [Take(key, permit.counter, permit.cost, taken_at) for permit in weighted_permits(limits)]
        self._running[plans.history.idempotency_name(key)] = takes
        return True

    async def record(self, executor: PlanExecutor, key: str, record: NewStepCheckpoint | NewCheckpoint) -> None:
        """Record a step and return its permits, in one transaction.

        A step with a compensation is recorded before: that has to succeed even if its run was cancelled meanwhile.
        """
        plans = self._plans
        if isinstance(record, NewStepCheckpoint):
            record = record.to_checkpoint(plans.run_token.generation)
        takes, used, marker = self._end(key)
        if record.undo:
            if marker is not None:
                await executor.write(marker)
            await executor.write(record)
            await executor.write(commands.LimitedStepCommand(plans.run_token, None, key, key, None, None, used))
        else:
            await executor.write(commands.LimitedStepCommand(plans.run_token, record.n, key, key, record, marker, used))
        self._takes += takes

    async def release(self, executor: PlanExecutor, key: str) -> None:
        """Return the permits of a step that is recorded."""
        takes, used, marker = self._end(key)
        if marker is not None:
            await executor.write(marker)
        await executor.write(commands.LimitedStepCommand(self._plans.run_token, None, key, key, None, None, used))
        self._takes += takes

    def _end(self, key: str) -> tuple[list[Take], dict[str, int], NewCheckpoint | None]:
        """Return what a step took, the costs that it has adjusted, and the record of both."""
        plans = self._plans
        takes = self._running.pop(plans.history.idempotency_name(key), [])
        used = {take.counter: take.used for take in takes if take.used is not None}
        if not takes:
            return takes, used, None
        value = encode([[take.counter, take.cost, take.taken_at, take.used] for take in takes])
        n = plans.next_marker_number()
        return takes, used, NewCheckpoint(*plans.run_token, n, MARKER + key, "permit", value)

    def replayed(self, key: str) -> None:
        """Note what a recorded step took."""
        text = self._plans.history.permits.get(MARKER + key)
        if text is not None:
            self._takes += [Take(key, *row) for row in decode(text)]

    async def adjust(self, executor: PlanExecutor, operation: op.Adjust) -> Any:
        plans = self._plans
        if not plans.client.has_limits:
            return
        current = current_scope.get()
        if current is not None and current.step is not None:
            takes = self._running.get(current.step, [])
            take = next((take for take in takes if take.limit == operation.limit), None)
            if take is None:
                raise LimitNotTaken(
                    f"ctx.adjust: this step has no cost of limit {operation.limit}: run it with "
                    f"ctx.options(limits=[{operation.limit!r}]).step(…), or adjust the limit of the run after the step"
                )
            take.used = operation.used  # written with the checkpoint of the step
            return
        key = plans.history.next_key(operation.base)
        recorded = plans.history.consume(key)
        if recorded is not None:
            await executor.replay(recorded)
            self._note_adjusted(operation, decode(recorded.value or "null"))
            return
        if plans.replay_only:
            await executor.stop_at_unrecorded(key)
        counter, cost, taken_at, step = self._start_to_adjust(operation.limit)
        await executor.write(
            commands.AdjustCommand(
                plans.run_token, plans.next_number(), key, counter, cost, taken_at, operation.used, encode(step)
            )
        )
        plans.stop_replaying()
        self._note_adjusted(operation, step)

    def _start_to_adjust(self, limit: str) -> tuple[str, int, int | None, str | None]:
        """Return the last start with an estimate of this limit: counter, cost, time, and the step or None."""
        for take in reversed(self._takes):
            if take.limit == limit and take.used is None:
                return take.counter, take.cost, take.taken_at, take.step
        claim = self._plans.claim
        for permit in weighted_permits(claim.limits):
            if parse_counter_key(permit.counter)[0] == limit and (limit, claim.fence) not in self._adjusted_starts:
                return permit.counter, permit.cost, None, None
        raise LimitNotTaken(
            f"ctx.adjust: there is no cost of limit {limit} to adjust: neither the run nor a step of it has started "
            "with this limit and a cost, or each of these starts was adjusted before"
        )

    def _note_adjusted(self, operation: op.Adjust, step: str | None) -> None:
        if step is None:
            self._adjusted_starts.add((operation.limit, self._plans.claim.fence))
            return
        for take in self._takes:
            if take.step == step and take.limit == operation.limit:
                take.used = operation.used
