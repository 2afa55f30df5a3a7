"""Client processes that want to be told when runs end, where the database can tell them (decision 15)."""

from __future__ import annotations

from holdfast.store.part import Part


class Watchers(Part):
    """A row for each of them, for as long as they say."""

    def add(self, id: str, lasts: int) -> None:
        """A process wants to be told, for so many microseconds. Those that died before are forgotten by it, so that
        their rows don't pile up."""
        if self._ground.database.dialect.notifies:
            self._one("client", "prune_watchers")
            self._one("client", "keep_watcher", id=id, lasts=lasts)

    def renew(self, id: str, lasts: int) -> None:
        """It still wants to be told."""
        if self._ground.database.dialect.notifies:
            self._one("client", "keep_watcher", id=id, lasts=lasts)

    def drop(self, id: str) -> None:
        """It doesn't want to be told any more."""
        if self._ground.database.dialect.notifies:
            self._one("client", "drop_watcher", id=id)
