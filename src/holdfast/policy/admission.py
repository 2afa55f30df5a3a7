"""Which runs may start under their limits: concurrency, and rates that are exact over a sliding window."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import msgspec

from holdfast.errors import ConfigError

CounterKey: TypeAlias = str
"""What tells a counter from others: the name of its limit, and its key."""

MOST_PER_PERIOD = 10_000
RECHECK_MICROS = 10_000_000
"""Microseconds after which those that wait for a permit are looked at, should nobody have told them."""
RECHECK_SOON_MICROS = 100_000
"""The same for those that couldn't be told because someone else was at their rows for a moment."""

_RATE = re.compile(r"\s*(\d{1,9})\s*/\s*(\d{0,6})\s*(s|sec|second|m|min|minute|h|hour|d|day)s?\s*")
_SECONDS = {
    "s": 1,
    "sec": 1,
    "second": 1,
    "m": 60,
    "min": 60,
    "minute": 60,
    "h": 3600,
    "hour": 3600,
    "d": 86400,
    "day": 86400,
}


class Rate(NamedTuple):
    """So many starts in any period of so many microseconds."""

    starts: int
    period: int


def parse_rate(text: object, what: str) -> Rate:
    """A rate like `100/min`, `5/s`, `1000/day` or `3/10s`."""
    found = _RATE.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise ConfigError(f'{what} must be like "100/min", "5/s" or "3/10s", but is {str(text)[:60]!r}')
    count, number, unit = int(found[1]), int(found[2] or 1), found[3]
    if not 1 <= count <= MOST_PER_PERIOD or number < 1:
        raise ConfigError(
            f"{what} may be from 1 to {MOST_PER_PERIOD:,} in a period, but is {text!r}: for more, take a shorter period"
        )
    return Rate(count, number * _SECONDS[unit] * 1_000_000)


class LimitCounter(msgspec.Struct):
    """A counter and its caps. `log`: when how many were started, oldest first, within the last period."""

    used: int = 0
    concurrency: int | None = None
    rate: Rate | None = None
    log: list[list[int]] = msgspec.field(default_factory=list)
    look_at: int | None = None

    def free(self, now: int) -> int | None:
        """How many more may start now; None for any number."""
        room = [] if self.concurrency is None else [self.concurrency - self.used]
        if self.rate is not None:
            self.forget(now)
            room.append(self.rate.starts - sum(count for _, count in self.log))
        return max(min(room), 0) if room else None

    def forget(self, now: int) -> None:
        """Starts that the window has left behind don't count any more. Those of a clock that was put back since count
        from now on."""
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
        """When it is worth looking again, as some wait: what room there is now is given away already, so when the
        window leaves the oldest start behind. Permits that return tell by themselves."""
        if self.rate is None or (self.concurrency is not None and self.used >= self.concurrency):
            return now + RECHECK_MICROS
        oldest = self.log[0][0] if self.log else now
        return min(oldest + self.rate.period, now + RECHECK_MICROS)


class Admission(NamedTuple):
    """Which of the candidates start, and on which counter each of the others waits."""

    admitted: list[str]
    parked: dict[str, CounterKey]


def admit(
    candidates: Iterable[tuple[str, Sequence[CounterKey]]], counters: Mapping[CounterKey, LimitCounter], now: int
) -> Admission:
    """Let runs start in their order as far as all their counters have room; the others wait for the first that is full.
    Counters are changed."""
    admitted: list[str] = []
    parked: dict[str, CounterKey] = {}
    left = {place: counter.free(now) for place, counter in counters.items()}
    for id, places in candidates:
        full = next((place for place in places if left[place] == 0), None)
        if full is not None:
            parked[id] = full
            continue
        admitted.append(id)
        for place in places:
            counters[place].take(now)
            free = left[place]
            left[place] = None if free is None else free - 1
    waited_for = set(parked.values()) | {place for place, counter in counters.items() if counter.look_at is not None}
    for place in waited_for:
        counter = counters[place]
        opens = counter.opens_at(now)
        counter.look_at = opens if counter.look_at is None else min(counter.look_at, opens)
    return Admission(admitted, parked)
