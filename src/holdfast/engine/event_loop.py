"""The event loop for coroutines: its thread, and what happens when code blocks it.

A coroutine that blocks (`time.sleep`, a synchronous HTTP call) stops every other coroutine of its worker, their
timeouts included. The heartbeat has its own thread and would renew the lease forever. So another thread watches the
loop:

* While the loop lags, the worker claims nothing, and releases runs that it claimed but can't start.
* After a stall as long as the lease, or as the timeout of the blocking task if that is longer, the worker logs the
  blocking stack and ends the attempts on its loop: the run that blocks is timed out or charged with a crash, the others
  are released uncharged and run elsewhere. Threads and processes continue.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import traceback
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from holdfast.engine.attempt import Attempt, WorkerState, blocked_error
from holdfast.engine.durable.async_executor import AsyncExecutor
from holdfast.model.clock import MICROS_PER_SECOND
from holdfast.model.names import counted
from holdfast.telemetry import log
from holdfast.telemetry.log_format import current_attempt

if TYPE_CHECKING:
    from holdfast.engine.runner import LoopMonitor, Runner
    from holdfast.store import AttemptEnd

T = TypeVar("T")
REPORT_STALL_S = 1.0
"""A stall that lasts longer than this is reported as a problem of the worker."""
LOST_THREADS_SHARE = 0.25
"""A worker that has lost more threads than this share of its `threads` is unhealthy."""


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Create an event loop: uvloop's where that is available (bench: steps)."""
    try:
        import uvloop  # not needed in a process that only enqueues
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


class EventLoopThread:
    """Runs an event loop in a thread, for workers that aren't started inside a loop."""

    def __init__(self) -> None:
        self.loop = new_event_loop()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="holdfast-loop", daemon=True)
        self._thread.start()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine on the loop. Cancelling the future cancels the coroutine."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def stop(self, timeout: float) -> None:
        """End the loop. If user code blocks it, its daemon thread is left behind."""
        self._stopping = True
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(timeout)
        if not self._thread.is_alive():
            self.loop.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        while not self._stopping:
            with suppress(SystemExit, KeyboardInterrupt):  # raised by user code, which must not end the loop
                self.loop.run_forever()
        pending = asyncio.all_tasks(self.loop)
        for task in pending:
            task.cancel()
        self.loop.run_until_complete(asyncio.gather(*pending, return_exceptions=True))
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())


def describe_lost_threads(runner: Runner) -> str | None:
    """Return a problem if the worker has lost more than its share of threads; None otherwise."""
    lost, threads = runner.lost_threads, runner.threads
    if lost <= threads * LOST_THREADS_SHARE:
        return None
    return f"{lost} of {counted(threads, 'thread')} lost to code that did not stop"


class WorkerStatus(msgspec.Struct, omit_defaults=True):
    """The health that a worker reports with each heartbeat."""

    loop_lag: float = 0.0
    """Seconds for which its event loop has been blocked."""
    lost_threads: int = 0
    leftover: list[str] = msgspec.field(default_factory=list)
    """Runs whose code still runs here although they were lost or abandoned: it may kill the process."""
    problem: str | None = None
    """Why the worker isn't healthy."""
    memory: int = 0
    """Bytes of memory that its process has."""


class StallHandler:
    """Frees the runs of a stalled event loop, and decides when the worker should be restarted.

    The lease guard's thread calls it, which doesn't depend on the event loop.
    """

    def __init__(
        self,
        monitor: LoopMonitor,
        runner: Runner,
        state: WorkerState,
        lease: float,
        on_change: Callable[[], None],
        on_unhealthy: Callable[[str], None],
    ) -> None:
        self._monitor = monitor
        self._runner = runner
        self._state = state
        self._lease = lease
        self._on_change = on_change
        self._on_unhealthy = on_unhealthy
        self._stalled_s = 0.0
        self._last_check: float | None = None
        self._blocking_task: asyncio.Task[Any] | None = None
        self._gave_up = False
        self._blocker: Attempt | None = None
        self.status = WorkerStatus()

    def check(self, interval: float) -> None:
        """Check the loop once, `interval` seconds after the last check.

        A longer gap means that this process was frozen, or that something held the GIL. That time doesn't count,
        because the loop had no chance to answer.

        A stall lasts as long as one task causes it. Many tasks that block for a moment each, one after the other, make
        progress: giving them up would repeat their work forever, and charge whichever happens to run.
        """
        now = time.monotonic()
        passed_s = 0.0 if self._last_check is None else min(now - self._last_check, 2 * interval)
        self._last_check = now
        self._monitor.ping()
        if self._monitor.is_stalled:
            task = asyncio.current_task(self._monitor.loop)
            if task is not self._blocking_task:
                self._stalled_s, self._blocking_task, self._blocker = 0.0, task, None
            else:
                self._stalled_s += passed_s
            self._blocker = self._find_blocker() or self._blocker  # remembered after its attempt was ended
            self._free_runs(self._blocker)
        else:
            self._stalled_s = 0.0
            self._blocking_task = None
            self._gave_up = False
            self._blocker = None
        self._report(self._blocker)

    def _free_runs(self, blocker: Attempt | None) -> None:
        attempts = list(self._state.claimed().values())
        released = self._runner.end_on_blocked_loop(self._runner.unstarted(attempts), _release)
        if released:
            log.event_loop_stalled(self._monitor.lag, _label(blocker), len(released))
        limit_s = self._lease
        if blocker is not None and blocker.timeout is not None:
            limit_s = max(limit_s, blocker.timeout / MICROS_PER_SECOND)
        if self._stalled_s < limit_s or self._gave_up:
            return
        self._gave_up = True
        stalled_s = self._stalled_s
        on_loop = [attempt for attempt in attempts if attempt.run_in == "loop" and not attempt.reported]
        log.event_loop_blocked(stalled_s, _label(blocker), self._stack(), len(on_loop))
        if blocker is None and len(attempts) == 1 and attempts[0].isolated and not self.status.leftover:
            blocker = attempts[0]  # no other run was here: one of its callbacks or asyncio tasks blocks
        self._runner.end_on_blocked_loop(on_loop, lambda attempt: _end_of(attempt, blocker, len(on_loop), stalled_s))
        self._on_unhealthy(f"event loop blocked for {stalled_s:.0f} s")

    def _report(self, blocker: Attempt | None) -> None:
        """Update the worker's status, and report it at once if it has changed."""
        lost, threads = self._runner.lost_threads, self._runner.threads
        lag = self._monitor.lag
        problem = describe_lost_threads(self._runner)
        if lag > REPORT_STALL_S:
            problem = f"event loop blocked by {_label(blocker)}"
        elif problem is not None and self.status.problem is None:
            log.threads_lost(lost, threads)
            self._on_unhealthy(problem)
        before = self.status
        leftover = self._runner.leftover_runs(self._state.claimed())
        self.status = WorkerStatus(lost_threads=lost, leftover=leftover, problem=problem)
        if lag > REPORT_STALL_S:
            self.status.loop_lag = round(lag, 1)
        changed = (before.problem, before.lost_threads, before.leftover) != (problem, lost, leftover)
        if changed or self.status.loop_lag:  # a growing lag is reported again
            self._on_change()

    # Which attempt blocks

    def _find_blocker(self) -> Attempt | None:
        """Return the attempt whose code the loop is executing, if it can be identified."""
        by_run = {id: attempt for id, attempt in self._state.claimed().items() if attempt.run_in == "loop"}
        task = asyncio.current_task(self._monitor.loop)
        if task is None:
            return None
        for attempt in by_run.values():
            if attempt.loop_task is task:
                return attempt
        context = getattr(task, "get_context", None)  # Python 3.12 and later
        if context is not None:
            described = context().get(current_attempt)
            return None if described is None else by_run.get(described.run)
        return next((attempt for attempt in by_run.values() if _executes(self._frame(), attempt)), None)

    def _frame(self) -> FrameType | None:
        return None if self._monitor.thread is None else sys._current_frames().get(self._monitor.thread)

    def _stack(self) -> str:
        frame = self._frame()
        return "(no stack)" if frame is None else "".join(traceback.format_stack(frame)).rstrip()


def _executes(frame: FrameType | None, attempt: Attempt) -> bool:
    """Return whether a stack belongs to a branch of this attempt: it contains an operation of its context."""
    while frame is not None:
        if frame.f_code is AsyncExecutor.perform.__code__:
            caller: Any = frame.f_locals.get("self")
            return bool(caller.current is attempt)
        frame = frame.f_back
    return False


def _release(attempt: Attempt) -> AttemptEnd:
    return attempt.released()


def _end_of(attempt: Attempt, blocker: Attempt | None, suspects: int, seconds: float) -> AttemptEnd:
    """Return how an attempt on a blocked loop ends.

    If the blocker isn't known, all attempts are suspects and none is charged, because code of the application outside
    of runs may have blocked the loop.
    """
    if blocker is None:
        return attempt.crashed(blocked_error(seconds), max(suspects, 2))
    if attempt is not blocker:
        return attempt.released()
    if attempt.timeout is not None:
        return attempt.timed_out()
    return attempt.crashed(blocked_error(seconds), isolate=True)


def _label(blocker: Attempt | None) -> str:
    return "unknown code" if blocker is None else blocker.label
