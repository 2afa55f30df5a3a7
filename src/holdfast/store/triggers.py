"""Triggers: who polls which just now, and what came of the last polls. One worker at a time has the right to poll."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from holdfast.store.part import Do, Part, batch


class Result(NamedTuple):
    """What came of a poll: how long it took, how many requests there were, how many of them were new, and what went
    wrong."""

    took: int
    found: int
    made: int
    error: str | None


class Poll(NamedTuple):
    """A poll as it is kept: when it ended, and what came of it."""

    at: int
    took: int
    found: int
    made: int
    error: str | None


class Triggers(Part):
    """What makes runs by polling."""

    def until_next(self, names: list[str]) -> int | None:
        """Microseconds until one of these may be polled; None when there is none."""
        left = self._one("look", "next_poll", rows=batch({"name": name} for name in names))[0][0]
        return None if left is None else int(left)

    def take(self, poller: str, wanted: Mapping[str, tuple[int, int]]) -> dict[str, int]:
        """Take the right to poll those that are due. `wanted`: by name how long a poll may take, and how long after its
        beginning the next one is due. The numbers of the polls that are ours now, by name."""
        rows = [{"name": name, "lease": lease, "every": every} for name, (lease, every) in sorted(wanted.items())]
        taken = self._one("housekeeping", "take_triggers", poller=poller, rows=batch(rows))
        return {name: int(number) for name, number in taken}

    def end(self, poller: str, name: str, number: int, result: Result, *, again: bool = False) -> bool:
        """Give the right back and keep what came of it; False when it was somebody else's already. `again`: it was
        broken off, and is due at once."""

        def work(do: Do) -> bool:
            if not do("end_poll", name=name, poller=poller, number=number, again=int(again)):
                return False
            do("add_poll", name=name, **result._asdict())
            do("trim_polls", name=name)
            return True

        return self._together("housekeeping", work)

    def last(self, name: str) -> list[Poll]:
        """The last polls, newest first."""
        return [Poll._make(row) for row in self._one("read", "last_polls", name=name)]
