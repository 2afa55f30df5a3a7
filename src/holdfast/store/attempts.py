"""End attempts: fenced, set-based, each with its history entry. Read how runs ended.

Most runs stand alone, and ending them takes one statement, or a few if they have limits whose permits return. A run in
a tree (it has a parent, or is a durable function) may affect other runs when it ends: that is a transaction that locks
its ancestors first (`run_tree.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from holdfast.database import Row
from holdfast.database.faults import ExpectationFailed
from holdfast.model.run import FINAL_STATES
from holdfast.store.limits import return_permits
from holdfast.store.logs import LogWrites, add_logs
from holdfast.store.module import StoreModule, Tx, history_row, id_rows, in_chunks, json_rows
from holdfast.store.propagation import failed_runs, propagate_ends
from holdfast.store.rows import AttemptEnd, Claim, ClaimKey, EndedClaims
from holdfast.store.run_tree import (
    LockedRun,
    affected_ancestors,
    expected_graph,
    expected_run,
    lock_expected_runs,
    lock_runs,
    lock_with_parents,
)
from holdfast.store.sessions import CrashedRun, record_crashes
from holdfast.store.step_permits import drop_step_permits


class AttemptStore(StoreModule):
    """Ends of attempts, as their session reports them."""

    def end(
        self,
        session: str,
        ends: Sequence[AttemptEnd],
        before_commit: Callable[[Tx], None] | None = None,
        logs: LogWrites | None = None,
        claims: Mapping[str, Claim] | None = None,
    ) -> EndedClaims:
        """End attempts; return the claims whose end is recorded.

        A missing claim has lost its run, and nothing was written for it. If several claims of one run report an end, at
        most one is recorded. Safe to repeat: an end that was recorded before the response got lost is returned again.
        `before_commit` is called at the end of the transaction of runs in trees. `logs`: the last lines of the
        attempts, which are written in the transactions of their ends. `claims`: those of the runs and of their parents
        in this worker, by run. With them, the transaction of runs in trees takes fewer round trips.
        """
        # A run that is handed back becomes ready: the statement for ends in a tree, which are fewer, notes when.
        in_tree = [end for end in ends if end.in_tree or end.kind == "handed_back"]
        alone = [end for end in ends if not (end.in_tree or end.kind == "handed_back")] if in_tree else ends
        recorded = EndedClaims(self._end_alone(session, alone, logs) if alone else ())
        if in_tree:
            ended = self._end_in_tree(session, in_tree, before_commit, logs, claims)
            recorded.update(ended)
            recorded.failed_graphs, recorded.other_ends = ended.failed_graphs, ended.other_ends
            rejected = [end for end in in_tree if end.claim not in recorded]
            recorded.update(self._find_recorded(session, rejected) if rejected else ())
        return recorded

    def _end_in_tree(
        self,
        session: str,
        ends: Sequence[AttemptEnd],
        before_commit: Callable[[Tx], None] | None,
        logs: LogWrites | None,
        claims: Mapping[str, Claim] | None,
    ) -> EndedClaims:
        def end(ends: Sequence[AttemptEnd], expected: Mapping[str, LockedRun] | None = None) -> EndedClaims:
            return self._transaction(
                "commit", lambda tx: _end_in_tree(tx, session, ends, before_commit, logs, expected)
            )

        if claims is not None and self._context.on_postgres and (expected := _expected(session, ends, claims)):
            with suppress(ExpectationFailed):
                return end(ends, expected)
        try:
            return end(ends)
        except _NestedGraph:
            return end([replace(each, parents=None) for each in ends])

    def _end_alone(self, session: str, ends: Sequence[AttemptEnd], logs: LogWrites | None) -> set[ClaimKey]:
        recorded = self._write_ends(session, ends, logs)
        if len(recorded) == len(ends):
            return recorded
        rejected = [end for end in ends if end.claim not in recorded]
        if rejected:
            recorded |= self._find_recorded(session, rejected)
            rejected = [end for end in rejected if end.claim not in recorded]
        if rejected and self._context.on_postgres:
            # The statement skips rows that changed while it started, so try those once more.
            recorded |= self._write_ends(session, rejected, logs)
        return recorded

    def _write_ends(self, session: str, ends: Sequence[AttemptEnd], logs: LogWrites | None) -> set[ClaimKey]:
        on_postgres = self._context.on_postgres
        if on_postgres and logs is None and all(end.limits is None for end in ends):
            watcher = self._context.watcher
            rows = self._execute("commit", "end_attempts", session=session, rows=json_rows(ends), watcher=watcher)
            return _claims(rows)
        end_some = _end_on_postgres if on_postgres else _end_all_on_sqlite
        try:
            return self._transaction("commit", lambda tx: end_some(tx, session, ends, logs))
        except _SomeLost:
            return self._transaction("commit", lambda tx: _end_running_on_sqlite(tx, session, ends, logs))

    def _find_recorded(self, session: str, ends: Sequence[AttemptEnd]) -> set[ClaimKey]:
        rows = json_rows({"id": end.id, "fence": end.fence} for end in ends)
        return _claims(self._execute("commit", "find_recorded_ends", session=session, rows=rows))

    def crash(self, session: str, ends: Sequence[AttemptEnd]) -> tuple[set[ClaimKey], list[str]]:
        """Record that the code of these attempts died or was abandoned, as their session reports.

        Their runs are retried, or fail if they were charged too often. Return the recorded claims, and the ids of runs
        that failed, including graphs that failed with them. Safe to repeat, like `end`.
        """

        def work(tx: Tx) -> tuple[set[ClaimKey], list[str]]:
            if not tx.execute("lock_session", session=session):
                return set(), []
            runs = lock_with_parents(tx, [end.id for end in ends])
            valid = [end for end in ends if end.id in runs and runs[end.id].belongs_to(session, end.fence)]
            crashed = [CrashedRun(end.id, end.runs_in_process, end.isolate, end.error) for end in valid]
            failed, failed_graphs = record_crashes(tx, runs, crashed, fenced=True)
            failed += failed_graphs
            returned = [runs[end.id].limits for end in valid]
            return_permits(tx, [*returned, *drop_step_permits(tx, [end.id for end in valid])])
            recorded = {end.claim for end in valid}
            if len(recorded) < len(ends):
                rows = json_rows({"id": end.id, "fence": end.fence} for end in ends)
                known = tx.execute("find_recorded_ends", session=session, rows=rows)
                failed += [str(id) for id, _ in known if str(id) not in failed and runs[str(id)].state == "failed"]
                recorded |= _claims(known)
            return recorded, failed

        return self._transaction("commit", work)

    def release(self, session: str, claims: Sequence[ClaimKey]) -> int:
        """Release runs whose code outlived their end and has stopped now, so that a retry or successor may start."""

        def work(tx: Tx) -> int:
            rows = json_rows({"id": id, "fence": fence} for id, fence in claims)
            released = tx.execute("release_runs", session=session, rows=rows)
            history = [
                history_row(str(id), n, "let_go", attempt, fence=fence, session=session)
                for id, n, attempt, fence, _, _ in released
            ]
            tx.execute("add_history", rows=json_rows(history))
            steps = drop_step_permits(tx, [str(row[0]) for row in released])
            return_permits(tx, [*(limits for _, _, _, _, limits, _ in released), *steps])
            return len(released)

        return self._transaction("commit", work)


class OutcomeStore(StoreModule):
    """Outcomes of runs, for callers that wait for them."""

    def read(self, id: str) -> Row | None:
        """Return state, result, error, kind, options and tenant of a run."""
        rows = self._execute("read", "read_outcome", id=id)
        return rows[0] if rows else None

    def read_many(self, ids: Iterable[str]) -> dict[str, Row]:
        """Return the same of many runs, by id; those that don't exist are left out."""
        found: dict[str, Row] = {}
        for chunk in in_chunks(list(ids)):
            found |= {str(row[0]): row[1:] for row in self._execute("read", "read_outcomes", rows=id_rows(chunk))}
        return found


def _claims(rows: Iterable[Row]) -> set[ClaimKey]:
    return {(str(row[0]), row[1]) for row in rows}


class _SomeLost(Exception):
    """Some attempts have lost their run: the transaction is rolled back."""


class _NestedGraph(Exception):
    """A parent is a graph with a parent of its own, which has to be locked before: the transaction is rolled back."""


def _end_on_postgres(tx: Tx, session: str, ends: Sequence[AttemptEnd], logs: LogWrites | None) -> set[ClaimKey]:
    ended = _claims(tx.execute("end_attempts", session=session, rows=json_rows(ends), watcher=tx.watcher))
    return_permits(tx, [end.limits for end in ends if end.claim in ended and not end.still_running])
    if logs is not None:
        add_logs(tx, logs.of_claims(ended))
    return ended


def _end_all_on_sqlite(tx: Tx, session: str, ends: Sequence[AttemptEnd], logs: LogWrites | None) -> set[ClaimKey]:
    """End attempts if all of them are still the session's, as they nearly always are: that takes fewest statements."""
    rows = json_rows(ends)
    ((ended,),) = tx.execute("end_attempts", session=session, rows=rows)
    if ended < len(ends):
        raise _SomeLost
    tx.execute("add_end_history", session=session, rows=rows)
    if limits := [end.limits for end in ends if end.limits is not None and not end.still_running]:
        return_permits(tx, limits)
    ended = {(end.id, end.fence) for end in ends}
    if logs is not None:
        add_logs(tx, logs.of_claims(ended))
    return ended


def _end_running_on_sqlite(tx: Tx, session: str, ends: Sequence[AttemptEnd], logs: LogWrites | None) -> set[ClaimKey]:
    running = _claims(tx.execute("find_running_attempts", session=session, rows=json_rows(ends)))
    valid = {end.claim: end for end in ends if end.claim in running}
    return _end_all_on_sqlite(tx, session, list(valid.values()), logs) if valid else set()


def _expected(session: str, ends: Sequence[AttemptEnd], claims: Mapping[str, Claim]) -> dict[str, LockedRun] | None:
    """Return the runs that the ends lock as they probably are, by id; None if the claims don't tell."""
    runs: dict[str, LockedRun] = {}
    for end in ends:
        claim = claims.get(end.id)
        if end.parents is None or end.id in runs or claim is None or claim.fence != end.fence:
            return None
        if (run := expected_run(claim, session)) is None:
            return None
        runs[run.id] = run
    for run in list(runs.values()):
        if run.parent is None or run.parent in runs:
            continue
        of_parent = claims.get(run.parent)
        if run.node is not None:
            parent = expected_graph(run)
        else:
            parent = None if of_parent is None else expected_run(of_parent, session)
        if parent is None:
            return None
        runs[parent.id] = parent
    return runs


def _end_in_tree(
    tx: Tx,
    session: str,
    ends: Sequence[AttemptEnd],
    before_commit: Callable[[Tx], None] | None,
    logs: LogWrites | None,
    expected: Mapping[str, LockedRun] | None,
) -> EndedClaims:
    if expected is not None:
        lock_expected_runs(tx, session, expected)
        runs = expected
    else:
        alive = tx.queue("lock_session", session=session)
        runs = _lock_ending(tx, ends)
        if not alive():
            return EndedClaims()
    valid = {end.id: end for end in ends if end.id in runs and runs[end.id].belongs_to(session, end.fence)}
    if not valid:
        return EndedClaims()
    tx.queue("end_tree_attempts", rows=json_rows(valid.values()), watcher=tx.watcher)
    history = [entry for end in valid.values() for entry in _history_of(end, runs[end.id].attempt)]
    tx.queue("add_tree_history", session=session, rows=json_rows(history))
    _delete_obsolete(tx, runs, valid)
    kept = [{"run": end.id, "keep": end.keep_records} for end in valid.values() if end.keep_records is not None]
    if kept:
        tx.queue("trim_history", rows=json_rows(kept))
    ended = [end for end in valid.values() if end.state in FINAL_STATES or end.kind == "undoing"]
    others = propagate_ends(
        tx,
        [runs[end.id].ended(end.state if end.state in FINAL_STATES else "undoing") for end in ended],
        running=[run.id for run in runs.values() if run.state == "running" and run.id not in valid],
        unfinished=[run.id for run in runs.values() if run.kind == "graph" and run.state == "waiting"],
    )
    stopped = [end for end in valid.values() if not end.still_running]
    steps = drop_step_permits(tx, [end.id for end in stopped if end.permits])
    return_permits(tx, [*(runs[end.id].limits for end in stopped), *steps])
    recorded = EndedClaims(end.claim for end in valid.values())
    if logs is not None:
        add_logs(tx, logs.of_claims(recorded))
    recorded.failed_graphs = failed_runs(others)
    recorded.other_ends = [end.id for end in others if end.is_final]
    tx.ready_runs += sum(end.state == "ready" for end in valid.values())
    if before_commit is not None:
        before_commit(tx)
    return recorded


def _lock_ending(tx: Tx, ends: Sequence[AttemptEnd]) -> dict[str, LockedRun]:
    """Lock runs that end and the ancestors that their ends affect; return them all.

    Raise `_NestedGraph` if a locked parent is a nested graph, whose own parent has to be locked before it.
    """
    unknown = [end.id for end in ends if end.parents is None]
    known = {id for end in ends for id in (end.id, *(end.parents or ()))}
    locked = lock_runs(tx, known | (affected_ancestors(tx, unknown) if unknown else set()))
    nested = [run for run in locked.values() if run.kind == "graph" and run.parent is not None]
    if any(run.parent not in locked for run in nested):
        raise _NestedGraph
    return locked


def _history_of(end: AttemptEnd, attempt: int) -> list[dict[str, Any]]:
    """Build the history entries of an end for `add_tree_history`: the drift, if any, and how it ended."""
    entries: list[dict[str, Any]] = []
    if end.drift is not None:
        entries.append({"run": end.id, "back": 1, "kind": "drift", "attempt": attempt, "data": end.drift})
    kind = end.state if end.kind == "undone" else end.kind
    data = end.note if end.kind in ("waiting", "moved") else end.error
    entry = {"run": end.id, "back": 0, "kind": kind, "attempt": attempt, "fence": end.fence}
    entries.append({**entry, "own_error": 1} if end.kind == "undone" else {**entry, "data": data})
    return entries


def _delete_obsolete(tx: Tx, runs: Mapping[str, LockedRun], ends: dict[str, AttemptEnd]) -> None:
    """Supersede outcomes that led to a failure, and delete checkpoints and waits that no later attempt reads."""
    failures = [
        {"run": end.id, "generation": runs[end.id].generation, "n": n} for end in ends.values() for n in end.forget
    ]
    if failures:
        tx.queue("supersede_checkpoints", rows=json_rows(failures))
    written = [end for end in ends.values() if not end.is_blank]
    restarted = [end.id for end in written if end.kind in ("restarted", "moved")]
    if restarted:
        tx.queue("delete_checkpoints", rows=id_rows(restarted))
        tx.queue("return_messages_of_restarted", rows=id_rows(restarted))
    without_waits = restarted + [end.id for end in written if end.kind == "done"]
    if without_waits:
        tx.queue("delete_waits", rows=id_rows(without_waits))
