"""Runs author code: coroutines on the event loop, plain functions in threads. Knows nothing of SQL."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from typing import Any

from holdfast.engine.attempt import Attempt, Order
from holdfast.engine.threads import Threads
from holdfast.errors import BadArguments, TaskError
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
    ) -> None:
        self.concurrency = concurrency
        self._ended = ended
        self._let_go = let_go
        self._slot_freed = slot_freed
        self._taken = 0
        self._lock = threading.Lock()
        self._threads = Threads()
        self._loop: asyncio.AbstractEventLoop | None = None

    def use(self, loop: asyncio.AbstractEventLoop) -> None:
        """The event loop for coroutines and timers."""
        self._loop = loop

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        assert self._loop is not None, "the runner has no event loop yet"
        return self._loop

    def free(self) -> int:
        return self.concurrency - self._taken

    @property
    def taken(self) -> int:
        return self._taken

    def close(self) -> None:
        self._threads.close()

    def run_in_thread(self, call: Callable[[], None]) -> None:
        self._threads.run(call)

    # Starting

    def begin(self, attempts: list[Attempt]) -> None:
        """Start attempts; each takes a slot until its author code is over."""
        with self._lock:
            self._taken += len(attempts)
        on_loop = [attempt for attempt in attempts if attempt.task.declaration.run_in == "loop"]
        timed = [
            attempt for attempt in attempts if attempt.timeout is not None or attempt.claim.deadline_in is not None
        ]
        if on_loop or timed:
            self.loop.call_soon_threadsafe(self._begin_on_loop, on_loop, timed)
        for attempt in attempts:
            if attempt.task.declaration.run_in == "thread":
                self._threads.run(lambda attempt=attempt: self._run_in_thread(attempt))  # type: ignore[misc]

    def _begin_on_loop(self, attempts: list[Attempt], timed: list[Attempt]) -> None:
        for attempt in timed:
            self._set_timers(attempt)
        for attempt in attempts:
            attempt.handle = self.loop.create_task(self._run_on_loop(attempt))

    def _set_timers(self, attempt: Attempt) -> None:
        limits: list[tuple[int | None, Order]] = [(attempt.timeout, "timeout"), (attempt.claim.deadline_in, "deadline")]
        known = [(micros / 1_000_000, order) for micros, order in limits if micros is not None]
        seconds, order = min(known)
        self.loop.call_later(max(seconds, 0.0), self._stop_on_loop, attempt, order)

    async def _run_on_loop(self, attempt: Attempt) -> None:
        try:
            args, kwargs = attempt.signature.decode(attempt.claim.args)
        except (BadArguments, TaskError) as error:
            self._over(attempt, attempt.misfit(error))
            return
        try:
            end = self._returned(attempt, await attempt.signature.fn(*args, **kwargs))
        except BaseException as error:
            end = attempt.failed(error)
        self._over(attempt, end)

    def _run_in_thread(self, attempt: Attempt) -> None:
        if attempt.order is not None:  # told to stop before it began
            self._over(attempt, attempt.handed_back(lingers=False))
            return
        try:
            args, kwargs = attempt.signature.decode(attempt.claim.args)
        except (BadArguments, TaskError) as error:
            self._over(attempt, attempt.misfit(error))
            return
        try:
            end = self._returned(attempt, attempt.signature.fn(*args, **kwargs))
        except BaseException as error:
            end = attempt.failed(error)
        self._over(attempt, end)

    @staticmethod
    def _returned(attempt: Attempt, value: Any) -> End:
        return attempt.done(attempt.signature.encode_result(value))

    # Ending

    def _over(self, attempt: Attempt, end: End) -> None:
        """Author code has stopped; `end` is what it came to, unless it was told to stop before."""
        with attempt.lock:
            attempt.over = True
            report: End | None = None
            if not attempt.ended:
                report = end if attempt.order is None else attempt.stopped(attempt.order, lingers=False)
                attempt.ended = report is not None
        if report is not None:
            self._ended(attempt, report)
        else:
            self._let_go(attempt)
        with self._lock:
            self._taken -= 1
        self._slot_freed()

    def stop(self, attempts: Iterable[Attempt], order: Order) -> None:
        """Tell author code to stop, from any thread. Coroutines are cancelled; threads can only be waited for."""
        stoppable = list(attempts)
        if stoppable:
            self.loop.call_soon_threadsafe(self._stop_all_on_loop, stoppable, order)

    def _stop_all_on_loop(self, attempts: list[Attempt], order: Order) -> None:
        for attempt in attempts:
            self._stop_on_loop(attempt, order)

    def _stop_on_loop(self, attempt: Attempt, order: Order) -> None:
        with attempt.lock:
            if attempt.over or attempt.ended or attempt.order == "lost":
                return
            attempt.order = order
        if attempt.handle is not None:
            attempt.handle.cancel()
        if order != "hand back":  # a worker that stops says itself when it gives up
            self.loop.call_later(0.0 if attempt.handle is None else LINGER, self.give_up, attempt)

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
