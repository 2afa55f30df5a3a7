"""A worker that goes by a clock moved by hand, in tests: its lease moves along, its loops look, and it can die."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from holdfast.model.clock import MICROS_PER_SECOND
from holdfast.model.virtual_clock import VirtualClock

if TYPE_CHECKING:
    from holdfast.engine.attempt import Attempt
    from holdfast.engine.components import WorkerComponents

LOOK = 0.002


class VirtualTimeFollower:
    """What tests do to a worker by its clock. See `Follower`."""

    def __init__(self, components: WorkerComponents) -> None:
        self._components = components

    def begin(self) -> None:
        clock = self._components.store.clock
        if isinstance(clock, VirtualClock):
            clock.follow(self)

    def end(self) -> None:
        clock = self._components.store.clock
        if isinstance(clock, VirtualClock):
            clock.leave(self)

    @property
    def session(self) -> str | None:
        session = self._components.state.session
        return None if session is None else session.id

    def attempt(self, run: str) -> Attempt | None:
        return self._components.state.in_hand().get(run)

    def time_moves(self, by: int) -> None:
        """The lease is counted from the new time on, as if the heartbeat had gone on all the while."""
        if self.session is not None:
            self._components.store.sessions.renew(
                self.session, int(self._components.settings.lease * MICROS_PER_SECOND) + by
            )

    def time_moved(self) -> None:
        components = self._components
        for loop in (components.recovery, components.pruner, *components.clocks):
            loop.wake()

    def die(self) -> None:
        """As if killed: what is in hand is stopped, and nothing of it is written. A killed process takes its author
        code with it; here it must have ended before another may take its runs, in a new session of this worker."""
        session = self._components.state.session
        if session is not None:
            attempts = self._components.unfinished()
            self._components.lose(session, "the test lets this worker crash")
            self._bury(session.id, attempts)

    def _bury(self, session: str, attempts: list[Attempt]) -> None:
        components = self._components
        if all(attempt.over for attempt in attempts):
            components.store.sessions.renew(session, 0)
            components.recovery.wake()
            self._go_on()
        else:
            components.timer_thread.set(LOOK, partial(self._bury, session, attempts))

    def _go_on(self) -> None:
        if self.session is None:  # the heartbeat is about to open a new one
            self._components.timer_thread.set(LOOK, self._go_on)
        else:
            self._components.claimer.wake()
