"""The durable record of a run: its entries and their kinds. Reading and writing them is the store's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

KINDS: dict[str, str] = {
    "enqueued": "the run was made",
    "started": "an attempt began on a worker",
    "done": "the run ended with a result",
    "failed": "the run ended failed; data has the error",
    "retrying": "an attempt failed and will be tried again; data has the error",
    "timed_out": "an attempt ran into its timeout and will be tried again, or a gate into its own; data has the error",
    "crashed": "the attempt's process died or lost its lease while no other run was running in it: the run is charged",
    "worker_lost": "the attempt's process died or lost its lease with other runs in it: nobody is charged; data has how"
    " many there were, or 0 if the database didn't answer",
    "handed_back": "the attempt's worker stopped cleanly and gave the run back; the attempt isn't charged",
    "cancelled": "the run was cancelled; data has the reason, and who did it where that is known",
    "retried": "an operator sent the ended run back to be tried anew; data has who, where that is known",
    "sent": "an operator sent the run a message; data has who, and the topic",
    "waiting": "the run gave up its slot to wait; data has what for",
    "resumed": "what the run waited for came, and its attempt went on on a worker",
    "moved": "a machine went from one state to the next",
    "restarted": "the run began anew with other arguments, its checkpoints dropped",
    "undoing": "the run failed or was cancelled and has compensations to run first; data has the error",
    "forked": "the run was made of another one's checkpoints; data has which",
    "skipped": "a node of a graph can't run any more; data has the cause as its error",
    "appended": "the graph got more nodes; data has how many, and the key",
    "completed": "somebody completed the gate; data has who",
    "concluded_early": "somebody completed the gate, or let it fail, before it opened; data has who, and the outcome",
    "drift": "a replay asked for steps with other arguments than are on record; data has the recorded ones",
    "let_go": "the last attempt of a run that had already ended is over on its worker",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a run's history."""

    kind: str
    at: datetime
    attempt: int
    worker: str | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
