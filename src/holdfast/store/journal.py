"""What durable functions record: checkpoints, waits, events, children and the rest, written in groups, fenced.

Plain checkpoints, by far the most frequent, are one statement. Everything else of a group is one transaction. Order of
locks: the session, then events, then runs; looks come after the locks, in statements of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from holdfast.database import Row
from holdfast.errors import KeyConflict
from holdfast.store.commands import (
    LOST,
    Checkpoint,
    Command,
    Enqueue,
    Kept,
    KeptWait,
    Outcome,
    Record,
    Reply,
    Spawn,
    Wrote,
)
from holdfast.store.family import hold, ids
from holdfast.store.group import Group, checkpoint, read_back
from holdfast.store.intake import carry_out, plan
from holdfast.store.lanes import Lanes
from holdfast.store.part import Do, Ground, Part, batch
from holdfast.store.releasing import child_end
from holdfast.store.rows import NewRun

FIRST_PAGE = 200
PAGE_BYTES = 256 * 1024
LARGEST_PAGE = 4 * 1024 * 1024

_has_undo = attrgetter("undo")
_kind_of = attrgetter("kind")


class Journal(Part):
    """Commands of attempts under way, and what is kept of earlier ones."""

    def __init__(self, ground: Ground, lanes: Lanes) -> None:
        super().__init__(ground)
        self._lanes = lanes

    # Writing

    def record(self, session: str, records: Sequence[Record]) -> list[Reply]:
        """Plain checkpoints; for each whether it counts. One that was written before its answer got lost does; one of a
        run that is to undo is kept where it has an undo, and answered as lost."""
        replies = self._record(session, records)
        if not any(map(_has_undo, records)):
            return replies
        with_undo = {record.run for record in records if record.undo}
        ended = {str(row[0]) for row in self._one("commit", "to_be_undone", rows=ids(with_undo))}
        return [LOST if record.run in ended else reply for record, reply in zip(records, replies, strict=True)]

    def record_steps(self, session: str, rows: str, number: int) -> bool:
        """So many checkpoints (`StepRecord`), as JSON: whether all of them were written, and now. Then there is nothing
        else to be known of them; otherwise `record` finds out."""
        ((written,),) = self._one("commit", "record_steps", session=session, rows=rows)
        return bool(written == number)

    def _record(self, session: str, records: Sequence[Record]) -> list[Reply]:
        written = self._one("commit", "record_checkpoints", session=session, rows=batch(records))
        replies: list[Reply]
        if self._ground.database.dialect.writing_ctes:
            values = {(str(run), n): value for run, n, value in written}
            replies = [
                Wrote(values[record.run, record.n]) if (record.run, record.n) in values else LOST for record in records
            ]
        elif written[0][0] == len(records) and "now" not in map(_kind_of, records):
            replies = [Wrote()] * len(records)
        else:  # it only counts what it wrote
            replies = [LOST] * len(records)
        if LOST in replies:
            known = self._together("commit", lambda do: read_back(do, records))
            replies = [known.get(at, reply) if reply is LOST else reply for at, reply in enumerate(replies)]
        return replies

    def write(self, session: str, commands: Sequence[Command]) -> list[Reply]:
        """Any commands, in one transaction; an answer for each."""
        new = [run for command in commands for run in _new_runs(command)]
        lanes = self._lanes.of(new) if new else {}

        def work(do: Do) -> list[Reply]:
            if not do("session_alive", session=session):
                return [LOST] * len(commands)
            return Group(do, session, lanes, commands).write()

        return self._together("commit", work)

    def enqueue(self, session: str, command: Enqueue) -> Reply | KeyConflict:
        """An independent run with a key or a unique name: in a transaction of its own, because those are locked before
        the run that makes it."""
        lanes = self._lanes.of([command.request])

        def work(do: Do) -> Reply:
            if not do("session_alive", session=session):
                return LOST
            if known := read_back(do, [command]):
                return known[0]
            value = f'"{carry_out(plan([command.request], lanes), do)[0]}"'
            run = hold(do, [command.held.run]).get(command.held.run)
            if run is None or not run.belongs_to(session, command.held.fence):
                raise _Refused
            do("add_checkpoints", rows=batch([checkpoint(command, "enqueue", value)]))
            return Wrote(value)

        try:
            return self._together("commit", work)
        except _Refused:
            return LOST
        except KeyConflict as conflict:
            return conflict

    # Reading

    def load(self, runs: Sequence[tuple[str, int]], purpose: str = "pick") -> dict[str, Kept]:
        """All that is kept of runs, given as id and generation: a page for each at first, then the rest by pages.
        `purpose` is the line to read on."""
        rows = batch({"run": run, "generation": generation} for run, generation in runs)
        kept = {run: Kept() for run, _ in runs}
        for run, *row in self._one(purpose, "load_checkpoints", rows=rows, most=FIRST_PAGE, bytes=PAGE_BYTES):
            kept[str(run)].checkpoints.append(self._checkpoint(row))
        last = {str(run): n for run, n in self._one(purpose, "last_numbers", rows=rows)}
        for run, generation in runs:
            self._load_rest(purpose, run, generation, kept[run].checkpoints, last.get(run, 0))
        for run, key, kind, outcome, value, due_in in self._one(purpose, "load_waits", rows=rows):
            came = None if outcome is None else Outcome(outcome, value)
            kept[str(run)].waits.append(KeptWait(key, kind, came, due_in))
        return kept

    def _load_rest(self, purpose: str, run: str, generation: int, checkpoints: list[Checkpoint], last: int) -> None:
        after = checkpoints[-1].n if checkpoints else 0
        while after < last:
            page = self._one(purpose, "load_page", run=run, generation=generation, after=after, bytes=LARGEST_PAGE)
            if not page:
                return
            checkpoints.extend(map(self._checkpoint, page))
            after = checkpoints[-1].n

    def _checkpoint(self, row: Sequence[Any]) -> Checkpoint:
        n, key, kind, value, undo = row
        return Checkpoint(n, key, kind, None if value is None else self._ground.payloads.unpack(value), undo)

    def settled(self, runs: Sequence[tuple[str, int]]) -> list[tuple[str, str, str, Outcome]]:
        """What came of the waits of runs that are in hand: run, key, kind and outcome."""
        rows = batch({"run": run, "generation": generation} for run, generation in runs)
        return [
            (str(run), key, kind, Outcome(outcome, value))
            for run, key, kind, outcome, value in self._one("look", "settled_waits", rows=rows)
        ]

    def spawned(self, parent: str) -> dict[str, Row]:
        """How the children of a run that weren't part of a map ended, by their spawn keys: id, 0, state, result, error.
        For replays, which ask for all of them."""
        found: dict[str, Row] = {}
        after = ""
        while True:
            page = self._one("client", "spawned_ends", parent=parent, after=after)
            found.update((row[0], child_end(self._reading("client"), (row[1], 0, *row[2:]))) for row in page)
            if len(page) < 500:
                return found
            after = page[-1][0]

    def children(self, parent: str, spawn_key: str) -> list[Row]:
        """How the children of one call ended, in their order: id, place, state, result, error."""
        found: list[Row] = []
        while True:
            after = found[-1][1] if found else -1
            page = self._one("client", "children_page", parent=parent, spawn_key=spawn_key, after=after, size=500)
            found += [child_end(self._reading("client"), row) for row in page]
            if len(page) < 500:
                return found


class _Refused(Exception):
    """The run was lost: what was done for it is taken back."""


def _new_runs(command: Command) -> Sequence[NewRun]:
    if isinstance(command, Spawn):
        return command.runs()
    return [command.request] if isinstance(command, Enqueue) else []
