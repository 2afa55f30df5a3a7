"""Everything that happens at a time: scheduled runs and waits come due, deadlines pass, parked runs are checked.

Also work that others leave behind: waiters that an emit didn't wake, and runs held for a predecessor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from holdfast.database import Duplicate
from holdfast.model.failure import cancellation_json
from holdfast.store.budgets import wake_next
from holdfast.store.graphs import expire_gates
from holdfast.store.limits import unpark_due
from holdfast.store.module import StoreModule, Tx, column, id_rows, json_rows, time_left
from holdfast.store.propagation import failed_runs, propagate_ends
from holdfast.store.run_tree import affected_ancestors, cancel_runs, fail_overdue_runs, lock_runs, lock_unlocked_runs
from holdfast.store.waits import find_waiters, resolve_event_waits, wake_runs

T = TypeVar("T")
NOT_STARTED = cancellation_json("not started in time")


class DueTimes(NamedTuple):
    """What the timers have to do.

    `scheduled`, `waits`, `deadlines`, `limits`, `starts` and `budgets`: microseconds until the next is due, None if
    there is none.
    `held`, `queued`, `events`, `paused` and `tenants`: whether held runs, runs that wait for a unique name, waiters of
    an emitted event, paused runs in the ready index or pauses of tenants are left.
    """

    scheduled: int | None
    waits: int | None
    deadlines: int | None
    held: int | None
    queued: int | None
    events: int | None
    limits: int | None
    starts: int | None
    paused: int | None = None
    tenants: int | None = None
    budgets: int | None = None

    def next(self) -> int | None:
        """Return the microseconds until the next is due."""
        return min(
            (left for left in (*self[:3], self.limits, self.starts, self.budgets) if left is not None), default=None
        )


class TimerStore(StoreModule):
    """What is due. Each call handles one batch of at most 500 and returns how many, so that callers can repeat it."""

    def due(self) -> DueTimes:
        """Return what is due, or when the next is. Changes nothing."""
        found = self._execute("poll", "read_due_times")[0]
        scheduled, waits, deadlines, held, queued, events, limits, starts, paused, tenants, budgets, now = found
        return DueTimes(
            scheduled=time_left(scheduled, now),
            waits=time_left(waits, now),
            deadlines=time_left(deadlines, now),
            held=held,
            queued=queued,
            events=events,
            limits=time_left(limits, now),
            starts=time_left(starts, now),
            paused=paused,
            tenants=tenants,
            budgets=time_left(budgets, now),
        )

    def promote_due(self) -> int:
        """Make scheduled runs ready that are due."""
        return self._guard(lambda: len(self._execute("housekeeping", "promote_due_runs")), "suspect_due")

    def release_held(self) -> int:
        """Make runs claimable that were held until the code of a predecessor stopped."""
        return self._guard(lambda: len(self._execute("housekeeping", "release_held_runs")), "suspect_held")

    def start_queued(self) -> int:
        """Give runs that wait for a unique name the name, if its last run has ended."""
        try:
            return self._guard(lambda: len(self._execute("housekeeping", "start_queued_runs")), "suspect_held")
        except Duplicate:  # an enqueue took one of the names first
            return 0

    def fail_overdue(self, error: str) -> list[str]:
        """Fail runs past their deadline, and conclude gates past theirs.

        Return the ids of those that failed and of graphs that failed with them.
        """

        def work(tx: Tx) -> list[str]:
            picked = tx.execute("pick_overdue_runs")
            if not picked:
                return []
            # Parents before their children.
            lock_runs(tx, affected_ancestors(tx, [str(id) for id, parent in picked if parent is not None]))
            runs = lock_unlocked_runs(tx, (str(id) for id, _ in picked))
            ends = expire_gates(tx, [id for id, run in runs.items() if run.kind == "gate"])
            ends += fail_overdue_runs(tx, {id: run for id, run in runs.items() if run.kind != "gate"}, error)
            return failed_runs([*ends, *propagate_ends(tx, ends)])

        return self._guard(lambda: self._transaction("housekeeping", work), "suspect_due")

    def cancel_unstarted(self) -> list[str]:
        """Cancel runs that should have started by now; return their ids."""

        def work(tx: Tx) -> list[str]:
            picked = tx.execute("pick_unstarted_runs")
            if not picked:
                return []
            lock_runs(tx, affected_ancestors(tx, [str(id) for id, parent in picked if parent is not None]))
            runs = lock_unlocked_runs(tx, (str(id) for id, _ in picked))
            left = {str(id): runs[str(id)] for (id,) in tx.execute("find_unstarted", rows=id_rows(runs))}
            ends = cancel_runs(tx, left, NOT_STARTED)
            propagate_ends(tx, ends)
            return [end.id for end in ends]

        return self._guard(lambda: self._transaction("housekeeping", work), "suspect_due")

    def resolve_due_waits(self) -> int:
        """Resolve waits that are due and wake their runs."""

        def work(tx: Tx) -> int:
            runs = lock_unlocked_runs(tx, (str(row[0]) for row in tx.execute("find_runs_with_due_waits")))
            resolved = tx.execute("resolve_due_waits", rows=id_rows(runs))
            wake_runs(tx, {str(row[0]) for row in resolved})
            return len(resolved)

        return self._guard(lambda: self._transaction("housekeeping", work), "suspect_due")

    def wake_event_waiters(self) -> int:
        """Wake the next waiters of events that have more than their emit could wake."""

        def work(tx: Tx) -> int:
            payloads: dict[str, str] = dict(tx.execute("pick_events_with_waiters"))
            waiters, more = find_waiters(tx, payloads)
            lock_runs(tx, {waiter.run for waiter in waiters})
            wake_runs(tx, resolve_event_waits(tx, payloads, waiters))
            if not more:
                tx.execute("clear_more_waiters", rows=json_rows({"target": target} for target in payloads))
            return len(waiters)

        return self._guard(lambda: self._transaction("housekeeping", work), "suspect_waiters")

    def unpark_due(self) -> int:
        """Unpark runs of full limits whose check is due; return the number of counters."""
        return self._guard(lambda: self._transaction("housekeeping", unpark_due), "suspect_held")

    def wake_budget_waiters(self) -> int:
        """Wake the next runs that may continue because a budget was raised; return how many, at least 1 if one was."""
        return self._guard(lambda: self._transaction("housekeeping", wake_next), "suspect_waiters")

    def _guard(self, work: Callable[[], T], suspects: str) -> T:
        """Do `work`. If a corrupt row breaks it, quarantine that run, one of `suspects`, and repeat it."""
        return self._past_corrupt_rows("housekeeping", work, lambda tx: column(tx.execute(suspects)))
