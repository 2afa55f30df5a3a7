"""Jobs put in a second: by one caller after the other, by a hundred callers at once, and in bulk."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import ExitStack, closing
from functools import partial
from typing import Any

from benchmarks.children import finish, ours
from benchmarks.hosts import Host
from benchmarks.measure import OURS, Case, Figures, Measure, Place, check
from benchmarks.throughput import LONGEST_SECONDS, scratch_folder

CALLERS = 100
ONE_BY_ONE, AT_ONCE, BULK = "one by one", f"{CALLERS} at once", "bulk"
WAYS = {ONE_BY_ONE: "single", AT_ONCE: "concurrent", BULK: "bulk"}
SHARES = {ONE_BY_ONE: 0.06, AT_ONCE: 0.2, BULK: 1.0}
"""Of the count, so that each takes about as long."""
QUEUED = "select count(*) from {schema}runs where state = 'ready'"


class Enqueue(Measure):
    """A new database for every repetition and way. The callers are in a process of their own."""

    name = "enqueue"
    purpose = "jobs enqueued a second: one by one, by 100 callers at once, in bulk"
    unit = "jobs/s"
    count = 100_000
    quick_count = 3_000
    has_peers = True

    def settings(self, options: argparse.Namespace) -> dict[str, Any]:
        return {way: share_of(options.count, way) for way in WAYS}

    def cases(self, host: Host, options: argparse.Namespace, stack: ExitStack) -> Sequence[Case]:  # noqa: ARG002
        def take(way: str) -> Figures:
            count = share_of(options.count, way)
            with closing(host.fresh()) as tables, scratch_folder() as scratch:
                more = ("--count", str(count), "--way", WAYS[way], "--callers", str(CALLERS))
                answer = finish(ours("enqueue", tables.url, scratch, *more), scratch, "enqueuer", LONGEST_SECONDS)
                check("runs enqueued", tables.number(QUEUED), count)
            return {way: float(answer["rate"])}

        return [Case(host.name, OURS, partial(take, way), way) for way in WAYS]

    def compared(self, places: Sequence[Place]) -> list[tuple[Place, Place]]:
        """Many callers of ours also against one of the others: that is what others offer them."""
        pairs = super().compared(places)
        beside = [(top, bottom._replace(figure=ONE_BY_ONE)) for top, bottom in pairs if top.figure == AT_ONCE]
        return [*pairs, *[(top, bottom) for top, bottom in beside if bottom in set(places)]]


def share_of(count: int, way: str) -> int:
    """How many jobs of a count go this way; a multiple of the callers, if they are at once."""
    share = max(int(count * SHARES[way]), 1)
    return max(share // CALLERS, 1) * CALLERS if way == AT_ONCE else share
