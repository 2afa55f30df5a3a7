"""The durable history of a run: its entries and their kinds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

KINDS: dict[str, str] = {
    "enqueued": "the run was created",
    "started": "a worker started an attempt",
    "done": "the run finished with a result",
    "failed": "the run failed permanently; data has the error",
    "retrying": "an attempt failed and will be retried; data has the error",
    "timed_out": "an attempt timed out and will be retried, or a gate timed out; data has the error",
    "crashed": "the attempt's process died or lost its lease while it executed no other run: charged to the run",
    "worker_lost": "the attempt's process died or lost its lease while it executed several runs: not charged; data has"
    " their number, or 0 if the database didn't answer",
    "handed_back": "the worker stopped cleanly and released the run; the attempt isn't charged",
    "cancelled": "the run was cancelled; data has the reason and, if known, who cancelled it",
    "retried": "an operator retried the finished run; data has who, if known",
    "sent": "an operator sent the run a message; data has who, and the topic",
    "waiting": "the run was suspended to wait; data has what for",
    "resumed": "the wait ended, and the attempt continued on a worker",
    "moved": "a state machine moved to its next state",
    "restarted": "the run restarted with other arguments; its checkpoints were deleted",
    "undoing": "the run failed or was cancelled, and its compensations run first; data has the error",
    "forked": "the run was created from another run's checkpoints; data has which",
    "skipped": "a node of a graph was skipped; data has the cause as its error",
    "appended": "nodes were appended to the graph; data has how many, and the key",
    "completed": "the gate was completed; data has who",
    "concluded_early": "the gate was completed or rejected before it opened; data has who, and the outcome",
    "drift": "a replay called steps with other arguments than recorded; data has the recorded ones",
    "let_go": "the last attempt of a finished run has stopped on its worker",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a run's history."""

    kind: str
    at: datetime
    attempt: int
    worker: str | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
