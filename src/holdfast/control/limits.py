"""Limits for operators: what they allow, what is in use, who waits for them."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.errors import ConfigError
from holdfast.model.clock import MICROS_PER_SECOND
from holdfast.store import Store
from holdfast.store.limits import CounterState
from holdfast.store.permits import parts_of


class CounterInfo(msgspec.Struct, frozen=True):
    """One counter of a limit."""

    key: Any
    """What it is for; None where the limit has only one."""
    used: int
    """Permits in use."""
    started: int
    """Runs started within the last period."""
    parked: int
    """Runs that wait for it; at most 1,000 are counted."""


class LimitInfo(msgspec.Struct, frozen=True):
    """A limit as it was when it was read."""

    name: str
    concurrency: int | None
    rate: int | None
    """Starts within a period."""
    period: float | None
    """Seconds."""
    counters: list[CounterInfo]
    """Those in use or waited for, the busiest first."""


class LimitControl:
    """Limits and their counters."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def list(self, name: str | None = None) -> list[LimitInfo]:
        """Every limit, or the one of that name."""
        declared = [limit for limit in self._store.limits.all() if name is None or limit.name == name]
        if name is not None and not declared:
            known = ", ".join(limit.name for limit in self._store.limits.all())
            raise ConfigError(f"there is no limit {name!r}" + (f"; there are {known}" if known else ""))
        counters = self._store.limits.counters(name)
        return [
            LimitInfo(
                limit.name, limit.concurrency, limit.rate,
                None if limit.period is None else limit.period / MICROS_PER_SECOND,
                [_counter(counter) for counter in counters if counter.name == limit.name],
            )
            for limit in declared
        ]  # fmt: skip


def shown_place(place: str) -> str:
    """A counter in words: the name of its limit, and its key where it has one."""
    name, key = parts_of(place)
    return f"{name} for {key}" if key else name


def shown_key(key: str) -> Any:
    """What a counter is for; None where its limit has only one."""
    try:
        return msgspec.json.decode(key) if key else None
    except msgspec.DecodeError:  # a corrupt row
        return key


def _counter(counter: CounterState) -> CounterInfo:
    return CounterInfo(shown_key(counter.key), counter.used, counter.started, counter.parked)
