"""Create runs: keys, unique names, lanes, turns, rows.

The steps of an enqueue are a generator that yields statements and receives their rows. It does no I/O itself, so that
one implementation runs on the store's own connections and on a caller's sync or async connection.

Lock order: keys first, then unique names, both ascending. Rows are inserted in the order given, so a batch with several
unique names locks the names beforehand.

**Turns** are the order in which ready runs of one priority are claimed; the ready index sorts by them. In most queues,
a run's turn is the database time at which it became ready, minus `TURN_EPOCH`. So a run that reschedules itself (a
state machine's move, a retry, a wake-up) queues behind work that was ready before. A batch has one time and is ordered
by `seq`. A run that returns through no fault of its own (handed back, its worker lost) keeps its turn. So do nodes of
graphs and children of maps that wait for others: their turn is that of the graph or map, so that graphs and maps that
have started finish first.

In a fair queue, turns are positive numbers. Consecutive runs of a tenant are `TURN_STEP` divided by the tenant's weight
apart, so the turns of tenants interleave: a tenant with a million runs and one with ten are served alternately. A new
run follows the last ready run of its tenant. If the tenant has none, it starts near the run that is claimed next, so
that an idle tenant doesn't save up turns. A run that becomes ready again gets the next turn of its tenant
(`{next_turn}` in `database/dialect.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

import msgspec

from holdfast.database import Duplicate, Row, Statement
from holdfast.database.caller_connection import AsyncCallerConnection, CallerConnection
from holdfast.database.dialect import MAX_TURN, TURN_STEP
from holdfast.errors import ConfigError, KeyConflict, StoreUnavailable
from holdfast.model.blocking_calls import run_in_thread
from holdfast.model.failure import cancellation_json
from holdfast.model.payloads import PayloadContext, Payloads
from holdfast.model.run import GRAPH_QUEUE, TOPIC_QUEUE
from holdfast.store.metadata import metadata_steps
from holdfast.store.module import (
    MAX_BATCH_ROWS,
    MAX_COMMIT_CLAIM_RUNS,
    StatementCall,
    StoreContext,
    StoreModule,
    Tx,
    check_identity,
    in_batches,
    json_rows,
    run_steps,
)
from holdfast.store.propagation import propagate_ends
from holdfast.store.rows import NewRun
from holdfast.store.run_tree import cancel_runs, lock_with_parents
from holdfast.store.typed_rows import RowReader

LaneKey: TypeAlias = tuple[str, str]
"""Queue and task."""

LANE_CACHE_S = 600
"""How long the id of a lane is used without reading the lanes again. `lane_collection.py` depends on it."""


class LaneRow(NamedTuple):
    """A lane. `limited`: it has or had runs with limits. `unused_since`: when housekeeping found no run in it."""

    id: int
    queue: str
    task: str
    limited: int
    unused_since: int | None


_LANE_ROWS = RowReader(LaneRow)


class LaneStore(StoreModule):
    """Ids of lanes, cached for a limited time: lanes without runs are collected."""

    def __init__(self, context: StoreContext, monotonic: Callable[[], float] = time.monotonic) -> None:
        super().__init__(context)
        self._monotonic = monotonic
        self._ids: dict[LaneKey, int] = {}
        self._read_at = 0.0
        self.limited: frozenset[int] = frozenset()
        """Lanes known to hold runs with limits. A claim without permits passes over such runs."""

    def for_runs(self, runs: Iterable[NewRun]) -> dict[LaneKey, int]:
        """Return the lanes of new runs, and mark those that get runs with limits."""
        keys: dict[LaneKey, bool] = {}
        for run in runs:
            key = run.queue, run.task
            keys[key] = keys.get(key, False) or run.limits is not None
        known = self.ids(keys)
        unmarked = {known[key] for key, limited in keys.items() if limited} - self.limited
        if unmarked:
            self._execute("client", "mark_lanes_limited", rows=json_rows({"id": lane} for lane in sorted(unmarked)))
            self.refresh()
        return known

    def mark_limited_heads(self, lanes: Collection[int]) -> bool:
        """Mark lanes whose first ready run has limits although the lane isn't marked; return whether there were any.

        That happens after a change by hand.
        """
        rows = json_rows({"lane": lane} for lane in lanes if lane not in self.limited)
        found = [{"id": int(lane)} for (lane,) in self._execute("claim", "find_limited_heads", lanes=rows)]
        if found:
            self._execute("claim", "mark_lanes_limited", rows=json_rows(found))
            self.refresh("claim")
        return bool(found)

    def ids(self, keys: Iterable[LaneKey]) -> dict[LaneKey, int]:
        """Return the ids of these lanes, creating missing ones in a transaction of its own."""
        if self._monotonic() - self._read_at > LANE_CACHE_S:
            self._ids = {}
        known: dict[LaneKey, int] = self._ids
        missing = {key for key in keys if key not in known}
        if missing:
            known = self._usable(self._read())
            missing = {key for key in missing if key not in known}
        if missing:
            rows = json_rows({"queue": queue, "task": task} for queue, task in sorted(missing))
            self._execute("client", "add_lanes", rows=rows)
            known = self._usable(self._read())
        return known

    def find(self, queue: str, task: str) -> int | None:
        """Return the id of a lane; None if it doesn't exist."""
        rows = self._execute("read", "find_lanes", rows=json_rows([{"queue": queue, "task": task}]))
        return int(rows[0][0]) if rows else None

    def refresh(self, purpose: str = "read") -> dict[int, LaneKey]:
        """Read all lanes and update the cache, unless a caller's open transaction may still roll lanes back."""
        return {row.id: (row.queue, row.task) for row in self._read(purpose)}

    def with_retired(self) -> dict[int, LaneKey]:
        """Return all lanes, including those that were collected because they had no runs."""
        retired = self._execute("read", "list_retired_lanes")
        return {int(id): (queue, task) for id, queue, task in retired} | self.refresh()

    def _read(self, purpose: str = "read") -> list[LaneRow]:
        read_at = self._monotonic()
        rows = _LANE_ROWS.read_all(self._execute(purpose, "list_lanes"))
        if not self._context.database.in_user_transaction():
            # All at once, so that no lane that was deleted remains. Another thread may have read more: it reads again.
            self._ids, self._read_at = self._usable(rows), read_at
            self.limited |= {row.id for row in rows if row.limited}
        return rows

    @staticmethod
    def _usable(rows: Iterable[LaneRow]) -> dict[LaneKey, int]:
        """Return the lanes in which runs may be created: those that aren't about to be collected."""
        return {(row.queue, row.task): row.id for row in rows if row.unused_since is None}


def lanes_by_key(lanes: dict[int, LaneKey]) -> dict[LaneKey, int]:
    """Invert the result of `LaneStore.refresh`."""
    return {key: id for id, key in lanes.items()}


EnqueueSteps: TypeAlias = Generator[StatementCall, list[Row], list[str]]
"""Yields statements, receives their rows, returns run ids."""
MakeSteps: TypeAlias = Callable[[dict[LaneKey, int]], EnqueueSteps]

MAX_PLAIN_ROWS = 1000
"""How many runs without a key or a unique name one statement inserts."""
CANCEL_HOLDERS = "cancel holders of unique names"
"""Not a statement: `create_runs` cancels these runs and whatever follows from it."""
REPLACED = cancellation_json("replaced by a newer run of its unique name")
MAX_KEY_TRIES = 3
MAX_UNIQUE_TRIES = 10

_OPTIONAL = (
    "tenant", "delay", "run_at", "deadline_in", "deadline_at", "options", "tags", "limits", "start_in", "start_by_at",
)  # fmt: skip
_optional = attrgetter(*_OPTIONAL)
_NONE_GIVEN = (None,) * len(_OPTIONAL)


class EnqueueStore(StoreModule):
    """Creates independent runs."""

    def __init__(self, context: StoreContext, lanes: LaneStore) -> None:
        super().__init__(context)
        self._lanes = lanes

    def enqueue(self, runs: Sequence[NewRun]) -> list[str]:
        """Create the runs, all or none; return for each its id, or that of the run that has its key or unique name.

        Raises KeyConflict if a key was used for another request.
        """
        if not runs:
            return []
        lanes = self._lanes.for_runs(runs)
        if not all(map(_is_plain, runs)):
            return self._create_named(runs, lanes)
        try:
            self._insert_plain("add_new_runs" if self._context.on_postgres else "add_runs", runs, lanes)
        except Duplicate:  # they were inserted before the response got lost
            self._insert_plain("add_runs", runs, lanes)
        return [run.id for run in runs]

    def _create_named(self, runs: Sequence[NewRun], lanes: dict[LaneKey, int]) -> list[str]:
        for _ in range(MAX_UNIQUE_TRIES):
            try:
                return self._transaction("client", lambda tx: create_runs(tx, runs, lanes))
            except Duplicate:  # another enqueue took a unique name that a waiting run was about to get
                continue
        raise StoreUnavailable("too much contention for unique names: try again")

    def _insert_plain(self, name: str, runs: Sequence[NewRun], lanes: dict[LaneKey, int]) -> None:
        """Insert runs without keys, unique names or turns: with one statement, or several in a transaction."""
        batches = new_run_batches(runs, lanes, MAX_PLAIN_ROWS)
        first = next(batches)
        is_single = next(batches, None) is None
        is_claimed = len(runs) <= MAX_COMMIT_CLAIM_RUNS and all(map(_starts_now, runs))
        if is_single and not (is_claimed and self._context.client_claim() is not None):
            self._execute("client", name, rows=first)
            return

        def work(tx: Tx) -> None:
            if is_single:
                if tx.claiming_session is not None and self._context.on_postgres:
                    tx.queue("act_for_session", session=tx.claiming_session)
                tx.queue(name, rows=first)
                tx.counts_ready_runs, tx.ready_runs = True, len(runs)
                return
            for rows in new_run_batches(runs, lanes, MAX_PLAIN_ROWS):
                tx.execute(name, rows=rows)

        self._transaction("client", work)

    def enqueue_on(self, connection: CallerConnection, runs: Sequence[NewRun]) -> list[str]:
        """Enqueue inside the transaction of the caller's connection."""
        return self.run_on(connection, runs, lambda lanes: self._steps(runs, lanes))

    async def enqueue_on_async(self, connection: AsyncCallerConnection, runs: Sequence[NewRun]) -> list[str]:
        """Enqueue inside the transaction of the caller's async connection."""
        return await self.run_on_async(connection, runs, lambda lanes: self._steps(runs, lanes))

    def _steps(self, runs: Sequence[NewRun], lanes: dict[LaneKey, int]) -> EnqueueSteps:
        return enqueue_steps(runs, lanes, self._context.payloads)

    def run_on(self, connection: CallerConnection, runs: Iterable[NewRun], make: MakeSteps) -> list[str]:
        """Run the steps that create these runs inside the transaction of the caller's connection."""
        connection.check()
        _refuse_cancel(runs)
        steps = self._with_savepoint(connection, make(self._lanes.for_runs(runs)))
        return run_steps(steps, partial(self._execute_on, connection))

    def _execute_on(self, connection: CallerConnection, name: str, **values: Any) -> list[Row]:
        return connection.execute(*self._rendered(name, values))

    async def run_on_async(
        self, connection: AsyncCallerConnection, runs: Iterable[NewRun], make: MakeSteps
    ) -> list[str]:
        """Run the steps that create these runs inside the transaction of the caller's async connection."""
        connection.check()
        _refuse_cancel(runs)
        steps = self._with_savepoint(connection, make(await run_in_thread(self._lanes.for_runs, runs)))
        try:
            name, values = next(steps)
            while True:
                try:
                    rows = await connection.execute(*self._rendered(name, values))
                except Exception as error:
                    name, values = steps.throw(error)
                else:
                    name, values = steps.send(rows)
        except StopIteration as end:
            return list(end.value)

    def _rendered(self, name: str, values: dict[str, Any]) -> tuple[Statement, dict[str, Any]]:
        return self._context.statements.get(name), {
            **values,
            "now": self._context.clock() if self._context.has_own_clock else None,
        }

    def _with_savepoint(
        self, connection: CallerConnection | AsyncCallerConnection, steps: EnqueueSteps
    ) -> EnqueueSteps:
        """Wrap steps in a savepoint, so that a failure leaves nothing in the caller's transaction.

        The first use of a connection checks that it leads to the app's own tables.
        """
        if connection.target not in self._context.verified:
            yield from check_identity(self._context.identity())
            self._context.verified.add(connection.target)
        yield "begin_enqueue", {}
        try:
            ids = yield from steps
        except Exception:
            yield "rollback_enqueue", {}
            raise
        yield "release_enqueue", {}
        return ids


def _is_plain(run: NewRun) -> bool:
    """Return whether a plain insert creates it: without names, turns, metadata, or a time by which it has to start."""
    has_name = not (run.key is None and run.unique is None and run.debounce is None)
    has_start_limit = not (run.start_in is None and run.start_by_at is None)
    return not (has_name or has_start_limit) and run.fair is None and run.metadata is None


def _starts_now(run: NewRun) -> bool:
    return run.delay is None and run.run_at is None


def _refuse_cancel(runs: Iterable[NewRun]) -> None:
    if any(run.if_taken == "cancel" for run in runs):
        raise ConfigError(
            'if_taken="cancel" is not available with connection=: cancel the run first, or enqueue after your commit'
        )


def create_runs(tx: Tx, runs: Sequence[NewRun], lanes: dict[LaneKey, int]) -> list[str]:
    """Enqueue in a transaction of the store."""

    def execute(name: str, **values: Any) -> list[Row]:
        if name != CANCEL_HOLDERS:
            return tx.execute(name, **values)
        propagate_ends(tx, cancel_runs(tx, lock_with_parents(tx, values["runs"]), REPLACED))
        return []

    return run_steps(enqueue_steps(runs, lanes, tx.payloads), execute)


def enqueue_steps(runs: Sequence[NewRun], lanes: dict[LaneKey, int], payloads: Payloads) -> EnqueueSteps:
    """Yield the statements of an enqueue; return for each run its id, or that of the run that already exists for it."""
    stands_for: dict[str, str] = yield from key_steps([run for run in runs if run.key is not None])
    new = [run for run in runs if run.id not in stands_for]
    stands_for |= _superseded(new)
    new = [run for run in new if run.id not in stands_for]
    yield from turn_steps(new)
    names = {name for run in new for name in (unique_name(run), debounce_name(run)) if name is not None}
    if len(names) > 1 or any(run.if_taken != "return" for run in new):
        yield "lock_unique_names", {"rows": json_rows({"unique_name": name} for name in names)}
    cancelled: set[str] = set()
    for tries in range(MAX_UNIQUE_TRIES):
        stands_for |= yield from _merge_debounced(new, lanes, payloads)
        new = [run for run in new if run.id not in stands_for]
        waiting = [run for run in new if run.unique is not None and run.if_taken != "return"]
        if waiting:
            yield "start_queued_names", {"rows": json_rows({"unique_name": next_name(run)} for run in waiting)}
        created = yield from _add(new_run_batches(new, lanes))
        yield from metadata_steps((run.id, run.metadata) for run in new if run.id in created)
        successors = [{"id": run.id} for run in new if run.id in created and run.unique is not None]
        if successors:
            yield "hold_successors", {"rows": json_rows(successors)}
        contested = [run for run in new if run.id not in created and not (run.unique is None and run.debounce is None)]
        if not contested:
            break
        found = yield from _resolve_taken(contested, lanes, payloads, cancelled)
        stands_for |= found
        new = [run for run in contested if run.id not in found]  # the other run ended or started in between: try again
        if not new:
            break
        if tries == MAX_UNIQUE_TRIES - 1:
            raise StoreUnavailable(f"too much contention for the name {new[0].unique or new[0].debounce!r}: try again")
    yield from _redirect_keys(runs, stands_for)
    return [_resolve(stands_for, run.id) for run in runs]


def _resolve(stands_for: dict[str, str], id: str) -> str:
    """Follow a run to the one that stands for it: a key may occur twice in a batch whose run isn't created either."""
    while (other := stands_for.get(id, id)) != id:
        id = other
    return id


def _superseded(new: list[NewRun]) -> dict[str, str]:
    """For runs that a later one of the batch replaces under the same name, return that one."""
    last: dict[str, str] = {}
    found = {}
    for run in reversed(new):
        name = debounce_name(run) or unique_name(run)
        if name is None:
            continue
        if name in last:
            found[run.id] = last[name]
        elif run.debounce is not None or run.if_taken in ("replace", "cancel"):
            last[name] = run.id
    return found


def _add(batches: Iterable[str]) -> Generator[StatementCall, list[Row], set[str]]:
    """Insert runs and return those that were created."""
    created: set[str] = set()
    for batch in batches:
        rows = yield "add_runs", {"rows": batch}
        created.update(str(row[0]) for row in rows)
    return created


def _merge_debounced(
    new: list[NewRun], lanes: dict[LaneKey, int], payloads: Payloads
) -> Generator[StatementCall, list[Row], dict[str, str]]:
    """Replace the arguments of runs that collect calls under the names of new ones, and return those runs."""
    names = {debounce_name(run): run for run in new if run.debounce is not None}
    if not names:
        return {}
    pending = yield "lock_debounced", {"rows": json_rows({"debounce": name} for name in names)}
    replacements = [_replacement(names[name], str(id), lanes, payloads, created_at) for id, name, created_at in pending]
    yield from _replace(replacements)
    return {names[name].id: str(id) for id, name, _ in pending}


def _replace(rows: list[dict[str, Any]]) -> Generator[StatementCall, list[Row], None]:
    """Replace arguments and options. Metadata of the newer call is added to that of the run."""
    yield from metadata_steps(((row["target"], row.get("metadata")) for row in rows), "set_metadata")
    for batch in in_batches(rows, lambda row: len(row["args"])):
        yield "replace_unstarted", {"rows": json_rows(batch)}


def _replacement(
    run: NewRun, target: str, lanes: Mapping[LaneKey, int], payloads: Payloads, created_at: int = 0
) -> dict[str, Any]:
    """Build the row that replaces the arguments and options of a run that hasn't started."""
    row = new_run_row(run, lanes) | {"target": target}
    if payloads.binds:
        source, place = (PayloadContext("args", run.tenant, id) for id in (run.id, target))
        row["args"] = payloads.repack(run.args, source, place)
    if run.max_delay is not None:
        row["latest"] = created_at + run.max_delay
    return row


def key_steps(keyed: list[NewRun]) -> Generator[StatementCall, list[Row], dict[str, str]]:
    """Take idempotency keys; for runs whose key was taken before, return the run that has it."""
    if not keyed:
        return {}
    first: dict[tuple[str, str], NewRun] = {}
    for run in keyed:
        first.setdefault((key_scope(run), str(run.key)), run)
    known = {key: (run.digest, run.id) for key, run in first.items()}
    left = sorted(first)
    for _ in range(MAX_KEY_TRIES):
        rows = _key_rows(first, left)
        taken = yield "add_keys", {"rows": rows}
        if len(taken) == len(left):
            break
        found = yield "find_keys", {"rows": rows}
        known |= {(scope, key): (digest, str(id)) for scope, key, digest, id in found}
        settled = {(scope, key) for scope, key, *_ in (*taken, *found)}
        left = [key for key in left if key not in settled]
        if left:
            taken = yield "take_expired_keys", {"rows": _key_rows(first, left)}
            expired = {(scope, key) for scope, key in taken}
            left = [key for key in left if key not in expired]  # deleted or taken in between: try again
        if not left:
            break
    stands_for = {}
    for run in keyed:
        digest, id = known[key_scope(run), str(run.key)]
        if digest not in (run.digest, run.old_digest):
            raise _key_conflict(run, id)
        if id != run.id:
            stands_for[run.id] = id
    return stands_for


def _key_conflict(run: NewRun, id: str) -> KeyConflict:
    if run.queue == TOPIC_QUEUE:
        message = f"key {run.key!r} of topic {run.task} was used for another message, {id}: use another key"
        return KeyConflict(f"{message}, or the same payload", UUID(id))
    what = f"{'graph' if run.queue == GRAPH_QUEUE else 'task'} {run.task}"
    return KeyConflict(
        f"key {run.key!r} of {what} was used for another request, by run {id}: use another key, or the same arguments",
        UUID(id),
    )


def _key_rows(runs: Mapping[tuple[str, str], NewRun], keys: Iterable[tuple[str, str]]) -> str:
    return json_rows(
        {"scope": scope, "key": key, "digest": run.digest, "run": run.id, "ttl": run.key_ttl}
        for (scope, key), run in ((name, runs[name]) for name in keys)
    )


def _resolve_taken(
    contested: list[NewRun], lanes: Mapping[LaneKey, int], payloads: Payloads, cancelled: set[str]
) -> Generator[StatementCall, list[Row], dict[str, str]]:
    """For runs that were not inserted, return the runs that stand for them; themselves if they exist now (a repeat).

    Runs that are left out have to be inserted again. `cancelled`: the holders that this enqueue has cancelled. They
    may still have their name, while they undo.
    """
    existing = yield "find_existing", {"rows": json_rows({"id": run.id} for run in contested)}
    found = {str(row[0]): str(row[0]) for row in existing}
    left = [run for run in contested if run.unique is not None and run.id not in found]
    holders = yield from _find_holders(left, unique_name)
    found |= {run.id: holders[run.id] for run in left if run.id in holders and run.if_taken == "return"}
    cancelling = [
        run for run in left if run.if_taken == "cancel" and run.id in holders and holders[run.id] not in cancelled
    ]
    if cancelling:
        next_holders = yield from _find_holders(cancelling, next_name)
        superseded = {holders[run.id] for run in cancelling} | set(next_holders.values())
        yield CANCEL_HOLDERS, {"runs": sorted(superseded)}
        cancelled |= superseded
    replacing = [run for run in left if run.if_taken == "replace" and run.id in holders]
    found |= yield from _replace_unstarted(replacing, holders, lanes, payloads)
    queued = [
        run
        for run in left
        if run.id in holders and run.id not in found and run.if_taken != "return" and run not in cancelling
    ]
    return found | (yield from _queue(queued, lanes, payloads))


def _queue(
    runs: list[NewRun], lanes: Mapping[LaneKey, int], payloads: Payloads
) -> Generator[StatementCall, list[Row], dict[str, str]]:
    """Insert runs that wait until their unique name is free. One per name waits; a newer one may replace it."""
    if not runs:
        return {}
    rows = [new_run_row(run, lanes) | {"unique_name": next_name(run), "held": "queued"} for run in runs]
    batches = (json_rows(batch) for batch in in_batches(rows, lambda row: len(row["args"])))
    found = {id: id for id in (yield from _add(batches))}
    yield from metadata_steps((run.id, run.metadata) for run in runs if run.id in found)
    left = [run for run in runs if run.id not in found]
    waiting = yield from _find_holders(left, next_name)
    found |= {run.id: waiting[run.id] for run in left if run.id in waiting and run.if_taken == "queue"}
    replacing = [run for run in left if run.id in waiting and run.if_taken != "queue"]
    return found | (yield from _replace_unstarted(replacing, waiting, lanes, payloads))


def _replace_unstarted(
    runs: list[NewRun], holders: dict[str, str], lanes: Mapping[LaneKey, int], payloads: Payloads
) -> Generator[StatementCall, list[Row], dict[str, str]]:
    """Give the holders that have not started the arguments of these runs; return those holders."""
    if not runs:
        return {}
    locked = yield "lock_unstarted", {"rows": json_rows({"id": holders[run.id]} for run in runs)}
    unstarted = {str(row[0]) for row in locked}
    replaced = {run.id: holders[run.id] for run in runs if holders[run.id] in unstarted}
    yield from _replace([_replacement(run, replaced[run.id], lanes, payloads) for run in runs if run.id in replaced])
    return replaced


def _find_holders(
    runs: list[NewRun], name_of: Callable[[NewRun], str | None]
) -> Generator[StatementCall, list[Row], dict[str, str]]:
    """Return the unfinished runs that have the names of these runs."""
    if not runs:
        return {}
    rows = yield "find_unique_holders", {"rows": json_rows({"unique_name": name_of(run)} for run in runs)}
    by_name = {name: str(id) for id, name in rows}
    return {run.id: by_name[name] for run in runs if (name := name_of(run)) in by_name}


def _redirect_keys(runs: Sequence[NewRun], stands_for: dict[str, str]) -> Generator[StatementCall, list[Row], None]:
    """Let the key of a run that was not created, because its name was taken, name the run that has it instead."""
    rows = [
        {"scope": key_scope(run), "key": run.key, "run": _resolve(stands_for, run.id)}
        for run in runs
        if run.key is not None and not (run.unique is None and run.debounce is None) and run.id in stands_for
    ]
    if rows:
        yield "redirect_keys", {"rows": json_rows(rows)}


def turn_steps(runs: Iterable[NewRun], tenant: str | None = None) -> Generator[StatementCall, list[Row], None]:
    """Assign turns to those of the runs that are in fair queues. `tenant` is the default for runs without one."""
    fair = [(run, run.tenant or tenant or "") for run in runs if run.fair is not None]
    if not fair:
        return
    shares = sorted({(run.queue, owner) for run, owner in fair})
    found = yield "read_turns", {"rows": json_rows({"queue": queue, "tenant": owner} for queue, owner in shares)}
    last = {
        (queue, owner): max(own or 0, (head or 0) - TURN_STEP, 0) if max(own or 0, head or 0) <= MAX_TURN else 0
        for queue, owner, own, head in found
    }
    for run, owner in fair:
        assert run.fair is not None
        last[run.queue, owner] += TURN_STEP // run.fair.get(owner, 1)
        run.turn = last[run.queue, owner]


def assign_turns(tx: Tx, runs: Iterable[NewRun], tenant: str | None = None) -> None:
    """Carry out `turn_steps` in a transaction of the store."""
    steps = turn_steps(runs, tenant)
    try:
        name, values = next(steps)
        while True:
            name, values = steps.send(tx.execute(name, **values))
    except StopIteration:
        return


def key_scope(run: NewRun) -> str:
    """Return what an idempotency key is unique in: the tenant and the task, the graph's name or the topic."""
    kind = {GRAPH_QUEUE: ["graph"], TOPIC_QUEUE: ["topic"]}.get(run.queue, [])
    return msgspec.json.encode([run.tenant, run.task, *kind]).decode()


def unique_name(run: NewRun) -> str | None:
    """Return the unique name as runs store it."""
    if run.unique is None:
        return None
    name = [run.tenant, run.task, run.unique]
    return msgspec.json.encode([*name, "graph"] if run.queue == GRAPH_QUEUE else name).decode()


def next_name(run: NewRun) -> str | None:
    """Return the name of the run that waits until the unique name of this run is free."""
    name = unique_name(run)
    return None if name is None else f"{name}+"


def debounce_name(run: NewRun) -> str | None:
    """Return the debounce name as runs store it."""
    return None if run.debounce is None else msgspec.json.encode([run.tenant, run.task, run.debounce]).decode()


def new_run_batches(runs: Sequence[NewRun], lanes: dict[LaneKey, int], max_rows: int = MAX_BATCH_ROWS) -> Iterator[str]:
    """Yield the rows of new runs as JSON parameters of bounded size."""
    for batch in in_batches(runs, lambda run: len(run.args), max_rows):
        yield json_rows(new_run_row(run, lanes) for run in batch)


def new_run_row(run: NewRun, lanes: Mapping[LaneKey, int]) -> dict[str, Any]:
    """Build the row of a new run; optional columns only if given."""
    row: dict[str, Any] = {
        "id": run.id, "lane": lanes[run.queue, run.task], "priority": run.priority, "max_crashes": run.max_crashes,
        "keep": run.keep, "args": run.args,
    }  # fmt: skip
    optional = _optional(run)
    if optional != _NONE_GIVEN:
        row.update((name, value) for name, value in zip(_OPTIONAL, optional, strict=True) if value is not None)
    if run.keep_failed is not None:
        row["keep_failed"] = run.keep_failed
    if run.unique is not None:
        row["unique_name"] = unique_name(run)
    if run.debounce is not None:
        row["debounce"] = debounce_name(run)
    if run.turn:
        row["turn"] = run.turn
    if run.metadata is not None:
        row["metadata"] = run.metadata
    return row
