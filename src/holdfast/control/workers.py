"""Worker sessions for operators."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal

import msgspec

from holdfast.database import Row
from holdfast.model.clock import SECOND, to_datetime
from holdfast.store import Store


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


class Workers:
    """Who works on the database, or did until just now."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def list(self) -> list[WorkerInfo]:
        """All sessions, the oldest first."""
        return [_info(row) for row in self._store.workers.sessions()]


def _info(row: Row) -> WorkerInfo:
    session, name, started_at, left, idle, info, runs, status = row
    said = _said(info)
    health = _said(status or "{}")
    problem = health.get("problem")
    return WorkerInfo(
        session=session,
        name=name,
        state="dead" if left <= 0 else "unhealthy" if problem else "idle" if idle and not runs else "working",
        lease_left=left / SECOND,
        started_at=to_datetime(started_at),
        queues=said.get("queues"),
        concurrency=said.get("concurrency"),
        runs=runs,
        tasks=said.get("tasks"),
        problem=problem,
        loop_lag=health.get("loop_lag", 0.0),
        lost_threads=health.get("lost_threads", 0),
        process_slots=said.get("process_slots"),
        process_tasks=said.get("process_tasks") or (),
    )


def _said(info: str) -> dict[str, Any]:
    """What the worker said of itself; nothing when another release said it in another way."""
    try:
        said = msgspec.json.decode(info)
    except msgspec.DecodeError:
        return {}
    return said if isinstance(said, dict) else {}
