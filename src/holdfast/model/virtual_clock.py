"""A clock for tests that stands still until it is advanced. Statements use it instead of the database's clock."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from holdfast.errors import ConfigError
from holdfast.model.clock import Clock, Duration, time_to_micros, to_datetime, to_micros


class ClockFollower(Protocol):
    """A worker that uses a virtual clock."""

    @property
    def session(self) -> str | None:
        """The id of its session, if it has one."""

    def attempt(self, run: str) -> Any:
        """Return the attempt of a run that the worker has claimed, or None."""

    def time_moves(self, by: int) -> None:
        """Called right before the clock advances by `by` microseconds."""

    def time_moved(self) -> None:
        """Called right after the clock advanced."""

    def die(self) -> None:
        """Stop writing, like a killed process."""


class VirtualClock:
    """The clock of a test: starts at the real time and stands still until `advance` or `set`."""

    def __init__(self, now: datetime | None = None) -> None:
        self._now = time_to_micros(datetime.now(UTC) if now is None else now, "now")
        self._followers: list[ClockFollower] = []
        self._lock = threading.Lock()
        self.before_advance: Callable[[], None] = lambda: None
        """Called right before the clock advances. The kit uses it."""

    def __call__(self) -> int:
        return self._now

    @property
    def now(self) -> datetime:
        """The current time, in UTC."""
        return to_datetime(self._now)

    def advance(
        self,
        duration: Duration | None = None,
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
    ) -> datetime:
        """Advance by a `timedelta` or seconds, or by the named units; return the new time.

        Work that becomes due runs in the next drain, or at once if a worker is running. That includes a run for each
        slot of a schedule that the clock passes, as if a worker had been running all the time.
        """
        named = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
        if duration is not None and named:
            raise ConfigError("advance takes either a duration or days, hours, minutes and seconds, not both")
        by = to_micros(named if duration is None else duration, "the duration of advance")
        self.before_advance()
        return self._move(by)

    def set(self, time: datetime) -> datetime:
        """Set the time; return it. It may be in the past only while no worker is running.

        Before the first drain or `advance`, it is the time at which the test starts: schedules have no slots before it.
        """
        by = time_to_micros(time, "the time of set") - self._now
        if by < 0 and self._followers:
            raise ConfigError(f"the clock can't go back to {time} while a worker is running; set it before")
        return self._move(by)

    def _move(self, by: int) -> datetime:
        """Move the clock. Running workers keep their leases, as if renewed; leases of dead ones expire."""
        with self._lock:
            followers = list(self._followers)
            for follower in followers:
                follower.time_moves(by)
            self._now += by
        for follower in followers:
            follower.time_moved()
        return self.now

    def follow(self, follower: ClockFollower) -> None:
        with self._lock:
            self._followers.append(follower)

    def leave(self, follower: ClockFollower) -> None:
        with self._lock:
            if follower in self._followers:
                self._followers.remove(follower)

    def worker(self, session: str) -> ClockFollower | None:
        """Return the worker of a session, if it is alive."""
        return next((follower for follower in list(self._followers) if follower.session == session), None)

    def __repr__(self) -> str:
        return f"<clock at {self.now.isoformat()}>"


def real_seconds(clock: Clock, seconds: float) -> float:
    """Return how long to really wait for `seconds` of the clock: not at all for a virtual clock."""

    return 0.0 if isinstance(clock, VirtualClock) else seconds
