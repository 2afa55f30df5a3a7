"""Record what durable functions do, and load it for replay. Written in batches, fenced.

Plain checkpoints, by far the most frequent, take one statement. All other commands of a batch share one transaction.
Lock order: the session, then events, then runs. Reads come after the locks, in statements of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from types import MappingProxyType
from typing import Any

from holdfast.database import Row
from holdfast.database.faults import ExpectationFailed
from holdfast.errors import KeyConflict
from holdfast.model.asks import AskAnswer
from holdfast.model.codec import UnreadableText
from holdfast.model.payloads import PayloadContext, is_step_result
from holdfast.model.step_keys import key_label
from holdfast.store.command_batch import CommandBatch, expected_runs, outcome_checkpoint, read_replies
from holdfast.store.commands import (
    RUN_LOST,
    Checkpoint,
    Command,
    EnqueueCommand,
    LoadedHistory,
    LoadedWait,
    NewCheckpoint,
    Reply,
    SpawnCommand,
    WaitOutcome,
    Written,
)
from holdfast.store.enqueue import LaneStore, create_runs
from holdfast.store.graph_progress import child_result
from holdfast.store.interaction import KEEP_ANSWERS_US
from holdfast.store.module import MAX_BATCH_ROWS, StoreContext, StoreModule, Tx, id_rows, json_rows, time_left
from holdfast.store.rows import Claim, NewRun
from holdfast.store.run_tree import LockedRun, lock_runs

FIRST_PAGE_ROWS = 200
FIRST_PAGE_BYTES = 256 * 1024
MAX_PAGE_BYTES = 4 * 1024 * 1024
NO_TENANTS: Mapping[str, str | None] = MappingProxyType({})

_has_undo = attrgetter("undo")
_kind_of = attrgetter("kind")


class RunLostError(Exception):
    """The run belongs to another claim: the transaction is rolled back."""


class Journal(StoreModule):
    """Commands of running attempts, and what earlier attempts recorded."""

    def __init__(self, context: StoreContext, lanes: LaneStore) -> None:
        super().__init__(context)
        self._lanes = lanes

    # Write

    def record(self, session: str, records: Sequence[NewCheckpoint]) -> list[Reply]:
        """Record plain checkpoints; reply for each whether it counts.

        One that was written before its reply got lost counts. If the run was cancelled meanwhile, a checkpoint with a
        compensation is still written, so that the step can be undone, and the reply is `RUN_LOST`.
        """
        replies = self._record(session, records)
        if not any(map(_has_undo, records)):
            return replies
        with_undo = {record.run for record in records if record.undo}
        undoing = {str(row[0]) for row in self._execute("commit", "find_undoing", rows=id_rows(with_undo))}
        return [RUN_LOST if record.run in undoing else reply for record, reply in zip(records, replies, strict=True)]

    def record_steps(self, session: str, rows: str, number: int) -> bool:
        """Record `number` step checkpoints, JSON of `NewStepCheckpoint`; return whether all of them were written.

        If not, call `record` to find out which.
        """
        ((written,),) = self._execute("commit", "record_steps", session=session, rows=rows)
        return bool(written == number)

    def _record(self, session: str, records: Sequence[NewCheckpoint]) -> list[Reply]:
        written = self._execute("commit", "record_checkpoints", session=session, rows=json_rows(records))
        replies: list[Reply]
        if self._context.on_postgres:
            values = {(str(run), n): value for run, n, value in written}
            replies = [
                Written(values[record.run, record.n]) if (record.run, record.n) in values else RUN_LOST
                for record in records
            ]
        elif written[0][0] == len(records) and "now" not in map(_kind_of, records):
            replies = [Written()] * len(records)
        else:  # on SQLite the statement only counts what it wrote
            replies = [RUN_LOST] * len(records)
        if RUN_LOST in replies:
            known = self._transaction("commit", lambda tx: read_replies(tx, records)())
            replies = [known.get(at, reply) if reply is RUN_LOST else reply for at, reply in enumerate(replies)]
        return replies

    def write(
        self,
        session: str,
        commands: Sequence[Command],
        before_commit: Callable[[Tx], None] | None = None,
        claims: Mapping[str, Claim] | None = None,
        on_answered: Callable[[str, AskAnswer], None] | None = None,
    ) -> list[Reply]:
        """Carry out any commands in one transaction; return a reply for each.

        `claims`: those of the runs, by run. With them, the transaction takes fewer round trips. `on_answered`: called
        with each answer to an ask that was written, and its run, after the commit.
        """
        new = [run for command in commands for run in _new_runs(command)]
        lanes = self._lanes.for_runs(new) if new else {}

        def write(expected: Mapping[str, LockedRun] | None) -> tuple[CommandBatch, Callable[[], list[Reply]]]:
            def work(tx: Tx) -> tuple[CommandBatch, Callable[[], list[Reply]]]:
                batch = CommandBatch(tx, session, lanes, commands, expected)
                replies = batch.write()
                if before_commit is not None:
                    before_commit(tx)
                return batch, replies

            return self._transaction("commit", work)

        expected = expected_runs(session, commands, claims) if claims and self._context.on_postgres else None
        try:
            batch, replies = write(expected)
        except ExpectationFailed:
            batch, replies = write(None)
        answered = batch.answered()
        if on_answered is not None:
            for run, answer in answered.answers:
                on_answered(run, answer)
        if answered.forgetful:
            self._execute("commit", "forget_answers", rows=id_rows(answered.forgetful), age=KEEP_ANSWERS_US)
        return replies()

    def enqueue(self, session: str, command: EnqueueCommand) -> Reply | KeyConflict:
        """Create an independent run with a key or a unique name.

        In a transaction of its own, because keys and names are locked before the run that enqueues it.
        """
        lanes = self._lanes.for_runs([command.request])

        def work(tx: Tx) -> Reply:
            if not tx.execute("lock_session", session=session):
                return RUN_LOST
            if known := read_replies(tx, [command])():
                return known[0]
            cancels = command.request.if_taken == "cancel"
            if cancels and not tx.execute("find_running", session=session, rows=id_rows([command.token.run])):
                return RUN_LOST
            (id,) = create_runs(tx, [command.request], lanes)
            value, kind = f'"{id}"', "enqueue" if id == command.request.id else "existing"
            run = lock_runs(tx, [command.token.run]).get(command.token.run)
            if run is not None and run.state == "cancelled" and cancels:
                return RUN_LOST  # it has replaced itself
            if run is None or not run.belongs_to(session, command.token.fence):
                raise RunLostError
            tx.execute("add_checkpoints", rows=json_rows([outcome_checkpoint(command, kind, value)]))
            return Written(value)

        try:
            return self._transaction("commit", work)
        except RunLostError:
            return RUN_LOST
        except KeyConflict as conflict:
            return conflict

    # Read

    def load(
        self, runs: Sequence[tuple[str, int]], purpose: str = "pick", tenants: Mapping[str, str | None] = NO_TENANTS
    ) -> dict[str, LoadedHistory]:
        """Load all checkpoints and waits of runs, given as id and generation, on the connection for `purpose`.

        The first page of every run comes with one statement, the rest run by run. `tenants`: by id, for runs that have
        one. Events and messages stay packed, as they are in waits.
        """
        rows = json_rows({"run": run, "generation": generation} for run, generation in runs)
        loaded = {run: LoadedHistory() for run, _ in runs}
        first = self._execute(
            purpose, "load_first_checkpoints", rows=rows, most=FIRST_PAGE_ROWS, bytes=FIRST_PAGE_BYTES
        )
        for run, *row in first:
            self._add(loaded[str(run)], str(run), tenants, row)
        last = {str(run): n or 0 for run, n in self._execute(purpose, "last_checkpoint_numbers", rows=rows)}
        for run, generation in runs:
            self._load_rest(purpose, run, generation, loaded[run], tenants, last[run])
        self._load_waits(loaded, rows, purpose)
        return loaded

    def load_waits(self, runs: Sequence[tuple[str, int]]) -> dict[str, LoadedHistory]:
        """Load only the waits of runs."""
        loaded = {run: LoadedHistory() for run, _ in runs}
        rows = json_rows({"run": run, "generation": generation} for run, generation in runs)
        self._load_waits(loaded, rows, "pick")
        return loaded

    def _load_waits(self, loaded: dict[str, LoadedHistory], rows: str, purpose: str) -> None:
        for run, key, kind, outcome, value, due_at, now in self._execute(purpose, "load_waits", rows=rows):
            if type(key) is not str or type(kind) is not str:
                raise TypeError(f"the type of wait {key!r} is wrong")
            resolved = None if outcome is None else WaitOutcome(outcome, value)
            loaded[str(run)].waits.append(LoadedWait(key, kind, resolved, time_left(due_at, now)))

    def _load_rest(
        self,
        purpose: str,
        run: str,
        generation: int,
        loaded: LoadedHistory,
        tenants: Mapping[str, str | None],
        last: int,
    ) -> None:
        checkpoints = loaded.checkpoints
        after = checkpoints[-1].n if checkpoints else 0
        while after < last:
            page = self._execute(
                purpose, "load_checkpoint_page", run=run, generation=generation, after=after, bytes=MAX_PAGE_BYTES
            )
            if not page:
                return
            for row in page:
                self._add(loaded, run, tenants, row)
            after = checkpoints[-1].n

    def _add(self, loaded: LoadedHistory, run: str, tenants: Mapping[str, str | None], row: Sequence[Any]) -> None:
        n, key, kind, value, undo = row
        if type(key) is not str or type(kind) is not str or type(n) is not int:
            raise TypeError(f"the type of checkpoint {n!r} is wrong")
        payloads = self._context.payloads
        if value is not None and (value[:1] == "~" or payloads.rejects_plain) and is_step_result(kind, key):
            value = payloads.unpack(value, PayloadContext("step", tenants.get(run), run, key))
            if isinstance(value, UnreadableText) and loaded.unreadable is None:
                loaded.unreadable = type(value.error)(f"the result of {key_label(key)}: {value.error}")
        loaded.checkpoints.append(Checkpoint(n, key, kind, value, undo))

    def resolved_waits(self, runs: Sequence[tuple[str, int]]) -> list[tuple[str, str, str, WaitOutcome]]:
        """Return the resolved waits of runs, given as id and generation: run, key, kind and outcome."""
        rows = json_rows({"run": run, "generation": generation} for run, generation in runs)
        return [
            (str(run), key, kind, WaitOutcome(outcome, value))
            for run, key, kind, outcome, value in self._execute("poll", "read_resolved_waits", rows=rows)
        ]

    def spawned_results(self, parent: str) -> dict[str, Row]:
        """Return id, 0, state, result and error of all finished children that weren't part of a map, by spawn key."""
        found: dict[str, Row] = {}
        after = ""
        while True:
            page = self._execute("client", "read_spawned_page", parent=parent, after=after)
            found.update((row[0], child_result(self._autocommit("client"), (row[1], 0, *row[2:]))) for row in page)
            if len(page) < MAX_BATCH_ROWS:
                return found
            after = page[-1][0]

    def child_results(self, parent: str, spawn_key: str) -> list[Row]:
        """Return id, map index, state, result and error of the children of one call, in order."""
        return read_child_results(self._autocommit("client"), parent, spawn_key)


def _new_runs(command: Command) -> Sequence[NewRun]:
    if isinstance(command, SpawnCommand):
        return command.runs()
    return [command.request] if isinstance(command, EnqueueCommand) else []


def read_child_results(tx: Tx, parent: str, spawn_key: str) -> list[Row]:
    """Read id, map index, state, result and error of the children of one call, in order, page by page."""
    found: list[Row] = []
    while True:
        after = found[-1][1] if found else -1
        page = tx.execute("read_children_page", parent=parent, spawn_key=spawn_key, after=after, size=MAX_BATCH_ROWS)
        found += [child_result(tx, row) for row in page]
        if len(page) < MAX_BATCH_ROWS:
            return found
