"""One group of commands inside its transaction: locks first, then looks, then writes, each kind set-based."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, TypeVar

from holdfast.store.commands import (
    LOST,
    Command,
    Emit,
    Enqueue,
    Held,
    MarkUndos,
    Open,
    Outcome,
    Progress,
    Record,
    Reply,
    Spawn,
    Wait,
    Withdraw,
    Write,
    Wrote,
)
from holdfast.store.family import HeldRun, hold, ids, spawn_key
from holdfast.store.graph_rows import Above, add_rows, graph_row, node_rows
from holdfast.store.intake import chunked, new_row
from holdfast.store.lanes import Pair
from holdfast.store.part import Do, batch, bounded
from holdfast.store.rows import NewGraph, NewRun
from holdfast.store.turns import give_turns
from holdfast.store.waking import (
    Waiter,
    find_waiters,
    give_message,
    lock_events,
    outcome_of,
    receiver,
    recorded_as,
    settle_events,
    take_message,
    wake,
)

C = TypeVar("C")


def checkpoint(command: Any, kind: str, value: str | None) -> Record:
    """The checkpoint of a command's outcome."""
    held: Held = command.held
    return Record(*held, command.n, command.key, kind, value)


def read_back(do: Do, commands: Sequence[Command]) -> dict[int, Reply]:
    """The answers of commands that were carried out before their answers got lost, by their place in the group."""
    numbered = {
        (command.held.run, command.n): (at, command)
        for at, command in enumerate(commands)
        if not isinstance(command, Progress | MarkUndos) and command.n is not None
    }
    if not numbered:
        return {}
    rows = [{"run": run, "generation": command.held.generation, "n": n} for (run, n), (_, command) in numbered.items()]
    replies: dict[int, Reply] = {}
    for run, n, key, fence, kind, value in do("recorded", rows=batch(rows)):
        at, command = numbered[str(run), n]
        if (key, fence) == (command.key, command.held.fence):
            replies[at] = outcome_of(kind, value) if isinstance(command, Wait) else Wrote(value)
    return replies


class Group:
    """Carries out the commands of one group that aren't plain checkpoints."""

    def __init__(self, do: Do, session: str, lanes: dict[Pair, int], commands: Sequence[Command]) -> None:
        self._do = do
        self._session = session
        self._lanes = lanes
        self._commands = commands
        self._replies: dict[int, Reply] = {}
        self._emitted: dict[str, str] = {}
        self._runs: dict[str, HeldRun] = {}
        self._checkpoints: list[Record] = []
        self._woken: set[str] = set()

    def write(self) -> list[Reply]:
        events = {(emit.tenant, emit.name) for _, emit in self._todo(Emit)}
        events |= {(wait.tenant, str(wait.name)) for _, wait in self._todo(Wait) if wait.kind == "event"}
        if events:
            self._emitted = lock_events(self._do, events)
        new = {emit.target for _, emit in self._todo(Emit)} - self._emitted.keys()
        waiters, more = find_waiters(self._do, new)
        self._hold_runs(waiters)
        self._emit(waiters, more=more)
        self._record()
        self._withdraw()
        self._wait()
        self._spawn()
        self._enqueue()
        self._tell()
        for some in bounded(self._checkpoints, lambda kept: len(kept.value or "")):  # of one event, there are many
            self._do("add_checkpoints", rows=batch(some))
        wake(self._do, self._woken)
        return [self._replies[at] for at in range(len(self._commands))]

    def _todo(self, kind: type[C]) -> list[tuple[int, C]]:
        """The commands of a kind that have no answer yet, with their places."""
        return [
            (at, command)
            for at, command in enumerate(self._commands)
            if isinstance(command, kind) and at not in self._replies
        ]

    def _hold_runs(self, waiters: Sequence[Waiter]) -> None:
        """Lock the runs of the commands and those that will be woken. Commands that were carried out before are
        answered with what they did, which can be seen only under the locks; commands for lost runs are answered so."""
        self._runs = hold(self._do, {command.held.run for command in self._commands} | {each.run for each in waiters})
        self._replies = read_back(self._do, self._commands)
        for at, command in enumerate(self._commands):
            run = self._runs.get(command.held.run)
            if at not in self._replies and (run is None or not run.belongs_to(self._session, command.held.fence)):
                self._replies[at] = LOST

    def _emit(self, waiters: Sequence[Waiter], *, more: bool) -> None:
        payloads: dict[str, str] = {}
        traces: dict[str, str | None] = {}
        for at, emit in self._todo(Emit):
            first = emit.target not in self._emitted
            if first:
                payloads[emit.target] = self._emitted[emit.target] = emit.payload
                traces[emit.target] = emit.trace
            self._answer(at, emit, "emit", "true" if first else "false")
        if payloads:
            self._woken |= settle_events(self._do, payloads, waiters, more=more, traces=traces)

    def _answer(self, at: int, command: Any, kind: str, value: str | None) -> None:
        self._checkpoints.append(checkpoint(command, kind, value))
        self._replies[at] = Wrote(value)

    def _record(self) -> None:
        """Outcomes of waits, which are over now."""
        records = self._todo(Record)
        for at, record in records:
            self._checkpoints.append(record)
            self._replies[at] = Wrote()
        over = [record for _, record in records if record.waited]
        if over:
            self._do("drop_waits", rows=batch(map(_wait_place, over)))

    def _withdraw(self) -> None:
        """Waits that author code gave up. What they had taken is there before others look for it; what is given up in
        the group in which it would begin doesn't begin."""
        given_up = {(each.held, each.key) for each in self._commands if isinstance(each, Withdraw)}
        if not given_up:
            return
        self._replies.update((at, Open(None)) for at, wait in self._todo(Wait) if (wait.held, wait.key) in given_up)
        withdraws = self._todo(Withdraw)
        if not withdraws:
            return
        dropped = self._do("withdraw_waits", rows=batch(_wait_place(withdraw) for _, withdraw in withdraws))
        still_open = {(str(run), key) for run, key, outcome in dropped if outcome is None}
        takers: list[dict[str, Any]] = []
        for at, withdraw in withdraws:
            self._answer(at, withdraw, "withdrawn", None)
            held = withdraw.held
            if (held.run, withdraw.key) not in still_open:
                takers.append({"run": held.run, "taken_by": receiver(held.generation, withdraw.key)})
        for run, topic in self._do("give_back", rows=batch(takers)) if takers else []:
            give_message(self._do, str(run), topic)

    def _wait(self) -> None:
        waits = self._todo(Wait)
        if not waits:
            return
        found = self._do("known_waits", rows=batch(_wait_place(wait) for _, wait in waits))
        known = {(str(run), key): (left, outcome, value) for run, key, left, outcome, value in found}
        new: list[tuple[int, Wait, int | None]] = []
        over: list[Wait] = []
        for at, wait in waits:
            pending: int | None = None
            if (place := (wait.held.run, wait.key)) in known:  # a repeat; it may have come to something meanwhile
                left, came, value = known[place]
                outcome = None if came is None else Outcome(came, value)
                self._replies[at] = Open(left)
            else:
                outcome, pending = self._look(wait)
                if outcome is None:
                    new.append((at, wait, pending))
            if outcome is not None:
                self._replies[at] = outcome
                self._checkpoints.append(checkpoint(wait, *recorded_as(wait.kind, outcome)))
                if place in known:
                    over.append(wait)
        if over:
            self._do("drop_waits", rows=batch(map(_wait_place, over)))
        if new:
            added = self._do("add_waits", rows=batch(_wait_row(wait, pending) for _, wait, pending in new))
            due = {(str(run), key): left for run, key, left in added}
            self._replies.update((at, Open(due.get((wait.held.run, wait.key)))) for at, wait, _ in new)

    def _look(self, wait: Wait) -> tuple[Outcome | None, int | None]:
        """What a wait comes to at once, or how many children it has to wait for."""
        run = wait.held.run
        if wait.kind == "event" and wait.target in self._emitted:
            return Outcome("event", self._emitted[wait.target]), None
        if wait.kind == "message":
            payload = take_message(self._do, run, wait.target, receiver(wait.held.generation, wait.key))
            return (None if payload is None else Outcome("message", payload)), None
        if wait.kind == "children":
            left, failed = self._do("children_left", parent=run, spawn_key=wait.target)[0]
            if wait.eager and failed is not None:
                return Outcome("failed", str(failed)), None
            return (None, left) if left else (Outcome("children", None), None)
        return None, None

    def _spawn(self) -> None:
        rows: list[dict[str, Any]] = []
        for at, spawn in self._todo(Spawn):
            run = self._runs[spawn.held.run]
            give_turns(self._do, spawn.runs(), run.tenant)
            self._answer(at, spawn, spawn.kind, spawn.value)
            if spawn.graph is not None:
                self._submit(run, spawn, spawn.graph)
                continue
            for place, child in enumerate(spawn.children):
                blocked = spawn.concurrency is not None and place >= spawn.concurrency
                rows.append(_child_row(child, self._lanes, run, spawn, place, blocked=blocked))
        for some in bounded(rows, lambda row: len(row["args"])):
            self._do("add_children", rows=batch(some))

    def _submit(self, parent: HeldRun, spawn: Spawn, graph: NewGraph) -> None:
        """A child that is a graph, with its nodes."""
        (child,) = spawn.children
        row = graph_row(child, self._lanes, graph) | _child_row(child, self._lanes, parent, spawn, 0, blocked=False)
        add_rows(self._do, {"nodes": [row], "edges": [], "begun": []})
        add_rows(self._do, node_rows(graph, self._lanes, Above(child.id, row["root"], row.get("tenant"))))

    def _enqueue(self) -> None:
        """Independent runs without a key or a unique name."""
        new: list[NewRun] = []
        for at, enqueue in self._todo(Enqueue):
            new.append(enqueue.request)
            self._answer(at, enqueue, "enqueue", f'"{enqueue.request.id}"')
        give_turns(self._do, new)
        for rows in chunked(new, self._lanes):
            self._do("add_runs", rows=rows)

    def _tell(self) -> None:
        """What runs say of themselves: pieces for their followers, progress, that they may have to undo."""
        numbers: Counter[str] = Counter()
        pieces = []
        for at, write in self._todo(Write):
            numbers[write.held.run] += 1
            pieces.append(
                {"run": write.held.run, "number": numbers[write.held.run], "attempt": write.attempt, "data": write.data}
            )
            self._replies[at] = Wrote()
            if write.n is not None:
                self._checkpoints.append(checkpoint(write, "write", None))
        if pieces:
            self._do("add_chunks", rows=batch(pieces))
        said = {progress.held.run: progress.text for _, progress in self._todo(Progress)}
        if said:
            self._do("set_progress", rows=batch({"id": run, "progress": text} for run, text in said.items()))
        marked = {mark.held.run for _, mark in self._todo(MarkUndos)}
        if marked:
            self._do("mark_undos", rows=ids(sorted(marked)))
        self._replies.update((at, Wrote()) for at, _ in [*self._todo(Progress), *self._todo(MarkUndos)])


def _wait_place(command: Wait | Withdraw | Record) -> dict[str, Any]:
    return {"run": command.held.run, "generation": command.held.generation, "key": command.key}


def _wait_row(wait: Wait, pending: int | None) -> dict[str, Any]:
    return {
        **_wait_place(wait), "kind": wait.kind, "target": wait.target, "eager": wait.eager, "pending": pending,
        "due_at": wait.due_at, "delay": wait.delay,
    }  # fmt: skip


def _child_row(
    child: NewRun, lanes: dict[Pair, int], parent: HeldRun, spawn: Spawn, place: int, *, blocked: bool
) -> dict[str, Any]:
    row = new_row(child, lanes)
    if "tenant" not in row and parent.tenant is not None:
        row["tenant"] = parent.tenant
    row |= {"root": parent.root or parent.id, "parent": parent.id, "spawn_key": spawn_key(parent.generation, spawn.key)}
    if spawn.kind == "map":
        row["place"] = place
    return {**row, "blocked": 1} if blocked else row
