"""Limits as the database knows them: what code declared, and how their counters stand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from holdfast.database import Row
from holdfast.policy.admission import LimitCounter, Rate
from holdfast.store.part import Do, Part, batch
from holdfast.store.permits import parts_of, starts_of


class LimitRow(NamedTuple):
    """A limit. `period`: microseconds."""

    name: str
    concurrency: int | None
    rate: int | None
    period: int | None
    declared_at: int


class CounterState(NamedTuple):
    """A counter: who it is for, how many permits are in use, how many runs were started within the last period, how
    many runs wait for it, and how many microseconds until those are looked at."""

    name: str
    key: str
    used: int
    concurrency: int | None
    rate: Rate | None
    started: int
    parked: int
    looks_in: int | None


class Limits(Part):
    """What limits are, and how they stand."""

    def declare(self, limits: Iterable[tuple[str, int | None, Rate | None]], *, overwrite: bool = True) -> None:
        """What code says about limits: name, concurrency and rate. Changes count from now on; without `overwrite` only
        limits that nobody declared before are added."""
        rows = [
            {
                "name": name, "concurrency": concurrency, "rate": None if rate is None else rate.starts,
                "period": None if rate is None else rate.period,
            }
            for name, concurrency, rate in limits
        ]  # fmt: skip

        def work(do: Do) -> None:
            changed = do(
                "declare_limits",
                rows=batch(sorted(rows, key=lambda row: str(row["name"]))),
                overwrite=int(overwrite),
            )
            if changed:
                do("look_at_limits", rows=batch({"name": name} for (name,) in changed))

        self._together("client", work)

    def all(self) -> list[LimitRow]:
        return [LimitRow._make(row) for row in self._one("read", "list_limits")]

    def counters(self, name: str | None = None, size: int = 200) -> list[CounterState]:
        """Counters that are in use or waited for, the busiest first."""
        return [_counter(row) for row in self._one("read", "list_counters", name=name, size=size)]

    def counter(self, place: str) -> CounterState | None:
        """How one counter stands."""
        rows = self._one("read", "one_counter", place=place)
        return _counter(rows[0]) if rows else None

    def holders(self, place: str, size: int = 10) -> Sequence[Row]:
        """Who holds permits of a counter: id, task, state, session, since when, tenant."""
        return self._one("read", "holders", place=msgspec.json.encode(place).decode(), size=size)


def _counter(row: Sequence[Any]) -> CounterState:
    place, used, log, look_at, concurrency, rate, period, now, parked = row
    name, key = parts_of(place)
    allowed = None if rate is None else Rate(rate, period)
    counter = LimitCounter(used, concurrency, allowed, starts_of(log))
    counter.forget(now)
    started = sum(count for _, count in counter.log)
    return CounterState(
        name, key, used, concurrency, allowed, started, parked, None if look_at is None else look_at - now
    )
