"""Decide which runs may start under their limits: concurrency, and rates that are exact over a sliding window."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import msgspec

from holdfast.errors import ConfigError

CounterKey: TypeAlias = str
"""Identifies a counter: the name of its limit and its key."""

MAX_STARTS_PER_PERIOD = 10_000
RECHECK_MICROS = 10_000_000
"""How long parked runs wait before they are checked again, in case no released permit has woken them."""
RECHECK_SOON_MICROS = 100_000
"""The same for runs that couldn't be woken because their rows were locked."""

_RATE = re.compile(r"\s*(\d{1,9})\s*/\s*(\d{0,6})\s*(s|sec|second|m|min|minute|h|hour|d|day)s?\s*")
_SECONDS = {
    "s": 1, "sec": 1, "second": 1, "m": 60, "min": 60, "minute": 60, "h": 3600, "hour": 3600, "d": 86400, "day": 86400,
}  # fmt: skip


class Rate(NamedTuple):
    """At most `starts` starts within any `period` (microseconds)."""

    starts: int
    period: int


def parse_rate(text: object, what: str) -> Rate:
    """Parse a rate such as `100/min`, `5/s`, `1000/day` or `3/10s`."""
    found = _RATE.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise ConfigError(f'{what} must be a rate such as "100/min", "5/s" or "3/10s", not {str(text)[:60]!r}')
    count, number, unit = int(found[1]), int(found[2] or 1), found[3]
    if not 1 <= count <= MAX_STARTS_PER_PERIOD or number < 1:
        raise ConfigError(
            f"{what} must allow 1 to {MAX_STARTS_PER_PERIOD:,} starts per period, not {text!r}:"
            " use a shorter period for a higher rate"
        )
    return Rate(count, number * _SECONDS[unit] * 1_000_000)


class LimitCounter(msgspec.Struct):
    """A counter and its limits.

    `log` has the starts within the last period, oldest first, as [time, count]. `check_at`: when the runs parked on the
    counter are checked again, None if there are none.
    """

    used: int = 0
    concurrency: int | None = None
    rate: Rate | None = None
    log: list[list[int]] = msgspec.field(default_factory=list)
    check_at: int | None = None

    def free(self, now: int) -> int | None:
        """Return how many more runs may start now; None if unlimited."""
        room = [] if self.concurrency is None else [self.concurrency - self.used]
        if self.rate is not None:
            self.forget(now)
            room.append(self.rate.starts - sum(count for _, count in self.log))
        return max(min(room), 0) if room else None

    def forget(self, now: int) -> None:
        """Drop starts that have left the window. Starts in the future, after a clock was set back, count as now."""
        if self.rate is not None:
            start = now - self.rate.period
            self.log = [[min(at, now), count] for at, count in self.log if at > start]

    def take(self, now: int) -> None:
        self.used += 1
        if self.rate is None:
            return
        if self.log and self.log[-1][0] == now:
            self.log[-1][1] += 1
        else:
            self.log.append([now, 1])

    def opens_at(self, now: int) -> int:
        """Return when to check parked runs again: when the oldest start leaves the window.

        Permits that are free now have been given away, and released permits wake parked runs by themselves.
        """
        if self.rate is None or (self.concurrency is not None and self.used >= self.concurrency):
            return now + RECHECK_MICROS
        oldest = self.log[0][0] if self.log else now
        return min(oldest + self.rate.period, now + RECHECK_MICROS)


class Admission(NamedTuple):
    """The candidates that start, and for each of the others the counter that it waits for."""

    admitted: list[str]
    parked: dict[str, CounterKey]


def admit(
    candidates: Iterable[tuple[str, Sequence[CounterKey]]], counters: Mapping[CounterKey, LimitCounter], now: int
) -> Admission:
    """Admit runs in order while all their counters have room. The others wait for their first full counter.

    Updates the counters.
    """

    admitted: list[str] = []
    parked: dict[str, CounterKey] = {}
    left = {key: counter.free(now) for key, counter in counters.items()}
    for id, keys in candidates:
        full = next((key for key in keys if left[key] == 0), None)
        if full is not None:
            parked[id] = full
            continue
        admitted.append(id)
        for key in keys:
            counters[key].take(now)
            free = left[key]
            left[key] = None if free is None else free - 1
    waited_for = set(parked.values()) | {key for key, counter in counters.items() if counter.check_at is not None}
    for key in waited_for:
        counter = counters[key]
        opens = counter.opens_at(now)
        counter.check_at = opens if counter.check_at is None else min(counter.check_at, opens)
    return Admission(admitted, parked)
