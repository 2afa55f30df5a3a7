"""Changing many runs at once: cancel, retry and prune all that fit a filter, in batches of a transaction each.

Look first with `preview`. What does the work is a generator: a batch is done each time it is asked for more, and it may
be left at any time. What was done is done; asking again goes on with what is left, or with `after` where it was left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from holdfast.control.stats import CountControl, Estimate
from holdfast.model.failure import cancellation_json
from holdfast.model.filters import RunFilter
from holdfast.model.names import check_actor
from holdfast.model.run import FINAL_STATES, RUN_STATES, RunInfo, RunState
from holdfast.store import Store
from holdfast.store.reader import Reader, run_id

BATCH = 200
SAMPLE = 5

BulkAction: TypeAlias = Literal["cancel", "retry", "prune"]

STATES_OF: dict[BulkAction, frozenset[RunState]] = {
    "cancel": frozenset(RUN_STATES) - FINAL_STATES - {"undoing"},
    "retry": frozenset({"failed", "cancelled"}),
    "prune": FINAL_STATES,
}
"""In which states runs are that a verb can be done to."""


class BulkPreview(msgspec.Struct, frozen=True):
    """What a verb would be done to, and some of those, newest first."""

    verb: BulkAction
    count: Estimate
    sample: list[RunInfo[Any]]


class BulkProgress(msgspec.Struct, frozen=True):
    """How far it has come."""

    looked_at: int
    """Runs that fitted the filter when they were found."""
    changed: int
    """Those to which it was done; of `prune`, all that were deleted, families too."""
    after: str | None
    """Where to go on; None at the end."""

    @property
    def passed_over(self) -> int:
        """Those that had changed meanwhile, or to which it can't be done by themselves: nodes, children, runs whose
        unique name another one has, families in which someone is still at work."""
        return max(self.looked_at - self.changed, 0)


class BulkControl:
    """Many runs at once. `by` says who does it, and stands in their histories."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._reader = Reader(store.views, store.graphs, store.listing)
        self._counting = CountControl(store)

    def preview(self, verb: BulkAction, asked: RunFilter) -> BulkPreview:
        """What would be changed; changes nothing."""
        narrowed = narrow_filter(verb, asked)
        if narrowed is None:
            return BulkPreview(verb, Estimate(0), [])
        rows = self._store.listing.page(narrowed, SAMPLE).rows
        return BulkPreview(verb, self._counting.fitting(narrowed), [self._reader.info_of(row) for row in rows])

    def cancel(
        self, asked: RunFilter, *, reason: str | None = None, by: str | None = None, after: str | None = None
    ) -> Iterator[BulkProgress]:
        """End all unfinished runs that fit."""
        error = cancellation_json(reason, check_actor(by))
        return self._batches("cancel", asked, after, lambda runs: self._store.operators.cancel_many(runs, error))

    def retry(self, asked: RunFilter, *, by: str | None = None, after: str | None = None) -> Iterator[BulkProgress]:
        """Send all failed and cancelled runs that fit back to ready."""
        who = check_actor(by)
        return self._batches("retry", asked, after, lambda runs: self._store.operators.retry_many(runs, who))

    def prune(self, asked: RunFilter, *, after: str | None = None) -> Iterator[BulkProgress]:
        """Delete all ended runs that fit, with all below them, whatever time they were to be kept. Nothing tells of
        them any more."""
        return self._batches("prune", asked, after, self._prune)

    def _prune(self, runs: Sequence[str]) -> int:
        count, left = self._store.upkeep.prune_these(runs)
        while left:
            more, left = self._store.upkeep.prune_these(left)
            count += more
            if not more:
                break
        return count

    def _batches(
        self, verb: BulkAction, asked: RunFilter, after: str | None, act: Callable[[Sequence[str]], int]
    ) -> Iterator[BulkProgress]:
        narrowed = narrow_filter(verb, asked)
        cursor = None if after is None else str(run_id(after))
        looked_at = changed = 0
        while narrowed is not None:
            page = self._store.listing.page(narrowed, BATCH, cursor)
            if page.rows:
                changed += act([row.id for row in page.rows])
                looked_at += len(page.rows)
            cursor = page.after
            yield BulkProgress(looked_at, changed, cursor)
            if cursor is None:
                return
        yield BulkProgress(0, 0, None)


def narrow_filter(verb: BulkAction, asked: RunFilter) -> RunFilter | None:
    """Those that fit and to which the verb can be done; None when there can't be any."""
    can = STATES_OF[verb]
    states = tuple(state for state in RUN_STATES if state in can and (not asked.states or state in asked.states))
    return msgspec.structs.replace(asked, states=states) if states else None
