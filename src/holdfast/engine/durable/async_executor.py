"""Execute an `async def` durable function on the event loop.

A branch that waits awaits a future; it never raises. When all branches wait and nothing has happened for a moment, the
run is suspended. If there is room, its function stays in memory (`resident.py`). Otherwise the executor closes the
context and cancels the run's tasks; whatever they raise counts as the suspension.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Coroutine
from contextlib import suppress
from functools import partial, update_wrapper
from time import monotonic_ns
from typing import Any, NamedTuple, NoReturn, cast

import msgspec

from holdfast.engine.attempt import Attempt
from holdfast.engine.durable.delivery import OrderedDelivery, WritesAhead
from holdfast.engine.durable.enclosing_timeouts import (
    TimeoutTimer,
    enclosing_timeout_error,
    enclosing_timers,
    pending_timers,
    reject_inside_timeout,
)
from holdfast.engine.durable.executor import (
    BUSY_SUSPEND_DELAY_S,
    MAX_WRITES_AHEAD,
    QUIET_ITERATIONS,
    Arguments,
    Executor,
    failed_end,
    suspend_delay_s,
)
from holdfast.engine.durable.history import ChildOutcome
from holdfast.engine.durable.plans import ChildRead, OperationPlans, Read, StepResult, WaitResult
from holdfast.engine.durable.steps import StepCalls, TransactionCall, step_result
from holdfast.engine.durable.undo import undo
from holdfast.engine.remote_call import remote_call
from holdfast.engine.services import WorkerServices
from holdfast.engine.write_queue import PendingWrite, WriteResult
from holdfast.model.clock import MICROS_PER_SECOND
from holdfast.store import AttemptEnd
from holdfast.store.commands import (
    Checkpoint,
    Command,
    NewCheckpoint,
    NewStepCheckpoint,
    SpawnCommand,
    WaitCommand,
    WaitOutcome,
    WaitRegistered,
    WithdrawCommand,
    Written,
)
from holdfast.store.waits import encode_outcome
from holdfast.task.context import Context, active_context
from holdfast.task.operations import Operation, Step, Transaction
from holdfast.task.scope import current_scope

MAX_KEPT_RESULT_CHARS = 64 * 1024
"""Larger results of children that aren't waited for yet are read from the database later."""
MAX_REJECTED_CALLS = 10_000
"""After this many calls on a closed context, the calling code is abandoned: it ignores its cancellation."""


class OpenWait(NamedTuple):
    """A wait of a branch, and the future that the branch awaits. `child`: the run, if it waits for a single child."""

    wait: WaitCommand
    read: Read | None
    future: asyncio.Future[Any]
    child: str | None = None


class AsyncExecutor(Executor):
    """Performs the operations of one attempt of an `async def` durable function."""

    __slots__ = (
        "_ahead", "_child_ends", "_child_waits", "_closed", "_delivery", "_finished", "_is_resident", "_loading",
        "_loop", "_next_due_s", "_open_waits", "_other_activity", "_outcomes", "_rejected_calls", "_resume_waiters",
        "_resumes", "_services", "_started", "_timers", "_unregistered", "_waits_for_others", "calls", "current",
        "is_discarded", "payload_chars", "plans", "unrecorded",
    )  # fmt: skip

    def __init__(
        self, attempt: Attempt, plans: OperationPlans, services: WorkerServices, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.current = attempt
        self.plans = plans
        self.calls = StepCalls(attempt, plans.history, services, loop)
        self.unrecorded: list[str] = []
        """Keys of the unrecorded operations that a replay has reached."""
        self.payload_chars = len(attempt.claim.args or "")
        """The length of the arguments and of all outcomes that user code has received."""
        self.is_discarded = False
        """Whether the function left memory while it was suspended. Then its code has no attempt that could end."""
        self._is_resident = False
        self._services = services
        self._loop = loop
        self._delivery = OrderedDelivery(loop, plans.history.numbers)
        self._timers: list[TimeoutTimer] = []
        enclosing_timers.set(self._timers)
        self._ahead: WritesAhead | None = None  # spawned children
        self._outcomes = WritesAhead()  # outcomes of waits
        self._loading: asyncio.Task[Any] | None = None
        self._open_waits: dict[str, OpenWait] = {}
        self._unregistered: set[str] = set()  # keys of open waits for children that run in this worker
        self._child_waits: dict[str, str] = {}  # children that are waited for, and the keys of the waits
        self._child_ends: dict[str, ChildOutcome] = {}  # ends of children that aren't waited for yet
        attempt.on_child_end, attempt.resolve_wait = self.child_ended, self.resolve_wait
        self._started = self._finished = 0  # Calls of user code, writes and reads.
        self._other_activity = 0
        self._closed = False
        self._rejected_calls = 0
        self._resume_waiters: list[asyncio.Future[Any]] = []
        self._resumes = 0
        self._next_due_s = float("inf")
        self._waits_for_others = False
        for record in [] if plans.replay_only else plans.history.resolved_waits:
            self._submit_outcome(record)

    # The function

    async def run(self, arguments: Arguments) -> AttemptEnd:
        """Run an attempt of the function until it ends or is suspended."""
        attempt = self.current
        if attempt.claim.ending is not None:
            try:
                return await undo(self, arguments)
            except BaseException as error:  # Usually the attempt was stopped; then its stop reason decides how it ends.
                return attempt.undo_interrupted(error)
        args, kwargs = arguments
        context = Context(self)
        token, context_token = current_scope.set(attempt.body_scope()), active_context.set(context)
        try:
            value = await attempt.signature.fn(context, *args, **kwargs)
            if self._ahead is not None:
                await self._ahead.wait(self._new_future)
            end = self.current.returned(value)
        except BaseException as error:
            end = failed_end(self.current, self.plans, error)
        finally:
            current_scope.reset(token)
            active_context.reset(context_token)
            self.close()
        if self._is_resident:  # Something other than an outcome ended it: the next attempt replays.
            self.is_discarded = True
        return end if self.is_discarded else self._completed(end)

    def _completed(self, end: AttemptEnd) -> AttemptEnd:
        """Write what an attempt leaves behind when it ends or is suspended, and note drift in its end."""
        if progress := self.plans.late_progress():
            self._submit_unawaited(progress)
        suspended = self.current.stop_reason == "suspend"
        if drift := self.plans.history.drift(returned=end.kind == "done", suspended=suspended):
            end.drift = drift.to_json()
        return end

    @property
    def has_stopped(self) -> bool:
        """Whether a branch has stopped in a replay, at an unrecorded operation."""
        return bool(self.unrecorded)

    @property
    def is_idle(self) -> bool:
        """Whether no call of user code, write, read or outcome is under way."""
        return self._started == self._finished and self._delivery.is_idle

    def reopen(self) -> None:
        """Accept calls again, for the compensations after a replay."""
        self._closed = False

    # Operations

    async def perform(self, operation: Operation) -> Any:
        """Perform an operation of the function; return its result to user code."""
        while self._is_resident:
            await self._until_resumed()
        if self._closed or self.current.stop_reason is not None:
            await self._reject_call()
        task = asyncio.current_task(self._loop)  # Given the loop, it needs no system call to find it.
        if task is not self.current.loop_task and task is not None:
            self._delivery.add_branch(task)
        return await self.plans.start(self, operation)

    async def _reject_call(self) -> NoReturn:
        """Cancel code that uses a closed context."""
        self._rejected_calls += 1
        if self._rejected_calls > MAX_REJECTED_CALLS:  # An endless loop would keep the event loop from other runs.
            await self._loop.create_future()
        raise asyncio.CancelledError("the run is suspended or has ended; its context can't be used")

    async def _until_resumed(self) -> None:
        """Wait until the run is claimed again: code that waits for something else may reach the context before."""
        future = self._new_future()
        self._resume_waiters.append(future)
        await future

    def check(self) -> None:
        if self._closed or self.current.stop_reason is not None:
            raise asyncio.CancelledError("the run is suspended or has ended")

    @property
    def activity(self) -> int:
        """A counter that changes with everything that happens in this run."""
        return self._started + self._finished + self._other_activity

    # Futures

    def _new_future(self) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self._loop.create_future()
        self._delivery.futures.add(future)
        return future

    async def _await(self, future: asyncio.Future[Any]) -> Any:
        self._delivery.note_activity()
        try:
            return await future
        finally:
            self._note_delivered(future)

    def _note_delivered(self, awaited: Any) -> None:
        self._delivery.futures.discard(awaited)
        self._other_activity += 1
        if self._open_waits:
            self._suspend_soon()  # This branch may end now, and all others wait.

    def _note_finished(self, *_: Any) -> None:
        self._finished += 1
        if self._open_waits:
            self._suspend_soon()

    async def _track(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Await work that isn't a wait: the run isn't suspended meanwhile."""
        self._started += 1
        self._delivery.note_activity()
        try:
            return await work
        finally:
            self._note_finished()

    async def _await_cancellation(self) -> NoReturn:
        await self._new_future()
        raise asyncio.CancelledError

    # Replay and writes

    async def replay(self, checkpoint: Checkpoint, read: Read | None = None) -> Any:
        n, data = checkpoint.n, None
        self.payload_chars += len(checkpoint.value or "")
        self._delivery.note_activity()
        try:
            # Tasks that user code created before this call must start before it gets its result, as they did live.
            await asyncio.sleep(0)
            self._delivery.expect(n, recorded=True)
            if read is not None:
                try:
                    data = await self._read(read)
                except BaseException:  # This branch was cancelled: the others must not wait for its turn.
                    self._delivery.cancel(n)
                    raise
            value = await self._await(self._deliver(n, data))
            self.plans.history.note_replayed(n)
            return value
        except asyncio.CancelledError:
            if checkpoint.kind == "message":  # It hasn't reached user code: return it to the topic.
                self._withdraw_wait(checkpoint.key)
            raise

    def _deliver(self, n: int, value: Any) -> asyncio.Future[Any]:
        future = self._new_future()
        self._delivery.deliver(n, future, value)
        return future

    async def _read(self, read: Read) -> Any:
        """Run a blocking read in a thread. A replay of many joins loads the ends of all children once."""
        if isinstance(read, ChildRead):
            if self._loading is not None or self.plans.loads_spawned:
                await self._load_spawned()
            if (ends := read.loaded()) is not None:
                return ends
        return await self._read_in_thread(read)

    async def _load_spawned(self) -> None:
        loading = self._loading
        if loading is None:
            loading = self._loading = self._loop.create_task(self._read_in_thread(self.plans.load_spawned))
            self._delivery.add_branch(loading)
        try:
            await asyncio.shield(loading)
        finally:
            if loading.done():
                self._loading = None

    async def _read_in_thread(self, read: Read) -> Any:
        return await self._track(self.calls.in_thread(partial(self._services.read, self.current, read)))

    def write(self, command: Command | NewStepCheckpoint) -> asyncio.Future[Any]:
        self._started += 1
        delivery = self._delivery
        future: asyncio.Future[Any] = self._loop.create_future()
        delivery.futures.add(future)
        n = command.n
        if n is None:
            delivery.note_activity()
        else:
            delivery.expect(n)
        self._services.submit(PendingWrite(self.current, command, self._on_written, True, future))
        return future

    async def write_ahead(self, command: SpawnCommand) -> Any:
        ahead = self._ahead = self._ahead or WritesAhead()
        if ahead.count >= MAX_WRITES_AHEAD:
            return await self.write(command)
        self._delivery.expect(command.n)
        self._services.submit(self._write_ahead(command, ahead))
        return await self._await(self._deliver(command.n, command.value))

    def _submit_outcome(self, record: NewCheckpoint) -> None:
        """Record the outcome of a wait, which reaches the function before it is durable."""
        self._services.submit_ahead(self._write_ahead(record, self._outcomes))

    def _write_ahead(self, command: Command, ahead: WritesAhead) -> PendingWrite:
        ahead.count += 1
        self._started += 1
        return PendingWrite(self.current, command, self._on_written_ahead, True, ahead)

    def _on_written_ahead(self, write: PendingWrite, result: WriteResult) -> None:
        write.context.answered(result)
        self._note_finished()

    def _submit_unawaited(self, command: Command) -> None:
        """Write a command without awaiting its reply, because its content is already durable elsewhere."""
        self._started += 1
        self._services.submit(PendingWrite(self.current, command, self._note_finished, True))

    def _on_written(self, write: PendingWrite, result: WriteResult) -> None:
        self._finished += 1
        if self._open_waits:
            self._suspend_soon()
        future, n = write.context, write.command.n
        if type(result) is Written:
            if n is not None:
                self._delivery.deliver(n, future, result.value)
            else:
                self._delivery.futures.discard(future)
                if not future.done():
                    future.set_result(result.value)
        elif isinstance(result, Exception):
            if n is not None:
                self._delivery.cancel(n)
            self._delivery.futures.discard(future)
            if not future.done():
                future.set_exception(result)
        # Otherwise the run is lost: user code is being cancelled, and nothing more reaches it.

    # Waits

    async def wait(self, wait: WaitCommand, read: Read | None = None, child: str | None = None) -> WaitResult:
        history = self.plans.history
        if self._timers:
            reject_inside_timeout(wait.key, self._timers, self._loop)
        if self._ahead is not None:
            await self._ahead.wait(self._new_future)
        opened = OpenWait(wait, read, self._new_future(), child)
        known = history.open_waits.pop(wait.key, None)
        if child is not None:
            self._child_waits[child] = wait.key
        if child is not None and known is None and wait.key not in history.withdrawn and self._knows_child(child):
            self._wait_for_local_child(opened)
        elif known is not None or wait.key in history.withdrawn:
            self._add_open_wait(opened, None if known is None else known.due_in)
        else:
            self._register_wait(opened)
        try:
            return cast(WaitResult, await self._await(opened.future))
        except asyncio.CancelledError:
            self._withdraw_wait(wait.key)
            raise
        finally:
            self._unregistered.discard(wait.key)
            if child is not None:
                self._child_waits.pop(child, None)

    def _knows_child(self, child: str) -> bool:
        return child in self._child_ends or self._services.is_claimed(child)

    def _wait_for_local_child(self, opened: OpenWait) -> None:
        """Wait for a child that runs in this worker, which reports its end here.

        The wait is registered only before the run is suspended: until then no other process could resolve it. A crash
        loses nothing, because the replay registers the wait and finds how the child ended.
        """
        key = opened.wait.key
        self._unregistered.add(key)
        self._open_waits[key] = opened
        opened.future.add_done_callback(lambda _: self._open_waits.pop(key, None))
        if not self._resolve_by_child_end(opened):
            self._waits_for_others = True
            self._other_activity += 1
            self._suspend_soon()

    def _resolve_by_child_end(self, opened: OpenWait) -> bool:
        """Resolve an open wait if the end of its child is known already."""
        end = None if opened.child is None else self._child_ends.pop(opened.child, None)
        if end is not None:
            self._on_resolved(opened.wait.key, WaitOutcome("children", None), [end])
        return end is not None

    def child_ended(self, end: ChildOutcome) -> None:
        """Take the end of a child that ran in this worker. From any thread."""
        with suppress(RuntimeError):  # the loop was closed
            self._loop.call_soon_threadsafe(self._on_child_end, end)

    def _on_child_end(self, end: ChildOutcome) -> None:
        child, result = end[0], end[2]
        key = self._child_waits.get(child)
        if key in self._open_waits:
            self._on_resolved(key, WaitOutcome("children", None), [end])
        elif not self._closed and len(result or "") <= MAX_KEPT_RESULT_CHARS:
            self._child_ends[child] = end

    def _register_wait(self, opened: OpenWait) -> None:
        # Numbers follow the order of delivery: this one is taken only now that its outcome is expected.
        opened.wait.n = self.plans.next_number()
        self._delivery.expect(opened.wait.n)
        self._started += 1
        write = PendingWrite(self.current, opened.wait, self._on_registered, True, opened)
        # In the next iteration: a branch that was cancelled before this call withdraws its waits first.
        self._loop.call_soon(self._services.submit, write)

    def _on_registered(self, write: PendingWrite, result: WriteResult) -> None:
        opened: OpenWait = write.context
        self._note_finished()
        n = opened.wait.n
        if isinstance(result, WaitRegistered):
            self._delivery.cancel(n)
            self.plans.skip_number(n)
            self._add_open_wait(opened, result.due_in)
        elif isinstance(result, WaitOutcome):
            if opened.wait.kind == "limit":
                self.plans.skip_number(n)  # the permits are taken, which isn't recorded
            end = None if opened.child is None else self._child_ends.pop(opened.child, None)
            self._deliver_outcome(n, opened, result, None if end is None else [end])
        elif isinstance(result, Exception):
            self._delivery.cancel(n)
            if not opened.future.done():
                opened.future.set_exception(result)

    def _add_open_wait(self, opened: OpenWait, due_in: int | None) -> None:
        key = opened.wait.key
        self._open_waits[key] = opened
        opened.future.add_done_callback(lambda _: self._open_waits.pop(key, None))
        self._other_activity += 1
        if due_in is not None:
            self._next_due_s = min(self._next_due_s, self._loop.time() + due_in / MICROS_PER_SECOND)
        if opened.wait.kind != "sleep":
            self._waits_for_others = True
        if self._resolve_by_child_end(opened):
            return
        self._services.watch(self, is_timed=due_in is not None)
        self._suspend_soon()

    def resolve_wait(self, key: str, outcome: WaitOutcome) -> None:
        with suppress(RuntimeError):  # the loop was closed
            self._loop.call_soon_threadsafe(self._on_resolved, key, outcome)

    def _on_resolved(self, key: str, outcome: WaitOutcome, data: Any = None) -> None:
        if self._is_resident:  # `resume` delivers it
            return
        opened = self._open_waits.pop(key, None)
        if opened is None or self._closed:
            return
        self._resumes += 1
        if opened.wait.kind == "limit":  # there may be room: the step tries again
            opened.wait.token = self.plans.run_token
            self._register_wait(opened)
            return
        n = self.plans.next_number()
        self._delivery.expect(n)
        recorded = encode_outcome(opened.wait.kind, outcome)
        is_registered = key not in self._unregistered
        record = NewCheckpoint(*self.plans.run_token, n, key, *recorded, waited=is_registered)
        if self._delivery.has_branches:
            # Its order among the outcomes of other branches must be durable before user code can observe it.
            self._started += 1
            on_written = partial(self._on_outcome_written, opened, outcome, data)
            self._services.submit(PendingWrite(self.current, record, on_written, True))
        else:
            self._submit_outcome(record)
            self._deliver_outcome(n, opened, outcome, data)

    def _on_outcome_written(
        self, opened: OpenWait, outcome: WaitOutcome, data: Any, write: PendingWrite, result: WriteResult
    ) -> None:
        self._note_finished()
        n = cast(NewCheckpoint, write.command).n
        if type(result) is Written:
            self._deliver_outcome(n, opened, outcome, data)
        elif isinstance(result, Exception):
            self._delivery.cancel(n)
            if not opened.future.done():
                opened.future.set_exception(result)

    def _deliver_outcome(self, n: int, opened: OpenWait, outcome: WaitOutcome, data: Any = None) -> None:
        future = opened.future
        self.payload_chars += len(outcome.value or "")
        if opened.read is None or data is not None:
            self._delivery.deliver(n, future, WaitResult(n, outcome, data))
            return
        reading = self._loop.create_task(self._read(opened.read))
        self._delivery.add_branch(reading)

        def done(task: asyncio.Task[Any]) -> None:
            if task.cancelled() or future.done():
                self._delivery.cancel(n)
            elif error := task.exception():
                self._delivery.cancel(n)
                future.set_exception(error)
            else:
                self._delivery.deliver(n, future, WaitResult(n, outcome, task.result()))

        reading.add_done_callback(done)

    def _withdraw_wait(self, key: str) -> None:
        """Withdraw the wait of a branch that was cancelled, if user code cancelled it.

        A suspended run can't withdraw a wait: its function leaves memory, and the next attempt replays.
        """
        if self._is_resident:
            self.discard()
        was_stopped = self._closed or self.current.stop_reason is not None or self.plans.replay_only
        if key not in self.plans.history.withdrawn and not was_stopped:
            self._submit_unawaited(WithdrawCommand(self.plans.run_token, self.plans.next_marker_number(), key))

    # Suspension

    def _suspend_soon(self) -> None:
        """Check in a moment whether the run can be suspended, if nothing but waits is left."""
        if self._open_waits and self._started == self._finished and not (self._closed or self._is_resident):
            delay_s = suspend_delay_s(
                due_in_s=self._next_due_s - self._loop.time(),
                waits_for_others=self._waits_for_others,
                has_free_slots=self._services.has_free_slots(),
                resumes=self._resumes,
                outcomes=self.plans.history.last_number,
            )
            self._loop.call_later(delay_s, self._suspend_if_quiet, self.activity, 0)

    def _suspend_if_quiet(self, activity: int, iterations: int) -> None:
        is_active = self.activity != activity or self._started != self._finished
        if is_active or not self._open_waits or self._closed or self._is_resident:
            return
        if not self._delivery.is_idle:
            self._loop.call_later(BUSY_SUSPEND_DELAY_S, self._suspend_if_quiet, activity, 0)
            return
        if iterations < QUIET_ITERATIONS:
            self._loop.call_soon(self._suspend_if_quiet, activity, iterations + 1)
            return
        if withdrawn := self._open_waits.keys() & self.plans.history.withdrawn:
            self._register_again(withdrawn)
            return
        if self._unregistered:
            self._register_local_waits()
            return
        if self._timers and pending_timers(self._timers, self._loop):
            self._reject_open_waits()
            return
        self.current.waits_for = sorted(self._open_waits)
        if not self._services.suspend(self):
            self.close()
            self._services.stop(self.current, "suspend")

    def suspend(self) -> AttemptEnd:
        """Stay in memory without an attempt, until `resume` or `discard`; return the end of the attempt."""
        self._is_resident = True
        return self._completed(self.current.suspended())

    def resume(self, attempt: Attempt) -> None:
        """Continue as the next attempt of the run, with the outcomes of the waits that were resolved meanwhile."""
        last, self.current = self.current, attempt
        attempt.loop_task, attempt.stop_signal = last.loop_task, last.stop_signal
        attempt.plans, attempt.on_child_end = self.plans, self.child_ended
        attempt.resolve_wait = self.resolve_wait
        self.calls.attempt, self.calls.claim = attempt, attempt.claim
        self.plans.continue_with(attempt.claim)
        self._is_resident = False
        self._resumes = 0
        self._next_due_s = float("inf")
        waits = attempt.loaded_history.waits if attempt.loaded_history is not None else []
        resolved = [wait for wait in waits if wait.outcome is not None]
        if sum(wait.kind == "children" for wait in resolved) > 1:
            self.plans.reload_spawned()
        for wait in waits:
            if wait.outcome is not None:
                self._on_resolved(wait.key, wait.outcome)
            elif wait.due_in is not None:
                self._next_due_s = min(self._next_due_s, self._loop.time() + wait.due_in / MICROS_PER_SECOND)
        if self._open_waits:
            self._services.watch(self, is_timed=self._next_due_s < float("inf"))
            self._suspend_soon()
        waiters, self._resume_waiters = self._resume_waiters, []
        for future in waiters:
            self._delivery.futures.discard(future)
            if not future.done():
                future.set_result(None)

    def discard(self) -> None:
        """Remove a suspended function from memory."""
        self.is_discarded = True
        self._is_resident = False
        self.close()
        if self.current.loop_task is not None:
            self.current.loop_task.cancel()

    def _register_again(self, keys: set[str]) -> None:
        """Register waits that user code cancelled in an earlier attempt and doesn't cancel in this one."""
        self.plans.history.withdrawn -= keys
        for key in sorted(keys):
            self._register_wait(self._open_waits.pop(key))

    def _register_local_waits(self) -> None:
        """Register the waits for children that run in this worker, before the run is suspended."""
        keys, self._unregistered = self._unregistered, set()
        for key in sorted(keys):
            self._register_wait(self._open_waits.pop(key))

    def _reject_open_waits(self) -> None:
        """Fail all waits, because a timeout of the event loop is pending and would not survive the suspension."""
        for key, opened in list(self._open_waits.items()):
            self._withdraw_wait(key)
            if not opened.future.done():
                opened.future.set_exception(enclosing_timeout_error(key))

    def close(self) -> None:
        """Cancel everything that still waits in this context, and accept no more calls."""
        self._closed = True
        for future in list(self._delivery.futures):
            future.cancel()
        self._delivery.cancel_branches()

    async def restart(self, args: str) -> NoReturn:
        if self._ahead is not None:
            await self._ahead.wait(self._new_future)
        self.current.restart_args = args
        self.close()
        self._services.stop(self.current, "restart")
        await self._await_cancellation()

    async def stop_at_unrecorded(self, key: str) -> NoReturn:
        if key not in self.plans.history.withdrawn:
            self.unrecorded.append(key)
        self._other_activity += 1
        await self._await_cancellation()

    # Steps

    def in_executor(self, step: Step, executor: str) -> Step:
        info, executors = copy.copy(step.function_info), self._services.executors
        info.is_async = True
        executors.check(executor)

        async def run(*args: Any, **kwargs: Any) -> Any:
            return await executors.call(executor, remote_call(step.name, step.fn, args, kwargs))

        return msgspec.structs.replace(step, fn=update_wrapper(run, step.fn), function_info=info)

    async def run_step(self, step: Step, key: str) -> StepResult:
        calls, attempt = self.calls, self.current
        if self._ahead is not None:
            await self._ahead.wait(self._new_future)
        if attempt.pause_requested and self._started == self._finished:
            self._services.stop(attempt, "release")
            await self._new_future()  # until the attempt is cancelled
        if self._delivery.has_branches:
            self._delivery.note_activity()
        self._started += 1
        started_ns = monotonic_ns()
        token = current_scope.set(calls.scope(key) if calls.history.undone else calls.new_scope(key))
        span = None if attempt.telemetry is None else attempt.telemetry.step(step.name, key)
        result: StepResult | None = None
        try:
            if step.timeout is None and step.function_info.is_async:
                try:
                    result = step_result(
                        step, await step.fn(*step.args, **step.kwargs), calls.payloads, calls.claim, key
                    )
                except BaseException as error:
                    if calls.was_stopped(error):
                        raise
                    result = await calls.run(self, step, key, started_ns, error)
            else:
                result = await calls.run(self, step, key, started_ns)
            result.duration_us = (monotonic_ns() - started_ns) // 1000
            if result.text is not None:
                self.payload_chars += len(result.text)
            return result
        finally:
            if span is not None:
                span.end(result)
            current_scope.reset(token)
            self._finished += 1
            if self._open_waits:
                self._suspend_soon()

    def record_late(self, key: str, result: StepResult) -> None:
        """Record a step with an undo whose thread ended after its caller was cancelled, so that it is undone."""
        if result.error is None:
            self._submit_unawaited(cast(NewCheckpoint, self.plans.step_record(key, result, has_undo=True)))

    async def run_transaction(self, operation: Transaction, key: str) -> StepResult:
        if self._ahead is not None:
            await self._ahead.wait(self._new_future)
        # The transaction commits on another connection: its checkpoint must not be durable before earlier outcomes.
        await self._outcomes.wait(self._new_future)
        call = TransactionCall(operation, key, self.plans, self._delivery, self._loop, self.calls)
        transact = partial(self._services.transact, self.current, call.record, call.run)
        result = await call.result(self, self._track(self.calls.transaction_in_thread(transact, key)))
        if result.error is None:
            if result.text is None:
                return await self._await_cancellation()
            await self._await(self._deliver(result.n, None))
        return result
