"""What happens by the clock: scheduled runs come due, deadlines pass, finished runs are pruned."""

from __future__ import annotations

from holdfast.store.part import BATCH, Do, Part, batch, ended, record


class Timers(Part):
    """What is due, overdue, or old."""

    def promote_due(self) -> int:
        """Scheduled runs whose time has come become ready; how many, at most 500 a call."""
        return len(self._one("housekeeping", "promote_due"))

    def unhold(self) -> int:
        """Runs that waited for the worker of a predecessor to let go become claimable; how many."""
        return len(self._one("housekeeping", "unhold_successors"))

    def fail_overdue(self, error: str) -> list[str]:
        """Unfinished runs past their deadline fail; their ids, at most 500 a call."""

        def work(do: Do) -> list[str]:
            was = {str(id): state for id, state in do("pick_overdue")}
            if not was:
                return []
            rows = do("fail_overdue", rows=batch({"id": id} for id in was), error=error)
            records = [
                ended(was[str(id)], record(str(id), n, "failed", attempt, session=session, since=since, data=error))
                for id, n, attempt, session, since in rows
            ]
            do("add_history", rows=batch(records))
            return [row["run"] for row in records]

        return self._together("housekeeping", work)

    def next_due(self) -> int | None:
        """Microseconds until the next run is due or overdue; None when nothing is scheduled."""
        return min((left for left in self._one("housekeeping", "next_due")[0] if left is not None), default=None)

    def prune(self) -> tuple[int, bool]:
        """Delete finished runs whose time is over: how many, and whether there may be more."""

        def work(do: Do) -> tuple[int, bool]:
            pruned = do("prune_runs")
            do("prune_history", rows=batch({"id": str(id)} for (id,) in pruned))
            return len(pruned), len(pruned) == BATCH

        return self._together("housekeeping", work)
