"""`context()` and `sync_context()`: contexts in memory, to call durable functions directly in tests.

The engine's own plans (`engine/durable/plans.py`) decide what happens; the effects are executed here, in memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from typing import Any, NoReturn, cast
from uuid import UUID

from holdfast.engine.durable.history import RecordedHistory
from holdfast.engine.durable.plans import OperationPlans, Read, StepResult, WaitResult
from holdfast.engine.durable.step_retry import FailedTry, StepRetries
from holdfast.engine.durable.steps import step_result
from holdfast.engine.durable.sync_executor import complete
from holdfast.errors import AskRejected, ErrorInfo, TaskError
from holdfast.model.asks import AskAnswer, FollowedWrites, ReceivedAsk, asked_name, decode_rejection, encode_envelope
from holdfast.model.budget import from_units
from holdfast.model.clock import time_to_micros, to_datetime
from holdfast.model.codec import decode, encode
from holdfast.model.failure import describe_exception, error_to_json
from holdfast.model.ids import new_id
from holdfast.model.payloads import PayloadContext, Payloads
from holdfast.model.topics import Topic, parse_inbox
from holdfast.policy.topic_rules import has_values
from holdfast.store import AttemptEnd, Claim, NewRun, commands
from holdfast.store.commands import Checkpoint, LoadedHistory, RunToken, WaitOutcome
from holdfast.store.rows import NewGraph
from holdfast.store.run_tree import format_spawn_key
from holdfast.store.topics import DeclaredSubscription
from holdfast.task.context import Context
from holdfast.task.fakes import fake_task
from holdfast.task.functions import is_async
from holdfast.task.graph import NodeSpec
from holdfast.task.graph_compiler import CompiledGraph
from holdfast.task.operations import Operation, Step, Transaction
from holdfast.task.registry import remote_task
from holdfast.task.scope import Scope, current_scope
from holdfast.task.signature import Signature
from holdfast.task.sync_context import SyncContext
from holdfast.task.task import EnqueuerProtocol, Request, Task

PLAIN_PAYLOADS = Payloads(warn_above=None, compress_above=None)
"""Payloads are not stored, so they are not compressed."""


class InMemoryRun:
    """A run created by a direct call. It can only be joined."""

    def __init__(self, id: UUID, task: str, created: bool) -> None:
        self.id = id
        self.task = task
        self.created = created

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise TaskError(f"a run in memory has no .{name}, because it isn't in a store: use the kit instead")

    def __repr__(self) -> str:
        return f"<run {self.id} of {self.task}>"


class InMemoryRunFactory:
    """Creates runs of requests, to be called directly. Implements `ClientServices`."""

    has_limits = False

    def __init__(self) -> None:
        self.requests: dict[str, Request[Any]] = {}
        self.gates: dict[str, NodeSpec] = {}

    def step_permits(self, step: Step) -> str | None:  # noqa: ARG002
        return None

    def check_budget(self, name: str) -> None:
        """Accept any budget: nothing declares them in memory."""

    def new_run(self, request: Request[Any], *, pack: bool = True) -> NewRun:  # noqa: ARG002
        run = NewRun(str(new_id()), request.declaration.queue, request.task, request.args, 0)
        self.requests[run.id] = request
        return run

    def new_child(self, request: Request[Any], tenant: str | None) -> NewRun:  # noqa: ARG002
        return self.new_run(request)

    def new_child_graph(self, plan: CompiledGraph, result: str | None, tenant: str | None) -> tuple[NewRun, NewGraph]:  # noqa: ARG002
        first = plan.nodes[0].spec
        if len(plan.nodes) > 1 or first.gate is None:
            raise TaskError("ctx.submit needs a store: use the kit to test functions that submit graphs")
        run = NewRun(str(new_id()), "", plan.graph.name, "{}", 0)
        self.gates[run.id] = first
        return run, NewGraph([])

    def subscriptions(self) -> tuple[str, list[DeclaredSubscription]]:
        return "", []

    def pack(self, text: str, context: PayloadContext, what: str) -> str:
        return PLAIN_PAYLOADS.pack(text, context, what)

    def unpack(self, text: str, context: PayloadContext) -> str:
        return PLAIN_PAYLOADS.unpack(text, context)

    def trace(self) -> str | None:
        return None

    def handle(self, id: UUID, task: str, *, created: bool = True) -> InMemoryRun:
        return InMemoryRun(id, task, created)

    def decode_result(self, task: str, text: str) -> Any:
        known = (request.signature for request in self.requests.values() if request.task == task)
        return next(known).decode_result(text)

    def wake_followers(self, written: FollowedWrites) -> None:
        """Do nothing: nothing follows it."""

    def wake_result_waiters(self, ended: Mapping[str, AttemptEnd | None]) -> None:
        """Do nothing: nothing waits for it."""


class Restarted(BaseException):
    """Raised when a durable function that was called directly calls `ctx.restart`.

    A `BaseException`, so that the function's own `except Exception` doesn't catch it.

    Attributes:
        arguments: The arguments of the restart.
    """

    def __init__(self, arguments: tuple[Any, ...]) -> None:
        super().__init__(*arguments)
        self.arguments = arguments


class SharedState:
    """The state that a direct call shares with its children: time, events and recorded effects."""

    def __init__(
        self,
        now: datetime | None,
        events: Mapping[str, Any] | None,
        gates: Mapping[str, Any] | None,
        connection: object,
    ) -> None:
        self.gates = dict(gates or {})
        self.now = time_to_micros(datetime.now(UTC) if now is None else now, "now")
        self.events = {name: encode(payload) for name, payload in (events or {}).items()}
        self.connection = connection
        self.steps: list[str] = []
        self.enqueued: list[Request[Any]] = []
        self.emitted: dict[str, Any] = {}
        self.written: list[Any] = []
        self.metadata: dict[str, Any] = {}
        self.values: dict[str, Any] = {}
        self.replies: list[Any] = []
        self.spent: dict[str, int] = {}
        self.published: list[tuple[str, Any]] = []


class InMemoryExecutor:
    """Executes the operations of one direct call in memory."""

    attempt = 1

    def __init__(
        self,
        shared: SharedState,
        messages: Mapping[str, Iterable[Any]] | None,
        scheduled_for: datetime | None,
        asks: Iterable[tuple[str, Any]] = (),
    ) -> None:
        self.run_id = new_id()
        self.scheduled_for = scheduled_for
        self.task: Task[..., Any] = remote_task("a-direct-call", enqueuer=None)  # type: ignore[arg-type]
        self.shared = shared
        self._messages = {topic: [encode(each) for each in payloads] for topic, payloads in (messages or {}).items()}
        self._asks = [ReceivedAsk(str(new_id()), "", name, encode(payload)) for name, payload in asks]
        self._runs = InMemoryRunFactory()
        self._ends: dict[str, list[Any]] = {}  # By spawn key: the id of each child, then its result.
        self._claim = claim = Claim(str(self.run_id), 0, 0, 0, 0, 1, 1, 0, None, "{}", None)
        self._plans = OperationPlans(
            claim, RecordedHistory(LoadedHistory(), RunToken(claim.id, 0, 1, 0)), self._runs, self
        )

    def check(self) -> None:
        """Do nothing: a direct call is never cancelled."""

    # Implements `ChildReader`

    def spawned_results(self, parent: str) -> dict[str, Any]:  # noqa: ARG002 - there is one
        return {}

    def child_results(self, parent: str, spawn_key: str) -> list[Any]:  # noqa: ARG002
        return self._ends[spawn_key]

    # Implements `PlanExecutor`

    async def invoke(self, call: Callable[[], Any]) -> Any:
        """Call user code."""
        raise NotImplementedError

    async def replay(self, checkpoint: Checkpoint, read: Read | None = None) -> NoReturn:  # noqa: ARG002
        raise AssertionError("an in-memory context has no history")

    async def stop_at_unrecorded(self, key: str) -> NoReturn:
        raise AssertionError(f"an in-memory context doesn't replay {key}")

    async def restart(self, args: str) -> NoReturn:
        raise Restarted(tuple(decode(args).get("*", ())))

    def in_executor(self, step: Step, executor: str) -> Step:  # noqa: ARG002
        """Return the step as it is: a direct call has no executors."""
        return step

    async def run_step(self, step: Step, key: str) -> StepResult:
        """Call a step function, with its retries but without pauses between them."""
        self.shared.steps.append(step.name)
        retries = StepRetries(step.retry, step.timeout)
        while True:
            try:
                value = await self.invoke(self._call(key, step.fn, *step.args, **step.kwargs))
                result: StepResult | FailedTry = step_result(step, value, PLAIN_PAYLOADS, self._claim, key)
            except Exception as error:
                result = retries.failed(error)
            if isinstance(result, StepResult):
                return result

    async def run_transaction(self, operation: Transaction, key: str) -> StepResult:
        connection = self.shared.connection
        if connection is None:
            raise TaskError(f"ctx.transaction({operation.name}) needs a connection: pass context(connection=…)")
        self.shared.steps.append(operation.name)
        try:
            value = await self.invoke(self._call(key, operation.fn, connection, *operation.args, **operation.kwargs))
            return step_result(operation, value, PLAIN_PAYLOADS, self._claim, key)
        except Exception as error:
            return cast(StepResult, StepRetries().failed(error))

    def _call(self, key: str, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[[], Any]:
        here = Scope(str(self.run_id), durable=True, step=key)

        def call() -> Any:  # The caller runs it in a copy of the context.
            current_scope.set(here)
            return fn(*args, **kwargs)

        async def awaited() -> Any:
            token = current_scope.set(here)
            try:
                return await fn(*args, **kwargs)
            finally:
                current_scope.reset(token)

        return awaited if is_async(fn) else call

    async def write_ahead(self, command: commands.SpawnCommand) -> Any:
        return await self.write(command)

    async def write(self, command: commands.Command | commands.NewStepCheckpoint) -> Any:
        shared = self.shared
        if isinstance(command, commands.SpendCommand):
            return self._spend(command)
        match command:
            case commands.NewCheckpoint():
                return str(shared.now) if command.kind == "now" else command.value
            case commands.EmitCommand() | commands.PublishCommand():
                return self._announce(command)
            case commands.SpawnCommand():
                self._ends[format_spawn_key(0, command.key)] = [run.id for run in command.children]
                requests = self._runs.requests
                shared.enqueued += [requests[run.id] for run in command.children if run.id in requests]
                return command.value
            case commands.EnqueueCommand():
                shared.enqueued.append(self._runs.requests[command.request.id])
                return f'"{command.request.id}"'
            case commands.AnnotateCommand():
                shared.metadata.update(decode(command.text))
            case commands.SetCommand():
                shared.values[command.name] = decode(command.text)
            case commands.ReplyCommand():
                self._reply(command.answer)
            case commands.WriteCommand():
                shared.written.append(decode(command.data))
        return None

    def _spend(self, command: commands.SpendCommand) -> str:
        """Add up what is spent; no budget limits it."""
        found, spent = [], self.shared.spent
        for budget, amount in command.spends:
            spent[budget] = spent.get(budget, 0) + amount
            total = str(from_units(spent[budget]))
            found.append({"budget": budget, "spent": total, "limit": None, "exceeded": False})
        return encode(found)

    def _announce(self, command: commands.EmitCommand | commands.PublishCommand) -> str:
        shared = self.shared
        if isinstance(command, commands.PublishCommand):
            shared.published.append((command.topic, decode(command.payload)))
            return encode([command.id, 0, 0])
        first = command.name not in shared.events
        shared.events.setdefault(command.name, command.payload)
        shared.emitted.setdefault(command.name, decode(command.payload))
        return "true" if first else "false"

    def _reply(self, answer: AskAnswer) -> None:
        if answer.answer == "reply":
            self.shared.replies.append(decode(answer.text))
        else:
            rejection = decode_rejection(answer.text)
            self.shared.replies.append(AskRejected(rejection.reason, data=rejection.data, type=rejection.type))

    # Waits

    async def wait(
        self,
        wait: commands.WaitCommand,
        read: Read | None = None,
        child: str | None = None,  # noqa: ARG002
    ) -> WaitResult:
        if wait.kind == "children":
            await self._run_children(wait.target or "")
            failed = [row[0] for row in self._ends[wait.target or ""] if row[2] == "failed"]
            outcome = WaitOutcome("failed", failed[0]) if failed and wait.eager else WaitOutcome("children", None)
            return WaitResult(wait.n, outcome, None if read is None else read())
        return WaitResult(wait.n, self._outcome(wait))

    def _outcome(self, wait: commands.WaitCommand) -> WaitOutcome:
        """Return the outcome of a wait: what is already there, or else its timeout."""
        if wait.answer is not None:
            self._reply(wait.answer)
        if (name := asked_name(wait.target)) is not None:
            for ask in self._asks:
                if name in ("", ask.name):
                    self._asks.remove(ask)
                    return WaitOutcome("message", encode_envelope(ask))
        if wait.kind == "event" and wait.name in self.shared.events:
            return WaitOutcome("event", self.shared.events[wait.name])
        if wait.kind == "message" and (payload := self._take_message(str(wait.target))) is not None:
            return WaitOutcome("message", payload)
        if wait.due_at is None and wait.delay is None:
            raise TaskError(_missing_input(wait))
        now = self.shared.now
        self.shared.now = max(now, wait.due_at if wait.due_at is not None else now + (wait.delay or 0))
        return WaitOutcome("due", None)

    def _take_message(self, target: str) -> str | None:
        inbox = parse_inbox(target) or Topic(target)
        messages = self._messages.get(inbox.pattern, [])
        for at, payload in enumerate(messages):
            if has_values(decode(payload), inbox.where):
                return messages.pop(at)
        return None

    async def _run_children(self, spawn: str) -> None:
        """Call the functions of awaited children, one after the other, each once."""
        for index, child in enumerate(self._ends[spawn]):
            if isinstance(child, str):
                self._ends[spawn][index] = await self._run_child(child, index)

    async def _run_child(self, id: str, index: int) -> tuple[Any, ...]:
        if (gate := self._runs.gates.get(id)) is not None:
            return self._end_gate(id, gate)
        request = self._runs.requests[id]
        task: Task[..., Any] = Task(request.declaration, request.signature, cast(EnqueuerProtocol, None))
        if isinstance(request.signature, Signature):
            task.fn = request.signature.fn
        faked = fake_task(task)
        signature: Any = faked.signature
        if faked is task and not isinstance(signature, Signature):
            raise TaskError(f"{request.task} can't be called directly: it is a machine or a remote task; fake it")
        args, kwargs = signature.decode(request.args)
        fn: Callable[..., Any] = signature.fn
        if signature.durable:
            fn = partial(fn, _context_of_child(fn, self.shared))
        try:
            result = signature.encode_result(await self.invoke(partial(fn, *args, **kwargs)))
        except Exception as error:
            return (id, index, "failed", None, error_to_json(describe_exception(error)))
        return (id, index, "done", result, None)

    def _end_gate(self, id: str, node: NodeSpec) -> tuple[Any, ...]:
        """Return how a gate ends: as the test has decided, or else with its timeout."""
        decided, name = self.shared.gates, node.name
        timeout = None if node.gate is None else node.gate.timeout
        if name not in decided and timeout is None:
            raise TaskError(f"gate {name!r} is never completed: pass its output with context(gates={{{name!r}: …}})")
        if name in decided and not isinstance(decided[name], Exception):
            return (id, 0, "done", encode(decided[name]), None)
        if name in decided:
            cause = {"code": "gate", "type": "GateFailed", "message": str(decided[name])}
        else:
            self.shared.now += timeout or 0
            cause = {"code": "timeout", "type": "GateTimeout", "message": f"gate {name} was not completed in time"}
        error = ErrorInfo("node", "GraphFailed", f"node {name} failed", data={"node": name, **cause})
        return (id, 0, "failed", None, error_to_json(error))


def _missing_input(wait: commands.WaitCommand) -> str:
    if wait.kind == "event":
        return f"event {wait.name!r} never occurs: pass it with context(events={{{wait.name!r}: …}})"
    if (name := asked_name(wait.target)) is not None:
        return f"no ask arrives: pass it with context(asks=[({name or 'name'!r}, payload), …])"
    inbox = parse_inbox(wait.target)
    topic = wait.target if inbox is None else inbox.pattern
    return f"no message arrives on topic {topic!r}: pass it with context(messages={{{topic!r}: […]}})"


class RecordedEffects:
    """What a test can inspect after a direct call."""

    __slots__ = ()
    _executor: Any

    @property
    def steps(self) -> list[str]:
        """The names of the steps and transactions that ran, in order, including those of children."""
        return list(self._executor.shared.steps)

    @property
    def enqueued(self) -> list[Request[Any]]:
        """The requests of the runs and children that were created, in order."""
        return list(self._executor.shared.enqueued)

    @property
    def emitted(self) -> dict[str, Any]:
        """The events that were emitted, with their payloads."""
        return dict(self._executor.shared.emitted)

    @property
    def published(self) -> list[tuple[str, Any]]:
        """The messages that were published, in order, as pairs of topic and payload."""
        return list(self._executor.shared.published)

    @property
    def metadata(self) -> dict[str, Any]:
        """The values set with `ctx.annotate`."""
        return dict(self._executor.shared.metadata)

    @property
    def values(self) -> dict[str, Any]:
        """The values set with `ctx.set`."""
        return dict(self._executor.shared.values)

    @property
    def spent(self) -> dict[str, Decimal]:
        """What was spent with `ctx.spend`, by budget."""
        return {budget: from_units(units) for budget, units in self._executor.shared.spent.items()}

    @property
    def replies(self) -> list[Any]:
        """The answers to asks, in order: the values of replies, and an `AskRejected` for each rejected ask."""
        return list(self._executor.shared.replies)

    @property
    def written(self) -> list[Any]:
        """The chunks written with `ctx.write`."""
        return list(self._executor.shared.written)

    @property
    def time(self) -> datetime:
        """The current time. Every sleep has advanced it."""
        return to_datetime(self._executor.shared.now)


class InMemoryAsyncExecutor(InMemoryExecutor):
    """Executes operations of a `Context`. Plain functions run in threads, as in a worker."""

    async def perform(self, operation: Operation) -> Any:
        return await self._plans.start(self, operation)

    async def invoke(self, call: Callable[[], Any]) -> Any:
        return await (call() if is_async(call) else asyncio.to_thread(call))


class InMemorySyncExecutor(InMemoryExecutor):
    """Executes operations of a `SyncContext`."""

    def perform(self, operation: Operation) -> Any:
        return complete(self._plans.start(self, operation))

    async def invoke(self, call: Callable[[], Any]) -> Any:
        return _run_on_new_loop(call) if is_async(call) else copy_context().run(call)


def _run_on_new_loop(call: Callable[[], Any]) -> Any:
    """Run an async child on a new event loop in another thread, because this thread may have a running one."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(copy_context().run, lambda: asyncio.run(call())).result()


def _context_of_child(fn: Callable[..., Any], shared: SharedState) -> InMemoryContext | InMemorySyncContext:
    if is_async(fn):
        return InMemoryContext(InMemoryAsyncExecutor(shared, None, None))
    return InMemorySyncContext(InMemorySyncExecutor(shared, None, None))


class InMemoryContext(RecordedEffects, Context):
    """A `Context` in memory, returned by `context()`."""

    __slots__ = ()


class InMemorySyncContext(RecordedEffects, SyncContext):
    """A `SyncContext` in memory, returned by `sync_context()`."""

    __slots__ = ()


def context(
    *,
    events: Mapping[str, Any] | None = None,
    messages: Mapping[str, Iterable[Any]] | None = None,
    asks: Iterable[tuple[str, Any]] = (),
    gates: Mapping[str, Any] | None = None,
    connection: object = None,
    now: datetime | None = None,
    scheduled_for: datetime | None = None,
) -> InMemoryContext:
    """Create a context in memory, to call a durable function directly.

    Steps run, sleeps return at once and advance the time, and waits receive what the test has passed. Nothing is
    replayed; graphs and compensations need the kit.

    Args:
        events: The events that have occurred, with their payloads.
        messages: The messages that were sent to the run or published, in order, by topic.
        asks: The asks in order of arrival, as pairs of name and payload. `ctx.replies` has the answers.
        gates: The outputs of gates by name; an exception rejects the gate.
        connection: The connection for functions of `ctx.transaction`.
        now: The initial time.
        scheduled_for: The value of `ctx.scheduled_for`.

    Example:
        ```python
        ctx = context(events={"paid": 42})
        assert await checkout(ctx, order) == "shipped"
        assert ctx.steps == ["charge", "ship"]
        ```
    """
    shared = SharedState(now, events, gates, connection)
    return InMemoryContext(InMemoryAsyncExecutor(shared, messages, scheduled_for, asks))


def sync_context(
    *,
    events: Mapping[str, Any] | None = None,
    messages: Mapping[str, Iterable[Any]] | None = None,
    asks: Iterable[tuple[str, Any]] = (),
    gates: Mapping[str, Any] | None = None,
    connection: object = None,
    now: datetime | None = None,
    scheduled_for: datetime | None = None,
) -> InMemorySyncContext:
    """Create a context in memory for a durable function that is a plain def. See `context`."""
    shared = SharedState(now, events, gates, connection)
    return InMemorySyncContext(InMemorySyncExecutor(shared, messages, scheduled_for, asks))
