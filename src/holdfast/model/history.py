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
    "quarantined": "the run's row was corrupt: values that workers can't handle were replaced, and the run fails; data"
    " has what was stored",
    "retrying": "an attempt failed and will be retried; data has the error and, as `retry_at`, the time of the next"
    " attempt",
    "timed_out": "an attempt timed out and will be retried, or a gate timed out; data has the error and, as `retry_at`,"
    " the time of the next attempt",
    "crashed": "the attempt's process died or lost its lease with no other run in it; the crash is charged to the run",
    "worker_lost": "the attempt's process died or lost its lease with other runs in it; no run is charged; data has"
    " the number of runs, or 0 if the database was unreachable",
    "handed_back": "the worker shut down cleanly and released the run; the attempt isn't charged",
    "cancelled": "the run was cancelled; data has the reason and, if known, who cancelled it",
    "retried": "an operator retried the finished run; data has who, if known, the step from which it runs again if its"
    " compensations had run, and `changed` if it starts over with other arguments",
    "updated": "the run was changed before it started, or rescheduled; data has who, if known, and what: its priority,"
    " time, arguments or tags",
    "paused": "the run was paused: no worker claims it until it is resumed; data has who, if known",
    "unpaused": "the paused run was resumed; data has who, if known",
    "sent": "an operator sent the run a message, or a program did with `by=`; data has who, the topic, and the number"
    " of a message that was sent again",
    "set_aside": "a message or an event didn't have the type that the function expects and was set aside; data has the"
    " number and the topic of the message, or the event, and the reason",
    "waiting": "the run released its slot to wait; data has what it waits for",
    "resumed": "the wait was resolved and a worker continued the attempt",
    "moved": "a state machine moved to its next state; data has both states",
    "restarted": "the run started over with new arguments and without checkpoints",
    "undoing": "the run failed or was cancelled and runs its compensations first; data has the error",
    "forked": "the run was created from the checkpoints of another run, or the node has the outcome of another run's"
    " node; data has its id",
    "skipped": "the graph node can no longer run; data has the cause as an error",
    "appended": "nodes were added to the graph; data has their number and the key",
    "completed": "the gate was completed; data has who did it",
    "concluded_early": "the gate was completed or rejected before it opened; data has who did it, and the outcome",
    "step_retrying": "a try of a step failed, and the step is tried again in the same attempt; data has the step, the"
    " try, its arguments, the error, and when the next try starts",
    "budget_exceeded": "the run has spent more than a budget allows, and waits or fails; data has the budget, what it"
    " allows and what was spent",
    "budget_raised": "the run has room in the budget again; data has the budget, what it allows now and, if known, who"
    " raised it",
    "drift": "a replay called recorded steps with other arguments or under another name, so they ran again; data"
    " has the recorded ones",
    "let_go": "the worker stopped the code of a run that had already ended",
}


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One entry of a run's history."""

    kind: str
    at: datetime
    attempt: int
    worker: str | None = None
    data: Mapping[str, Any] = field(default_factory=dict)


Entry = HistoryEntry
"""The name before 0.2, kept for programs that import it."""
