"""How an app declares schedules and triggers: the part of `Holdfast` with those verbs. They do no I/O."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar, overload

from holdfast.errors import ConfigError
from holdfast.model.clock import Duration
from holdfast.policy.schedule_timing import CatchUp
from holdfast.task.takes import Takes0
from holdfast.task.task import Request, Task
from holdfast.task.timetable import Overlap, Poll, Timetable

F = TypeVar("F", bound=Poll)

POLL_SECONDS = 60


class Scheduling:
    """What makes runs by the clock, or by polling."""

    _timetable: Timetable

    @overload
    def schedule(
        self,
        name: str,
        task: Takes0[Any] | Request[Any],
        /,
        *,
        cron: str,
        tz: str = "UTC",
        catch_up: CatchUp = "skip",
        start: datetime | None = None,
        end: datetime | None = None,
        jitter: Duration = 0,
        overlap: Overlap = "allow",
    ) -> None: ...
    @overload
    def schedule(
        self,
        name: str,
        task: Takes0[Any] | Request[Any],
        /,
        *,
        every: Duration,
        catch_up: CatchUp = "skip",
        start: datetime | None = None,
        end: datetime | None = None,
        jitter: Duration = 0,
        overlap: Overlap = "allow",
    ) -> None: ...
    @overload
    def schedule(
        self,
        name: str,
        task: Task[..., Any],
        /,
        *,
        args: tuple[Any, ...],
        cron: str | None = None,
        every: Duration | None = None,
        tz: str = "UTC",
        catch_up: CatchUp = "skip",
        start: datetime | None = None,
        end: datetime | None = None,
        jitter: Duration = 0,
        overlap: Overlap = "allow",
    ) -> None: ...
    def schedule(self, name: str, task: Any, /, **settings: Any) -> None:
        """Make a run of a task, or of a request, at each slot of a cron expression in the time zone `tz`, or at each
        `every`. Workers take it up when they start; docs/schedules.md tells what becomes of missed slots."""
        known = [
            option for option in inspect.signature(Timetable.schedule).parameters if option not in ("self", "name")
        ]
        for unknown in settings.keys() - set(known):
            raise ConfigError(f"a schedule has no setting {unknown!r}; the settings are {', '.join(known[1:])}")
        self._timetable.schedule(name, task, **settings)

    def trigger(self, name: str, *, every: Duration, timeout: Duration = POLL_SECONDS) -> Callable[[F], F]:
        """Poll this function for requests, by one worker at a time: what it yields is enqueued once per key. It may be
        a generator, or return a list; `def` or `async def`."""

        def declare(fn: F) -> F:
            self._timetable.trigger(name, fn, every, timeout)
            return fn

        return declare
