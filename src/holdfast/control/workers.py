"""Worker sessions for operators."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Literal, TypeVar

import msgspec

from holdfast.database import Row
from holdfast.model.clock import MICROS_PER_SECOND, to_datetime
from holdfast.store import Store

S = TypeVar("S", bound=msgspec.Struct)


class WorkerInfo(msgspec.Struct, frozen=True):
    """One session of a worker process. A dead one stays until its runs were given back."""

    session: str
    name: str
    state: Literal["working", "idle", "unhealthy", "dead"]
    lease_left: float
    """Seconds; negative when the lease is over."""
    started_at: datetime
    queues: Sequence[str] | None
    """None: all."""
    concurrency: int | None
    runs: int
    tasks: Sequence[str] | None = None
    """The tasks that its code knows; None where it didn't say, because there are too many."""
    problem: str | None = None
    """Why it is unhealthy."""
    loop_lag: float = 0.0
    """Seconds for which its event loop has been blocked, at its last heartbeat."""
    lost_threads: int = 0
    """Threads lost to code that didn't stop when its timeout expired or its run was cancelled."""
    process_slots: int | None = None
    """How many runs of tasks with `run_in="process"` it runs at once; None for an older release."""
    process_tasks: Sequence[str] = ()
    """Its tasks with `run_in="process"`."""


class WorkerControl:
    """Who works on the database, or did until just now."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def list(self) -> list[WorkerInfo]:
        """All sessions, the oldest first."""
        return [_info(row) for row in self._store.workers.sessions()]


def _info(row: Row) -> WorkerInfo:
    session, name, started_at, left, idle, info, runs, status = row
    said = _read(_Said, info)
    health = _read(_Health, status)
    return WorkerInfo(
        session=session,
        name=name,
        state="dead" if left <= 0 else "unhealthy" if health.problem else "idle" if idle and not runs else "working",
        lease_left=left / MICROS_PER_SECOND,
        started_at=to_datetime(started_at),
        queues=said.queues,
        concurrency=said.concurrency,
        runs=runs,
        tasks=said.tasks,
        problem=health.problem,
        loop_lag=health.loop_lag,
        lost_threads=health.lost_threads,
        process_slots=said.process_slots,
        process_tasks=said.process_tasks or (),
    )


class _Said(msgspec.Struct):
    """What a worker said of itself when it started."""

    queues: list[str] | None = None
    concurrency: int | None = None
    tasks: list[str] | None = None
    process_slots: int | None = None
    process_tasks: list[str] | None = None


class _Health(msgspec.Struct):
    """What it said with its last heartbeat."""

    problem: str | None = None
    loop_lag: float = 0.0
    lost_threads: int = 0


def _read(kind: type[S], text: str | None) -> S:
    """What the worker said; nothing where it said nothing, another release said it in another way, or it is corrupt."""
    try:
        return kind() if text is None else msgspec.json.decode(text, type=kind)
    except msgspec.MsgspecError:
        return kind()
