"""Compare a restored database with the one that it replaces: which runs were further there?

A restore to an earlier time forgets what was recorded since, but not what tasks have done. If the former database can
still be read, it tells for which runs that matters.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Literal
from uuid import UUID

import msgspec

from holdfast.control.control import Control
from holdfast.errors import ConfigError
from holdfast.model.filters import PageOptions
from holdfast.model.run import FINAL_STATES, RunInfo, RunState
from holdfast.store.run_queries import RunPosition

PAGE_RUNS = 500
UNFINISHED: tuple[RunState, ...] = ("running", "waiting", "undoing", "scheduled", "ready", "blocked")


class LostOutcome(msgspec.Struct, frozen=True):
    """A run that was further in the former database.

    `missing`: it no longer exists. `finished`: it had finished, and will run again. `further`: it had been claimed
    again or had recorded more steps, and will repeat that.
    """

    id: UUID
    task: str
    what: Literal["missing", "finished", "further"]
    state_before: RunState
    state_now: str | None
    created_at: datetime
    finished_at: datetime | None
    tenant: str | None
    key: str | None


def lost_outcomes(former: Control, restored: Control, since: datetime) -> Iterator[LostOutcome]:
    """Yield the runs of the former database whose outcome the restored one doesn't have.

    `since`: the time to which was restored, or a little before; runs that finished or were created earlier and aren't
    unfinished in the former database are the same in both.
    """
    if former.identity != restored.identity:
        raise ConfigError("the databases have different origins: one isn't a copy of the other")
    seen: set[UUID] = set()
    for runs in _candidates(former, since):
        fresh = [run for run in runs if run.id not in seen]
        seen.update(run.id for run in fresh)
        ids = [str(run.id) for run in fresh]
        before, now = former.positions(ids), restored.positions(ids)
        for run in fresh:
            found = _compare(run, before.get(str(run.id)), now.get(str(run.id)))
            if found is not None:
                yield found


def _candidates(former: Control, since: datetime) -> Iterator[list[RunInfo[object]]]:
    """Yield the runs that may have changed since then: those that finished or were created, and the unfinished ones."""
    finished: PageOptions = {"finished_from": since, "sort": "-finished"}
    created: PageOptions = {"created_from": since}
    unfinished: PageOptions = {"state": UNFINISHED}
    for options in (finished, created, unfinished):
        options["limit"] = PAGE_RUNS
        while True:
            page = former.runs.page(**options)
            yield list(page)
            if page.after is None:
                break
            options["after"] = page.after


def _compare(run: RunInfo[object], before: RunPosition | None, now: RunPosition | None) -> LostOutcome | None:
    def lost(what: Literal["missing", "finished", "further"]) -> LostOutcome:
        state_now = None if now is None else now.state
        return LostOutcome(
            run.id, run.task, what, run.state, state_now, run.created_at, run.finished_at, run.tenant, run.key
        )

    if now is None:
        return lost("missing")
    if before is None or now.state in FINAL_STATES:
        return None
    if before.state in FINAL_STATES:
        return lost("finished")
    is_further = (before.generation, before.records, before.fence) > (now.generation, now.records, now.fence)
    return lost("further") if is_further else None
