"""The database as a whole for operators: its tables' version, migrating, pruning by hand."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from holdfast.database.migrate import migrations, newest_version
from holdfast.model.clock import Duration, to_micros
from holdfast.store import Store
from holdfast.store.upkeep import BEFORE_ALL


class SchemaStatus(msgspec.Struct, frozen=True):
    """How the tables stand to this code. Version 0: there are none."""

    version: int
    newest: int
    pending: list[str]


class Maintenance:
    """What is done now and then."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def tables(self) -> SchemaStatus:
        """The version of the tables and what would be applied; changes nothing."""
        version = self._store.upkeep.version()
        return SchemaStatus(version, newest_version(), [each.name for each in migrations() if each.number > version])

    def migrate(self) -> list[str]:
        """Make the tables, or bring them up to date; the migrations that were applied now."""
        return self._store.upkeep.migrate()

    def count_old(self, older_than: Duration | None = None) -> int:
        """How many runs `prune` would delete now."""
        if older_than is None:
            return self._store.upkeep.count_expired()
        return self._store.upkeep.count_older(to_micros(older_than, "older_than"))

    def prune(self, older_than: Duration | None = None, progress: Callable[[int], None] = lambda _count: None) -> int:
        """Delete finished runs whose time to be kept is over, or all that ended longer ago than that, in batches with
        a transaction each; `progress` is told the count after each. How many were deleted."""
        pruned = 0
        age = None if older_than is None else to_micros(older_than, "older_than")
        after: str | None = BEFORE_ALL
        while after is not None:
            if age is None:
                count, more = self._store.timers.prune()
                after = BEFORE_ALL if more else None
            else:
                count, after = self._store.upkeep.prune_older(age, after)
            pruned += count
            progress(pruned)
        return pruned
