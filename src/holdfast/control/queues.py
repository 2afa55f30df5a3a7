"""Queues: backlog, pause and resume."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

import msgspec

from holdfast.control.audit import audited
from holdfast.model.clock import to_datetime_or_none
from holdfast.model.names import check_queue
from holdfast.model.run import GRAPH_QUEUE
from holdfast.store import Store
from holdfast.store.admin import QueueStatus


class QueueInfo(msgspec.Struct, frozen=True):
    """A queue with its backlog."""

    name: str
    paused: bool
    paused_at: datetime | None
    runs: dict[str, int] = msgspec.field(default_factory=dict)
    """The number of unfinished runs, by state."""
    oldest_ready: float | None = None
    """Seconds since the run that has been ready for the longest time became ready. Held runs don't count."""
    at_least: list[str] = msgspec.field(default_factory=list)
    """The states whose runs are too many to be counted: the numbers are lower bounds, in this and in other queues."""


class QueueControl:
    """Lists, pauses and resumes queues. A queue may be paused before its first run."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def list(self) -> list[QueueInfo]:
        """List all queues by name."""
        counted = self._store.counts.unfinished()
        lanes = self._store.lanes.refresh()
        runs: dict[str, dict[str, int]] = {}
        for state, counts in sorted(counted.items()):
            for lane, number in counts.by_lane.items():
                of_queue = runs.setdefault(lanes.get(lane, ("", ""))[0], {})
                of_queue[state] = of_queue.get(state, 0) + number
        oldest, at_least = self.oldest_ready(), sorted(state for state, counts in counted.items() if not counts.exact)
        return [
            QueueInfo(
                row.name,
                bool(row.paused),
                to_datetime_or_none(row.paused_at),
                runs.get(row.name, {}),
                oldest.get(row.name),
                at_least,
            )
            for row in self._all()
        ]

    def paused(self) -> dict[str, bool]:
        """Return for each queue whether it is paused, without counting runs."""
        return {row.name: bool(row.paused) for row in self._all()}

    def oldest_ready(self) -> dict[str, float]:
        """Return by queue how many seconds its oldest ready run has been ready, without counting runs."""
        return self._store.queues.oldest_ready()

    def names(self) -> set[str]:
        """Return the names of all queues that have had a run or were paused."""
        return {row.name for row in self._all()}

    def task_names(self) -> set[str]:
        """Return the names of all tasks that have had a run."""
        lanes = self._store.lanes.refresh().values()
        return {task for queue, task in lanes if queue != GRAPH_QUEUE}

    def _all(self) -> Sequence[QueueStatus]:
        """Leave out the internal queue of graphs and gates, which workers don't serve."""
        return [row for row in self._store.queues.list_all() if row.name != GRAPH_QUEUE]

    @audited("pause queue", "names")
    def pause(self, names: Iterable[str]) -> set[str]:
        """Stop workers from claiming runs of these queues, and return those that were not paused before.

        Running runs continue and ready runs stay ready. A claim in progress may still take runs.
        """
        return set(self._store.queues.pause(check_queue(name, "a queue") for name in names))

    @audited("resume queue", "names")
    def resume(self, names: Iterable[str]) -> set[str]:
        """Resume these queues, and return those that were paused."""
        return set(self._store.queues.resume(check_queue(name, "a queue") for name in names))
