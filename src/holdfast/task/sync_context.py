"""`SyncContext`: the first parameter of a durable function written as a plain `def`."""

# Executors return Any; the annotations of the methods state the actual types.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar, TypeVarTuple, overload
from uuid import UUID

from holdfast.errors import TaskError
from holdfast.model.budget import BudgetStatus
from holdfast.model.clock import Duration
from holdfast.model.retry import Retry
from holdfast.model.topics import FieldValue, Published
from holdfast.task import operation_factory
from holdfast.task.conditions import Node
from holdfast.task.graph import Graph
from holdfast.task.operation_factory import StepSettings
from holdfast.task.operations import SyncExecutorProtocol
from holdfast.task.task import Takes1, Task

if TYPE_CHECKING:
    from typing_extensions import TypeForm
    from typing_extensions import TypeVar as TypeVarWithDefault

    from holdfast.client.handle import Run
    from holdfast.errors import RunFailed
    from holdfast.task.interaction import Server, SyncAsk

    Served = TypeVarWithDefault("Served", default=Any)  # the caller's expectation, because handlers decide

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class _SyncStepOptions:
    """The result of `ctx.options(…)`: runs steps with these options."""

    __slots__ = ("_executor", "_settings")

    def __init__(self, executor: SyncExecutorProtocol, settings: StepSettings) -> None:
        self._executor = executor
        self._settings = settings

    def step(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a function as a checkpointed step. Every argument is passed to the function."""
        return self._executor.perform(operation_factory.step_with(self._settings, fn, args, kwargs, blocking=True))


class SyncContext:
    """The first parameter of a durable function written as a plain `def`.

    It has the methods of [`Context`][holdfast.Context], with the same arguments. They block instead of being awaited.
    The function runs in a thread, and its step functions must be plain functions.

    Example:
        ```python
        @app.task
        def checkout(ctx: SyncContext, order: Order) -> str:
            payment = ctx.step(charge, order)
            ctx.sleep(timedelta(days=1))
            return ctx.call(ship, order, payment)
        ```
    """

    __slots__ = ("_executor", "_server")

    def __init__(self, executor: SyncExecutorProtocol) -> None:
        self._executor = executor
        self._server: Server | None = None

    @property
    def run_id(self) -> UUID:
        """The id of this run."""
        return self._executor.run_id

    @property
    def attempt(self) -> int:
        """The number of the current attempt, starting at 1."""
        return self._executor.attempt

    @property
    def scheduled_for(self) -> datetime | None:
        """The schedule slot that created this run, or None if no schedule did."""
        return self._executor.scheduled_for

    # Steps

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
    ) -> R: ...
    @overload
    def step(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    def step(self, fn: Any, /, *args: Any, **given: Any) -> Any:  # type: ignore[misc]  # *Ts isn't seen to fit
        """Run a function once and record its result."""
        return self._executor.perform(operation_factory.step(fn, args, given, blocking=True))

    def options(
        self,
        *,
        name: str | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        undo: Callable[[Any], object] | None = None,
        raises: type[Exception] | tuple[type[Exception], ...] = (),
        limits: Sequence[str] | None = None,
        cost: str | float | Callable[..., float] | None = None,
        run_in: str | None = None,
    ) -> _SyncStepOptions:
        """Return an object whose `step` passes every argument, keyword arguments included, to the function."""
        settings = operation_factory.step_settings(
            name=name, retry=retry, timeout=timeout, undo=undo, raises=raises, limits=limits, cost=cost, run_in=run_in
        )
        return _SyncStepOptions(self._executor, settings)

    def undo(self, fn: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Register a compensation, to be called if the run later fails or is cancelled."""
        self._executor.perform(operation_factory.undo(fn, args, kwargs, blocking=True))

    @overload
    def transaction(self, fn: Callable[[Any, *Ts], R], /, *args: *Ts, name: str | None = None) -> R: ...
    @overload
    def transaction(self, fn: Callable[Concatenate[Any, P], R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    def transaction(self, fn: Any, /, *args: Any, name: str | None = None, **kwargs: Any) -> Any:  # type: ignore[misc]
        """Call `fn(connection, …)` and commit its writes together with the checkpoint, exactly once."""
        return self._executor.perform(operation_factory.transaction(fn, args, kwargs, name))

    # Waiting

    def sleep(self, duration: Duration, name: str | None = None) -> None:
        """Sleep durably, without occupying a worker slot."""
        self._executor.perform(operation_factory.sleep(duration, name))

    def sleep_until(self, time: datetime, name: str | None = None) -> None:
        """Sleep durably until a point in time, without occupying a worker slot."""
        self._executor.perform(operation_factory.sleep_until(time, name))

    @overload
    def wait_for(self, event: str, timeout: Duration | None = None, *, type: TypeForm[T]) -> T: ...
    @overload
    def wait_for(self, event: str, timeout: Duration | None = None, *, type: None = None) -> Any: ...
    def wait_for(self, event: str, timeout: Duration | None = None, *, type: Any = None) -> Any:
        """Wait for an event and return its payload."""
        return self._executor.perform(operation_factory.wait_for(event, timeout, type))

    @overload
    def receive(self, topic: str, timeout: Duration | None = None, *, type: TypeForm[T]) -> T: ...
    @overload
    def receive(self, topic: str, timeout: Duration | None = None, *, type: None = None) -> Any: ...
    def receive(self, topic: str, timeout: Duration | None = None, *, type: Any = None) -> Any:
        """Wait for the next message that `run.send(topic)` sends to this run, and return its payload."""
        return self._executor.perform(operation_factory.receive(self._executor.task, topic, timeout, type))

    @overload
    def gate(self, name: str, *, payload: Any = None, timeout: Duration | None = None, type: TypeForm[T]) -> T: ...
    @overload
    def gate(self, name: str, *, payload: Any = None, timeout: Duration | None = None, type: None = None) -> Any: ...
    def gate(self, name: str, *, payload: Any = None, timeout: Duration | None = None, type: Any = None) -> Any:
        """Wait until a person or another system decides, and return the output of the decision."""
        return self._executor.perform(operation_factory.gate(name, payload, timeout, type))

    # Asks

    @overload
    def receive_ask(self, name: str, timeout: Duration | None = None, *, type: TypeForm[T]) -> SyncAsk[T]: ...
    @overload
    def receive_ask(self, name: str, timeout: Duration | None = None, *, type: None = None) -> SyncAsk[Any]: ...
    def receive_ask(self, name: str, timeout: Duration | None = None, *, type: Any = None) -> Any:
        """Wait for the next ask of a name, as in `Context.receive_ask`, and return it. Answer it with `reply`."""
        from holdfast.task.interaction import SyncAsk  # imported here because few functions need it

        operation = operation_factory.receive_ask(self._executor.task, name, timeout, type)
        received, payload = self._executor.perform(operation)
        return SyncAsk(self._executor, received, payload)

    def serve(self, /, *, timeout: Duration | None = None, **handlers: Callable[..., Any]) -> Served:  # type: ignore[type-var]
        """Answer asks until a handler calls `ctx.stop`, as in `Context.serve`, and return the value that it passes."""
        from holdfast.task.interaction import new_server, serve_blocking

        self._server = server = new_server(self._server, self._executor.task, handlers, blocking=True)
        try:
            return serve_blocking(self._executor, server, timeout)
        finally:
            self._server = None

    def stop(self, value: T) -> T:
        """End `ctx.serve` with this value when the handler that calls it has returned. Returns the value."""
        if self._server is None:
            raise TaskError("ctx.stop is for handlers of ctx.serve; return the value instead")
        self._server.stop(value)
        return value

    def emit(self, event: str, payload: Any = None) -> bool:
        """Emit an event in this run's tenant. Returns True if it is the first of that name."""
        return self._executor.perform(operation_factory.emit(event, payload))

    def publish(self, topic: str, payload: Any = None) -> Published:
        """Publish a message to a topic in this run's tenant, exactly once."""
        return self._executor.perform(operation_factory.publish(topic, payload))

    @overload
    def next(
        self,
        topic: str,
        where: Mapping[str, FieldValue] | None = None,
        timeout: Duration | None = None,
        *,
        type: TypeForm[T],
    ) -> T: ...
    @overload
    def next(
        self,
        topic: str,
        where: Mapping[str, FieldValue] | None = None,
        timeout: Duration | None = None,
        *,
        type: None = None,
    ) -> Any: ...
    def next(
        self,
        topic: str,
        where: Mapping[str, FieldValue] | None = None,
        timeout: Duration | None = None,
        *,
        type: Any = None,
    ) -> Any:
        """Wait for the next message of a topic and return its payload, as in `Context.next`."""
        return self._executor.perform(operation_factory.next_message(topic, where, timeout, type))

    # Child runs

    def spawn(self, task: Task[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Run[R]:
        """Start a child run and return its handle without waiting for it."""
        return self._executor.perform(operation_factory.spawn("spawn", task, args, kwargs))

    def join(self, run: Run[R]) -> R:
        """Wait for a child run and return its result."""
        return self._executor.perform(operation_factory.join(run))

    @overload
    def submit(self, graph: Graph, *, result: Node[R]) -> Run[R]: ...
    @overload
    def submit(self, graph: Graph, *, result: None = None) -> Run[dict[str, Any]]: ...
    def submit(self, graph: Graph, *, result: Node[Any] | None = None) -> Any:
        """Submit a graph as a child. `join` waits for its result."""
        return self._executor.perform(operation_factory.submit(graph, result))

    def call(self, task: Task[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Start a child run and wait for its result: `spawn` and `join`."""
        return self.join(self._executor.perform(operation_factory.spawn("call", task, args, kwargs)))

    def enqueue(self, task: Task[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Run[R]:
        """Enqueue an independent run, exactly once. Unlike a child, it isn't cancelled with this run."""
        return self._executor.perform(operation_factory.enqueue(task, args, kwargs))

    @overload
    def map(
        self,
        task: Takes1[T, R],
        items: Iterable[T],
        *,
        concurrency: int | None = None,
        errors: Literal["raise"] = "raise",
    ) -> list[R]: ...
    @overload
    def map(
        self, task: Takes1[T, R], items: Iterable[T], *, concurrency: int | None = None, errors: Literal["return"]
    ) -> list[R | RunFailed]: ...
    def map(self, task: Any, items: Iterable[Any], *, concurrency: int | None = None, errors: str = "raise") -> Any:
        """Run a child for each item and return their results in the order of the items."""
        return self._executor.perform(operation_factory.fan_out(task, items, concurrency, errors))

    # Recorded values

    def now(self) -> datetime:
        """Return the current time, recorded so that a replay sees the same."""
        return self._executor.perform(operation_factory.NOW)

    def random(self) -> float:
        """Return a random number in [0, 1), recorded so that a replay sees the same."""
        return self._executor.perform(operation_factory.RANDOM)

    def uuid(self) -> UUID:
        """Return a new UUID, recorded so that a replay sees the same."""
        return self._executor.perform(operation_factory.NEW_UUID)

    # This run

    def progress(self, done: float, total: float | None = None, note: str | None = None) -> None:
        """Report progress. `run.info().progress` and the dashboard show the latest report."""
        self._executor.perform(operation_factory.progress(done, total, note))

    def annotate(self, /, **values: Any) -> None:
        """Set metadata of this run, to find it by, as in `Context.annotate`. Other names keep their values."""
        self._executor.perform(operation_factory.annotate(values))

    def adjust(self, limit: str, used: float) -> None:
        """Correct the cost of the last step, or else of the run, that has started with this limit."""
        self._executor.perform(operation_factory.adjust(limit, used))

    def spend(self, budget: str, amount: Decimal | float) -> None:
        """Add what the run has spent to a budget, as in `Context.spend`; wait or fail if that exceeds it."""
        self._executor.perform(operation_factory.spend(budget, amount))

    def budget(self, name: str) -> BudgetStatus:
        """Return what a budget allows, what was spent of it and what is left, as in `Context.budget`."""
        status: BudgetStatus = self._executor.perform(operation_factory.read_budget(name))
        return status

    def set(self, name: str, value: Any) -> None:
        """Set a value that the run publishes, as in `Context.set`. `run.get(name)` reads it."""
        self._executor.perform(operation_factory.set_value(name, value))

    def write(self, chunk: Any) -> None:
        """Write a chunk to the run's stream, which `run.stream()` reads."""
        self._executor.perform(operation_factory.write(chunk))

    def check(self) -> None:
        """Raise if the run was cancelled or its lease was lost. Call it in long loops that nothing else interrupts."""
        self._executor.check()

    def restart(self, *args: Any) -> Any:
        """Start this run over with these arguments and without its checkpoints. Never returns."""
        return self._executor.perform(operation_factory.restart(self._executor.task, args))

    def __repr__(self) -> str:
        return f"<SyncContext of run {self.run_id}>"
