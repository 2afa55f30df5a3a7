"""Waits for the ends of runs on behalf of coroutines: one look at the database for all of a loop that wait.

Looks come at ever longer intervals, and at once when a worker of this process has written something. For other
processes looking is all there is, so it never stops.
"""

from __future__ import annotations

import contextvars
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias
from uuid import UUID

from holdfast.database import Row
from holdfast.errors import ResultTimeout
from holdfast.model.blocking import in_thread
from holdfast.model.clock import SECOND, Duration, to_micros
from holdfast.model.run import FINAL

if TYPE_CHECKING:
    import asyncio

FIRST_LOOK = 0.002
LONGEST_LOOK = 0.25

Look: TypeAlias = Callable[[Iterable[str]], dict[str, Row]]
"""States and what follows them, by id, of those runs that exist. Blocking."""


class Looks:
    """Ever longer pauses between looks at a run, until the time is over."""

    def __init__(self, id: UUID, timeout: Duration | None) -> None:
        self._id = id
        self._seconds = None if timeout is None else to_micros(timeout, "timeout") / SECOND
        self._deadline = None if self._seconds is None else time.monotonic() + self._seconds
        self._pause = FIRST_LOOK

    def pause(self, state: str) -> float:
        """How long to wait before the next look at a run in that state; ResultTimeout when there is no time left."""
        pause, self._pause = self._pause, min(self._pause * 1.5, LONGEST_LOOK)
        if self._deadline is None:
            return pause
        left = self._deadline - time.monotonic()
        if left <= 0:
            hint = ": is a worker alive that knows its task and works on its queue?" if state == "ready" else ""
            raise ResultTimeout(f"run {self._id} had no result within {self._seconds:g} s; it is still {state}{hint}")
        return min(pause, left)


class Waiter:
    """One who waits for an end."""

    __slots__ = ("end", "id", "looks")

    def __init__(self, id: UUID, looks: Looks, end: asyncio.Future[Row | None]) -> None:
        self.id = str(id)
        self.looks = looks
        self.end = end

    def see(self, row: Row | None) -> float | None:
        """Look at what is there: the seconds until the next look, None when there is none."""
        if self.end.done():  # cancelled
            return None
        if row is None or row[0] in FINAL:
            self.end.set_result(row)
            return None
        try:
            return self.looks.pause(row[0])
        except ResultTimeout as error:
            self.end.set_exception(error)
            return None


class Watch:
    """Those who wait on one event loop."""

    def __init__(self, look: Look) -> None:
        import asyncio

        self._look = look
        self.waiters: list[Waiter] = []
        self.soon = asyncio.Event()

    async def run(self) -> None:
        """Look until nobody waits any more."""
        import asyncio

        try:
            while self.waiters:
                self.soon.clear()
                pause = await self._look_once()
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self.soon.wait()
        finally:
            for waiter in self.waiters:  # the loop is ending
                waiter.end.cancel()

    async def _look_once(self) -> float:
        looked, self.waiters = self.waiters, []
        try:
            rows = await in_thread(self._look, {waiter.id for waiter in looked})
        except Exception as error:
            for waiter in looked:
                if not waiter.end.done():
                    waiter.end.set_exception(error)
            return 0.0
        except BaseException:
            self.waiters += looked
            raise
        pauses = {waiter: pause for waiter in looked if (pause := waiter.see(rows.get(waiter.id))) is not None}
        self.waiters += pauses
        return min(pauses.values(), default=0.0)


class Ends:
    """All who wait, each loop for itself."""

    def __init__(self, look: Look) -> None:
        self._look = look
        self._watches: dict[asyncio.AbstractEventLoop, Watch] = {}
        self._tasks: set[asyncio.Task[None]] = set()  # a loop keeps only weak references to its tasks

    async def wait(self, id: UUID, timeout: Duration | None) -> Row | None:
        """How a run ended; None when there is no such run."""
        import asyncio

        loop = asyncio.get_running_loop()
        waiter = Waiter(id, Looks(id, timeout), loop.create_future())
        watch = self._watches.get(loop)
        if watch is None:
            self._watches[loop] = watch = Watch(self._look)
            task = loop.create_task(self._run(loop, watch), context=contextvars.Context())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        watch.waiters.append(waiter)
        watch.soon.set()
        return await waiter.end

    async def _run(self, loop: asyncio.AbstractEventLoop, watch: Watch) -> None:
        try:
            await watch.run()
        finally:  # in the same turn as nobody waited any more
            del self._watches[loop]

    def hurry(self) -> None:
        """Something has ended, perhaps: look now. From any thread."""
        for loop, watch in list(self._watches.items()):
            with suppress(RuntimeError):  # it is closed by now
                loop.call_soon_threadsafe(watch.soon.set)
