"""Runs and the runs around them: lock them in order, end them from outside, notify their parents.

Every function runs inside the transaction of its caller. Lock order: a parent before its children. A run's parent never
changes, so it can be looked up before the lock; children can't appear while their parent is locked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from holdfast.model.failure import cancellation_json
from holdfast.store.module import Tx, history_row, id_rows, in_chunks, json_rows
from holdfast.store.rows import Claim


class LockedRun(NamedTuple):
    """A run whose row this transaction has locked."""

    id: str
    seq: int
    state: str
    session: str | None
    fence: int
    generation: int
    tenant: str | None
    root: str | None
    parent: str | None
    spawn_key: str | None
    map_index: int | None
    attempt: int
    ending: str | None
    kind: str | None
    node: str | None
    limits: str | None
    options: str | None

    def belongs_to(self, session: str, fence: int) -> bool:
        """Return whether this claim of the session is still running."""
        return self.session == session and self.fence == fence and self.state == "running"

    def ended(self, state: str) -> EndedRun:
        """Describe that it has just ended, or started to undo."""
        return EndedRun(self.id, state, self.parent, self.spawn_key, self.map_index, self.node, options=self.options)


class EndedRun(NamedTuple):
    """A run that has just ended, or started to undo, with its position in the tree, to propagate the end.

    `cause`: why it was skipped. `options`: the stored ones, which may have hooks.
    `unstarted`: it ended without an attempt, and its options weren't read.
    """

    id: str
    state: str
    parent: str | None
    spawn_key: str | None = None
    map_index: int | None = None
    node: str | None = None
    cause: str | None = None
    options: str | None = None
    unstarted: bool = False

    @property
    def is_final(self) -> bool:
        return self.state != "undoing"

    @property
    def is_success(self) -> bool:
        return self.state == "done"


def format_spawn_key(generation: int, call: str) -> str:
    """Return how children name the call that created them. A restarted parent makes the same calls again."""
    return f"{generation}:{call}"


def parse_spawn_key(key: str) -> tuple[int, str]:
    """Return the generation and the call of a spawn key."""
    generation, _, call = key.partition(":")
    return int(generation), call


def lock_runs(tx: Tx, runs: Iterable[str]) -> dict[str, LockedRun]:
    """Lock runs in order of creation; those that don't exist are left out."""
    return lock_runs_later(tx, runs)()


def lock_runs_later(tx: Tx, runs: Iterable[str]) -> Callable[[], dict[str, LockedRun]]:
    """Queue a statement that locks runs; return a function that returns the locked runs."""
    wanted = sorted(set(runs))
    if not wanted:
        return dict
    rows = tx.queue("lock_runs", rows=id_rows(wanted))
    return lambda: locked_runs(rows())


def expected_run(claim: Claim, session: str) -> LockedRun | None:
    """Return the row of a claimed run as it is if the claim still holds; None if the claim doesn't tell."""
    if claim.limits is not None or (claim.parent is not None and claim.position is None):
        return None
    root, spawn_key, map_index, node = (None,) * 4 if claim.position is None else msgspec.json.decode(claim.position)
    return LockedRun(
        claim.id, claim.seq, "running", session, claim.fence, claim.generation, claim.tenant, root, _text(claim.parent),
        spawn_key, map_index, claim.attempt, claim.ending, None, node, None, claim.options,
    )  # fmt: skip


def expected_graph(node: LockedRun) -> LockedRun | None:
    """Return the row of the graph of a running node as far as an end needs it; None if that graph has a parent."""
    if node.parent is None or node.parent != node.root:
        return None
    return LockedRun(
        node.parent, 0, "waiting", None, 0, 0, node.tenant, None, None, None, None, 0, None, "graph", None, None, None
    )


def lock_expected_runs(tx: Tx, session: str, runs: Mapping[str, LockedRun]) -> None:
    """Queue a statement that locks the session and runs, and fails unless they are as expected.

    The transaction goes on as if it had succeeded. If it fails, `ExpectationFailed` is raised and nothing is written.
    """
    rows = [{"id": run.id} | ({} if run.kind == "graph" else {"fence": run.fence}) for run in runs.values()]
    tx.queue("lock_expected_runs", session=session, rows=json_rows(rows))


def lock_unlocked_runs(tx: Tx, runs: Iterable[str]) -> dict[str, LockedRun]:
    """Lock those of the runs that no other transaction has locked."""
    return locked_runs(tx.execute("lock_unlocked_runs", rows=id_rows(runs)))


def locked_runs(rows: Sequence[Sequence[Any]]) -> dict[str, LockedRun]:
    """Turn the rows of `lock_runs` into runs by id."""
    return {str(row[0]): LockedRun(str(row[0]), *row[1:7], *map(_text, row[7:9]), *row[9:]) for row in rows}


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def lock_with_parents(tx: Tx, runs: Sequence[str]) -> dict[str, LockedRun]:
    """Lock runs that may end, together with the ancestors that their end affects; return only the runs."""
    locked = lock_runs(tx, affected_ancestors(tx, runs) | set(runs))
    return {run: locked[run] for run in runs if run in locked}


def affected_ancestors(tx: Tx, runs: Iterable[str]) -> set[str]:
    """Return the runs above that the end of these runs affects.

    These are their parents and, where a parent is a graph and may end with them, its parents too.
    """
    found: set[str] = set()
    below = set(runs)
    while below:
        parents = tx.execute("find_parents", rows=id_rows(sorted(below)))
        found |= {str(parent) for parent, _ in parents}
        below = {str(parent) for parent, is_nested_graph in parents if is_nested_graph}
    return found


def notify_parents(tx: Tx, ends: Sequence[EndedRun], running: Collection[str] = ()) -> None:
    """Resolve the waits of parents whose children have ended, and start the next children of their maps.

    `running`: parents that are running, which need not be woken.
    """
    children = [end for end in ends if end.parent is not None and end.spawn_key is not None]
    if not children:
        return
    calls = Counter((end.parent, end.spawn_key) for end in children)
    failed = {(end.parent, end.spawn_key): end.id for end in reversed(children) if not end.is_success}
    rows = [
        {
            "parent": parent, "spawn_key": key, "ended": count, "failed": failed.get((parent, key)),
        }
        for (parent, key), count in calls.items()
    ]  # fmt: skip
    tx.queue("resolve_child_waits", rows=json_rows(rows))
    if suspended := {str(end.parent) for end in children}.difference(running):
        tx.ready_runs += len(tx.execute("wake_runs", rows=id_rows(suspended)))
    mapped = Counter((end.parent, end.spawn_key) for end in children if end.map_index is not None)
    for (parent, key), count in mapped.items():
        tx.queue("release_map_children", parent=parent, spawn_key=key, size=count)


def cancel_children(tx: Tx, parents: Sequence[str]) -> list[EndedRun]:
    """Cancel the unfinished children of runs that failed or were cancelled."""
    if not parents:
        return []
    children = [str(row[0]) for row in tx.execute("lock_unfinished_children", rows=id_rows(parents))]
    reason = cancellation_json("its parent ended")
    return [end for chunk in in_chunks(children) for end in cancel_runs(tx, lock_runs(tx, chunk), reason)]


def cancel_runs(tx: Tx, runs: dict[str, LockedRun], error: str) -> list[EndedRun]:
    """Cancel locked runs, or let them undo first; runs that have ended are left alone."""
    return _end_runs(tx, runs, "cancelled", error)


def fail_overdue_runs(tx: Tx, runs: dict[str, LockedRun], error: str) -> list[EndedRun]:
    """Fail those of the locked runs that are past their deadline, or let them undo first."""
    return _end_runs(tx, runs, "failed", error, overdue=True)


def fail_runs(tx: Tx, runs: dict[str, LockedRun], error: str) -> list[EndedRun]:
    """Fail locked runs, or let them undo first; runs that have ended are left alone."""
    return _end_runs(tx, runs, "failed", error)


def _end_runs(tx: Tx, runs: dict[str, LockedRun], kind: str, error: str, *, overdue: bool = False) -> list[EndedRun]:
    """End runs from outside their worker. The history entry has `since` only if an attempt was running."""
    rows = tx.execute("end_runs", rows=id_rows(runs), state=kind, error=error, overdue=int(overdue))
    history, ends = [], []
    for id, n, attempt, session, claimed_at, is_final, *_ in rows:
        run = runs[str(id)]
        entered = kind if is_final else "undoing"
        since = claimed_at if run.state == "running" else None
        history.append(history_row(run.id, n, entered, attempt, session=session, since=since, data=error))
        end = run.ended(entered)
        # A blocked child of a map never started, so no sibling may start instead of it.
        ends.append(end._replace(map_index=None) if run.state == "blocked" else end)
    tx.execute("add_history", rows=json_rows(history))
    return ends
