"""What a durable function can ask for, as plain data: a context makes these, the engine carries them out.

Each has a `base`: its identity without the number of its occurrence, which the engine adds (`base#1`, `base#2`, …).
Steps and transactions are known by name and arguments; everything else by its kind, after a `$`, and a name.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, Protocol, TypeAlias
from uuid import UUID

import msgspec

from holdfast.model.retry import Retry
from holdfast.task.functions import FunctionInfo
from holdfast.task.graph_compiler import CompiledGraph
from holdfast.task.task import Request, Task


class Call(msgspec.Struct):
    """An author's function with the arguments of one call."""

    name: str
    base: str
    fn: Callable[..., Any]
    function_info: FunctionInfo
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = {}


class Step(Call):
    """Part of the function, kept. `timeout` is microseconds."""

    retry: Retry | None = None
    timeout: int | None = None
    undo: Callable[[Any], Any] | None = None
    raises: tuple[type[Exception], ...] = ()


class Transaction(Call):
    """A function that writes to the user's tables; its writes and its checkpoint are one transaction."""


class Undo(Call):
    """A compensation, registered before an effect that may or may not happen."""


class Sleep(msgspec.Struct):
    """A time to wait until: `delay` microseconds from now, or the moment `until`."""

    name: str | None = None
    delay: int | None = None
    until: int | None = None

    @property
    def base(self) -> str:
        return "$sleep" if self.name is None else f"$sleep:{self.name}"


class WaitFor(msgspec.Struct):
    """An event to wait for. `timeout` is microseconds, `type` what its payload is read as."""

    event: str
    timeout: int | None = None
    type: Any = None

    @property
    def base(self) -> str:
        return f"$event:{self.event}"


class Receive(msgspec.Struct):
    """The next message of a topic."""

    topic: str
    timeout: int | None = None
    type: Any = None

    @property
    def base(self) -> str:
        return f"$message:{self.topic}"


class Emit(msgspec.Struct):
    """An event of the run's own tenant. `payload` is JSON text."""

    event: str
    payload: str

    @property
    def base(self) -> str:
        return f"$emit:{self.event}"


class Spawn(msgspec.Struct):
    """A child. `digest` names its arguments."""

    request: Request[Any]
    digest: str

    @property
    def base(self) -> str:
        return f"$spawn:{self.request.task}-{self.digest}"


class Submit(msgspec.Struct):
    """A graph as a child. `result` is the node whose output is its result; `digest` names all that it asks for."""

    plan: CompiledGraph
    result: str | None
    digest: str

    @property
    def base(self) -> str:
        return f"$submit:{self.plan.graph.name}-{self.digest}"

    def result_task(self) -> str | None:
        """The task whose result is the graph's; None where it is plain JSON."""
        request = None if self.result is None else self.plan.graph.added[self.result].request
        return None if request is None else request.task


class Join(msgspec.Struct):
    """A child's result."""

    run: UUID
    task: str
    base: str = "$join"


class Map(msgspec.Struct):
    """Many children of one task, and their results."""

    task: str
    requests: Sequence[Request[Any]]
    digest: str
    concurrency: int | None = None
    errors: Literal["raise", "return"] = "raise"

    @property
    def base(self) -> str:
        return f"$map:{self.task}-{self.digest}"


class Enqueue(msgspec.Struct):
    """An independent run, made once."""

    request: Request[Any]
    digest: str

    @property
    def base(self) -> str:
        return f"$enqueue:{self.request.task}-{self.digest}"


class Value(msgspec.Struct):
    """A value that would differ at each replay, recorded."""

    kind: Literal["now", "random", "uuid"]

    @property
    def base(self) -> str:
        return f"${self.kind}"


class Progress(msgspec.Struct):
    """How far the run has come, as JSON text. Not recorded: a replay has nothing new to say."""

    text: str
    base: str = "$progress"


class Write(msgspec.Struct):
    """A piece of what the run writes for its followers, as JSON text."""

    text: str
    base: str = "$write"


class Restart(msgspec.Struct):
    """The same run as a fresh call. `args` is the JSON text of its arguments."""

    args: str
    base: str = "$restart"


Operation: TypeAlias = (
    Step | Transaction | Undo | Sleep | WaitFor | Receive | Emit | Spawn | Submit | Join | Map | Enqueue | Value
    | Progress | Write | Restart
)  # fmt: skip


class AttemptInfo(Protocol):
    """What is known about the attempt under way."""

    @property
    def run_id(self) -> UUID: ...
    @property
    def attempt(self) -> int: ...
    @property
    def scheduled_for(self) -> datetime | None: ...
    @property
    def task(self) -> Task[..., Any]: ...

    def check(self) -> None:
        """Raise when the run was cancelled or the lease is lost."""


class AsyncExecutorProtocol(AttemptInfo, Protocol):
    """For `Context`. `perform` is called when the author calls, in the order of the code; its coroutine is awaited, or
    made a task of, when the author does that."""

    def perform(self, operation: Operation, /) -> Coroutine[Any, Any, Any]: ...


class SyncExecutorProtocol(AttemptInfo, Protocol):
    """For `SyncContext`."""

    def perform(self, operation: Operation, /) -> Any: ...
