"""Limits: their declarations, the state of their counters, and the permits that runs take and return.

A claim takes permits in its own transaction; they return when the session releases the run. Counters are locked after
runs, in order of their keys. A run whose limit is full is parked: it leaves the ready index until a permit returns.
`policy/admission.py` computes which runs may start.
"""

from __future__ import annotations

from collections import Counter as Count
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from holdfast.database import Row
from holdfast.policy.admission import RECHECK_SOON_MICROS, LimitCounter, Rate, admit
from holdfast.store.module import StoreModule, Tx, json_rows
from holdfast.store.typed_rows import RowReader

MAX_UNPARKED_RUNS = 1000
"""How many runs are unparked at once if a counter has no bound, or its room goes unused."""

_decode_counter_key = msgspec.json.Decoder(tuple[str, str]).decode
_decode_limits = msgspec.json.Decoder(list[str]).decode
_decode_log = msgspec.json.Decoder(list[tuple[int, int]]).decode


class LimitRow(NamedTuple):
    """A declared limit. `period`: microseconds."""

    name: str
    concurrency: int | None
    rate: int | None
    period: int | None
    declared_at: int


class CounterState(NamedTuple):
    """A counter of a limit.

    `used`: permits in use. `started`: runs started within the last period. `parked`: runs that wait for it. `looks_in`:
    microseconds until parked runs are checked again.
    """

    name: str
    key: str
    used: int
    concurrency: int | None
    rate: Rate | None
    started: int
    parked: int
    looks_in: int | None


_LIMIT_ROWS = RowReader(LimitRow)


class LimitStore(StoreModule):
    """Declared limits and the state of their counters."""

    def declare(self, limits: Iterable[tuple[str, int | None, Rate | None]], *, overwrite: bool = True) -> None:
        """Declare limits by name, concurrency and rate. Without `overwrite`, keep what others have declared."""
        rows = [
            {
                "name": name, "concurrency": concurrency, "rate": None if rate is None else rate.starts,
                "period": None if rate is None else rate.period,
            }
            for name, concurrency, rate in limits
        ]  # fmt: skip
        rows.sort(key=lambda row: str(row["name"]))
        if not overwrite:
            self._execute("client", "add_limits", rows=json_rows(rows))
            return

        def work(tx: Tx) -> None:
            changed = tx.execute("declare_limits", rows=json_rows(rows))
            if changed:
                tx.execute("check_parked_soon", rows=json_rows({"name": name} for (name,) in changed))

        self._transaction("client", work)

    def list_all(self) -> list[LimitRow]:
        """Return the declared limits by name."""
        return _LIMIT_ROWS.read_all(self._execute("read", "list_limits"))

    def counters(self, name: str | None = None, size: int = 200) -> list[CounterState]:
        """Return counters that are in use or waited for, the busiest first."""
        return [_counter_state(row) for row in self._execute("read", "list_counters", name=name, size=size)]

    def counter(self, key: str) -> CounterState | None:
        """Return the state of one counter."""
        rows = self._execute("read", "read_counter", place=key)
        return _counter_state(rows[0]) if rows else None

    def holders(self, key: str, size: int = 10) -> Sequence[Row]:
        """Return runs that hold permits of a counter: id, task, state, session, claimed_at, tenant."""
        return self._execute("read", "list_permit_holders", place=msgspec.json.encode(key).decode(), size=size)


class CounterRow(NamedTuple):
    """A counter as stored, with what its limit allows. `now`: when it was read. `parked`: runs that wait for it."""

    counter_key: str
    used: int
    log: str
    check_at: int | None
    concurrency: int | None
    rate: int | None
    period: int | None
    now: int
    parked: int


_COUNTER_ROWS = RowReader(CounterRow)


def _counter_state(stored: Sequence[Any]) -> CounterState:
    row = _COUNTER_ROWS.read(stored)
    name, key = parse_counter_key(row.counter_key)
    allowed = _rate(row.rate, row.period)
    counter = LimitCounter(row.used, row.concurrency, allowed, _parse_starts(row.log))
    counter.forget(row.now)
    started = sum(count for _, count in counter.log)
    left = None if row.check_at is None else row.check_at - row.now
    return CounterState(name, key, row.used, row.concurrency, allowed, started, row.parked, left)


def _rate(starts: int | None, period: int | None) -> Rate | None:
    """Return a limit's rate; None if it has none, or it is corrupt."""
    return None if starts is None or not period else Rate(starts, period)


def counter_key(name: str, key: str) -> str:
    """Return how runs and counters name the counter of a limit for a key."""
    return msgspec.json.encode([name, key]).decode()


def parse_counter_key(counter: str) -> tuple[str, str]:
    """Return the limit's name and the key. A corrupt text counts as the name of an undeclared limit."""
    try:
        name, key = _decode_counter_key(counter)
    except msgspec.MsgspecError:
        return counter, ""
    return name, key


def can_read_limits(limits: str | None) -> bool:
    """Return whether the limits in a run's row can be decoded."""
    try:
        return limits is None or _decode_limits(limits) is not None
    except msgspec.MsgspecError:
        return False


def _counter_keys(limits: str | None) -> list[str]:
    """Return the counters that a run needs permits of.

    A run whose limits can't be decoded needs none: it is claimed, and the runner fails it before its code starts.
    """
    return [] if limits is None or not can_read_limits(limits) else _decode_limits(limits)


def _parse_starts(log: str) -> list[list[int]]:
    """Return when how many runs were started, from a counter's row; nothing if that can't be decoded."""
    try:
        return [] if log == "[]" else [list(each) for each in _decode_log(log)]
    except msgspec.MsgspecError:
        return []


# Permits, inside the transaction of the caller


def take_permits(tx: Tx, candidates: Sequence[tuple[str, str | None]]) -> tuple[list[str], int | None]:
    """Take permits for locked runs, given with their limits; park the runs that get none.

    Return the runs that may start, and the database time, None if no limits were involved.
    """
    wanted = {str(id): _counter_keys(limits) for id, limits in candidates}
    keys = sorted({key for needed in wanted.values() for key in needed})
    if not keys:
        return list(wanted), None
    counters, now = _lock_counters(tx, keys)
    admitted, parked = admit(wanted.items(), counters, now)
    if parked:
        tx.execute("park_runs", rows=json_rows({"id": id, "parked_on": key} for id, key in parked.items()))
        for key in {other for id, full in parked.items() for other in wanted[id] if other != full}:
            counter = counters[key]
            if counter.check_at is not None and counter.free(now) != 0:
                _unpark(tx, key, counter, now)  # a parked run leaves its permit of this counter to the next
    _store_counters(tx, counters)
    return admitted, now


def return_permits(tx: Tx, limits: Iterable[str | None]) -> None:
    """Return the permits of runs with these limits, and unpark runs that wait for them."""
    returned = Count(key for each in limits if each is not None for key in _counter_keys(each))
    if not returned:
        return
    rows = json_rows(
        {"place": key, "name": parse_counter_key(key)[0], "number": number} for key, number in returned.items()
    )
    waited_for = [key for key, check_at in tx.execute("return_permits", rows=rows) if check_at is not None]
    if waited_for:
        counters, now = _lock_counters(tx, waited_for)
        for key, counter in counters.items():
            _unpark(tx, key, counter, now)
        _store_counters(tx, counters)


def unpark_due(tx: Tx) -> int:
    """Unpark runs of counters whose check is due, as far as there is room; return the number of counters."""
    keys = [str(row[0]) for row in tx.execute("pick_due_counters")]
    if keys:
        counters, now = _lock_counters(tx, keys)
        for key, counter in counters.items():
            known = len(counter.log)
            counter.forget(now)
            # If there was room all the time, the runs that were unparked aren't claimed: give others a chance.
            _unpark(tx, key, counter, now, MAX_UNPARKED_RUNS if len(counter.log) == known else None)
        _store_counters(tx, counters)
    return len(keys)


def _unpark(tx: Tx, key: str, counter: LimitCounter, now: int, size: int | None = None) -> None:
    """Unpark `size` runs, or as many as there is room for; while others wait, set when to check again."""
    free = counter.free(now)
    size = 0 if free == 0 else size or free or MAX_UNPARKED_RUNS
    unparked = len(tx.execute("unpark_runs", parked_on=key, size=size)) if size else 0
    if not tx.execute("has_parked", parked_on=key):
        counter.check_at = None
    elif unparked < size:  # another transaction has locked the rest
        counter.check_at = now + RECHECK_SOON_MICROS
    else:
        counter.check_at = counter.opens_at(now)


def _lock_counters(tx: Tx, keys: Iterable[str]) -> tuple[dict[str, LimitCounter], int]:
    """Lock counters, creating missing ones, and read the time at which all are locked."""
    counters: dict[str, LimitCounter] = {}
    now = 0
    rows = json_rows({"place": key, "name": parse_counter_key(key)[0]} for key in keys)
    for key, used, log, check_at, concurrency, rate, period, moment in tx.execute("lock_counters", rows=rows):
        allowed = _rate(rate, period)
        counters[key] = LimitCounter(used, concurrency, allowed, _parse_starts(log), check_at)
        now = max(now, moment)
    return counters, now


def _store_counters(tx: Tx, counters: Mapping[str, LimitCounter]) -> None:
    rows = [
        {
            "place": key, "name": parse_counter_key(key)[0], "used": counter.used,
            "log": msgspec.json.encode(counter.log).decode(), "look_at": counter.check_at,
        }
        for key, counter in counters.items()
    ]  # fmt: skip
    tx.execute("store_counters", rows=json_rows(rows))
