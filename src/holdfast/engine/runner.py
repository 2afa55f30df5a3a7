"""Runs author code: coroutines on the event loop, plain functions in threads or processes. Knows nothing of SQL."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any

from holdfast.engine.attempt import Attempt, Order
from holdfast.engine.processes import Processes
from holdfast.engine.threads import Threads
from holdfast.errors import PayloadError, TaskError
from holdfast.store import End
from holdfast.telemetry import log

LINGER = 1.0
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
    ) -> None:
        self.concurrency = concurrency
        self._ended = ended
        self._let_go = let_go
        self._slot_freed = slot_freed
        self._in_hand = in_hand
        self._taken = 0
        self._in_processes = 0
        self._most_processes = os.cpu_count() or 1
        self._lock = threading.Lock()
        self._threads = Threads()
        self._processes = Processes()
        self._loop: asyncio.AbstractEventLoop | None = None

    def use(self, loop: asyncio.AbstractEventLoop) -> None:
        """The event loop for coroutines and timers."""
        self._loop = loop

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        assert self._loop is not None, "the runner has no event loop yet"
        return self._loop

    def free(self) -> int:
        """Slots for new attempts. An attempt whose end isn't durable yet still has its slot, so that a crash repeats no
        more work than the concurrency says."""
        return self.concurrency - max(self._taken, self._in_hand())

    @property
    def taken(self) -> int:
        return self._taken

    def free_processes(self) -> int:
        """Processes have slots of their own within the others: as many as there are cores."""
        return min(self.free(), self._most_processes - self._in_processes)

    def close(self) -> None:
        self._threads.close()
        self._processes.close()

    def run_in_thread(self, call: Callable[[], None]) -> None:
        self._threads.run(call)

    # Starting

    def begin(self, attempts: list[Attempt]) -> None:
        """Start attempts; each takes a slot until its author code is over."""
        with self._lock:
            self._taken += len(attempts)
            self._in_processes += sum(attempt.in_process for attempt in attempts)
        on_loop = [attempt for attempt in attempts if attempt.task.declaration.run_in == "loop"]
        timed = [
            attempt for attempt in attempts if attempt.timeout is not None or attempt.claim.deadline_in is not None
        ]
        if on_loop or timed:
            self.loop.call_soon_threadsafe(self._begin_on_loop, on_loop, timed)
        for attempt in attempts:
            if attempt.task.declaration.run_in == "thread":
                self._threads.run(partial(self._run_in_thread, attempt))
            elif attempt.in_process:
                self._threads.run(partial(self._run_in_process, attempt))

    def _begin_on_loop(self, attempts: list[Attempt], timed: list[Attempt]) -> None:
        for attempt in timed:
            self._set_timer(attempt)
        for attempt in attempts:
            attempt.handle = self.loop.create_task(self._run_on_loop(attempt))

    def _set_timer(self, attempt: Attempt) -> None:
        limits: list[tuple[int | None, Order]] = [(attempt.timeout, "timeout"), (attempt.claim.deadline_in, "deadline")]
        known = [(micros / 1_000_000, order) for micros, order in limits if micros is not None]
        seconds, order = min(known)
        with attempt.lock:
            if not attempt.over:
                attempt.timer = self.loop.call_later(max(seconds, 0.0), self._stop_on_loop, attempt, order)

    async def _run_on_loop(self, attempt: Attempt) -> None:
        attempt.begun = True
        call = self._call(attempt)
        if isinstance(call, End):
            end = call
        else:
            try:
                end = attempt.returned(await attempt.signature.fn(*call[0], **call[1]))
            except BaseException as error:
                end = attempt.failed(error)
        if attempt.timer is not None:
            attempt.timer.cancel()
        self._over(attempt, end)

    def _run_in_thread(self, attempt: Attempt) -> None:
        call = self._call(attempt)
        if isinstance(call, End):
            end = call
        else:
            try:
                end = attempt.returned(attempt.signature.fn(*call[0], **call[1]))
            except BaseException as error:
                end = attempt.failed(error)
        self._over(attempt, end)
        self._forget_timer(attempt)

    def _run_in_process(self, attempt: Attempt) -> None:
        """In a thread that waits for the process."""
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
            with suppress(RuntimeError):  # the loop has ended
                self.loop.call_soon_threadsafe(attempt.timer.cancel)

    @staticmethod
    def _call(attempt: Attempt) -> tuple[tuple[Any, ...], dict[str, Any]] | End:
        """The arguments to call with, or how it ended before it began."""
        end = _not_begun(attempt)
        if end is not None:
            return end
        try:
            return attempt.signature.decode(attempt.claim.args)
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
            report: End | None = None
            if not attempt.ended:
                counts = attempt.order is None or (attempt.order == "hand back" and end.kind == "done")
                report = end if counts else attempt.stopped(attempt.order, lingers=False)  # type: ignore[arg-type]
                attempt.ended = report is not None
        if report is not None:
            self._ended(attempt, report)
        else:
            self._let_go(attempt)
        with self._lock:
            self._taken -= 1
            self._in_processes -= attempt.in_process
        self._slot_freed()

    def stop(self, attempts: Iterable[Attempt], order: Order) -> None:
        """Tell author code to stop, from any thread. Coroutines are cancelled; threads can only be waited for."""
        told = [attempt for attempt in attempts if attempt.tell(order)]
        if told:
            self.loop.call_soon_threadsafe(self._cancel, told)

    def _stop_on_loop(self, attempt: Attempt, order: Order) -> None:
        if attempt.tell(order):
            self._cancel([attempt])

    def _cancel(self, attempts: list[Attempt]) -> None:
        for attempt in attempts:
            if attempt.begun and attempt.handle is not None:
                attempt.handle.cancel()
            if attempt.child is not None:
                attempt.child.kill()
            if attempt.order != "hand back":  # a worker that stops says itself when it gives up
                self.loop.call_later(0.0 if attempt.in_thread else LINGER, self.give_up, attempt)

    def give_up(self, attempt: Attempt, lingers: bool = True) -> None:
        """Author code that was told to stop didn't. Its run goes on without it; as long as it lingers, nobody may start
        the run."""
        with attempt.lock:
            if attempt.over or attempt.ended or attempt.order is None:
                return
            end = attempt.stopped(attempt.order, lingers=lingers)
            attempt.ended = end is not None
        log.attempt_unstoppable(attempt.claim.id, attempt.task.name, attempt.claim.attempt)
        if end is not None:
            self._ended(attempt, end)


def _not_begun(attempt: Attempt) -> End | None:
    """How an attempt ended before its author code began, if it did."""
    if attempt.order is not None:
        return attempt.handed_back(lingers=False)
    if attempt.claim.deadline_in is not None and attempt.claim.deadline_in <= 0:
        return attempt.overdue(lingers=False)
    return None
