"""Carry out a batch of commands in one transaction: lock first, then read, then write; each kind set-based."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from holdfast.database import Row
from holdfast.errors import TooLarge
from holdfast.model.metadata import check_metadata_size, metadata_items
from holdfast.model.topics import NewMessage
from holdfast.store.budgets import Spending
from holdfast.store.commands import (
    RUN_LOST,
    AdjustCommand,
    AnnotateCommand,
    Command,
    EmitCommand,
    EnqueueCommand,
    FailedTryCommand,
    LimitedStepCommand,
    MarkUndosCommand,
    NewCheckpoint,
    ProgressCommand,
    PublishCommand,
    Reply,
    ReplyCommand,
    RunToken,
    SetAsideCommand,
    SetCommand,
    SpawnCommand,
    SpendCommand,
    WaitCommand,
    WaitOutcome,
    WaitRegistered,
    WithdrawCommand,
    WriteCommand,
    Written,
)
from holdfast.store.enqueue import LaneKey, assign_turns, new_run_batches, new_run_row
from holdfast.store.graph_progress import insert_nodes
from holdfast.store.graphs import ParentGraph, graph_row, node_rows
from holdfast.store.interaction import AnsweredAsks, answer_asks, check_values_size
from holdfast.store.metadata import add_metadata
from holdfast.store.module import Tx, history_row, id_rows, in_batches, json_rows
from holdfast.store.rows import Claim, NewGraph, NewRun
from holdfast.store.run_tree import LockedRun, expected_run, format_spawn_key, lock_expected_runs, lock_runs_later
from holdfast.store.step_permits import StepPermits
from holdfast.store.topics import Receivers, find_receivers, listen, publish_messages
from holdfast.store.waits import (
    SET_ASIDE_EVENT,
    EventWaiter,
    decode_outcome,
    deliver_message,
    emit_locked_events,
    encode_outcome,
    find_waiters,
    lock_events,
    queue_unread,
    receiver_key,
    set_event_aside,
    set_message_aside,
    take_first,
    take_message,
    wake_runs,
)

MAX_REPEATED = 1000
"""How many of the last history entries of a run may be those of a batch that is repeated: more than a batch has."""

_CHANGES_WAITS = (EmitCommand, PublishCommand, WithdrawCommand)
"""Commands that resolve or delete waits, or deliver messages."""

C = TypeVar("C")


def outcome_checkpoint(command: Any, kind: str, value: str | None) -> NewCheckpoint:
    """Build the checkpoint of a command's outcome."""
    token: RunToken = command.token
    return NewCheckpoint(*token, command.n, command.key, kind, value)


def read_replies(tx: Tx, commands: Sequence[Command]) -> Callable[[], dict[int, Reply]]:
    """Queue a read of the replies to commands that were committed before, but whose replies got lost.

    Return a function that returns the replies by the position of their commands.
    """
    numbered = _numbered(commands)
    if not numbered:
        return dict
    recorded = tx.queue("read_recorded", rows=_recorded_rows(numbered))

    def replies() -> dict[int, Reply]:
        found: dict[int, Reply] = {}
        for run, n, key, fence, kind, value in recorded():
            at, command = numbered[str(run), n]
            wanted = command.recorded_as[1] if isinstance(command, SpendCommand) else command.key
            if (key, fence) == (wanted, command.token.fence):
                found[at] = decode_outcome(kind, value) if isinstance(command, WaitCommand) else Written(value)
        return found

    return replies


def _numbered(commands: Sequence[Command]) -> dict[tuple[str, int], tuple[int, Any]]:
    """Return the commands whose replies are recorded, with their positions, by run and number."""
    return {
        (command.token.run, command.recorded_as[0] if isinstance(command, SpendCommand) else command.n): (at, command)
        for at, command in enumerate(commands)
        if not isinstance(command, ProgressCommand | MarkUndosCommand | SetAsideCommand | FailedTryCommand)
        and command.n is not None
    }


def _recorded_rows(numbered: Mapping[tuple[str, int], tuple[int, Any]]) -> str:
    return json_rows(
        {"run": run, "generation": generation, "n": n}
        for (run, n), (_, command) in numbered.items()
        for generation in (command.token.generation, -1 - command.token.fence)  # `supersede_checkpoints`
    )


def expected_runs(
    session: str, commands: Sequence[Command], claims: Mapping[str, Claim]
) -> dict[str, LockedRun] | None:
    """Return the runs of commands as they probably are, by id; None if the claims don't tell.

    None, too, if a command locks more than its run.
    """
    runs: dict[str, LockedRun] = {}
    for command in commands:
        token = command.token
        claim = claims.get(token.run)
        if (
            _locks_others(command)
            or claim is None
            or (claim.fence, claim.generation) != (token.fence, token.generation)
        ):
            return None
        if token.run not in runs:
            if (run := expected_run(claim, session)) is None:
                return None
            runs[run.id] = run
    return runs


def _locks_others(command: Command) -> bool:
    """Return whether a command locks events, budgets or other runs than its own."""
    is_wait_for_others = isinstance(command, WaitCommand) and command.kind in ("event", "budget")
    return is_wait_for_others or isinstance(command, EmitCommand | PublishCommand | SpendCommand)


class CommandBatch:
    """A batch of commands of one session and the replies to them.

    `expected`: the runs as they probably are. If they aren't, or if a command was carried out before, the transaction
    fails with `ExpectationFailed`.
    """

    def __init__(
        self,
        tx: Tx,
        session: str,
        lanes: dict[LaneKey, int],
        commands: Sequence[Command],
        expected: Mapping[str, LockedRun] | None = None,
    ) -> None:
        self._tx = tx
        self._session = session
        self._lanes = lanes
        self._commands = commands
        self._replies: dict[int, Reply] = {}
        self._emitted: dict[str, str] = {}
        self._expected = expected
        self._runs: Mapping[str, LockedRun] = {}
        self._checkpoints: list[NewCheckpoint] = []
        self._woken: set[str] = set()
        self._spending: Spending | None = None
        self._found_waits: Callable[[], Sequence[Row]] | None = None
        self._unread: dict[str, Callable[[], Sequence[Row]]] = {}  # first messages of runs that one wait is for
        self._new_waits: list[tuple[int, WaitCommand]] = []
        self._added_waits: Callable[[], Sequence[Row]] = tuple
        self._answered: Callable[[], AnsweredAsks] = lambda: AnsweredAsks([], [])
        self._ended: list[int] = []  # commands that are carried out although their run was ended from outside

    def write(self) -> Callable[[], list[Reply]]:
        """Carry out all commands, if the session's lease is valid.

        Return a function that returns a reply for each. Call it after the commit, which may share a round trip with the
        last statements.
        """
        if self._expected is not None:
            self._expect_runs(self._expected)
            return self._carry_out()
        is_alive = self._tx.queue("lock_session", session=self._session)
        events = {(emit.tenant, emit.name) for _, emit in self._unanswered(EmitCommand)}
        events |= {(wait.tenant, str(wait.name)) for _, wait in self._unanswered(WaitCommand) if wait.kind == "event"}
        if events:
            if not is_alive():
                return self._all_lost
            self._emitted = lock_events(self._tx, events)
        new = {emit.target for _, emit in self._unanswered(EmitCommand)} - self._emitted.keys()
        waiters, more = find_waiters(self._tx, new)
        receivers = find_receivers(
            self._tx,
            [
                NewMessage(each.id, each.topic, each.tenant, each.payload)
                for _, each in self._unanswered(PublishCommand)
            ],
        )
        budget_waits = [wait for _, wait in self._unanswered(WaitCommand) if wait.kind == "budget"]
        if budget_waits or any(isinstance(command, SpendCommand) for command in self._commands):
            self._spending = Spending(self._tx, budget_waits)
        self._lock_runs({waiter.run for waiter in waiters} | receivers.functions)
        if not is_alive():
            return self._all_lost
        self._emit(waiters, more=more)
        self._publish(receivers)
        return self._carry_out()

    def _carry_out(self) -> Callable[[], list[Reply]]:
        """Carry out the commands that are neither answered nor lost, except what is emitted and published."""
        self._record()
        self._answer()
        self._withdraw()
        if self._spending is not None:
            self._spend(self._spending)
        self._wait()
        self._spawn()
        self._enqueue()
        self._report()
        self._annotate()
        self._set_values()
        self._add_failed_tries()
        self._settle_limits()
        # In batches by size: an emit may resolve many waits with a large payload.
        for batch in in_batches(self._checkpoints, lambda checkpoint: len(checkpoint.value or "")):
            self._tx.queue("add_checkpoints", rows=json_rows(batch))
        self._set_aside()
        runs = self._runs
        wake_runs(self._tx, [run for run in self._woken if run in runs and runs[run].state == "waiting"])
        return self._all_replies

    def answered(self) -> AnsweredAsks:
        """Return which asks were answered. Call it after the commit."""
        return self._answered()

    def _all_lost(self) -> list[Reply]:
        return [RUN_LOST] * len(self._commands)

    def _all_replies(self) -> list[Reply]:
        """Return the replies, with the times at which new waits are due."""
        due = {(str(run), key): due_in for run, key, due_in in self._added_waits()}
        self._replies.update((at, WaitRegistered(due.get((wait.token.run, wait.key)))) for at, wait in self._new_waits)
        return [self._replies[at] for at in range(len(self._commands))]

    def _unanswered(self, kind: type[C]) -> list[tuple[int, C]]:
        """Return the commands of a kind that have no reply yet, with their positions."""
        return [
            (at, command)
            for at, command in enumerate(self._commands)
            if isinstance(command, kind) and at not in self._replies
        ]

    def _expect_runs(self, runs: Mapping[str, LockedRun]) -> None:
        """Lock the runs of the commands, which are as expected, and of which no command was carried out before."""
        lock_expected_runs(self._tx, self._session, runs)
        if numbered := _numbered(self._commands):
            self._tx.queue("expect_unrecorded", rows=_recorded_rows(numbered))
        self._read_waits_ahead()
        self._runs = runs

    def _lock_runs(self, woken: Collection[str]) -> None:
        """Lock the runs of the commands and those that will be woken.

        Under the locks, reply to commands that were carried out before, and to those whose run is lost.
        """
        runs = {command.token.run for command in self._commands}.union(woken)
        locked = lock_runs_later(self._tx, runs)
        replies = read_replies(self._tx, self._commands)
        self._read_waits_ahead()
        self._runs, self._replies = locked(), replies()
        for at, command in enumerate(self._commands):
            run = self._runs.get(command.token.run)
            if at in self._replies or (run is not None and run.belongs_to(self._session, command.token.fence)):
                continue
            if run is not None and self._is_spent_by_undone_step(command, run):
                self._ended.append(at)
            else:
                self._replies[at] = RUN_LOST

    def _read_waits_ahead(self) -> None:
        """Queue what `_wait` reads, under the locks of the runs, unless other commands of this batch may change it."""
        waits = [each for each in self._commands if isinstance(each, WaitCommand) and each.kind != "limit"]
        if not waits or any(isinstance(each, _CHANGES_WAITS) for each in self._commands):
            return
        recorded = {(each.token, each.key) for each in self._commands if isinstance(each, NewCheckpoint)}
        if any((each.token, each.key) in recorded for each in waits):
            return
        self._found_waits = self._tx.queue("find_waits", rows=json_rows(map(_wait_key, waits)))
        receivers = Counter(each.token.run for each in waits if each.kind == "message")
        for each in waits:
            if each.kind == "message" and receivers[each.token.run] == 1:
                self._unread[each.token.run] = queue_unread(self._tx, each.token.run, each.target)

    def _is_spent_by_undone_step(self, command: Command, run: LockedRun) -> bool:
        """Return whether a run was ended from outside during a step that is recorded all the same, to be undone."""
        is_own = run.session == self._session and run.fence == command.token.fence and run.ending is not None
        return is_own and isinstance(command, SpendCommand) and command.record is not None and bool(command.record.undo)

    def _reply(self, at: int, command: Any, kind: str, value: str | None) -> None:
        self._checkpoints.append(outcome_checkpoint(command, kind, value))
        self._replies[at] = Written(value)

    def _emit(self, waiters: Sequence[EventWaiter], *, more: bool) -> None:
        payloads: dict[str, str] = {}
        traces: dict[str, str | None] = {}
        for at, emit in self._unanswered(EmitCommand):
            is_first = emit.target not in self._emitted
            if is_first:
                payloads[emit.target] = self._emitted[emit.target] = emit.payload
                traces[emit.target] = emit.trace
            self._reply(at, emit, "emit", "true" if is_first else "false")
        if payloads:
            self._woken |= emit_locked_events(self._tx, payloads, waiters, more=more, traces=traces)

    def _publish(self, receivers: Receivers) -> None:
        """Publish messages, except those that were published before the reply got lost or whose run is lost."""
        publishes = self._unanswered(PublishCommand)
        if not publishes:
            return
        receivers.keep({each.id for _, each in publishes})
        self._woken |= publish_messages(self._tx, receivers, self._runs)
        for (at, publish), counts in zip(publishes, receivers.counts(), strict=True):
            self._reply(at, publish, "publish", msgspec.json.encode([publish.id, *counts]).decode())

    def _record(self) -> None:
        """Record checkpoints, and delete the waits of which they are the outcome."""
        records = self._unanswered(NewCheckpoint)
        for at, record in records:
            self._checkpoints.append(record)
            self._replies[at] = Written()
        outcomes = [record for _, record in records if record.waited]
        if outcomes:
            self._tx.queue("delete_waits_by_key", rows=json_rows(map(_wait_key, outcomes)))

    def _answer(self) -> None:
        """Answer asks: those of replies, and those that come with a wait, also if that is withdrawn at once."""
        answers = [
            (wait.token.run, wait.answer) for _, wait in self._unanswered(WaitCommand) if wait.answer is not None
        ]
        for at, reply in self._unanswered(ReplyCommand):
            answers.append((reply.token.run, reply.answer))
            self._reply(at, reply, reply.kind, None)
        self._answered = answer_asks(self._tx, answers)

    def _withdraw(self) -> None:
        """Delete waits that the task gave up, and pass on the messages that they had received.

        A wait that is registered and withdrawn in the same batch isn't registered at all.
        """
        given_up = {(each.token, each.key) for each in self._commands if isinstance(each, WithdrawCommand)}
        if not given_up:
            return
        self._replies.update(
            (at, WaitRegistered(None))
            for at, wait in self._unanswered(WaitCommand)
            if (wait.token, wait.key) in given_up
        )
        withdraws = self._unanswered(WithdrawCommand)
        if not withdraws:
            return
        deleted = self._tx.execute(
            "delete_waits_by_key", rows=json_rows(_wait_key(withdraw) for _, withdraw in withdraws)
        )
        unresolved = {(str(run), key) for run, key, outcome in deleted if outcome is None}
        receivers: list[dict[str, Any]] = []
        for at, withdraw in withdraws:
            self._reply(at, withdraw, "withdrawn", None)
            token = withdraw.token
            if (token.run, withdraw.key) not in unresolved:
                receivers.append({"run": token.run, "taken_by": receiver_key(token.generation, withdraw.key)})
        for run, topic in self._tx.execute("return_messages", rows=json_rows(receivers)) if receivers else []:
            deliver_message(self._tx, str(run), topic, is_waiting=False)

    def _spend(self, spending: Spending) -> None:
        """Add what runs spend to the counters of their budgets, with the checkpoints of the steps that spent it."""
        spends = self._unanswered(SpendCommand)
        waits = [wait for _, wait in self._unanswered(WaitCommand) if wait.kind == "budget"]
        records = spending.add(
            [(command, self._runs[command.token.run]) for _, command in spends],
            [(wait, self._runs[wait.token.run]) for wait in waits],
        )
        for (at, command), value in zip(spends, records, strict=True):
            n, key = command.recorded_as
            if command.record is not None:
                self._checkpoints.append(command.record)
            self._checkpoints.append(NewCheckpoint(*command.token, n, key, command.kind, value))
            self._replies[at] = Written(value)
        self._replies.update(dict.fromkeys(self._ended, RUN_LOST))

    def _set_aside(self) -> None:
        """Set messages and events aside and supersede the outcomes of their waits, also those of this batch."""
        for at, command in self._unanswered(SetAsideCommand):
            if command.event is None:
                set_message_aside(self._tx, command.token, command.key, command.error)
            else:
                set_event_aside(self._tx, command.token, command.key, command.event, command.error)
            self._replies[at] = Written()

    def _wait(self) -> None:
        waits = [each for each in self._unanswered(WaitCommand) if each[1].kind != "limit"]
        if not waits:
            return
        listen(
            self._tx,
            [(wait.token.run, str(wait.target), wait.listening) for _, wait in waits if wait.listening is not None],
        )
        known = self._known_waits([wait for _, wait in waits])
        new: list[tuple[int, WaitCommand, int | None]] = []
        resolved: list[WaitCommand] = []
        for at, wait in waits:
            pending: int | None = None
            if (key := (wait.token.run, wait.key)) in known:  # a repeat, which may have been resolved since
                due_in, kind, value = known[key]
                outcome = None if kind is None else WaitOutcome(kind, value)
                self._replies[at] = WaitRegistered(due_in)
            else:
                outcome, pending = self._look_up(wait)
                if outcome is None:
                    new.append((at, wait, pending))
            if outcome is not None:
                self._replies[at] = outcome
                self._checkpoints.append(outcome_checkpoint(wait, *encode_outcome(wait.kind, outcome)))
                if key in known:
                    resolved.append(wait)
        if resolved:
            self._tx.queue("delete_waits_by_key", rows=json_rows(map(_wait_key, resolved)))
        if self._spending is not None:
            stopped = [wait for _, wait, _ in new if wait.kind == "budget"]
            stopped += [wait for at, wait in waits if _is_exceeded(self._replies.get(at))]
            self._spending.add_history(self._session, [(wait, self._runs[wait.token.run]) for wait in stopped])
        if new:
            rows = json_rows(self._wait_row(wait, pending) for _, wait, pending in new)
            self._added_waits = self._tx.queue("add_waits", rows=rows)
            self._new_waits = [(at, wait) for at, wait, _ in new]
            self._replies.update((at, WaitRegistered(None)) for at, _ in self._new_waits)  # `_all_replies` adds when

    def _known_waits(self, waits: Sequence[WaitCommand]) -> dict[tuple[str, str], tuple[Any, ...]]:
        """Return those of these waits that exist, by run and key: when they are due, and their outcome."""
        found = self._found_waits or self._tx.queue("find_waits", rows=json_rows(map(_wait_key, waits)))
        return {(str(run), key): (due_in, outcome, value) for run, key, due_in, outcome, value in found()}

    def _wait_row(self, wait: WaitCommand, pending: int | None) -> dict[str, Any]:
        row = {
            **_wait_key(wait), "kind": wait.kind, "target": wait.target, "eager": wait.eager, "pending": pending,
            "due_at": wait.due_at, "delay": wait.delay,
        }  # fmt: skip
        if wait.kind == "budget" and self._spending is not None:
            row |= self._spending.wait_row(wait, self._runs[wait.token.run])
        return row

    def _look_up(self, wait: WaitCommand) -> tuple[WaitOutcome | None, int | None]:
        """Return the outcome that a wait has at once, or its number of pending children (see `SET_ASIDE_EVENT`)."""
        run = wait.token.run
        if wait.kind == "budget" and self._spending is not None:
            return self._spending.check(wait, self._runs[run]), None
        if wait.kind == "event" and wait.target in self._emitted:
            emitted = self._emitted[wait.target]
            return (None, SET_ASIDE_EVENT) if emitted == wait.set_aside else (WaitOutcome("event", emitted), None)
        if wait.kind == "message":
            by = receiver_key(wait.token.generation, wait.key)
            unread = self._unread.get(run)
            payload = (
                take_message(self._tx, run, wait.target, by)
                if unread is None
                else take_first(self._tx, run, unread(), by)
            )
            return (None if payload is None else WaitOutcome("message", payload)), None
        if wait.kind == "children":
            left, failed = self._tx.execute("count_unfinished_children", parent=run, spawn_key=wait.target)[0]
            if wait.eager and failed is not None:
                return WaitOutcome("failed", str(failed)), None
            return (None, left) if left else (WaitOutcome("children", None), None)
        return None, None

    def _spawn(self) -> None:
        rows: list[dict[str, Any]] = []
        children: list[NewRun] = []
        new: defaultdict[str | None, list[NewRun]] = defaultdict(list)
        for _, spawn in self._unanswered(SpawnCommand):
            new[self._runs[spawn.token.run].tenant] += spawn.runs()
        for tenant, runs in new.items():  # together, so that each gets a turn behind the one before
            assign_turns(self._tx, runs, tenant)
        for at, spawn in self._unanswered(SpawnCommand):
            run = self._runs[spawn.token.run]
            self._reply(at, spawn, spawn.kind, spawn.value)
            if spawn.graph is not None:
                self._spawn_graph(run, spawn, spawn.graph)
                continue
            children += spawn.children
            for index, child in enumerate(spawn.children):
                blocked = spawn.concurrency is not None and index >= spawn.concurrency
                rows.append(_child_row(child, self._lanes, run, spawn, index, blocked=blocked))
        for batch in in_batches(rows, lambda row: len(row["args"])):
            self._tx.queue("add_children", rows=json_rows(batch))
        add_metadata(self._tx, children)
        self._tx.ready_runs += len(rows)

    def _spawn_graph(self, parent: LockedRun, spawn: SpawnCommand, graph: NewGraph) -> None:
        """Create a child that is a graph, with its nodes."""
        (child,) = spawn.children
        row = graph_row(child, self._lanes, graph) | _child_row(child, self._lanes, parent, spawn, 0, blocked=False)
        insert_nodes(self._tx, {"nodes": [row], "edges": [], "begun": []})
        insert_nodes(self._tx, node_rows(graph, self._lanes, ParentGraph(child.id, row["root"], row.get("tenant"))))

    def _enqueue(self) -> None:
        """Create independent runs without a key or a unique name."""
        new: list[NewRun] = []
        for at, enqueue in self._unanswered(EnqueueCommand):
            new.append(enqueue.request)
            self._reply(at, enqueue, "enqueue", f'"{enqueue.request.id}"')
        self._tx.ready_runs += len(new)
        assign_turns(self._tx, new)
        for rows in new_run_batches(new, self._lanes):
            self._tx.queue("add_runs", rows=rows)
        add_metadata(self._tx, new)

    def _report(self) -> None:
        """Write what runs report about themselves: chunks for followers, progress, that they have compensations."""
        numbers: Counter[str] = Counter()
        chunks = []
        for at, write in self._unanswered(WriteCommand):
            numbers[write.token.run] += 1
            number = numbers[write.token.run]
            chunks.append(
                {
                    "run": write.token.run, "number": number, "attempt": write.attempt, "data": write.data,
                    "step": write.step, "step_try": write.step_try if write.step_try > 1 else None,
                    "fence": write.token.fence, "generation": write.token.generation, "serial": write.serial,
                }
            )  # fmt: skip
            self._replies[at] = Written()
            if write.n is not None:
                self._checkpoints.append(outcome_checkpoint(write, "write", None))
        if chunks:
            self._tx.queue("add_chunks", rows=json_rows(chunks))
        progress = {report.token.run: report.text for _, report in self._unanswered(ProgressCommand)}
        if progress:
            rows = json_rows({"id": run, "progress": text} for run, text in progress.items())
            self._tx.queue("set_progress", rows=rows)
        marked = {mark.token.run for _, mark in self._unanswered(MarkUndosCommand)}
        if marked:
            self._tx.queue("mark_undos", rows=id_rows(sorted(marked)))
        reported = [*self._unanswered(ProgressCommand), *self._unanswered(MarkUndosCommand)]
        self._replies.update((at, Written()) for at, _ in reported)

    def _annotate(self) -> None:
        """Set metadata of runs, unless a run would have too much of it: that is recorded, too."""
        annotations = self._unanswered(AnnotateCommand)
        if not annotations:
            return
        sizes: defaultdict[str, dict[str, int]] = defaultdict(dict)
        rows = id_rows(sorted({each.token.run for _, each in annotations}))
        for run, name, size in self._tx.execute("read_metadata_sizes", rows=rows):
            sizes[str(run)][name] = size
        new: dict[tuple[str, str], str] = {}
        for at, each in annotations:
            run, values = each.token.run, dict(metadata_items(each.text))
            merged = sizes[run] | {name: len(value.encode()) for name, value in values.items()}
            try:
                check_metadata_size(merged.items(), f"the metadata of run {run}")
            except TooLarge as error:
                self._reply(at, each, "annotate", msgspec.json.encode(str(error)).decode())
                continue
            sizes[run] = merged
            new |= {(run, name): value for name, value in values.items()}
            self._reply(at, each, "annotate", None)
        if new:
            rows = json_rows({"run": run, "name": name, "value": value} for (run, name), value in sorted(new.items()))
            self._tx.queue("set_metadata", rows=rows)

    def _settle_limits(self) -> None:
        """Return, correct and take permits of steps, last of all: counters are locked after runs."""
        wanted = self._unanswered(WaitCommand)
        ended, adjusted = self._unanswered(LimitedStepCommand), self._unanswered(AdjustCommand)
        if not (wanted or ended or adjusted):
            return
        settled = StepPermits(self._tx, wanted, [each for _, each in ended], [each for _, each in adjusted]).settle()
        self._replies.update(settled)
        for at, command in ended:
            self._checkpoints += [record for record in (command.record, command.marker) if record is not None]
            self._replies[at] = Written()
        for at, adjust in adjusted:
            self._reply(at, adjust, "adjust", adjust.value)

    def _set_values(self) -> None:
        """Set values of runs, unless a run would have too many of them: that is recorded, too."""
        given = self._unanswered(SetCommand)
        if not given:
            return
        sizes: defaultdict[str, dict[str, int]] = defaultdict(dict)
        rows = id_rows(sorted({each.token.run for _, each in given}))
        for run, name, size in self._tx.execute("read_value_sizes", rows=rows):
            sizes[str(run)][name] = size
        new: dict[tuple[str, str], str] = {}
        for at, each in given:
            run = each.token.run
            merged = sizes[run] | {each.name: len(each.text.encode())}
            try:
                check_values_size(merged, run)
            except TooLarge as error:
                self._reply(at, each, "set", msgspec.json.encode(str(error)).decode())
                continue
            sizes[run] = merged
            new[run, each.name] = each.text
            self._reply(at, each, "set", None)
        values = [{"run": run, "name": name, "value": value} for (run, name), value in sorted(new.items())]
        for batch in in_batches(values, lambda row: len(row["value"])):
            self._tx.execute("set_values", rows=json_rows(batch))

    def _add_failed_tries(self) -> None:
        """Add history entries about failed tries of steps, except those that were added before the reply got lost."""
        tries = self._unanswered(FailedTryCommand)
        if not tries:
            return
        counts = Counter(each.token.run for _, each in tries)
        rows = json_rows({"id": run, "count": count} for run, count in sorted(counts.items()))
        first = {str(run): n - counts[str(run)] + 1 for run, n in self._tx.execute("number_history", rows=rows)}
        found = self._tx.execute(
            "find_failed_tries",
            rows=json_rows(
                {"at": at, "run": each.token.run, "data": each.data, "after": first[each.token.run] - MAX_REPEATED}
                for at, each in tries
            ),
        )
        self._replies.update((at, Written(n)) for at, n in found)
        if repeated := Counter(each.token.run for at, each in tries if at in self._replies):
            rows = json_rows({"id": run, "count": -count} for run, count in sorted(repeated.items()))
            self._tx.execute("number_history", rows=rows)  # they have their numbers already
        new, replaced = [], []
        for at, each in self._unanswered(FailedTryCommand):
            run = each.token.run
            n, first[run] = first[run], first[run] + 1
            attempt = self._runs[run].attempt
            new.append(history_row(run, n, "step_retrying", attempt, session=self._session, data=each.data))
            replaced += [] if each.replaces is None else [{"run": run, "n": each.replaces}]
            self._replies[at] = Written(n)
        for batch in in_batches(new, lambda row: len(row["data"])):
            self._tx.execute("add_history", rows=json_rows(batch))
        if replaced:
            self._tx.execute("delete_history_entries", rows=json_rows(replaced))


def _is_exceeded(reply: Reply | None) -> bool:
    return isinstance(reply, WaitOutcome) and reply.kind == "exceeded"


def _wait_key(command: WaitCommand | WithdrawCommand | NewCheckpoint) -> dict[str, Any]:
    return {"run": command.token.run, "generation": command.token.generation, "key": command.key}


def _child_row(
    child: NewRun, lanes: dict[LaneKey, int], parent: LockedRun, spawn: SpawnCommand, index: int, *, blocked: bool
) -> dict[str, Any]:
    row = new_run_row(child, lanes)
    if "tenant" not in row and parent.tenant is not None:
        row["tenant"] = parent.tenant
    row |= {
        "root": parent.root or parent.id, "parent": parent.id,
        "spawn_key": format_spawn_key(parent.generation, spawn.key),
    }  # fmt: skip
    if spawn.kind == "map":
        row["place"] = index
    return {**row, "blocked": 1} if blocked else row
