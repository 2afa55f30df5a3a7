"""Resolve waits: write the outcome into the wait, and make the waiting run ready.

A run that is running right now isn't touched: its worker polls its waits and checks them before it suspends the run.
Every function runs inside the transaction of its caller, which has locked the events and runs concerned.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple

import msgspec

from holdfast.database import Row
from holdfast.database.caller_connection import CallerConnection
from holdfast.model.asks import ANY_ASK, asked_name
from holdfast.model.ids import new_id
from holdfast.model.payloads import PayloadContext
from holdfast.model.topics import parse_inbox
from holdfast.store.commands import RunToken, WaitOutcome
from holdfast.store.module import StoreModule, Tx, history_row, id_rows, in_batches, json_rows
from holdfast.store.run_tree import lock_runs
from holdfast.store.typed_rows import RowReader, as_text

MAX_WOKEN_RUNS = 500
MAX_LISTED_ROWS = 10_000
"""How many waits or events `list_awaited_events` and `list_emitted_events` read."""
MAX_SCANNED_EVENTS = 100_000
MAX_NAMED_EVENTS = 100
SET_ASIDE = "aside:"
RESENT = "resent:"
"""How the receiver of a message begins that was set aside, and that was sent again after that."""


class EventWaiter(NamedTuple):
    """An unresolved wait for an event."""

    run: str
    generation: int
    key: str
    target: str


class AwaitedRow(NamedTuple):
    """An event that runs wait for, and the first of them."""

    name: str
    tenant: str | None
    waiters: int
    since: int
    run: str
    task: str


class EmittedRow(NamedTuple):
    """An event that was emitted. `payload_bytes`: the stored size of its payload."""

    target: str
    name: str
    tenant: str | None
    emitted_at: int
    payload_bytes: int


class NamedEventRow(NamedTuple):
    """An event, awaited or emitted. `payload_bytes`: the stored size of its payload."""

    target: str
    tenant: str | None
    emitted_at: int | None
    payload_bytes: int | None


class WaiterRow(NamedTuple):
    """A run that waits for an event."""

    target: str
    run: str
    task: str
    since: int
    due_at: int | None


_AWAITED_ROWS = RowReader(AwaitedRow)
_EMITTED_ROWS = RowReader(EmittedRow)
_NAMED_ROWS = RowReader(NamedEventRow)
_WAITER_ROWS = RowReader(WaiterRow)


class EventStore(StoreModule):
    """Events: facts that any run may wait for by name. The first emit of a name wins and is kept."""

    def emit(
        self,
        tenant: str | None,
        name: str,
        payload: str,
        trace: str | None = None,
        connection: CallerConnection | None = None,
    ) -> bool:
        """Emit an event; False if it had been emitted before, which changes nothing.

        Wakes the first waiters; timers wake any others. `trace`: the trace context of the caller. `connection`: whose
        transaction it is part of.
        """
        target = event_target(tenant, name)
        emitter = str(new_id())
        payload = self._context.payloads.pack(payload, event_context(target), f"the payload of event {name!r}")

        def work(tx: Tx) -> bool:
            found: list[Callable[[], tuple[list[EventWaiter], bool]]] = []
            if lock_events(tx, [(tenant, name)], lambda: found.append(queue_waiters(tx, [target]))):
                # Emitted by this very call, if the response to its first try got lost.
                return bool(tx.execute("read_emitter", target=target)[0][0] == emitter)
            waiters, more = found[-1]()
            runs = lock_runs(tx, {waiter.run for waiter in waiters})
            traces = {target: trace}
            woken = emit_locked_events(tx, {target: payload}, waiters, more=more, by=emitter, traces=traces)
            wake_runs(tx, [run for run in woken if run in runs and runs[run].state == "waiting"])
            tx.counts_ready_runs = True
            return True

        return self._write("client", work, connection)

    def clear(self, tenant: str | None, name: str) -> bool:
        """Forget that an event was emitted, so that it can be emitted again; False if it wasn't.

        Runs that received it keep it. Runs that wait for it and weren't woken yet receive it first, but for those that
        have set it aside: they wait for the next emit.
        """
        target = event_target(tenant, name)
        tries = count()

        def work(tx: Tx) -> bool | None:
            payloads = lock_events(tx, [(tenant, name)])
            if not payloads:
                return next(tries) > 0  # by this very call, if the response to its first try got lost
            next(tries)
            waiters, more = find_waiters(tx, [target])
            lock_runs(tx, {waiter.run for waiter in waiters})
            wake_runs(tx, resolve_event_waits(tx, payloads, waiters))
            if more:
                return None
            lock_runs(tx, {str(run) for (run,) in tx.execute("find_event_set_aside", target=target)})
            tx.execute("await_next_emit", target=target)
            tx.execute("forget_emit", target=target)
            return True

        while True:
            done = self._transaction("client", work)
            if done is not None:
                return done

    # For operators

    def awaited(self, tenant: str | None, size: int) -> tuple[list[AwaitedRow], bool]:
        """Return events that runs wait for, the longest first, and whether only some waits were read."""
        rows = self._execute("read", "list_awaited_events", tenant=tenant, size=size)
        return _AWAITED_ROWS.read_all((*row[:4], str(row[4]), row[5]) for row in rows), _is_partial(rows)

    def emitted(self, tenant: str | None, size: int) -> tuple[list[EmittedRow], bool]:
        """Return events that were emitted, the newest first, and whether only some events were read."""
        rows = self._execute("read", "list_emitted_events", tenant=tenant, size=size)
        return _EMITTED_ROWS.read_all(row[:5] for row in rows), _is_partial(rows)

    def named(self, name: str, tenant: str | None = None, scan: int = MAX_SCANNED_EVENTS) -> list[NamedEventRow]:
        """Return events of a name, of all tenants or one, among those that were emitted or awaited last."""
        rows = self._execute("read", "find_events_named", name=name, tenant=tenant, scan=scan, size=MAX_NAMED_EVENTS)
        return _NAMED_ROWS.read_all(rows)

    def payloads(self, targets: Iterable[str]) -> dict[str, str | None]:
        """Return the stored payloads of events."""
        rows = json_rows({"target": target} for target in sorted(targets))
        found = self._execute("read", "read_event_payloads", rows=rows)
        return {target: as_text(payload) for target, payload in found}

    def waiters(self, targets: Iterable[str], size: int) -> list[WaiterRow]:
        """Return the first runs that wait for events."""
        rows = json_rows({"target": target} for target in sorted(targets))
        found = self._execute("read", "list_event_waiters", rows=rows, size=size)
        return _WAITER_ROWS.read_all((target, str(run), *rest) for target, run, *rest in found)

    def trace_context(self, target: str) -> str | None:
        """Return the trace context of an event's emitter, if one is stored."""
        found = self._execute("client", "read_event_trace", target=target)
        return found[0][0] if found else None


def event_target(tenant: str | None, name: str) -> str:
    """Return how waits and events name an event of a tenant."""
    return msgspec.json.encode([tenant, name]).decode()


def parse_event_target(target: str | None) -> tuple[str | None, str] | None:
    """Return the tenant and name of an event; None if the stored target isn't one."""
    try:
        tenant, name = msgspec.json.decode(target or "", type=tuple[str | None, str])
    except msgspec.DecodeError:
        return None
    return tenant, name


def event_context(target: str) -> PayloadContext:
    """Return the place of an event's payload. It stays the same in runs that have received the event."""
    tenant, name = parse_event_target(target) or (None, target)
    return PayloadContext("event", tenant, name=name)


def _is_partial(rows: Sequence[Row]) -> bool:
    return bool(rows) and int(rows[0][-1]) >= MAX_LISTED_ROWS


def encode_outcome(kind: str, outcome: WaitOutcome) -> tuple[str, str | None]:
    """Return the checkpoint's kind and value for the outcome of a wait of this kind."""
    if kind == "sleep":
        return "slept", None
    if kind == "budget":  # there is room, because the budget was raised or its period has ended
        return ("exceeded", outcome.value) if outcome.kind == "exceeded" else ("budget", None)
    if outcome.kind == "due":
        return "timeout", None
    if kind == "children":
        return "join", None if outcome.value is None else msgspec.json.encode(outcome.value).decode()
    return kind, outcome.value


def decode_outcome(kind: str, value: str | None) -> WaitOutcome:
    """Return the outcome of a wait from its checkpoint's kind and value."""
    if kind in ("slept", "timeout"):
        return WaitOutcome("due", None)
    if kind == "join":
        return WaitOutcome("children", None) if value is None else WaitOutcome("failed", msgspec.json.decode(value))
    return WaitOutcome(kind, value)


def lock_events(
    tx: Tx, events: Iterable[tuple[str | None, str]], read_more: Callable[[], object] = lambda: None
) -> dict[str, str]:
    """Lock events by tenant and name, emitted or not; return the payloads of those that were emitted.

    `read_more` queues reads under these locks, which share the round trip.
    """
    named = {event_target(tenant, name): (tenant, name) for tenant, name in events}
    rows = json_rows(
        {"target": target, "tenant": tenant, "name": name} for target, (tenant, name) in sorted(named.items())
    )
    while True:
        tx.queue("create_event_rows", rows=rows)
        locked, emitted = tx.queue("lock_events", rows=rows), tx.queue("read_emitted", rows=rows)
        read_more()
        if len(locked()) == len(named):  # otherwise one was pruned in between
            return dict(emitted())


def find_waiters(tx: Tx, targets: Collection[str]) -> tuple[list[EventWaiter], bool]:
    """Return up to `MAX_WOKEN_RUNS` waiters of events, and whether there are more."""
    return queue_waiters(tx, targets)() if targets else ([], False)


def queue_waiters(tx: Tx, targets: Collection[str]) -> Callable[[], tuple[list[EventWaiter], bool]]:
    """Queue the read of waiters; return a function that returns what `find_waiters` does."""
    rows = tx.queue("find_event_waiters", rows=json_rows({"target": target} for target in sorted(targets)))

    def waiters() -> tuple[list[EventWaiter], bool]:
        found = [EventWaiter(str(run), generation, key, target) for run, generation, key, target in rows()]
        return found[:MAX_WOKEN_RUNS], len(found) > MAX_WOKEN_RUNS

    return waiters


def emit_locked_events(
    tx: Tx,
    payloads: Mapping[str, str],
    waiters: Iterable[EventWaiter],
    *,
    more: bool,
    traces: Mapping[str, str | None],
    by: str | None = None,
) -> set[str]:
    """Emit locked events for the first time and resolve their waiters; return the runs to wake."""
    rows = [
        {"target": target, "payload": payload, "more": int(more), "emitted_by": by, "trace": traces[target]}
        for target, payload in payloads.items()
    ]
    tx.queue("emit_events", rows=json_rows(rows))
    return resolve_event_waits(tx, payloads, waiters)


def resolve_event_waits(tx: Tx, payloads: Mapping[str, str], waiters: Iterable[EventWaiter]) -> set[str]:
    """Give waiters, whose runs are locked, the payloads of their events; return the runs that may have to be woken."""
    rows: list[dict[str, Any]] = [
        {
            "run": waiter.run, "generation": waiter.generation, "key": waiter.key, "outcome": "event",
            "value": payloads[waiter.target],
        }
        for waiter in waiters
        if waiter.target in payloads
    ]  # fmt: skip
    for batch in in_batches(rows, lambda row: len(row["value"])):
        resolve_waits(tx, batch)
    return {row["run"] for row in rows}


def resolve_waits(tx: Tx, waits: Sequence[dict[str, Any]]) -> None:
    """Resolve open waits of locked runs: run, generation, key, outcome and value of each."""
    tx.resolved_waits.append((waits, tx.queue("resolve_waits", rows=json_rows(waits))))


def receiver_key(generation: int, key: str) -> str:
    """Return how messages name the wait that took them. A restarted run registers the same waits again."""
    return f"{generation}:{key}"


def take_message(tx: Tx, run: str, topic: str | None, by: str) -> str | None:
    """Take the first unread message of a topic for this receiver; return its payload, None without one."""
    return take_first(tx, run, queue_unread(tx, run, topic)(), by)


def queue_unread(tx: Tx, run: str, topic: str | None) -> Callable[[], Sequence[Row]]:
    """Queue the read of the first unread message of a topic."""
    if topic == ANY_ASK:
        return tx.queue("first_unread_ask", run=run)
    return tx.queue("first_unread_message", run=run, topic=topic)


def take_first(tx: Tx, run: str, unread: Sequence[Row], by: str) -> str | None:
    """Take the message that `queue_unread` has read, if any, for this receiver; return its payload."""
    if not unread:
        return None
    n, payload = unread[0]
    tx.queue("take_messages", rows=json_rows([{"run": run, "n": n, "taken_by": by}]))
    return str(payload)


def set_message_aside(tx: Tx, token: RunToken, key: str, error: str) -> None:
    """Set aside the message that a wait of a locked run has received, and supersede the wait's outcome."""
    receiver = receiver_key(token.generation, key)
    found = tx.execute("set_message_aside", run=token.run, taken_by=receiver, set_aside=SET_ASIDE + receiver)
    tx.execute("supersede_outcome", run=token.run, generation=token.generation, key=key)
    for number, topic in found:
        inbox = parse_inbox(topic)
        name = topic if inbox is None else inbox.pattern
        _add_set_aside(tx, token.run, {"message": number, "topic": name, "reason": error})


def set_event_aside(tx: Tx, token: RunToken, key: str, event: str, error: str) -> None:
    """Supersede the outcome of a locked run's wait for an event, unless that was done before."""
    if tx.execute("supersede_outcome", run=token.run, generation=token.generation, key=key):
        _add_set_aside(tx, token.run, {"event": event, "reason": error})


def _add_set_aside(tx: Tx, run: str, data: dict[str, Any]) -> None:
    ((n, attempt),) = tx.execute("next_history_number", id=run)
    entry = history_row(run, n, "set_aside", attempt, data=msgspec.json.encode(data).decode())
    tx.execute("add_history", rows=json_rows([entry]))


def deliver_message(tx: Tx, run: str, topic: str, *, is_waiting: bool) -> None:
    """Deliver the first unread message of a topic to the first open wait for one, if both exist.

    An ask goes to a wait for its name, or else to one for asks of all names. `is_waiting`: whether the locked run
    waits, so that it has to be woken.
    """
    waiting, unread = _first_receiver(_queue_receivers(tx, run, topic))
    if waiting is None:
        return
    generation, key = waiting
    payload = take_first(tx, run, unread, receiver_key(generation, key))
    if payload is not None:
        _resolve_by_message(tx, run, waiting, payload, is_waiting=is_waiting)


def _queue_receivers(tx: Tx, run: str, topic: str) -> list[tuple[Callable[[], Sequence[Row]], ...]]:
    """Queue the reads of who may receive a message of a topic, and of the message that is first for each."""
    topics = [topic, ANY_ASK] if asked_name(topic) else [topic]
    return [(tx.queue("first_waiting_receiver", run=run, topic=each), queue_unread(tx, run, each)) for each in topics]


def _first_receiver(found: Iterable[tuple[Callable[[], Sequence[Row]], ...]]) -> tuple[Row | None, Sequence[Row]]:
    """Return generation and key of the wait that receives the next message, and the unread message for it, if any."""
    return next(((rows[0], unread()) for receivers, unread in found if (rows := receivers())), (None, ()))


def _resolve_by_message(tx: Tx, run: str, waiting: Row, payload: str, *, is_waiting: bool) -> None:
    generation, key = waiting
    resolved = {"run": run, "generation": generation, "key": key, "outcome": "message", "value": payload}
    resolve_waits(tx, [resolved])
    if is_waiting:
        wake_runs(tx, [run])


class DirectMessage:
    """A message or an ask to a locked run, which receives it at once if a wait is open for it.

    Created with the lock of the run, so that the read of the wait shares its round trip.
    """

    def __init__(self, tx: Tx, run: str, topic: str) -> None:
        self._tx = tx
        self._run = run
        self._topic = topic
        self._found = _queue_receivers(tx, run, topic)

    def add(self, payload: str, sent_by: str, ask: str | None = None, *, is_waiting: bool) -> None:
        """Add it behind the others. `ask`: the key of an ask. `is_waiting`: whether the run waits."""
        tx, run = self._tx, self._run
        waiting, unread = _first_receiver(self._found)
        is_first = waiting is not None and not unread
        taken_by = receiver_key(*waiting) if waiting is not None and is_first else None
        tx.queue(
            "add_message", run=run, topic=self._topic, payload=payload, sent_by=sent_by, ask=ask, taken_by=taken_by
        )
        if waiting is not None and is_first:
            _resolve_by_message(tx, run, waiting, payload, is_waiting=is_waiting)
        elif waiting is not None:
            deliver_message(tx, run, self._topic, is_waiting=is_waiting)


def wake_runs(tx: Tx, runs: Collection[str]) -> None:
    """Make those of these runs ready that wait and have a resolved wait. All of them count as ready."""
    if runs:
        tx.queue("wake_runs", rows=id_rows(sorted(runs)))
        tx.ready_runs += len(runs)


SET_ASIDE_EVENT = 1
"""What `pending` of a wait for an event is while the event is emitted with a payload that the run has set aside."""
