"""How runs come in: keys, unique names, lanes, rows.

The steps of an enqueue are a generator that yields statements and is sent their rows, so that any driver can carry
them out: our own line here, a caller's connection elsewhere. It is written once, and does no I/O itself.

Order of locks: keys first, then unique names, both ascending. Rows are inserted in the order of arrival, so a batch
with several unique names locks those by name before.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, TypeAlias
from uuid import UUID

import msgspec

from holdfast.database import Duplicate, Row, Statement
from holdfast.database.caller_connection import AsyncCallerConnection, CallerConnection
from holdfast.errors import ConfigError, KeyConflict, StoreUnavailable
from holdfast.model.blocking_calls import run_in_thread
from holdfast.model.run import GRAPH_QUEUE
from holdfast.store.lanes import Lanes, Pair
from holdfast.store.part import BATCH, Do, Doing, Ground, Part, batch, bounded
from holdfast.store.rows import NewRun
from holdfast.store.turns import take_turns

Call: TypeAlias = tuple[str, dict[str, Any]]
"""A statement's name and its values."""
Plan: TypeAlias = Generator[Call, list[Row], list[str]]
MakePlan: TypeAlias = Callable[[dict[Pair, int]], Plan]

BULK = 1000
"""Runs without a key or a unique name in one statement."""
UNIQUE_TRIES = 10

_OPTIONAL = ("tenant", "delay", "run_at", "deadline_in", "deadline_at", "options", "tags", "limits")
_optional = attrgetter(*_OPTIONAL)
_NONE_GIVEN = (None,) * len(_OPTIONAL)


def scope_of(run: NewRun) -> str:
    """What a key is unique in: the tenant and the task, or the graph's name."""
    scope = [run.tenant, run.task]
    return msgspec.json.encode([*scope, "graph"] if run.queue == GRAPH_QUEUE else scope).decode()


def unique_name_of(run: NewRun) -> str | None:
    return None if run.unique is None else msgspec.json.encode([run.tenant, run.task, run.unique]).decode()


class Intake(Part):
    """New runs."""

    def __init__(self, ground: Ground, lanes: Lanes) -> None:
        super().__init__(ground)
        self._lanes = lanes
        self._same: weakref.WeakSet[object] = weakref.WeakSet()  # what is known to lead to our own tables

    def add(self, runs: Sequence[NewRun]) -> list[str]:
        """Make the runs, all or none; for each the id of the run that stands for it: its own, or the one that its key
        or unique name had already. Raises KeyConflict when a key was used for another request."""
        if not runs:
            return []
        lanes = self._lanes.of(runs)
        if any(run.key is not None or run.unique is not None or run.fair is not None for run in runs):
            return self._together("client", lambda do: carry_out(plan(runs, lanes), do))
        try:
            self._add_plain("add_new_runs" if self._ground.database.dialect.writing_ctes else "add_runs", runs, lanes)
        except Duplicate:  # they were made before an answer was lost
            self._add_plain("add_runs", runs, lanes)
        return [run.id for run in runs]

    def _add_plain(self, name: str, runs: Sequence[NewRun], lanes: dict[Pair, int]) -> None:
        """Runs that nothing stands in the way of, by this statement; more than fit into one in a transaction."""
        chunks = chunked(runs, lanes, BULK)
        first, second = next(chunks), next(chunks, None)
        if second is None:
            self._one("client", name, rows=first)
        else:
            self._together("client", lambda do: add_all(do, name, chunked(runs, lanes, BULK)))

    def add_on(self, connection: CallerConnection, runs: Sequence[NewRun]) -> list[str]:
        """The same inside the transaction of a caller's connection."""
        return self.on(connection, runs, lambda lanes: plan(runs, lanes))

    async def aadd_on(self, connection: AsyncCallerConnection, runs: Sequence[NewRun]) -> list[str]:
        """The same inside the transaction of a caller's connection."""
        return await self.aon(connection, runs, lambda lanes: plan(runs, lanes))

    def on(self, connection: CallerConnection, runs: Iterable[NewRun], make: MakePlan) -> list[str]:
        """Carry out a plan, which makes these runs, inside the transaction of a caller's connection."""
        connection.check()
        steps = self._borrowed_plan(connection, make(self._lanes.of(runs)))
        execute = partial(self._execute_on, connection)
        return carry_out(steps, Doing(execute, self._ground.payloads))

    def _execute_on(
        self, connection: CallerConnection, name: str, _limit: int | None, values: dict[str, Any]
    ) -> list[Row]:
        return connection.execute(*self._filled(name, values))

    async def aon(self, connection: AsyncCallerConnection, runs: Iterable[NewRun], make: MakePlan) -> list[str]:
        """The same on a connection whose verbs are awaited."""
        connection.check()
        steps = self._borrowed_plan(connection, make(await run_in_thread(self._lanes.of, runs)))
        try:
            name, values = next(steps)
            while True:
                try:
                    rows = await connection.execute(*self._filled(name, values))
                except Exception as error:
                    name, values = steps.throw(error)
                else:
                    name, values = steps.send(rows)
        except StopIteration as end:
            return list(end.value)

    def _filled(self, name: str, values: dict[str, Any]) -> tuple[Statement, dict[str, Any]]:
        return self._ground.statements.get(name), {**values, "now": self._ground.clock()}

    def _borrowed_plan(self, connection: CallerConnection | AsyncCallerConnection, steps: Plan) -> Plan:
        """The steps of a plan between savepoints: what fails leaves nothing in the caller's transaction. The first
        time, the connection must show that it leads to the app's own tables."""
        if connection.leads_to not in self._same:
            yield from _check_identity(self._ground.identity())
            self._same.add(connection.leads_to)
        yield "begin_enqueue", {}
        try:
            ids = yield from steps
        except Exception:
            yield "undo_enqueue", {}
            raise
        yield "keep_enqueue", {}
        return ids


def carry_out(steps: Plan, do: Do) -> list[str]:
    """Drive a plan to its end."""
    try:
        name, values = next(steps)
        while True:
            try:
                rows = do(name, **values)
            except Exception as error:
                name, values = steps.throw(error)
            else:
                name, values = steps.send(rows)
    except StopIteration as end:
        return list(end.value)


def _check_identity(ours: str) -> Generator[Call, list[Row], None]:
    found = yield "find_tables", {}
    if found[0][0]:
        kept = yield "read_identity", {}
        if kept and kept[0][0] == ours:
            return
        raise ConfigError(
            "the connection given as connection= leads to another database than the app's, with its own tables"
        )
    raise ConfigError(
        "the connection given as connection= leads to a database without the app's tables: it must be the same database"
        " and schema as the app's"
    )


def plan(runs: Sequence[NewRun], lanes: dict[Pair, int]) -> Plan:
    """The steps of an enqueue."""
    stands_for: dict[str, str] = yield from take_keys([run for run in runs if run.key is not None])
    new = [run for run in runs if run.id not in stands_for]
    yield from take_turns(new)
    names = {name for run in new if (name := unique_name_of(run)) is not None}
    if len(names) > 1:
        yield "lock_names", {"rows": batch({"unique_name": name} for name in names)}
    for tries in range(UNIQUE_TRIES):
        made: set[str] = set()
        for chunk in chunked(new, lanes):
            rows = yield "add_runs", {"rows": chunk}
            made.update(str(row[0]) for row in rows)
        unique_ones = [{"id": run.id} for run in new if run.id in made and run.unique is not None]
        if unique_ones:
            yield "hold_successors", {"rows": batch(unique_ones)}
        contested = [run for run in new if run.id not in made and run.unique is not None]
        if not contested:
            break
        found = yield from _find_unfinished(contested)
        stands_for |= found
        new = [run for run in contested if run.id not in found]  # its rival ended in between: once more
        if not new:
            break
        if tries == UNIQUE_TRIES - 1:
            raise StoreUnavailable(f"the unique name {new[0].unique!r} is too busy: try again")
    stands_for = {id: stands_for.get(other, other) for id, other in stands_for.items()}  # one key twice in a batch
    yield from _point_keys(runs, stands_for)
    return [stands_for.get(run.id, run.id) for run in runs]


def take_keys(keyed: list[NewRun]) -> Generator[Call, list[Row], dict[str, str]]:
    """Take the keys; for runs whose key was taken before, the run that has it."""
    if not keyed:
        return {}
    first: dict[tuple[str, str], NewRun] = {}
    for run in keyed:
        first.setdefault((scope_of(run), str(run.key)), run)
    rows = [
        {"scope": scope, "key": key, "digest": run.digest, "run": run.id} for (scope, key), run in sorted(first.items())
    ]
    taken = yield "add_keys", {"rows": batch(rows)}
    kept = {place: (run.digest, run.id) for place, run in first.items()}
    if len(taken) < len(rows):
        found = yield "find_keys", {"rows": batch(rows)}
        kept |= {(scope, key): (digest, str(id)) for scope, key, digest, id in found}
    stands_for = {}
    for run in keyed:
        digest, id = kept[scope_of(run), str(run.key)]
        if digest not in (run.digest, run.old_digest):
            raise KeyConflict(
                f"key {run.key!r} of {_what(run)} was used for another request, by run {id}:"
                " use another key, or the same arguments",
                UUID(id),
            )
        if id != run.id:
            stands_for[run.id] = id
    return stands_for


def _what(run: NewRun) -> str:
    return f"{'graph' if run.queue == GRAPH_QUEUE else 'task'} {run.task}"


def _find_unfinished(contested: list[NewRun]) -> Generator[Call, list[Row], dict[str, str]]:
    """For runs that were not made: themselves where they are there already (a repeat), or the holder of the name."""
    there = yield "find_ids", {"rows": batch({"id": run.id} for run in contested)}
    found = {str(row[0]): str(row[0]) for row in there}
    holders = yield "find_unique", {"rows": batch({"unique_name": unique_name_of(run)} for run in contested)}
    by_name = {name: str(id) for id, name in holders}
    for run in contested:
        name = unique_name_of(run)
        if run.id not in found and name in by_name:
            found[run.id] = by_name[name]
    return found


def _point_keys(runs: Sequence[NewRun], stands_for: dict[str, str]) -> Generator[Call, list[Row], None]:
    """A key whose run was not made, because its unique name was taken, names the holder from now on."""
    rows = [
        {"scope": scope_of(run), "key": run.key, "run": stands_for[run.id]}
        for run in runs
        if run.key is not None and run.unique is not None and run.id in stands_for
    ]
    if rows:
        yield "point_keys", {"rows": batch(rows)}


def add_all(do: Do, name: str, chunks: Iterable[str]) -> None:
    for chunk in chunks:
        do(name, rows=chunk)


def chunked(runs: Sequence[NewRun], lanes: dict[Pair, int], most: int = BATCH) -> Iterator[str]:
    """The rows of new runs as JSON parameters of bounded size."""
    for some in bounded(runs, lambda run: len(run.args), most):
        yield batch(new_row(run, lanes) for run in some)


def new_row(run: NewRun, lanes: Mapping[Pair, int]) -> dict[str, Any]:
    """A new run as statements take it."""
    row: dict[str, Any] = {
        "id": run.id,
        "lane": lanes[run.queue, run.task],
        "priority": run.priority,
        "max_crashes": run.max_crashes,
        "keep": run.keep,
        "args": run.args,
    }
    optional = _optional(run)
    if optional != _NONE_GIVEN:
        row.update((name, value) for name, value in zip(_OPTIONAL, optional, strict=True) if value is not None)
    if run.unique is not None:
        row["unique_name"] = unique_name_of(run)
    if run.turn:
        row["turn"] = run.turn
    return row
