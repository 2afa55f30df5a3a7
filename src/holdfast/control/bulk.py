"""Bulk actions: cancel, retry or prune all runs that match a filter, in batches of one transaction each.

`preview` reports what an action would change. The actions are generators: each iteration runs one batch, and stopping
early keeps what is done. A repeated call continues with the remaining runs, or after `after`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, TypeAlias
from uuid import UUID

import msgspec

from holdfast.control.audit import record
from holdfast.control.retry_preview import RetryPreviewer
from holdfast.control.stats import Estimate
from holdfast.errors import HoldfastError
from holdfast.model.failure import cancellation_json
from holdfast.model.filters import RunFilter
from holdfast.model.names import check_actor, counted
from holdfast.model.run import FINAL_STATES, RUN_STATES, RunInfo, RunState
from holdfast.store import Store
from holdfast.store.run_queries import RunRow
from holdfast.store.run_reader import RunReader, run_id

BATCH_SIZE = 200
SAMPLE_SIZE = 5
MAX_COUNTED = 10_000
"""A preview counts up to this many runs, and reads a bounded number of others to find them."""
MAX_EFFECTS = 100
"""Of runs that are given by id, so many are described one by one."""

BulkAction: TypeAlias = Literal["cancel", "retry", "prune"]

ACTION_STATES: dict[BulkAction, frozenset[RunState]] = {
    "cancel": frozenset(RUN_STATES) - FINAL_STATES - {"undoing"},
    "retry": frozenset({"failed", "cancelled"}),
    "prune": FINAL_STATES,
}
"""The states in which a run can be changed by an action."""
RECORDED_AS: dict[BulkAction, str] = {"cancel": "cancel runs", "retry": "retry runs", "prune": "prune runs"}
"""What the actions are called in the audit log."""


class BulkEffect(msgspec.Struct, frozen=True):
    """What an action would do to one run. `kept`: how many recorded results a retry uses. `again`: what runs again for
    sure, and `may_repeat` which effects may happen twice. `children`: how many are changed with it."""

    id: UUID
    summary: str
    kept: int = 0
    again: list[str] = msgspec.field(default_factory=list)
    may_repeat: list[str] = msgspec.field(default_factory=list)
    children: int = 0


class UnchangedRun(msgspec.Struct, frozen=True):
    """A run that was given by id, but that the action doesn't change, and why."""

    id: UUID
    task: str
    reason: str


class BulkPreview(msgspec.Struct, frozen=True):
    """The number of runs that an action would change, and a sample, newest first; of runs that are given by id, the
    first hundred. `effects`: what happens to those of the sample. `unchanged`: those that are given by id, and don't
    change."""

    verb: BulkAction
    count: Estimate
    sample: list[RunInfo[Any]]
    effects: list[BulkEffect] = msgspec.field(default_factory=list)
    unchanged: list[UnchangedRun] = msgspec.field(default_factory=list)

    @property
    def kept(self) -> int:
        """How many recorded results the runs of the sample keep."""
        return sum(effect.kept for effect in self.effects)


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
        self._previewer = RetryPreviewer(store)

    def preview(self, verb: BulkAction, filters: RunFilter) -> BulkPreview:
        """Report what an action would change; changes nothing."""
        narrowed = narrow_filter(verb, filters)
        if narrowed is None:
            return BulkPreview(verb, Estimate(0), [])
        if filters.ids:
            return self._preview_given(verb, filters)
        rows, matching, exact = self._store.run_list.select(narrowed, SAMPLE_SIZE, MAX_COUNTED)
        effects = [effect for effect in (self._effect(verb, row) for row in rows) if isinstance(effect, BulkEffect)]
        return BulkPreview(verb, Estimate(matching, exact), [*map(self._reader.info_of, rows)], effects)

    def _preview_given(self, verb: BulkAction, filters: RunFilter) -> BulkPreview:
        """Preview an action on runs that are given by id."""
        rows = self._store.run_list.page(filters, len(filters.ids)).rows
        outcomes = {row.id: self._effect(verb, row) for row in rows[:MAX_EFFECTS]}
        effects = [effect for effect in outcomes.values() if isinstance(effect, BulkEffect)]
        unchanged = [
            UnchangedRun(UUID(row.id), row.task, reason)
            for row in rows[:MAX_EFFECTS]
            if isinstance(reason := outcomes[row.id], str)
        ]
        rest = sum(row.state in ACTION_STATES[verb] for row in rows[MAX_EFFECTS:])
        sample = [self._reader.info_of(row) for row in rows if isinstance(outcomes.get(row.id), BulkEffect)]
        return BulkPreview(verb, Estimate(len(effects) + rest), sample, effects, unchanged)

    def _effect(self, verb: BulkAction, row: RunRow) -> BulkEffect | str:
        """Return what an action does to a run, or why it does nothing."""
        if row.state not in ACTION_STATES[verb]:
            return f"is {row.state}"
        if verb == "retry":
            return self._effect_of_retry(row)
        if verb == "prune":
            return BulkEffect(UUID(row.id), "is deleted with its descendants and its history")
        return self._effect_of_cancel(row)

    def _effect_of_retry(self, row: RunRow) -> BulkEffect | str:
        details = self._store.queries.details(row.id)
        if details is None:
            return "was pruned"
        if details.unique_name is not None:
            holder = self._store.queries.unique_holder(details.unique_name)
            if holder is not None and holder != row.id:
                return f"run {holder} has its unique name"
        try:
            preview = self._previewer.preview(row, details)
        except HoldfastError as error:
            return str(error)
        again = [f"{step.label}: {step.text}" for step in preview.again]
        return BulkEffect(
            preview.id, preview.summary, len(preview.kept), again, preview.may_repeat, len(preview.children)
        )

    def _effect_of_cancel(self, row: RunRow) -> BulkEffect:
        undos = [step for step in self._store.queries.step_outline(row.id) if step.undo and step.generation >= 0]
        if undos:
            text = f"ends after its compensations: {counted(len(undos), 'step')} to undo"
        elif row.is_running:
            text = "its code gets a request to stop, and nothing more is recorded for it"
        else:
            text = "isn't executed anymore"
        return BulkEffect(UUID(row.id), text)

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

        return self._recorded("cancel", filters, after, act, by, reason)

    def retry(self, filters: RunFilter, *, by: str | None = None, after: str | None = None) -> Iterator[BulkProgress]:
        """Return all matching failed and cancelled runs to ready."""
        actor = check_actor(by)
        return self._recorded(
            "retry", filters, after, lambda rows: self._store.actions.retry_many([row.id for row in rows], actor), by
        )

    def prune(self, filters: RunFilter, *, after: str | None = None) -> Iterator[BulkProgress]:
        """Delete all matching finished runs with their descendants and history, regardless of their retention."""
        return self._recorded("prune", filters, after, lambda rows: self._prune([row.id for row in rows]))

    def _prune(self, runs: Sequence[str]) -> int:
        count, left = self._store.retention.prune_these(runs)
        while left:
            more, left = self._store.retention.prune_these(left)
            count += more
            if not more:
                break
        return count

    def _recorded(
        self,
        verb: BulkAction,
        filters: RunFilter,
        after: str | None,
        act: Callable[[Sequence[RunRow]], int],
        by: str | None = None,
        reason: str | None = None,
    ) -> Iterator[BulkProgress]:
        """Act in batches, with one entry in the audit log."""
        with record(self._store, RECORDED_AS[verb], None, by, {"filter": filters, "reason": reason}) as entry:
            entry.outcome = "unchanged"
            for progress in self._batches(verb, filters, after, act):
                entry.detail["changed"] = max(progress.changed, entry.detail.get("changed", 0))
                entry.outcome = "done" if entry.detail["changed"] else "unchanged"
                yield progress

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
