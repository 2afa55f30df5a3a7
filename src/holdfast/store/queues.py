"""Queues as operators see them: what waits in them, and whether they are paused.

A paused queue's runs stay `ready`; the claim passes its lanes over. Running ones go on.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from holdfast.store.part import Part, batch


class QueueRow(NamedTuple):
    """A queue, and whether it is paused."""

    name: str
    paused: int
    paused_at: int | None


class StateCount(NamedTuple):
    """How many runs of a queue are in an unfinished state."""

    queue: str
    state: str
    runs: int
    oldest: int
    now: int


class Queues(Part):
    """Pause, resume, count."""

    def pause(self, names: Iterable[str]) -> list[str]:
        """Let nobody claim runs of these queues; the names of those that were open before."""
        return self._change("pause_queues", names)

    def resume(self, names: Iterable[str]) -> list[str]:
        """Let paused queues be claimed from again; the names of those that were paused."""
        return self._change("resume_queues", names)

    def _change(self, statement: str, names: Iterable[str]) -> list[str]:
        rows = batch({"name": name} for name in sorted(set(names)))
        return sorted(row[0] for row in self._one("client", statement, rows=rows))

    def all(self) -> list[QueueRow]:
        """Every queue that a run was ever put into, or that was paused."""
        return [QueueRow._make(row) for row in self._one("read", "list_queues")]

    def unfinished(self) -> list[StateCount]:
        """Unfinished runs, counted by queue and state."""
        return [StateCount._make(row) for row in self._one("read", "count_unfinished")]
