"""Runs as users see them: states, `RunInfo`, `Progress` and pages of runs. `client/handle.py` has the handle."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, Literal, TypeAlias, get_args
from uuid import UUID

from holdfast.errors import ErrorInfo
from holdfast.model.type_variables import R_co

RunState: TypeAlias = Literal[
    "blocked", "scheduled", "ready", "running", "waiting", "undoing", "done", "failed", "cancelled", "skipped"
]
"""The state of a run. The last four are final."""

RUN_STATES: tuple[RunState, ...] = get_args(RunState)
GRAPH_QUEUE = "$graph"
TOPIC_QUEUE = "$topic"
"""Stands for the queue in the scope of the keys of published messages, which are no runs."""
"""The queue of graphs and gates, from which no worker claims."""
FINAL_STATES: frozenset[RunState] = frozenset({"done", "failed", "cancelled", "skipped"})


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress that a run has reported, in units of its own."""

    done: float
    total: float | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class StreamReset:
    """Chunks of a run's stream that no longer count, because the code that wrote them runs again.

    These are the chunks of the same `step`, None for the body of the function, whose number is between `after` and
    `before`, without both; with `everything`, those of all steps and of the body.
    """

    after: int
    before: int
    step: str | None
    everything: bool = False

    def drops(self, chunk: Chunk) -> bool:
        """Return whether a chunk no longer counts."""
        return self.after < chunk.seq < self.before and (self.everything or chunk.step == self.step)


@dataclass(frozen=True, slots=True)
class Chunk:
    """One chunk of a run's stream.

    Pass `seq` as `after` to continue behind it. `step` is the key of the step that wrote it, or None for the body of
    the function, which writes each chunk once. A step that runs again writes again: with a higher `attempt` after a
    crash or a retry of the run, with a higher `step_try` after a retry of the step (`retry=`). The first chunk of the
    repeated call has a `reset`, which tells the chunks that it replaces.
    """

    seq: int
    attempt: int
    data: Any
    step: str | None = None
    step_try: int = 1
    reset: StreamReset | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo(Generic[R_co]):
    """A snapshot of a run.

    `result` is None until the state is `done`. Lists leave results out, because they may be large: `result` is None
    then too, and `result_omitted` is true for a run that is done. `key` is the idempotency key. `args` are the
    arguments as plain JSON values with secrets masked; in lists, long ones are a string with the start of their JSON.
    `due_at` is when a scheduled run becomes ready. `metadata` is what `options(metadata=…)` and `ctx.annotate` attached
    to it. `scheduled_for` is the slot of the schedule that created the run. `crashes` counts the deaths of its process
    that the run was charged with, because it was alone there, since its last transition, restart or retry.
    `corrupt` names columns of the run's row that another program or a failure has damaged; their values are left out.
    """

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
    key: str | None = None
    args: Any = None
    due_at: datetime | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    corrupt: Sequence[str] = ()
    result_omitted: bool = False

    @property
    def final(self) -> bool:
        """Whether the run has finished."""
        return self.state in FINAL_STATES


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnd:
    """How a run ended: the argument of tasks in `on_success`, `on_failure` and `on_end`.

    `error` has no traceback. For the rest, read the run: `app.get_run(end.id).info()`.
    """

    id: UUID
    task: str
    queue: str
    state: Literal["done", "failed", "cancelled"]
    attempt: int
    created_at: datetime
    finished_at: datetime
    tenant: str | None = None
    error: ErrorInfo | None = None


class Page(list[RunInfo[Any]]):
    """One page of a list of runs.

    Pass `after` to get the next page; it is None on the last one. `partial` means that the page has fewer runs than
    requested although there may be more, because the search skipped very many others. `scanned` is how many runs were
    read. Of a search for a text, `matches` has the fields that match, by run, such as `argument order_id`, and `hidden`
    is how many of the scanned runs have arguments that can't be searched: encrypted, compressed, or long.
    """

    after: str | None
    partial: bool
    scanned: int
    hidden: int
    matches: Mapping[UUID, Sequence[str]]

    def __init__(
        self,
        runs: Iterable[RunInfo[Any]] = (),
        after: str | None = None,
        *,
        partial: bool = False,
        scanned: int = 0,
        hidden: int = 0,
        matches: Mapping[UUID, Sequence[str]] | None = None,
    ) -> None:
        super().__init__(runs)
        self.after = after
        self.partial = partial
        self.scanned = scanned
        self.hidden = hidden
        self.matches = matches or {}
