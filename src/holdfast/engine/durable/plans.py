"""How each operation of a durable function is carried out: a plan per operation, written once for both contexts.

A plan looks up the operation in the history. It replays what is recorded; otherwise it does the work, records the
result and only then returns it. Plans do no I/O: they yield effects.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, NoReturn, TypeAlias
from uuid import UUID

import msgspec

from holdfast.engine.durable.history import (
    Compensation,
    RecordedHistory,
    causes,
    chosen_ends,
    end_of_child,
    fail,
    fail_again,
    failure_of_child,
    failure_text,
    payload,
)
from holdfast.engine.services import ChildReader, ClientServices
from holdfast.errors import ErrorInfo, RunCancelled, RunFailed, TaskError
from holdfast.model.clock import to_datetime
from holdfast.model.codec import decode
from holdfast.model.ids import new_id
from holdfast.store import Claim, NewRun
from holdfast.store import commands as write
from holdfast.store.commands import Checkpoint, Command, Outcome, Wait
from holdfast.store.family import spawn_key
from holdfast.store.retrying import map_value
from holdfast.store.rows import NewGraph
from holdfast.store.waking import outcome_of, target_of
from holdfast.task import operations as op
from holdfast.task.operations import Step, Transaction
from holdfast.task.scope import current_scope

ReadEnds: TypeAlias = Callable[[], Any]


class ReplayEffect(msgspec.Struct):
    """Something on record; answered, when its turn comes, with what `read` gives."""

    kept: Checkpoint
    read: ReadEnds | None = None


class WriteEffect(msgspec.Struct):
    """A command to be written; answered with the value on record when it is durable."""

    command: Command


class WaitEffect(msgspec.Struct):
    """Something to wait for; answered with `WaitResult`."""

    wait: Wait
    read: ReadEnds | None = None


class WaitResult(msgspec.Struct):
    """What a wait came to, under which number it is on record, and what its `read` gave."""

    n: int
    outcome: Outcome
    data: Any = None


class StepEffect(msgspec.Struct):
    """Author code to run, with its retries; answered with `StepResult`."""

    step: Step
    key: str


class TransactionEffect(msgspec.Struct):
    """Author code to run in a transaction that also records it; answered with `StepResult`."""

    operation: Transaction
    key: str


class RestartEffect(msgspec.Struct):
    """The run begins anew. Never answered."""

    args: str


class UnrecordedEffect(msgspec.Struct):
    """Something new where nothing new may happen. Never answered."""

    key: str


class StepResult(msgspec.Struct):
    """What author code came to: the JSON text of its result, and that as it is stored, or its failure. `n`: it is on
    record already."""

    text: str | None = None
    kept: str | None = None
    error: ErrorInfo | None = None
    exception: BaseException | None = None
    took: int = 0
    n: int = 0


Effect: TypeAlias = (
    ReplayEffect | WriteEffect | WaitEffect | StepEffect | TransactionEffect | RestartEffect | UnrecordedEffect
)
Plan: TypeAlias = Generator[Effect, Any, Any]


def waits_by(effect: Effect) -> str | None:
    """The key of the wait behind an effect, where author code that gives it up would lose something or keep it open:
    one that is open, or a message on record that hasn't reached it yet."""
    if isinstance(effect, WaitEffect):
        return effect.wait.key
    return effect.kept.key if isinstance(effect, ReplayEffect) and effect.kept.kind == "message" else None


class OperationPlans:
    """The plans of one attempt. `replay_only`: nothing new may happen."""

    __slots__ = (
        "_children",
        "_client",
        "_copied",
        "_failures",
        "_first",
        "_graphs",
        "_new_step",
        "_reader",
        "_spawned",
        "_unused",
        "claim",
        "history",
        "link",
        "missing_undo",
        "number",
        "registered",
        "replay_only",
        "run_token",
        "undos",
        "waited",
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
        self._new_step = partial(write.StepRecord, *history.run_token[:3])
        self.undos = bool(claim.undos)
        self.waited = bool(history.open or history.settled)
        """Whether it has, or had, something to wait for in this attempt."""
        self.registered: list[Compensation] = []
        self.missing_undo: list[tuple[int, str]] = []  # steps that had one when they were recorded: numbers and keys
        self._client = client
        self._reader = reader
        self._children: dict[str, str] = {}
        self._graphs: dict[str, str] = {}  # children that are graphs, and the tasks whose results theirs are
        self._spawned: dict[str, Any] | None = None
        self.number = history.number
        """The number of what will be on record next."""
        self._first = history.last + 1
        self._unused: set[int] = set()
        self._failures: dict[int, BaseException] = {}
        self._copied: dict[str, Any] = {}
        self.link: Callable[[str], None] | None = None  # tells telemetry of an event that was waited for

    def plan(self, operation: op.Operation) -> Plan:
        self._refuse_in_step(operation)
        return _PLANS[type(operation)](self, operation)

    @staticmethod
    def _refuse_in_step(operation: op.Operation) -> None:
        now = current_scope.get()
        if now is not None and now.step is not None and not isinstance(operation, op.Write | op.Progress):
            raise TaskError(
                f"the context was used inside the step {now.step}: steps can't contain steps or waits; call it in the "
                "body of the durable function (write and progress work here too)"
            )

    def forgotten(self, error: BaseException) -> tuple[int, ...]:
        """The failures that the next attempt tries again, when this error ends this one: those that it came from, and
        those with nothing on record after them."""
        new = range(self._first, self.history.last + 1)
        last = max({*self.history.numbers, *new} - self._unused - self._failures.keys(), default=0)
        behind = causes(error)
        return tuple(sorted(n for n, raised in self._failures.items() if n > last or id(raised) in behind))

    def _fails(self, n: int, raise_it: Callable[[], NoReturn]) -> NoReturn:
        """A failure on record reaches author code."""
        try:
            raise_it()
        except BaseException as raised:
            self._failures[n] = raised
            raise

    def number_aside(self) -> int:
        """A number for what is no outcome."""
        n = self.number()
        self.unused(n)
        return n

    def unused(self, n: int) -> None:
        """Nothing came on record under a number after all."""
        self._unused.add(n)

    # Steps

    def step(self, operation: op.Step) -> Plan:
        key = self.history.key(operation.base)
        kept = self.history.take(key)
        if kept is not None:
            yield ReplayEffect(kept)
            if kept.kind == "failed":
                self._fails_again(operation.name, kept, operation.raises)
            return self._finished(operation, kept.n, key, kept.value, kept.undo)
        if self.replay_only:
            yield UnrecordedEffect(key)
        if operation.undo is not None and not self.undos:
            yield WriteEffect(write.MarkUndos(self.run_token))
            self.undos = True
        tried: StepResult = yield StepEffect(operation, key)
        return (yield from self.tried(operation, key, tried))

    def tried(self, operation: op.Step, key: str, tried: StepResult) -> Plan:
        """The rest of a step, when author code is over."""
        record = self.record(key, tried, 0 if operation.undo is None else 1)
        yield WriteEffect(record)
        if tried.error is not None:
            self._fails(record.n, partial(fail, operation.name, tried.error, operation.raises, tried.exception))
        return self._finished(operation, record.n, record.key, tried.text, record.undo)

    def new_step(self, operation: op.Step) -> str | None:
        """The key of a step that has only to be tried and recorded; None for one that has its whole plan before it."""
        now = current_scope.get()
        history = self.history
        if (
            self.replay_only
            or operation.undo is not None
            or history.unasked
            or (now is not None and now.step is not None)
        ):
            return None
        return history.key(operation.base)

    def step_record(self, key: str, tried: StepResult) -> write.StepRecord:
        """The checkpoint of a step that went well and has no undo."""
        return self._new_step(self.number(), key, tried.kept, tried.took)

    def record(self, key: str, tried: StepResult, undo: int = 0) -> write.Record:
        """The checkpoint of any step or transaction; with `undo`, of a step that has one."""
        n = self.number()
        if tried.error is None:
            return write.Record(*self.run_token, n, key, "step", tried.kept, tried.took, undo)
        text = failure_text(tried.error, tried.exception)
        return write.Record(*self.run_token, n, key, "failed", text, tried.took)

    def _fails_again(self, name: str, kept: write.Checkpoint, raises: tuple[type[Exception], ...]) -> NoReturn:
        """What a step or transaction that failed for good gives its caller in a replay."""
        self._fails(kept.n, partial(fail_again, name, kept.value or "", raises))

    def _finished(self, operation: op.Step, n: int, key: str, text: str | None, undo: int) -> Any:
        """What a step on record gives its caller."""
        value = operation.function_info.decode(text or "null")
        if undo:
            if operation.undo is None:
                self.missing_undo.append((n, key))
            else:
                self.registered.append(Compensation(n, key, partial(operation.undo, value), operation))
        return value

    def transaction(self, operation: op.Transaction) -> Plan:
        key = self.history.key(operation.base)
        kept = self.history.take(key)
        if kept is not None:
            yield ReplayEffect(kept)
            if kept.kind == "failed":
                self._fails_again(operation.name, kept, ())
            return operation.function_info.decode(kept.value or "null")
        if self.replay_only:
            yield UnrecordedEffect(key)
        tried: StepResult = yield TransactionEffect(operation, key)
        if tried.error is not None:
            record = self.record(key, tried)
            yield WriteEffect(record)
            self._fails(record.n, partial(fail, operation.name, tried.error, (), tried.exception))
        return operation.function_info.decode(tried.text or "null")

    def undo(self, operation: op.Undo) -> Plan:
        key = self.history.key(operation.base)
        kept = self.history.take(key)
        if kept is None:
            if self.replay_only:
                yield UnrecordedEffect(key)
            if not self.undos:
                yield WriteEffect(write.MarkUndos(self.run_token))
                self.undos = True
            n = self.number()
            yield WriteEffect(write.Record(*self.run_token, n, key, "undo", undo=1))
        else:
            n = kept.n
            yield ReplayEffect(kept)
        self.registered.append(Compensation(n, key, partial(operation.fn, *operation.args, **operation.kwargs)))

    # Waiting

    def sleep(self, operation: op.Sleep) -> Plan:
        yield from self._waited(operation.base, kind="sleep", delay=operation.delay, due_at=operation.until)

    def wait_for(self, operation: op.WaitFor) -> Plan:
        tenant = self.claim.tenant
        target = target_of(tenant, operation.event)
        name, link = operation.event, None if self.link is None else partial(self.link, target)
        outcome = yield from self._waited(
            operation.base, link, kind="event", target=target, tenant=tenant, name=name, delay=operation.timeout
        )
        return payload(outcome, f"event {name!r}", operation.type, self._client.unpack)

    def receive(self, operation: op.Receive) -> Plan:
        topic = operation.topic
        outcome = yield from self._waited(operation.base, kind="message", target=topic, delay=operation.timeout)
        return payload(outcome, f"message on topic {topic!r}", operation.type, self._client.unpack)

    def _waited(self, base: str, read: Callable[[], Any] | None = None, **wait: Any) -> Plan:
        """Wait, or replay what a wait came to."""
        key = self.history.key(base)
        kept = self.history.take(key)
        if kept is not None:
            yield ReplayEffect(kept, read if read is not None and self.history.came(key) else None)
            return outcome_of(kept.kind, kept.value)
        if self.replay_only:
            yield UnrecordedEffect(key)
        self.waited = True
        came: WaitResult = yield WaitEffect(write.Wait(self.run_token, self.number(), key, **wait), read)
        return came.outcome

    # Events and children

    def emit(self, operation: op.Emit) -> Plan:
        tenant = self.claim.tenant
        name, text = operation.event, self._client.pack(operation.payload, f"the payload of event {operation.event}")
        target = target_of(tenant, name)
        _, value = yield from self._once(
            operation.base,
            lambda n, key: write.Emit(self.run_token, n, key, target, tenant, name, text, self._client.trace()),
        )
        return value == "true"

    def _once(self, base: str, command: Callable[[int, str], write.Command]) -> Plan:
        """Something that a command does, once; its key, and the text on record."""
        key = self.history.key(base)
        kept = self.history.take(key)
        if kept is not None:
            yield ReplayEffect(kept)
            return key, kept.value
        if self.replay_only:
            yield UnrecordedEffect(key)
        value = yield WriteEffect(command(self.number(), key))
        return key, value

    def spawn(self, operation: op.Spawn) -> Plan:
        request = operation.request
        return (yield from self._child(operation.base, request.task, lambda: (self._client.new_run(request), None)))

    def submit(self, operation: op.Submit) -> Plan:
        make = partial(self._client.new_child_graph, operation.plan, operation.result)
        run = yield from self._child(operation.base, operation.plan.graph.name, make)
        self._graphs[str(run.id)] = operation.result_task() or ""  # no task's: plain JSON
        return run

    def _child(self, base: str, task: str, make: Callable[[], tuple[NewRun, NewGraph | None]]) -> Plan:
        def command(n: int, key: str) -> write.Command:
            child, graph = make()
            return write.Spawn(self.run_token, n, key, "spawn", [child], f'"{child.id}"', graph=graph)

        key, text = yield from self._once(base, command)
        id = decode(text)
        self._children[id] = key
        return self._client.handle(UUID(id), task)

    def join(self, operation: op.Join) -> Plan:
        spawn = self._children.get(str(operation.run))
        if spawn is None:
            raise TaskError(
                f"run {operation.run} is no child that this function spawned: join takes what ctx.spawn returned; "
                "an independent run can tell that it is done by an event"
            )
        n, data = yield from self._joined(spawn, lambda: self._end_of(spawn))
        return self._result(n, operation.task, data[0])

    def map(self, operation: op.Map) -> Plan:
        if not operation.requests:
            return []

        def command(n: int, key: str) -> write.Command:
            children = [self._client.new_run(request) for request in operation.requests]
            value = map_value(len(children), operation.concurrency)
            return write.Spawn(self.run_token, n, key, "map", children, value, operation.concurrency)

        spawn, _ = yield from self._once(operation.base, command)
        eager = operation.errors == "raise"
        n, rows = yield from self._joined(spawn, lambda: self._ends_of(spawn), eager=eager)
        if eager:
            return [self._result(n, operation.task, row) for row in rows]
        return [self._result_or_failure(operation.task, row) for row in rows]

    def _joined(self, spawn: str, read: Callable[[], Any], *, eager: bool = False) -> Plan:
        """Wait for the children of a call, or replay it; the number on record, and how they ended. Those are read
        before the turn comes, so that the order of what is on record stays what it was."""
        key = self.history.key(f"$join:{spawn}")
        kept = self.history.take(key)
        if kept is not None and kept.kind == "joined":
            yield ReplayEffect(kept)
            self._copied[spawn] = decode(kept.value or "null")["ends"]
            return kept.n, self._copied[spawn]
        if kept is not None:
            rows = yield ReplayEffect(kept, read)
            failed = decode(kept.value) if kept.value else None
            return kept.n, chosen_ends(rows, failed)
        if spawn in self._copied:  # a fork's, whose original joined it before
            return 0, self._copied[spawn]
        if self.replay_only:
            yield UnrecordedEffect(key)
        self.waited = True
        wait = write.Wait(
            self.run_token, self.number(), key, "children", spawn_key(self.claim.generation, spawn), eager=int(eager)
        )
        came: WaitResult = yield WaitEffect(wait, read)
        return came.n, chosen_ends(came.data, came.outcome.value)

    def _end_of(self, spawn: str) -> list[Any]:
        """How a spawned child ended. A replay asks for all of them: they are read together."""
        if self._spawned is None and self.history.unasked:
            self._spawned = self._reader.spawned(self.claim.id)
        found = (self._spawned or {}).get(spawn_key(self.claim.generation, spawn))
        return [end_of_child(found)] if found is not None else self._ends_of(spawn)

    def _ends_of(self, spawn: str) -> list[Any]:
        rows = self._reader.children(self.claim.id, spawn_key(self.claim.generation, spawn))
        return [end_of_child(row) for row in rows]

    def _result(self, n: int, child: str, end: Sequence[Any]) -> Any:
        value = self._result_or_failure(child, end)
        if isinstance(value, RunFailed | RunCancelled):
            self._failures[n] = value
            raise value
        return value

    def _result_or_failure(self, child: str, end: Sequence[Any]) -> Any:
        """Return the result of a child, or the exception for its failure; `child` is the name of its task or graph."""
        if end[1] == "done":
            return self._client.decode_result(self._graphs.get(end[0], child), end[2])
        return failure_of_child(child, end)

    def enqueue(self, operation: op.Enqueue) -> Plan:
        new_run, request = self._client.new_run, operation.request
        _, text = yield from self._once(
            operation.base, lambda n, key: write.Enqueue(self.run_token, n, key, new_run(request))
        )
        return self._client.handle(UUID(decode(text)), request.task)

    # Values and words

    def value(self, operation: op.Value) -> Plan:
        made = {"random": repr(random.random()), "uuid": f'"{new_id()}"'}.get(operation.kind, "")  # now: by the store
        _, text = yield from self._once(
            operation.base, lambda n, key: write.Record(*self.run_token, n, key, operation.kind, made)
        )
        value = decode(text or made)
        if operation.kind == "now":
            return to_datetime(value)
        return UUID(value) if operation.kind == "uuid" else value

    def progress(self, operation: op.Progress) -> Plan:
        if not self.history.unasked and not self.replay_only:
            yield WriteEffect(write.Progress(self.run_token, operation.text))

    def write(self, operation: op.Write) -> Plan:
        now, text = current_scope.get(), self._client.pack(operation.text, "the chunk of ctx.write")
        if now is not None and now.step is not None:
            yield WriteEffect(write.Write(self.run_token, None, now.step, self.claim.attempt, text))
            return
        yield from self._once(
            operation.base, lambda n, key: write.Write(self.run_token, n, key, self.claim.attempt, text)
        )

    def restart(self, operation: op.Restart) -> Plan:
        yield UnrecordedEffect("$restart") if self.replay_only else RestartEffect(operation.args)


_PLANS: dict[type[Any], Callable[[OperationPlans, Any], Plan]] = {
    op.Step: OperationPlans.step,
    op.Transaction: OperationPlans.transaction,
    op.Undo: OperationPlans.undo,
    op.Sleep: OperationPlans.sleep,
    op.WaitFor: OperationPlans.wait_for,
    op.Receive: OperationPlans.receive,
    op.Emit: OperationPlans.emit,
    op.Spawn: OperationPlans.spawn,
    op.Submit: OperationPlans.submit,
    op.Join: OperationPlans.join,
    op.Map: OperationPlans.map,
    op.Enqueue: OperationPlans.enqueue,
    op.Value: OperationPlans.value,
    op.Progress: OperationPlans.progress,
    op.Write: OperationPlans.write,
    op.Restart: OperationPlans.restart,
}
