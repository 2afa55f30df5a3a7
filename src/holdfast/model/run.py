"""What a run looks like from outside: its states, `RunInfo`, `Progress` and pages of them.

The handle with verbs is `client/handle.py`; the row is the store's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, Literal, TypeAlias, TypeVar, get_args
from uuid import UUID

from holdfast.errors import ErrorInfo

R_co = TypeVar("R_co", covariant=True)

RunState: TypeAlias = Literal[
    "blocked", "scheduled", "ready", "running", "waiting", "undoing", "done", "failed", "cancelled", "skipped"
]

RUN_STATES: tuple[RunState, ...] = get_args(RunState)
GRAPH_QUEUE = "$graph"
"""Where graphs and gates are: no worker takes anything from there."""
FINAL_STATES: frozenset[RunState] = frozenset({"done", "failed", "cancelled", "skipped"})


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run has come, in its author's own units."""

    done: float
    total: float | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of what a run wrote for its followers. Give `seq` as `after` to go on behind it; pieces that a step wrote
    and wrote again after a crash differ in `attempt`."""

    seq: int
    attempt: int
    data: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo(Generic[R_co]):
    """A run as it was when it was read. `result` is None until the state is `done`; `scheduled_for` is the slot of the
    schedule that made it."""

    id: UUID
    task: str
    queue: str
    priority: int
    state: RunState
    attempt: int
    crashes: int
    created_at: datetime
    started_at: datetime | None = None
    finished_at: datetime | None = None
    result: R_co | None = None
    error: ErrorInfo | None = None
    worker: str | None = None
    parent: UUID | None = None
    tenant: str | None = None
    tags: Sequence[str] = ()
    progress: Progress | None = None
    scheduled_for: datetime | None = None

    @property
    def final(self) -> bool:
        """Whether the run has ended."""
        return self.state in FINAL_STATES


class Page(list[RunInfo[Any]]):
    """Some runs of a longer list. `after` asks for the next ones; None when these were the last. `partial`: it has
    fewer than were asked for, though there may be more, because very many others were passed over."""

    after: str | None
    partial: bool

    def __init__(self, runs: Iterable[RunInfo[Any]] = (), after: str | None = None, *, partial: bool = False) -> None:
        super().__init__(runs)
        self.after = after
        self.partial = partial
