"""The runner executes user code: coroutines on the event loop, plain functions in threads or processes.

It starts claimed attempts, enforces their timeouts, stops them on request, and submits each attempt's end to the write
queue. It issues no SQL.
"""

from __future__ import annotations

import asyncio
import copy
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from msgspec.structs import replace

from holdfast.engine.attempt import Attempt, Cancellable, SlotPool, StopReason, WorkerState, slot_pools
from holdfast.engine.batches import BatchCall, batch_calls
from holdfast.engine.durable.async_executor import AsyncExecutor
from holdfast.engine.durable.enclosing_timeouts import watch_timers
from holdfast.engine.durable.executor import Arguments
from holdfast.engine.durable.history import RecordedHistory
from holdfast.engine.durable.plans import OperationPlans
from holdfast.engine.durable.resident import ResidentFunctions
from holdfast.engine.durable.sync_executor import SyncExecutor
from holdfast.engine.executors import Executors
from holdfast.engine.hooks import Hooks
from holdfast.engine.middleware import Call, wrap_function, wrap_operation
from holdfast.engine.processes.pool import ProcessPool
from holdfast.engine.remote_call import remote_call
from holdfast.engine.services import WorkerServices
from holdfast.engine.threads import ABANDON_AFTER_S, ThreadCall, ThreadPool, TimerThread
from holdfast.engine.write_queue import PendingEnd, WriteQueue
from holdfast.errors import EncryptionKeysUnavailable, PayloadError, TaskError
from holdfast.model.clock import MICROS_PER_SECOND
from holdfast.model.codec import MAX_PAYLOAD_BYTES, UnreadableText
from holdfast.store import AttemptEnd
from holdfast.store.commands import RunToken
from holdfast.store.limits import can_read_limits
from holdfast.task.resources import current_resources
from holdfast.task.scope import current_scope
from holdfast.telemetry import log

if TYPE_CHECKING:
    from holdfast.engine.run_logs import LogCollector

STALL_S = 0.25
"""An event loop that takes longer than this to run a callback is stalled."""
MAX_LEFTOVER_RUNS = 20
"""How many runs with leftover code a worker reports at most."""
SHRINK_INTERVAL_S = 5.0
"""Threads that were not needed for this long end."""
THREAD_END_TIMEOUT_S = 2.0
"""How long a stop waits for idle threads to release what they hold, such as database connections."""
CLEANUP_GRACE_S = 1.0
"""How long a cancelled coroutine may take to clean up before it counts as unresponsive."""


class LoopMonitor:
    """Measures how long the event loop takes to run a callback that another thread schedules."""

    def __init__(self) -> None:
        self.on_recovered: Callable[[], None] = lambda: None
        """Called on the loop when it has answered after a stall."""
        self._sent_at: float | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self.thread: int | None = None
        """The id of the loop's thread, known after its first answer."""

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Measure this loop from now on."""
        self.loop = loop
        self.ping()

    def ping(self) -> None:
        """Schedule a callback, unless one is pending. From any thread."""
        if self._sent_at is None and self.loop is not None:
            self.sent()
            try:
                self.loop.call_soon_threadsafe(self.answered)
            except RuntimeError:  # the loop is closed: the worker has stopped
                self._sent_at = None

    def sent(self) -> None:
        """Start a measurement: the caller is about to schedule a callback that calls `answered`."""
        if self._sent_at is None:
            self._sent_at = time.monotonic()

    def answered(self) -> None:
        """End the measurement. Called on the loop, by the scheduled callback."""
        self.thread = threading.get_ident()
        sent_at, self._sent_at = self._sent_at, None
        if sent_at is not None and time.monotonic() - sent_at > STALL_S:
            self.on_recovered()

    @property
    def lag(self) -> float:
        """For how many seconds the scheduled callback has been waiting for the loop; 0.0 if none is pending."""
        sent_at = self._sent_at
        return 0.0 if sent_at is None else time.monotonic() - sent_at

    @property
    def is_stalled(self) -> bool:
        """Whether the loop lags so much that it must not be given more work."""
        sent_at = self._sent_at
        return sent_at is not None and time.monotonic() - sent_at > STALL_S


class Runner:
    """Executes attempts within a number of slots."""

    def __init__(
        self,
        concurrency: int,
        threads: int,
        state: WorkerState,
        queue: WriteQueue,
        timer_thread: TimerThread,
        monitor: LoopMonitor,
        hooks: Hooks,
        residents: ResidentFunctions,
        executors: Executors,
        max_payload_bytes: int = MAX_PAYLOAD_BYTES,
        queue_slots: Mapping[str, int] | None = None,
    ) -> None:
        self.concurrency = concurrency
        self.pools = slot_pools(queue_slots, concurrency, threads)
        """The slots by queue, if queues have slots of their own; None: those that the others share."""
        self.threads = sum(pool.threads for pool in self.pools.values()) or min(threads, concurrency)
        """How many attempts may execute in threads at the same time. Steps of async functions don't count."""
        self.process_slots = os.cpu_count() or 1
        self.busy_slots = 0
        self.services: WorkerServices
        """What durable functions need from the worker; set before the first attempt starts."""
        self.on_free_slot: Callable[[], None] = lambda: None
        """Called when a slot is free for another run. From any thread."""
        self._state = state
        self._queue = queue
        self._timer_thread = timer_thread
        self._monitor = monitor
        self.residents = residents
        self.executors = executors
        self.log_collector: LogCollector | None = None
        """Collects the log lines of attempts, if they are kept."""
        self._busy_thread_slots = 0
        self._busy_process_slots = 0
        self._active: set[Attempt] = set()  # attempts whose user code runs, or is about to
        self._finished_on_loop: list[Attempt] = []  # in this iteration of the event loop; they hold their slots
        self._lock = threading.Lock()
        self._middleware = hooks.middleware
        self._resources = hooks.resources
        self._threads = ThreadPool(hooks.around_calls, hooks.at_thread_end)
        self._processes = ProcessPool(hooks.around_calls, hooks.at_thread_end, max_payload_bytes)
        self._shrinks_threads = False
        self._loop: asyncio.AbstractEventLoop | None = None

    def set_event_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Set the event loop for coroutines and their timers."""
        self._loop = self.residents.loop = loop
        self._monitor.watch(loop)
        watch_timers(loop)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        assert self._loop is not None, "the runner has no event loop yet"
        return self._loop

    def free_slots(self, pool: SlotPool | None = None) -> int:
        """Return how many more attempts may start.

        An attempt frees its slot when its code stops, while its end is still being written; the next runs are claimed
        meanwhile. The second bound limits how many runs a crash can repeat to less than twice the concurrency. With a
        concurrency of one, nothing starts before the end of the previous attempt is durable.
        """
        if pool is not None:
            return pool.free()
        if self.pools:
            return sum(max(each.free(), 0) for each in self.pools.values())
        claimed = len(self._state) - self._state.batched
        return min(self.concurrency - self.busy_slots, 2 * self.concurrency - 1 - claimed)

    def free_thread_slots(self, pool: SlotPool | None = None) -> int:
        """Return how many more attempts may start in threads."""
        if pool is not None:
            return pool.free_threads()
        if self.pools:
            return sum(max(each.free_threads(), 0) for each in self.pools.values())
        return min(self.free_slots(), self.threads - self._busy_thread_slots)

    def free_process_slots(self, pool: SlotPool | None = None) -> int:
        """Return how many more attempts may start in processes, of which there are as many as cores.

        A queue with slots of its own may always have one, whatever the others have.
        """
        free = self.process_slots - self._busy_process_slots
        if pool is None:
            return min(self.free_slots(), free)
        return min(pool.free(), max(free, 1 - pool.busy_processes))

    def notify_if_free(self) -> None:
        """Call `on_free_slot` if a slot is free."""
        if self.free_slots() > 0:
            self.on_free_slot()

    def close(self) -> None:
        self.residents.close()
        self._threads.close(THREAD_END_TIMEOUT_S)
        self._processes.close()
        self.executors.close()

    def run_in_thread(self, call: Callable[[], None]) -> ThreadCall:
        handle = self._threads.run(call)
        if not self._shrinks_threads:
            self._shrinks_threads = True
            self._timer_thread.call_later(SHRINK_INTERVAL_S, self._shrink_threads)
        return handle

    def _shrink_threads(self) -> None:
        self._shrinks_threads = self._threads.shrink()
        if self._shrinks_threads:
            self._timer_thread.call_later(SHRINK_INTERVAL_S, self._shrink_threads)

    @property
    def lost_threads(self) -> int:
        """The number of threads whose code was abandoned and is still running."""
        return self._threads.lost

    def leftover_runs(self, claimed: Mapping[str, Attempt]) -> list[str]:
        """Return runs whose code still runs here although their attempt has ended or was lost.

        An attempt that ends before its code does is named at once, not only when its code is abandoned: until the
        database knows of it, a crash that this code causes would be charged to another run.
        """
        with self._lock:
            active = list(self._active)
        leftover = {
            each.claim.id
            for each in active
            if not each.stopped and (each.reported or each.abandoned or claimed.get(each.claim.id) is not each)
        }
        return sorted(leftover)[:MAX_LEFTOVER_RUNS]

    # Starting

    def start(self, attempts: list[Attempt]) -> bool:
        """Start attempts. Each holds a slot until its code stops, and those of a batch hold one together.

        Return False if some had to be released.
        """
        if self.log_collector is not None:
            self.log_collector.open(attempts)
        batched = [attempt for attempt in attempts if attempt.batched]
        if batched:
            started = [self._start_batch(call) for call in batch_calls(batched)]
            others = [attempt for attempt in attempts if not attempt.batched]
            return (not others or self.start(others)) and all(started)
        with self._lock:
            self.busy_slots += len(attempts)
            self._active.update(attempts)
            self._busy_thread_slots += sum(attempt.run_in == "thread" for attempt in attempts)
            self._busy_process_slots += sum(attempt.run_in == "process" for attempt in attempts)
            for attempt in attempts if self.pools else ():
                if attempt.slots is not None:
                    attempt.slots.count(attempt, 1)
        on_loop = [attempt for attempt in attempts if attempt.run_in == "loop"]
        if on_loop:
            self._monitor.sent()
            self.loop.call_soon_threadsafe(self._start_on_loop, on_loop)
        started = [self._start_in_thread(attempt) for attempt in attempts if attempt.run_in != "loop"]
        return all(started)

    def _start_batch(self, call: BatchCall) -> bool:
        with self._lock:
            self.busy_slots += 1
            self._active.update(call.attempts)
            self._busy_thread_slots += call.run_in == "thread"
            if (pool := call.attempts[0].slots) is not None:
                pool.count(call.attempts[0], 1)
        if call.run_in == "loop":
            self._monitor.sent()
            self.loop.call_soon_threadsafe(self._start_batch_on_loop, call)
            return True
        for attempt in call.attempts:
            self._set_timer(attempt, self._timer_thread.call_later)
        try:
            call.thread = self.run_in_thread(partial(self._run_batch_in_thread, call))
        except RuntimeError as error:
            first = call.attempts[0]
            log.thread_not_started(first.claim.id, first.task.name, first.claim.attempt, error)
            for attempt in call.attempts:
                self._finish(attempt, attempt.released())
            return False
        return True

    def _start_batch_on_loop(self, call: BatchCall) -> None:
        self._monitor.answered()
        for attempt in call.attempts:
            self._set_timer(attempt, self.loop.call_later)
        call.loop_task = self.loop.create_task(self._run_batch_on_loop(call))
        if len(call.attempts) == 1:  # it is to blame if it blocks the event loop
            call.attempts[0].loop_task = call.loop_task

    async def _run_batch_on_loop(self, call: BatchCall) -> None:
        members, items = self._begin_batch(call)
        if not members:
            return
        try:
            ends = call.ends_after(members, await members[0].signature.fn(items))
        except BaseException as error:
            ends = call.ends_after_error(members, error)
        self._finish_batch(ends)

    def _run_batch_in_thread(self, call: BatchCall) -> None:
        members, items = self._begin_batch(call)
        if not members:
            return
        try:
            ends = call.ends_after(members, members[0].signature.fn(items))
        except BaseException as error:
            ends = call.ends_after_error(members, error)
        self._finish_batch(ends)

    def _begin_batch(self, call: BatchCall) -> tuple[list[Attempt], list[Any]]:
        """Decode the arguments; finish the members that can't start and return the others."""
        members, items = [], []
        for attempt in reversed(call.attempts):  # logs are attributed to the first one
            attempt.started = True
            attempt.enter_context()
        for attempt in call.attempts:
            arguments = self._arguments(attempt)
            if isinstance(arguments, AttemptEnd):
                self._finish(attempt, arguments)
            else:
                members.append(attempt)
                items.append(arguments[0][0])
        current_scope.set(call.scope())
        return members, items

    def _finish_batch(self, ends: Iterable[tuple[Attempt, AttemptEnd]]) -> None:
        for attempt, end in ends:
            self._cancel_timer(attempt)
            self._finish(attempt, end)

    def _start_on_loop(self, attempts: list[Attempt]) -> None:
        self._monitor.answered()
        for attempt in attempts:
            self._set_timer(attempt, self.loop.call_later)
            if attempt.resident is None:
                attempt.loop_task = self.loop.create_task(self._run_on_loop(attempt))
            else:
                self._resume(attempt, attempt.resident)

    def _resume(self, attempt: Attempt, executor: AsyncExecutor) -> None:
        """Let a resident function continue as this attempt."""
        attempt.resident = None
        end = _end_before_start(attempt)
        if end is None and executor.is_discarded:  # its code has ended since: another claim loads the whole history
            end = attempt.released()
        if end is not None:
            executor.discard()
            self._cancel_timer(attempt)
            self._finish(attempt, end)
            return
        with attempt.lock:
            attempt.started = True
        if attempt.telemetry is not None:
            attempt.telemetry.begin()
        if attempt.logs is not None:
            attempt.logs.continue_with(attempt)
        executor.resume(attempt)

    def _start_in_thread(self, attempt: Attempt) -> bool:
        """Start an attempt in a thread, which may wait for a process. Release it if no thread can be started."""
        self._set_timer(attempt, self._timer_thread.call_later)
        try:
            run = self._run_in_thread if attempt.run_in == "thread" else self._run_in_process
            attempt.thread = self.run_in_thread(partial(run, attempt))
        except RuntimeError as error:
            log.thread_not_started(attempt.claim.id, attempt.task.name, attempt.claim.attempt, error)
            self._finish(attempt, attempt.released())
            return False
        return True

    def _set_timer(self, attempt: Attempt, call_later: Callable[[float, Callable[[], None]], Cancellable]) -> None:
        timeout, deadline = attempt.timeout, attempt.claim.deadline_in
        if timeout is None and deadline is None:
            return
        limits: list[tuple[int | None, StopReason]] = [(timeout, "timeout"), (deadline, "deadline")]
        seconds, reason = min((micros / MICROS_PER_SECOND, reason) for micros, reason in limits if micros is not None)
        attempt.timer = call_later(max(seconds, 0.0), partial(self.stop, [attempt], reason))

    async def _run_on_loop(self, attempt: Attempt) -> None:
        attempt.started = True
        attempt.enter_context()
        call = self._arguments(attempt)
        executor: AsyncExecutor | None = None
        if type(call) is AttemptEnd:  # isinstance() costs four times as much where it is false
            end = call
        elif attempt.durable:
            executor = AsyncExecutor(attempt, self._plans(attempt), self.services, self.loop)
            try:
                end = await executor.run(call)
            except GeneratorExit as error:  # raised by user code through a future: asyncio throws it in here
                end = executor.current.failed(error)
            if executor.is_discarded:
                self.residents.reject(executor.current)
                return
            attempt = executor.current  # a resident function ends in a later attempt than it began
        else:
            current_scope.set(attempt.job_scope())
            try:
                end = attempt.returned(await attempt.signature.fn(*call[0], **call[1]))
            except BaseException as error:
                end = attempt.failed(error)
        if attempt.timer is not None:
            attempt.timer.cancel()
        if executor is not None and executor.calls.threads:
            attempt.on_threads_done = partial(self._finish, attempt, end)
            self._report_while_threads_run(attempt, end)
            self.loop.call_later(ABANDON_AFTER_S, executor.calls.abandon_threads)
        else:
            self._finish(attempt, end)

    def _run_in_thread(self, attempt: Attempt) -> None:
        attempt.enter_context()
        call = self._arguments(attempt)
        if type(call) is AttemptEnd:  # isinstance() costs four times as much where it is false
            end = call
        elif attempt.durable:
            executor = SyncExecutor(attempt, self._plans(attempt), self.services)
            end = executor.run(call)
            if executor.threads:
                self._report_while_threads_run(attempt, end)
                executor.wait_for_threads()
        else:
            current_scope.set(attempt.job_scope())
            try:
                end = attempt.returned(attempt.signature.fn(*call[0], **call[1]))
            except BaseException as error:
                end = attempt.failed(error)
        self._finish(attempt, end)
        self._cancel_timer(attempt)

    def _run_in_process(self, attempt: Attempt) -> None:
        """Execute an attempt in a process. Runs in a thread that waits for the process."""
        attempt.enter_context()
        end = _end_before_start(attempt)
        if end is None:
            try:
                end = self._processes.run(attempt)
            except BaseException as error:  # no process could be started
                end = attempt.failed(error)
        self._finish(attempt, end)
        self._cancel_timer(attempt)

    def _cancel_timer(self, attempt: Attempt) -> None:
        if attempt.timer is not None:  # an uncancelled timer would keep the arguments in memory until it fires
            attempt.timer.cancel()

    def _plans(self, attempt: Attempt) -> OperationPlans:
        claim = attempt.claim
        history = RecordedHistory(attempt.loaded_history, RunToken(claim.id, claim.seq, claim.fence, claim.generation))
        replay_only = claim.ending is not None
        journal = self.services.store.journal
        attempt.plans = OperationPlans(claim, history, self.services.client, journal, replay_only=replay_only)
        attempt.plans.on_event = None if attempt.telemetry is None else attempt.telemetry.link
        if self._middleware:
            attempt.plans.around_step = partial(self._wrap_step, attempt)
        return attempt.plans

    def _wrap_step(self, attempt: Attempt, operation: Any) -> Any:
        """Return a step or transaction with the application's middleware around its function."""
        claim = attempt.claim
        call = Call(attempt.task.name, UUID(claim.id), claim.attempt, operation.name)
        return wrap_operation(operation, tuple(self._middleware), call)

    async def _call_in_executor(
        self, executor: str, task: str, fn: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Any:
        return await self.executors.call(executor, remote_call(task, fn, args, kwargs))

    def _arguments(self, attempt: Attempt) -> Arguments | AttemptEnd:
        """Decode the arguments, or return the end of an attempt that can't start."""
        end = _end_before_start(attempt)
        if end is not None:
            return end
        executor = attempt.task.declaration.executor
        if executor is not None:
            attempt.signature = signature = copy.copy(attempt.signature)
            signature.fn = partial(self._call_in_executor, executor, attempt.task.name, signature.fn)
        if self._middleware:
            call = Call(attempt.task.name, UUID(attempt.claim.id), attempt.claim.attempt)
            on_loop, signature = attempt.run_in == "loop", copy.copy(attempt.signature)
            signature.fn = wrap_function(signature.fn, tuple(self._middleware), call, on_loop=on_loop)
            attempt.signature = signature
        current_resources.set(self._resources)
        try:
            arguments: Arguments = attempt.signature.decode(attempt.claim.args)
            return arguments
        except (TaskError, PayloadError) as error:
            return attempt.invalid_arguments(error)
        except BaseException as error:  # raised by a validator in user code
            return attempt.failed(error)

    # Ending

    def suspend(self, executor: AsyncExecutor) -> bool:
        """Suspend a function that waits and keep it in memory. Return False if that isn't possible. On the loop."""
        attempt = executor.current
        if not self.residents.accepts(executor):
            return False
        with attempt.lock:
            if attempt.stop_reason is not None or attempt.reported:
                return False
            attempt.stop_reason = "suspend"
        self._cancel_timer(attempt)
        self.residents.add(executor)
        self._finish(attempt, executor.suspend())
        return True

    def _finish(self, attempt: Attempt, end: AttemptEnd) -> None:
        """Report the end of an attempt whose code has stopped, and free its slot.

        `end` is what the code returned or raised. If the attempt was asked to stop before, the reason for that decides
        instead, except that a run which completed before a stopping worker could release it is done.
        """
        with attempt.lock:
            attempt.stopped = True
            holds_slot = not attempt.abandoned
            report: AttemptEnd | None = None
            if not attempt.reported:
                reason = attempt.stop_reason
                if reason is None or (reason == "release" and end.kind == "done"):
                    report = end
                else:
                    report = _stopped_end(attempt, reason, end)
                attempt.reported = report is not None
        if report is not None:
            self._submit_end(attempt, report)
        else:
            self._submit_release(attempt)
        # Breaks reference cycles, which only the garbage collector could free.
        attempt.plans = attempt.on_child_end = attempt.resolve_wait = None
        if holds_slot and attempt.run_in == "loop":
            self._free_slot_after_iteration(attempt)
        else:
            self._free_slots([attempt] if holds_slot else [], [attempt])

    def _report_while_threads_run(self, attempt: Attempt, end: AttemptEnd) -> None:
        """Report the end of a durable function while threads of timed-out steps are still running.

        The run may start again when these threads have ended or were abandoned.
        """
        with attempt.lock:
            report: AttemptEnd | None = replace(end, still_running=1)
            if attempt.stop_reason is not None:
                report = _stopped_end(attempt, attempt.stop_reason, end, still_running=True)
            attempt.reported = report is not None
        if report is not None:
            self._submit_end(attempt, report)

    def _submit_end(self, attempt: Attempt, end: AttemptEnd) -> None:
        end = attempt.finalize(end, self.services.store.payloads)
        if attempt.telemetry is not None:
            attempt.telemetry.end(end)
        if attempt.logs is not None:
            attempt.logs.close()
        size = len(end.result or "") + len(end.error or "") + len(end.args or "")
        self._queue.submit(PendingEnd(attempt, end, size))

    def _submit_release(self, attempt: Attempt) -> None:
        """Release an attempt whose run has ended or was lost before its code stopped."""
        if attempt.telemetry is not None:
            attempt.telemetry.end(None)
        if attempt.logs is not None:
            attempt.logs.discard(attempt)
        self._queue.submit(PendingEnd(attempt, None))

    def _free_slot_after_iteration(self, attempt: Attempt) -> None:
        """Free the slots of all attempts that finish in this iteration of the event loop together, when it ends."""
        if not self._finished_on_loop:
            self.loop.call_soon(self._free_finished)
        self._finished_on_loop.append(attempt)

    def _free_finished(self) -> None:
        finished, self._finished_on_loop = self._finished_on_loop, []
        self._free_slots(finished, finished)

    def _free_slots(self, attempts: list[Attempt], stopped: list[Attempt]) -> None:
        """Free the slots of attempts. `stopped`: those whose code doesn't run any more."""
        with self._lock:
            self._active.difference_update(stopped)
            # The last member of a batch frees its slot.
            attempts = [each for each in attempts if each.batch is None or each.batch.leave(each)]
            self.busy_slots -= len(attempts)
            for attempt in attempts:
                if attempt.run_in == "thread":
                    self._busy_thread_slots -= 1
                elif attempt.run_in == "process":
                    self._busy_process_slots -= 1
                if attempt.slots is not None:
                    attempt.slots.count(attempt, -1)
        if attempts:
            self.notify_if_free()

    # Stopping

    def stop(self, attempts: Iterable[Attempt], reason: StopReason) -> None:
        """Ask user code to stop. Coroutines are cancelled and processes killed; threads only see the stop signal.

        From any thread.
        """
        stopping = [attempt for attempt in attempts if attempt.request_stop(reason)]
        on_loop = [attempt for attempt in stopping if attempt.run_in == "loop"]
        if on_loop:
            self.loop.call_soon_threadsafe(self._cancel, on_loop)
        for attempt in stopping:
            attempt.kill_process()
            if attempt.batch is not None:
                attempt.batch.all_must_stop()
            if reason in ("suspend", "restart") and attempt.run_in == "thread":
                continue  # the request comes from the attempt's own thread, which ends now
            if attempt.run_in != "loop" and reason != "release":  # a stopping worker decides itself when to give up
                grace_s = 0.0 if attempt.run_in == "thread" else CLEANUP_GRACE_S
                self._timer_thread.call_later(grace_s, partial(self.end_unresponsive, attempt))

    def _cancel(self, attempts: list[Attempt]) -> None:
        for attempt in attempts:
            if attempt.batch is not None:
                if attempt.started and attempt.batch.all_must_stop() and attempt.batch.loop_task is not None:
                    attempt.batch.loop_task.cancel()
            elif attempt.started and attempt.loop_task is not None:
                attempt.loop_task.cancel()
            if attempt.stop_reason != "release":
                self.loop.call_later(CLEANUP_GRACE_S, self.end_unresponsive, attempt)

    def end_unresponsive(self, attempt: Attempt, still_running: bool = True) -> None:
        """Report the end of an attempt whose code ignores the request to stop.

        While the code is still running, no worker may start the run again. Unless the worker is stopping, it waits a
        moment longer, then abandons the code.
        """
        with attempt.lock:
            if attempt.stopped or attempt.reported or attempt.stop_reason is None:
                return
            reason = attempt.stop_reason
            end = attempt.end_when_stopped(reason, still_running=still_running)
            attempt.reported = end is not None
        if end is not None:
            self._submit_end(attempt, end)
        if reason == "release":
            log.attempt_still_running(
                attempt.claim.id, attempt.task.name, attempt.claim.attempt, **attempt.log_fields()
            )
        else:
            self._timer_thread.call_later(ABANDON_AFTER_S, partial(self.abandon, attempt))

    def abandon(self, attempt: Attempt) -> None:
        """Let the run continue without code that doesn't stop: free its slot and count its thread as lost."""
        with attempt.lock:
            if attempt.stopped or attempt.abandoned:
                return
            attempt.abandoned = True
        if attempt.thread is not None:
            attempt.thread.abandon()
        elif attempt.batch is not None and attempt.batch.thread is not None and attempt.batch.is_abandoned:
            attempt.batch.thread.abandon()
        log.attempt_abandoned(
            attempt.claim.id, attempt.task.name, attempt.claim.attempt, self.lost_threads, **attempt.log_fields()
        )
        self._submit_release(attempt)
        self._free_slots([attempt], [])

    # A blocked event loop

    def unstarted(self, attempts: Iterable[Attempt]) -> list[Attempt]:
        """Return the attempts that wait for the event loop to start them."""
        return [each for each in attempts if each.run_in == "loop" and not each.started and not each.reported]

    def end_on_blocked_loop(
        self, attempts: Iterable[Attempt], end_of: Callable[[Attempt], AttemptEnd]
    ) -> list[Attempt]:
        """End attempts that the blocked event loop can't end, from another thread; return those that had not ended.

        Their code is cancelled when the loop runs again; until then it can't do anything.
        """
        ended = []
        for attempt in attempts:
            with attempt.lock:
                if attempt.stopped or attempt.reported:
                    continue
                attempt.stop_reason = "lost"
                attempt.reported = True
            ended.append(attempt)
            self._submit_end(attempt, end_of(attempt))
        if ended:
            self.loop.call_soon_threadsafe(self._cancel, ended)
        return ended


def _stopped_end(
    attempt: Attempt, reason: StopReason, end: AttemptEnd, *, still_running: bool = False
) -> AttemptEnd | None:
    """Return the end of an attempt that was asked to stop, with the drift that was found when its code ended."""
    stopped = attempt.end_when_stopped(reason, still_running=still_running)
    if stopped is not None:
        stopped.drift = end.drift
    return stopped


def _end_before_start(attempt: Attempt) -> AttemptEnd | None:
    """Return the end of an attempt that must not start, or None."""
    if attempt.stop_reason is not None:
        return attempt.released()
    if attempt.claim.deadline_in is not None and attempt.claim.deadline_in <= 0:
        return attempt.deadline_exceeded()
    if attempt.claim.limits is not None and not can_read_limits(attempt.claim.limits):
        return attempt.invalid_arguments(PayloadError("the run's stored limits are corrupt; enqueue it again"))
    unreadable = attempt.corrupt_history
    if isinstance(attempt.claim.args, UnreadableText):
        unreadable = attempt.claim.args.error
    if isinstance(unreadable, EncryptionKeysUnavailable):
        return attempt.failed(unreadable, "unreadable")
    if unreadable is not None:
        return attempt.invalid_arguments(unreadable)
    return None
