"""Simulated threads, which the simulation runs one step at a time: engine loops, event loops and single calls.

Blocking code runs in a greenlet. Where a real thread would block, the greenlet yields, and the simulation resumes it
later.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from greenlet import GreenletExit, getcurrent, greenlet

from holdfast.engine.loops.base import Loop
from tests.proof.virtual_time import SECOND_US, Clock, SteppedLoop

if TYPE_CHECKING:
    from tests.proof.simulation import Simulation

NEVER_US = 1 << 62


class ProcessDied(BaseException):
    """The simulated process is dead, so the current call must not continue."""


class SimulatedThread:
    """A thread that the simulation can step. `due` is the time of its next step in microseconds."""

    def __init__(self, name: str, due: int = 0) -> None:
        self.name = name
        self.due = due
        self.stalled_until = 0
        self.over = False

    def step(self, sim: Simulation) -> None:
        raise NotImplementedError

    def schedule_at(self, when: int) -> None:
        """Schedule the next step at this time, or at the end of a stall if that is later."""
        self.due = max(when, self.stalled_until)

    def stall(self, until: int) -> None:
        self.stalled_until = until
        self.due = max(self.due, until)

    def discard(self) -> None:
        """Discard the current call."""


class GreenletThread(SimulatedThread):
    """A thread that runs blocking code in a greenlet."""

    _greenlet: greenlet | None = None

    @property
    def under_way(self) -> bool:
        return self._greenlet is not None

    def _resume(self, sim: Simulation, call: Callable[[], None]) -> bool:
        """Start or resume the call and return whether it has finished."""
        if self._greenlet is None:
            self._greenlet = greenlet(self._guarded(sim, call))
            self._greenlet.thread = self  # type: ignore[attr-defined]
        until = self._greenlet.switch()
        if self._greenlet.dead:
            self._greenlet = None
            return True
        self.schedule_at(until)
        return False

    def discard(self) -> None:
        if self._greenlet is not None:
            self._greenlet.throw()
            self._greenlet = None

    def _guarded(self, sim: Simulation, call: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            try:
                call()
            except (ProcessDied, GreenletExit):
                pass
            except BaseException as error:
                sim.fail(f"{self.name} raised {error!r}", error)

        return run


def yield_until(until: int) -> None:
    """Yield from the current greenlet to other threads until this time."""
    current = getcurrent()
    assert current.parent is not None, "only a greenlet can wait"
    current.parent.switch(until)


class LoopThread(GreenletThread):
    """The thread of an engine loop: ticks when its pause has elapsed or it was woken."""

    def __init__(self, name: str, loop: Loop, clock: Clock) -> None:
        super().__init__(name)
        self.loop = loop
        self._clock = clock
        self._woken = False
        self._pause = 0.0
        self.began_at = 0
        """Start time of the current tick, or of the last one."""
        loop.wake = self.wake  # type: ignore[method-assign]

    def wake(self) -> None:
        """End the pause, unless it follows a failed tick. A wake-up during a tick takes effect after it."""
        self._woken = True
        if self._greenlet is None and not self.loop._failed_ticks:
            self.schedule_at(self._clock.micros)

    def step(self, sim: Simulation) -> None:
        if self._greenlet is None:
            if self.loop._stopping.is_set():
                self.over = True
                return
            self._woken = False
            self.began_at = self._clock.micros
        if self._resume(sim, self._tick):
            pause = 0.0 if self._woken and not self.loop._failed_ticks else self._pause
            self.schedule_at(self._clock.micros + int(pause * SECOND_US))

    def _tick(self) -> None:
        self._pause = self.loop._guarded_tick()


class EventLoopThread(SimulatedThread):
    """The event loop of a worker, which runs task code."""

    def __init__(self, name: str, loop: SteppedLoop) -> None:
        super().__init__(name)
        self.loop = loop
        self.blocked_since: int | None = None
        loop.on_ready = self._reschedule
        self._reschedule()

    def block(self, now: int, until: int, blocker: asyncio.Task[Any] | None) -> None:
        """Block the event loop until this time, in the code of `blocker` or in other code."""
        self.stall(until)
        self.blocked_since = now
        self.loop.blocker = blocker

    def _reschedule(self) -> None:
        when = self.loop.next_at()
        self.schedule_at(NEVER_US if when is None else math.ceil(when * SECOND_US) + 1)

    def step(self, sim: Simulation) -> None:
        self.blocked_since = self.loop.blocker = None
        ran = self.loop.step(sim.random.choice((1, 1, 4, 30, 100)))
        self._reschedule()
        sim.note(f"{self.name} ran {ran}")
        for error in self.loop.raised:
            sim.fail(f"a callback of {self.name} raised {error!r}", error)


class CallThread(GreenletThread):
    """A thread that makes one call: task code, a client call or the start of a worker."""

    def __init__(self, name: str, call: Callable[[], None], due: int = 0) -> None:
        super().__init__(name, due)
        self._call = call

    def step(self, sim: Simulation) -> None:
        self.over = self._resume(sim, self._call)
