"""Batches: one call of a task's function for several attempts, each of which ends on its own.

`loops/batch_claimer.py` collects claimed attempts until a batch is full or has waited long enough. The runner executes
it as a `BatchCall`, which holds one slot.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from holdfast.engine.attempt import Attempt, SlotPool
from holdfast.errors import BatchFailed, TaskError
from holdfast.store import AttemptEnd
from holdfast.task.scope import Scope, StopSignal


class BatchCall:
    """One call for several attempts.

    A member that has to stop, because its run was cancelled or has timed out, stays in the call, whose result for it
    is discarded. The call is asked to stop when all its members are.
    """

    def __init__(self, attempts: Sequence[Attempt]) -> None:
        self.attempts = attempts
        self.run_in = attempts[0].run_in
        self.stop_signal = StopSignal()
        self.loop_task: Any = None
        self.thread: Any = None
        self._with_slot = set(attempts)
        for attempt in attempts:
            attempt.batch = self

    def scope(self) -> Scope:
        """Return the scope of the call. Its idempotency key is that of the first run."""
        first = self.attempts[0].claim
        return Scope(first.id, generation=first.generation, stop=self.stop_signal)

    def all_must_stop(self) -> bool:
        """Return whether no member needs the result any more; then tell the code."""
        self.stop_signal.requested = all(each.stop_reason is not None or each.stopped for each in self.attempts)
        return self.stop_signal.requested

    @property
    def is_abandoned(self) -> bool:
        """Whether the runs of all members go on without the call."""
        return all(each.abandoned or each.stopped for each in self.attempts)

    def leave(self, attempt: Attempt) -> bool:
        """Note that an attempt needs no slot any more; return whether it was the last of the call."""
        before = len(self._with_slot)
        self._with_slot.discard(attempt)
        return before > 0 and not self._with_slot

    @staticmethod
    def ends_after(attempts: Sequence[Attempt], value: Any) -> Iterator[tuple[Attempt, AttemptEnd]]:
        """Yield how each attempt ends after the function returned a list of results, or None."""
        if value is None:
            value = [None] * len(attempts)
        if not isinstance(value, list | tuple) or len(value) != len(attempts):
            found = f"{len(value)} results" if isinstance(value, list | tuple) else type(value).__name__
            task = attempts[0].task.name
            error = TaskError(f"task {task} returned {found} for a batch of {len(attempts)}: return a list, or None")
            yield from ((attempt, attempt.failed(error)) for attempt in attempts)
            return
        for attempt, result in zip(attempts, value, strict=True):
            yield attempt, attempt.returned(result)

    @classmethod
    def ends_after_error(
        cls, attempts: Sequence[Attempt], error: BaseException
    ) -> Iterator[tuple[Attempt, AttemptEnd]]:
        """Yield how each attempt ends after the function raised: `BatchFailed` names those that failed.

        A subclass of it that doesn't call its constructor names none, and fails all.
        """
        if not isinstance(error, BatchFailed) or not hasattr(error, "errors"):
            yield from ((attempt, attempt.failed(error)) for attempt in attempts)
            return
        unknown = [at for at in error.errors if at not in range(len(attempts))]
        if unknown:
            task = attempts[0].task.name
            wrong = TaskError(f"task {task} raised BatchFailed for item {unknown[0]!r} of a batch of {len(attempts)}")
            yield from ((attempt, attempt.failed(wrong)) for attempt in attempts)
            return
        ends = cls.ends_after(attempts, error.results)
        for at, (attempt, end) in enumerate(ends):
            yield attempt, attempt.failed(error.errors[at]) if at in error.errors else end


def batch_calls(attempts: Iterable[Attempt]) -> list[BatchCall]:
    """Group attempts into calls: by task, by the slots they use and, if the task says so, by tenant."""
    groups: dict[object, list[Attempt]] = {}
    for attempt in attempts:
        groups.setdefault(batch_group(attempt), []).append(attempt)
    calls = []
    for members in groups.values():
        batch = members[0].task.declaration.batch
        assert batch is not None
        size = batch.max_size
        calls += [BatchCall(members[at : at + size]) for at in range(0, len(members), size)]
    return calls


def batch_group(attempt: Attempt) -> tuple[str, str | None, SlotPool | None]:
    """Return the task, the tenant if the task has batches by tenant, and the slots that the attempt uses."""
    batch = attempt.task.declaration.batch
    by_tenant = batch is not None and batch.by == "tenant"
    return attempt.task.name, attempt.claim.tenant if by_tenant else None, attempt.slots


def has_free_slot(attempt: Attempt) -> bool:
    """Return whether a batch with this attempt may start, as far as the slots of its queue are concerned."""
    return attempt.slots is None or attempt.slots.free() > 0
