"""The ends of attempts: fenced, set-based, each with its record.

Most runs are alone: their ends are one statement; with limits, whose permits go back, a few. The end of a run with a
parent, or of a durable function, may concern others (`family.py`) and is a transaction with the parent locked first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from holdfast.database import Row
from holdfast.model.run import FINAL_STATES
from holdfast.store.crashes import Death, record_deaths
from holdfast.store.family import HeldRun, hold_with_parents, ids
from holdfast.store.part import Do, Part, batch, record
from holdfast.store.permits import give_back
from holdfast.store.rows import ClaimKey, Counted, End
from holdfast.store.settling import settle


class Attempts(Part):
    """The ends of attempts."""

    def end(self, session: str, ends: Sequence[End]) -> Counted:
        """End attempts. Those that counted; the others had lost their run, and nothing was written. Of several of one
        run, left by different claims, one is written at most.

        Safe to repeat: an end that was recorded before the answer was lost counts.
        """
        alone = [end for end in ends if not end.family]
        family = [end for end in ends if end.family]
        counted = Counted(self._end_alone(session, alone) if alone else ())
        if family:
            ended = self._together("commit", lambda do: _end_family(do, session, family))
            counted.update(ended)
            counted.failed_with = ended.failed_with
            refused = [end for end in family if end.claim not in counted]
            counted.update(self._recorded(session, refused) if refused else ())
        return counted

    def _end_alone(self, session: str, ends: Sequence[End]) -> set[ClaimKey]:
        counted = self._write_ends(session, ends)
        refused = [end for end in ends if end.claim not in counted]
        if refused:
            counted |= self._recorded(session, refused)
            refused = [end for end in refused if end.claim not in counted]
        if refused and self._ground.database.dialect.writing_ctes:
            counted |= self._write_ends(session, refused)  # once more: see the statement
        return counted

    def _write_ends(self, session: str, ends: Sequence[End]) -> set[ClaimKey]:
        dialect = self._ground.database.dialect
        if dialect.writing_ctes and all(end.limits is None for end in ends):
            rows = batch(ends)
            return _claims(self._one("commit", "end_attempts", session=session, rows=rows))
        end_some = _end_at_once if dialect.writing_ctes else _end_counted
        try:
            return self._together("commit", lambda do: end_some(do, session, ends))
        except _SomeLost:
            return self._together("commit", lambda do: _end_running(do, session, ends))

    def _recorded(self, session: str, ends: Sequence[End]) -> set[ClaimKey]:
        rows = batch({"id": end.id, "fence": end.fence} for end in ends)
        return _claims(self._one("commit", "recorded_ends", session=session, rows=rows))

    def crash(self, session: str, ends: Sequence[End]) -> tuple[set[ClaimKey], list[str]]:
        """Record that the code of these attempts died or had to be abandoned, as their session reports it. Their runs
        are tried again, or fail if they were charged too often. Returns the claims that counted, and the ids of runs
        that failed, including graphs that failed with them. Safe to repeat, as ends are."""

        def work(do: Do) -> tuple[set[ClaimKey], list[str]]:
            if not do("session_alive", session=session):
                return set(), []
            runs = hold_with_parents(do, [end.id for end in ends])
            ours = [end for end in ends if end.id in runs and runs[end.id].belongs_to(session, end.fence)]
            deaths = [Death(end.id, end.together, end.isolate, end.error) for end in ours]
            failed, failed_with = record_deaths(do, runs, deaths, fenced=True)
            failed += failed_with
            give_back(do, [runs[end.id].limits for end in ours])
            counted = {end.claim for end in ours}
            if len(counted) < len(ends):
                rows = batch({"id": end.id, "fence": end.fence} for end in ends)
                known = do("recorded_ends", session=session, rows=rows)
                failed += [str(id) for id, _ in known if str(id) not in failed and runs[str(id)].state == "failed"]
                counted |= _claims(known)
            return counted, failed

        return self._together("commit", work)

    def let_go(self, session: str, runs: Sequence[tuple[str, int]]) -> int:
        """Author code that outlived its run has ended: give (id, fence) up, so that a retry or successor may start."""

        def work(do: Do) -> int:
            rows = do("let_go", session=session, rows=batch({"id": id, "fence": fence} for id, fence in runs))
            records = [
                record(str(id), n, "let_go", attempt, fence=fence, session=session)
                for id, n, attempt, fence, _, _ in rows
            ]
            do("add_history", rows=batch(records))
            give_back(do, [limits for _, _, _, _, limits, _ in rows])
            return len(rows)

        return self._together("commit", work)


def _claims(rows: Iterable[Row]) -> set[ClaimKey]:
    return {(str(row[0]), row[1]) for row in rows}


class _SomeLost(Exception):
    """Not all attempts were still the session's: what was done for the others is taken back."""


def _end_at_once(do: Do, session: str, ends: Sequence[End]) -> set[ClaimKey]:
    ended = _claims(do("end_attempts", session=session, rows=batch(ends)))
    give_back(do, [end.limits for end in ends if end.claim in ended and not end.lingers])
    return ended


def _end_counted(do: Do, session: str, ends: Sequence[End]) -> set[ClaimKey]:
    """On SQLite: few calls where all are still the session's, as they nearly always are."""
    rows = batch(ends)
    ((ended,),) = do("end_attempts", session=session, rows=rows)
    if ended < len(ends):
        raise _SomeLost
    do("record_ends", session=session, rows=rows)
    give_back(do, [end.limits for end in ends if not end.lingers])
    return {end.claim for end in ends}


def _end_running(do: Do, session: str, ends: Sequence[End]) -> set[ClaimKey]:
    running = _claims(do("still_running", session=session, rows=batch(ends)))
    ours = {end.claim: end for end in ends if end.claim in running}
    return _end_counted(do, session, list(ours.values())) if ours else set()


def _end_family(do: Do, session: str, ends: Sequence[End]) -> Counted:
    if not do("session_alive", session=session):
        return Counted()
    runs = hold_with_parents(do, [end.id for end in ends])
    ours = {end.id: end for end in ends if end.id in runs and runs[end.id].belongs_to(session, end.fence)}
    if not ours:
        return Counted()
    rows = do("end_family", rows=batch(ours.values()))
    records = [_records(ours[str(row[0])], session, row, runs[str(row[0])].attempt) for row in rows]
    do("add_history", rows=batch(entry for some in records for entry in some))
    _drop_what_is_over(do, runs, ours)
    bounded = {end.id: end.keep_records for end in ours.values() if end.keep_records is not None}
    old = [{"run": str(row[0]), "n": row[1] - bounded[str(row[0])]} for row in rows if str(row[0]) in bounded]
    if old:
        do("forget_records", rows=batch(old))
    over = [end for end in ours.values() if end.state in FINAL_STATES or end.kind == "undoing"]
    failed = settle(do, [runs[end.id].ended(end.state if end.state in FINAL_STATES else "undoing") for end in over])
    give_back(do, [runs[end.id].limits for end in ours.values() if not end.lingers])
    return Counted((end.claim for end in ours.values()), failed)


def _records(end: End, session: str, row: Sequence[Any], attempt: int) -> list[dict[str, Any]]:
    """What is written down of an end of this attempt: what drifted, and how it ended."""
    _, last, claimed_at, error, *_ = row
    entries = []
    if end.drift is not None:
        entries.append(record(end.id, last - 1, "drift", attempt, session=session, data=end.drift))
    kind = end.state if end.kind == "undone" else end.kind
    data = error if end.kind == "undone" else end.note if end.kind in ("waiting", "moved") else end.error
    entries.append(record(end.id, last, kind, attempt, fence=end.fence, session=session, since=claimed_at, data=data))
    return entries


def _drop_what_is_over(do: Do, runs: dict[str, HeldRun], ends: dict[str, End]) -> None:
    forgotten = [
        {"run": end.id, "generation": runs[end.id].generation, "n": n} for end in ends.values() for n in end.forget
    ]
    if forgotten:
        do("forget_failures", rows=batch(forgotten))
    restarted = [end.id for end in ends.values() if end.kind in ("restarted", "moved")]
    if restarted:
        do("delete_checkpoints", rows=ids(restarted))
        do("return_messages", rows=ids(restarted))
    over = restarted + [end.id for end in ends.values() if end.kind == "done"]
    if over:
        do("delete_waits", rows=ids(over))
