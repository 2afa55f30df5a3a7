"""How many runs ended, and how long they waited and took, by minute and by hour, counted when that is over.

Each minute is read once, by the index of ends, some time after it was over, so that what commits late is in it; an hour
is made of its minutes. Whoever counts a span twice writes the same: the first one stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from holdfast.database import Row
from holdfast.model.clock import MICROS_PER_SECOND
from holdfast.policy.histogram import Histogram, merge_histograms
from holdfast.store.part import Part, batch

MINUTE = 60 * MICROS_PER_SECOND
HOUR = 60 * MINUTE
LATE = MINUTE
"""How long after its end a minute is counted: no statement of ours takes longer to commit."""
BACK = HOUR
"""How far back uncounted minutes are made up for."""
PORTION = 5
"""How many minutes are counted at once: after a pause there may be very many runs to make up for."""
KEPT = {MINUTE: 72 * HOUR, HOUR: 90 * 24 * HOUR}


class Tally(NamedTuple):
    """Runs of a lane that ended in one state within a span, which begins at `at`."""

    at: int
    lane: int
    state: str
    runs: int
    waits: Histogram
    takes: Histogram


class Tallies(Part):
    """Counts of the past."""

    def count(self) -> int:
        """Count what is over and wasn't counted yet, a portion of it; how many minutes that were."""
        now = self.now("housekeeping")
        over = (now - LATE) // MINUTE * MINUTE
        since = max(self._next(MINUTE) or 0, over - BACK)
        until = min(over, since + PORTION * MINUTE)
        if since >= until:
            return 0
        self._add(MINUTE, self.live(since, until, "tally"))
        self._add(MINUTE, [_nothing(until - MINUTE)])  # so that it counts as counted
        self._count_hours(until)
        for span, age in KEPT.items():
            self._one("housekeeping", "prune_tallies", span=span, age=age)
        return (until - since) // MINUTE

    def _count_hours(self, until: int) -> None:
        """Hours of which all minutes are counted."""
        end = until // HOUR * HOUR
        since = max(self._next(HOUR) or 0, end - KEPT[MINUTE]) // HOUR * HOUR
        if since >= end:
            return
        hours: dict[int, list[Tally]] = {}
        for minute in self.read(MINUTE, since, end, "housekeeping"):
            hours.setdefault(minute.at // HOUR * HOUR, []).append(minute)
        self._add(HOUR, [tally for at, minutes in hours.items() for tally in together(at, minutes)])
        self._add(HOUR, [_nothing(end - HOUR)])  # so that it counts as counted

    def _next(self, span: int) -> int | None:
        """Where the first span that wasn't counted begins."""
        ((last,),) = self._one("housekeeping", "last_tally", span=span)
        return None if last is None else int(last) + span

    def now(self, line: str = "read") -> int:
        """The database's time."""
        return int(self._one(line, "read_clock")[0][0])

    def live(self, since: int, until: int, line: str = "read") -> list[Tally]:
        """Minutes that are counted now, from the runs themselves."""
        found: dict[tuple[int, int, str], tuple[list[int], Histogram, Histogram]] = {}
        for at, lane, state, waited, took, runs in self._one(line, "tally", span=MINUTE, since=since, until=until):
            key = (at, lane, state)
            counted = found.get(key)
            if counted is None:
                counted = found[key] = ([], {}, {})
            counts, waits, takes = counted
            counts.append(runs)
            if waited is not None:
                waits[waited] = waits.get(waited, 0) + runs
            if took is not None:
                takes[took] = takes.get(took, 0) + runs
        return [Tally(*key, sum(counts), waits, takes) for key, (counts, waits, takes) in found.items()]

    def read(self, span: int, since: int, until: int, line: str = "read") -> list[Tally]:
        """What was counted of spans that begin within that time."""
        rows = self._one(line, "read_tallies", span=span, since=since, until=until)
        return [_tally(row) for row in rows if row[1]]

    def counted_until(self, span: int) -> int:
        """Up to when all is counted, as far as it will be."""
        ((last,),) = self._one("read", "last_tally", span=span)
        return 0 if last is None else int(last) + span

    def _add(self, span: int, tallies: Iterable[Tally]) -> None:
        rows: list[dict[str, Any]] = [
            {
                "span": span, "at": tally.at, "lane": tally.lane, "state": tally.state, "runs": tally.runs,
                "waits": _packed(tally.waits), "takes": _packed(tally.takes),
            }
            for tally in tallies
        ]  # fmt: skip
        for at in range(0, len(rows), 500):
            self._one("housekeeping", "add_tallies", rows=batch(rows[at : at + 500]))


def _nothing(at: int) -> Tally:
    """Stands for a span of which nothing else may be on record."""
    return Tally(at, 0, "done", 0, {}, {})


def together(at: int, tallies: Sequence[Tally]) -> list[Tally]:
    """One tally of all those that are of one lane and state."""
    groups: dict[tuple[int, str], list[Tally]] = {}
    for tally in tallies:
        groups.setdefault((tally.lane, tally.state), []).append(tally)
    return [
        Tally(
            at, lane, state, sum(each.runs for each in some),
            merge_histograms(each.waits for each in some), merge_histograms(each.takes for each in some),
        )
        for (lane, state), some in groups.items()
    ]  # fmt: skip


def _packed(histogram: Histogram) -> str:
    return msgspec.json.encode(sorted(histogram.items())).decode()


def _tally(row: Row) -> Tally:
    at, lane, state, runs, waits, takes = row
    return Tally(
        int(at), int(lane), state, int(runs), dict(msgspec.json.decode(waits)), dict(msgspec.json.decode(takes))
    )
