"""Decide what may start under its limits: concurrency, and rates that are exact over a sliding window.

A start counts 1 against a rate, or its cost if the limit is weighted. Concurrency counts runs and steps, not costs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import msgspec

from holdfast.errors import BadArguments, ConfigError

CounterKey: TypeAlias = str
"""Identifies a counter: the name of its limit and its key."""

MAX_CONCURRENCY = 1_000_000
MAX_RATE = 999_999_999
MAX_COST = MAX_RATE
MAX_EXACT_STARTS = 10_000
"""Up to this rate, the log of a counter has every start."""
MAX_LOG_ENTRIES = 2_000
"""The log of a higher rate is shortened: two starts that follow each other count as the later one."""
RECHECK_MICROS = 10_000_000
"""How long parked runs wait before they are checked again, in case no released permit has woken them."""
RECHECK_SOON_MICROS = 100_000
"""The same for runs that couldn't be woken because their rows were locked."""

_RATE = re.compile(r"\s*(\d{1,9})\s*/\s*(\d{0,6})\s*(s|sec|second|m|min|minute|h|hour|d|day)s?\s*")
_SECONDS = {
    "s": 1, "sec": 1, "second": 1, "m": 60, "min": 60, "minute": 60, "h": 3600, "hour": 3600, "d": 86400, "day": 86400,
}  # fmt: skip


class Rate(NamedTuple):
    """At most `starts` starts, or starts with this cost, within any `period` (microseconds)."""

    starts: int
    period: int


class Permit(NamedTuple):
    """What a run or step needs of a counter. `cost`: how much it counts against the rate."""

    counter: CounterKey
    cost: int = 1


def parse_rate(text: object, what: str) -> Rate:
    """Parse a rate such as `100/min`, `5/s`, `1000/day` or `3/10s`."""
    found = _RATE.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise ConfigError(f'{what} must be a rate such as "100/min", "5/s" or "3/10s", not {str(text)[:60]!r}')
    count, number, unit = int(found[1]), int(found[2] or 1), found[3]
    if count < 1 or number < 1:
        raise ConfigError(f"{what} must allow 1 to {MAX_RATE:,} per period, not {text!r}")
    return Rate(count, number * _SECONDS[unit] * 1_000_000)


def check_cost(value: object, what: str) -> int:
    """Return a cost as a whole number, rounded up; raise BadArguments if it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_COST:
        raise BadArguments(f"{what} must be a number from 0 to {MAX_COST:,}, not {str(value)[:60]!r}")
    return math.ceil(value)


def check_bounds(where: str, concurrency: object, rate: object) -> tuple[int | None, Rate | None]:
    """Return the concurrency and the rate of a limit, if they are valid."""
    if concurrency is not None and (
        isinstance(concurrency, bool) or not isinstance(concurrency, int) or not 1 <= concurrency <= MAX_CONCURRENCY
    ):
        raise ConfigError(f"{where}: concurrency must be an integer from 1 to {MAX_CONCURRENCY:,}, not {concurrency!r}")
    return concurrency, None if rate is None else parse_rate(rate, f"{where}: rate")


class LimitCounter(msgspec.Struct):
    """A counter and its limits.

    `log` has the starts within the last period, oldest first, as [time, cost]. `check_at`: when the runs and steps that
    wait for the counter are checked again, None if there are none. `weighted`: whether starts have a cost. `steps`:
    whether steps wait for the counter, or did shortly before.
    """

    used: int = 0
    concurrency: int | None = None
    rate: Rate | None = None
    log: list[list[int]] = msgspec.field(default_factory=list)
    check_at: int | None = None
    weighted: bool = False
    steps: bool = False

    def slots(self) -> int | None:
        """Return how many permits are left; None if unlimited."""
        return None if self.concurrency is None else max(self.concurrency - self.used, 0)

    def room(self, now: int) -> int | None:
        """Return how much of the rate is left; None if unlimited."""
        if self.rate is None:
            return None
        self.forget(now)
        return max(self.rate.starts - sum(count for _, count in self.log), 0)

    def free(self, now: int) -> int | None:
        """Return how many more runs may start now; None if unlimited."""
        return min((left for left in (self.slots(), self.room(now)) if left is not None), default=None)

    def exceeds(self, cost: int) -> bool:
        """Return whether a cost is higher than all that the rate allows, so that it never fits."""
        return self.rate is not None and cost > self.rate.starts

    def forget(self, now: int) -> None:
        """Drop starts that have left the window. Starts in the future, after a clock was set back, count as now."""
        if self.rate is not None:
            start = now - self.rate.period
            self.log = [[min(at, now), count] for at, count in self.log if at > start]

    def take(self, now: int, cost: int = 1) -> None:
        self.used += 1
        if self.rate is None or cost == 0:
            return
        if self.log and self.log[-1][0] == now:
            self.log[-1][1] += cost
        else:
            self.log.append([now, cost])
        if self.rate.starts > MAX_EXACT_STARTS and len(self.log) > MAX_LOG_ENTRIES:
            self._shorten()

    def _shorten(self) -> None:
        """Merge neighbors in the log. The sum counts from the later time on, so that no window exceeds the rate."""
        pairs = [self.log[at : at + 2] for at in range(0, len(self.log), 2)]
        self.log = [[pair[-1][0], sum(cost for _, cost in pair)] for pair in pairs]

    def correct(self, taken_at: int, change: int, now: int) -> None:
        """Change the cost of a start in the log, unless it has left the window."""
        if self.rate is None or change == 0 or taken_at <= now - self.rate.period:
            return
        self.forget(now)
        taken_at = min(taken_at, now)
        if change > 0:
            at = next((index for index, (time, _) in enumerate(self.log) if time > taken_at), len(self.log))
            self.log.insert(at, [taken_at, change])
            return
        for entry in self.log:
            if entry[0] >= taken_at:
                less = min(entry[1], -change)
                entry[1] -= less
                change += less
        self.log = [entry for entry in self.log if entry[1] > 0]

    def opens_at(self, now: int, need: int = 1) -> int:
        """Return when to check what waits for the counter again: when so much has left the window that `need` fits.

        Permits that are free now have been given away, and released permits wake parked runs by themselves.
        """
        latest = now + RECHECK_MICROS
        room = self.room(now)
        if self.rate is None or room is None or self.slots() == 0:
            return latest
        missing = max(need - room, 1)
        for at, count in self.log:
            missing -= count
            if missing <= 0:
                return min(at + self.rate.period, latest)
        return min((self.log[-1][0] if self.log else now) + self.rate.period, latest)


class Admission(NamedTuple):
    """The candidates that start, and for each of the others the counter that it waits for."""

    admitted: list[str]
    parked: dict[str, CounterKey]


class Reserved(NamedTuple):
    """Permits of a counter, and the cost of their starts, that are reserved for others."""

    permits: int = 0
    cost: int = 0


NOTHING_RESERVED = Reserved()


class Room:
    """What is left of some counters while permits are taken in one transaction."""

    def __init__(self, counters: Mapping[CounterKey, LimitCounter], now: int) -> None:
        self._counters = counters
        self._now = now
        self._slots = {key: counter.slots() for key, counter in counters.items()}
        self._room = {key: counter.room(now) for key, counter in counters.items()}

    def lacking(
        self, permits: Iterable[Permit], reserved: Mapping[CounterKey, Reserved] | None = None
    ) -> Permit | None:
        """Return the first of these permits that isn't available, apart from what is reserved for others, or None."""
        for permit in permits:
            slots, room = self._slots[permit.counter], self._room[permit.counter]
            kept = NOTHING_RESERVED if reserved is None else reserved.get(permit.counter, NOTHING_RESERVED)
            if slots is not None and slots <= kept.permits:
                return permit
            if room is not None and permit.cost > 0 and room < permit.cost + kept.cost:
                return permit
        return None

    def take(self, permits: Iterable[Permit]) -> None:
        """Take permits that are available, as `lacking` says."""
        for key, cost in permits:
            self._counters[key].take(self._now, cost)
            slots, room = self._slots[key], self._room[key]
            self._slots[key] = None if slots is None else slots - 1
            self._room[key] = None if room is None else max(room - cost, 0)


def admit(
    candidates: Iterable[tuple[str, Sequence[Permit]]],
    counters: Mapping[CounterKey, LimitCounter],
    now: int,
    reserved: Mapping[CounterKey, Reserved] | None = None,
    is_behind: Callable[[str, CounterKey], bool] | None = None,
) -> Admission:
    """Admit runs in order while all their counters have room. The others wait for their first full counter.

    Of a weighted counter, a run gets nothing while a run before it waits: otherwise cheap runs would keep an expensive
    one waiting forever. `is_behind`: whether a run comes after one that is parked on the counter already. Updates the
    counters.
    """

    admitted: list[str] = []
    parked: dict[str, CounterKey] = {}
    needs: dict[CounterKey, int] = {}
    room = Room(counters, now)
    for id, permits in candidates:
        full = room.lacking(permits, reserved) or next(
            (
                permit
                for permit in permits
                if counters[permit.counter].weighted
                and permit.cost
                and (permit.counter in needs or (is_behind is not None and is_behind(id, permit.counter)))
            ),
            None,
        )
        if full is None:
            admitted.append(id)
            room.take(permits)
            continue
        parked[id] = full.counter
        if not counters[full.counter].exceeds(full.cost):
            needs.setdefault(full.counter, full.cost)
    waited_for = set(parked.values()) | {key for key, counter in counters.items() if counter.check_at is not None}
    for key in waited_for:
        counter = counters[key]
        opens = counter.opens_at(now, needs.get(key, 1))
        counter.check_at = opens if counter.check_at is None else min(counter.check_at, opens)
    return Admission(admitted, parked)
