"""What happens by the clock: scheduled runs and waits come due, deadlines pass, old runs and events are pruned.

Also what others leave for a quiet moment: waiters that an emit didn't come to, runs held for a predecessor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.database import Row
from holdfast.store.family import above, fail_overdue, held_runs, hold, ids
from holdfast.store.gates import expire
from holdfast.store.part import BATCH, Do, Part, batch
from holdfast.store.permits import look_again
from holdfast.store.settling import settle
from holdfast.store.waking import find_waiters, settle_waiters, wake


class Due(NamedTuple):
    """Microseconds until a scheduled run is due, until a wait is, until a deadline passes, each None where there is
    none; whether held runs and the waiters of an event are to be looked at; and microseconds until full limits are."""

    scheduled: int | None
    waits: int | None
    deadlines: int | None
    held: int | None
    events: int | None
    limits: int | None

    def next(self) -> int | None:
        """Microseconds until the next thing is due."""
        return min((left for left in (*self[:3], self.limits) if left is not None), default=None)


class Timers(Part):
    """What is due, overdue, or old."""

    def promote_due(self) -> int:
        """Scheduled runs whose time has come become ready; how many, at most 500 a call."""
        return len(self._one("housekeeping", "promote_due"))

    def unhold(self) -> int:
        """Runs that waited for the worker of a predecessor to let go become claimable; how many."""
        return len(self._one("housekeeping", "unhold_successors"))

    def fail_overdue(self, error: str) -> list[str]:
        """Unfinished runs past their deadline fail, at most 500 a call, and gates end as was said: the ids of those
        that failed, and of graphs that did by it."""

        def work(do: Do) -> list[str]:
            picked = do("pick_overdue")
            if not picked:
                return []
            hold(do, above(do, [str(id) for id, parent in picked if parent is not None]))  # before its children
            runs = held_runs(do("hold_free_runs", rows=ids(str(id) for id, _ in picked)))
            ends = expire(do, [id for id, run in runs.items() if run.kind == "gate"])
            ends += fail_overdue(do, {id: run for id, run in runs.items() if run.kind != "gate"}, error)
            failed_with = settle(do, ends)
            return [end.id for end in ends if end.state == "failed"] + failed_with

        return self._together("housekeeping", work)

    def due(self) -> Due:
        """What is due, or when the next is. Changes nothing."""
        return Due._make(self._one("look", "due")[0])

    def wake_due(self) -> int:
        """Waits whose time has come are settled, and their runs woken; how many waits, at most a batch."""

        def work(do: Do) -> int:
            runs = [str(row[0]) for row in do("pick_due_waits")]
            free = held_runs(do("hold_free_runs", rows=ids(runs)))
            settled = do("settle_due", rows=ids(free))
            wake(do, {str(row[0]) for row in settled})
            return len(settled)

        return self._together("housekeeping", work)

    def wake_waiters(self) -> int:
        """Events with more waiters than their emit could wake: the next of them; how many."""

        def work(do: Do) -> int:
            payloads: dict[str, str] = dict(do("pick_events"))
            waiters, more = find_waiters(do, payloads)
            hold(do, {waiter.run for waiter in waiters})
            woken = settle_waiters(do, payloads, waiters)
            wake(do, woken)
            if not more:
                do("settle_events", rows=batch({"target": target} for target in payloads))
            return len(waiters)

        return self._together("housekeeping", work)

    def look_at_limits(self) -> int:
        """Limits that were full, and whose time has come: those that wait for them may be tried; how many."""
        return self._together("housekeeping", look_again)

    def prune_limits(self) -> bool:
        """Delete counters of limits that nobody uses, at most a batch; whether there may be more."""
        return len(self._one("housekeeping", "prune_limits")) == BATCH

    def prune(self) -> tuple[int, bool]:
        """Delete finished runs whose time is over, families as a whole: how many, and whether there may be more."""

        def work(do: Do) -> tuple[int, bool]:
            picked = sort_out(do("pick_expired"))
            pruned = prune_picked(do, picked)
            if picked.busy:
                do("postpone_pruning", rows=ids(picked.busy))
            return pruned, picked.last is not None or bool(picked.families)

        return self._together("housekeeping", work)

    def prune_events(self, age: int) -> bool:
        """Delete events that nobody waits for or touched for so long; whether there may be more."""

        def work(do: Do) -> bool:
            old = [{"target": target} for (target,) in do("old_events", age=age)]
            if old:
                do("prune_events", rows=batch(old))
                do("keep_events", rows=batch(old))
            return len(old) == BATCH

        return self._together("housekeeping", work)


class Picked(NamedTuple):
    """Old runs: those alone, those with a family that is over, those that someone is at, or in whose family; and the
    last, when there may be more."""

    alone: list[str]
    families: list[str]
    busy: list[str]
    last: str | None


def sort_out(rows: Sequence[Row]) -> Picked:
    """Rows of id, whether it has a family, whether anyone in it is at work."""
    picked = Picked([], [], [], str(rows[-1][0]) if len(rows) == BATCH else None)
    for id, family, busy in rows:
        (picked.busy if busy else picked.families if family else picked.alone).append(str(id))
    return picked


def prune_picked(do: Do, picked: Picked) -> int:
    """Delete those that are alone, and a batch of what is below the others: their turn comes when they are alone."""
    pruned = [str(id) for (id,) in do("prune_runs", rows=ids(picked.alone))] if picked.alone else []
    if picked.families:
        pruned += [str(id) for (id,) in do("prune_descendants", rows=ids(picked.families))]
    if pruned:
        gone = ids(pruned)
        for statement in (
            "prune_history",
            "delete_checkpoints",
            "delete_waits",
            "prune_messages",
            "prune_chunks",
            "prune_edges",
        ):
            do(statement, rows=gone)
    return len(pruned)
