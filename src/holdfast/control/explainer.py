"""Explain why a run isn't running. Each reason has a code for programs and a text for people."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias
from uuid import UUID

import msgspec

from holdfast.control.budgets import describe_budget
from holdfast.control.events import clear_command, emit_command
from holdfast.control.graphs import complete_command
from holdfast.control.limits import decode_key, format_counter
from holdfast.control.steps import WaitInfo, unfinished_steps, waits_of
from holdfast.control.workers import WorkerControl, WorkerInfo
from holdfast.errors import RunNotFound
from holdfast.model.access import EVERYTHING, AccessScope
from holdfast.model.clock import MICROS_PER_SECOND, to_datetime
from holdfast.model.explanation import Reason
from holdfast.model.failure import error_from_json
from holdfast.model.labels import PREFERENCE_S, format_labels, meets
from holdfast.model.names import counted
from holdfast.model.run import FINAL_STATES, RunInfo
from holdfast.model.step_keys import key_label
from holdfast.store import Store
from holdfast.store.graph_progress import read_plan
from holdfast.store.limits import STEP_TARGET, CounterState, parse_counter_key, parse_permits
from holdfast.store.run_queries import GateRow, NodeRow, RunDetailRow, RunRow, WaitRow
from holdfast.store.run_reader import RunReader
from holdfast.store.waits import SET_ASIDE_EVENT

MAX_NAMES = 5
SlotTasks: TypeAlias = Literal["thread_tasks", "process_tasks"]
MAX_TRIES = 200
"""How many failed tries of steps are read."""
MAX_RECENT_EVENTS = 1000
"""How many events are searched for one of the same name that was emitted for another tenant."""


WAITS = ("event", "message", "topic", "ask", "children", "sleep", "gate", "limit", "budget")
"""The codes of reasons whose `data` may say since when the run has been waiting, as `since`."""


class Explanation(msgspec.Struct, frozen=True):
    """A run with the reasons why it isn't running, or the worker that runs it."""

    run: RunInfo[Any]
    reasons: list[Reason]


class Explainer:
    """Finds the reasons; changes nothing."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._reader = RunReader(store)

    def why(self, id: UUID, scope: AccessScope = EVERYTHING) -> Explanation:
        """Explain why a run isn't running. Runs out of scope aren't named."""
        row = self._reader.row(id)
        more = self._store.queries.details(str(id))
        if more is None:
            raise RunNotFound.of(id)
        return Explanation(self._reader.info_of(row), list(self._reasons(row, more, scope)))

    def _reasons(self, row: RunRow, more: RunDetailRow, scope: AccessScope) -> Iterator[Reason]:
        if row.state in FINAL_STATES:
            yield _ended(row)
            if row.kind == "graph" and row.state == "failed":
                nodes = self._store.queries.node_overview(row.id)
                failed = [node for node in nodes if node.state in ("failed", "cancelled")]
                yield from [_nodes_reason(failed, "failed")] if failed else []
            return
        if more.paused_at is not None:
            since = to_datetime(more.paused_at)
            then = "; its attempt continues to the end of its step" if row.is_running else ""
            text = f"paused since {_time(since)}{then}"
            yield Reason("paused", text, {"since": since}, f"holdfast resume --run {row.id}")
        if row.kind == "gate":
            yield from self._gate(row, more)
        elif row.kind == "graph":
            yield from self._graph(row, scope)
        elif row.is_running:
            yield self._running(row)
            yield from self._retrying(row)
        elif row.state == "scheduled":
            yield _scheduled(row, more)
            yield from [self._queued_reason(more)] if row.held == "queued" else []
        elif row.state == "blocked":
            yield self._blocked(row)
        elif row.state == "waiting":
            yield from self._waiting(row, scope)
        else:
            yield from self._ready(row, more, scope)

    # Running or waiting

    def _running(self, row: RunRow) -> Reason:
        workers = self._workers()
        worker = next((each for each in workers if each.session == row.session), None)
        since = None if row.claimed_at is None else to_datetime(row.claimed_at)
        who = row.session if worker is None else worker.name
        trouble = _recovery(workers) if worker is None or worker.state == "dead" else ""
        if worker is not None and worker.state == "unhealthy":
            trouble = f"; the worker is unhealthy: {worker.problem}"
        text = f"attempt {row.attempt} has been running on worker {who} since {_time(since)}{trouble}"
        return Reason("running", text, {"worker": row.session, "since": since, "attempt": row.attempt})

    def _retrying(self, row: RunRow) -> Iterator[Reason]:
        """Name the steps that the attempt tries again."""
        tries = self._reader.failed_tries(row, MAX_TRIES)
        if not tries or row.claimed_at is None:
            return
        recorded = self._store.queries.step_keys(row.id, row.claimed_at)
        steps = unfinished_steps(tries, recorded, to_datetime(row.claimed_at))
        now = to_datetime(self._store.stats.now())
        for step in steps[:MAX_NAMES]:
            last = step.last
            begins = "began" if last.next_at <= now else "begins"
            text = (
                f"step {step.label} failed ({last.error}); try {last.number + 1} of {last.of} {begins} at "
                f"{_time(last.next_at)}"
            )
            yield Reason("step", text, {"step": step.label, "key": step.key, "try": last.number, "at": last.next_at})
        if len(steps) > MAX_NAMES:
            labels = [step.label for step in steps]
            yield Reason("step", counted(len(steps) - MAX_NAMES, "more retried step"), {"steps": labels})

    def _awaited_event(self, wait: WaitInfo, scope: AccessScope) -> Reason:
        """Say which tenant's event is awaited, and whether it was emitted for another one."""
        reason = _awaited(wait)
        reason.data["tenant"] = wait.tenant
        if wait.pending == SET_ASIDE_EVENT:
            clear, emit = clear_command(wait.name or "", wait.tenant), emit_command(wait.name or "", wait.tenant)
            text = f"{reason.text}; it was emitted with a payload of another type, which was set aside"
            return Reason(reason.code, text, reason.data | {"set_aside": 1}, f"{clear}; {emit}")
        pruned = self._store.retention.events_pruned_before()
        if pruned is not None:
            before = to_datetime(pruned)
            text = f"{reason.text}; events emitted until {_time(before)} have been deleted: emit it again if it is one"
            reason = Reason(reason.code, text, reason.data | {"deleted_until": before})
        if scope.is_limited:  # Other tenants' events aren't shown to a token of one tenant.
            return reason
        named = self._store.events.named(wait.name or "", scan=MAX_RECENT_EVENTS)
        others = [each for each in named if each.emitted_at is not None and each.tenant != wait.tenant]
        if not others:
            return reason
        owners = ", ".join(
            "without a tenant" if each.tenant is None else f"for tenant {each.tenant}" for each in others[:MAX_NAMES]
        )
        command = emit_command(wait.name or "", wait.tenant)
        at = _time(to_datetime(others[0].emitted_at or 0))
        text = f"{reason.text}; it was emitted {owners} at {at}, which doesn't reach this run"
        return Reason(reason.code, text, reason.data | {"emitted_for": [each.tenant for each in others]}, command)

    def _waiting(self, row: RunRow, scope: AccessScope) -> Iterator[Reason]:
        rows = [wait for wait in self._store.queries.waits(row.id) if wait.outcome is None]
        messages = any(wait.kind == "message" for wait in rows)
        aside = Counter(topic for _, topic, *_ in self._store.queries.set_aside_messages(row.id)) if messages else {}
        for stored, wait in zip(rows, waits_of(rows), strict=True):
            if wait.kind == "limit":
                yield self._step_limit_reason(stored, wait, scope)
                continue
            if wait.kind == "budget":
                text, data = describe_budget(self._store, stored.target)
                until = "" if wait.due_at is None else f", or until its window ends at {_time(wait.due_at)}"
                yield Reason("budget", f"waiting for {text}{until}", data | {"since": wait.since, "until": wait.due_at})
                continue
            reason = self._awaited_event(wait, scope) if wait.kind == "event" else _awaited(wait)
            if wait.kind == "children":
                reason = self._with_children(row, stored, reason, scope)
                reason = next(self._open_gates(row.id, reason.data.get("children", [])), reason)
            if wait.kind in ("message", "topic") and (count := aside.get(stored.target)):
                text = f"{reason.text}; {counted(count, 'message')} set aside"
                reason = Reason(reason.code, text, {**reason.data, "set_aside": count}, f"holdfast show {row.id}")
            yield reason

    def _with_children(self, row: RunRow, wait: WaitRow, reason: Reason, scope: AccessScope) -> Reason:
        """Name the children that a run waits for."""
        children = self._store.queries.unfinished_children(row.id, wait.target or "", MAX_NAMES)
        found = [
            {"run": str(id), "task": task, "state": state}
            for id, task, state, tenant in children
            if scope.covers_tenant(tenant)
        ]
        if not found:
            return reason
        names = ", ".join(f"{child['run']} ({child['state']})" for child in found)
        left = (wait.pending or 0) - len(found)
        text = f"{reason.text}: {names}" + (f" and {left:,} more" if left > 0 else "")
        return Reason(reason.code, text, {**reason.data, "children": found})

    def _gate(self, row: RunRow, more: RunDetailRow) -> Iterator[Reason]:
        if row.state == "blocked":
            yield self._blocked(row)
            return
        until = "" if more.deadline is None else f", until {_time(to_datetime(more.deadline))}"
        assert row.parent is not None
        gate = next(each for each in self._store.queries.gates(row.parent) if str(each.id) == row.id)
        data = {"graph": row.parent, "gate": row.node, "id": row.id, "since": to_datetime(gate.opened_at)}
        yield Reason("gate", f"waiting for approval{until}", data, _complete_command(gate))

    def _open_gates(self, id: str, children: list[dict[str, Any]] | None = None) -> Iterator[Reason]:
        """Name the open gates of a graph; with `children`, the gate of a durable function that is its only child."""
        for gate in self._store.queries.gates(id):
            if gate.state != "waiting":
                continue
            if children is None or [(each["run"], each["task"]) for each in children] == [(str(gate.graph), gate.node)]:
                data = {
                    "graph": str(gate.graph),
                    "gate": gate.node,
                    "id": str(gate.id),
                    "since": to_datetime(gate.opened_at),
                }
                yield Reason("gate", f"waiting for approval of gate {gate.node}", data, _complete_command(gate))

    def _graph(self, row: RunRow, scope: AccessScope) -> Iterator[Reason]:
        nodes = self._store.queries.node_overview(row.id)
        yield from self._open_gates(row.id)
        active = [node for node in nodes if node.state in ("ready", "scheduled", "running", "undoing")]
        for node in active[:MAX_NAMES]:
            reasons = self.why(UUID(str(node.id)), scope).reasons
            yield from (_of_node(str(node.node), str(node.id), reason) for reason in reasons)
        if len(active) > MAX_NAMES:
            names = [str(node.node) for node in active]
            yield Reason("nodes", counted(len(names) - MAX_NAMES, "more active node"), {"nodes": names})
        waiting = [node for node in nodes if node.state == "waiting" and node.kind is None]
        if waiting:
            yield _nodes_reason(waiting, "is waiting" if len(waiting) == 1 else "are waiting")

    def _blocked(self, row: RunRow) -> Reason:
        if row.node is None:
            text = f"the map of its parent, run {row.parent}, has reached its concurrency limit"
            return Reason("concurrency", text, {"parent": row.parent})
        assert row.parent is not None
        left = {
            str(name): state
            for name, state in self._store.queries.dependencies(row.parent, row.id)
            if state not in FINAL_STATES
        }
        if not left:
            return Reason("next", f"its dependencies in graph run {row.parent} have just finished")
        names = ", ".join(f"{name} ({state})" for name, state in list(left.items())[:MAX_NAMES])
        others = f" and {len(left) - MAX_NAMES:,} more" if len(left) > MAX_NAMES else ""
        return Reason("nodes", f"waiting for {names}{others} in graph run {row.parent}", {"nodes": left})

    # Ready

    def _ready(self, row: RunRow, more: RunDetailRow, scope: AccessScope) -> Iterator[Reason]:
        if row.held == "full" and more.parked_on is not None:
            costs = (permit.cost for permit in parse_permits(more.limits) if permit.counter == more.parked_on)
            yield self._limit_reason(more.parked_on, scope, next(costs, 1))
        elif row.held == "quiescing":
            worker = f"worker {row.session}" if row.session else "the previous worker"
            yield Reason("quiescing", f"{worker} hasn't released it yet", {"worker": row.session})
        elif row.held == "queued":
            yield self._queued_reason(more)
        elif row.held == "isolated":
            text = (
                "isolated: its last worker processes died while other runs were running in them; waiting for a worker"
                " without other runs, to find out which run kills its process"
            )
            yield Reason("isolated", text)
        elif row.held is not None and row.held != "paused" and not row.held.startswith("tenant:"):
            text = f"held for the unknown reason {row.held!r}: cancel it and enqueue it again"
            yield Reason("held", text, {"held": row.held})
        pauses = list(self._pauses(row))
        yield from pauses
        if row.held is None and more.paused_at is None and not pauses:
            yield self._unclaimed(row)

    def _pauses(self, row: RunRow) -> Iterator[Reason]:
        """Name the pauses of its queue, its task and its tenant."""
        queue = next((each for each in self._store.queues.list_all() if each.name == row.queue), None)
        if queue is not None and queue.paused:
            command = f"holdfast resume {shlex.quote(row.queue)}"
            yield Reason("paused", f"queue {row.queue} is paused", {"queue": row.queue}, command)
        for pause in self._store.pauses.list_all():
            if pause.name == (row.task if pause.kind == "task" else row.tenant):
                by = f" by {pause.paused_by}" if pause.paused_by else ""
                command = f"holdfast resume --{pause.kind} {shlex.quote(pause.name)}"
                data = {pause.kind: pause.name, "by": pause.paused_by}
                yield Reason("paused", f"{pause.kind} {pause.name} is paused{by}", data, command)

    def _queued_reason(self, more: RunDetailRow) -> Reason:
        holder = self._store.queries.unique_holder((more.unique_name or "").removesuffix("+"))
        what = "the run that has its unique name" if holder is None else f"run {holder}, which has its unique name"
        return Reason("queued", f"waiting for the end of {what}", {"run": holder})

    def _limit_reason(self, counter_id: str, scope: AccessScope, cost: int = 1) -> Reason:
        name, key = parse_counter_key(counter_id)
        counter = self._store.limits.counter(counter_id)
        by_run = {
            holder.id: {"run": str(holder.id), "task": holder.task, "worker": holder.session}
            for holder in self._store.limits.holders(counter_id, MAX_NAMES)
            if scope.covers_tenant(holder.tenant) and not scope.limits_lanes
        }
        holders = list(by_run.values())
        data = {"limit": name, "key": decode_key(key), "holders": holders}
        return Reason("limit", f"limit {format_counter(counter_id)} {_limit_text(counter, holders, cost)}", data)

    def _step_limit_reason(self, row: WaitRow, wait: WaitInfo, scope: AccessScope) -> Reason:
        """Say which step waits for which limit."""
        step, cost = key_label(row.key.removeprefix("$limit:")), row.pending or 1
        reason = self._limit_reason((row.target or "").removeprefix(STEP_TARGET), scope, cost)
        data = {**reason.data, "step": step, "cost": cost, "since": wait.since}
        return Reason("limit", f"step {step} is waiting: {reason.text}", data)

    def _unclaimed(self, row: RunRow) -> Reason:
        alive = [worker for worker in self._workers() if worker.state != "dead"]
        if not alive:
            return Reason("no_worker", "no worker is running; start one with `holdfast worker`")
        serving = [worker for worker in alive if worker.queues is None or row.queue in worker.queues]
        if not serving:
            text = f"no worker serves queue {row.queue}; running: {_names(alive)}"
            return Reason("no_queue", text, {"queue": row.queue, "workers": [worker.name for worker in alive]})
        eligible = [worker for worker in serving if worker.tasks is None or row.task in worker.tasks]
        if not eligible:
            text = f"no worker has the code of task {row.task}; running: {_names(serving)}"
            return Reason("unknown_task", text, {"task": row.task, "workers": [worker.name for worker in serving]})
        with_labels = [worker for worker in eligible if worker.has_labels_for(row.task)]
        if not with_labels:
            requires = eligible[0].requires[row.task]
            text = f"no worker has the labels that task {row.task} requires, {format_labels(requires)}; running: "
            names = [worker.name for worker in eligible]
            return Reason("no_label", text + _names(eligible), {"requires": dict(requires), "workers": names})
        eligible = with_labels
        healthy = [worker for worker in eligible if worker.state != "unhealthy"]
        if not healthy:
            problems = "; ".join(f"{worker.name}: {worker.problem}" for worker in eligible[:MAX_NAMES])
            text = f"no eligible worker is healthy: {problems}"
            return Reason("unhealthy", text, {"workers": [worker.name for worker in eligible]})
        eligible = healthy
        busy = self._busy(eligible, row.queue)
        others = [worker for worker in eligible if worker not in busy]
        threads = self._without_slot(others, {it.session: it.thread_slots for it in others}, row.task, "thread_tasks")
        in_processes = {it.session: it.process_slots for it in others}
        processes = self._without_slot(others, in_processes, row.task, "process_tasks")
        if len(busy) + len(threads) + len(processes) == len(eligible):
            of_queue = f" of queue {row.queue}" if any(row.queue in worker.queue_slots for worker in busy) else ""
            taken = [f"all slots{of_queue} of {_names(busy)}"] * bool(busy)
            taken += [f"all threads of {_names(threads)}"] * bool(threads)
            taken += [f"all process slots of {_names(processes)}"] * bool(processes)
            names = [each.name for each in (*busy, *threads, *processes)]
            data = {"workers": names, "thread": bool(threads), "process": bool(processes)}
            return Reason("busy", f"{' and '.join(taken)} are in use", data)
        return self._left_reason(row, with_labels) or Reason("next", f"ready to be claimed by {_names(eligible)}")

    def _left_reason(self, row: RunRow, workers: list[WorkerInfo]) -> Reason | None:
        """Name the workers with the labels that the task of a run prefers, while all others leave the run to them."""
        prefers: Mapping[str, str] = next(
            (labels for worker in workers if (labels := worker.prefers.get(row.task))), {}
        )
        preferred = [worker for worker in workers if meets(worker.labels, prefers)]
        others = [worker for worker in workers if worker not in preferred]
        if not preferred or not others or not all(row.task in worker.prefers for worker in others):
            return None
        lane = self._store.lanes.find(row.queue, row.task)
        if lane is None or self._store.claims.waiting_lanes([lane], int(PREFERENCE_S * MICROS_PER_SECOND), "read"):
            return None
        text = (
            f"left to {_names(preferred)} with the labels that task {row.task} prefers, {format_labels(prefers)};"
            f" {_names(others)} may claim it once it has been ready for {PREFERENCE_S:g} s"
        )
        names = {"workers": [worker.name for worker in preferred], "others": [worker.name for worker in others]}
        return Reason("preferred", text, {"prefers": dict(prefers), **names})

    def _busy(self, workers: list[WorkerInfo], queue: str) -> list[WorkerInfo]:
        """Return the workers without a free slot for runs of a queue."""
        with_pools = [worker.session for worker in workers if worker.queue_slots]
        claimed = self._store.sessions.count_claimed(with_pools) if with_pools else []
        return [worker for worker in workers if _is_busy(worker, queue, claimed)]

    def _without_slot(
        self, workers: list[WorkerInfo], slots: dict[str, int | None], task: str, tasks: SlotTasks
    ) -> list[WorkerInfo]:
        """Return the workers that run the task in threads or processes, as those in `tasks`, and have no free one."""
        by_session = {each.session: each for each in workers if task in getattr(each, tasks)}
        if not by_session:
            return []
        used: Counter[str] = Counter()
        for session, _, held, number in self._store.sessions.count_claimed(list(by_session)):
            used[session] += number if held in getattr(by_session[session], tasks) else 0
        return [each for id, each in by_session.items() if (limit := slots[id]) is not None and used[id] >= limit]

    def _workers(self) -> list[WorkerInfo]:
        return WorkerControl(self._store).list()


def _is_busy(worker: WorkerInfo, queue: str, claimed: list[tuple[str, str, str, int]]) -> bool:
    """Return whether all slots are in use that runs of a queue may have. `claimed`: runs by session, queue and task."""
    if worker.concurrency is None:
        return False
    if not worker.queue_slots:
        return worker.runs >= worker.concurrency
    own = worker.queue_slots
    slots = own[queue] if queue in own else worker.concurrency - sum(own.values())
    used = sum(
        number
        for session, other, _, number in claimed
        if session == worker.session and (other == queue if queue in own else other not in own)
    )
    return used >= slots


def _recovery(workers: list[WorkerInfo]) -> str:
    """Say what happens to a run whose worker is dead."""
    if any(worker.state != "dead" for worker in workers):
        return "; its lease has expired, another worker will recover the run"
    return "; its lease has expired and no worker is running to recover the run; start one with `holdfast worker`"


def _complete_command(gate: GateRow) -> str:
    return complete_command(gate.graph, gate.node, typed=read_plan(gate.plan).get("schema") is not None)


def _of_node(node: str, id: str, reason: Reason) -> Reason:
    data = {"node": node, "run": id, **reason.data}
    return Reason(reason.code, f"node {node} ({id}): {reason.text}", data, reason.command)


def _nodes_reason(nodes: Sequence[NodeRow], what: str) -> Reason:
    """Name nodes with the ids of their runs."""
    shown = [f"{node.node} ({node.id})" for node in nodes]
    runs = {str(node.node): str(node.id) for node in nodes}
    return Reason("nodes", f"{_list_names('node', shown)} {what}", {"nodes": list(runs), "runs": runs})


def _ended(row: RunRow) -> Reason:
    at = None if row.finished_at is None else to_datetime(row.finished_at)
    error = "" if row.error is None else f": {error_from_json(row.error)}"
    return Reason("ended", f"finished: {row.state} at {_time(at)}{error}", {"state": row.state, "at": at})


def _scheduled(row: RunRow, more: RunDetailRow) -> Reason:
    at = None if row.due_at is None else to_datetime(row.due_at)
    if more.debounce is not None and row.started_at is None:
        return Reason("debounce", f"debounced: it starts at {_time(at)} unless another call postpones it", {"at": at})
    if row.error is not None:
        text = f"attempt {row.attempt} failed ({error_from_json(row.error)}); the next attempt starts at {_time(at)}"
        return Reason("retry", text, {"at": at, "attempt": row.attempt})
    return Reason("time", f"scheduled for {_time(at)}", {"at": at})


def _awaited(wait: WaitInfo) -> Reason:
    until = "" if wait.due_at is None else f", until {_time(wait.due_at)}"
    what = {
        "sleep": "sleeping" + (f" ({wait.name})" if wait.name else ""),
        "event": f"waiting for event {wait.name}" + ("" if wait.tenant is None else f" of tenant {wait.tenant}"),
        "message": f"waiting for a message on topic {wait.name}",
        "topic": f"waiting for a message on topic {wait.name}",
        "ask": "waiting for an ask" if wait.name is None else f"waiting for ask {wait.name}",
        "children": f"waiting for {counted(wait.pending or 0, 'child', 'children')} ({wait.name})",
    }[wait.kind]
    data = {"name": wait.name, "since": wait.since, "until": wait.due_at, "pending": wait.pending}
    return Reason(wait.kind, what + until, data)


def _limit_text(counter: CounterState | None, holders: list[dict[str, Any]], cost: int) -> str:
    if counter is not None and counter.concurrency is not None and counter.used >= counter.concurrency:
        runs = ", ".join(holder["run"] for holder in holders)
        held_by = runs or "other runs"
        if counter.used == counter.concurrency == 1:
            return f"is full: its only permit is held by {held_by}"
        return f"is full: {counter.used} of {counted(counter.concurrency, 'permit')} are held by {held_by}"
    if counter is None or counter.rate is None:
        return "was full and has room again; the run will be released soon"
    starts, seconds = counter.rate.starts, counter.rate.period / MICROS_PER_SECOND
    if cost > starts:
        return f"allows {starts:,} per {seconds:g} s, and this costs {cost:,}: raise the limit, or cancel the run"
    if cost > 1 and counter.started + cost > starts:
        return f"is full: {counter.started:,} of {starts:,} used in the last {seconds:g} s, and this costs {cost:,}"
    if counter.started >= starts:
        return f"is full: {counter.started} of {counted(starts, 'start')} used in the last {seconds:g} s"
    return "was full and has room again; the run will be released soon"


def _time(at: datetime | None) -> str:
    return "an unknown time" if at is None else f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def _names(workers: list[WorkerInfo]) -> str:
    return _list_names("worker", [worker.name for worker in workers])


def _list_names(noun: str, names: list[str]) -> str:
    shown = ", ".join(names[:MAX_NAMES])
    return f"{noun}{'s' if len(names) > 1 else ''} {shown}" + (
        f" and {len(names) - MAX_NAMES:,} more" if len(names) > MAX_NAMES else ""
    )
