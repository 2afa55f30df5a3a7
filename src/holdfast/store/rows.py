"""What goes into the store and comes out of it, as plain data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias, final

import msgspec

IfTaken: TypeAlias = Literal["return", "queue", "replace", "cancel"]


class NewRun(msgspec.Struct):
    """A run to create. The caller chooses its id, so that repeating a lost request creates no second run.

    Times and durations are microseconds.
    """

    id: str
    queue: str
    task: str
    args: str
    keep: int
    """How long it is kept after its end; after a failure or a cancellation, `keep_failed` if that isn't None."""
    max_crashes: int = 3
    tenant: str | None = None
    priority: int = 0
    delay: int | None = None
    run_at: int | None = None
    deadline_in: int | None = None
    deadline_at: int | None = None
    unique: str | None = None
    key: str | None = None
    digest: str | None = None
    """Identifies the request behind `key`. Another digest under the same key is a conflict."""
    old_digest: str | None = None
    """The digest that release 0.1 stored for the same request, where it differs."""
    options: str | None = None
    tags: str | None = None
    limits: str | None = None
    fair: Mapping[str, int] | None = None
    """For fair queues: the weight of each tenant."""
    turn: int = 0
    keep_failed: int | None = None
    metadata: str | None = None
    """Canonical JSON text of an object."""
    debounce: str | None = None
    """Collects calls into one run until it starts: the newest arguments count, and each call restarts `delay`."""
    max_delay: int | None = None
    """The longest time between the creation of a debounced run and its due time."""
    if_taken: IfTaken = "return"
    """What an enqueue does if an unfinished run has the unique name."""

    start_in: int | None = None
    start_by_at: int | None = None
    """The run is cancelled unless it starts within `start_in` of its creation, or by this time."""
    key_ttl: int | None = None
    """How long the idempotency key is used."""

    @property
    def has_name(self) -> bool:
        """Whether another run may stand for it, by an idempotency key, a unique name or a debounce name."""
        return self.key is not None or self.unique is not None or self.debounce is not None


class NewNode(msgspec.Struct):
    """A node of a graph to create.

    `needs` names the nodes that it depends on. `plan` is JSON: the rule, the arguments to fill in, and other settings
    that apply when the node is released. `kind` tells gates and nested graphs from tasks.
    """

    run: NewRun
    name: str
    needs: Sequence[str] = ()
    plan: msgspec.Raw | None = None
    kind: Literal["gate", "graph"] | None = None
    graph: NewGraph | None = None


class NewGraph(msgspec.Struct):
    """The nodes of a graph to create."""

    nodes: Sequence[NewNode]

    def runs(self) -> Iterator[NewRun]:
        """Yield the runs of all nodes, including those of nested graphs."""
        for node in self.nodes:
            yield node.run
            if node.graph is not None:
                yield from node.graph.runs()


class Claim(msgspec.Struct, gc=False):
    """A claimed run: what a worker needs to start its next attempt."""

    id: str
    seq: int
    lane: int
    priority: int
    turn: int
    fence: int
    attempt: int
    failures: int
    deadline_in: int | None
    args: str
    options: str | None
    generation: int = 0
    tenant: str | None = None
    parent: str | None = None
    spent: int = 0
    undos: int = 0
    ending: str | None = None
    limits: str | None = None
    position: str | None = None
    """Where a run with a parent is in its tree, as a JSON array: root, spawn key, map index and name of its node. None
    if that wasn't read."""


class OwnedRun(NamedTuple):
    """A run whose row names a session."""

    id: str
    fence: int
    state: str


ClaimKey: TypeAlias = tuple[str, int]
"""The id of a run and the fence of one claim of it."""

EndKind: TypeAlias = Literal[
    "done", "failed", "retrying", "timed_out", "handed_back", "crashed", "waiting", "restarted", "moved", "undoing",
    "undone",
]  # fmt: skip
EndState: TypeAlias = Literal["done", "failed", "cancelled", "scheduled", "ready", "waiting"]


@final
class AttemptEnd(msgspec.Struct, omit_defaults=True):
    """How an attempt ended and which state its run enters. Statements take it as it is.

    The worker creates it and queues it as a `PendingEnd`. `AttemptStore.end` writes it and returns the `EndedClaims`.
    A run that ends without an attempt, like a skipped node, has an `EndWithoutAttempt` instead. In a tree of runs,
    either leads to an `EndedRun`, which propagates to the parent and to dependent nodes; a durable function that joins
    the run reads a `ChildOutcome`.


    - `crashed`: the process died, or the code had to be abandoned; the store decides whether the run is retried.
      `runs_in_process`: how many runs could have caused it; only a run alone is charged. `isolate`: whether it must not
      share a process from now on.
    - `waiting`: the run suspends; `restarted`: it starts over with new arguments; `moved`: a state machine enters its
      next state; `undoing`: it failed and has compensations to run; `undone`: it ran them and now ends.
    - `still_running`: code that can't be stopped is still running; the run must not start until it is released.
    - `in_tree`: the run has a parent or is a durable function, so that its end concerns more than its own row.
    - `limits`: those of the run, whose permits return with a plain end. In a tree they are read from the row.
    - `permits`: whether steps may hold permits.
    - `forget`: numbers of failures and timeouts that the next attempt runs again.
    - `drift`: how a replay differed from the history.
    - `note`: what the history entry says about a wait or a move. `keep_records`: how many entries are kept.
    - `parents`: the id of the parent, nothing if the run has none, None if that isn't known.
    - `is_blank`: the run has neither checkpoints nor waits that its end would have to delete.
    """

    id: str
    seq: int
    fence: int
    kind: EndKind
    state: EndState
    result: str | None = None
    error: str | None = None
    delay: int | None = None
    failed: int = 0
    still_running: int = 0
    in_tree: bool = False
    args: str | None = None
    forget: tuple[int, ...] = ()
    drift: str | None = None
    note: str | None = None
    keep_records: int | None = None
    limits: str | None = None
    runs_in_process: int = 1
    isolate: bool | None = None
    permits: bool = False
    parents: tuple[str, ...] | None = None
    is_blank: bool = False

    @property
    def claim(self) -> ClaimKey:
        """The claim that it ends: a run may be claimed again before its old attempt has reported."""
        return self.id, self.fence


class EndedClaims(set[ClaimKey]):
    """The claims whose ends were recorded.

    `failed_graphs`: graphs that failed as a consequence. `other_ends`: all runs that ended as a consequence.
    """

    failed_graphs: Sequence[str] = ()
    other_ends: Sequence[str] = ()


class LostWorker(NamedTuple):
    """A worker session whose lease expired, and what became of its runs.

    `name` is None if the session has no row. `excused`: the database didn't answer, so no run was charged. `runs` and
    `failed_runs`: the ids of those that became ready again, and that failed because they crashed too often.
    """

    session: str
    name: str | None
    requeued: int
    failed: int
    excused: bool = False
    runs: tuple[str, ...] = ()
    failed_runs: tuple[str, ...] = ()


class RecoveryResult(NamedTuple):
    """What a recovery of dead sessions did.

    `requeued`: runs returned to ready. `failed`: runs that crashed too often. `released`: runs that had ended while
    their code still ran. `failed_graphs`: graphs that failed as a consequence. `lost`: the sessions that ended, or of
    which runs were recovered; a session with many runs is recovered in several transactions.
    """

    requeued: int
    failed: list[str]
    released: int
    sessions: list[str]
    failed_graphs: list[str]
    lost: list[LostWorker]

    def __bool__(self) -> bool:
        return bool(self.requeued or self.failed or self.released)
