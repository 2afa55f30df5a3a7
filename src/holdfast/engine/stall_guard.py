"""Notice that author code blocks the event loop, and free the runs that can't go on because of it.

A coroutine that blocks (`time.sleep`, a synchronous HTTP call) stops every other coroutine of its worker, their
timeouts included. The heartbeat has its own thread and would renew the lease forever. So a thread watches the loop:

* While the loop lags, the worker claims nothing, and runs that it claimed but can't start are handed back.
* After a stall as long as the lease, or as the timeout of the blocking task if that is longer, the worker logs the
  blocking stack and ends the attempts on its loop: the run that blocks is timed out or charged with a crash, the others
  are handed back uncharged and run elsewhere. Threads and processes continue.
"""

from __future__ import annotations

import asyncio
import sys
import time
import traceback
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.engine.attempt import Attempt, blocked_error
from holdfast.engine.conductor import Conductor
from holdfast.engine.loop_monitor import LoopMonitor
from holdfast.engine.runner import Runner
from holdfast.engine.session import Duty
from holdfast.model.clock import MICROS_PER_SECOND
from holdfast.telemetry import log
from holdfast.telemetry.log_format import current_attempt

if TYPE_CHECKING:
    from holdfast.store import End

REPORT_STALL_S = 1.0
"""A stall that lasts longer than this is reported as a problem of the worker."""
LOST_THREADS_SHARE = 0.25
"""A worker that has lost more threads than this share of its concurrency is unhealthy."""


class WorkerStatus(msgspec.Struct, omit_defaults=True):
    """The health that a worker reports with each heartbeat."""

    loop_lag: float = 0.0
    """Seconds for which its event loop has been blocked."""
    lost_threads: int = 0
    leftover: list[str] = msgspec.field(default_factory=list)
    """Runs whose code still runs here although they were lost or abandoned: it may kill the process."""
    problem: str | None = None
    """Why the worker isn't healthy."""


class StallGuard:
    """Frees the runs of a stalled event loop, and says when the worker should be restarted. Called by a thread that
    doesn't depend on the loop."""

    def __init__(
        self,
        monitor: LoopMonitor,
        runner: Runner,
        duty: Duty,
        lease: float,
        on_change: Callable[[], None],
        on_unhealthy: Callable[[str], None],
    ) -> None:
        self._monitor = monitor
        self._runner = runner
        self._duty = duty
        self._lease = lease
        self._on_change = on_change
        self._on_unhealthy = on_unhealthy
        self._stalled_for = 0.0
        self._last_check: float | None = None
        self._blocking: asyncio.Task[Any] | None = None
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
        passed = 0.0 if self._last_check is None else min(now - self._last_check, 2 * interval)
        self._last_check = now
        self._monitor.ping()
        if self._monitor.stalled:
            task = asyncio.current_task(self._monitor.loop)
            if task is not self._blocking:
                self._stalled_for, self._blocking, self._blocker = 0.0, task, None
            else:
                self._stalled_for += passed
            self._blocker = self._find_blocker() or self._blocker  # still named after its attempt was ended
            self._free_runs(self._blocker)
        else:
            self._stalled_for = 0.0
            self._blocking = None
            self._gave_up = False
            self._blocker = None
        self._report(self._blocker)

    def _free_runs(self, blocker: Attempt | None) -> None:
        attempts = list(self._duty.in_hand().values())
        released = self._runner.take_off_loop(self._runner.unstarted(attempts), _handed_back)
        if released:
            log.loop_stalled(self._monitor.lag, _label(blocker), len(released))
        limit = self._lease
        if blocker is not None and blocker.timeout is not None:
            limit = max(limit, blocker.timeout / MICROS_PER_SECOND)
        if self._stalled_for < limit or self._gave_up:
            return
        self._gave_up = True
        lag = self._stalled_for
        on_loop = [attempt for attempt in attempts if attempt.place == "loop" and not attempt.ended]
        log.loop_given_up(lag, _label(blocker), self._stack(), len(on_loop))
        if blocker is None and len(attempts) == 1 and attempts[0].isolated and not self.status.leftover:
            blocker = attempts[0]  # it has been the only run here: what blocks is its callback, or a task that it made
        self._runner.take_off_loop(on_loop, lambda attempt: _end_of(attempt, blocker, len(on_loop), lag))
        self._on_unhealthy(f"event loop blocked for {lag:.0f} s")

    def _report(self, blocker: Attempt | None) -> None:
        """Update the worker's status, and report it at once if it has changed."""
        lost, most = self._runner.lost_threads, self._runner.concurrency
        lag = self._monitor.lag
        problem = None
        if lag > REPORT_STALL_S:
            problem = f"its event loop has been blocked by {_label(blocker)}"
        elif lost > most * LOST_THREADS_SHARE:
            problem = f"{lost} of its {most} threads are lost to code that didn't stop"
            if self.status.problem is None:
                log.threads_lost(lost, most)
                self._on_unhealthy(problem)
        before = self.status
        leftover = self._runner.leftover(self._duty.in_hand())
        self.status = WorkerStatus(lost_threads=lost, leftover=leftover, problem=problem)
        if lag > REPORT_STALL_S:
            self.status.loop_lag = round(lag, 1)
        changed = (before.problem, before.lost_threads, before.leftover) != (problem, lost, leftover)
        if changed or self.status.loop_lag:  # the lag is reported as it grows
            self._on_change()

    # The culprit

    def _find_blocker(self) -> Attempt | None:
        """Return the attempt whose code the loop is executing, if it can be identified."""
        by_run = {id: attempt for id, attempt in self._duty.in_hand().items() if attempt.place == "loop"}
        task = asyncio.current_task(self._monitor.loop)
        if task is None:
            return None
        for attempt in by_run.values():
            if attempt.handle is task:
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
        if frame.f_code is Conductor.perform.__code__:
            caller: Any = frame.f_locals.get("self")
            return bool(caller.current is attempt)
        frame = frame.f_back
    return False


def _handed_back(attempt: Attempt) -> End:
    return attempt.handed_back(lingers=False)


def _end_of(attempt: Attempt, blocker: Attempt | None, together: int, seconds: float) -> End:
    """Return how an attempt on a blocked loop ends. If the blocker isn't known, all attempts are suspects and none is
    charged, because code of the application outside of runs may have blocked the loop."""
    if blocker is None:
        return attempt.crashed(blocked_error(seconds), max(together, 2))
    if attempt is not blocker:
        return attempt.handed_back(lingers=False)
    if attempt.timeout is not None:
        return attempt.timed_out(lingers=False)
    return attempt.crashed(blocked_error(seconds), isolate=True)


def _label(blocker: Attempt | None) -> str:
    return "unknown code" if blocker is None else blocker.label
