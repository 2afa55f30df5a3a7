"""Read limits with their usage, and change what they allow at run time."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.errors import ConfigError
from holdfast.model.clock import MICROS_PER_SECOND, to_datetime_or_none
from holdfast.model.limit import CounterInfo, LimitInfo, PermitHolder
from holdfast.model.names import actor_or_user, check_name
from holdfast.model.step_keys import key_label
from holdfast.policy.admission import check_bounds
from holdfast.store.limits import Bounds, CounterState, LimitRow, parse_counter_key, parse_permits

if TYPE_CHECKING:
    from holdfast.store.store import Store

MAX_HOLDERS = 100


class LimitSettings:
    """The limits of a database."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def list(self, name: str | None = None) -> builtins.list[LimitInfo]:
        """List all limits, or the one with this name and the runs that hold its permits."""
        rows = self._store.limits.list_all()
        found = [row for row in rows if name is None or row.name == name]
        if name is not None and not found:
            raise _unknown(name, rows)
        counters = self._store.limits.counters(name)
        holders = None if name is None else self._holders(name)
        return [_info(row, [counter for counter in counters if counter.name == row.name], holders) for row in found]

    def _holders(self, name: str) -> builtins.list[PermitHolder]:
        return [
            PermitHolder(
                UUID(str(row.id)),
                row.task,
                row.tenant,
                decode_key(key),
                None if row.step is None else key_label(row.step),
                row.session,
                to_datetime_or_none(row.since),
                permit.cost,
            )
            for row in self._store.limits.holders_of(name, MAX_HOLDERS)
            for permit in parse_permits(row.limits)
            for limit, key in [parse_counter_key(permit.counter)]
            if limit == name
        ]

    def exists(self, name: str) -> bool:
        """Return whether a limit with this name is declared."""
        return self._store.limits.find(name) is not None

    def set(
        self,
        name: str,
        *,
        rate: str | UnsetType | None = UNSET,
        concurrency: int | UnsetType | None = UNSET,
        by: str | None = None,
    ) -> LimitInfo:
        """Set what a limit allows, until `reset`. What isn't given stays; None removes the bound.

        Raises ConfigError for unknown limits and invalid values.
        """
        check_name(name, "the name of a limit")
        if isinstance(rate, UnsetType) and isinstance(concurrency, UnsetType):
            raise ConfigError(f"limit {name}: set rate=, concurrency= or both")
        current = self._store.limits.find(name)
        if current is None:
            raise _unknown(name, self._store.limits.list_all())
        given = check_bounds(
            f"limit {name}",
            None if isinstance(concurrency, UnsetType) else concurrency,
            None if isinstance(rate, UnsetType) else rate,
        )
        bounds: Bounds = (
            current.bounds[0] if isinstance(concurrency, UnsetType) else given[0],
            current.bounds[1] if isinstance(rate, UnsetType) else given[1],
        )
        self._store.limits.set(name, bounds, actor_or_user(by))
        return self.list(name)[0]

    def reset(self, name: str) -> LimitInfo:
        """Return a limit to what the code declares. Raises ConfigError for unknown limits."""
        self._store.limits.reset(name)
        return self.list(name)[0]


def _unknown(name: str, rows: builtins.list[LimitRow]) -> ConfigError:
    known = ", ".join(row.name for row in rows)
    return ConfigError(
        f"limit {name!r} does not exist" + (f"; known limits: {known}" if known else ": no worker has declared one")
    )


def decode_key(key: str) -> Any:
    """Decode the key of a counter; None if its limit isn't keyed."""
    try:
        return msgspec.json.decode(key) if key else None
    except msgspec.DecodeError:  # a corrupt row
        return key


def _info(
    row: LimitRow, counters: builtins.list[CounterState], holders: builtins.list[PermitHolder] | None
) -> LimitInfo:
    declared_concurrency, declared_rate = row.declared_bounds
    return LimitInfo(
        row.name,
        row.concurrency,
        row.rate,
        _seconds(row.period),
        [CounterInfo(decode_key(each.key), each.used, each.started, each.parked, each.steps) for each in counters],
        bool(row.weighted),
        to_datetime_or_none(row.set_at),
        row.set_by,
        declared_concurrency,
        None if declared_rate is None else declared_rate.starts,
        None if declared_rate is None else _seconds(declared_rate.period),
        holders,
    )


def _seconds(micros: int | None) -> float | None:
    return None if micros is None else micros / MICROS_PER_SECOND
