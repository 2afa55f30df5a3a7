"""Runs author code: coroutines on the event loop, plain functions in threads or processes. Knows nothing of SQL."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from msgspec.structs import replace

from holdfast.engine.attempt import Attempt, Cancellable, Order
from holdfast.engine.durable.async_executor import AsyncExecutor, watch_timers
from holdfast.engine.durable.history import RecordedHistory
from holdfast.engine.durable.plans import OperationPlans
from holdfast.engine.durable.replay import Arguments, run_async, run_sync
from holdfast.engine.durable.sync_executor import SyncExecutor
from holdfast.engine.event_loop import LoopMonitor
from holdfast.engine.processes.pool import Processes
from holdfast.engine.services import WorkerServices
from holdfast.engine.threads import ABANDON_AFTER_S, ThreadCall, Threads, TimerThread
from holdfast.errors import PayloadError, TaskError
from holdfast.model.clock import MICROS_PER_SECOND
from holdfast.store import End
from holdfast.store.commands import RunToken
from holdfast.store.limits import can_read_limits
from holdfast.task.scope import Scope, current_scope
from holdfast.telemetry import log

MAX_LEFTOVER = 20
"""How many runs with leftover code a worker reports at most."""
CLEAN_UP = 1.0
"""How long a cancelled coroutine may take to clean up before it counts as unstoppable."""


class Runner:
    """Starts attempts, ends them, and counts slots. `ended` gets each end, `let_go` each attempt whose run had ended
    or was lost before its author code did."""

    def __init__(
        self,
        concurrency: int,
        ended: Callable[[Attempt, End], None],
        let_go: Callable[[Attempt], None],
        slot_freed: Callable[[], None],
        in_hand: Callable[[], int],
        timer_thread: TimerThread,
        monitor: LoopMonitor,
        between: Sequence[Callable[[], None]] = (),
    ) -> None:
        self.concurrency = concurrency
        self._timer_thread = timer_thread
        self._monitor = monitor
        self._ended = ended
        self._let_go = let_go
        self._slot_freed = slot_freed
        self._in_hand = in_hand
        self._taken = 0
        self._in_processes = 0
        self._active: set[Attempt] = set()  # whose author code runs, or is about to
        self._most_processes = os.cpu_count() or 1
        self._lock = threading.Lock()
        self._threads = Threads(between)
        self._processes = Processes(between)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._services: WorkerServices

    def serve(self, services: WorkerServices) -> None:
        """What durable functions need of the worker."""
        self._services = services

    def use(self, loop: asyncio.AbstractEventLoop) -> None:
        """The event loop for coroutines and timers."""
        self._loop = loop
        self._monitor.use(loop)
        watch_timers(loop)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        assert self._loop is not None, "the runner has no event loop yet"
        return self._loop

    def free(self) -> int:
        """Slots for new attempts. One whose author code is over has none any more while its end is being written: the
        next are claimed meanwhile, but never so many that a crash could repeat twice as much as the concurrency says.
        So with a concurrency of one, nothing begins before the end of what went before it is durable."""
        return min(self.concurrency - self._taken, 2 * self.concurrency - 1 - self._in_hand())

    @property
    def taken(self) -> int:
        return self._taken

    @property
    def process_slots(self) -> int:
        return self._most_processes

    def free_processes(self) -> int:
        """Processes have slots of their own within the others: as many as there are cores."""
        return min(self.free(), self._most_processes - self._in_processes)

    def close(self) -> None:
        self._threads.close()
        self._processes.close()

    def run_in_thread(self, call: Callable[[], None]) -> ThreadCall:
        return self._threads.run(call)

    def leftover(self, claimed: Mapping[str, Attempt]) -> list[str]:
        """Return runs whose code still runs here although their attempt has ended, or was lost.

        An attempt that ends before its code does is named at once, not only when its code is abandoned: until the
        database knows of it, a crash that this code causes would be charged to another run.
        """
        with self._lock:
            active = list(self._active)
        lost = {
            each.claim.id
            for each in active
            if (each.ended and not each.over) or each.abandoned or claimed.get(each.claim.id) is not each
        }
        return sorted(lost)[:MAX_LEFTOVER]

    @property
    def lost_threads(self) -> int:
        """Threads whose code outlived its timeout or its cancellation, and was abandoned."""
        return self._threads.lost

    # Starting

    def begin(self, attempts: list[Attempt]) -> bool:
        """Start attempts; each takes a slot until its author code is over. False when some had to be handed back."""
        with self._lock:
            self._taken += len(attempts)
            self._active.update(attempts)
            self._in_processes += sum(attempt.place == "process" for attempt in attempts)
        on_loop = [attempt for attempt in attempts if attempt.place == "loop"]
        if on_loop:
            self._monitor.sent()
            self.loop.call_soon_threadsafe(self._begin_on_loop, on_loop)
        begun = [self._begin_beside(attempt) for attempt in attempts if attempt.place != "loop"]
        return all(begun)

    def _begin_on_loop(self, attempts: list[Attempt]) -> None:
        self._monitor.answered()
        for attempt in attempts:
            self._set_timer(attempt, self.loop.call_later)
            attempt.handle = self.loop.create_task(self._run_on_loop(attempt))

    def _begin_beside(self, attempt: Attempt) -> bool:
        """Begin an attempt in a thread or a process; where no thread can be had it is handed back."""
        self._set_timer(attempt, self._timer_thread.set)
        try:
            work = self._run_in_thread if attempt.place == "thread" else self._run_in_process
            attempt.thread = self._threads.run(partial(work, attempt))
        except RuntimeError as error:
            log.thread_not_started(attempt.claim.id, attempt.task.name, attempt.claim.attempt, error)
            self._over(attempt, attempt.handed_back(lingers=False))
            return False
        return True

    def _set_timer(self, attempt: Attempt, at: Callable[[float, Callable[[], None]], Cancellable]) -> None:
        if attempt.timeout is None and attempt.claim.deadline_in is None:
            return
        limits: list[tuple[int | None, Order]] = [(attempt.timeout, "timeout"), (attempt.claim.deadline_in, "deadline")]
        seconds, order = min((micros / MICROS_PER_SECOND, order) for micros, order in limits if micros is not None)
        attempt.timer = at(max(seconds, 0.0), partial(self.stop, [attempt], order))

    async def _run_on_loop(self, attempt: Attempt) -> None:
        with attempt.lock:
            attempt.begun = True
        attempt.enter()
        call = self._call(attempt)
        executor: AsyncExecutor | None = None
        if isinstance(call, End):
            end = call
        elif attempt.durable:
            executor = AsyncExecutor(attempt, self._plans(attempt), self._services, self.loop)
            try:
                end = await run_async(executor, call)
            except GeneratorExit as error:  # the exception of a future: asyncio throws it in here, which closes `play`
                end = attempt.failed(error)
        else:
            current_scope.set(Scope(attempt.claim.id, stop=attempt.stop_signal))
            try:
                end = attempt.returned(await attempt.signature.fn(*call[0], **call[1]))
            except BaseException as error:
                end = attempt.failed(error)
        if attempt.timer is not None:
            attempt.timer.cancel()
        if executor is not None and executor.calls.threads:
            attempt.threads_over = partial(self._over, attempt, end)
            self._report(attempt, end)
            self.loop.call_later(ABANDON_AFTER_S, executor.calls.abandon_threads)
        else:
            self._over(attempt, end)

    def _report(self, attempt: Attempt, end: End) -> None:
        """Author code has ended, but for threads of its steps that outlived their timeouts. Report the end now; the
        run may start again when they have ended, or were abandoned."""
        with attempt.lock:
            report: End | None = replace(end, still_running=1)
            if attempt.order is not None:
                report = attempt.stopped(attempt.order, lingers=True)
            attempt.ended = report is not None
        if report is not None:
            self._ended(attempt, attempt.complete(report, self._services.store.payloads))

    def _plans(self, attempt: Attempt) -> OperationPlans:
        claim = attempt.claim
        history = RecordedHistory(attempt.kept, RunToken(claim.id, claim.seq, claim.fence, claim.generation))
        replay_only = claim.ending is not None
        attempt.plans = OperationPlans(
            claim, history, self._services.client, self._services.store.journal, replay_only=replay_only
        )
        attempt.plans.on_event = None if attempt.watched is None else attempt.watched.link
        return attempt.plans

    def _run_in_thread(self, attempt: Attempt) -> None:
        attempt.enter()
        call = self._call(attempt)
        if isinstance(call, End):
            end = call
        elif attempt.durable:
            executor = SyncExecutor(attempt, self._plans(attempt), self._services)
            end = run_sync(executor, call)
            if executor.threads:
                self._report(attempt, end)
                executor.wait_for_threads()
        else:
            current_scope.set(Scope(attempt.claim.id, stop=attempt.stop_signal))
            try:
                end = attempt.returned(attempt.signature.fn(*call[0], **call[1]))
            except BaseException as error:
                end = attempt.failed(error)
        self._over(attempt, end)
        self._forget_timer(attempt)

    def _run_in_process(self, attempt: Attempt) -> None:
        """In a thread that waits for the process."""
        attempt.enter()
        end = _not_begun(attempt)
        if end is None:
            try:
                end = self._processes.run(attempt)
            except BaseException as error:  # no process could be started
                end = attempt.failed(error)
        self._over(attempt, end)
        self._forget_timer(attempt)

    def _forget_timer(self, attempt: Attempt) -> None:
        if attempt.timer is not None:  # not left until it would have fired: it keeps the arguments in memory
            attempt.timer.cancel()

    @staticmethod
    def _call(attempt: Attempt) -> Arguments | End:
        """The arguments to call with, or how it ended before it began."""
        end = _not_begun(attempt)
        if end is not None:
            return end
        try:
            arguments: Arguments = attempt.signature.decode(attempt.claim.args)
            return arguments
        except (TaskError, PayloadError) as error:
            return attempt.misfit(error)
        except BaseException as error:  # of a validator of the author's
            return attempt.failed(error)

    # Ending

    def _over(self, attempt: Attempt, end: End) -> None:
        """Author code has stopped; `end` is what it came to, unless it was told to stop before. What was done before a
        worker that stops could hand it back is done."""
        with attempt.lock:
            attempt.over = True
            holds_slot = not attempt.abandoned
            report: End | None = None
            if not attempt.ended:
                counts = attempt.order is None or (attempt.order == "hand back" and end.kind == "done")
                report = end if counts else attempt.stopped(attempt.order, lingers=False)  # type: ignore[arg-type]
                attempt.ended = report is not None
        if report is not None:
            self._ended(attempt, attempt.complete(report, self._services.store.payloads))
        else:
            self._let_go(attempt)
        attempt.plans = None  # which has the attempt: only the garbage collector could free the two
        self._free_slot(attempt, holds_slot, has_stopped=True)

    def _free_slot(self, attempt: Attempt, holds_slot: bool, *, has_stopped: bool) -> None:
        with self._lock:
            if has_stopped:
                self._active.discard(attempt)
            if holds_slot:
                self._taken -= 1
                self._in_processes -= attempt.place == "process"
        if holds_slot:
            self._slot_freed()

    def stop(self, attempts: Iterable[Attempt], order: Order) -> None:
        """Tell author code to stop, from any thread. Coroutines are cancelled, processes killed; threads can only be
        waited for."""
        told = [attempt for attempt in attempts if attempt.tell(order)]
        on_loop = [attempt for attempt in told if attempt.place == "loop"]
        if on_loop:
            self.loop.call_soon_threadsafe(self._cancel, on_loop)
        for attempt in told:
            attempt.kill()
            if order in ("suspend", "restart") and attempt.place == "thread":
                continue  # it is its own thread that ends now
            if attempt.place != "loop" and order != "hand back":  # a worker that stops says itself when it gives up
                self._timer_thread.set(0.0 if attempt.place == "thread" else CLEAN_UP, partial(self.give_up, attempt))

    def _cancel(self, attempts: list[Attempt]) -> None:
        for attempt in attempts:
            if attempt.begun and attempt.handle is not None:
                attempt.handle.cancel()
            if attempt.order != "hand back":
                self.loop.call_later(CLEAN_UP, self.give_up, attempt)

    def give_up(self, attempt: Attempt, lingers: bool = True) -> None:
        """Report the end of an attempt whose code ignored the order to stop.

        While it lingers, nobody may start the run. A worker that goes on waits a moment longer for the code to stop,
        then abandons it.
        """
        with attempt.lock:
            if attempt.over or attempt.ended or attempt.order is None:
                return
            end = attempt.stopped(attempt.order, lingers=lingers)
            attempt.ended = end is not None
            order = attempt.order
        if end is not None:
            self._ended(attempt, attempt.complete(end, self._services.store.payloads))
        if order == "hand back":
            log.attempt_still_running(attempt.claim.id, attempt.task.name, attempt.claim.attempt)
        else:
            self._timer_thread.set(ABANDON_AFTER_S, partial(self.abandon, attempt))

    def abandon(self, attempt: Attempt) -> None:
        """Continue the run without code that doesn't stop. Free its slot, and count its thread as lost."""
        with attempt.lock:
            if attempt.over or attempt.abandoned:
                return
            attempt.abandoned = True
        if attempt.thread is not None:
            attempt.thread.abandon()
        log.attempt_abandoned(attempt.claim.id, attempt.task.name, attempt.claim.attempt, self.lost_threads)
        self._let_go(attempt)
        self._free_slot(attempt, holds_slot=True, has_stopped=False)

    # A blocked event loop

    def unstarted(self, attempts: Iterable[Attempt]) -> list[Attempt]:
        """Return the attempts that wait for the event loop to start them."""
        return [attempt for attempt in attempts if attempt.place == "loop" and not attempt.begun and not attempt.ended]

    def take_off_loop(self, attempts: Iterable[Attempt], end_of: Callable[[Attempt], End]) -> list[Attempt]:
        """End attempts that the blocked event loop can't end, from another thread; return those that had not ended.

        Their code is cancelled when the loop runs again; until then it can't do anything.
        """
        taken = []
        for attempt in attempts:
            with attempt.lock:
                if attempt.over or attempt.ended:
                    continue
                attempt.order = "lost"
                attempt.ended = True
            taken.append(attempt)
            self._ended(attempt, attempt.complete(end_of(attempt), self._services.store.payloads))
        if taken:
            self.loop.call_soon_threadsafe(self._cancel, taken)
        return taken


def _not_begun(attempt: Attempt) -> End | None:
    """How an attempt ended before its author code began, if it did."""
    if attempt.order is not None:
        return attempt.handed_back(lingers=False)
    if attempt.claim.deadline_in is not None and attempt.claim.deadline_in <= 0:
        return attempt.overdue(lingers=False)
    if not can_read_limits(attempt.claim.limits):
        return attempt.misfit(PayloadError("the limits in its row can't be read: the row is corrupt; enqueue it anew"))
    return None
