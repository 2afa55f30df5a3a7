"""The operations of a durable function, as plain data: a context creates them, an executor carries them out.

Each has a `base`: its identity without the occurrence number that the engine adds (`base#1`, `base#2`, …). Steps and
transactions are identified by name and arguments; all others by `$`, their kind and a name.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias
from uuid import UUID

import msgspec

from holdfast.model.asks import ReceivedAsk
from holdfast.model.codec import DIGEST_VERSION, digest_base
from holdfast.model.retry import Retry
from holdfast.model.topics import FieldValue, values_digest
from holdfast.task.declared_limits import Cost
from holdfast.task.functions import FunctionInfo
from holdfast.task.graph_compiler import CompiledGraph
from holdfast.task.task import Request, Task


class FunctionCall(msgspec.Struct):
    """A function with the arguments of one call."""

    name: str
    base: str
    fn: Callable[..., Any]
    function_info: FunctionInfo
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = {}


class Step(FunctionCall):
    """A checkpointed function call. `timeout` is in microseconds."""

    retry: Retry | None = None
    timeout: int | None = None
    undo: Callable[[Any], Any] | None = None
    raises: tuple[type[Exception], ...] = ()
    limits: tuple[str, ...] | None = None
    cost: Cost | None = None
    executor: str | None = None


class Transaction(FunctionCall):
    """A function whose database writes are committed together with its checkpoint."""


class Undo(FunctionCall):
    """A compensation, registered before an effect that may or may not happen."""


class Sleep(msgspec.Struct):
    """A wait for a time: `delay` microseconds from now, or `until`."""

    name: str | None = None
    delay: int | None = None
    until: int | None = None

    @property
    def base(self) -> str:
        return "$sleep" if self.name is None else f"$sleep:{self.name}"


class WaitFor(msgspec.Struct):
    """A wait for an event. `timeout` is in microseconds; `type` is that of the payload."""

    event: str
    timeout: int | None = None
    type: Any = None

    @property
    def base(self) -> str:
        return f"$event:{self.event}"


class Receive(msgspec.Struct):
    """A wait for the next message of a topic."""

    topic: str
    timeout: int | None = None
    type: Any = None

    @property
    def base(self) -> str:
        return f"$message:{self.topic}"


class Emit(msgspec.Struct):
    """An event to emit in the run's tenant. `payload` is JSON text."""

    event: str
    payload: str

    @property
    def base(self) -> str:
        return f"$emit:{self.event}"


class Publish(msgspec.Struct):
    """A message to publish in the run's tenant. `payload` is JSON text."""

    topic: str
    payload: str

    @property
    def base(self) -> str:
        return f"$publish:{self.topic}"


class Next(msgspec.Struct):
    """A wait for the next message of a topic with these values. `where` is sorted by field."""

    topic: str
    where: Mapping[str, FieldValue]
    timeout: int | None = None
    type: Any = None

    @property
    def base(self) -> str:
        if not self.where:
            return f"$next:{self.topic}"
        return f"$next:{self.topic}-{DIGEST_VERSION}{values_digest([*self.where, *self.where.values()])[:16]}"


class Spawn(msgspec.Struct):
    """A child run. `digest` identifies its arguments and options."""

    request: Request[Any]
    digest: str

    @property
    def base(self) -> str:
        return digest_base(f"$spawn:{self.request.task}-", self.digest)


class Submit(msgspec.Struct):
    """A child graph. `result` names the node whose output is its result; `digest` identifies the graph."""

    plan: CompiledGraph
    result: str | None
    digest: str

    @property
    def base(self) -> str:
        return digest_base(f"$submit:{self.plan.graph.name}-", self.digest)

    def result_task(self) -> str | None:
        """Return the task whose result type the graph's result has, or None for plain JSON."""
        request = None if self.result is None else self.plan.graph.added[self.result].request
        return None if request is None else request.task


class FunctionGate(Submit):
    """A gate of a durable function: a child graph that consists of it. Identified by its name."""

    type: Any = None

    @property
    def base(self) -> str:
        return f"$gate:{self.plan.graph.name}"


class Join(msgspec.Struct):
    """A wait for a child's result."""

    run: UUID
    task: str
    base: str = "$join"


class Map(msgspec.Struct):
    """A child per item, and a wait for their results."""

    task: str
    requests: Sequence[Request[Any]]
    digest: str
    concurrency: int | None = None
    errors: Literal["raise", "return"] = "raise"

    @property
    def base(self) -> str:
        return digest_base(f"$map:{self.task}-", self.digest)


class Enqueue(msgspec.Struct):
    """An independent run, enqueued exactly once."""

    request: Request[Any]
    digest: str

    @property
    def base(self) -> str:
        return digest_base(f"$enqueue:{self.request.task}-", self.digest)


class Value(msgspec.Struct):
    """A recorded value that would otherwise differ at each replay."""

    kind: Literal["now", "random", "uuid"]

    @property
    def base(self) -> str:
        return f"${self.kind}"


class ProgressReport(msgspec.Struct):
    """A progress report as JSON text. Not part of the history."""

    text: str
    base: str = "$progress"


class Write(msgspec.Struct):
    """A chunk of the run's stream, as JSON text."""

    text: str
    base: str = "$write"


class Annotate(msgspec.Struct):
    """Metadata of the run to set, as canonical JSON text of an object."""

    text: str
    base: str = "$annotate"


class Adjust(msgspec.Struct):
    """The actual cost of a start that an estimate of a limit was taken for."""

    limit: str
    used: int

    @property
    def base(self) -> str:
        return f"$adjust:{self.limit}"


class SpendAmount(msgspec.Struct):
    """An amount of a budget, in billionths."""

    budget: str
    amount: int

    @property
    def base(self) -> str:
        return f"$spend:{self.budget}"


class ReadBudget(msgspec.Struct):
    """A read of what is left of a budget."""

    budget: str

    @property
    def base(self) -> str:
        return f"$left:{self.budget}"


class SetValue(msgspec.Struct):
    """A value that the run publishes, as JSON text."""

    name: str
    text: str

    @property
    def base(self) -> str:
        return f"$set:{self.name}"


class NewAnswer(NamedTuple):
    """The answer to an ask, as JSON text."""

    ask: ReceivedAsk
    kind: Literal["reply", "rejected"]
    text: str


class ReceiveAsk(msgspec.Struct):
    """A wait for the next ask with a name, or of any name. `answer`: to the last one, durable with the wait."""

    name: str | None = None
    timeout: int | None = None
    type: Any = None
    answer: NewAnswer | None = None

    @property
    def base(self) -> str:
        return "$serve" if self.name is None else f"$ask:{self.name}"


class ReplyAsk(msgspec.Struct):
    """An answer to an ask."""

    answer: NewAnswer

    @property
    def base(self) -> str:
        return self.answer.ask.reply_base


class Restart(msgspec.Struct):
    """A restart of the run without its checkpoints. `args` is the JSON text of the new arguments."""

    args: str
    base: str = "$restart"


Operation: TypeAlias = (
    Step | Transaction | Undo | Sleep | WaitFor | Receive | Emit | Publish | Next | Spawn | Submit | Join | Map
    | Enqueue | Value | ProgressReport | Write | Annotate | Adjust | SpendAmount | ReadBudget | SetValue | ReceiveAsk
    | ReplyAsk | Restart
)  # fmt: skip


class AttemptInfo(Protocol):
    """The current attempt, as a context shows it."""

    @property
    def run_id(self) -> UUID: ...
    @property
    def attempt(self) -> int: ...
    @property
    def scheduled_for(self) -> datetime | None: ...
    @property
    def task(self) -> Task[..., Any]: ...

    def check(self) -> None:
        """Raise if the run was cancelled or its lease was lost."""


class AsyncExecutorProtocol(AttemptInfo, Protocol):
    """Carries out the operations of a `Context`.

    `perform` is called in the order of the code; the caller awaits its coroutine later or makes it an asyncio task.
    """

    def perform(self, operation: Operation, /) -> Coroutine[Any, Any, Any]: ...


class SyncExecutorProtocol(AttemptInfo, Protocol):
    """Carries out the operations of a `SyncContext`."""

    def perform(self, operation: Operation, /) -> Any: ...
