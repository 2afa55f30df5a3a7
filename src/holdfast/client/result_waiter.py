"""Waits for the ends of runs on behalf of coroutines, one look at the database for all of a loop that wait, and of
threads, which look for themselves.

Polls come at ever longer intervals; those of coroutines at once when a worker of this process has written something.
Who has waited for a moment also hears of ends in other processes (`listener.py`), and then looks less often by itself.
But a hint may get lost, so that never stops.

Who has seen the run once waits through an outage of the database: a look that fails is repeated.
"""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TypeAlias
from uuid import UUID

from holdfast.client.completion_listener import CompletionListener, rest_after
from holdfast.database import Row
from holdfast.database.faults import AccessDenied
from holdfast.database.fork_safety import register_fork_hooks
from holdfast.errors import ResultTimeout, StoreUnavailable
from holdfast.model.blocking_calls import run_in_thread
from holdfast.model.clock import MICROS_PER_SECOND, Duration, to_micros
from holdfast.model.run import FINAL_STATES

if TYPE_CHECKING:
    import asyncio

FIRST_POLL_INTERVAL_S = 0.002
MAX_POLL_INTERVAL_S = 0.25
MAX_POLL_INTERVAL_LISTENING_S = 1.0
LISTEN_FROM_S = 0.02
"""Who waits for so many seconds before the next look wants to hear of ends: shorter waits aren't worth a connection."""

MAX_OUTAGE_S = 300.0
"""How long the database may be away before those who wait are told, if their own timeout isn't sooner."""

Look: TypeAlias = Callable[[Iterable[str]], dict[str, Row]]
"""States and what follows them, by id, of those runs that exist. Blocking."""


class PollBackoff:
    """Ever longer pauses between looks at a run, until the time is over."""

    def __init__(self, id: UUID, timeout: Duration | None) -> None:
        self._id = id
        self._seconds = None if timeout is None else to_micros(timeout, "timeout") / MICROS_PER_SECOND
        self._deadline = None if self._seconds is None else time.monotonic() + self._seconds
        self._pause = FIRST_POLL_INTERVAL_S
        self._seen = False
        self._away_since: float | None = None

    def pause_after_failure(self, error: StoreUnavailable, longest: float) -> float:
        """How long to wait before the next look after one that failed. Raises the error when the run was never seen,
        only somebody can help, or the outage takes too long; ResultTimeout when there is no time left."""
        now = time.monotonic()
        self._away_since = self._away_since or now
        if not self._seen or isinstance(error, AccessDenied) or now - self._away_since > MAX_OUTAGE_S:
            raise error
        if self._deadline is not None and self._deadline <= now:
            raise ResultTimeout(f"run {self._id} had no result within {self._seconds:g} s: {error}") from error
        return self._next(longest)

    def pause(self, state: str, longest: float) -> float:
        """How long to wait before the next look at a run in that state; ResultTimeout when there is no time left."""
        self._seen, self._away_since = True, None
        if self._deadline is not None and self._deadline <= time.monotonic():
            hint = ": is a worker alive that knows its task and works on its queue?" if state == "ready" else ""
            raise ResultTimeout(f"run {self._id} had no result within {self._seconds:g} s; it is still {state}{hint}")
        return self._next(longest)

    def _next(self, longest: float) -> float:
        pause, self._pause = self._pause, min(self._pause * 1.5, longest)
        return pause if self._deadline is None else max(min(pause, self._deadline - time.monotonic()), 0.0)


class PendingResult:
    """One who waits for an end."""

    __slots__ = ("end", "id", "looks")

    def __init__(self, id: UUID, looks: PollBackoff, end: asyncio.Future[Row | None]) -> None:
        self.id = str(id)
        self.looks = looks
        self.end = end

    def see(self, row: Row | None, longest: float) -> float | None:
        """Look at what is there: the seconds until the next look, at most `longest`; None when there is none."""
        if self.end.done():  # cancelled
            return None
        if row is None or row[0] in FINAL_STATES:
            self.end.set_result(row)
            return None
        try:
            return self.looks.pause(row[0], longest)
        except ResultTimeout as error:
            self.end.set_exception(error)
            return None

    def miss(self, error: Exception, longest: float) -> float | None:
        """A look failed: the seconds until the next one; None when there is none."""
        if self.end.done():  # cancelled
            return None
        try:
            if not isinstance(error, StoreUnavailable):
                raise error
            return self.looks.pause_after_failure(error, longest)
        except Exception as final:
            self.end.set_exception(final)
            return None


class LoopPoller:
    """Those who wait on one event loop."""

    def __init__(self, ends: ResultWaiter) -> None:
        import asyncio

        self._ends = ends
        self.waiters: list[PendingResult] = []
        self.soon = asyncio.Event()
        self._heard = self._resting = False
        self.told = False
        """Its loop will hear of something: one that stands still must not be told again and again."""

    async def run(self) -> None:
        """Look until nobody waits any more."""
        import asyncio

        try:
            while self.waiters:
                self.soon.clear()
                self._heard, self._resting = False, True
                began = time.monotonic()
                pause = await self._look_once()
                rested = asyncio.get_running_loop().call_later(rest_after(time.monotonic() - began), self._rested)
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self.soon.wait()
                rested.cancel()
        finally:
            for waiter in self.waiters:  # the loop is ending
                waiter.end.cancel()

    def hear(self) -> None:
        """Something has ended in another process: look, now or when the watch has rested from its last look."""
        self.told, self._heard = False, True
        if not self._resting:
            self.soon.set()

    def _rested(self) -> None:
        self._resting = False
        if self._heard:
            self.soon.set()

    async def _look_once(self) -> float:
        looked, self.waiters = self.waiters, []
        longest = self._ends.longest()
        try:
            rows = await run_in_thread(self._ends.look, {waiter.id for waiter in looked})
        except Exception as error:
            seen = [(waiter, waiter.miss(error, longest)) for waiter in looked]
        except BaseException:
            self.waiters += looked
            raise
        else:
            seen = [(waiter, waiter.see(rows.get(waiter.id), longest)) for waiter in looked]
        pauses = {waiter: pause for waiter, pause in seen if pause is not None}
        self.waiters += pauses
        pause = min(pauses.values(), default=0.0)
        self._ends.will_wait(pause)
        return pause


class WaitingThread:
    """A thread that waits for an end."""

    __slots__ = ("_ends", "_looks", "_soon", "id")

    def __init__(self, id: UUID, looks: PollBackoff, ends: ResultWaiter) -> None:
        self.id = str(id)
        self._looks = looks
        self._ends = ends
        self._soon = threading.Event()

    def sleep(self, state: str) -> None:
        """Until the next look at the run, which was in that state at the last one."""
        self._sleep(self._looks.pause(state, self._ends.longest()))

    def sleep_after_failure(self, error: StoreUnavailable) -> None:
        """The same after a look that failed; raises where it makes no sense to look again."""
        self._sleep(self._looks.pause_after_failure(error, self._ends.longest()))

    def _sleep(self, pause: float) -> None:
        self._ends.will_wait(pause)
        self._soon.wait(pause)
        self._soon.clear()

    def wake(self) -> None:
        self._soon.set()


class ResultWaiter:
    """All who wait, each loop and each thread for itself."""

    def __init__(self, look: Look, listener: CompletionListener | None = None) -> None:
        self.look = look
        self._listener = listener
        self._sleepers: set[WaitingThread] = set()
        self._watches: dict[asyncio.AbstractEventLoop, LoopPoller] = {}
        self._tasks: set[asyncio.Task[None]] = set()  # a loop keeps only weak references to its tasks
        register_fork_hooks(self)

    async def wait(self, id: UUID, timeout: Duration | None) -> Row | None:
        """How a run ended; None when there is no such run."""
        import asyncio

        loop = asyncio.get_running_loop()
        waiter = PendingResult(id, PollBackoff(id, timeout), loop.create_future())
        watch = self._watches.get(loop)
        if watch is None:
            self._watches[loop] = watch = LoopPoller(self)
            task = loop.create_task(self._run(loop, watch), context=contextvars.Context())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        watch.waiters.append(waiter)
        watch.soon.set()
        return await waiter.end

    async def _run(self, loop: asyncio.AbstractEventLoop, watch: LoopPoller) -> None:
        try:
            await watch.run()
        finally:  # in the same turn as nobody waited any more
            self._watches.pop(loop, None)

    @contextmanager
    def sleeping(self, id: UUID, timeout: Duration | None) -> Iterator[WaitingThread]:
        """While this thread waits for a run: between its looks it sleeps by what this gives."""
        sleeper = WaitingThread(id, PollBackoff(id, timeout), self)
        self._sleepers.add(sleeper)  # before its first look: what ends after that is told to it
        try:
            yield sleeper
        finally:
            self._sleepers.discard(sleeper)

    def longest(self) -> float:
        """The longest pause between two looks, for now."""
        return (
            MAX_POLL_INTERVAL_LISTENING_S
            if self._listener is not None and self._listener.listens
            else MAX_POLL_INTERVAL_S
        )

    def will_wait(self, pause: float) -> None:
        """Somebody looks again after so many seconds, or when something is heard."""
        if self._listener is not None and pause >= LISTEN_FROM_S:
            self._listener.want(pause, self.heard)

    def heard(self) -> None:
        """Something has ended in another process, perhaps. Threads are woken only if it concerns them. Blocking."""
        for loop, watch in list(self._watches.items()):
            if not watch.told:
                watch.told = True
                with suppress(RuntimeError):  # it is closed by now
                    loop.call_soon_threadsafe(watch.hear)
        sleepers = list(self._sleepers)
        if sleepers:
            rows = self.look({sleeper.id for sleeper in sleepers})
            for sleeper in sleepers:
                row = rows.get(sleeper.id)
                if row is None or row[0] in FINAL_STATES:
                    sleeper.wake()

    def before_fork(self) -> None:
        """Nothing."""

    def after_fork(self, *, in_child: bool) -> None:
        if in_child:  # where those who wait aren't
            self._sleepers, self._watches = set(), {}

    def close(self) -> None:
        """Hear nothing more; who still waits goes on."""
        if self._listener is not None:
            self._listener.close()

    def hurry(self) -> None:
        """Something has ended, perhaps: look now. From any thread."""
        for loop, watch in list(self._watches.items()):
            with suppress(RuntimeError):  # it is closed by now
                loop.call_soon_threadsafe(watch.soon.set)
