"""Permits of limits: taken in the claim's transaction, returned with the session's hold on a run, from locked counters.

Everything here runs inside a transaction of its caller's. Counters are locked after runs, in the order of their places;
runs that wait for a permit are picked only where nobody else holds them.
"""

from __future__ import annotations

from collections import Counter as Count
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from holdfast.policy.limits import Counter, Rate, admit
from holdfast.store.family import ids
from holdfast.store.part import Do, batch


def place_of(name: str, key: str) -> str:
    """A counter of a limit, as runs and counters name it."""
    return msgspec.json.encode([name, key]).decode()


def name_of(place: str) -> str:
    return str(msgspec.json.decode(place)[0])


def places_of(limits: str | None) -> list[str]:
    """The counters that a run needs permits of, from its row."""
    return [] if limits is None else list(msgspec.json.decode(limits))


def take(do: Do, candidates: Sequence[tuple[str, str | None]]) -> tuple[list[str], int | None]:
    """Which of these locked runs, given with their limits, may start, and the time by the database's clock; the others
    are parked."""
    wanted = [(str(id), places_of(limits)) for id, limits in candidates]
    places = sorted({place for _, needed in wanted for place in needed})
    if not places:
        return [id for id, _ in wanted], None
    do("touch_limits", rows=batch({"place": place, "name": name_of(place)} for place in places))
    counters, now = _hold(do, places)
    admitted, parked = admit(wanted, counters, now)
    if parked:
        do("park", rows=batch({"id": id, "parked_on": place} for id, place in parked.items()))
    _keep(do, counters)
    return admitted, now


def give_back(do: Do, limits: Iterable[str | None]) -> None:
    """Runs with these limits aren't at work any more: their permits go to those that wait for them."""
    returned = Count(place for each in limits for place in places_of(each))
    if not returned:
        return
    counters, now = _hold(do, sorted(returned))
    for place, counter in counters.items():
        counter.used = max(counter.used - returned[place], 0)
    for place, counter in counters.items():
        _let_in(do, place, counter, now)
    _keep(do, counters)


def look_again(do: Do) -> int:
    """Counters whose time has come: those that wait for them may be tried as far as there is room. How many."""
    places = [str(row[0]) for row in do("limits_to_look_at")]
    if places:
        counters, now = _hold(do, sorted(places))
        for place, counter in counters.items():
            counter.look_at = None
            _let_in(do, place, counter, now)
        _keep(do, counters)
    return len(places)


def _let_in(do: Do, place: str, counter: Counter, now: int) -> None:
    """Let as many be tried as there is room for; while others wait, look again."""
    free = counter.free(now)
    if free != 0 and not do("unpark", parked_on=place, size=free or 1000):
        counter.look_at = None
    elif do("any_parked", parked_on=place):
        counter.look_at = counter.opens_at(now)
    else:
        counter.look_at = None


def _hold(do: Do, places: Sequence[str]) -> tuple[dict[str, Counter], int]:
    rows = batch({"place": place} for place in places)
    do("lock_limits", rows=rows)
    counters: dict[str, Counter] = {}
    now = 0
    for place, used, log, look_at, concurrency, rate, period, moment in do("read_limits", rows=rows):
        allowed = None if rate is None else Rate(rate, period)
        counters[place] = Counter(used, concurrency, allowed, msgspec.json.decode(log), look_at)
        now = moment
    return counters, now


def _keep(do: Do, counters: dict[str, Counter]) -> None:
    rows = [
        {
            "place": place, "used": counter.used, "log": msgspec.json.encode(counter.log).decode(),
            "look_at": counter.look_at,
        }
        for place, counter in counters.items()
    ]  # fmt: skip
    do("keep_limits", rows=batch(rows))


def claim(do: Do, session: str, lanes: str, size: int) -> list[Any]:
    """The first ready runs of limited lanes that may start become the session's."""
    if not do("session_alive", session=session):
        return []
    candidates = do("limited_candidates", limit=size, lanes=lanes)
    if not candidates:
        return []
    admitted, now = take(do, candidates)
    return do("claim_limited", session=session, rows=ids(admitted), at=now) if admitted else []
