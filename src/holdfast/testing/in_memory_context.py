"""`context()` and `sync_context()`: contexts without a store, for calling durable functions like plain ones.

The plans of operations are the engine's own (`engine/durable/plans.py`); what they ask for is carried out here, in
memory: steps run, time passes at once, waits get what the test has given. Nothing is replayed: for that, and for graphs
and undoing, there is the kit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from datetime import UTC, datetime
from functools import partial
from typing import Any, NoReturn, TypeAlias
from uuid import UUID

from holdfast.engine.durable import plans as fx
from holdfast.engine.durable.history import RecordedHistory
from holdfast.engine.durable.plans import OperationPlans
from holdfast.engine.durable.steps import StepRetries, step_result
from holdfast.errors import TaskError
from holdfast.model.clock import time_to_micros, to_datetime
from holdfast.model.codec import decode, encode
from holdfast.model.failure import describe_exception, error_to_json
from holdfast.model.ids import new_id
from holdfast.model.payloads import Payloads
from holdfast.store import Claim, NewRun
from holdfast.store import commands as write
from holdfast.store.commands import LoadedHistory, RunToken, WaitOutcome
from holdfast.store.run_tree import format_spawn_key
from holdfast.task.context import Context
from holdfast.task.functions import is_async
from holdfast.task.operations import Operation
from holdfast.task.registry import remote_task
from holdfast.task.scope import Scope, current_scope
from holdfast.task.signature import Signature
from holdfast.task.sync_context import SyncContext
from holdfast.task.task import Request, Task

PLAIN_PAYLOADS = Payloads(warn_above=None, compress_above=None)
"""Nothing is stored, so nothing is compressed."""


class InMemoryRun:
    """A run that a direct call made: it can be joined, and nothing else."""

    def __init__(self, id: UUID, task: str) -> None:
        self.id = id
        self.task = task

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise TaskError(f"a run made in a direct call has no .{name}: it isn't in any store; use the kit for that")

    def __repr__(self) -> str:
        return f"<run {self.id} of {self.task}>"


class InMemoryRunFactory:
    """Makes runs of requests, to be called here."""

    def __init__(self) -> None:
        self.requests: dict[str, Request[Any]] = {}

    def new_run(self, request: Request[Any]) -> NewRun:
        run = NewRun(str(new_id()), request.declaration.queue, request.task, request.args, 0)
        self.requests[run.id] = request
        return run

    def new_child_graph(self, plan: Any, result: str | None) -> NoReturn:  # noqa: ARG002
        raise TaskError("ctx.submit needs a store: test functions that submit graphs with the kit")

    def pack(self, text: str, what: str) -> str:
        return PLAIN_PAYLOADS.pack(text, what)

    def unpack(self, text: str) -> str:
        return PLAIN_PAYLOADS.unpack(text)

    def trace(self) -> str | None:
        return None

    def handle(self, id: UUID, task: str) -> InMemoryRun:
        return InMemoryRun(id, task)

    def decode_result(self, task: str, text: str) -> Any:
        known = (request.signature for request in self.requests.values() if request.task == task)
        return next(known).decode_result(text)

    def ended(self) -> None:
        """Nobody waits for it."""


Calls: TypeAlias = Generator[Callable[[], Any], Any, Any]
"""Yields author code to call, is sent what it returned or thrown what it raised, and returns what came of it all."""


class Restarted(BaseException):
    """The function called `ctx.restart`; `arguments` are those of the next call. No `Exception`: it isn't its own."""

    def __init__(self, arguments: tuple[Any, ...]) -> None:
        super().__init__(*arguments)
        self.arguments = arguments


class SharedState:
    """What a direct call and the children that it makes share: the time, events, and what they left for the test."""

    def __init__(self, now: datetime | None, events: Mapping[str, Any] | None, connection: object) -> None:
        self.now = time_to_micros(datetime.now(UTC) if now is None else now, "now")
        self.events = {name: encode(payload) for name, payload in (events or {}).items()}
        self.connection = connection
        self.steps: list[str] = []
        self.enqueued: list[Request[Any]] = []
        self.emitted: dict[str, Any] = {}
        self.written: list[Any] = []


class InMemoryExecutor:
    """Carries out the operations of one direct call."""

    attempt = 1

    def __init__(
        self, shared: SharedState, messages: Mapping[str, Iterable[Any]] | None, scheduled_for: datetime | None
    ) -> None:
        self.run_id = new_id()
        self.scheduled_for = scheduled_for
        self.task: Task[..., Any] = remote_task("a-direct-call", enqueuer=None)  # type: ignore[arg-type]
        self.shared = shared
        self._messages = {topic: [encode(each) for each in payloads] for topic, payloads in (messages or {}).items()}
        self._runs = InMemoryRunFactory()
        self._ends: dict[str, list[Any]] = {}  # by spawn key: what was made, and how it ended
        claim = Claim(str(self.run_id), 0, 0, 0, 0, 1, 1, 0, None, "{}", None)
        self._plans = OperationPlans(
            claim, RecordedHistory(LoadedHistory(), RunToken(claim.id, 0, 1, 0)), self._runs, self
        )

    def check(self) -> None:
        """It is never cancelled."""

    # What plans read: how children ended

    def spawned_results(self, parent: str) -> dict[str, Any]:  # noqa: ARG002 - there is one
        return {}

    def child_results(self, parent: str, spawn_key: str) -> list[Any]:  # noqa: ARG002
        return self._ends[spawn_key]

    # Carrying out

    def play(self, operation: Operation) -> Calls:
        plan = self._plans.start(operation)
        try:
            effect = next(plan)
            while True:
                effect = plan.send((yield from self._carry_out(effect)))
        except StopIteration as end:
            return end.value

    def _carry_out(self, effect: fx.Effect) -> Calls:
        match effect:
            case fx.StepEffect():
                return (yield from self._try(effect))
            case fx.TransactionEffect():
                return (yield from self._transact(effect))
            case fx.WaitEffect():
                return (yield from self._wait(effect))
            case fx.RestartEffect():
                raise Restarted(tuple(decode(effect.args).get("*", ())))
            case fx.ReplayEffect() | fx.UnrecordedEffect():
                raise TaskError(f"{type(effect).__name__} in a direct call: that is a fault in Holdfast")
        return self._write(effect)

    def _try(self, effect: fx.StepEffect) -> Calls:
        """A step with its retries, without pauses between them."""
        step = effect.step
        self.shared.steps.append(step.name)
        tries = StepRetries(step.retry, step.timeout)
        while True:
            try:
                value = yield self._call(effect.key, step.fn, *step.args, **step.kwargs)
                tried: fx.StepResult | float = step_result(step, value, PLAIN_PAYLOADS)
            except Exception as error:
                tried = tries.failed(error)
            if isinstance(tried, fx.StepResult):
                return tried

    def _transact(self, effect: fx.TransactionEffect) -> Calls:
        call = effect.operation
        if self.shared.connection is None:
            raise TaskError(f"ctx.transaction({call.name}) needs a connection: give it one, context(connection=…)")
        self.shared.steps.append(call.name)
        try:
            value = yield self._call(effect.key, call.fn, self.shared.connection, *call.args, **call.kwargs)
            tried: fx.StepResult | float = step_result(call, value, PLAIN_PAYLOADS)
        except Exception as error:
            tried = StepRetries().failed(error)
        return tried

    def _call(self, key: str, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[[], Any]:
        here = Scope(str(self.run_id), durable=True, step=key)

        def call() -> Any:  # in a context of its own
            current_scope.set(here)
            return fn(*args, **kwargs)

        async def awaited() -> Any:
            token = current_scope.set(here)
            try:
                return await fn(*args, **kwargs)
            finally:
                current_scope.reset(token)

        return awaited if is_async(fn) else call

    def _write(self, command: write.Command | write.NewStepCheckpoint) -> Any:
        shared = self.shared
        match command:
            case write.NewCheckpoint(kind="now"):
                return str(shared.now)
            case write.NewCheckpoint():
                return command.value
            case write.EmitCommand():
                first = command.name not in shared.events
                shared.events.setdefault(command.name, command.payload)
                shared.emitted.setdefault(command.name, decode(command.payload))
                return "true" if first else "false"
            case write.SpawnCommand():
                self._ends[format_spawn_key(0, command.key)] = [run.id for run in command.children]
                shared.enqueued += [self._runs.requests[run.id] for run in command.children]
                return command.value
            case write.EnqueueCommand():
                shared.enqueued.append(self._runs.requests[command.request.id])
                return f'"{command.request.id}"'
            case write.WriteCommand():
                shared.written.append(decode(command.data))
        return None

    # Waiting

    def _wait(self, effect: fx.WaitEffect) -> Calls:
        wait = effect.wait
        if wait.kind == "children":
            yield from self._run_children(wait.target or "")
            failed = [row[0] for row in self._ends[wait.target or ""] if row[2] == "failed"]
            outcome = WaitOutcome("failed", failed[0]) if failed and wait.eager else WaitOutcome("children", None)
            return fx.WaitResult(wait.n, outcome, None if effect.read is None else effect.read())
        return fx.WaitResult(wait.n, self._come(wait))

    def _come(self, wait: write.WaitCommand) -> WaitOutcome:
        """What a wait comes to, now: what is there already, else its time passes."""
        if wait.kind == "event" and wait.name in self.shared.events:
            return WaitOutcome("event", self.shared.events[wait.name])
        if wait.kind == "message" and self._messages.get(wait.target or ""):
            return WaitOutcome("message", self._messages[wait.target or ""].pop(0))
        if wait.due_at is None and wait.delay is None:
            raise TaskError(_never_comes(wait))
        now = self.shared.now
        self.shared.now = max(now, wait.due_at if wait.due_at is not None else now + (wait.delay or 0))
        return WaitOutcome("due", None)

    def _run_children(self, spawn: str) -> Calls:
        """Call the functions of children that are waited for, one after the other, each once."""
        for place, made in enumerate(self._ends[spawn]):
            if isinstance(made, str):
                self._ends[spawn][place] = yield from self._run_child(made, place)

    def _run_child(self, id: str, place: int) -> Calls:
        request = self._runs.requests[id]
        signature = request.signature
        if not isinstance(signature, Signature):
            raise TaskError(f"{request.task} can't be called here: its code lives elsewhere, or it is a machine")
        args, kwargs = signature.decode(request.args)
        fn: Callable[..., Any] = signature.fn
        if signature.durable:
            fn = partial(fn, _context_of_child(fn, self.shared))
        try:
            result = signature.encode_result((yield partial(fn, *args, **kwargs)))
        except Exception as error:
            return (id, place, "failed", None, error_to_json(describe_exception(error)))
        return (id, place, "done", result, None)


def _never_comes(wait: write.WaitCommand) -> str:
    if wait.kind == "event":
        return f"event {wait.name!r} never comes: give it to the context, context(events={{{wait.name!r}: …}})"
    return (
        f"no message comes on topic {wait.target!r}: give it to the context, context(messages={{{wait.target!r}: […]}})"
    )


class RecordedEffects:
    """What the test can look at afterwards, whatever the kind of context."""

    __slots__ = ()
    _executor: Any

    @property
    def steps(self) -> list[str]:
        """The names of the steps and transactions that were run, in order; those of children too."""
        return list(self._executor.shared.steps)

    @property
    def enqueued(self) -> list[Request[Any]]:
        """The requests of the runs and children that were made, in order."""
        return list(self._executor.shared.enqueued)

    @property
    def emitted(self) -> dict[str, Any]:
        """The events that were emitted, with their payloads."""
        return dict(self._executor.shared.emitted)

    @property
    def written(self) -> list[Any]:
        """What was written with `ctx.write`."""
        return list(self._executor.shared.written)

    @property
    def time(self) -> datetime:
        """The time, which every sleep has moved on."""
        return to_datetime(self._executor.shared.now)


class InMemoryAsyncExecutor(InMemoryExecutor):
    """For a `Context`: plain functions run in threads, as they would in a worker."""

    async def perform(self, operation: Operation) -> Any:
        calls = self.play(operation)
        try:
            call = next(calls)
            while True:
                try:
                    value = await (call() if is_async(call) else asyncio.to_thread(call))
                except Exception as error:
                    call = calls.throw(error)
                else:
                    call = calls.send(value)
        except StopIteration as end:
            return end.value


class InMemorySyncExecutor(InMemoryExecutor):
    """For a `SyncContext`."""

    def perform(self, operation: Operation) -> Any:
        calls = self.play(operation)
        try:
            call = next(calls)
            while True:
                try:
                    value = _awaited_elsewhere(call) if is_async(call) else copy_context().run(call)
                except Exception as error:
                    call = calls.throw(error)
                else:
                    call = calls.send(value)
        except StopIteration as end:
            return end.value


def _awaited_elsewhere(call: Callable[[], Any]) -> Any:
    """An async child of a plain function: on a loop of its own, in a thread, since this one's may be running."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(copy_context().run, lambda: asyncio.run(call())).result()


def _context_of_child(fn: Callable[..., Any], shared: SharedState) -> InMemoryContext | InMemorySyncContext:
    if is_async(fn):
        return InMemoryContext(InMemoryAsyncExecutor(shared, None, None))
    return InMemorySyncContext(InMemorySyncExecutor(shared, None, None))


class InMemoryContext(RecordedEffects, Context):
    """A `Context` in memory."""

    __slots__ = ()


class InMemorySyncContext(RecordedEffects, SyncContext):
    """A `SyncContext` in memory."""

    __slots__ = ()


def context(
    *,
    events: Mapping[str, Any] | None = None,
    messages: Mapping[str, Iterable[Any]] | None = None,
    connection: object = None,
    now: datetime | None = None,
    scheduled_for: datetime | None = None,
) -> InMemoryContext:
    """A context in memory, for calling a durable function: `await checkout(context(), order)`. `events` are those that
    have happened, `messages` those that were sent, in order, by topic; `connection` is what functions of
    `ctx.transaction` get; `now` is the time at its start."""
    return InMemoryContext(InMemoryAsyncExecutor(SharedState(now, events, connection), messages, scheduled_for))


def sync_context(
    *,
    events: Mapping[str, Any] | None = None,
    messages: Mapping[str, Iterable[Any]] | None = None,
    connection: object = None,
    now: datetime | None = None,
    scheduled_for: datetime | None = None,
) -> InMemorySyncContext:
    """The same for a durable function that is a plain def: `checkout(sync_context(), order)`."""
    return InMemorySyncContext(InMemorySyncExecutor(SharedState(now, events, connection), messages, scheduled_for))
