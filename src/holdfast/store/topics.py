"""Topics: publish messages to subscribing tasks and to functions that wait for them.

A message creates a run of each task that subscribes, and is appended to the messages of each function that has called
`ctx.next` for it, all in the publisher's transaction. Subscriptions are declared by code and reconciled like schedules
(`schedule_definitions.py`), so a publisher needs none of the subscribers' code. One that disappears from the code keeps
receiving for `SHORT_ABSENCE_MICROS`, so that no message is lost while its workers restart.

Lock order: the message's key, then the functions that receive it. Subscriptions aren't locked: a message goes to those
that are stored when it is published.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import count
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from holdfast.database.caller_connection import CallerConnection
from holdfast.model.ids import new_id_text
from holdfast.model.payloads import PayloadContext
from holdfast.model.run import FINAL_STATES, TOPIC_QUEUE
from holdfast.model.topics import NewMessage, Published, Topic, message_context, values_digest
from holdfast.policy.topic_rules import field_values, selects
from holdfast.store.commands import Listening
from holdfast.store.enqueue import key_steps
from holdfast.store.hooks import insert_runs
from holdfast.store.module import StoreModule, Tx, id_rows, in_batches, json_rows, run_steps
from holdfast.store.rows import NewRun
from holdfast.store.run_tree import LockedRun, lock_runs
from holdfast.store.schedule_definitions import (
    SHORT_ABSENCE_MICROS,
    DeclarationChanges,
    definition_digest,
    from_text,
    live_declarations,
    names_json,
    plan_declaration,
    to_text,
)
from holdfast.store.typed_rows import RowReader, as_text
from holdfast.store.waits import receiver_key, resolve_waits, wake_runs
from holdfast.telemetry import log

PUBLISHED = "published"
"""The name of what is stored of the message among the options of a run that it created."""
MAX_COUNTED = 10_000
"""How many messages `count_publications` reads."""


class DeclaredSubscription(msgspec.Struct, frozen=True):
    """A task that subscribes, as it is declared. `template`: the run that each message creates."""

    name: str
    topics: tuple[Topic, ...]
    template: NewRun

    def row(self, app: str) -> dict[str, Any]:
        """Return the row that statements take; equal for equal declarations."""
        topics = msgspec.json.encode(self.topics, order="sorted").decode()
        return {"name": self.name, "app": app, "topics": topics, "template": to_text(self.template, leave_out="id")}

    @property
    def digest(self) -> str:
        row = self.row("")
        return definition_digest(row["topics"], row["template"])


class _KnownSubscription(NamedTuple):
    """A stored subscription, as far as declarations are concerned."""

    name: str
    app: str
    topics: str
    template: str
    orphaned: int
    orphaned_at: int | None
    former: str | None
    now: int

    @property
    def digest(self) -> str:
        return definition_digest(self.topics, self.template)

    def is_moved(self, row: Mapping[str, Any]) -> bool:  # noqa: ARG002 - it has no slots
        return False


class SubscriptionRow(NamedTuple):
    """A stored subscription. `is_active`: it receives messages. `topics`: JSON."""

    name: str
    app: str
    topics: str
    template: str
    orphaned: int
    orphaned_at: int | None
    is_active: int
    declared_at: int


class PublicationRow(NamedTuple):
    """A published message: how many runs it created, and how many functions it was delivered to."""

    id: str
    topic: str
    tenant: str | None
    runs: int
    functions: int
    published_at: int
    payload_bytes: int


class TopicRow(NamedTuple):
    """The last messages of a topic. `scanned`: how many messages of all topics were read."""

    topic: str
    messages: int
    runs: int
    functions: int
    last_at: int
    scanned: int


class ListenerRow(NamedTuple):
    """A function that receives messages of a topic. `tenant`: empty for none."""

    run: str
    task: str
    inbox: str
    tenant: str
    since: int


_SUBSCRIPTION_ROWS = RowReader(SubscriptionRow)
_PUBLICATION_ROWS = RowReader(PublicationRow)
_TOPIC_ROWS = RowReader(TopicRow)
_LISTENER_ROWS = RowReader(ListenerRow)


class TopicStore(StoreModule):
    """Subscriptions, published messages, and the functions that wait for some."""

    def declare(self, app: str, declared: Sequence[DeclaredSubscription]) -> DeclarationChanges:
        """Reconcile the stored subscriptions of an app with those of its code. Takes no lock if nothing changed."""
        by_name = {each.name: each for each in declared}
        stored = self._execute("housekeeping", "read_subscriptions", app=app, rows=names_json(by_name))
        live = live_declarations(self._execute("housekeeping", "list_live_sessions"), "subscriptions")
        _, changes = plan_declaration(app, by_name, [_KnownSubscription(*row) for row in stored], live)
        if not changes.any():
            return changes
        return self._transaction("housekeeping", lambda tx: _declare(tx, app, by_name))

    def declare_new(self, app: str, declared: Sequence[DeclaredSubscription]) -> None:
        """Store subscriptions that the database doesn't know yet, because no worker has started."""
        rows = [each.row(app) for each in declared]
        self._execute("client", "add_subscriptions", rows=json_rows(rows))

    def publish(self, message: NewMessage, connection: CallerConnection | None = None) -> Published:
        """Publish a message, in the transaction of the caller's connection if one is given.

        Raises KeyConflict if its key was used for another message.
        """
        tries = count()

        def work(tx: Tx) -> Published:
            if next(tries) and (found := tx.execute("find_publication", id=message.id)):
                return Published(UUID(message.id), found[0][0], found[0][1])  # published before the response got lost
            if (known := _take_key(tx, message)) is not None:
                counts = tx.execute("find_publication", id=known) or [(0, 0)]  # it may have been pruned
                return Published(UUID(known), counts[0][0], counts[0][1], False)
            receivers = find_receivers(tx, [message])
            locked = lock_runs(tx, receivers.functions)
            woken = publish_messages(tx, receivers, locked)
            wake_runs(tx, [run for run in woken if locked[run].state == "waiting"])
            tx.counts_ready_runs = True
            ((runs, functions),) = receivers.counts()
            return Published(UUID(message.id), runs, functions)

        return self._write("client", work, connection)

    # For operators

    def subscriptions(self) -> list[SubscriptionRow]:
        """Return all subscriptions, by task."""
        rows = self._execute("read", "list_subscriptions", absence=SHORT_ABSENCE_MICROS)
        return _SUBSCRIPTION_ROWS.read_all(rows)

    def topics(self, tenant: str | None = None) -> list[TopicRow]:
        """Count the last messages of each topic."""
        return _TOPIC_ROWS.read_all(self._execute("read", "count_publications", tenant=tenant))

    def messages(self, topic: str | None, tenant: str | None, size: int) -> list[PublicationRow]:
        """Return the last messages, newest first."""
        rows = self._execute("read", "list_publications", topic=topic, tenant=tenant, size=size)
        return _PUBLICATION_ROWS.read_all((str(id), *rest) for id, *rest in rows)

    def payloads(self, ids: Iterable[str]) -> dict[str, str | None]:
        """Return the stored payloads of messages."""
        found = self._execute("read", "read_publications", rows=id_rows(sorted(ids)))
        return {str(id): as_text(payload) for id, payload in found}

    def listeners(self, topic: str | None, tenant: str | None, size: int) -> list[ListenerRow]:
        """Return the first functions that wait for messages of a topic, or of any."""
        rows = self._execute("read", "list_listeners", topic=topic, tenant=tenant, size=size)
        return _LISTENER_ROWS.read_all((str(run), *rest) for run, *rest in rows)


def _declare(tx: Tx, app: str, declared: Mapping[str, DeclaredSubscription]) -> DeclarationChanges:
    stored = [_KnownSubscription(*row) for row in tx.execute("lock_subscriptions", app=app, rows=names_json(declared))]
    live = live_declarations(tx.execute("list_live_sessions"), "subscriptions")
    rows, changes = plan_declaration(app, declared, stored, live)
    for statement, names in (("add_subscriptions", changes.added), ("update_subscriptions", changes.changed)):
        if names:
            tx.execute(statement, rows=json_rows(rows[name] for name in sorted(names)))
    for statement, names in (
        ("orphan_subscriptions", changes.orphaned),
        ("delete_subscriptions", changes.removed),
    ):
        if names:
            tx.execute(statement, rows=names_json(names))
    return changes


def _take_key(tx: Tx, message: NewMessage) -> str | None:
    """Take the key of a message; return the message that has it, if another one does."""
    if message.key is None:
        return None
    request = NewRun(
        message.id, TOPIC_QUEUE, message.topic, "", 0, tenant=message.tenant, key=message.key, digest=message.digest
    )
    steps = key_steps([request])
    found: dict[str, str] = run_steps(steps, tx.execute)
    return found.get(message.id)


# Publish


class _Subscription(NamedTuple):
    """A task that subscribes. `template`: None if newer code wrote it."""

    name: str
    topics: tuple[Topic, ...]
    template: str


class _Listener(NamedTuple):
    run: str
    inbox: str


class Receivers:
    """Who receives messages: found without a lock, before the functions among them are locked."""

    def __init__(self) -> None:
        self.messages: list[NewMessage] = []
        self.subscriptions: list[list[_Subscription]] = []
        self.listeners: list[list[_Listener]] = []
        self.delivered: Counter[str] = Counter()

    @property
    def functions(self) -> set[str]:
        """The runs to lock."""
        return {each.run for listeners in self.listeners for each in listeners}

    def keep(self, messages: Collection[str]) -> None:
        """Forget all other messages."""
        kept = [at for at, message in enumerate(self.messages) if message.id in messages]
        self.messages = [self.messages[at] for at in kept]
        self.subscriptions = [self.subscriptions[at] for at in kept]
        self.listeners = [self.listeners[at] for at in kept]

    def counts(self) -> list[tuple[int, int]]:
        """Return how many runs each message has created, and how many functions it was delivered to."""
        return [
            (len(subscribed), self.delivered[message.id])
            for message, subscribed in zip(self.messages, self.subscriptions, strict=True)
        ]


def find_receivers(tx: Tx, messages: Sequence[NewMessage]) -> Receivers:
    """Find the tasks that subscribe to messages, and the functions that wait for them."""
    found = Receivers()
    if not messages:
        return found
    active = _active_subscriptions(tx)
    for message in messages:
        payload = msgspec.json.decode(message.payload)
        found.messages.append(message)
        found.subscriptions.append([each for each in active if selects(each.topics, message.topic, payload)])
        found.listeners.append(_find_listeners(tx, message, payload))
    return found


def _active_subscriptions(tx: Tx) -> list[_Subscription]:
    found = []
    for row in tx.execute("list_subscriptions", absence=SHORT_ABSENCE_MICROS):
        name, _, topics, template, _, _, is_active, _ = row
        if not is_active:
            continue
        try:
            found.append(_Subscription(name, _decode_topics(topics), template))
        except msgspec.MsgspecError as error:  # a corrupt row, or newer code wrote it
            log.subscription_unreadable(name, error)
    return found


@lru_cache(maxsize=1000)
def _decode_topics(text: str) -> tuple[Topic, ...]:
    return msgspec.json.decode(text, type=tuple[Topic, ...])


def read_topics(text: str) -> tuple[Topic, ...]:
    """Decode what a subscription selects; nothing if that is corrupt."""
    try:
        return _decode_topics(text)
    except msgspec.MsgspecError:
        return ()


def _find_listeners(tx: Tx, message: NewMessage, payload: Any) -> list[_Listener]:
    """Find the functions whose conditions a message fulfills: by the values of the fields that any of them compares."""
    tenant, topic = message.tenant or "", message.topic
    wanted = []
    for (fields,) in tx.execute("find_listened_fields", tenant=tenant, topic=topic):
        values = field_values(payload, msgspec.json.decode(fields, type=list[str]))
        if values is not None:
            wanted.append({"fields": fields, "wanted": values_digest(values)})
    if not wanted:
        return []
    rows = tx.execute("find_listeners", rows=json_rows(wanted), tenant=tenant, topic=topic)
    return [_Listener(str(run), inbox) for run, inbox in rows]


def publish_messages(tx: Tx, receivers: Receivers, locked: Mapping[str, LockedRun]) -> set[str]:
    """Create the runs of subscribing tasks, deliver to locked functions, and store the messages.

    Returns the functions that may have to be woken.
    """
    _create_runs(tx, receivers)
    woken = _deliver(tx, receivers, locked)
    rows: list[dict[str, Any]] = [
        {
            "id": message.id, "topic": message.topic, "tenant": message.tenant, "payload": _packed(tx, message),
            "runs": runs, "functions": functions,
        }
        for message, (runs, functions) in zip(receivers.messages, receivers.counts(), strict=True)
    ]  # fmt: skip
    for batch in in_batches(rows, lambda row: len(row["payload"])):
        tx.execute("add_publications", rows=json_rows(batch))
    return woken


def _packed(tx: Tx, message: NewMessage) -> str:
    place = message_context(message.tenant, message.topic)
    return tx.payloads.pack(message.payload, place, f"the message on topic {message.topic!r}")


def _create_runs(tx: Tx, receivers: Receivers) -> None:
    """Create a run of each task that subscribes to a message."""
    new = []
    for message, subscribed in zip(receivers.messages, receivers.subscriptions, strict=True):
        for each in list(subscribed):
            try:
                new.append(_run_of(tx, message, each))
            except TypeError as error:  # a corrupt template, or newer code wrote it
                log.subscription_unreadable(each.name, error)
                subscribed.remove(each)
    insert_runs(tx, new)


def _run_of(tx: Tx, message: NewMessage, subscription: _Subscription) -> NewRun:
    run = from_text(NewRun, subscription.template, id=new_id_text())
    run.tenant = message.tenant
    options = {} if run.options is None else msgspec.json.decode(run.options)
    source = {"topic": message.topic, "message": message.id}
    run.options = msgspec.json.encode({**options, PUBLISHED: source}).decode()
    place = PayloadContext("args", run.tenant, run.id)
    run.args = tx.payloads.pack(f'{{"*":[{message.payload}]}}', place, "the arguments of task", run.task)
    return run


def _deliver(tx: Tx, receivers: Receivers, locked: Mapping[str, LockedRun]) -> set[str]:
    """Append messages to those of locked functions, and resolve their open waits."""
    functions = {run for run, row in locked.items() if row.state not in FINAL_STATES and row.ending is None}
    done = {run for run in receivers.functions if run not in locked or locked[run].state == "done"}
    if done:  # those that failed or were cancelled may be retried
        tx.execute("delete_listeners", rows=id_rows(sorted(done)))
    listening = {each for listeners in receivers.listeners for each in listeners if each.run in functions}
    waits = _open_waits(tx, listening) if listening else {}
    rows: list[dict[str, Any]] = []
    resolved: list[dict[str, Any]] = []
    for message, listeners in zip(receivers.messages, receivers.listeners, strict=True):
        delivered = [each for each in listeners if each.run in functions]
        receivers.delivered[message.id] += len(delivered)
        packed = _packed(tx, message) if delivered else ""
        for each in delivered:
            row: dict[str, Any] = {"run": each.run, "topic": each.inbox, "payload": packed}
            if open_waits := waits.get(each):
                generation, key = open_waits.pop(0)
                wait = {"run": each.run, "generation": generation, "key": key, "outcome": "message", "value": packed}
                resolved.append(wait)
                row["taken_by"] = receiver_key(generation, key)
            rows.append(row)
    _add_messages(tx, rows)
    for batch in in_batches(resolved, lambda row: len(row["value"])):
        resolve_waits(tx, batch)
    return {row["run"] for row in resolved}


def _open_waits(tx: Tx, listening: Collection[_Listener]) -> dict[_Listener, list[tuple[int, str]]]:
    """Return generation and key of the waits that messages resolve, in the order in which they receive."""
    places = [{"run": each.run, "topic": each.inbox} for each in sorted(listening)]
    waits: dict[_Listener, list[tuple[int, str]]] = {}
    for run, inbox, generation, key in tx.execute("find_receivers", rows=json_rows(places)):
        waits.setdefault(_Listener(str(run), inbox), []).append((generation, key))
    return waits


def _add_messages(tx: Tx, rows: Sequence[dict[str, Any]]) -> None:
    """Append messages to runs, numbered on behind those that they have."""
    for batch in in_batches(rows, lambda row: len(row["payload"])):
        numbers: Counter[str] = Counter()
        for row in batch:
            numbers[row["run"]] += 1
            row["number"] = numbers[row["run"]]
        tx.execute("add_published_messages", rows=json_rows(batch))


def listen(tx: Tx, listeners: Iterable[tuple[str, str, Listening]]) -> None:
    """Let locked functions receive messages from now on, given with their runs and inboxes."""
    rows = [
        {
            "run": run, "inbox": inbox, "tenant": each.tenant or "", "topic": each.topic, "fields": each.fields,
            "wanted": each.wanted,
        }
        for run, inbox, each in listeners
    ]  # fmt: skip
    if rows:
        tx.execute("add_listeners", rows=json_rows(rows))
