"""What operators do to the database as a whole: its version, migrating it, pruning it by hand."""

from __future__ import annotations

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

    def prune_older(self, age: int, after: str = BEFORE_ALL) -> tuple[int, str | None]:
        """Delete runs that ended longer ago than that: how many, and what to give as `after` for the next ones."""

        def work(do: Do) -> tuple[int, str | None]:
            picked = sort_out(do("pick_older", age=age, after=after))
            pruned = prune_picked(do, picked)
            return pruned, after if picked.families else picked.last

        return self._together("client", work)
