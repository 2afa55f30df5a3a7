"""`Context`: the first parameter of a durable function written as an `async def`.

Each method creates an operation (`operation_factory.py`) and hands it to the executor at the call, in the order of the
code, not when the coroutine is first awaited. That is why the methods are plain functions that return coroutines.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeAlias, TypeVar, TypeVarTuple, overload
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
from holdfast.task.operations import AsyncExecutorProtocol, ReceiveAsk, Spawn
from holdfast.task.scope import current_scope
from holdfast.task.task import Takes1, Task

if TYPE_CHECKING:
    from typing_extensions import TypeForm
    from typing_extensions import TypeVar as TypeVarWithDefault

    from holdfast.client.handle import Run
    from holdfast.errors import RunFailed
    from holdfast.task.interaction import Ask, Server

    Served = TypeVarWithDefault("Served", default=Any)  # the caller's expectation, because handlers decide

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")

Coro: TypeAlias = Coroutine[Any, Any, R]


class _StepOptions:
    """The result of `ctx.options(…)`: runs steps with these options."""

    __slots__ = ("_executor", "_settings")

    def __init__(self, executor: AsyncExecutorProtocol, settings: StepSettings) -> None:
        self._executor = executor
        self._settings = settings

    @overload
    def step(self, fn: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs) -> Coro[R]: ...
    @overload
    def step(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Coro[R]: ...
    def step(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Run a function as a checkpointed step. Every argument is passed to the function."""
        return self._executor.perform(operation_factory.step_with(self._settings, fn, args, kwargs, blocking=False))


class Context:
    """The first parameter of a durable function written as an `async def`. Every method is awaited.

    What the methods return is recorded. When the function resumes after a crash or a long wait, Holdfast runs it again
    from the top, and each method returns its recorded value instead of repeating the work. Code outside these methods
    runs again at every replay, so keep it free of side effects.

    Example:
        ```python
        @app.task
        async def checkout(ctx: Context, order: Order) -> str:
            payment = await ctx.step(charge, order, retry=Retry(max_attempts=5), undo=refund)
            await ctx.sleep(timedelta(days=1))
            return await ctx.call(ship, order, payment)
        ```
    """

    __slots__ = ("__weakref__", "_executor", "_server")

    def __init__(self, executor: AsyncExecutorProtocol) -> None:
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
        """Run a function once and record its result.

        A step is identified by its name and arguments; a replay returns the recorded result. If the worker dies after
        the function has run and before the result is recorded, the function runs again: pass
        `holdfast.idempotency_key()` to external systems.

        Args:
            fn: A plain or async function. Plain functions run in a thread.
            *args: The function's arguments. Must be JSON-serializable.
            name: The step's name. Defaults to the function's; required for lambdas, closures and bound methods.
            retry: When to retry the function. None means a single attempt.
            timeout: The limit for one attempt of the function.
            undo: A compensation. Called with the result if the run later fails or is cancelled.

        Raises:
            StepFailed: The function failed and its retries are exhausted.
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
        limits: Sequence[str] | None = None,
        cost: str | float | Callable[..., float] | None = None,
        run_in: str | None = None,
    ) -> _StepOptions:
        """Return an object whose `step` passes every argument, keyword arguments included, to the function.

        Args:
            name: The step's name.
            retry: When to retry the function.
            timeout: The limit for one attempt of the function.
            undo: A compensation. Called with the result if the run later fails or is cancelled.
            raises: Exception classes that a failed step raises as themselves instead of `StepFailed`.
            limits: Limits of which the step takes a permit before it runs. While it can't, the run is suspended.
            cost: What the step counts against limits with a cost, instead of what they declare: a number, the name of
                an argument of the step, or a function of its arguments.
            run_in: The executor declared with `app.executor` that runs the function, which must be a `def`.

        Example:
            ```python
            await ctx.options(retry=Retry(max_attempts=3)).step(charge, order.id, card=order.card)
            ```
        """
        settings = operation_factory.step_settings(
            name=name, retry=retry, timeout=timeout, undo=undo, raises=raises, limits=limits, cost=cost, run_in=run_in
        )
        return _StepOptions(self._executor, settings)

    def undo(self, fn: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> Coro[None]:
        """Register a compensation, to be called if the run later fails or is cancelled.

        Register it before an effect that may or may not happen, and write `fn` so that undoing nothing is harmless.
        Compensations run in reverse order.
        """
        return self._executor.perform(operation_factory.undo(fn, args, kwargs, blocking=False))

    @overload
    def transaction(self, fn: Callable[[Any, *Ts], R], /, *args: *Ts, name: str | None = None) -> Coro[R]: ...
    @overload
    def transaction(self, fn: Callable[Concatenate[Any, P], R], /, *args: P.args, **kwargs: P.kwargs) -> Coro[R]: ...
    def transaction(self, fn: Any, /, *args: Any, name: str | None = None, **kwargs: Any) -> Any:  # type: ignore[misc]
        """Call `fn(connection, …)` and commit its writes together with the checkpoint, exactly once.

        Args:
            fn: A plain function. Its first argument is a connection to Holdfast's database.
            *args: The function's other arguments. Must be JSON-serializable.
            name: The name that identifies the transaction, together with the arguments. Defaults to the function's;
                required for lambdas, closures and bound methods.
        """
        return self._executor.perform(operation_factory.transaction(fn, args, kwargs, name))

    # Waiting

    def sleep(self, duration: Duration, name: str | None = None) -> Coro[None]:
        """Sleep durably, without occupying a worker slot.

        Args:
            duration: Seconds or a `timedelta`.
            name: Identifies this sleep if the code around it changes between replays.
        """
        return self._executor.perform(operation_factory.sleep(duration, name))

    def sleep_until(self, time: datetime, name: str | None = None) -> Coro[None]:
        """Sleep durably until a point in time, without occupying a worker slot."""
        return self._executor.perform(operation_factory.sleep_until(time, name))

    @overload
    def wait_for(self, event: str, timeout: Duration | None = None, *, type: TypeForm[T]) -> Coro[T]: ...
    @overload
    def wait_for(self, event: str, timeout: Duration | None = None, *, type: None = None) -> Coro[Any]: ...
    def wait_for(self, event: str, timeout: Duration | None = None, *, type: Any = None) -> Any:
        """Wait for an event and return its payload.

        Args:
            event: The event's name, as in `app.emit(event)`.
            timeout: How long to wait. None waits forever.
            type: The type to decode the payload as. None returns plain JSON. An event of another type is set aside: the
                function waits until it is cleared and emitted again.

        Raises:
            WaitTimeout: The event did not occur in time. The timeout is recorded, so a replay raises it too.
        """
        return self._executor.perform(operation_factory.wait_for(event, timeout, type))

    @overload
    def receive(self, topic: str, timeout: Duration | None = None, *, type: TypeForm[T]) -> Coro[T]: ...
    @overload
    def receive(self, topic: str, timeout: Duration | None = None, *, type: None = None) -> Coro[Any]: ...
    def receive(self, topic: str, timeout: Duration | None = None, *, type: Any = None) -> Any:
        """Wait for the next message that `run.send(topic)` sends to this run, and return its payload.

        Args:
            topic: The topic to receive from. Messages of one topic arrive once and in order.
            timeout: How long to wait. None waits forever.
            type: The type to decode the payload as. None returns plain JSON.

        Raises:
            WaitTimeout: No message arrived in time.
        """
        return self._executor.perform(operation_factory.receive(self._executor.task, topic, timeout, type))

    @overload
    def gate(
        self, name: str, *, payload: Any = None, timeout: Duration | None = None, type: TypeForm[T]
    ) -> Coro[T]: ...
    @overload
    def gate(
        self, name: str, *, payload: Any = None, timeout: Duration | None = None, type: None = None
    ) -> Coro[Any]: ...
    def gate(self, name: str, *, payload: Any = None, timeout: Duration | None = None, type: Any = None) -> Any:
        """Wait until a person or another system decides, with `run.gate(name).complete(output)`, and return the output.

        The gate is a child run: the dashboard and `holdfast gate RUN` list it while it is open.

        Args:
            name: The gate's name.
            payload: What the decision is about, shown to the person who decides.
            timeout: How long to wait. None waits forever.
            type: The type of the output. An output of another type is refused, and the dashboard shows a form for it.

        Raises:
            GateRejected: `run.gate(name).fail(reason)` was called.
            WaitTimeout: Nobody decided in time.
        """
        return self._executor.perform(operation_factory.gate(name, payload, timeout, type))

    # Asks

    @overload
    def receive_ask(self, name: str, timeout: Duration | None = None, *, type: TypeForm[T]) -> Coro[Ask[T]]: ...
    @overload
    def receive_ask(self, name: str, timeout: Duration | None = None, *, type: None = None) -> Coro[Ask[Any]]: ...
    def receive_ask(self, name: str, timeout: Duration | None = None, *, type: Any = None) -> Any:
        """Wait for the next ask of a name, which `run.ask(name, payload)` sends, and return it. Answer it with `reply`.

        Asks of one name arrive once and in order. An ask whose payload doesn't have the expected type is rejected, and
        the function keeps waiting.

        Args:
            name: The name of the ask.
            timeout: How long to wait. None waits forever.
            type: The type to decode the payload as. None uses what `@app.task(asks=…)` declares, or else plain JSON.

        Raises:
            WaitTimeout: No ask arrived in time.

        Example:
            ```python
            ask = await ctx.receive_ask("approve", type=Decision)
            await ask.reply("thanks")
            ```
        """
        return self._receive_ask(operation_factory.receive_ask(self._executor.task, name, timeout, type))

    async def _receive_ask(self, operation: ReceiveAsk) -> Any:
        from holdfast.task.interaction import Ask  # imported here because few functions need it

        received, payload = await self._executor.perform(operation)
        return Ask(self._executor, received, payload)

    async def serve(self, /, *, timeout: Duration | None = None, **handlers: Callable[..., Any]) -> Served:
        """Answer asks until a handler calls `ctx.stop`, and return the value that it passes.

        Handlers are called one at a time, in order of arrival across all names. A handler takes the payload, decoded as
        its parameter's type, and returns the reply. It may be a plain or async function and use the context. Its local
        state is rebuilt by a replay, so keep side effects in steps.

        An exception in a handler rejects the ask with the exception's type and message, and the function continues to
        serve. `Fatal` also ends the run. `AskRejected(reason, data=…)` rejects the ask with your own reason.

        Args:
            timeout: How long to wait for the next ask. None waits forever.
            **handlers: The functions by the names of their asks.

        Raises:
            WaitTimeout: No ask arrived in time.

        Example:
            ```python
            items: list[str] = []

            def add(item: str) -> int:
                items.append(item)
                return len(items)

            def close() -> list[str]:
                return ctx.stop(items)

            return await ctx.serve(add=add, close=close)
            ```
        """
        from holdfast.task.interaction import new_server, serve

        self._server = server = new_server(self._server, self._executor.task, handlers, blocking=False)
        try:
            return await serve(self._executor, server, timeout)  # type: ignore[no-any-return]
        finally:
            self._server = None

    def stop(self, value: T) -> T:
        """End `ctx.serve` with this value when the handler that calls it has returned. Returns the value."""
        if self._server is None:
            raise TaskError("ctx.stop is for handlers of ctx.serve; return the value instead")
        self._server.stop(value)
        return value

    def emit(self, event: str, payload: Any = None) -> Coro[bool]:
        """Emit an event in this run's tenant. Returns True if it is the first of that name."""
        return self._executor.perform(operation_factory.emit(event, payload))

    def publish(self, topic: str, payload: Any = None) -> Coro[Published]:
        """Publish a message to a topic in this run's tenant, exactly once.

        The function's own `ctx.next` doesn't miss it if it has subscribed before.
        """
        return self._executor.perform(operation_factory.publish(topic, payload))

    @overload
    def next(
        self,
        topic: str,
        where: Mapping[str, FieldValue] | None = None,
        timeout: Duration | None = None,
        *,
        type: TypeForm[T],
    ) -> Coro[T]: ...
    @overload
    def next(
        self,
        topic: str,
        where: Mapping[str, FieldValue] | None = None,
        timeout: Duration | None = None,
        *,
        type: None = None,
    ) -> Coro[Any]: ...
    def next(
        self,
        topic: str,
        where: Mapping[str, FieldValue] | None = None,
        timeout: Duration | None = None,
        *,
        type: Any = None,
    ) -> Any:
        """Wait for the next message of a topic, which `app.publish(topic, payload)` publishes, and return its payload.

        The first call with a topic and a `where` subscribes the run: it returns the next message that is published
        from then on. Each further call returns the message after that one, also if it was published between the two
        calls, so that a loop misses none. Messages of other tenants don't count.

        Args:
            topic: The name of the topic.
            where: Only messages whose payload has these values, by the name or dotted path of a field.
            timeout: How long to wait. None waits forever.
            type: The type to decode the payload as. None returns plain JSON. A message that doesn't have this type is
                set aside, and the function keeps waiting.

        Raises:
            WaitTimeout: No message arrived in time. The timeout is recorded, so a replay raises it too.

        Example:
            ```python
            paid = await ctx.next("orders.paid", where={"order_id": 17}, type=Order)
            ```
        """
        return self._executor.perform(operation_factory.next_message(topic, where, timeout, type))

    # Child runs

    def spawn(self, task: Task[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Coro[Run[R]]:
        """Start a child run and return its handle without waiting for it."""
        return self._executor.perform(operation_factory.spawn("spawn", task, args, kwargs))

    def join(self, run: Run[R]) -> Coro[R]:
        """Wait for a child run and return its result.

        Raises:
            RunFailed: The child failed.
            RunCancelled: The child was cancelled.
        """
        return self._executor.perform(operation_factory.join(run))

    @overload
    def submit(self, graph: Graph, *, result: Node[R]) -> Coro[Run[R]]: ...
    @overload
    def submit(self, graph: Graph, *, result: None = None) -> Coro[Run[dict[str, Any]]]: ...
    def submit(self, graph: Graph, *, result: Node[Any] | None = None) -> Any:
        """Submit a graph as a child. `join` waits for its result.

        Args:
            graph: The graph to run.
            result: The node whose output is the result. Defaults to a dict of all outputs by node name.
        """
        return self._executor.perform(operation_factory.submit(graph, result))

    def call(self, task: Task[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Coro[R]:
        """Start a child run and wait for its result: `spawn` and `join`."""
        return self._call(operation_factory.spawn("call", task, args, kwargs))

    async def _call(self, spawn: Spawn) -> Any:
        return await self.join(await self._executor.perform(spawn))

    def enqueue(self, task: Task[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Coro[Run[R]]:
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
    ) -> Coro[list[R]]: ...
    @overload
    def map(
        self, task: Takes1[T, R], items: Iterable[T], *, concurrency: int | None = None, errors: Literal["return"]
    ) -> Coro[list[R | RunFailed]]: ...
    def map(self, task: Any, items: Iterable[Any], *, concurrency: int | None = None, errors: str = "raise") -> Any:
        """Run a child for each item and return their results in the order of the items.

        Args:
            task: A task that takes one argument.
            items: The arguments, up to 100,000.
            concurrency: How many children run at a time. None means no limit.
            errors: `"raise"` raises the first `RunFailed`; `"return"` puts it in the place of the failed result.
        """
        return self._executor.perform(operation_factory.fan_out(task, items, concurrency, errors))

    # Recorded values

    def now(self) -> Coro[datetime]:
        """Return the current time, recorded so that a replay sees the same."""
        return self._executor.perform(operation_factory.NOW)

    def random(self) -> Coro[float]:
        """Return a random number in [0, 1), recorded so that a replay sees the same."""
        return self._executor.perform(operation_factory.RANDOM)

    def uuid(self) -> Coro[UUID]:
        """Return a new UUID, recorded so that a replay sees the same."""
        return self._executor.perform(operation_factory.NEW_UUID)

    # This run

    def progress(self, done: float, total: float | None = None, note: str | None = None) -> Coro[None]:
        """Report progress. `run.info().progress` and the dashboard show the latest report.

        Args:
            done: How much is done, in any unit.
            total: How much there is in total, if known.
            note: A short text.
        """
        return self._executor.perform(operation_factory.progress(done, total, note))

    def annotate(self, /, **values: Any) -> Coro[None]:
        """Set metadata of this run, to find it by: `app.runs(metadata={"order": 42})`. Other names keep their values.

        Recorded: a replay doesn't set old values again.

        Raises:
            TooLarge: The run would have more than 50 names, or values of more than 8 KiB.
        """
        return self._executor.perform(operation_factory.annotate(values))

    def adjust(self, limit: str, used: float) -> Coro[None]:
        """Correct the cost of the last step, or else of the run, that has started with this limit.

        Recorded: a replay doesn't adjust again. Inside a step, it corrects the cost of that step, and takes effect with
        its checkpoint. A start that has left the period of the rate isn't corrected any more.

        Args:
            limit: A limit with `cost=`.
            used: What was actually used. Fractions are rounded up.

        Raises:
            LimitNotTaken: Neither a step nor the run has a cost of this limit that wasn't adjusted yet.
            BadArguments: `used` isn't a number from 0 to 999,999,999.
        """
        return self._executor.perform(operation_factory.adjust(limit, used))

    def spend(self, budget: str, amount: Decimal | float) -> Coro[None]:
        """Add what the run has spent to a budget.

        The amount is recorded once, whatever crashes, and counts in any case. If more is spent than the budget allows
        then, this waits until the budget is raised or its window ends, or fails, as the budget declares. So each run
        exceeds a budget by at most one call. An amount of 0 waits for room before an expensive step.

        Inside a step, the amount is recorded with the step's checkpoint, and the step waits or fails after that.

        Args:
            budget: A budget declared with `app.budget`.
            amount: From 0 to 999,999,999, with up to nine decimal places.

        Raises:
            BudgetExceeded: More is spent than the budget allows, and it has `on_exceeded="fail"`.
            ConfigError: The budget isn't declared.
            BadArguments: The amount is negative, too large or not a number.
        """
        return self._executor.perform(operation_factory.spend(budget, amount))

    def budget(self, name: str) -> Coro[BudgetStatus]:
        """Return what a budget allows, what was spent of it and what is left, recorded so that a replay sees the same.

        Example:
            ```python
            model = "large" if (await ctx.budget("usd")).left > 1 else "small"
            ```
        """
        return self._executor.perform(operation_factory.read_budget(name))

    def set(self, name: str, value: Any) -> Coro[None]:
        """Set a value that the run publishes: `run.get(name)` reads it, `run.watch(name)` follows it.

        The latest value per name is kept, also when the function restarts. Recorded: a replay doesn't set old values
        again.

        Args:
            name: The name of the value.
            value: Any JSON-serializable value.

        Raises:
            TooLarge: The run would have more than 100 names, or values of more than 256 KiB.
        """
        return self._executor.perform(operation_factory.set_value(name, value))

    def write(self, chunk: Any) -> Coro[None]:
        """Write a chunk to the run's stream, which `run.stream()` reads."""
        return self._executor.perform(operation_factory.write(chunk))

    def check(self) -> None:
        """Raise if the run was cancelled or its lease was lost. Call it in long loops that nothing else interrupts."""
        self._executor.check()

    def restart(self, *args: Any) -> Coro[Any]:
        """Start this run over with these arguments and without its checkpoints. Never returns.

        Use it to bound the history of a function that runs forever.
        """
        return self._executor.perform(operation_factory.restart(self._executor.task, args))

    def __repr__(self) -> str:
        return f"<Context of run {self.run_id}>"


active_context: ContextVar[Context | None] = ContextVar("holdfast_context", default=None)
"""The context of the async durable function that the code belongs to. Follows it like `current_scope`."""


def current_context() -> Context:
    """Return the context of the durable function that the calling code belongs to.

    For code that isn't passed `ctx`, such as callbacks of a library. It is the same object that the function received,
    with the same rules: inside a step, only `write`, `progress`, `adjust` and `check` work.

    Example:
        ```python
        async def on_token(token: str) -> None:  # called by a library inside a step
            await holdfast.current_context().write(token)
        ```

    Raises:
        TaskError: Called outside an `async def` durable function.
    """
    context = active_context.get()
    if context is None:
        scope = current_scope.get()
        where = "outside a run" if scope is None else "in a job"
        if scope is not None and scope.durable:
            where = "in a function with a SyncContext"
        raise TaskError(
            f"current_context() was called {where}: call it in an async def with a Context, or in what it calls"
        )
    return context
