"""Limits with their usage and the runs that wait for them."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.errors import ConfigError
from holdfast.model.clock import MICROS_PER_SECOND
from holdfast.store import Store
from holdfast.store.limits import CounterState, parse_counter_key


class CounterInfo(msgspec.Struct, frozen=True):
    """One counter of a limit."""

    key: Any
    """The key that it counts; None if the limit isn't keyed."""
    used: int
    """Permits in use."""
    started: int
    """Runs started within the last period."""
    parked: int
    """Waiting runs; counted up to 1,000."""


class LimitInfo(msgspec.Struct, frozen=True):
    """A limit with its usage."""

    name: str
    concurrency: int | None
    rate: int | None
    """Starts per period."""
    period: float | None
    """The period in seconds."""
    counters: list[CounterInfo]
    """Counters with used permits or waiting runs, busiest first."""


class LimitControl:
    """Lists limits with their counters."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def list(self, name: str | None = None) -> list[LimitInfo]:
        """List all limits, or the one with this name."""
        declared = [limit for limit in self._store.limits.list_all() if name is None or limit.name == name]
        if name is not None and not declared:
            known = ", ".join(limit.name for limit in self._store.limits.list_all())
            raise ConfigError(f"limit {name!r} does not exist" + (f"; known limits: {known}" if known else ""))
        counters = self._store.limits.counters(name)
        return [
            LimitInfo(
                limit.name, limit.concurrency, limit.rate,
                None if limit.period is None else limit.period / MICROS_PER_SECOND,
                [_counter(counter) for counter in counters if counter.name == limit.name],
            )
            for limit in declared
        ]  # fmt: skip


def format_counter(counter_id: str) -> str:
    """Name a counter: its limit, and its key if it has one."""
    name, key = parse_counter_key(counter_id)
    return f"{name} for {key}" if key else name


def decode_key(key: str) -> Any:
    """Decode the key of a counter; None if its limit isn't keyed."""
    try:
        return msgspec.json.decode(key) if key else None
    except msgspec.DecodeError:  # a corrupt row
        return key


def _counter(counter: CounterState) -> CounterInfo:
    return CounterInfo(decode_key(counter.key), counter.used, counter.started, counter.parked)
