"""Times and durations. Internally a time is an integer: microseconds since 1970, UTC."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from holdfast.errors import ConfigError

Duration: TypeAlias = timedelta | float
"""A `timedelta`, or seconds."""

Clock: TypeAlias = Callable[[], int | None]
"""Returns the time that statements use, or None for the database's own clock."""

MICROS_PER_SECOND = 1_000_000
UNITS_S = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
MAX_DURATION_MICROS = 200 * 365 * 86_400 * MICROS_PER_SECOND
"""Longer durations are mistakes and would overflow a datetime."""

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h|d)?", re.IGNORECASE)
_UNITS_S = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_MIN_DATETIME = datetime(1, 1, 2, tzinfo=UTC)
_MAX_DATETIME = datetime(9999, 12, 30, tzinfo=UTC)
"""One day inside the range of datetime, so that conversion to any time zone succeeds."""
MIN_STORED_MICROS = (_MIN_DATETIME - _EPOCH) // _MICROSECOND
MAX_STORED_MICROS = (_MAX_DATETIME - _EPOCH) // _MICROSECOND


def database_clock() -> int | None:
    """Use the database's clock, as in production."""
    return None


def to_micros(duration: Duration, what: str = "duration") -> int:
    """Convert a duration to microseconds. Raise ConfigError if it isn't one or is negative."""
    if isinstance(duration, timedelta):
        micros = duration // _MICROSECOND
    elif isinstance(duration, int | float) and not isinstance(duration, bool):
        if not abs(duration) < MAX_DURATION_MICROS / MICROS_PER_SECOND:
            raise ConfigError(f"{what} of {duration} seconds is too long; the maximum is 200 years")
        micros = round(duration * MICROS_PER_SECOND)
    else:
        raise ConfigError(f"{what} must be a timedelta or a number of seconds, not {type(duration).__name__}")
    if micros < 0:
        raise ConfigError(f"{what} must not be negative: {duration}")
    if micros > MAX_DURATION_MICROS:
        raise ConfigError(f"{what} of {duration} is too long; the maximum is 200 years")
    return micros


def time_to_micros(time: datetime, what: str = "time") -> int:
    """Convert an aware datetime to microseconds. Naive ones are rejected because they are ambiguous."""
    if not isinstance(time, datetime):
        raise ConfigError(f"{what} must be a datetime with a time zone, not {type(time).__name__}")
    if time.tzinfo is None:
        raise ConfigError(f"{what} needs a time zone: use datetime(…, tzinfo=UTC) or datetime.now(UTC)")
    return (time - _EPOCH) // _MICROSECOND


def to_datetime(micros: int) -> datetime:
    """Convert a stored time to an aware datetime (UTC). Values out of range, as in a corrupt row, are clamped."""

    try:
        return min(max(_EPOCH + timedelta(microseconds=micros), _MIN_DATETIME), _MAX_DATETIME)
    except OverflowError:
        return _MAX_DATETIME if micros > 0 else _MIN_DATETIME


def is_datetime(micros: int) -> bool:
    """Return whether a stored time is in the range that datetime can represent, unlike many in corrupt rows."""
    return MIN_STORED_MICROS <= micros <= MAX_STORED_MICROS


def to_datetime_or_none(micros: int | None) -> datetime | None:
    return None if micros is None else to_datetime(micros)


# Display


def parse_duration(text: str) -> float | None:
    """Return the seconds of a text such as `90`, `90s`, `15m`, `2h` or `7d`; None if it isn't one."""
    found = _DURATION.fullmatch(text.strip())
    return None if found is None else float(found[1]) * _UNITS_S[(found[2] or "s").lower()]


def format_duration(seconds: float) -> str:
    """Format a duration for people: `4 ms`, `3.1 s`, `42 s`, `1 min 30 s`, `12 min`. Negative ones count as 0."""
    if seconds < 1:
        return f"{max(seconds, 0) * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    at = next(at for at, (size_s, _) in enumerate(UNITS_S) if seconds >= size_s)
    (size_s, unit), smaller = UNITS_S[at], UNITS_S[at + 1 : at + 2]
    whole, rest = divmod(int(seconds), size_s)
    if whole < 10 and smaller and rest >= smaller[0][0]:
        return f"{whole} {unit} {rest // smaller[0][0]} {smaller[0][1]}"
    return f"{whole} {unit}"


def format_ago(time: datetime, now: datetime | None = None) -> str:
    """Format a time relative to now: `12 s ago`, `in 4 h 59 min`."""
    seconds = ((now or datetime.now(UTC)) - time).total_seconds()
    if abs(seconds) < 1:
        return "now"
    return f"{format_duration(seconds)} ago" if seconds > 0 else f"in {format_duration(-seconds)}"
