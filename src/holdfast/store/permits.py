"""Permits of limits: taken in the claim's transaction, returned with the session's hold on a run, from locked counters.

Everything here runs inside a transaction of its caller's. Counters are locked after runs, in the order of their places;
runs that wait for a permit are picked only where nobody else holds them.
"""

from __future__ import annotations

from collections import Counter as Count
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from holdfast.policy.admission import RECHECK_SOON_MICROS, LimitCounter, Rate, admit
from holdfast.store.part import Do, batch

MANY = 1000
"""How many are let in where there is room for any number, or room that nobody uses."""


_decode_place = msgspec.json.Decoder(tuple[str, str]).decode
_decode_limits = msgspec.json.Decoder(list[str]).decode
_decode_log = msgspec.json.Decoder(list[tuple[int, int]]).decode


def place_of(name: str, key: str) -> str:
    """A counter of a limit, as runs and counters name it."""
    return msgspec.json.encode([name, key]).decode()


def parts_of(place: str) -> tuple[str, str]:
    """The name of a counter's limit, and its key. A corrupt place is the name of a limit that nobody declared."""
    try:
        name, key = _decode_place(place)
    except msgspec.MsgspecError:
        return place, ""
    return name, key


def name_of(place: str) -> str:
    return parts_of(place)[0]


def readable(limits: str | None) -> bool:
    """Whether the limits of a run's row can be read."""
    try:
        return limits is None or _decode_limits(limits) is not None
    except msgspec.MsgspecError:
        return False


def places_of(limits: str | None) -> list[str]:
    """The counters that a run needs permits of, from its row. A run whose limits can't be read needs none: it is
    claimed, and fails before its code starts (`engine/runner.py`)."""
    return [] if limits is None or not readable(limits) else _decode_limits(limits)


def starts_of(log: str) -> list[list[int]]:
    """When how many runs were started, from a counter's row; none where that can't be read."""
    try:
        return [] if log == "[]" else [list(each) for each in _decode_log(log)]
    except msgspec.MsgspecError:
        return []


def take(do: Do, candidates: Sequence[tuple[str, str | None]]) -> tuple[list[str], int | None]:
    """Which of these locked runs, given with their limits, may start, and the time by the database's clock; the others
    are parked."""
    wanted = {str(id): places_of(limits) for id, limits in candidates}
    places = sorted({place for needed in wanted.values() for place in needed})
    if not places:
        return list(wanted), None
    counters, now = _hold(do, places)
    admitted, parked = admit(wanted.items(), counters, now)
    if parked:
        do("park", rows=batch({"id": id, "parked_on": place} for id, place in parked.items()))
        for place in {other for id, full in parked.items() for other in wanted[id] if other != full}:
            counter = counters[place]
            if counter.look_at is not None and counter.free(now) != 0:  # they leave their place to the next ones
                _let_in(do, place, counter, now)
    _keep(do, counters)
    return admitted, now


def give_back(do: Do, limits: Iterable[str | None]) -> None:
    """Runs with these limits aren't at work any more: their permits go to those that wait for them."""
    returned = Count(place for each in limits if each is not None for place in places_of(each))
    if not returned:
        return
    looked_at = _return(do, returned)
    waited_for = [place for place, look_at in looked_at.items() if look_at is not None]
    if waited_for:
        counters, now = _hold(do, waited_for)
        for place, counter in counters.items():
            _let_in(do, place, counter, now)
        _keep(do, counters)


def look_again(do: Do) -> int:
    """Counters whose time has come: those that wait for them may be tried as far as there is room. How many."""
    places = [str(row[0]) for row in do("limits_to_look_at")]
    if places:
        counters, now = _hold(do, places)
        for place, counter in counters.items():
            known = len(counter.log)
            counter.forget(now)
            # Where there was room all the time, those that were let in aren't claimed: others get their chance.
            _let_in(do, place, counter, now, MANY if len(counter.log) == known else None)
        _keep(do, counters)
    return len(places)


def _let_in(do: Do, place: str, counter: LimitCounter, now: int, size: int | None = None) -> None:
    """Let as many be tried as there is room for, or that many; while others wait, look again."""
    free = counter.free(now)
    size = 0 if free == 0 else size or free or MANY
    let_in = len(do("unpark", parked_on=place, size=size)) if size else 0
    if not do("any_parked", parked_on=place):
        counter.look_at = None
    elif let_in < size:  # someone is at those that are left
        counter.look_at = now + RECHECK_SOON_MICROS
    else:
        counter.look_at = counter.opens_at(now)


def _return(do: Do, permits: Mapping[str, int]) -> dict[str, int | None]:
    """Return permits to their counters; for each counter, when the runs that wait for it are to be looked at."""
    rows = batch({"place": place, "name": name_of(place), "number": number} for place, number in permits.items())
    return dict(do("return_permits", rows=rows))


def _hold(do: Do, places: Iterable[str]) -> tuple[dict[str, LimitCounter], int]:
    """Lock counters, creating those that don't exist, and read the time when all are locked."""
    counters: dict[str, LimitCounter] = {}
    now = 0
    rows = batch({"place": place, "name": name_of(place)} for place in places)
    for place, used, log, look_at, concurrency, rate, period, moment in do("hold_limits", rows=rows):
        allowed = None if rate is None else Rate(rate, period)
        counters[place] = LimitCounter(used, concurrency, allowed, starts_of(log), look_at)
        now = max(now, moment)
    return counters, now


def _keep(do: Do, counters: dict[str, LimitCounter]) -> None:
    rows = [
        {
            "place": place, "name": name_of(place), "used": counter.used,
            "log": msgspec.json.encode(counter.log).decode(), "look_at": counter.look_at,
        }
        for place, counter in counters.items()
    ]  # fmt: skip
    do("keep_limits", rows=batch(rows))
