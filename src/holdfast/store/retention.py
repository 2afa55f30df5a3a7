"""Delete what is no longer kept: finished runs with their trees, old events and keys, unused counters.

A run that has a tree is deleted after everything below it, a batch at a time. Nothing is deleted while a worker still
runs anything in the tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.database import DatabaseConnection, Row
from holdfast.database.migrate import table_names
from holdfast.store.module import MAX_BATCH_ROWS, StoreModule, Tx, column, id_rows, json_rows

KEPT_WHEN_CLEARED = ("meta", "lanes", "workers")
"""Tables whose rows running workers and clients have cached."""
DELETE_DETAILS = (
    "delete_checkpoints", "delete_waits", "delete_messages", "delete_chunks", "delete_edges", "delete_metadata",
    "delete_logs", "delete_values", "delete_spending", "delete_listeners", "delete_own_thread_checkpoints",
    "delete_own_thread_values", "delete_own_thread_writes",
)  # fmt: skip
"""Statements that delete rows of pruned runs, in the order of the columns of `find_details`."""
LOWEST_RUN_ID = "00000000-0000-0000-0000-000000000000"


class Retention(StoreModule):
    """Pruning, by the housekeeping of workers and by operators."""

    def prune(self, size: int = MAX_BATCH_ROWS) -> tuple[int, bool]:
        """Delete a batch of at most `size` expired runs; return how many, and whether there may be more."""

        def work(tx: Tx) -> tuple[int, bool]:
            picked = _sort_prunable(tx.execute("pick_expired", limit=size), size)
            pruned = _delete(tx, picked, size)
            if picked.busy:
                tx.execute("postpone_pruning", rows=id_rows(picked.busy))
            return pruned, picked.last is not None or bool(picked.with_tree)

        return self._transaction("housekeeping", work)

    def prune_events(self, age: int) -> tuple[int, bool]:
        """Delete events that nothing awaits or touched for `age` microseconds.

        Return how many of them had been emitted, and whether there may be more.
        """

        def work(tx: Tx) -> tuple[int, bool]:
            old = [{"target": target} for (target,) in tx.execute("pick_old_events", age=age)]
            emitted: list[int] = []
            if old:
                deleted = column(tx.execute("delete_unawaited_events", rows=json_rows(old)))
                emitted = [at for at in deleted if isinstance(at, int)]
                tx.execute("postpone_event_pruning", rows=json_rows(old))
            if emitted:
                tx.execute("record_pruned_events", until=max(emitted))
            return len(emitted), len(old) == MAX_BATCH_ROWS

        return self._transaction("housekeeping", work)

    def events_pruned_before(self) -> int | None:
        """Return the time before which emitted events have been deleted; None if none have."""
        found = column(self._execute("read", "read_pruned_events"))
        return int(found[0]) if found else None

    def prune_topics(self, age: int) -> bool:
        """Delete a batch of messages that were published `age` microseconds ago; return whether there may be more.

        Those that a function has received stay with its run.
        """
        stored = self._execute("housekeeping", "prune_publications", age=age)
        undelivered = self._execute("housekeeping", "prune_undelivered", age=age)
        return max(len(stored), len(undelivered)) >= MAX_BATCH_ROWS

    def prune_expired_keys(self) -> bool:
        """Delete a batch of idempotency keys with a `key_ttl` that has passed; return whether there may be more."""
        return len(self._execute("housekeeping", "prune_expired_keys")) >= MAX_BATCH_ROWS

    def prune_keys(self, age: int) -> bool:
        """Delete a batch of idempotency keys that were used `age` microseconds ago; return whether there may be more.

        The key of an unfinished run is kept.
        """

        def work(tx: Tx) -> bool:
            postponed = len(tx.execute("postpone_key_pruning", age=age))
            return postponed + len(tx.execute("prune_keys", age=age)) >= MAX_BATCH_ROWS

        return self._transaction("housekeeping", work)

    def prune_limits(self) -> bool:
        """Delete a batch of unused counters of limits and budgets; return whether there may be more."""
        counters = self._execute("housekeeping", "prune_counters")
        return MAX_BATCH_ROWS in (len(counters), len(self._execute("housekeeping", "prune_spending")))

    # For operators

    def count_expired(self) -> int:
        """Return how many finished runs have expired."""
        return int(self._execute("read", "count_expired")[0][0])

    def count_older(self, age: int) -> int:
        """Return how many runs ended more than `age` microseconds ago."""
        return int(self._execute("read", "count_older", age=age)[0][0])

    def prune_these(self, runs: Sequence[str]) -> tuple[int, list[str]]:
        """Delete those of these runs that have ended, with their trees; children only with their root.

        Return how many were deleted, and the runs whose trees were too large for one call.
        """

        def work(tx: Tx) -> tuple[int, list[str]]:
            picked = _sort_prunable(tx.execute("pick_ended", rows=id_rows(runs)))
            return _delete(tx, picked), picked.with_tree

        return self._transaction("client", work)

    def prune_older(self, age: int, after: str = LOWEST_RUN_ID) -> tuple[int, str | None]:
        """Delete a batch of runs that ended more than `age` microseconds ago.

        Return how many, and the `after` of the next call, None at the end.
        """

        def work(tx: Tx) -> tuple[int, str | None]:
            picked = _sort_prunable(tx.execute("pick_older", age=age, after=after))
            pruned = _delete(tx, picked)
            return pruned, after if picked.with_tree else picked.last

        return self._transaction("client", work)

    # For tests

    def clear(self) -> None:
        """Delete all runs, events, schedules, limits, tokens and settings.

        Workers survive this: their sessions stay, and what they write about deleted runs has no effect. It deletes
        rows instead of truncating tables, so that it doesn't wait for a transaction that has enqueued runs.
        """
        fill = self._context.database.dialect.fill
        tables = [table for table in table_names() if table not in KEPT_WHEN_CLEARED]

        def attempt(connection: DatabaseConnection) -> None:
            with connection.transaction():
                for table in tables:
                    connection.execute_script(fill(f"delete from {{schema}}{table}"))

        self._context.connection("client").run(attempt)


class _PrunableRuns(NamedTuple):
    """A batch of old runs.

    `alone`: without a tree. `with_tree`: everything below has ended. `busy`: a worker still runs something in the tree.
    `last`: the last id, if there may be more.
    """

    alone: list[str]
    with_tree: list[str]
    busy: list[str]
    last: str | None


def _sort_prunable(rows: Sequence[Row], size: int = MAX_BATCH_ROWS) -> _PrunableRuns:
    picked = _PrunableRuns([], [], [], str(rows[-1][0]) if len(rows) == size else None)
    for id, has_tree, is_busy in rows:
        (picked.busy if is_busy else picked.with_tree if has_tree else picked.alone).append(str(id))
    return picked


def _delete(tx: Tx, picked: _PrunableRuns, size: int = MAX_BATCH_ROWS) -> int:
    """Delete runs without a tree, and a batch of what is below the others: they follow once they are alone."""
    deleted = [str(id) for (id,) in tx.execute("delete_runs", rows=id_rows(picked.alone))] if picked.alone else []
    if picked.with_tree:
        deleted += [str(id) for (id,) in tx.execute("delete_descendants", rows=id_rows(picked.with_tree), limit=size)]
    if deleted:
        rows = id_rows(deleted)
        tx.execute("delete_history", rows=rows)
        ((*found,),) = tx.execute("find_details", first=min(deleted), last=max(deleted))
        for statement, may_have_rows in zip(DELETE_DETAILS, found, strict=True):
            if may_have_rows:
                tx.execute(statement, rows=rows)
    return len(deleted)
