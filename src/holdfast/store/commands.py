"""What a worker writes about a run that it has in hand, besides its end: small commands, written in groups.

Each names its run, fence and generation, so that it is refused when the run is somebody else's by now, and the number
`n` and key under which its outcome is recorded, so that a repeat after a lost answer reads back what was done.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from holdfast.store.rows import NewGraph, NewRun


class Held(NamedTuple):
    """A run that a worker has in hand, as every command names it."""

    run: str
    seq: int
    fence: int
    generation: int


class Record(msgspec.Struct, gc=False):
    """A checkpoint, flat, so that statements take it as it is. `waited`: it is the outcome of a wait, which is over
    with it."""

    run: str
    seq: int
    fence: int
    generation: int
    n: int
    key: str
    kind: str
    value: str | None = None
    took: int | None = None
    undo: int = 0
    waited: bool = False

    @property
    def held(self) -> Held:
        return Held(self.run, self.seq, self.fence, self.generation)


class StepRecord(msgspec.Struct, gc=False):
    """The checkpoint of a step that went well and has no undo, as most are: what its run doesn't say by itself."""

    run: str
    seq: int
    fence: int
    n: int
    key: str
    value: str | None
    took: int | None

    def whole(self, generation: int) -> Record:
        """The same as any other checkpoint."""
        return Record(self.run, self.seq, self.fence, generation, self.n, self.key, "step", self.value, self.took)


class Wait(msgspec.Struct):
    """Something to wait for. Answered with its outcome where it has come already, else with what is left of its time.

    `target` is the topic, the event's target, or the spawn key of children; an eager wait for children ends with the
    first that fails.
    """

    held: Held
    n: int
    key: str
    kind: Literal["sleep", "event", "message", "children"]
    target: str | None = None
    tenant: str | None = None
    name: str | None = None
    eager: int = 0
    delay: int | None = None
    due_at: int | None = None


class Withdraw(msgspec.Struct):
    """Author code gave up a wait: it is over, and what came of it, if anything, goes to whoever asks next."""

    held: Held
    n: int
    key: str


class Emit(msgspec.Struct):
    """An event. Answered with whether it was the first of its name. `trace`: the context of the code that emits it."""

    held: Held
    n: int
    key: str
    target: str
    tenant: str | None
    name: str
    payload: str
    trace: str | None = None


class Spawn(msgspec.Struct):
    """Children, made in bulk; at most `concurrency` of them are let go at once. `value` is what is on record of it."""

    held: Held
    n: int
    key: str
    kind: Literal["spawn", "map"]
    children: Sequence[NewRun]
    value: str
    concurrency: int | None = None
    graph: NewGraph | None = None
    """The nodes of the one child, where that is a graph."""

    def runs(self) -> list[NewRun]:
        """All that is made."""
        return [*self.children, *(() if self.graph is None else self.graph.runs())]


class Enqueue(msgspec.Struct):
    """An independent run. Answered with its id, which may be that of the run that had its key or unique name."""

    held: Held
    n: int
    key: str
    request: NewRun


class Write(msgspec.Struct):
    """A piece for those who follow the run. Inside a step it has no number: the step's checkpoint stands for it."""

    held: Held
    n: int | None
    key: str
    attempt: int
    data: str


class Progress(msgspec.Struct):
    """How far the run has come."""

    held: Held
    text: str


class MarkUndos(msgspec.Struct):
    """The run may have compensations from now on."""

    held: Held


Command: TypeAlias = Record | Wait | Withdraw | Emit | Spawn | Enqueue | Write | Progress | MarkUndos


class Outcome(NamedTuple):
    """What a wait came to: its kind (`due`, `event`, `message`, `children`, `failed`) and value."""

    kind: str
    value: str | None


class Open(NamedTuple):
    """A wait that is registered; microseconds until it is due, if it is by time."""

    due_in: int | None


class Lost(NamedTuple):
    """The run isn't this worker's any more: nothing was written."""


LOST = Lost()


class Wrote(NamedTuple):
    """A command was carried out; with the value that is on record."""

    value: Any = None


Reply: TypeAlias = Wrote | Outcome | Open | Lost


class KeptWait(msgspec.Struct):
    """A wait that was there when the run was claimed."""

    key: str
    kind: str
    outcome: Outcome | None
    due_in: int | None


class Checkpoint(NamedTuple):
    """A recorded outcome, as it is read back."""

    n: int
    key: str
    kind: str
    value: str | None
    undo: int


class Kept(msgspec.Struct):
    """All that is kept of a run's past."""

    checkpoints: list[Checkpoint] = msgspec.field(default_factory=list)
    waits: list[KeptWait] = msgspec.field(default_factory=list)


def payload_size(command: Command | StepRecord) -> int:
    """About how many bytes a command brings along."""
    if isinstance(command, Record | StepRecord):
        return 0 if command.value is None else len(command.value)
    if isinstance(command, Spawn):
        return sum(len(run.args) for run in command.runs())
    if isinstance(command, Enqueue):
        return len(command.request.args)
    texts = (getattr(command, name, None) for name in ("payload", "data", "text"))
    return sum(len(text) for text in texts if text is not None)


def wants_to_be_alone(command: Command | StepRecord) -> bool:
    """Whether a command needs a transaction of its own: keys and unique names are locked before runs."""
    return isinstance(command, Enqueue) and (command.request.key is not None or command.request.unique is not None)
