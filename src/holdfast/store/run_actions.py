"""Act on runs from outside: cancel, retry, send a message, fork.

A fork is a new run that starts with the checkpoints that another run recorded before a step. Results of joined children
are copied, so that the fork doesn't depend on the original's children; children that the original had spawned but not
joined before that step are spawned again. Compensations stay with the original, and steps that it has undone run again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from holdfast.database import Conflict, DataFault, Duplicate
from holdfast.database.caller_connection import CallerConnection
from holdfast.errors import (
    ConfigError,
    GraphError,
    KeyConflict,
    MessageNotFound,
    PayloadUnreadable,
    RunFinished,
    RunNotFound,
    RunStarted,
)
from holdfast.model.codec import decode
from holdfast.model.ids import new_id
from holdfast.model.payloads import CANT_COPY, PayloadContext, checkpoint_context, is_bound
from holdfast.model.run import FINAL_STATES
from holdfast.model.step_keys import key_label, key_name
from holdfast.model.topics import received_context
from holdfast.store.age_priority import change_priority
from holdfast.store.journal import MAX_PAGE_BYTES, read_child_results
from holdfast.store.limits import parse_counter_key, parse_permits
from holdfast.store.module import StoreModule, Tx, history_row, id_rows, in_batches, json_rows
from holdfast.store.propagation import propagate_ends, restart_run, retry_runs
from holdfast.store.run_queries import StepRow
from holdfast.store.run_tree import (
    LockedRun,
    cancel_runs,
    format_spawn_key,
    lock_runs,
    lock_runs_later,
    lock_with_parents,
)
from holdfast.store.step_permits import without_times
from holdfast.store.waits import RESENT, SET_ASIDE, DirectMessage

MAX_SHOWN_STEPS = 20

_NOT_COPIED = ("write", "undone", "set", "exceeded")


class RunChanges(NamedTuple):
    """What to change of a run; None leaves it as it is. `args` and `tags`: JSON. `run_at`: microseconds.

    `limits`: the permits that a run with limits needs with its new arguments.
    """

    priority: int | None = None
    run_at: int | None = None
    args: str | None = None
    tags: str | None = None
    limits: str | None = None


def run_changes(options: Any, args: str | None, limits: str | None = None) -> RunChanges:
    """Build the changes of a run from checked options and encoded arguments; refuse to change nothing."""
    tags = None if options.tags is None else msgspec.json.encode(options.tags).decode()
    changes = RunChanges(options.priority, options.run_at, args, tags, limits)
    if changes == RunChanges():
        raise ConfigError("update: pass priority=, run_at=, args= or tags=")
    return changes


class RunActions(StoreModule):
    """What applications and operators do to runs."""

    def cancel(self, id: str, error: str, connection: CallerConnection | None = None) -> bool:
        """Cancel an unfinished run and its children, or let it undo first; False if it had ended before.

        `connection`: whose transaction it is part of.
        """

        def work(tx: Tx) -> bool:
            ends = cancel_runs(tx, {id: _lock_run(tx, id)}, error)
            propagate_ends(tx, ends)
            return bool(ends)

        return self._write("client", work, connection)

    def cancel_many(self, ids: Sequence[str], error: str) -> int:
        """Cancel a batch of runs in one transaction; return how many of them ended by it or started to undo."""

        def work(tx: Tx) -> int:
            ends = cancel_runs(tx, lock_with_parents(tx, ids), error)
            propagate_ends(tx, ends)
            return len(ends)

        return self._transaction("client", work)

    def limit_names(self, id: str) -> list[str]:
        """Return the names of the limits that a run has."""
        found = self._execute("client", "read_run_limits", id=id)
        return [parse_counter_key(permit.counter)[0] for permit in parse_permits(found[0][0])] if found else []

    def retry(self, id: str, by: str | None = None, args: str | None = None, limits: str | None = None) -> bool:
        """Retry a failed or cancelled run with the children that failed with it; False if it is unfinished.

        `by`: who requested it. With new `args`, as JSON, the run starts over: nothing that it recorded counts any more,
        and its children stay as they ended. `limits`: the permits that a run with limits needs with them.
        """

        def work(tx: Tx) -> bool:
            run = _lock_run(tx, id)
            if run.state in ("done", "skipped"):
                raise refuse_done_retry(id, run.state, run.kind)
            if run.state not in FINAL_STATES:
                if args is not None:
                    raise refuse_changed_retry(id, run.state, is_started=bool(run.fence))
                return False
            if run.node is not None:
                raise refuse_node_retry(id, run.node, str(run.parent))
            if args is None:
                released = retry_runs(tx, [id], by)
            else:
                limited = run.limits is not None and (limits is None or run.session is not None)
                check_restartable(id, run.kind, has_compensations=run.ending is not None, limited=limited)
                packed = tx.payloads.pack(args, PayloadContext("args", run.tenant, id), "the new arguments of run", id)
                released = restart_run(tx, id, packed, by, limits)
            if released is None:
                _refuse_retry(tx, id)
            propagate_ends(tx, [], released)
            return True

        try:
            return self._transaction("client", work)
        except Duplicate:  # another transaction was creating a run with its unique name, which is visible now
            return self._transaction("client", work)

    def retry_many(self, ids: Sequence[str], by: str | None = None) -> int:
        """Retry a batch of runs in one transaction; return how many of them are retried.

        Skips runs that can't be retried: nodes of graphs, and runs whose unique name another run has.
        """

        def work(tx: Tx) -> int:
            runs = lock_with_parents(tx, ids)
            ended = [run.id for run in runs.values() if run.state in ("failed", "cancelled") and run.node is None]
            released = retry_runs(tx, ended, by) if ended else None
            if released is None:
                return 0
            propagate_ends(tx, [], released)
            return sum(run.state not in FINAL_STATES for run in lock_runs(tx, ended).values())

        try:
            return self._transaction("client", work)
        except DataFault:  # several of them have the same unique name: only one can be retried
            return sum(self._retry_alone(id, by) for id in ids)

    def _retry_alone(self, id: str, by: str | None) -> bool:
        try:
            return self.retry(id, by)
        except (KeyConflict, GraphError, RunFinished, RunNotFound):
            return False

    def update(self, id: str, changes: RunChanges, by: str | None = None) -> None:
        """Change a run that hasn't started: its priority, time, arguments or tags.

        Of a run that has started, the time of a scheduled retry and the end of a sleep can be changed. Raises
        RunFinished if it has finished, and RunStarted if it is too late.
        """

        def work(tx: Tx) -> None:
            run = _lock_run(tx, id)
            has_started = bool(run.fence) and not tx.execute("lock_unstarted", rows=id_rows([id]))
            _check_changeable(run, changes, has_started)
            packed = None if changes.args is None else _fork_arguments(tx, run, id, changes.args)
            limits = None if run.limits is None else changes.limits
            values: dict[str, Any] = changes._asdict() | {"args": packed, "limits": limits}
            if run.state == "waiting":
                _reschedule_sleep(tx, run, changes.run_at)
                ((n, attempt),) = tx.execute("next_history_number", id=id)
            else:
                aged = changes.priority is not None and _change_aged_priority(tx, id, changes.priority)
                ((n, attempt),) = tx.execute("update_run", id=id, **values | ({"priority": None} if aged else {}))
            data = {"changed": [name for name, value in values.items() if value is not None and name != "limits"]}
            entry = msgspec.json.encode(data if by is None else {"by": by, **data}).decode()
            tx.execute("add_history", rows=json_rows([history_row(id, n, "updated", attempt, data=entry)]))

        self._transaction("client", work)

    def send(
        self, id: str, topic: str, payload: str, by: str | None = None, connection: CallerConnection | None = None
    ) -> None:
        """Send a message to an unfinished run: to the receive that waits for it, or to a later one.

        Only a message with a sender `by` is in the run's history: applications send many. `connection`: whose
        transaction it is part of.
        """

        def prepare(tx: Tx, run: LockedRun) -> tuple[str, str, dict[str, Any]]:
            return topic, _packed_message(tx, run, topic, payload), {"topic": topic}

        self._send(id, by, prepare, topic, connection)

    def resend(self, id: str, number: int, payload: str | None = None, by: str | None = None) -> str:
        """Send a message again that was set aside, or another payload instead of it; return its topic."""

        def take(tx: Tx, run: LockedRun) -> tuple[str, str, dict[str, Any]]:
            found = tx.execute("read_set_aside", run=id, n=number)
            if not found:
                raise MessageNotFound(f"run {id} has no message {number} that was set aside, or it was sent again")
            topic, old, receiver = found[0]
            resent = {"run": id, "n": number, "taken_by": RESENT + receiver.removeprefix(SET_ASIDE)}
            tx.execute("take_messages", rows=json_rows([resent]))
            packed = old if payload is None else _packed_message(tx, run, topic, payload)
            return topic, packed, {"topic": topic, "message": number}

        return self._send(id, by or "", take)

    def _send(
        self,
        id: str,
        by: str | None,
        prepare: Callable[[Tx, LockedRun], tuple[str, str, dict[str, Any]]],
        known_topic: str | None = None,
        connection: CallerConnection | None = None,
    ) -> str:
        """Send a message: `prepare` returns its topic, its packed payload and what its history entry says.

        `known_topic`: the topic, if it is known before `prepare` has read it.
        """
        call = str(new_id())
        tries = count(1)
        topics: list[str] = []

        def work(tx: Tx) -> str:
            locked = lock_runs_later(tx, [id])
            message = None if known_topic is None else DirectMessage(tx, id, known_topic)
            run = locked().get(id)
            if run is None:
                raise RunNotFound.of(id)
            if next(tries) > 1 and tx.execute("find_sent_message", run=id, sent_by=call):
                return topics[-1]  # sent before the response got lost
            if run.kind is not None:
                raise GraphError(f"run {id} is a {run.kind}, which receives no messages: send them to one of its nodes")
            if run.state in FINAL_STATES:
                instead = ": retry it first" if run.state in ("failed", "cancelled") else ""
                raise RunFinished(f"run {id} is {run.state}; only unfinished runs receive messages{instead}")
            topic, payload, data = prepare(tx, run)
            topics.append(topic)
            message = message or DirectMessage(tx, id, topic)
            message.add(payload, call, is_waiting=run.state == "waiting")
            if by is not None:
                ((n, attempt),) = tx.execute("next_history_number", id=id)
                entry = msgspec.json.encode({"by": by, **data} if by else data).decode()
                tx.queue("add_history", rows=json_rows([history_row(id, n, "sent", attempt, data=entry)]))
            tx.counts_ready_runs = True
            return topic

        return self._write("client", work, connection)

    def fork(self, id: str, fork: str, from_step: str | None, args: str | None, by: str | None = None) -> None:
        """Create the run `fork` from the run `id`, with the checkpoints before a step, given by name or key.

        Without a step it starts from the beginning. A repeat after a lost response changes nothing. Payloads that the
        codec binds to their place are encoded again for the fork.
        """

        def work(tx: Tx) -> None:
            original = lock_runs(tx, [id]).get(id)
            if original is None:
                raise RunNotFound.of(id)
            _check_forkable(original)
            before: list[StepRow] = []
            if from_step is not None:
                rows = tx.execute("list_steps_to_fork", id=id)
                before = _steps_before([StepRow(*row) for row in rows], from_step, id)
            options = without_key(tx.execute("read_run_options", id=id)[0][0])
            packed = _fork_arguments(tx, original, fork, args)
            if not tx.execute("fork_run", id=id, fork=fork, args=packed, options=options):
                return
            tx.execute("copy_metadata", id=id, fork=fork)
            copied = _without_unjoined(before)
            for steps in _steps_with_values(tx, original, copied) if tx.payloads.binds else [copied]:
                copies = [_copy_of(tx, original, fork, step) for step in steps]
                for batch in in_batches(copies, lambda row: len(row["value"] or "")):
                    tx.execute("copy_checkpoints", id=id, rows=json_rows(batch))
            data = {"from": id, "from_step": from_step, "steps": len(copied)} | ({} if by is None else {"by": by})
            entry = history_row(fork, 1, "forked", 0, data=msgspec.json.encode(data).decode())
            tx.execute("add_history", rows=json_rows([entry]))

        self._transaction("client", work)


def _change_aged_priority(tx: Tx, id: str, priority: int) -> bool:
    """Change the priority of a run whose queue has `age_priority`; return False if it hasn't."""
    changed = change_priority(tx.execute("read_run_options", id=id)[0][0], priority)
    if changed is None:
        return False
    tx.execute("update_aged_priority", id=id, options=changed[0], change=changed[1])
    return True


def _check_changeable(run: LockedRun, changes: RunChanges, has_started: bool) -> None:
    if run.state in FINAL_STATES:
        raise RunFinished(f"run {run.id} is {run.state}: only a run that hasn't started can be changed")
    if run.kind is not None:
        raise GraphError(f"run {run.id} is a {run.kind}: change its nodes instead")
    if run.state == "blocked" and (changes.args is not None or changes.run_at is not None):
        raise GraphError(f"run {run.id} is blocked: its arguments and its time follow from what it depends on")
    only_time = (changes.priority, changes.args, changes.tags) == (None, None, None)
    if has_started and not (only_time and run.state in ("scheduled", "waiting")):
        raise RunStarted(
            f"run {run.id} has started ({run.state}): only the time of a scheduled retry or of a sleep can be changed"
        )
    if changes.args is not None and run.limits is not None and changes.limits is None:
        raise ConfigError(
            f"run {run.id} has limits, whose keys and costs may follow from its arguments: call run.update in the "
            "application, or cancel it and enqueue it again"
        )


def _reschedule_sleep(tx: Tx, run: LockedRun, due_at: int | None) -> None:
    """Change when the sleep of a waiting run ends, if that is all that it waits for."""
    waits = tx.execute("list_open_waits", run=run.id, generation=run.generation)
    others = [key_label(key) for key, kind in waits if kind != "sleep"]
    if others or len(waits) != 1:
        what = f"waits for {others[0]}" if others else f"has {len(waits)} sleeps at once"
        raise RunStarted(f"run {run.id} {what}: only the time of a single sleep can be changed")
    tx.execute("reschedule_wait", run=run.id, generation=run.generation, key=waits[0][0], due_at=due_at)


def check_restartable(id: str, kind: str | None, *, has_compensations: bool, limited: bool) -> None:
    """Raise unless a failed or cancelled run can start over with other arguments."""
    if kind is not None:
        raise GraphError(f"run {id} is a {kind}, which has no arguments: retry it without arguments")
    if has_compensations:
        raise ConfigError(f"run {id} has compensations left to run: retry it without new arguments first")
    if limited:
        raise ConfigError(
            f"run {id} has limits, whose keys and costs may follow from its arguments: call run.retry in the"
            " application once its code has stopped, or enqueue the task again"
        )


def refuse_changed_retry(id: str, state: str, *, is_started: bool) -> ConfigError | RunStarted:
    """Return the error for a retry of an unfinished run with other arguments."""
    text = f"run {id} is {state}: only a failed or cancelled run is retried with other arguments"
    return RunStarted(text) if is_started else ConfigError(f"{text}; change this one with update")


def _lock_run(tx: Tx, id: str) -> LockedRun:
    """Lock one run, after its parent."""
    found = lock_with_parents(tx, [id])
    if not found:
        raise RunNotFound.of(id)
    return found[id]


def refuse_done_retry(id: str, state: str, kind: str | None) -> RunFinished:
    """Return the error for a retry of a run that is done or skipped."""
    instead = ": fork it to run it again" if kind is None and state == "done" else ""
    return RunFinished(f"run {id} is {state}; only failed and cancelled runs can be retried{instead}")


def refuse_node_retry(id: str, node: str, graph: str) -> GraphError:
    """Return the error for a retry of a single node."""
    return GraphError(
        f"run {id} is node {node} of graph run {graph}: retry the graph; it runs what failed and what depends on it"
        " again, and keeps the rest"
    )


def _refuse_retry(tx: Tx, id: str) -> None:
    unique_name = tx.execute("read_unique_name", id=id)[0][0]
    holder = tx.execute("find_unique_holders", rows=json_rows([{"unique_name": unique_name}]))
    if not holder:
        raise Conflict(f"run {id} can't be retried: its unique name is changing hands; try again")
    raise KeyConflict(
        f"run {id} can't be retried: unfinished run {holder[0][0]} has its unique name", UUID(str(holder[0][0]))
    )


def _check_forkable(run: LockedRun) -> None:
    if run.kind is not None:
        raise GraphError(f"run {run.id} is a {run.kind}, which can't be forked: fork its graph")
    if run.node is not None and run.state in ("blocked", "skipped"):
        raise GraphError(f"run {run.id} is node {run.node} of a graph and {run.state}: it has no arguments yet")


def without_key(options: str | None) -> str | None:
    """Return the options of a run for its fork, which isn't what the idempotency key stands for."""
    if options is None or '"key"' not in options:
        return options
    kept = {name: value for name, value in msgspec.json.decode(options).items() if name != "key"}
    return msgspec.json.encode(kept).decode() if kept else None


def _steps_before(steps: list[StepRow], from_step: str, id: str) -> list[StepRow]:
    undone = {int(step.value or 0) for step in steps if step.kind == "undone"}
    for at, step in enumerate(steps):
        if from_step in (step.key, key_name(step.key), key_label(step.key)):
            return [before for before in steps[:at] if before.n not in undone]
    names = list(dict.fromkeys(key_label(step.key) for step in steps if step.kind not in _NOT_COPIED))
    known = f"it has {', '.join(names[:MAX_SHOWN_STEPS])}" if names else "it has recorded nothing yet"
    raise ConfigError(f"run {id} has not recorded a step {from_step!r}: {known}")


def _without_unjoined(steps: list[StepRow]) -> list[StepRow]:
    joined = {_joined_call(step.key) for step in steps if step.kind in ("join", "joined")}
    return [
        step
        for step in steps
        if step.kind not in _NOT_COPIED and not (step.kind in ("spawn", "map") and step.key not in joined)
    ]


def _joined_call(key: str) -> str:
    """Return the key of the call whose children a join waited for."""
    return key.rpartition("#")[0].removeprefix("$join:")


def _packed_message(tx: Tx, run: LockedRun, topic: str, payload: str) -> str:
    context = received_context(run.tenant, run.id, topic)
    return tx.payloads.pack(payload, context, f"the message on topic {topic!r}")


# Payloads of forks


def _fork_arguments(tx: Tx, original: LockedRun, fork: str, args: str | None) -> str | None:
    """Return the stored arguments of a fork; None if the database can copy those of the original."""
    source, target = (PayloadContext("args", original.tenant, run) for run in (original.id, fork))
    ((_, stored),) = tx.execute("read_arguments", rows=id_rows([original.id]))
    if is_bound(stored) and not tx.payloads.binds:
        raise PayloadUnreadable(CANT_COPY)  # its checkpoints are bound, too
    if args is not None:
        return tx.payloads.pack(args, target, f"the arguments of a fork of run {original.id}")
    return tx.payloads.repack(stored, source, target) if tx.payloads.binds else None


def _steps_with_values(tx: Tx, original: LockedRun, steps: Sequence[StepRow]) -> Iterator[list[StepRow]]:
    """Yield the steps with their values, page by page: all of them together may be very large."""
    by_number = {step.n: step for step in steps}
    after, last = 0, max(by_number, default=0)
    while after < last:
        page = tx.execute(
            "load_checkpoint_page", run=original.id, generation=original.generation, after=after, bytes=MAX_PAGE_BYTES
        )
        if not page:
            return
        after = page[-1][0]
        yield [by_number[n]._replace(value=value) for n, _, _, value, _ in page if n in by_number]


def _copy_of(tx: Tx, original: LockedRun, fork: str, step: StepRow) -> dict[str, Any]:
    row = {"run": fork, "generation": step.generation, "n": step.n, "key": step.key, "kind": step.kind, "value": None}
    if step.kind == "permit":
        row["value"] = without_times(step.value)
    elif step.kind == "join":
        row |= {"kind": "joined", "value": _copy_ends(tx, original, fork, step)}
    elif tx.payloads.binds and step.value is not None:
        row["value"] = _repacked_value(tx, original, fork, step, step.value)
    return {**row, "took": step.took, "at": step.at}


def _repacked_value(tx: Tx, original: LockedRun, fork: str, step: StepRow, value: str) -> str:
    """Return the value of a checkpoint as the fork stores it."""
    tenant, key = original.tenant, step.key
    source, target = (checkpoint_context(step.kind, tenant, run, key) for run in (original.id, fork))
    if source is not None and target is not None:
        return tx.payloads.repack(value, source, target)
    if step.kind == "failed":
        failure = decode(value, dict[str, Any])
        if failure.get("step_args") is not None:
            source, target = (PayloadContext("step_args", tenant, run, key) for run in (original.id, fork))
            failure["step_args"] = tx.payloads.repack(str(failure["step_args"]), source, target)
        return msgspec.json.encode(failure).decode()
    if step.kind == "joined":
        joined = decode(value, _CopiedEnds)
        source, target = (PayloadContext("step", tenant, run, key) for run in (original.id, fork))
        for end in joined.ends:
            end[2] = None if end[2] is None else tx.payloads.repack(end[2], source, target)
        return msgspec.json.encode(joined).decode()
    return value


class _CopiedEnds(msgspec.Struct):
    """How children ended, in a fork: id, state, packed result and error of each."""

    eager: bool
    ends: list[list[str | None]]


def _copy_ends(tx: Tx, original: LockedRun, fork: str, step: StepRow) -> str:
    """Encode how children ended; for an eager wait that a failure ended, only that failure."""
    call = format_spawn_key(original.generation, _joined_call(step.key))
    context = PayloadContext("step", original.tenant, fork, step.key)
    wanted = None if step.value is None else msgspec.json.decode(step.value)
    ends = [
        [str(id), state, None if result is None else tx.payloads.pack_copy(result, context), error]
        for id, _, state, result, error in read_child_results(tx, original.id, call)
        if wanted in (None, str(id))
    ]
    return msgspec.json.encode(_CopiedEnds(wanted is not None, ends)).decode()
