"""A clock that stands still until it is moved, for tests: statements go by it instead of the database's own clock."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from holdfast.errors import ConfigError
from holdfast.model.clock import Clock, Duration, time_to_micros, to_datetime, to_micros


class ClockFollower(Protocol):
    """A worker that goes by such a clock, as a test sees it."""

    @property
    def session(self) -> str | None:
        """The id of its session, while it has one."""

    def attempt(self, run: str) -> Any:
        """The attempt of a run that it has in hand, or None."""

    def time_moves(self, by: int) -> None:
        """Right before the clock is moved by so many microseconds."""

    def time_moved(self) -> None:
        """Right after."""

    def die(self) -> None:
        """Write nothing more, as a process that was killed."""


class VirtualClock:
    """The time of a test: real at its start, then still until `advance` or `set`."""

    def __init__(self, now: datetime | None = None) -> None:
        self._now = time_to_micros(datetime.now(UTC) if now is None else now, "now")
        self._followers: list[ClockFollower] = []
        self._lock = threading.Lock()

    def __call__(self) -> int:
        return self._now

    @property
    def now(self) -> datetime:
        """The time, in UTC."""
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
        """Move on by a `timedelta` or seconds, or by what is named. What is due then happens in the next drain, or at
        once where a worker is at work. The new time."""
        named = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
        if duration is not None and named:
            raise ConfigError(
                "the clock is advanced by a duration, or by days, hours, minutes and seconds, not by both"
            )
        return self._move(to_micros(named if duration is None else duration, "what the clock is advanced by"))

    def set(self, time: datetime) -> datetime:
        """Go to a moment, which may be a past one while no worker is at work."""
        by = time_to_micros(time, "the time to set the clock to") - self._now
        if by < 0 and self._followers:
            raise ConfigError(f"the clock can't go back to {time} while a worker goes by it; set it before")
        return self._move(by)

    def _move(self, by: int) -> datetime:
        """Living workers keep their leases, as they would have over so much time; those of dead ones run out."""
        with self._lock:
            followers = list(self._followers)
            for follower in followers:
                follower.time_moves(by)
            self._now += by
        for follower in followers:
            follower.time_moved()
        return self.now

    # For workers

    def follow(self, follower: ClockFollower) -> None:
        with self._lock:
            self._followers.append(follower)

    def leave(self, follower: ClockFollower) -> None:
        with self._lock:
            if follower in self._followers:
                self._followers.remove(follower)

    def worker(self, session: str) -> ClockFollower | None:
        """The worker of a session, if it is alive."""
        return next((follower for follower in list(self._followers) if follower.session == session), None)

    def __repr__(self) -> str:
        return f"<clock at {self.now.isoformat()}>"


def real_seconds(clock: Clock, seconds: float) -> float:
    """How long to wait in this process for something by the clock: not at all by one that stands still meanwhile."""
    return 0.0 if isinstance(clock, VirtualClock) else seconds
