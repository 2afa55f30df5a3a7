"""The claim: ready runs become a session's."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from operator import attrgetter

import msgspec

from holdfast.database import Row
from holdfast.store import permits
from holdfast.store.family import ids
from holdfast.store.part import Do, Ground, Part, batch, bounded
from holdfast.store.rows import Claim, Owned

LARGEST = 512


@dataclass(frozen=True)
class ScanPolicy:
    """When a claim on PostgreSQL scans a lane from its head and when it resumes behind the last claimed row.

    Claimed rows stay in the ready index until vacuum removes them, so a scan from the head walks over dead entries: for
    seconds, if an old snapshot keeps vacuum from its work. Resuming avoids that cost, but misses rows that return to an
    earlier position (a released run, a node of an old graph) and those of lower priorities.

    The policy bounds both. After a slow head scan, and while a lane gives claims all they ask for, head scans take
    about `max_head_share` of the time. But the head is scanned at the latest `max_head_interval_s` after the last scan,
    however long that one took (a table lock, a stopped process), and at once when a claim found nothing: an idle worker
    never passes over ready work.
    """

    head_interval_s: float = 0.1
    """Crowded lanes: the least time between two head scans."""
    max_head_interval_s: float = 1.0
    max_head_share: float = 1 / 20
    slow_scan_s: float = 0.02
    """A head scan that takes longer is followed by claims that resume, in lanes that aren't crowded too."""
    crowded_runs: int = 64
    """A lane is crowded if it gave a claim at least this many runs, and the claim got all it asked for."""

    def resume_s(self, head_scan_s: float, *, crowded: bool) -> float:
        """How long claims may resume after a head scan that took `head_scan_s`."""
        if not crowded and head_scan_s <= self.slow_scan_s:
            return 0.0
        least = self.head_interval_s if crowded else 0.0
        return min(max(head_scan_s / self.max_head_share, least), self.max_head_interval_s)


SCAN_POLICY = ScanPolicy()
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
    """Claim a group of isolated runs with the same bound, as many as the bound allows; park those with full limits."""
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
    """The last position in a lane that this process has claimed, for each priority, and the lane's last head scan."""

    def __init__(self, lane: int) -> None:
        self.lane = lane
        self._last: dict[int, tuple[int, int]] = {}
        self._crowded = False
        self._head_scanned_at = 0.0
        self._head_scan_s = 0.0

    def move_on(self, claim: Claim) -> None:
        """To this one, unless it came before."""
        place = (claim.turn, claim.seq)
        self._last[claim.priority] = max(place, self._last.get(claim.priority, place))
        if len(self._last) > MOST_PLACES:
            self._last = {}

    def resumes(self, now: float, policy: ScanPolicy) -> bool:
        """Whether a claim resumes behind the last position instead of scanning the lane from its head."""
        return now < self._head_scanned_at + policy.resume_s(self._head_scan_s, crowded=self._crowded)

    def note(self, now: float, took_s: float, *, resumed: bool, crowded: bool) -> None:
        """Remember a claim that has just ended: whether it resumed, and whether the lane gave it many runs."""
        self._crowded = crowded
        if not resumed:
            self._head_scanned_at = now
            self._head_scan_s = took_s

    def places(self, *, resume: bool = True) -> list[Place]:
        """Where a claim scans: behind each last position, and all that is more urgent than these; or from the head."""
        last = self._last if resume else {}
        most_urgent = max(last, default=LEAST)
        return [
            Place(self.lane, most_urgent if priority == most_urgent else MOST, priority, *place)
            for priority, place in list(last.items())
        ] or [Place(self.lane)]


class Claims(Part):
    """Ready runs and who takes them."""

    def __init__(
        self, ground: Ground, monotonic: Callable[[], float] = time.monotonic, policy: ScanPolicy | None = None
    ) -> None:
        super().__init__(ground)
        self._monotonic = monotonic
        self._policy = policy or SCAN_POLICY
        self._reached: dict[int, Reached] = {}

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
        """On PostgreSQL: scan each lane from its head, or resume behind the last claim, as the scan policy says."""
        began = self._monotonic()
        reached = [self._reached.setdefault(lane, Reached(lane)) for lane in lanes]
        resumed = [each.resumes(began, self._policy) for each in reached]
        claims = self._claim_behind(session, reached, resumed, size)
        if not claims and any(resumed):
            resumed = [False] * len(reached)
            claims = self._claim_behind(session, reached, resumed, size)
        now = self._monotonic()
        # Fair queues are never crowded: a new tenant's turn comes before the last claimed one.
        gave = Counter(claim.lane for claim in claims if claim.turn <= 0) if len(claims) == size else Counter()
        for each, did_resume in zip(reached, resumed, strict=True):
            crowded = gave[each.lane] >= self._policy.crowded_runs
            each.note(now, now - began, resumed=did_resume, crowded=crowded)
        return claims

    def _claim_behind(self, session: str, reached: list[Reached], resume: list[bool], size: int) -> list[Claim]:
        """Claim with one statement, in order, and move the last positions on."""
        places = [place for each, on in zip(reached, resume, strict=True) for place in each.places(resume=on)]
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
        line = "claim" if self._ground.database.dialect.writing_ctes else "pick"
        return bool(lanes) and bool(self._one(line, "any_isolated", lanes=_lanes(lanes)))

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
        """Whether there is something to claim in these lanes, or was a moment ago."""
        return bool(lanes) and bool(self._one("claim", "any_ready", lanes=_lanes(lanes)))

    def busy(self, lanes: Collection[int]) -> bool:
        """Whether anything in these lanes is ready or running, on any worker."""
        return bool(lanes) and bool(self._one("claim", "busy_lanes", lanes=_lanes(lanes)))

    def owned(self, session: str) -> list[Owned]:
        """What the session holds, by the database's account."""
        return [Owned._make(row) for row in self._one("heartbeat", "owned", session=session)]

    def still_held(self, session: str, runs: Sequence[str]) -> set[tuple[str, int]]:
        """Return id and fence of the given runs that are running in this session."""
        found: set[tuple[str, int]] = set()
        for some in bounded(runs, len):
            held = self._one("heartbeat", "still_held", session=session, rows=ids(some))
            found.update((str(id), fence) for id, fence in held)
        return found
