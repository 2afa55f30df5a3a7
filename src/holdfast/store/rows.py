"""What goes into the store and comes out of it, as plain data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

import msgspec


class NewRun(msgspec.Struct):
    """A run to be made. Its id is made by the caller, so that a repeat after a lost answer makes no second one."""

    id: str
    queue: str
    task: str
    args: str
    keep: int
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
    """Of the request that its key stands for. Another digest under the same key is a conflict."""
    old_digest: str | None = None
    """The digest that 0.1 stored for the same request, where it differs."""
    options: str | None = None
    tags: str | None = None
    limits: str | None = None
    fair: Mapping[str, int] | None = None
    """Of a fair queue: the weights of tenants."""
    turn: int = 0


class NewNode(msgspec.Struct):
    """A node of a graph to be made. `needs` are the names of those that it depends on; `plan` is what its release needs
    to know beyond counting them, as JSON; `kind` tells gates and graphs from tasks."""

    run: NewRun
    name: str
    needs: Sequence[str] = ()
    plan: msgspec.Raw | None = None
    kind: Literal["gate", "graph"] | None = None
    graph: NewGraph | None = None


class NewGraph(msgspec.Struct):
    """The nodes of a graph to be made."""

    nodes: Sequence[NewNode]

    def runs(self) -> Iterator[NewRun]:
        """All its nodes, those of the graphs within it too."""
        for node in self.nodes:
            yield node.run
            if node.graph is not None:
                yield from node.graph.runs()


class Claim(msgspec.Struct, gc=False):
    """A run that became ours: what a worker needs to try it."""

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


class Owned(NamedTuple):
    """A run that a session holds, by the database's account."""

    id: str
    fence: int
    state: str


ClaimKey: TypeAlias = tuple[str, int]
"""A run and the fence that a claim of it got."""

EndKind: TypeAlias = Literal[
    "done",
    "failed",
    "retrying",
    "timed_out",
    "handed_back",
    "crashed",
    "waiting",
    "restarted",
    "moved",
    "undoing",
    "undone",
]
EndState: TypeAlias = Literal["done", "failed", "cancelled", "scheduled", "ready", "waiting"]


class End(msgspec.Struct, omit_defaults=True):
    """How an attempt ended, and what becomes of its run. Statements take it as it is.

    `crashed`: the process of its author code died, or its code had to be abandoned; the store decides whether the run
    is tried again. `together`: how many runs could have caused that; only a run alone is charged. `isolate`: whether it
    must not share a process with other runs from now on.
    `lingers`: author code that can't be stopped still runs; nobody else may start the run before it is let go.
    `family`: the run has a parent, or is a durable function, so that its end concerns more than its own row.
    `waiting`: it suspends; `restarted`: it begins anew with other arguments; `moved`: a machine is in its next state;
    `undoing`: it failed and has compensations to run; `undone`: it has run them, and ends as it was to.
    `limits`: those of its run, whose permits go back with a plain end; a family's end knows them from the run's row.
    `forget`: the numbers of checkpoints that don't count for the next attempt.
    `drift`: what a replay did differently from what is on record, as JSON.
    `note`: what the history says of a wait or a move; `keep_records`: how much of the history is kept.
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
    lingers: int = 0
    family: bool = False
    args: str | None = None
    forget: tuple[int, ...] = ()
    drift: str | None = None
    note: str | None = None
    keep_records: int | None = None
    limits: str | None = None
    together: int = 1
    isolate: bool | None = None

    @property
    def claim(self) -> ClaimKey:
        """Whose end it is: a run may be claimed again while its old attempt still has something to say."""
        return self.id, self.fence


class Counted(set[ClaimKey]):
    """The attempts whose ends counted. `failed_with`: graphs that failed by them."""

    def __init__(self, claims: Iterable[ClaimKey] = (), failed_with: Iterable[str] = ()) -> None:
        super().__init__(claims)
        self.failed_with = list(failed_with)


class Recovered(NamedTuple):
    """What a recovery of dead sessions did. `failed_with`: graphs that failed by it."""

    ready: int
    failed: list[str]
    released: int
    sessions: list[str]
    failed_with: list[str]

    def __bool__(self) -> bool:
        return bool(self.ready or self.failed or self.released)
