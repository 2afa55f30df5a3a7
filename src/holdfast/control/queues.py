"""Queues for operators: what waits in them, pause and resume."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

import msgspec

from holdfast.model.clock import MICROS_PER_SECOND, to_datetime_or_none
from holdfast.model.names import check_queue
from holdfast.model.run import GRAPH_QUEUE
from holdfast.store import Store
from holdfast.store.queues import QueueRow


class QueueInfo(msgspec.Struct, frozen=True):
    """A queue as it was when it was read."""

    name: str
    paused: bool
    paused_at: datetime | None
    runs: dict[str, int] = msgspec.field(default_factory=dict)
    """How many unfinished runs it has, by state."""
    oldest_ready: float | None = None
    """Seconds since the oldest ready run was made."""


class QueueControl:
    """A queue exists as soon as someone names it: pausing one before its first run is allowed."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def list(self) -> list[QueueInfo]:
        """Every queue, by name."""
        runs: dict[str, dict[str, int]] = {}
        oldest: dict[str, float] = {}
        for count in self._store.queues.unfinished():
            runs.setdefault(count.queue, {})[count.state] = count.runs
            if count.state == "ready":
                oldest[count.queue] = max(count.now - count.oldest, 0) / MICROS_PER_SECOND
        return [
            QueueInfo(
                row.name,
                bool(row.paused),
                to_datetime_or_none(row.paused_at),
                dict(sorted(runs.get(row.name, {}).items())),
                oldest.get(row.name),
            )
            for row in self._all()
        ]

    def paused(self) -> dict[str, bool]:
        """Every queue, by name, and whether it is paused; counts nothing."""
        return {row.name: bool(row.paused) for row in self._all()}

    def names(self) -> set[str]:
        """Every queue that a run was ever put into, or that was paused."""
        return {row.name for row in self._all()}

    def _all(self) -> Sequence[QueueRow]:
        """Without that of graphs and gates, which no worker takes anything from."""
        return [row for row in self._store.queues.all() if row.name != GRAPH_QUEUE]

    def pause(self, names: Iterable[str]) -> set[str]:
        """Let no worker take runs of these queues. What runs goes on; what is ready stays so. A claim that is under way
        in this very moment may still take its runs. The names of those that were open before."""
        return set(self._store.queues.pause(check_queue(name, "a queue") for name in names))

    def resume(self, names: Iterable[str]) -> set[str]:
        """Let workers take runs of these queues again; the names of those that were paused."""
        return set(self._store.queues.resume(check_queue(name, "a queue") for name in names))
