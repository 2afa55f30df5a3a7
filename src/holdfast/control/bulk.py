"""Bulk actions: cancel, retry or prune all runs that match a filter, in batches of one transaction each.

`preview` reports what an action would change. The actions are generators: each iteration runs one batch, and stopping
early keeps what is done. A repeated call continues with the remaining runs, or after `after`.
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
from holdfast.store.run_queries import RunRow
from holdfast.store.run_reader import RunReader, run_id

BATCH_SIZE = 200
SAMPLE_SIZE = 5

BulkAction: TypeAlias = Literal["cancel", "retry", "prune"]

ACTION_STATES: dict[BulkAction, frozenset[RunState]] = {
    "cancel": frozenset(RUN_STATES) - FINAL_STATES - {"undoing"},
    "retry": frozenset({"failed", "cancelled"}),
    "prune": FINAL_STATES,
}
"""The states in which a run can be changed by an action."""


class BulkPreview(msgspec.Struct, frozen=True):
    """The number of runs that an action would change, and a sample, newest first."""

    verb: BulkAction
    count: Estimate
    sample: list[RunInfo[Any]]


class BulkProgress(msgspec.Struct, frozen=True):
    """The progress of a bulk action."""

    looked_at: int
    """Runs that matched the filter."""
    changed: int
    """Runs that were changed; for `prune`, all deleted runs, including descendants."""
    after: str | None
    """The cursor to continue after; None at the end."""

    @property
    def passed_over(self) -> int:
        """Matching runs that were not changed: they changed meanwhile, or can't be changed by themselves (nodes,
        children, runs whose unique name is taken, families with running members)."""
        return max(self.looked_at - self.changed, 0)


class BulkControl:
    """Actions on all matching runs. `by` names the operator in their histories."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._reader = RunReader(store)
        self._counting = CountControl(store)

    def preview(self, verb: BulkAction, filters: RunFilter) -> BulkPreview:
        """Report what an action would change; changes nothing."""
        narrowed = narrow_filter(verb, filters)
        if narrowed is None:
            return BulkPreview(verb, Estimate(0), [])
        rows = self._store.run_list.page(narrowed, SAMPLE_SIZE).rows
        return BulkPreview(verb, self._counting.fitting(narrowed), [self._reader.info_of(row) for row in rows])

    def cancel(
        self,
        filters: RunFilter,
        *,
        reason: str | None = None,
        by: str | None = None,
        after: str | None = None,
        with_gates: bool = True,
    ) -> Iterator[BulkProgress]:
        """Cancel all matching unfinished runs; gates only `with_gates`, or with their graph."""
        error = cancellation_json(reason, check_actor(by))

        def act(rows: Sequence[RunRow]) -> int:
            runs = [row.id for row in rows if with_gates or row.kind != "gate"]
            return self._store.actions.cancel_many(runs, error) if runs else 0

        return self._batches("cancel", filters, after, act)

    def retry(self, filters: RunFilter, *, by: str | None = None, after: str | None = None) -> Iterator[BulkProgress]:
        """Return all matching failed and cancelled runs to ready."""
        actor = check_actor(by)
        return self._batches(
            "retry", filters, after, lambda rows: self._store.actions.retry_many([row.id for row in rows], actor)
        )

    def prune(self, filters: RunFilter, *, after: str | None = None) -> Iterator[BulkProgress]:
        """Delete all matching finished runs with their descendants and history, regardless of their retention."""
        return self._batches("prune", filters, after, lambda rows: self._prune([row.id for row in rows]))

    def _prune(self, runs: Sequence[str]) -> int:
        count, left = self._store.retention.prune_these(runs)
        while left:
            more, left = self._store.retention.prune_these(left)
            count += more
            if not more:
                break
        return count

    def _batches(
        self, verb: BulkAction, filters: RunFilter, after: str | None, act: Callable[[Sequence[RunRow]], int]
    ) -> Iterator[BulkProgress]:
        narrowed = narrow_filter(verb, filters)
        cursor = None if after is None else str(run_id(after))
        looked_at = changed = 0
        while narrowed is not None:
            page = self._store.run_list.page(narrowed, BATCH_SIZE, cursor)
            if page.rows:
                changed += act(page.rows)
                looked_at += len(page.rows)
            cursor = page.after
            yield BulkProgress(looked_at, changed, cursor)
            if cursor is None:
                return
        yield BulkProgress(0, 0, None)


def narrow_filter(verb: BulkAction, filters: RunFilter) -> RunFilter | None:
    """Restrict a filter to the states that an action applies to; None if no state remains."""
    allowed = ACTION_STATES[verb]
    wanted = filters.states or RUN_STATES
    states = tuple(state for state in RUN_STATES if state in allowed and state in wanted)
    return msgspec.structs.replace(filters, states=states) if states else None
