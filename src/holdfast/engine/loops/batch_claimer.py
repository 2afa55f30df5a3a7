"""Claim runs of tasks with `batch=`: they wait here until a batch is full or has waited long enough.

The runner executes a batch as one `BatchCall` (`engine/batches.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from holdfast.engine.attempt import Attempt, Session, WorkerState, new_attempts
from holdfast.engine.batches import batch_group, has_free_slot
from holdfast.engine.instrumentation import WorkerTelemetry
from holdfast.engine.loops.known_lanes import KnownLanes
from holdfast.engine.runner import Runner
from holdfast.model.clock import MICROS_PER_SECOND
from holdfast.store import Store

EMPTY_CLAIM_INTERVAL_S = 0.05
"""How often lanes of batches in which nothing was ready are claimed while the worker claims other runs."""


class BatchCollector:
    """Claimed attempts that wait for others of their batch."""

    def __init__(self) -> None:
        self.groups: dict[object, list[Attempt]] = {}
        self._due: dict[object, float] = {}

    def __len__(self) -> int:
        return sum(map(len, self.groups.values()))

    def count(self, lane: int) -> int:
        """Return how many attempts of a lane wait."""
        return sum(attempt.claim.lane == lane for group in self.groups.values() for attempt in group)

    def add(self, attempts: Iterable[Attempt]) -> None:
        for attempt in attempts:
            group = batch_group(attempt)
            batch = attempt.task.declaration.batch
            assert batch is not None
            self.groups.setdefault(group, []).append(attempt)
            self._due.setdefault(group, time.monotonic() + batch.max_wait_micros / MICROS_PER_SECOND)

    def take(self, session: str | None, *, everything: bool = False) -> list[Attempt] | None:
        """Take a batch that is full or has waited long enough, or whose session has ended; None if there is none.

        `session`: None if the worker stops, and batches start without free slots.
        """
        now = time.monotonic()
        for group, attempts in self.groups.items():
            batch = attempts[0].task.declaration.batch
            assert batch is not None
            is_due = everything or len(attempts) >= batch.max_size or self._due[group] <= now
            if not is_due and all(each.session == session and each.stop_reason is None for each in attempts):
                continue
            if session is not None and not has_free_slot(attempts[0]):
                continue
            taken, left = attempts[: batch.max_size], attempts[batch.max_size :]
            if left:
                self.groups[group] = left
                self._due[group] = now + batch.max_wait_micros / MICROS_PER_SECOND
            else:
                del self.groups[group], self._due[group]
            return taken
        return None

    def seconds_left(self) -> float | None:
        """Return how long the next batch waits that has a free slot; None if there is none."""
        due = [at for group, at in self._due.items() if has_free_slot(self.groups[group][0])]
        return max(min(due) - time.monotonic(), 0.0) if due else None


class BatchClaimer:
    """Claims runs for batches and starts those that are due. Used by the claimer, on its thread."""

    def __init__(
        self,
        store: Store,
        state: WorkerState,
        runner: Runner,
        lanes: KnownLanes,
        has_slot: Callable[[int], bool],
        start: Callable[[list[Attempt]], bool],
    ) -> None:
        self._store = store
        self._state = state
        self._runner = runner
        self._lanes = lanes
        self._has_slot = has_slot
        self._start = start
        self.telemetry: WorkerTelemetry | None = None
        self.is_draining = False
        """Whether a batch starts as soon as nothing more is ready for it."""
        self.collected = BatchCollector()
        self._claim_at = 0.0  # when a busy worker claims again

    def claim(self, session: Session, *, is_busy: bool) -> bool:
        """Claim runs for batches and start those that are full; return whether there were any.

        `is_busy`: the worker claims other runs without pauses. Lanes that were empty are then claimed at intervals.
        """
        if is_busy and not self.is_draining and time.monotonic() < self._claim_at:
            return False
        found = 0
        began = time.time_ns()
        for lane in self._lanes.batched:
            batch = self._lanes.tasks[lane].declaration.batch
            assert batch is not None
            while self._has_slot(lane) and (missing := batch.max_size - self.collected.count(lane)) > 0:
                wanted = 1 << (missing - 1).bit_length()  # a size that one claim can have; the rest waits here
                claims = self._store.claims
                claim = claims.claim_limited if lane in self._lanes.limited else claims.claim
                attempts = new_attempts(
                    claim(session.id, [lane], wanted), self._lanes.tasks, self._lanes.pools, session.id
                )
                if not attempts or not self._state.add(session, attempts):
                    break
                if self.telemetry is not None:
                    self.telemetry.claimed(attempts, began)
                found += len(attempts)
                self.collected.add(attempts)
                self.start_due(session)
        self._claim_at = 0.0 if found else time.monotonic() + EMPTY_CLAIM_INTERVAL_S
        if not found and self.is_draining:
            self.start_due(session, everything=True)
        return bool(found)

    def start_due(self, session: Session | None, *, everything: bool = False) -> None:
        """Start the batches that are due, as long as slots are free; all of them if the worker stops."""
        while session is None or self._runner.free_slots() > 0:
            attempts = self.collected.take(None if session is None else session.id, everything=everything)
            if attempts is None:
                return
            self._start(attempts)
