"""Claim ready runs for a worker's session.

Runs of a lane are claimed in order of priority (highest first), turn and `seq`. On PostgreSQL one statement picks,
locks and claims them; a cursor per lane decides where it starts to scan. On SQLite a read picks runs without a lock,
and one statement claims them if nothing has changed since. Lanes of runs with limits, and isolated runs, have claims of
their own.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from operator import attrgetter
from typing import Any

import msgspec

from holdfast.database import Row
from holdfast.database.dialect import AGED_TURN_OFFSET
from holdfast.database.faults import DataFault
from holdfast.model.clock import MICROS_PER_SECOND
from holdfast.model.payloads import PayloadContext
from holdfast.store.limits import take_permits
from holdfast.store.module import StoreContext, StoreModule, Tx, column, id_rows, in_batches, json_rows, time_left
from holdfast.store.rows import Claim, ClaimKey, OwnedRun

MAX_CLAIM_RUNS = 512
SHARES = 16
MIN_SHARED_CLAIM_RUNS = 8
"""Smaller claims stay in order: they lose few runs to other workers."""
MAX_CURSOR_PRIORITIES = 16
"""A lane with more priorities than this forgets its positions and is scanned from its head."""
BELOW_ALL_PRIORITIES, ABOVE_ALL_PRIORITIES = -(2**31) - 1, 2**31
BEFORE_ALL_RUNS = ABOVE_ALL_PRIORITIES, 0, 0
"""A position: priority, turn and `seq`."""

_TURN_AND_SEQ = attrgetter("turn", "seq")
_PRIORITY = attrgetter("priority")


@dataclass(frozen=True)
class ScanPolicy:
    """When a claim on PostgreSQL scans a lane from its head and when it resumes behind the last claimed row.

    Claimed rows stay in the ready index until vacuum removes them, so a scan from the head reads dead entries first:
    for seconds, if an old snapshot keeps vacuum from removing them. Resuming avoids that cost, but misses rows that
    return to an earlier position (a released run, a node of an old graph) and those of lower priorities.

    The policy bounds both. After a slow head scan, and while a lane fills claims completely, head scans take
    about `max_head_share` of the time. But the head is scanned no later than `max_head_interval_s` after the last scan,
    however long that one took (a table lock, a stopped process), and at once when a claim found nothing: an idle worker
    never overlooks ready work.
    """

    head_interval_s: float = 0.1
    """Crowded lanes: the minimum time between two head scans."""
    max_head_interval_s: float = 1.0
    max_head_share: float = 1 / 20
    slow_scan_s: float = 0.02
    """A head scan that takes longer is followed by claims that resume, in lanes that aren't crowded too."""
    crowded_runs: int = 16
    """A lane is crowded if it gave a claim at least this many runs, and the claim got all it wanted."""
    contended_s: float = 1.0
    """How long claims prefer a share of the next runs after other workers were faster. One claim every
    `max_head_interval_s` still takes the first runs in order."""

    def resume_s(self, head_scan_s: float, *, crowded: bool) -> float:
        """Return how long claims may resume after a head scan that took `head_scan_s`."""
        if not crowded and head_scan_s <= self.slow_scan_s:
            return 0.0
        minimum = self.head_interval_s if crowded else 0.0
        return min(max(head_scan_s / self.max_head_share, minimum), self.max_head_interval_s)


SCAN_POLICY = ScanPolicy()


class ScanRange(msgspec.Struct):
    """Which ready runs of a lane a claim on PostgreSQL scans.

    These are the runs of `priority` behind (`turn`, `seq`), and all runs with a priority greater than `above`.
    """

    lane: int
    above: int = BELOW_ALL_PRIORITIES
    priority: int = BELOW_ALL_PRIORITIES
    turn: int = 0
    seq: int = 0
    share: int | None = None
    """Set while many workers claim at once: the share of the runs (`seq` modulo `SHARES`) that this claim prefers."""


class LaneCursor:
    """Where claims of this process resume in a lane: the last claimed position of each priority.

    Per claim, `ClaimStore` calls `may_resume`, scans the `ranges`, moves the cursor to the last claimed run of each
    priority with `advance`, and reports the scan with `record_scan`. The cursor only saves time: a head scan ignores
    it, and `ScanPolicy` decides how often one is due.
    """

    def __init__(self, lane: int) -> None:
        self.lane = lane
        self._last: dict[int, tuple[int, int]] = {}
        self._crowded = False
        self._head_scanned_at = 0.0
        self._head_scan_s = 0.0

    def may_resume(self, now: float, policy: ScanPolicy) -> bool:
        """Return whether a claim may resume behind the last position instead of scanning the lane from its head."""
        return now < self._head_scanned_at + policy.resume_s(self._head_scan_s, crowded=self._crowded)

    def ranges(self, *, resume: bool = True) -> list[ScanRange]:
        """Return what to scan: all runs behind each last position and all more urgent ones, or the whole lane."""
        last = self._last if resume else {}
        most_urgent = max(last, default=BELOW_ALL_PRIORITIES)
        return [
            ScanRange(self.lane, most_urgent if priority == most_urgent else ABOVE_ALL_PRIORITIES, priority, *position)
            for priority, position in list(last.items())
        ] or [ScanRange(self.lane)]

    def advance(self, claim: Claim) -> None:
        """Move to a claimed run, unless the cursor has already passed it."""
        position = (claim.turn, claim.seq)
        self._last[claim.priority] = max(position, self._last.get(claim.priority, position))
        if len(self._last) > MAX_CURSOR_PRIORITIES:
            self._last = {}

    def record_scan(self, now: float, took_s: float, *, resumed: bool, crowded: bool) -> None:
        """Remember whether the claim that just finished resumed, and whether the lane gave it many runs."""
        self._crowded = crowded
        if not resumed:
            self._head_scanned_at = now
            self._head_scan_s = took_s


class PickedRuns:
    """Runs that a read without a lock picked on SQLite, and the values by which `claim` detects changes since.

    The check compares sums. A run's *version* is `1000 * seq + fence + records`. It is positive, and any change of a
    ready run raises `fence` or `records`. `pick_claimable` returns the first ready runs of the lanes with their
    versions; `claim` runs under the write lock, adds up the versions of all runs that are ready up to the last picked
    position, compares the sums and claims those of the picked runs that are still ready. Three results are possible:

    - It claims none: the sums differ, or the lease has expired. The runs are picked again under the lock.
    - It claims all. Each picked run is still ready, so its version is at least what it was, and any other run in the
      range adds a positive version. As the sums are equal, no version grew and no other run is there: what was read is
      still true, and no more urgent run was overlooked.
    - It claims some. Other runs left, and changed or new runs made up for them exactly in the sum. The claimed runs
      belong to the session, but what was read may be outdated, so they are read again. Only their order may be wrong.

    `docs/claims.md` has the proof.
    """

    __slots__ = ("rows", "values")

    def __init__(self, found: Sequence[Row]) -> None:
        # Runs with limits, which only `claim_limited` may claim, and runs that are too late are only in the sum.
        self.rows = [row[:-1] for row in found if row[-2] is None]
        _, seq, _, priority, turn, *_ = found[-1]
        seqs, versions = json_rows(row[1] for row in self.rows), sum(row[-1] for row in found)
        self.values = {"seqs": seqs, "sum": versions, "priority": priority, "turn": turn, "seq": seq}


class ClaimStore(StoreModule):
    """Claims, and what a session has claimed."""

    def __init__(
        self, context: StoreContext, monotonic: Callable[[], float] = time.monotonic, policy: ScanPolicy | None = None
    ) -> None:
        super().__init__(context)
        self._monotonic = monotonic
        self._policy = policy or SCAN_POLICY
        self._cursors: dict[int, LaneCursor] = {}
        self._in_order_at = 0.0  # the last claim that scanned all lanes from their heads, in order
        self._contended_until = 0.0

    def claim(self, session: str, lanes: Collection[int], wanted: int) -> list[Claim]:
        """Claim up to `wanted` ready runs of these lanes, in the order in which they start.

        Returns nothing if there are none or the session's lease has expired.
        """
        if wanted < 1 or not lanes:
            return []

        def work() -> list[Claim]:
            if self._context.on_postgres:
                return self._claim_on_postgres(session, lanes, claim_size(wanted))
            return self._to_claims(self._claim_on_sqlite(session, lanes, min(wanted, MAX_CLAIM_RUNS)))

        return self._past_corrupt_rows("claim", work, lambda tx: _suspects(tx, lanes))

    def claim_before_commit(
        self, tx: Tx, session: str, lanes: Collection[int], wanted: int
    ) -> Callable[[], list[Claim]]:
        """Claim as `claim` does, in a transaction that has made runs ready.

        Return a function that returns the claims. Call it after the commit, which may share a round trip with them.
        """
        if self._context.on_postgres:
            size, now = claim_size(wanted), self._monotonic()
            cursors = [self._cursors.setdefault(lane, LaneCursor(lane)) for lane in lanes]
            if now >= self._contended_until and not any(cursor.may_resume(now, self._policy) for cursor in cursors):
                ranges = json_rows(each for cursor in cursors for each in cursor.ranges(resume=False))
                rows = tx.queue("claim", limit=size, session=session, ranges=ranges)
                return lambda: self._claimed_rows(rows(), size)
            claims = self._claim_on_postgres(session, lanes, size, tx.execute)
        else:
            claims = self._to_claims(_pick_and_claim(tx, session, _lane_rows(lanes), min(wanted, MAX_CLAIM_RUNS)))
        return lambda: claims

    def _claim_on_sqlite(self, session: str, lanes: Collection[int], size: int) -> list[Row]:
        """Pick without a lock, so that others can write meanwhile and an idle worker locks nothing; then claim."""
        rows = _lane_rows(lanes)
        found = self._execute("pick", "pick_claimable", size=size, lanes=rows)
        if not found:
            return []
        picked = PickedRuns(found)
        ((claimed,),) = self._execute("claim", "claim", session=session, lanes=rows, **picked.values)
        if claimed == len(picked.rows):
            return picked.rows
        if claimed:
            return self._execute("claim", "read_claimed", session=session, seqs=picked.values["seqs"])
        return self._transaction("claim", lambda tx: _pick_and_claim(tx, session, rows, size))

    def _claim_on_postgres(
        self, session: str, lanes: Collection[int], size: int, execute: Callable[..., list[Row]] | None = None
    ) -> list[Claim]:
        """Scan each lane from its head, or resume behind its cursor, as the scan policy decides."""
        began = self._monotonic()
        cursors = [self._cursors.setdefault(lane, LaneCursor(lane)) for lane in lanes]
        resumed = [cursor.may_resume(began, self._policy) for cursor in cursors]
        execute = execute or partial(self._execute, "claim")
        is_contended = size >= MIN_SHARED_CLAIM_RUNS and began < min(
            self._contended_until, self._in_order_at + self._policy.max_head_interval_s
        )
        if not is_contended and began < self._contended_until:
            resumed = [False] * len(cursors)
        claims = self._claim_ranges(execute, session, cursors, resumed, size, in_shares=is_contended)
        if not claims and (is_contended or any(resumed)):
            resumed = [False] * len(cursors)
            claims = self._claim_ranges(execute, session, cursors, resumed, size)
        now = self._monotonic()
        if not (is_contended or any(resumed)):
            self._in_order_at = now
        # Fair queues are never crowded: a new tenant's turn comes before the last claimed one. Neither are queues with
        # `age_priority`: a new run with a high priority may have an earlier turn.
        in_order = (claim.lane for claim in claims if -AGED_TURN_OFFSET <= claim.turn <= 0)
        counts = Counter(in_order if len(claims) == size else ())
        for cursor, did_resume in zip(cursors, resumed, strict=True):
            crowded = counts[cursor.lane] >= self._policy.crowded_runs
            cursor.record_scan(now, now - began, resumed=did_resume, crowded=crowded)
        return claims

    def _claim_ranges(
        self,
        execute: Callable[..., list[Row]],
        session: str,
        cursors: list[LaneCursor],
        resume: list[bool],
        size: int,
        *,
        in_shares: bool = False,
    ) -> list[Claim]:
        """Claim with one statement and advance the cursors. `in_shares`: prefer a random share of the next runs."""
        ranges = [each for cursor, on in zip(cursors, resume, strict=True) for each in cursor.ranges(resume=on)]
        if in_shares:
            share = random.randrange(SHARES)
            for each in ranges:
                each.share = share
        statement = "claim_share" if in_shares else "claim"
        return self._claimed_rows(execute(statement, limit=size, session=session, ranges=json_rows(ranges)), size)

    def _claimed_rows(self, rows: Sequence[Row], size: int) -> list[Claim]:
        """Return the claims of a statement and advance the cursors."""
        if rows and len(rows) < min(size, rows[0][-1]):
            self.expect_contention()
        claims = self._to_claims([row[:-1] for row in rows])
        last = {(claim.lane, claim.priority): claim for claim in claims}
        for (lane, _), claim in last.items():
            self._cursors[lane].advance(claim)
        return claims

    def expect_contention(self) -> None:
        """Let claims prefer a share of the next runs for a while, because other workers claim them too."""
        self._contended_until = self._monotonic() + self._policy.contended_s

    def claim_limited(self, session: str, lanes: Collection[int], wanted: int) -> list[Claim]:
        """Claim runs of lanes with limits, in the same order; park those whose limits are full."""
        if wanted < 1 or not lanes:
            return []
        rows = _lane_rows(lanes)
        if self._context.database.dialect.single_writer and not self._execute("read", "has_ready", lanes=rows):
            return []
        size = claim_size(wanted)

        def work(tx: Tx) -> list[Row]:
            candidates = tx.execute("pick_limited", limit=size, session=session, lanes=rows)
            return self._claim_admitted(tx, session, candidates)

        def claim() -> list[Claim]:
            return self._to_claims(self._transaction("claim", work))

        return self._past_corrupt_rows("claim", claim, lambda tx: _suspects(tx, lanes))

    def claim_isolated(self, session: str, lanes: Collection[int], max_runs: int) -> list[Claim]:
        """Claim a group of isolated runs that may share a process; the caller runs nothing else meanwhile."""

        def work(tx: Tx) -> list[Row]:
            candidates = tx.execute("pick_isolated", session=session, lanes=_lane_rows(lanes), size=max_runs)
            # The last column is the size that the group may have.
            picked = candidates[: candidates[0][2]] if candidates else []
            group = [(id, limits, *BEFORE_ALL_RUNS) for id, limits, _ in picked]
            return self._claim_admitted(tx, session, group)

        def claim() -> list[Claim]:
            return self._to_claims(self._transaction("claim", work))

        return self._past_corrupt_rows("claim", claim, lambda tx: column(tx.execute("suspect_held")))

    def _claim_admitted(self, tx: Tx, session: str, candidates: Sequence[Sequence[Any]]) -> list[Row]:
        """Take permits for locked candidates, given as `take_permits` takes them, and claim those that got them."""
        admitted, at = take_permits(tx, candidates)
        if not admitted:
            return []
        rows = id_rows(admitted)
        claimed = tx.execute("claim_admitted", session=session, rows=rows, at=at)
        return claimed if self._context.on_postgres else tx.execute("read_admitted", rows=rows)

    def _to_claims(self, rows: Sequence[Row]) -> list[Claim]:
        claims = [Claim(*row) for row in rows]
        payloads = self._context.payloads
        rejects_plain = payloads.rejects_plain
        for claim in claims:
            if rejects_plain or claim.args[:1] == "~":
                claim.args = payloads.unpack(claim.args, PayloadContext("args", claim.tenant, str(claim.id)))
        try:
            claims.sort(key=_TURN_AND_SEQ)
            claims.sort(key=_PRIORITY, reverse=True)  # stable: equal priorities keep their order
        except TypeError as error:  # SQLite stores any type in any column
            corrupt = self._context.quarantine.examine("claim", [claim.id for claim in claims], str(error))
            return self._to_claims([row for row in rows if row[0] not in corrupt]) if corrupt else claims
        return claims

    def ready_lanes(self, skip: Collection[int] = ()) -> list[int]:
        """Return all lanes with something to claim, except those to skip, in time proportional to their number."""
        ends = [-1, *sorted(skip), 2**62]
        gaps = json_rows({"above": above, "below": below} for above, below in pairwise(ends))
        return [int(lane) for (lane,) in self._execute("claim", "list_ready_lanes", gaps=gaps)]

    def by_urgency(self, lanes: Collection[int]) -> list[int]:
        """Return those of these lanes with something to claim, the one whose first run is the most urgent first."""
        return [int(lane) for (lane,) in self._execute("claim", "sort_lanes", lanes=_lane_rows(lanes))]

    def has_ready(self, lanes: Collection[int]) -> bool:
        """Return whether these lanes have, or had a moment ago, something to claim."""
        return bool(lanes) and bool(self._execute("claim", "has_ready", lanes=_lane_rows(lanes)))

    def waiting_lanes(self, lanes: Collection[int], age: int, purpose: str = "claim") -> list[int]:
        """Return those of these lanes in which a run has been ready for this many microseconds."""
        return [int(lane) for (lane,) in self._execute(purpose, "find_waiting_lanes", lanes=_lane_rows(lanes), age=age)]

    def has_isolated(self, lanes: Collection[int]) -> bool:
        """Return whether isolated runs of these lanes wait for a process of their own."""
        purpose = "pick" if self._context.database.dialect.single_writer else "claim"
        return bool(lanes) and bool(self._execute(purpose, "has_isolated", lanes=_lane_rows(lanes)))

    def has_active(self, lanes: Collection[int]) -> bool:
        """Return whether anything in these lanes is ready or running, on any worker."""
        return bool(lanes) and bool(self._execute("claim", "has_active", lanes=_lane_rows(lanes)))

    def waits(self, runs: Iterable[str]) -> dict[str, float]:
        """Return how long claimed runs were ready before their claim, in seconds by id.

        A run that has become ready again since then is left out.
        """
        rows = self._execute("pick", "read_waits", rows=id_rows(runs))
        waits = {str(id): time_left(claimed_at, ready_at) for id, ready_at, claimed_at in rows}
        return {id: waited / MICROS_PER_SECOND for id, waited in waits.items() if waited is not None and waited >= 0}

    def list_owned(self, session: str) -> list[OwnedRun]:
        """Return all runs whose row names the session."""
        return [OwnedRun._make(row) for row in self._execute("heartbeat", "list_owned", session=session)]

    def find_running(self, session: str, runs: Sequence[str]) -> dict[ClaimKey, bool]:
        """Return id and fence of those of the runs that are running in this session, and whether each is paused."""
        return {(id, fence): bool(paused) for id, fence, paused in self._find("find_running", runs, session=session)}

    def find_suspended(self, runs: Sequence[str]) -> set[ClaimKey]:
        """Return id and fence of those of the runs that no session has and that haven't ended."""
        return {(id, fence) for id, fence in self._find("find_suspended", runs)}

    def _find(self, statement: str, runs: Sequence[str], **more: Any) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = []
        for batch in in_batches(runs, len):
            rows = self._execute("heartbeat", statement, rows=id_rows(batch), **more)
            found.extend((str(id), *rest) for id, *rest in rows)
        return found


def claim_size(wanted: int) -> int:
    """Round down to a power of two: sizes are literals in the SQL, and each is a prepared statement of its own."""
    return 1 << min(wanted, MAX_CLAIM_RUNS).bit_length() - 1


def _suspects(tx: Tx, lanes: Collection[int]) -> list[str]:
    """Return the first ready runs of the lanes, for `Quarantine`."""
    return [id for lane in lanes for (id,) in tx.execute("some_ready_of_lane", limit=MAX_CLAIM_RUNS, lane=lane)]


def _lane_rows(lanes: Collection[int]) -> str:
    return json_rows({"lane": lane} for lane in lanes)


def _pick_and_claim(tx: Tx, session: str, lanes: str, size: int) -> list[Row]:
    """Pick and claim on SQLite in one transaction, so that nothing can change in between."""
    found = tx.execute("pick_claimable", size=size, lanes=lanes)
    if not found:
        return []
    picked = PickedRuns(found)
    ((claimed,),) = tx.execute("claim", session=session, lanes=lanes, **picked.values)
    if not claimed and picked.rows and tx.execute("lock_session", session=session):
        raise DataFault("the versions of ready runs don't add up: one of them is corrupt")
    return picked.rows if claimed else []
