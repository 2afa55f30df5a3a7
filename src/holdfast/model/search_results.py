"""What a search for runs has found, and how much it has searched."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from holdfast.model.run import RunInfo


class FoundRun(msgspec.Struct, frozen=True):
    """A run, and where the text was found: `id`, `key`, `tag`, `metadata NAME`, `argument NAME` or `error`."""

    run: RunInfo[Any]
    matched: list[str]


class SearchResults(msgspec.Struct, frozen=True):
    """What a search has found.

    Ids, keys, tags, metadata values and names of tasks were compared in all runs. Arguments and errors, and parts of
    keys and tags, only in the newest ones: `scanned` runs, those created at `since` or later; None: all runs. Pass
    `after` to continue.
    """

    text: str
    runs: list[FoundRun]
    """Exact matches first, then those of the scan; each newest first."""
    tasks: list[str]
    """Tasks whose name contains the text; their runs aren't listed."""
    more: list[str]
    """The exact matches of which only the newest runs are listed: `id`, `key`, `tag` or `metadata`."""
    scanned: int
    since: datetime | None
    hidden: int
    """How many of the scanned runs have arguments that can't be searched: encrypted, compressed, or above 8 KB."""
    after: str | None

    @property
    def is_complete(self) -> bool:
        """Whether all runs were searched."""
        return self.after is None
