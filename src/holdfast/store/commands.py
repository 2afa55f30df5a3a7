"""Commands: what a worker writes about a claimed run, other than its end.

The committer collects commands and the store writes them in batches. Each command names its run, fence and generation,
so that it is rejected once the run belongs to another claim. It also names the number `n` and the key under which its
outcome is recorded, so that a repeat after a lost response reads back what was written; `n` is None if it has none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

import msgspec

from holdfast.errors import PayloadUnreadable
from holdfast.model.asks import AskAnswer
from holdfast.store.rows import NewGraph, NewRun


class RunToken(NamedTuple):
    """Identifies one claim of a run in every command."""

    run: str
    seq: int
    fence: int
    generation: int


class NewCheckpoint(msgspec.Struct, gc=False):
    """A checkpoint to record. Flat, so that statements take it as it is.

    `waited`: it is the outcome of a wait, whose row is deleted with it.
    """

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
    def token(self) -> RunToken:
        return RunToken(self.run, self.seq, self.fence, self.generation)


class NewStepCheckpoint(msgspec.Struct, gc=False):
    """The checkpoint of a step that succeeded and has no compensation, the most frequent kind.

    It carries only what the run's row doesn't say.
    """

    run: str
    seq: int
    fence: int
    n: int
    key: str
    value: str | None
    took: int | None

    def to_checkpoint(self, generation: int) -> NewCheckpoint:
        """Return the same as a `NewCheckpoint`."""
        return NewCheckpoint(
            self.run, self.seq, self.fence, generation, self.n, self.key, "step", self.value, self.took
        )


class Listening(NamedTuple):
    """Which messages of a topic a function receives. `fields`: JSON of the fields that are compared. `wanted`: their
    values, as `values_digest` returns them."""

    tenant: str | None
    topic: str
    fields: str
    wanted: str


class WaitCommand(msgspec.Struct):
    """Register a wait. The reply is its outcome if there is one already, else the time until it is due.

    `target` is the topic, the event's target, the spawn key of children, or the permits that the step `name` needs: its
    outcome is that they are taken, which isn't recorded. An eager wait for children ends with the
    first that fails. `n` is the number of its checkpoint, which is taken when the command is submitted.
    `answer`: the answer to an ask, which becomes durable with the wait for the next one. `listening`: what the function
    receives from now on, also between its waits.

    A wait of kind `budget` is for room in the budget `name`; its outcome is `budget`, or `exceeded` and by what.

    `set_aside`: the stored payload of the event that the run has set aside. The wait is for another emit of it.
    """

    token: RunToken
    key: str
    kind: Literal["sleep", "event", "message", "children", "limit", "budget"]
    target: str | None = None
    tenant: str | None = None
    name: str | None = None
    eager: int = 0
    delay: int | None = None
    due_at: int | None = None
    n: int = 0
    answer: AskAnswer | None = None
    listening: Listening | None = None
    set_aside: str | None = None


class WithdrawCommand(msgspec.Struct):
    """Withdraw a wait that the task gave up. A message that it had received goes to the next receiver."""

    token: RunToken
    n: int
    key: str


class SetAsideCommand(msgspec.Struct):
    """Set aside the message or event that a wait has received, because it doesn't have the type that the code expects.

    The wait's outcome is superseded, so that the code can wait again under the same key. Safe to repeat. `event`: its
    name, None for a message.
    """

    token: RunToken
    key: str
    error: str
    event: str | None = None
    n: ClassVar[None] = None


class EmitCommand(msgspec.Struct):
    """Emit an event. The reply says whether it was the first of its name. `trace`: the emitter's trace context."""

    token: RunToken
    n: int
    key: str
    target: str
    tenant: str | None
    name: str
    payload: str
    trace: str | None = None


class PublishCommand(msgspec.Struct):
    """Publish a message to a topic. `id`: that of the message. `payload`: JSON text, packed where it is stored."""

    token: RunToken
    n: int
    key: str
    id: str
    topic: str
    tenant: str | None
    payload: str


class SpawnCommand(msgspec.Struct):
    """Create children in bulk; at most `concurrency` of them are ready at once. `value` is what is recorded."""

    token: RunToken
    n: int
    key: str
    kind: Literal["spawn", "map"]
    children: Sequence[NewRun]
    value: str
    concurrency: int | None = None
    graph: NewGraph | None = None
    """The nodes of the only child, if that is a graph."""

    def runs(self) -> list[NewRun]:
        """Return all runs that it creates."""
        return [*self.children, *(() if self.graph is None else self.graph.runs())]


class EnqueueCommand(msgspec.Struct):
    """Create an independent run. The reply is its id, or that of the run that has its key or unique name."""

    token: RunToken
    n: int
    key: str
    request: NewRun


class WriteCommand(msgspec.Struct):
    """Write a chunk for the run's followers. Inside a step it has no number: the step's checkpoint covers it.

    `step` is the key of that step, `step_try` the number of its try in this attempt. `serial` numbers the writes of the
    body in this generation, and those of steps in this claim.
    """

    token: RunToken
    n: int | None
    key: str
    attempt: int
    data: str
    step: str | None = None
    step_try: int = 1
    serial: int = 1


class ProgressCommand(msgspec.Struct):
    """Set the run's progress."""

    token: RunToken
    text: str
    n: ClassVar[None] = None


class AnnotateCommand(msgspec.Struct):
    """Set metadata of the run. The reply is None, or a message as JSON text if the run would have too much of it."""

    token: RunToken
    n: int
    key: str
    text: str


class SetCommand(msgspec.Struct):
    """Set a value of the run. The reply is None, or a message as JSON text if the run would have too many of them."""

    token: RunToken
    n: int
    key: str
    name: str
    text: str


class ReplyCommand(msgspec.Struct):
    """Answer an ask, unless it was answered before. `kind`: that of the checkpoint."""

    token: RunToken
    n: int
    key: str
    answer: AskAnswer
    kind: Literal["reply", "refused"] = "reply"

    @property
    def text(self) -> str:
        return self.answer.text


class LimitedStepCommand(msgspec.Struct):
    """Record a step that holds permits, and return them. Safe to repeat.

    `marker` records what it took. `used` has the costs that the step has adjusted, by counter. Without `record`, the
    step was recorded before.
    """

    token: RunToken
    n: int | None
    key: str
    step: str
    record: NewCheckpoint | None
    marker: NewCheckpoint | None
    used: Mapping[str, int]


class AdjustCommand(msgspec.Struct):
    """Correct the cost of a start in the counter of a limit. `taken_at` is None for the start of the run itself."""

    token: RunToken
    n: int
    key: str
    counter: str
    cost: int
    taken_at: int | None
    used: int
    value: str


class Spend(NamedTuple):
    """An amount of a budget, in billionths."""

    budget: str
    amount: int


class SpendCommand(msgspec.Struct):
    """Add to the counters of budgets what a run spends. The reply is what each spend found, as JSON text.

    `kind`: that of the checkpoint. What a step has spent comes with `record`, its own checkpoint, in the same
    transaction; `marker` is then the number under which the spends are recorded, `marker_key` their key.
    """

    token: RunToken
    n: int
    key: str
    spends: Sequence[Spend]
    kind: Literal["spend", "left", "spent"] = "spend"
    record: NewCheckpoint | None = None
    marker: int = 0
    marker_key: str = ""

    @property
    def recorded_as(self) -> tuple[int, str]:
        """The number and the key of the checkpoint that has the reply."""
        return (self.n, self.key) if self.record is None else (self.marker, self.marker_key)


class MarkUndosCommand(msgspec.Struct):
    """Mark that the run may have compensations from now on."""

    token: RunToken
    n: ClassVar[None] = None


class FailedTryCommand(msgspec.Struct):
    """Add a history entry about a failed try of a step that is tried again.

    The reply is the number of the entry. `data` names claim, step and try, so that a repeat after a lost response finds
    the entry. `replaces`: the number of the entry of an earlier try, which is deleted.
    """

    token: RunToken
    key: str
    data: str
    replaces: int | None = None
    n: ClassVar[None] = None


Command: TypeAlias = (
    NewCheckpoint | WaitCommand | WithdrawCommand | SetAsideCommand | EmitCommand | PublishCommand | SpawnCommand
    | EnqueueCommand | WriteCommand | ProgressCommand | AnnotateCommand | SetCommand | ReplyCommand | MarkUndosCommand
    | FailedTryCommand | LimitedStepCommand | AdjustCommand | SpendCommand
)  # fmt: skip


class WaitOutcome(NamedTuple):
    """How a wait was resolved: kind (`due`, `event`, `message`, `children` or `failed`) and value.

    For a step that wants permits: `permit` and when they were taken, or `refused` and why. For a run that has spent
    more than its budget: `budget` once there is room, or `exceeded` and by what."""

    kind: str
    value: str | None


class WaitRegistered(NamedTuple):
    """The wait is registered and unresolved; `due_in` is microseconds, None without a time."""

    due_in: int | None


class RunLost(NamedTuple):
    """The run belongs to another claim: nothing was written."""


RUN_LOST = RunLost()


class Written(NamedTuple):
    """The command was carried out; `value` is what is recorded."""

    value: Any = None


Reply: TypeAlias = Written | WaitOutcome | WaitRegistered | RunLost


class LoadedWait(msgspec.Struct):
    """A wait that existed when the run was claimed."""

    key: str
    kind: str
    outcome: WaitOutcome | None
    due_in: int | None


class Checkpoint(NamedTuple):
    """A recorded outcome, read back."""

    n: int
    key: str
    kind: str
    value: str | None
    undo: int


class LoadedHistory(msgspec.Struct):
    """The checkpoints and waits of a run, loaded for a replay. `unreadable`: why the first one can't be read."""

    checkpoints: list[Checkpoint] = msgspec.field(default_factory=list)
    waits: list[LoadedWait] = msgspec.field(default_factory=list)
    unreadable: PayloadUnreadable | None = None


OF_ITS_RUN = (
    NewCheckpoint, NewStepCheckpoint, WaitCommand, WriteCommand, ProgressCommand, AnnotateCommand, SetCommand,
    ReplyCommand, MarkUndosCommand, FailedTryCommand,
)  # fmt: skip
"""Commands that make no run ready and resolve no wait: nobody but the run's followers has to look after them."""


def payload_size(command: Command | NewStepCheckpoint) -> int:
    """Estimate the payload bytes of a command."""
    if isinstance(command, NewCheckpoint | NewStepCheckpoint):
        return 0 if command.value is None else len(command.value)
    if isinstance(command, LimitedStepCommand | SpendCommand):
        return 0 if command.record is None else payload_size(command.record)
    if isinstance(command, SpawnCommand):
        return sum(len(run.args) for run in command.runs())
    if isinstance(command, EnqueueCommand):
        return len(command.request.args)
    texts = (getattr(command, name, None) for name in ("payload", "data", "text"))
    return sum(len(text) for text in texts if text is not None)


def needs_own_transaction(command: Command | NewStepCheckpoint) -> bool:
    """Return whether a command can't share a transaction: keys and names are locked before runs."""
    return isinstance(command, EnqueueCommand) and command.request.has_name
