"""The health of one worker: is the process alive, and is it ready for work?

Both answers come from what the worker's threads have recorded. Nothing here calls the database or waits for the event
loop, so a probe is answered at once even if one of them hangs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from holdfast.engine.components import WorkerComponents
from holdfast.engine.event_loop import REPORT_STALL_S, describe_lost_threads


class ProbeReport(msgspec.Struct, frozen=True):
    """The result of a probe: the reason of each check that failed, None for each that passed."""

    checks: Mapping[str, str | None]

    @property
    def ok(self) -> bool:
        """Whether all checks passed."""
        return all(reason is None for reason in self.checks.values())


class WorkerHealth:
    """Answers the probes of one worker. From any thread."""

    def __init__(self, components: WorkerComponents, is_stopping: Callable[[], bool]) -> None:
        self._components = components
        self._is_stopping = is_stopping

    def live(self) -> ProbeReport:
        """Report what only a restart of the process repairs. An unreachable database isn't among it."""
        return ProbeReport(
            {
                "event_loop": self._blocked_loop(),
                "threads": describe_lost_threads(self._components.runner),
                "lease": self._lost_lease(),
            }
        )

    def ready(self) -> ProbeReport:
        """Report whether the worker claims runs."""
        return ProbeReport(
            {
                "database": self._components.store.database.unavailable_reason(),
                "schema": None if self._components.state.has_begun else "not checked yet: the worker is starting",
                "claiming": self._claiming(),
            }
        )

    def _blocked_loop(self) -> str | None:
        lag_s = self._components.monitor.lag
        if lag_s <= REPORT_STALL_S:
            return None
        problem = self._components.stall_handler.status.problem
        return f"{problem or 'event loop blocked'} for {lag_s:.0f} s"

    def _lost_lease(self) -> str | None:
        """Return why the worker has no valid lease although the database answers.

        While it doesn't, nobody can renew a lease, and a new process couldn't either.
        """
        state = self._components.state
        session = state.session
        if self._is_stopping() or not state.has_begun or self._components.store.database.unavailable_reason():
            return None
        if session is None:
            return "lost, and no new session is open"
        left_s = session.seconds_left()
        return None if left_s > 0 else f"expired {-left_s:.0f} s ago"

    def _claiming(self) -> str | None:
        if self._is_stopping():
            return "the worker is stopping"
        claimer = self._components.claimer
        if not claimer.running:
            return "the worker is starting" if not self._components.state.has_begun else "the worker has stopped"
        if claimer.is_failing:
            return "the last claim failed; the log says why"
        if self._components.state.session is None:
            return "no session is open"
        return self._blocked_loop()
