"""Plans of the operations that a durable function performs.

A plan looks up its operation in the recorded history. If the operation is recorded, the plan replays its outcome.
Otherwise it performs the operation, records the outcome and only then returns it.

Plans are coroutines that do no I/O themselves but await the methods of an executor. So each plan is written once: the
async executor suspends it on the event loop; the sync executor's methods block instead and never suspend it.
"""

from __future__ import annotations

import random
import weakref
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from functools import partial
from itertools import count
from typing import Any, NoReturn, Protocol, TypeAlias
from uuid import UUID

import msgspec

from holdfast.engine.durable import budgets, interaction, topics
from holdfast.engine.durable.history import (
    ChildOutcome,
    Compensation,
    RecordedHistory,
    chained_exception_ids,
    child_failure,
    child_outcome,
    encode_failure,
    gate_failure,
    recorded_step_failure,
    step_failure,
    unexpected_payload,
)
from holdfast.engine.durable.step_limits import StepLimits
from holdfast.engine.services import ChildReader, ClientServices
from holdfast.errors import ErrorInfo, Fatal, PayloadError, RunCancelled, RunFailed, TaskError, TooLarge, WaitTimeout
from holdfast.model.clock import to_datetime
from holdfast.model.codec import decode, decode_value, unreadable_error
from holdfast.model.ids import new_id
from holdfast.model.payloads import PayloadContext, message_context
from holdfast.model.step_keys import without_undo_count
from holdfast.store import Claim, NewRun, commands
from holdfast.store.commands import Checkpoint, Command, NewCheckpoint, NewStepCheckpoint, WaitOutcome
from holdfast.store.propagation import encode_map_value
from holdfast.store.rows import NewGraph
from holdfast.store.run_tree import format_spawn_key
from holdfast.store.waits import decode_outcome, event_target
from holdfast.task import operations as op
from holdfast.task.scope import current_scope
from holdfast.task.task import Task
from holdfast.telemetry import log

Plan: TypeAlias = Coroutine[Any, Any, Any]
Read: TypeAlias = Callable[[], Any]
"""A blocking read from the database."""
Reference: TypeAlias = Callable[[], BaseException | None]
"""Returns an exception that was raised in user code; None if nothing holds it any more."""


class PlanExecutor(Protocol):
    """What plans await."""

    @property
    def task(self) -> Task[..., Any]: ...

    def replay(self, checkpoint: Checkpoint, read: Read | None = None) -> Awaitable[Any]:
        """Wait until it is a recorded outcome's turn; return what `read` returns."""

    def write(self, command: Command | NewStepCheckpoint) -> Awaitable[Any]:
        """Write a command; return the recorded value when it is durable."""

    def write_ahead(self, command: commands.SpawnCommand) -> Awaitable[Any]:
        """Write a command whose reply is known; return that reply before it is durable.

        Steps, transactions, waits and the end of the function wait until it is, so that no effect can depend on a child
        that doesn't exist after a crash.
        """

    def wait(
        self, wait: commands.WaitCommand, read: Read | None = None, child: str | None = None
    ) -> Awaitable[WaitResult]:
        """Register a wait and wait for its outcome. `child`: the run, if it is the wait for a single child."""

    def in_executor(self, step: op.Step, executor: str) -> op.Step:
        """Return the step with a function that calls its own in this executor and returns the outcome."""

    def run_step(self, step: op.Step, key: str) -> Awaitable[StepResult]:
        """Call the function of a step, with its retries."""

    def run_transaction(self, operation: op.Transaction, key: str) -> Awaitable[StepResult]:
        """Call a function in a transaction that also records its result. A failure isn't recorded."""

    def restart(self, args: str) -> Awaitable[Any]:
        """Restart the run with other arguments. Never returns."""

    def stop_at_unrecorded(self, key: str) -> Awaitable[Any]:
        """Stop a replay at an operation that isn't recorded. Never returns."""


class WaitResult(msgspec.Struct):
    """The outcome of a wait, the number of its checkpoint, and what `read` returned."""

    n: int
    outcome: WaitOutcome
    data: Any = None


class StepResult(msgspec.Struct):
    """The result of a step or transaction as JSON text and as it is stored, or its failure.

    `n` is the number of its checkpoint. A failure has the arguments of the call, as they are stored for operators, and
    the number of tries.
    """

    text: str | None = None
    stored: str | None = None
    error: ErrorInfo | None = None
    exception: BaseException | None = None
    duration_us: int = 0
    n: int = 0
    args: str | None = None
    tries: int = 1


class ChildRead:
    """Reads how a spawned child ended: from what was loaded for all of them, or from the database."""

    __slots__ = ("plans", "spawn")

    def __init__(self, plans: OperationPlans, spawn: str) -> None:
        self.plans = plans
        self.spawn = spawn

    def __call__(self) -> list[ChildOutcome]:
        """Read it. Blocks."""
        if self.plans.loads_spawned:
            self.plans.load_spawned()
        return self.loaded() or self.plans.read_children(self.spawn)

    def loaded(self) -> list[ChildOutcome] | None:
        return self.plans.loaded_child(self.spawn)


class OperationPlans:
    """The plans of one attempt. With `replay_only`, they perform nothing that isn't recorded."""

    __slots__ = (
        "_child_keys", "_failures", "_first_new_number", "_graph_result_tasks", "_held_progress", "_is_replaying",
        "_joined_outcomes", "_limits", "_reader", "_reloads_spawned", "_spawned", "_step_record",
        "_step_write_serials", "_timeouts", "_unused_numbers", "around_step", "claim", "client", "compensations",
        "has_undos", "has_waited", "history", "holds_permits", "next_number", "on_event", "replay_only", "run_token",
        "step_spends", "steps_without_undo", "transactions",
    )  # fmt: skip

    def __init__(
        self,
        claim: Claim,
        history: RecordedHistory,
        client: ClientServices,
        reader: ChildReader,
        *,
        replay_only: bool = False,
    ) -> None:
        self.claim = claim
        self.history = history
        self.replay_only = replay_only
        self.run_token = history.run_token
        self.next_number = history.next_number
        self.has_undos = bool(claim.undos)
        self.has_waited = bool(history.open_waits or history.resolved_waits)
        """Whether the run has waited for something in this attempt, or was waiting when it was claimed."""
        self.holds_permits = False
        """Whether steps of this attempt have taken permits."""
        self.step_spends: dict[str, list[commands.Spend]] = budgets.NOTHING
        """What running steps have spent, by the name of the step in its scope."""
        self.transactions: Collection[str] = ()
        """The names of running transactions in their scopes."""
        self.compensations: list[Compensation] = []
        self.steps_without_undo: list[tuple[int, str]] = []
        """Numbers and keys of steps that were recorded with an undo and have none in the code now."""
        self.on_event: Callable[[str], None] | None = None
        self.around_step: Callable[[Any], Any] | None = None
        """Adds the application's middleware to a step or transaction."""
        """Called with the target of an event that the run waited for; blocks."""
        self.client = client
        self._reader = reader
        self._step_record = partial(NewStepCheckpoint, *history.run_token[:3])
        self._step_write_serials = count(1)
        self._child_keys: dict[str, str] = {}  # By id of the child: the key of the operation that created it.
        self._graph_result_tasks: dict[str, str] = {}  # By id of a child graph: the task that produces its result.
        self._spawned: dict[str, Any] | None = None
        self._reloads_spawned = False
        self._joined_outcomes: dict[str, Sequence[ChildOutcome]] = {}
        """By key of the spawn; copied from another run's history."""
        self._is_replaying = bool(history.unconsumed or history.open_waits)
        """False once an operation has completed that wasn't recorded: then the code has passed what is recorded."""
        self._held_progress: str | None = None
        self._first_new_number = history.last_number + 1
        self._unused_numbers: set[int] = set()
        self._limits: StepLimits | None = None
        self._failures: dict[int, Reference] = {}
        self._timeouts: dict[int, Reference] = {}

    @property
    def repeats_body(self) -> bool:
        """Whether the body of the function repeats what an earlier attempt has done, such as log lines."""
        return self.replay_only or (self._is_replaying and self.history.is_behind)

    @property
    def is_blank(self) -> bool:
        """Whether nothing was recorded in this attempt, nor loaded."""
        return not (self.history.last_number or self.has_waited)

    def continue_with(self, claim: Claim) -> None:
        """Continue with the next claim of the run: later commands carry its fence."""
        self.claim = claim
        token = self.run_token = self.history.run_token = self.run_token._replace(fence=claim.fence)
        self._step_record = partial(NewStepCheckpoint, *token[:3])

    def start(self, executor: PlanExecutor, operation: op.Operation) -> Plan:
        """Return the plan of an operation."""
        current = current_scope.get()
        if current is not None and current.step is not None and not isinstance(operation, _WORKS_INSIDE_STEPS):
            raise TaskError(
                f"the context was used inside step {current.step}: steps can't contain steps or waits; use it in the "
                "body of the durable function (only write, progress, adjust and spend work inside a step)"
            )
        return _PLANS[type(operation)](self, executor, operation)

    def failures_to_retry(self, error: BaseException, *, with_timeouts: bool) -> tuple[int, ...]:
        """Return the checkpoints of failures that the next attempt runs again when `error` ends this one.

        These are the failures that led to the error, and those with no other outcome after them. With timeouts, the
        next attempt also waits again where a wait timed out.
        """
        failures = self._failures | self._timeouts if with_timeouts else self._failures
        new = range(self._first_new_number, self.history.last_number + 1)
        last = max({*self.history.numbers, *new} - self._unused_numbers - failures.keys(), default=0)
        causes = chained_exception_ids(error)
        return tuple(sorted(n for n, failure in failures.items() if n > last or id(failure()) in causes))

    def skip_number(self, n: int) -> None:
        """Note that no outcome is recorded under a number that was taken."""
        self._unused_numbers.add(n)

    def next_marker_number(self) -> int:
        """Take a number for a checkpoint that is no outcome of an operation."""
        n = self.next_number()
        self._unused_numbers.add(n)
        return n

    def raise_recorded(self, n: int, failure: BaseException) -> NoReturn:
        """Raise a recorded failure in user code."""
        self._failures[n] = _reference(failure)
        raise failure

    # Steps

    async def step(self, executor: PlanExecutor, operation: op.Step) -> Any:
        history = self.history
        key = history.next_key(operation.base)
        recorded = history.consume(key) if history.unconsumed else None
        if recorded is not None:
            return await self._replay_step(executor, operation, key, recorded)
        if self.replay_only:
            await executor.stop_at_unrecorded(key)
        if operation.undo is not None and not self.has_undos:
            await executor.write(commands.MarkUndosCommand(self.run_token))
            self.has_undos = True
        is_limited = operation.limits is not None and await self.limits.acquire(executor, operation, key)
        if operation.executor is not None:
            operation = executor.in_executor(operation, operation.executor)
        if self.around_step is not None:
            operation = self.around_step(operation)
        result: StepResult = await executor.run_step(operation, key)
        is_plain = operation.undo is None and result.error is None  # Fewer calls for these, the most frequent ones.
        if is_plain:
            record: NewStepCheckpoint | NewCheckpoint = self._step_record(
                self.next_number(), key, result.stored, result.duration_us
            )
        else:
            record = self.step_record(key, result, operation.undo is not None)
        if is_limited or self.step_spends:
            await self._record_step(executor, key, record, is_limited=is_limited)
        else:
            await executor.write(record)
        self._is_replaying = False
        if is_plain:
            return operation.function_info.decode(result.text or "null")
        if result.error is not None:
            failure = step_failure(operation.name, result.error, operation.raises, result.exception)
            self.raise_recorded(result.n, failure)
        return self._step_value(operation, result.n, key, result.text, 1)

    async def _replay_step(self, executor: PlanExecutor, operation: op.Step, key: str, recorded: Checkpoint) -> Any:
        """Return the recorded result of a step, or raise its recorded failure."""
        await executor.replay(recorded)
        if operation.limits is not None:
            self.limits.replayed(key)
        if self.history.spent:
            await budgets.replay_step(self, executor, key)
        if recorded.kind == "failed":
            failure = recorded_step_failure(operation.name, recorded.value or "", operation.raises)
            self.raise_recorded(recorded.n, failure)
        return self._step_value(operation, recorded.n, key, recorded.value, recorded.undo)

    async def _record_step(
        self, executor: PlanExecutor, key: str, record: NewStepCheckpoint | NewCheckpoint, *, is_limited: bool
    ) -> None:
        """Record a step, with what it has spent; return its permits."""
        spends = self.step_spends.pop(self.history.idempotency_name(key), None) if self.step_spends else None
        if spends is None:
            await (self.limits.record(executor, key, record) if is_limited else executor.write(record))
            return
        spent = await budgets.record_step(self, executor, key, record, spends)
        if is_limited:
            await self.limits.release(executor, key)
        self._is_replaying = False
        await budgets.wait_after_step(self, executor, key, spent)

    @property
    def limits(self) -> StepLimits:
        """The permits of steps, for functions that use any."""
        if self._limits is None:
            self._limits = StepLimits(self)
        return self._limits

    def stop_replaying(self) -> None:
        """Note that an operation has completed that wasn't recorded."""
        self._is_replaying = False

    def adjust(self, executor: PlanExecutor, operation: op.Adjust) -> Plan:
        return self.limits.adjust(executor, operation)

    def _step_value(self, operation: op.Step, n: int, key: str, text: str | None, undo: int) -> Any:
        """Return the result of a step to its caller, and register its compensation."""
        value = operation.function_info.decode(text or "null")
        if undo:
            if operation.undo is None:
                self.steps_without_undo.append((n, key))
            else:
                self.compensations.append(Compensation(n, key, partial(operation.undo, value), operation))
        return value

    def step_record(self, key: str, result: StepResult, has_undo: bool) -> NewStepCheckpoint | NewCheckpoint:
        """Return the checkpoint of a step, with the next number."""
        if result.error is not None:
            return self._failure_record(key, result, result.error)
        n = result.n = self.next_number()
        if has_undo:
            return NewCheckpoint(*self.run_token, n, key, "step", result.stored, result.duration_us, undo=1)
        return self._step_record(n, key, result.stored, result.duration_us)

    def _failure_record(self, key: str, result: StepResult, error: ErrorInfo) -> NewCheckpoint:
        n = result.n = self.next_number()
        text = encode_failure(error, result.exception, result.args, result.tries)
        return NewCheckpoint(*self.run_token, n, key, "failed", text, result.duration_us)

    async def transaction(self, executor: PlanExecutor, operation: op.Transaction) -> Any:
        key = self.history.next_key(operation.base)
        recorded = self.history.consume(key)
        if recorded is not None:
            await executor.replay(recorded)
            if recorded.kind == "failed":
                self.raise_recorded(recorded.n, recorded_step_failure(operation.name, recorded.value or "", ()))
            return operation.function_info.decode(recorded.value or "null")
        if self.replay_only:
            await executor.stop_at_unrecorded(key)
        if self.around_step is not None:
            operation = self.around_step(operation)
        name = self.history.idempotency_name(key)
        self.transactions = {*self.transactions, name}
        result: StepResult = await executor.run_transaction(operation, key)
        self.transactions = {each for each in self.transactions if each != name}
        self._is_replaying = False
        if result.error is not None:
            await executor.write(self._failure_record(key, result, result.error))
            self.raise_recorded(result.n, step_failure(operation.name, result.error, (), result.exception))
        return operation.function_info.decode(result.text or "null")

    async def undo(self, executor: PlanExecutor, operation: op.Undo) -> Any:
        key = self.history.next_key(operation.base)
        recorded = self.history.consume(key)
        if recorded is None:
            if self.replay_only:
                await executor.stop_at_unrecorded(key)
            if not self.has_undos:
                await executor.write(commands.MarkUndosCommand(self.run_token))
                self.has_undos = True
            n = self.next_number()
            await executor.write(NewCheckpoint(*self.run_token, n, key, "undo", undo=1))
        else:
            n = recorded.n
            await executor.replay(recorded)
        self.compensations.append(Compensation(n, key, partial(operation.fn, *operation.args, **operation.kwargs)))

    # Waits

    async def sleep(self, executor: PlanExecutor, operation: op.Sleep) -> Any:
        key = self.history.next_key(operation.base)
        await self.wait_for_outcome(executor, key, kind="sleep", delay=operation.delay, due_at=operation.until)

    async def wait_for(self, executor: PlanExecutor, operation: op.WaitFor) -> Any:
        tenant, name = self.claim.tenant, operation.event
        target = event_target(tenant, name)
        on_event = None if self.on_event is None else partial(self.on_event, target)
        key, what, set_aside = self.history.next_key(operation.base), f"event {name!r}", None
        while True:
            result = await self.wait_for_outcome(
                executor,
                key,
                on_event,
                kind="event",
                target=target,
                tenant=tenant,
                name=name,
                delay=operation.timeout,
                set_aside=set_aside,
            )
            text = self.payload(result, PayloadContext("event", tenant, None, name), what)
            try:
                return decode_value(text, operation.type or Any)
            except PayloadError as error:
                if self.replay_only:
                    raise unexpected_payload(what, error) from error
                reason = str(error)
            set_aside = result.outcome.value
            await executor.write(commands.SetAsideCommand(self.run_token, key, reason, name))
            log.event_set_aside(self.claim.id, executor.task.name, self.claim.attempt, name, reason)

    async def receive(self, executor: PlanExecutor, operation: op.Receive) -> Any:
        context = message_context(self.claim.tenant, self.claim.id, operation.topic)
        return await self.receive_message(executor, operation, context, operation.topic)

    async def receive_message(
        self,
        executor: PlanExecutor,
        operation: op.Receive | op.Next,
        context: PayloadContext,
        target: str,
        listening: commands.Listening | None = None,
    ) -> Any:
        """Wait for a message that has the expected type; set others aside."""
        topic, what = operation.topic, f"message on topic {operation.topic!r}"
        key = self.history.next_key(operation.base)
        while True:
            result = await self.wait_for_outcome(
                executor, key, kind="message", target=target, delay=operation.timeout, listening=listening
            )
            text = self.payload(result, context, what)
            try:
                return decode_value(text, operation.type or Any)
            except PayloadError as error:
                if self.replay_only:
                    raise unexpected_payload(what, error) from error
                reason = str(error)
            await executor.write(commands.SetAsideCommand(self.run_token, key, reason))
            log.message_set_aside(self.claim.id, executor.task.name, self.claim.attempt, topic, reason)

    def payload(self, result: WaitResult, context: PayloadContext, what: str) -> str:
        """Return the payload of an event or message as JSON text; raise WaitTimeout if the wait timed out."""
        if result.outcome.kind == "due":
            timeout = WaitTimeout(f"timed out waiting for {what}")
            self._timeouts[result.n] = _reference(timeout)
            raise timeout
        stored = result.outcome.value
        text = "null" if stored is None else self.client.unpack(stored, context)
        if text[:1] == "~":  # This worker lacks the codec, for example: the payload itself may be fine.
            error = unreadable_error(text)
            raise Fatal(f"the payload of {what} can't be read: {error}") from error
        return text

    async def wait_for_outcome(
        self, executor: PlanExecutor, key: str, read: Read | None = None, **wait: Any
    ) -> WaitResult:
        recorded = self.history.consume(key)
        if recorded is not None:
            is_new = read is not None and self.history.was_resolved_while_suspended(key)
            await executor.replay(recorded, read if is_new else None)
            return WaitResult(recorded.n, decode_outcome(recorded.kind, recorded.value))
        if self.replay_only:
            await executor.stop_at_unrecorded(key)
        self.has_waited = True
        result = await executor.wait(commands.WaitCommand(self.run_token, key, **wait), read)
        self._is_replaying = False
        return result

    # Events and other runs

    async def perform_once(self, executor: PlanExecutor, base: str, command: Callable[[int, str], Command]) -> Any:
        """Write a command unless it is recorded; return its key and the recorded text."""
        key = self.history.next_key(base)
        recorded = self.history.consume(key)
        if recorded is not None:
            await executor.replay(recorded)
            return key, recorded.value
        if self.replay_only:
            await executor.stop_at_unrecorded(key)
        new = command(self.next_number(), key)
        if isinstance(new, commands.SpawnCommand) and new.kind == "spawn":
            return key, await executor.write_ahead(new)
        value = await executor.write(new)
        self._is_replaying = False
        return key, value

    async def emit(self, executor: PlanExecutor, operation: op.Emit) -> Any:
        tenant, name = self.claim.tenant, operation.event
        context = PayloadContext("event", tenant, None, name)
        text = self.client.pack(operation.payload, context, f"the payload of event {name}")
        target = event_target(tenant, name)
        _, value = await self.perform_once(
            executor,
            operation.base,
            lambda n, key: commands.EmitCommand(
                self.run_token, n, key, target, tenant, name, text, self.client.trace()
            ),
        )
        return value == "true"

    async def enqueue(self, executor: PlanExecutor, operation: op.Enqueue) -> Any:
        task = operation.request.task
        key = self.history.next_key(operation.base)
        recorded = self.history.consume(key)
        if recorded is not None:
            await executor.replay(recorded)
            return self.client.handle(UUID(decode(recorded.value or "")), task, created=recorded.kind == "enqueue")
        if self.replay_only:
            await executor.stop_at_unrecorded(key)
        new = self.client.new_run(operation.request)
        id = decode(await executor.write(commands.EnqueueCommand(self.run_token, self.next_number(), key, new)))
        self._is_replaying = False
        return self.client.handle(UUID(id), task, created=id == new.id)

    async def spawn(self, executor: PlanExecutor, operation: op.Spawn) -> Any:
        request = operation.request
        return await self._spawn_child(
            executor, operation.base, request.task, lambda: (self.client.new_child(request, self.claim.tenant), None)
        )

    async def submit(self, executor: PlanExecutor, operation: op.Submit) -> Any:
        create = partial(self.client.new_child_graph, operation.plan, operation.result, self.claim.tenant)
        run = await self._spawn_child(executor, operation.base, operation.plan.graph.name, create)
        self._graph_result_tasks[str(run.id)] = operation.result_task() or ""  # Without a task, it is plain JSON.
        return run

    async def gate(self, executor: PlanExecutor, operation: op.FunctionGate) -> Any:
        run = await self.submit(executor, operation)
        spawn, name = self._child_keys[str(run.id)], operation.plan.graph.name
        n, ends = await self._join_children(executor, spawn, ChildRead(self, spawn), child=str(run.id))
        _, state, result, _ = ends[0]
        if state != "done":
            self.raise_recorded(n, gate_failure(name, ends[0]))
        try:
            return decode_value(result or "null", operation.type or Any)
        except PayloadError as error:
            raise unexpected_payload(f"output of gate {name!r}", error) from error

    async def _spawn_child(
        self, executor: PlanExecutor, base: str, task: str, create: Callable[[], tuple[NewRun, NewGraph | None]]
    ) -> Any:
        def command(n: int, key: str) -> Command:
            child, graph = create()
            return commands.SpawnCommand(self.run_token, n, key, "spawn", [child], f'"{child.id}"', graph=graph)

        key, text = await self.perform_once(executor, base, command)
        id = decode(text)
        self._child_keys[id] = key
        return self.client.handle(UUID(id), task)

    async def join(self, executor: PlanExecutor, operation: op.Join) -> Any:
        spawn = self._child_keys.get(str(operation.run))
        if spawn is None:
            raise TaskError(
                f"run {operation.run} is not a child of this run: join takes what ctx.spawn returned; to wait for an "
                "independent run, let it emit an event"
            )
        child = str(operation.run)
        n, ends = await self._join_children(executor, spawn, ChildRead(self, spawn), child=child)
        return self._child_result(n, operation.task, ends[0])

    async def map(self, executor: PlanExecutor, operation: op.Map) -> Any:
        if not operation.requests:
            return []

        def command(n: int, key: str) -> Command:
            children = [self.client.new_child(request, self.claim.tenant) for request in operation.requests]
            value = encode_map_value(len(children), operation.concurrency)
            return commands.SpawnCommand(self.run_token, n, key, "map", children, value, operation.concurrency)

        spawn, _ = await self.perform_once(executor, operation.base, command)
        eager = operation.errors == "raise"
        n, ends = await self._join_children(executor, spawn, lambda: self.read_children(spawn), eager=eager)
        if eager:
            return [self._child_result(n, operation.task, end) for end in ends]
        return [self._result_or_failure(operation.task, end) for end in ends]

    async def _join_children(
        self, executor: PlanExecutor, spawn: str, read: Read, *, eager: bool = False, child: str | None = None
    ) -> Any:
        """Wait for the children that an operation created; return the checkpoint's number and how they ended.

        The ends are read before the outcome's turn comes, so that outcomes reach user code in their recorded order.
        """
        key = self.history.next_key(f"$join:{spawn}")
        recorded = self.history.consume(key)
        if recorded is not None and recorded.kind == "joined":
            await executor.replay(recorded)
            self._joined_outcomes[spawn] = self._copied_ends(recorded)
            return recorded.n, self._joined_outcomes[spawn]
        if recorded is not None:
            ends = await executor.replay(recorded, read)
            return recorded.n, _only_failed(ends, decode(recorded.value) if recorded.value else None)
        if spawn in self._joined_outcomes:  # This run is a fork, and its original joined these children before.
            return 0, self._joined_outcomes[spawn]
        if self.replay_only:
            await executor.stop_at_unrecorded(key)
        self.has_waited = True
        target = format_spawn_key(self.claim.generation, spawn)
        wait = commands.WaitCommand(self.run_token, key, "children", target, eager=int(eager))
        result: WaitResult = await executor.wait(wait, read, child)
        self._is_replaying = False
        return result.n, _only_failed(result.data, result.outcome.value)

    def _copied_ends(self, joined: Checkpoint) -> list[ChildOutcome]:
        """Return how children ended whose results a fork has copied from its original."""
        context = PayloadContext("step", self.claim.tenant, self.claim.id, joined.key)
        return [
            (id, state, None if result is None else self.client.unpack(result, context), error)
            for id, state, result, error in decode(joined.value or "null")["ends"]
        ]

    @property
    def loads_spawned(self) -> bool:
        """Whether to read how all spawned children ended, as a replay does, instead of one by one."""
        return self._spawned is None and (self._reloads_spawned or bool(self.history.unconsumed))

    def load_spawned(self) -> None:
        """Read how all spawned children ended. Blocks."""
        self._spawned = self._reader.spawned_results(self.claim.id)
        self._reloads_spawned = False

    def reload_spawned(self) -> None:
        """Read them again with the next join, because several have ended while the function was suspended."""
        self._spawned = None
        self._reloads_spawned = True

    def loaded_child(self, spawn: str) -> list[ChildOutcome] | None:
        """Return how a spawned child ended, if that was loaded."""
        row = (self._spawned or {}).get(format_spawn_key(self.claim.generation, spawn))
        return None if row is None else [child_outcome(row)]

    def read_children(self, spawn: str) -> list[ChildOutcome]:
        rows = self._reader.child_results(self.claim.id, format_spawn_key(self.claim.generation, spawn))
        return [child_outcome(row) for row in rows]

    def _child_result(self, n: int, child: str, end: ChildOutcome) -> Any:
        value = self._result_or_failure(child, end)
        if isinstance(value, RunFailed | RunCancelled):
            self.raise_recorded(n, value)
        return value

    def _result_or_failure(self, child: str, end: ChildOutcome) -> Any:
        """Return the result of a child, or the exception for its failure; `child` is the name of its task or graph."""
        id, state, result, _ = end
        if state == "done":
            return self.client.decode_result(self._graph_result_tasks.get(id, child), result)
        return child_failure(child, end)

    # Recorded values, output and restart

    async def value(self, executor: PlanExecutor, operation: op.Value) -> Any:
        # The database supplies the time for "now".
        new = {"random": repr(random.random()), "uuid": f'"{new_id()}"'}.get(operation.kind, "")
        _, text = await self.perform_once(
            executor, operation.base, lambda n, key: NewCheckpoint(*self.run_token, n, key, operation.kind, new)
        )
        value = decode(text or new)
        if operation.kind == "now":
            return to_datetime(value)
        return UUID(value) if operation.kind == "uuid" else value

    async def progress(self, executor: PlanExecutor, operation: op.ProgressReport) -> Any:
        if self.replay_only:
            return
        current = current_scope.get()
        is_in_step = current is not None and current.step is not None
        if self._is_replaying and not is_in_step and self.history.expects_more:
            self._held_progress = operation.text
            return
        self._held_progress = None
        await executor.write(self._progress_command(operation.text))

    def _progress_command(self, text: str) -> commands.ProgressCommand:
        context = PayloadContext("progress", self.claim.tenant, self.claim.id)
        return commands.ProgressCommand(self.run_token, self.client.pack(text, context, "the progress"))

    def late_progress(self) -> commands.ProgressCommand | None:
        """Return the last progress report of the code, if it was taken for a repeated one.

        A replay doesn't repeat reports: they would turn the progress back. While outcomes are recorded that the code
        hasn't reached, a report may be a repeated one. It wasn't, if the code stopped without reaching them, because
        their steps were removed or renamed.
        """
        held, self._held_progress = self._held_progress, None
        return None if held is None or not self.history.unconsumed else self._progress_command(held)

    async def write(self, executor: PlanExecutor, operation: op.Write) -> Any:
        current, attempt = current_scope.get(), self.claim.attempt
        context = PayloadContext("chunk", self.claim.tenant, self.claim.id)
        text = self.client.pack(operation.text, context, "the chunk of ctx.write")
        if current is not None and current.step is not None:
            step, serial = without_undo_count(current.part_key or current.step), next(self._step_write_serials)
            command = commands.WriteCommand(self.run_token, None, step, attempt, text, step, current.step_try, serial)
            await executor.write(command)
            return
        await self.perform_once(
            executor,
            operation.base,
            lambda n, key: commands.WriteCommand(
                self.run_token, n, key, attempt, text, serial=int(key.rpartition("#")[2])
            ),
        )

    async def annotate(self, executor: PlanExecutor, operation: op.Annotate) -> Any:
        _, refusal = await self.perform_once(
            executor, operation.base, lambda n, key: commands.AnnotateCommand(self.run_token, n, key, operation.text)
        )
        if refusal is not None:
            raise TooLarge(decode(refusal))

    async def restart(self, executor: PlanExecutor, operation: op.Restart) -> Any:
        if self.replay_only:
            await executor.stop_at_unrecorded("$restart")
        await executor.restart(operation.args)


def _reference(failure: BaseException) -> Reference:
    """Refer to a failure without keeping it and the frames of its traceback in memory, where its class allows that."""
    try:
        return weakref.ref(failure)
    except TypeError:
        return lambda: failure


def _only_failed(ends: Sequence[ChildOutcome], failed: str | None) -> Sequence[ChildOutcome]:
    """Return only the end of the child whose failure ended an eager wait, if one did."""
    return ends if failed is None else [end for end in ends if end[0] == failed]


_WORKS_INSIDE_STEPS = (op.Write, op.ProgressReport, op.Adjust, op.SpendAmount)

_PLANS: dict[type[Any], Callable[[OperationPlans, PlanExecutor, Any], Plan]] = {
    op.Step: OperationPlans.step,
    op.Transaction: OperationPlans.transaction,
    op.Undo: OperationPlans.undo,
    op.Sleep: OperationPlans.sleep,
    op.WaitFor: OperationPlans.wait_for,
    op.Receive: OperationPlans.receive,
    op.Emit: OperationPlans.emit,
    op.Spawn: OperationPlans.spawn,
    op.Submit: OperationPlans.submit,
    op.FunctionGate: OperationPlans.gate,
    op.Join: OperationPlans.join,
    op.Map: OperationPlans.map,
    op.Enqueue: OperationPlans.enqueue,
    op.Value: OperationPlans.value,
    op.ProgressReport: OperationPlans.progress,
    op.Write: OperationPlans.write,
    op.Annotate: OperationPlans.annotate,
    op.Adjust: OperationPlans.adjust,
    op.SpendAmount: budgets.spend,
    op.ReadBudget: budgets.read_budget,
    op.Restart: OperationPlans.restart,
    op.SetValue: interaction.set_value,
    op.ReceiveAsk: interaction.receive_ask,
    op.ReplyAsk: interaction.reply,
    op.Publish: topics.publish,
    op.Next: topics.next_message,
}
