"""Let a worker follow a virtual clock in tests: move its lease with the clock, wake its loops, and simulate crashes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from holdfast.model.clock import MICROS_PER_SECOND
from holdfast.model.virtual_clock import VirtualClock

if TYPE_CHECKING:
    from holdfast.engine.attempt import Attempt
    from holdfast.engine.components import WorkerComponents

POLL_INTERVAL_S = 0.002


class VirtualTimeFollower:
    """One worker as its virtual clock sees it: a `ClockFollower`."""

    def __init__(self, components: WorkerComponents) -> None:
        self._components = components

    def begin(self) -> None:
        """Follow the store's clock, if that is a virtual one."""
        clock = self._components.store.clock
        if isinstance(clock, VirtualClock):
            clock.follow(self)

    def end(self) -> None:
        clock = self._components.store.clock
        if isinstance(clock, VirtualClock):
            clock.leave(self)

    @property
    def session(self) -> str | None:
        return self._components.state.session_id()

    def attempt(self, run: str) -> Attempt | None:
        return self._components.state.claimed().get(run)

    def time_moves(self, by: int) -> None:
        """Extend the lease by the same time, as if the heartbeat had continued meanwhile."""
        if self.session is not None:
            lease = int(self._components.settings.lease * MICROS_PER_SECOND)
            self._components.store.sessions.renew(self.session, lease + by)

    def time_moved(self) -> None:
        components = self._components
        for loop in (components.recovery, components.pruner, *components.clock_loops):
            loop.wake()

    def die(self) -> None:
        """Stop all attempts without writing anything, as if the process had been killed.

        A killed process takes its user code with it. Here the code must have stopped before another session of this
        worker may take over its runs.
        """
        session = self._components.state.session
        if session is not None:
            attempts = self._components.state.unfinished()
            self._components.lose_session(session, "simulated crash")
            self._expire_when_stopped(session.id, attempts)

    def _expire_when_stopped(self, session: str, attempts: list[Attempt]) -> None:
        components = self._components
        if all(attempt.stopped for attempt in attempts):
            components.store.sessions.renew(session, 0)
            components.recovery.wake()
            self._claim_in_new_session()
        else:
            retry = partial(self._expire_when_stopped, session, attempts)
            components.timer_thread.call_later(POLL_INTERVAL_S, retry)

    def _claim_in_new_session(self) -> None:
        if self.session is None:  # the heartbeat is about to open a new session
            self._components.timer_thread.call_later(POLL_INTERVAL_S, self._claim_in_new_session)
        else:
            self._components.claimer.wake()
