"""Runs for operators: lists, all there is to know of one, cancel, retry; ids may be given by their beginning."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Unpack
from uuid import UUID

from holdfast.errors import RunNotFound
from holdfast.model.clock import to_datetime_or_none
from holdfast.model.codec import decode
from holdfast.model.failure import cancelled
from holdfast.model.history import Entry
from holdfast.model.run import Page, PageAsked, RunInfo
from holdfast.store import Store
from holdfast.store.reader import Reader, run_id

SHORTEST_PREFIX = 4
SHOWN_CANDIDATES = 5

_PREFIX = re.compile(r"[0-9a-f]{1,32}")


@dataclass(frozen=True, slots=True)
class RunDetails:
    """All there is to know of one run. Arguments and options are plain JSON values."""

    info: RunInfo[Any]
    args: Any
    options: dict[str, Any]
    unique: str | None
    due_at: datetime | None
    deadline: datetime | None
    expires_at: datetime | None
    held: str | None
    history: list[Entry]


class Runs:
    """Every run of the database, whatever code made it; results are plain JSON values."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._reader = Reader(store.views)

    def page(self, **asked: Unpack[PageAsked]) -> Page:
        """Runs, newest first; give the page's `after` for the next ones."""
        return self._reader.page(**asked)

    def find(self, given: UUID | str) -> UUID:
        """The id of a run: whole, or as much of its beginning as no other run has."""
        if isinstance(given, UUID):
            return given
        digits = given.strip().lower().replace("-", "")
        if len(digits) == 32 or not _PREFIX.fullmatch(digits):
            return run_id(given.strip())
        if len(digits) < SHORTEST_PREFIX:
            raise RunNotFound(f"{given!r} is too short: give at least {SHORTEST_PREFIX} characters of the run's id")
        low, high = (str(UUID(digits.ljust(32, filler))) for filler in "0f")
        found = self._store.views.between(low, high, SHOWN_CANDIDATES + 1)
        if not found:
            raise RunNotFound(f"no run's id begins with {given}; it may have been pruned")
        if len(found) > 1:
            shown = ", ".join(f"{id} ({task}, {state})" for id, task, state in found[:SHOWN_CANDIDATES])
            more = ", …" if len(found) > SHOWN_CANDIDATES else ""
            raise RunNotFound(f"the ids of several runs begin with {given}, give more of it: {shown}{more}")
        return UUID(str(found[0][0]))

    def info(self, id: UUID) -> RunInfo[Any]:
        return self._reader.info(id)

    def details(self, id: UUID) -> RunDetails:
        """All there is to know of a run."""
        row = self._reader.row(id)
        more = self._store.views.more(str(id))
        if more is None:
            raise RunNotFound(f"run {id} was pruned just now")
        return RunDetails(
            info=self._reader.info_of(row),
            args=decode(more.args),
            options={} if more.options is None else decode(more.options),
            unique=None if more.unique_name is None else decode(more.unique_name)[-1],
            due_at=to_datetime_or_none(row.due_at),
            deadline=to_datetime_or_none(more.deadline),
            expires_at=to_datetime_or_none(more.expires_at),
            held=row.held,
            history=self._reader.history(id),
        )

    def cancel(self, id: UUID, reason: str | None = None) -> bool:
        """End a run; False when it had ended before."""
        return self._store.operators.cancel(str(id), cancelled(reason))

    def retry(self, id: UUID) -> bool:
        """Send a failed or cancelled run back to ready; False when it is unfinished anyway."""
        return self._store.operators.retry(str(id))
