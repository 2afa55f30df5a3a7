"""The claim: ready runs become a session's."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from operator import attrgetter

import msgspec

from holdfast.database import Row
from holdfast.store import permits
from holdfast.store.family import ids
from holdfast.store.part import Do, Ground, Part, batch, bounded
from holdfast.store.rows import Claim, Owned

LARGEST = 512
SLOW = 0.02
"""Seconds that a claim from the front of its lanes takes when there is much that can't be cleaned up."""
RARELY = 9
"""After a slow one, claims go on from where they ended for so many times as long."""
TOO_SLOW = 0.25
"""After one that took so long, that is so even where there is nothing to go on with."""
MANY = 64
"""Runs of one lane that are many for one claim."""
FRONT_SECONDS = 0.1
"""While claims get so many, and all they want, a lane is looked at from its front so often; those in between go on."""
FRONT_SHARE = 20
"""Or so seldom that claims from the front take one of so many parts of the time,"""
FRONT_LONGEST = 1.0
"""but not more seldom than this: one claim may have taken long for another reason."""
MOST_PLACES = 16
"""Priorities of a lane whose places are remembered; with more, we begin anew."""
LEAST, MOST = -(2**31) - 1, 2**31
"""Beyond all priorities."""


def claim_size(wanted: int) -> int:
    """The largest power of two that is not more than wanted, for sizes that are literals in the SQL: there are few."""
    return 1 << min(wanted, LARGEST).bit_length() - 1


def _claim_limited(do: Do, session: str, lanes: str, size: int, *, returning: bool) -> list[Row]:
    """Pick, take permits, and claim as many as got theirs."""
    candidates = do("limited_candidates", limit=size, session=session, lanes=lanes)
    admitted, at = permits.take(do, candidates)
    if not admitted:
        return []
    rows = ids(admitted)
    claimed = do("claim_limited", session=session, rows=rows, at=at)
    return claimed if returning else do("claimed_limited", rows=rows)


def _claim_isolated(do: Do, session: str, lanes: str, most: int, *, returning: bool) -> list[Row]:
    """Claim runs of one bound, up to that bound; those whose limits are full are parked."""
    candidates = do("isolated_candidates", session=session, lanes=lanes, size=most)
    group = [(id, limits) for id, limits, _ in candidates[: candidates[0][2]]] if candidates else []
    admitted, at = permits.take(do, group)
    if not admitted:
        return []
    rows = ids(admitted)
    claimed = do("claim_limited", session=session, rows=rows, at=at)
    return claimed if returning else do("claimed_limited", rows=rows)


def _lanes(lanes: Collection[int]) -> str:
    return batch({"lane": lane} for lane in lanes)


class Picked:
    """The first ready runs of some lanes. `rows`: as they will be when they are claimed, but for those with limits;
    `values`: by what the claim knows that nothing happened to them, and nothing came before the last of them."""

    __slots__ = ("rows", "values")

    def __init__(self, found: Sequence[Row]) -> None:
        self.rows = [row[:-1] for row in found if row[-2] is None]
        _, seq, _, priority, turn, *_ = found[-1]
        seqs, numbers = batch(row[1] for row in found), sum(row[-1] for row in found)
        self.values = {"seqs": seqs, "sum": numbers, "priority": priority, "turn": turn, "seq": seq}


def _claim(do: Do, session: str, lanes: str, size: int) -> list[Row]:
    """On SQLite, in one transaction: pick, and take."""
    found = do("claimable", size=size, lanes=lanes)
    if not found:
        return []
    picked = Picked(found)
    ((taken,),) = do("claim", session=session, lanes=lanes, **picked.values)
    return picked.rows if taken else []


_PLACE = attrgetter("turn", "seq")
_PRIORITY = attrgetter("priority")


class Place(msgspec.Struct):
    """In the order of a lane. What is behind it is looked at, and what is more urgent than `above`."""

    lane: int
    above: int = LEAST
    priority: int = LEAST
    turn: int = 0
    seq: int = 0


class Reached:
    """How far into the order of a lane the claims of this process have come, in each priority that they met."""

    def __init__(self, lane: int) -> None:
        self.lane = lane
        self._last: dict[int, tuple[int, int]] = {}
        self._crowded = False
        self._front_at = 0.0

    def move_on(self, claim: Claim) -> None:
        """To this one, unless it came before."""
        place = (claim.turn, claim.seq)
        self._last[claim.priority] = max(place, self._last.get(claim.priority, place))
        if len(self._last) > MOST_PLACES:
            self._last = {}

    def goes_on(self, now: float) -> bool:
        """Whether there is so much to do here that the front needn't be looked at yet."""
        return self._crowded and now < self._front_at

    def note(self, now: float, took: float, *, went_on: bool, crowded: bool) -> None:
        """A claim began now, at the front or not, and took so long."""
        self._crowded = crowded
        if not went_on:
            self._front_at = now + min(max(FRONT_SECONDS, FRONT_SHARE * took), FRONT_LONGEST)

    def places(self, *, going_on: bool = True) -> list[Place]:
        """Where to go on: behind each, and with what is more urgent than all of them. Else the front."""
        last = self._last if going_on else {}
        most_urgent = max(last, default=LEAST)
        return [
            Place(self.lane, most_urgent if priority == most_urgent else MOST, priority, *place)
            for priority, place in list(last.items())
        ] or [Place(self.lane)]


class Claims(Part):
    """Ready runs and who takes them."""

    def __init__(self, ground: Ground, monotonic: Callable[[], float] = time.monotonic) -> None:
        super().__init__(ground)
        self._monotonic = monotonic
        self._reached: dict[int, Reached] = {}
        self._go_on_until = 0.0  # rather than begin at the front
        self._keep_off_until = 0.0  # the front, whatever there may be

    def claim(self, session: str, lanes: Collection[int], wanted: int) -> list[Claim]:
        """Take up to `wanted` ready runs of these lanes, in the order in which they shall start; empty when there are
        none, or the session's lease is over."""
        if wanted < 1 or not lanes:
            return []
        if self._ground.database.dialect.writing_ctes:
            return self._claim_at_once(session, lanes, claim_size(wanted))
        return self._in_order(self._claim_picked(session, lanes, min(wanted, LARGEST)))

    def _claim_picked(self, session: str, lanes: Collection[int], size: int) -> list[Row]:
        """On SQLite: look before we lock, so that others can write meanwhile, and an idle worker locks nothing. Where
        something happened meanwhile, the next are picked under the lock."""
        rows = batch({"lane": lane} for lane in lanes)
        found = self._one("pick", "claimable", size=size, lanes=rows)
        if not found:
            return []
        picked = Picked(found)
        ((taken,),) = self._one("claim", "claim", session=session, lanes=rows, **picked.values)
        if taken == len(picked.rows):
            return picked.rows
        if taken:  # some went, and others came that made up for them in the sum: what was taken is ours all the same
            return self._one("claim", "taken", session=session, seqs=picked.values["seqs"])
        return self._together("claim", lambda do: _claim(do, session, rows, size))

    def _claim_at_once(self, session: str, lanes: Collection[int], size: int) -> list[Claim]:
        """On PostgreSQL: from the front of each lane, or on from where the last claim ended, so that walks over what
        isn't cleaned up yet take a small share of the time: for longer where the front was slow, for a moment where
        there is much to do and tenants don't take turns, since who is new stands before what was claimed. What comes
        back to an earlier place, as a retry does, or is less urgent than all that we met, waits then."""
        began = self._monotonic()
        reached = [self._reached.setdefault(lane, Reached(lane)) for lane in lanes]
        going_on = [began < self._go_on_until or each.goes_on(began) for each in reached]
        claims = self._claim_behind(session, reached, going_on, size)
        if not claims and any(going_on) and began >= self._keep_off_until:
            going_on = [False] * len(reached)
            claims = self._claim_behind(session, reached, going_on, size)
        took = self._monotonic() - began
        if not all(going_on):
            self._go_on_until = began + took * (1 + RARELY) if took > SLOW else 0.0
            self._keep_off_until = self._go_on_until if took > TOO_SLOW else 0.0
        gave = Counter(claim.lane for claim in claims if not claim.turn) if len(claims) == size else Counter()
        for each, went_on in zip(reached, going_on, strict=True):
            each.note(began, took, went_on=went_on, crowded=gave[each.lane] >= MANY)
        return claims

    def _claim_behind(self, session: str, reached: list[Reached], going_on: list[bool], size: int) -> list[Claim]:
        """These claims, in order; and how far we have come with them is noted."""
        places = [place for each, on in zip(reached, going_on, strict=True) for place in each.places(going_on=on)]
        claims = self._in_order(self._one("claim", "claim", limit=size, session=session, places=batch(places)))
        furthest = {(claim.lane, claim.priority): claim for claim in claims}
        for (lane, _), claim in furthest.items():
            self._reached[lane].move_on(claim)
        return claims

    def claim_limited(self, session: str, lanes: Collection[int], wanted: int) -> list[Claim]:
        """The same for lanes of runs with limits: those whose limits are full are parked."""
        if wanted < 1 or not lanes:
            return []
        rows = batch({"lane": lane} for lane in lanes)
        returning = self._ground.database.dialect.writing_ctes
        if not returning and not self._one("read", "any_ready", lanes=rows):
            return []
        size = claim_size(wanted)
        return self._in_order(
            self._together("claim", lambda do: _claim_limited(do, session, rows, size, returning=returning))
        )

    def any_isolated(self, lanes: Collection[int]) -> bool:
        """Whether isolated runs of these lanes wait for a process of their own."""
        return bool(lanes) and bool(self._one("claim", "any_isolated", lanes=_lanes(lanes)))

    def claim_isolated(self, session: str, lanes: Collection[int], most: int) -> list[Claim]:
        """Claim a group of isolated runs that may share a process; the caller runs nothing else beside them."""
        rows = _lanes(lanes)
        returning = self._ground.database.dialect.writing_ctes
        claimed = self._together("claim", lambda do: _claim_isolated(do, session, rows, most, returning=returning))
        return self._in_order(claimed)

    def _in_order(self, rows: Sequence[Row]) -> list[Claim]:
        claimed = [Claim(*row) for row in rows]
        for claim in claimed:
            if claim.args[:1] == "~":
                claim.args = self._ground.payloads.unpack(claim.args)
        claimed.sort(key=_PLACE)
        claimed.sort(key=_PRIORITY, reverse=True)  # equal ones stay as they are
        return claimed

    def any_ready(self, lanes: Collection[int]) -> bool:
        """Whether there is something to claim in these lanes (or was a moment ago), as far as one may look."""
        if not lanes or self._monotonic() < self._keep_off_until:
            return False
        return bool(self._one("claim", "any_ready", lanes=batch({"lane": lane} for lane in lanes)))

    def busy(self, lanes: Collection[int]) -> bool:
        """Whether anything in these lanes is ready or running, on any worker."""
        return bool(lanes) and bool(self._one("claim", "busy_lanes", lanes=batch({"lane": lane} for lane in lanes)))

    def owned(self, session: str) -> list[Owned]:
        """What the session holds, by the database's account."""
        return [Owned._make(row) for row in self._one("heartbeat", "owned", session=session)]

    def still_held(self, session: str, runs: Sequence[str]) -> set[tuple[str, int]]:
        """Return id and fence of those of these runs that are running in this session."""
        found: set[tuple[str, int]] = set()
        for some in bounded(runs, len):
            held = self._one("heartbeat", "still_held", session=session, rows=ids(some))
            found.update((str(id), fence) for id, fence in held)
        return found
