"""`Context`: the first parameter of a durable function written as an `async def`.

Each method creates an operation (`operation_factory.py`) and hands it to the executor at the call, in the order of the
code, not when the coroutine is first awaited. That is why the methods are plain functions that return coroutines.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeAlias, TypeVar, TypeVarTuple, overload
from uuid import UUID

from holdfast.model.clock import Duration
from holdfast.model.retry import Retry
from holdfast.task import operation_factory
from holdfast.task.conditions import Node
from holdfast.task.graph import Graph
from holdfast.task.operation_factory import StepSettings
from holdfast.task.operations import AsyncExecutorProtocol, Spawn
from holdfast.task.task import Takes1, Task

if TYPE_CHECKING:
    from typing_extensions import TypeForm

    from holdfast.client.handle import Run
    from holdfast.errors import RunFailed

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")

Coro: TypeAlias = Coroutine[Any, Any, R]


class _StepOptions:
    """`ctx.options(…)`: steps with these settings. All arguments of `step` go to the function."""

    __slots__ = ("_executor", "_settings")

    def __init__(self, executor: AsyncExecutorProtocol, settings: StepSettings) -> None:
        self._executor = executor
        self._settings = settings

    @overload
    def step(self, fn: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs) -> Coro[R]: ...
    @overload
    def step(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Coro[R]: ...
    def step(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Run part of this function once, and keep what it returned."""
        return self._executor.perform(operation_factory.step_with(self._settings, fn, args, kwargs, blocking=False))


class Context:
    """The door of a durable function to what is kept. What its methods give is awaited."""

    __slots__ = ("_executor",)

    def __init__(self, executor: AsyncExecutorProtocol) -> None:
        self._executor = executor

    @property
    def run_id(self) -> UUID:
        """The id of the run."""
        return self._executor.run_id

    @property
    def attempt(self) -> int:
        """The number of the attempt under way, from 1."""
        return self._executor.attempt

    @property
    def scheduled_for(self) -> datetime | None:
        """The moment that a schedule made this run for; None for other runs."""
        return self._executor.scheduled_for

    # Parts of the function

    @overload
    def step(
        self,
        fn: Callable[[*Ts], Coroutine[Any, Any, R]],
        /,
        *args: *Ts,
        name: str | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        undo: Callable[[R], object] | None = None,
    ) -> Coro[R]: ...
    @overload
    def step(
        self,
        fn: Callable[[*Ts], R],
        /,
        *args: *Ts,
        name: str | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        undo: Callable[[R], object] | None = None,
    ) -> Coro[R]: ...
    @overload
    def step(self, fn: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs) -> Coro[R]: ...
    @overload
    def step(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Coro[R]: ...
    def step(self, fn: Any, /, *args: Any, **given: Any) -> Any:  # type: ignore[misc]  # *Ts isn't seen to fit
        """Run part of this function once, and keep what it returned: a replay gets that. It is known by its name and
        arguments. `retry=None` is one try; `undo` is called with the result when the run fails or is cancelled later.
        """
        return self._executor.perform(operation_factory.step(fn, args, given, blocking=False))

    def options(
        self,
        *,
        name: str | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        undo: Callable[[Any], object] | None = None,
        raises: type[Exception] | tuple[type[Exception], ...] = (),
    ) -> _StepOptions:
        """Settings for a step whose function takes keyword arguments. Exceptions of the classes in `raises` come out
        of a step that failed for good as themselves, not as StepFailed."""
        settings = operation_factory.step_settings(name=name, retry=retry, timeout=timeout, undo=undo, raises=raises)
        return _StepOptions(self._executor, settings)

    def undo(self, fn: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> Coro[None]:
        """Register a compensation before an effect that may or may not happen."""
        return self._executor.perform(operation_factory.undo(fn, args, kwargs, blocking=False))

    def transaction(self, fn: Callable[Concatenate[Any, P], R], /, *args: P.args, **kwargs: P.kwargs) -> Coro[R]:
        """Call `fn(connection, …)` and commit what it wrote together with the checkpoint, exactly once."""
        return self._executor.perform(operation_factory.transaction(fn, args, kwargs))

    # Waiting

    def sleep(self, duration: Duration, name: str | None = None) -> Coro[None]:
        """Wait, without holding a worker's slot."""
        return self._executor.perform(operation_factory.sleep(duration, name))

    def sleep_until(self, time: datetime, name: str | None = None) -> Coro[None]:
        """Wait for a moment, without holding a worker's slot."""
        return self._executor.perform(operation_factory.sleep_until(time, name))

    @overload
    def wait_for(self, event: str, timeout: Duration | None = None, *, type: TypeForm[T]) -> Coro[T]: ...
    @overload
    def wait_for(self, event: str, timeout: Duration | None = None, *, type: None = None) -> Coro[Any]: ...
    def wait_for(self, event: str, timeout: Duration | None = None, *, type: Any = None) -> Any:
        """Wait for an event: its payload, as `type`. Raises WaitTimeout, and replays the same way."""
        return self._executor.perform(operation_factory.wait_for(event, timeout, type))

    @overload
    def receive(self, topic: str, timeout: Duration | None = None, *, type: TypeForm[T]) -> Coro[T]: ...
    @overload
    def receive(self, topic: str, timeout: Duration | None = None, *, type: None = None) -> Coro[Any]: ...
    def receive(self, topic: str, timeout: Duration | None = None, *, type: Any = None) -> Any:
        """Wait for the next message sent to this run under a topic: its payload, as `type`."""
        return self._executor.perform(operation_factory.receive(topic, timeout, type))

    def emit(self, event: str, payload: Any = None) -> Coro[bool]:
        """Emit an event of the run's own tenant; True when it was the first of that name."""
        return self._executor.perform(operation_factory.emit(event, payload))

    # Other runs

    def spawn(self, task: Task[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Coro[Run[R]]:
        """Make a child, once, and go on without waiting for it."""
        return self._executor.perform(operation_factory.spawn("spawn", task, args, kwargs))

    def join(self, run: Run[R]) -> Coro[R]:
        """Wait for a child: its result, or RunFailed, or RunCancelled."""
        return self._executor.perform(operation_factory.join(run))

    @overload
    def submit(self, graph: Graph, *, result: Node[R]) -> Coro[Run[R]]: ...
    @overload
    def submit(self, graph: Graph, *, result: None = None) -> Coro[Run[dict[str, Any]]]: ...
    def submit(self, graph: Graph, *, result: Node[Any] | None = None) -> Any:
        """Make a graph a child; `join` waits for its result."""
        return self._executor.perform(operation_factory.submit(graph, result))

    def call(self, task: Task[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Coro[R]:
        """Make a child and wait for its result."""
        return self._call(operation_factory.spawn("call", task, args, kwargs))

    async def _call(self, spawn: Spawn) -> Any:
        return await self.join(await self._executor.perform(spawn))

    def enqueue(self, task: Task[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Coro[Run[R]]:
        """Make an independent run, once: it isn't cancelled with this one."""
        return self._executor.perform(operation_factory.enqueue(task, args, kwargs))

    @overload
    def map(
        self,
        task: Takes1[T, R],
        items: Iterable[T],
        *,
        concurrency: int | None = None,
        errors: Literal["raise"] = "raise",
    ) -> Coro[list[R]]: ...
    @overload
    def map(
        self, task: Takes1[T, R], items: Iterable[T], *, concurrency: int | None = None, errors: Literal["return"]
    ) -> Coro[list[R | RunFailed]]: ...
    def map(self, task: Any, items: Iterable[Any], *, concurrency: int | None = None, errors: str = "raise") -> Any:
        """A child per item, at most `concurrency` at a time, and their results in the order of the items. With
        `errors="return"` those that failed have a RunFailed in their place."""
        return self._executor.perform(operation_factory.fan_out(task, items, concurrency, errors))

    # Recorded values

    def now(self) -> Coro[datetime]:
        """The time, the same at each replay."""
        return self._executor.perform(operation_factory.NOW)

    def random(self) -> Coro[float]:
        """A number from 0 up to 1, the same at each replay."""
        return self._executor.perform(operation_factory.RANDOM)

    def uuid(self) -> Coro[UUID]:
        """A new UUID, the same at each replay."""
        return self._executor.perform(operation_factory.NEW_UUID)

    # The run itself

    def progress(self, done: float, total: float | None = None, note: str | None = None) -> Coro[None]:
        """Say how far the run has come."""
        return self._executor.perform(operation_factory.progress(done, total, note))

    def write(self, chunk: Any) -> Coro[None]:
        """Write a piece for those who follow the run with `run.stream()`."""
        return self._executor.perform(operation_factory.write(chunk))

    def check(self) -> None:
        """For long loops in threads: raises when the run was cancelled or this worker lost it."""
        self._executor.check()

    def restart(self, *args: Any) -> Coro[Any]:
        """Go on as a fresh call with these arguments, in the same run, with nothing kept of this one. Never returns."""
        return self._executor.perform(operation_factory.restart(self._executor.task, args))

    def __repr__(self) -> str:
        return f"<Context of run {self.run_id}>"
