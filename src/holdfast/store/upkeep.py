"""What operators do to the database as a whole: its version, migrating it, pruning it by hand."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.store.family import ids
from holdfast.store.part import Do, Part
from holdfast.store.timers import prune_picked, sort_out

BEFORE_ALL = "00000000-0000-0000-0000-000000000000"


class Upkeep(Part):
    """The tables and what is old in them."""

    def version(self) -> int:
        """The version of the tables; 0 where there are none. Changes nothing."""
        return self._ground.version()

    def migrate(self) -> list[str]:
        """Bring the tables up to date, whatever the app says; the migrations that were applied now."""
        return self._ground.migrate()

    def count_expired(self) -> int:
        """How many finished runs are past the time that they were to be kept."""
        return int(self._one("read", "count_expired")[0][0])

    def count_older(self, age: int) -> int:
        """How many runs ended longer ago than so many microseconds."""
        return int(self._one("read", "count_older", age=age)[0][0])

    def prune_these(self, runs: Sequence[str]) -> tuple[int, list[str]]:
        """Delete those of these runs that have ended, with all below them: how many, and those whose families were too
        large for one call. Children go with the top of their family only, and nobody goes while someone is at work."""

        def work(do: Do) -> tuple[int, list[str]]:
            picked = sort_out(do("pick_ended", rows=ids(runs)))
            return prune_picked(do, picked), picked.families

        return self._together("client", work)

    def prune_older(self, age: int, after: str = BEFORE_ALL) -> tuple[int, str | None]:
        """Delete runs that ended longer ago than that: how many, and what to give as `after` for the next ones."""

        def work(do: Do) -> tuple[int, str | None]:
            picked = sort_out(do("pick_older", age=age, after=after))
            pruned = prune_picked(do, picked)
            return pruned, after if picked.families else picked.last

        return self._together("client", work)
