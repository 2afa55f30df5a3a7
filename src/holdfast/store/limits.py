"""Limits: their settings, the state of their counters, and the permits that runs take and return.

A claim takes permits in its own transaction; they return when the session releases the run. Counters are locked after
runs, in order of their keys. A run whose limit is full is parked: it leaves the ready index until a permit returns.
`policy/admission.py` computes which runs may start; `step_permits.py` has the permits of steps.
"""

from __future__ import annotations

from collections import Counter as Count
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec

from holdfast.policy.admission import RECHECK_SOON_MICROS, LimitCounter, Permit, Rate, Reserved, admit
from holdfast.store.module import MAX_BATCH_ROWS, StoreModule, Tx, id_rows, json_rows
from holdfast.store.typed_rows import RowReader
from holdfast.store.waits import wake_runs

MAX_UNPARKED_RUNS = 1000
"""How many runs are unparked at once if a counter has no bound, or its room goes unused."""
MAX_LISTED_RUNS = 200
"""How many of the runs that are parked on a weighted counter are read at once."""
STEP_TARGET = "limit:"
"""How the target of a step's wait begins; the counter follows."""

_decode_counter_key = msgspec.json.Decoder(tuple[str, str]).decode
_decode_limits = msgspec.json.Decoder(list[str]).decode
_decode_log = msgspec.json.Decoder(list[tuple[int, int]]).decode

Bounds: TypeAlias = tuple[int | None, Rate | None]
"""The concurrency and the rate of a limit."""


class LimitRow(NamedTuple):
    """A limit. `period`: microseconds. While `set_at` is set, the code declares other values, those in `declared_*`."""

    name: str
    concurrency: int | None
    rate: int | None
    period: int | None
    declared_at: int
    weighted: int
    set_at: int | None
    set_by: str | None
    declared_concurrency: int | None
    declared_rate: int | None
    declared_period: int | None

    @property
    def bounds(self) -> Bounds:
        return self.concurrency, to_rate(self.rate, self.period)

    @property
    def declared_bounds(self) -> Bounds:
        if self.set_at is None:
            return self.bounds
        return self.declared_concurrency, to_rate(self.declared_rate, self.declared_period)


class CounterState(NamedTuple):
    """A counter of a limit.

    `used`: permits in use. `started`: the cost of all starts within the last period. `parked`: runs that wait for it.
    `looks_in`: microseconds until parked runs are checked again. `steps`: steps that wait for it.
    """

    name: str
    key: str
    used: int
    concurrency: int | None
    rate: Rate | None
    started: int
    parked: int
    looks_in: int | None
    steps: int = 0


class HolderRow(NamedTuple):
    """A claimed run that holds permits, or a step of it. `limits`: all permits that it holds. `since`: microseconds."""

    id: str
    task: str
    session: str
    tenant: str | None
    limits: str | None
    step: str | None
    since: int


_LIMIT_ROWS = RowReader(LimitRow)
_HOLDER_ROWS = RowReader(HolderRow)


class LimitStore(StoreModule):
    """Limits and the state of their counters."""

    def declare(
        self,
        limits: Iterable[tuple[str, int | None, Rate | None] | tuple[str, int | None, Rate | None, bool]],
        *,
        overwrite: bool = True,
    ) -> None:
        """Declare limits by name, concurrency, rate, and whether starts have a cost.

        Without `overwrite`, keep what others have declared. Values that were set at run time stay in force.
        """
        rows = [
            {
                "name": name, "concurrency": concurrency, "rate": None if rate is None else rate.starts,
                "period": None if rate is None else rate.period, "weighted": int(*weighted),
            }
            for name, concurrency, rate, *weighted in limits
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

    def set(self, name: str, bounds: Bounds, by: str) -> bool:
        """Set the values of a limit until they are reset; False if it doesn't exist."""
        concurrency, rate = bounds
        starts, period = (None, None) if rate is None else rate
        return self._change(name, "set_limit", concurrency=concurrency, rate=starts, period=period, set_by=by)

    def reset(self, name: str) -> bool:
        """Return to the declared values; False if no others are set."""
        return self._change(name, "reset_limit")

    def _change(self, name: str, statement: str, **values: Any) -> bool:
        def work(tx: Tx) -> bool:
            changed = bool(tx.execute(statement, name=name, **values))
            if changed:
                waited_for = sorted(
                    counter for (counter,) in tx.execute("check_parked_soon", rows=json_rows([{"name": name}]))
                )
                _unpark_all(tx, waited_for[:MAX_BATCH_ROWS])  # timers check the others
            return changed

        return self._transaction("client", work)

    def list_all(self) -> list[LimitRow]:
        """Return all limits by name."""
        return _LIMIT_ROWS.read_all(self._execute("read", "list_limits"))

    def find(self, name: str) -> LimitRow | None:
        """Return the limit with this name."""
        found = self._execute("client", "read_limit", name=name)
        return _LIMIT_ROWS.read(found[0]) if found else None

    def counters(self, name: str | None = None, size: int = 200) -> list[CounterState]:
        """Return counters that are in use or waited for, the busiest first."""
        return [_counter_state(row) for row in self._execute("read", "list_counters", name=name, size=size)]

    def counter(self, key: str) -> CounterState | None:
        """Return the state of one counter."""
        rows = self._execute("read", "read_counter", place=key)
        return _counter_state(rows[0]) if rows else None

    def holders(self, key: str, size: int = 10) -> list[HolderRow]:
        """Return the first runs and steps that hold permits of a counter."""
        # Without the end: in the limits of a run, the counter may be followed by a cost.
        return self._holders(msgspec.json.encode(key).decode()[:-2], size)

    def holders_of(self, name: str, size: int) -> list[HolderRow]:
        """Return the first runs and steps that hold permits of a limit, with any key."""
        return self._holders(msgspec.json.encode(f"{counter_key(name, '')[:-4]},").decode()[:-1], size)

    def _holders(self, place: str, size: int) -> list[HolderRow]:
        return _HOLDER_ROWS.read_all(self._execute("read", "list_permit_holders", place=place, size=size))


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
    steps: int


_COUNTER_ROWS = RowReader(CounterRow)


def _counter_state(stored: Sequence[Any]) -> CounterState:
    row = _COUNTER_ROWS.read(stored)
    name, key = parse_counter_key(row.counter_key)
    allowed = to_rate(row.rate, row.period)
    counter = LimitCounter(row.used, row.concurrency, allowed, _parse_starts(row.log))
    counter.forget(row.now)
    started = sum(count for _, count in counter.log)
    left = None if row.check_at is None else row.check_at - row.now
    return CounterState(name, key, row.used, row.concurrency, allowed, started, row.parked, left, row.steps)


def to_rate(starts: int | None, period: int | None) -> Rate | None:
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


def encode_permits(permits: Iterable[tuple[str, str, int | None]]) -> str:
    """Return how a run stores the permits that it needs: limit, key, and the cost if the limit is weighted.

    A permit without a cost is the name of its counter.
    """
    counters = ((counter_key(name, key), cost) for name, key, cost in permits)
    return msgspec.json.encode([key if cost is None else f"{key[:-1]},{cost}]" for key, cost in counters]).decode()


def parse_permit(text: str) -> Permit:
    """Return a stored permit. A corrupt text counts as the name of a counter."""
    if text[-2:-1] != '"':  # the key of a counter is a text, so there is a cost
        head, _, cost = text.rpartition(",")
        if head[:1] == "[" and cost[:-1].isdigit() and cost[-1:] == "]":
            return Permit(f"{head}]", int(cost[:-1]))
    return Permit(text)


def can_read_limits(limits: str | None) -> bool:
    """Return whether the limits in a run's row can be decoded."""
    try:
        return limits is None or _decode_limits(limits) is not None
    except msgspec.MsgspecError:
        return False


def parse_permits(limits: str | None) -> list[Permit]:
    """Return the permits that a run needs.

    A run whose limits can't be decoded needs none: it is claimed, and the runner fails it before its code starts.
    """
    return [] if limits is None or not can_read_limits(limits) else list(map(parse_permit, _decode_limits(limits)))


def weighted_permits(limits: str | None) -> list[Permit]:
    """Return those of the permits that have a cost."""
    texts = [] if limits is None or not can_read_limits(limits) else _decode_limits(limits)
    return [permit for text in texts if (permit := parse_permit(text)).counter != text]


def _parse_starts(log: str) -> list[list[int]]:
    """Return when how many runs were started, from a counter's row; nothing if that can't be decoded."""
    try:
        return [] if log == "[]" else [list(each) for each in _decode_log(log)]
    except msgspec.MsgspecError:
        return []


# Permits, inside the transaction of the caller


def take_permits(tx: Tx, candidates: Sequence[Sequence[Any]]) -> tuple[list[str], int | None]:
    """Take permits for locked runs, given with their limits, priority, turn and `seq`; park the runs that get none.

    Return the runs that may start, and the database time, None if no limits were involved.
    """
    wanted = {str(id): parse_permits(limits) for id, limits, *_ in candidates}
    keys = sorted({permit.counter for needed in wanted.values() for permit in needed})
    if not keys:
        return list(wanted), None
    counters, now = lock_counters(tx, keys)
    positions = {str(id): (-priority, turn, seq) for id, _, priority, turn, seq in candidates}
    first = {
        key: first_parked[2]
        for key, counter in counters.items()
        if counter.weighted and counter.check_at is not None and (first_parked := _first_parked(tx, key, counter))
    }
    admitted, parked = admit(
        wanted.items(),
        counters,
        now,
        {key: reserved_for(waiting) for key, waiting in waiting_steps(tx, counters).items()},
        (lambda id, key: key in first and positions[id] > first[key]) if first else None,
    )
    if parked:
        tx.execute("park_runs", rows=json_rows({"id": id, "parked_on": key} for id, key in parked.items()))
        others = {permit.counter for id, full in parked.items() for permit in wanted[id] if permit.counter != full}
        for key in others:
            counter = counters[key]
            if counter.check_at is not None and counter.free(now) != 0:
                unpark(tx, key, counter, now)  # a parked run leaves its permit of this counter to the next
    store_counters(tx, counters)
    return admitted, now


def return_permits(tx: Tx, limits: Iterable[str | None]) -> None:
    """Return the permits of runs or steps with these limits, and unpark what waits for them."""
    returned = Count(permit.counter for each in limits if each is not None for permit in parse_permits(each))
    if not returned:
        return
    rows = json_rows(
        {"place": key, "name": parse_counter_key(key)[0], "number": number} for key, number in returned.items()
    )
    _unpark_all(tx, [key for key, check_at in tx.execute("return_permits", rows=rows) if check_at is not None])


def _unpark_all(tx: Tx, keys: Sequence[str]) -> None:
    """Unpark what waits for counters, as far as there is room."""
    if keys:
        counters, now = lock_counters(tx, keys)
        for key, counter in counters.items():
            unpark(tx, key, counter, now)
        store_counters(tx, counters)


def unpark_due(tx: Tx) -> int:
    """Unpark what waits for counters whose check is due, as far as there is room; return the number of counters."""
    keys = [str(row[0]) for row in tx.execute("pick_due_counters")]
    if keys:
        counters, now = lock_counters(tx, keys)
        for key, counter in counters.items():
            known = len(counter.log)
            counter.forget(now)
            # If there was room all the time, the runs that were unparked aren't claimed: give others a chance.
            unpark(tx, key, counter, now, MAX_UNPARKED_RUNS if len(counter.log) == known else None)
        store_counters(tx, counters)
    return len(keys)


class _Budget:
    """The permits of a counter that waiting runs and steps may still get.

    `wanted`: the cost of the first one that didn't fit.
    """

    def __init__(self, counter: LimitCounter, now: int) -> None:
        self.slots, self.room = counter.slots(), counter.room(now)
        self.given = 0
        self.wanted = 0
        self.has_skipped = False
        """Whether rows were skipped because another transaction has locked them."""

    def give(self, cost: int) -> bool:
        """Hand out a permit if there is one for this cost; return whether there was."""
        if self.slots == 0 or (self.room is not None and cost > self.room):
            self.wanted = cost
            return False
        self.slots = None if self.slots is None else self.slots - 1
        self.room = None if self.room is None else self.room - cost
        self.given += cost
        return True

    def free(self) -> int | None:
        return min((left for left in (self.slots, self.room) if left is not None), default=None)


def unpark(tx: Tx, key: str, counter: LimitCounter, now: int, size: int | None = None) -> None:
    """Wake steps and unpark `size` runs, or as many as there is room for; set when to check the others again."""
    budget = _Budget(counter, now)
    waits = _wake_steps(tx, key, counter, budget) if counter.steps else False
    if counter.weighted:
        waits |= _unpark_by_cost(tx, key, counter, budget)
    else:
        free = budget.free()
        size = 0 if free == 0 else size or free or MAX_UNPARKED_RUNS
        unparked = len(tx.execute("unpark_runs", parked_on=key, size=size)) if size else 0
        has_parked = bool(tx.execute("has_parked", parked_on=key))
        if has_parked and unparked < size:  # another transaction has locked the rest, or their tenants are paused
            budget.has_skipped |= bool(tx.execute("has_claimable_parked", parked_on=key))
        waits |= has_parked
    if not waits:
        counter.check_at = None
    elif budget.has_skipped:
        counter.check_at = now + RECHECK_SOON_MICROS
    else:
        counter.check_at = counter.opens_at(now, max(budget.given + budget.wanted, 1) if counter.weighted else 1)


def _unpark_by_cost(tx: Tx, key: str, counter: LimitCounter, budget: _Budget) -> bool:
    """Unpark the first runs whose costs fit together; return whether others wait."""
    fitting: list[str] = []
    for id, cost, _ in _parked_in_order(tx, key):
        if counter.exceeds(cost):
            continue
        if budget.wanted or not budget.give(cost):
            break
        fitting.append(id)
    if fitting:
        unparked = tx.execute("unpark_fitting", parked_on=key, rows=id_rows(fitting))
        budget.has_skipped |= len(unparked) < len(fitting)
    return bool(tx.execute("has_parked", parked_on=key))


def _first_parked(tx: Tx, key: str, counter: LimitCounter) -> tuple[str, int, tuple[int, int, int]] | None:
    """Return the first run that is parked on a counter and can ever start: id, cost and position."""
    return next((each for each in _parked_in_order(tx, key) if not counter.exceeds(each[1])), None)


def _parked_in_order(tx: Tx, key: str) -> Iterable[tuple[str, int, tuple[int, int, int]]]:
    for id, limits, priority, turn, seq in tx.execute("list_parked", parked_on=key, size=MAX_LISTED_RUNS):
        cost = next((permit.cost for permit in parse_permits(limits) if permit.counter == key), 0)
        yield str(id), cost, (-priority, turn, seq)


# Steps that wait


class WaitingStep(NamedTuple):
    """A step that waits for a counter, or was woken a moment ago."""

    run: str
    key: str
    since: int
    cost: int


def waiting_steps(tx: Tx, counters: Mapping[str, LimitCounter]) -> dict[str, list[WaitingStep]]:
    """Return the steps that wait for these counters, in order."""
    found: dict[str, list[WaitingStep]] = {key: [] for key, counter in counters.items() if counter.steps}
    if found:
        rows = json_rows({"target": STEP_TARGET + key} for key in found)
        for target, run, key, since, cost in tx.execute("list_waiting_steps", rows=rows):
            found[target.removeprefix(STEP_TARGET)].append(WaitingStep(str(run), key, since, cost))
    return found


def reserved_for(waiting: Iterable[WaitingStep]) -> Reserved:
    """Return what is reserved of a counter for waiting steps."""
    costs = [step.cost for step in waiting]
    return Reserved(len(costs), sum(costs))


def _wake_steps(tx: Tx, key: str, counter: LimitCounter, budget: _Budget) -> bool:
    """Wake the first steps that fit, so that they try again; return whether others wait.

    A step whose cost is more than the limit allows is woken, too, and fails.
    """
    target = STEP_TARGET + key
    size = MAX_UNPARKED_RUNS if budget.slots is None else min(budget.slots, MAX_UNPARKED_RUNS)
    picked = tx.execute("pick_waiting_steps", target=target, size=size) if size else []
    woken: list[dict[str, Any]] = []
    for run, generation, wait, cost in picked:
        if not counter.exceeds(cost) and not budget.give(cost):
            break
        woken.append({"run": str(run), "generation": generation, "key": wait, "outcome": "event", "value": None})
    if woken:
        tx.execute("resolve_waits", rows=json_rows(woken))
        wake_runs(tx, {row["run"] for row in woken})
    left = tx.execute("check_waiting_steps", target=target)[0]
    counter.steps = bool(left[0])
    budget.has_skipped |= len(woken) == len(picked) < size and bool(left[1])
    return bool(left[1])


def lock_counters(tx: Tx, keys: Iterable[str]) -> tuple[dict[str, LimitCounter], int]:
    """Lock counters, creating missing ones, and read the time at which all are locked."""
    counters: dict[str, LimitCounter] = {}
    now = 0
    rows = json_rows({"place": key, "name": parse_counter_key(key)[0]} for key in keys)
    for key, used, log, check_at, concurrency, rate, period, weighted, steps, moment in tx.execute(
        "lock_counters", rows=rows
    ):
        starts = _parse_starts(log)
        counters[key] = LimitCounter(
            used, concurrency, to_rate(rate, period), starts, check_at, bool(weighted), bool(steps)
        )
        now = max(now, moment)
    return counters, now


def store_counters(tx: Tx, counters: Mapping[str, LimitCounter]) -> None:
    """Store counters that this transaction has locked."""
    rows = [
        {
            "place": key, "name": parse_counter_key(key)[0], "used": counter.used,
            "log": msgspec.json.encode(counter.log).decode(), "look_at": counter.check_at, "steps": int(counter.steps),
        }
        for key, counter in counters.items()
    ]  # fmt: skip
    tx.execute("store_counters", rows=json_rows(rows))
