"""Worker sessions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal, TypeVar
from uuid import UUID

import msgspec

from holdfast.model.clock import MICROS_PER_SECOND, to_datetime, to_micros
from holdfast.model.labels import meets
from holdfast.store import Store
from holdfast.store.module import in_chunks
from holdfast.store.rows import LostWorker
from holdfast.store.sessions import SessionRow

S = TypeVar("S", bound=msgspec.Struct)
LOST_WITHIN_S = 86_400.0
MAX_RECOVERED_RUNS = 100
"""How many recovered runs are listed for a lost worker."""


class WorkerInfo(msgspec.Struct, frozen=True):
    """A session of a worker process. A dead session is listed until its runs are recovered."""

    session: str
    name: str
    state: Literal["working", "idle", "unhealthy", "dead"]
    lease_left: float
    """Seconds; negative after the lease has expired."""
    started_at: datetime
    queues: Sequence[str] | None
    """The queues it serves; None: all."""
    concurrency: int | None
    runs: int
    tasks: Sequence[str] | None = None
    """The tasks its code declares; None if there are too many to report."""
    problem: str | None = None
    """Why it is unhealthy."""
    loop_lag: float = 0.0
    """Seconds for which its event loop was blocked at the last heartbeat."""
    lost_threads: int = 0
    """Threads lost to code that ignored its timeout or cancellation."""
    thread_slots: int | None = None
    """Concurrent runs of `def` tasks; None for an older release."""
    thread_tasks: Sequence[str] = ()
    """Its `def` tasks."""
    process_slots: int | None = None
    """Concurrent runs of tasks with `run_in="process"`; None for an older release."""
    process_tasks: Sequence[str] = ()
    """Its tasks with `run_in="process"`."""
    labels: Mapping[str, str] = {}
    requires: Mapping[str, Mapping[str, str]] = {}
    """The labels that its tasks require, by task. It claims no run of a task whose labels it doesn't have."""
    prefers: Mapping[str, Mapping[str, str]] = {}
    """The labels that its tasks prefer, by task. It leaves their runs to live workers with the labels for a second."""
    queue_slots: Mapping[str, int] = {}
    """The slots of queues that have their own; the rest of `concurrency` is shared by the other queues."""
    memory: int = 0
    """Bytes of memory that its process had at the last heartbeat; 0 for an older release."""
    version: str | None = None
    """The release of Holdfast that it runs."""

    def shown_queues(self) -> list[str]:
        """Return its queues for display, such as `mail=20` for one with slots of its own; `all` if it serves all."""
        if self.queues is None:
            return ["all"]
        return [f"{name}={self.queue_slots[name]}" if name in self.queue_slots else name for name in self.queues]

    def has_labels_for(self, task: str) -> bool:
        """Return whether it has the labels that a task requires, as far as its own code says."""
        return meets(self.labels, self.requires.get(task, {}))


class ClaimedRun(msgspec.Struct, frozen=True):
    """A run that a worker has claimed and executes."""

    id: UUID
    task: str
    queue: str
    attempt: int
    claimed_at: datetime
    seconds: float
    """Since it was claimed."""
    worker: str
    """The session."""


class RecoveredRun(msgspec.Struct, frozen=True):
    """A run that other workers took over from a lost one, with its task and its state now; None if it was pruned."""

    id: UUID
    outcome: Literal["requeued", "failed"]
    """What the recovery did: it returned the run to ready, or failed it as crashed."""
    task: str | None = None
    state: str | None = None


class LostWorkerInfo(msgspec.Struct, frozen=True):
    """A worker session whose lease expired, and the runs that were recovered from it."""

    session: str
    name: str | None
    at: datetime
    """When its last runs were recovered."""
    requeued: int
    failed: int
    excused: bool
    """Whether the database didn't answer, so that no run was charged."""
    runs: list[RecoveredRun]
    """The first recovered runs. Losses that an earlier release recorded have none."""


class WorkerControl:
    """Lists worker sessions, and those that were lost."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def list(self) -> list[WorkerInfo]:
        """List all sessions, oldest first."""
        return [_info(row) for row in self._store.sessions.list_all()]

    def claimed(self, session: str | None = None) -> Sequence[ClaimedRun]:
        """List the runs that workers, or one of them, have claimed, the longest first; up to a bound."""
        return [
            ClaimedRun(
                UUID(row.id), row.task, row.queue, row.attempt, to_datetime(row.claimed_at),
                max(row.now - row.claimed_at, 0) / MICROS_PER_SECOND, row.session,
            )
            for row in self._store.sessions.claimed(session)
        ]  # fmt: skip

    def lost(self, within_s: float = LOST_WITHIN_S) -> Sequence[LostWorkerInfo]:
        """List the workers that were lost lately, the last first, with the runs that were recovered from them."""
        found = self._store.sessions.list_lost(to_micros(within_s, "the age"))
        outcomes = [_outcomes(worker) for _, worker in found]
        states: dict[str, tuple[str, str]] = {}
        for chunk in in_chunks([id for each in outcomes for id in each]):
            states |= self._store.queries.states_of(chunk)
        return [
            LostWorkerInfo(
                worker.session, worker.name, to_datetime(at), worker.requeued, worker.failed, worker.excused,
                [RecoveredRun(UUID(id), outcome, *states.get(id, (None, None))) for id, outcome in runs.items()],
            )
            for (at, worker), runs in zip(found, outcomes, strict=True)
        ]  # fmt: skip


def _outcomes(worker: LostWorker) -> dict[str, Literal["requeued", "failed"]]:
    """Return what became of the first recovered runs, by id."""
    found: dict[str, Literal["requeued", "failed"]] = dict.fromkeys(worker.failed_runs, "failed")
    found |= {id: "requeued" for id in worker.runs if id not in found}
    return dict(list(found.items())[:MAX_RECOVERED_RUNS])


def _info(row: SessionRow) -> WorkerInfo:
    left = row.lease_left
    report = _decode(_StartReport, row.info)
    health = _decode(_HeartbeatReport, row.status)
    return WorkerInfo(
        session=row.session,
        name=row.name,
        state=(
            "dead"
            if left <= 0
            else "unhealthy"
            if health.problem
            else "idle"
            if row.idle and not row.runs
            else "working"
        ),
        lease_left=left / MICROS_PER_SECOND,
        started_at=to_datetime(row.started_at),
        queues=report.queues,
        concurrency=report.concurrency,
        runs=row.runs,
        tasks=report.tasks,
        problem=health.problem,
        loop_lag=health.loop_lag,
        lost_threads=health.lost_threads,
        thread_slots=report.thread_slots,
        thread_tasks=report.thread_tasks or (),
        process_slots=report.process_slots,
        process_tasks=report.process_tasks or (),
        labels=report.labels,
        requires=report.requires,
        prefers=report.prefers,
        queue_slots=report.queue_slots,
        memory=health.memory,
        version=report.version,
    )


class _StartReport(msgspec.Struct):
    """What a worker reported at its start."""

    queues: list[str] | None = None
    concurrency: int | None = None
    tasks: list[str] | None = None
    thread_slots: int | None = None
    thread_tasks: list[str] | None = None
    process_slots: int | None = None
    process_tasks: list[str] | None = None
    labels: dict[str, str] = {}
    requires: dict[str, dict[str, str]] = {}
    prefers: dict[str, dict[str, str]] = {}
    queue_slots: dict[str, int] = {}
    version: str | None = None


class _HeartbeatReport(msgspec.Struct):
    """What a worker reported with its last heartbeat."""

    problem: str | None = None
    loop_lag: float = 0.0
    lost_threads: int = 0
    memory: int = 0


def _decode(kind: type[S], text: str | None) -> S:
    """Decode a report; use the defaults if it is missing, corrupt or from another release."""
    try:
        return kind() if text is None else msgspec.json.decode(text, type=kind)
    except msgspec.MsgspecError:
        return kind()
