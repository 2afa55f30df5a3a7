"""Topics: which tasks subscribe, which functions wait, and what was published."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from holdfast.control.audit import audited
from holdfast.model.clock import to_datetime
from holdfast.model.names import check_name
from holdfast.model.previews import PayloadView
from holdfast.model.topics import Published as Published
from holdfast.model.topics import Topic, check_topic, message_context, new_message, parse_inbox
from holdfast.policy.topic_rules import matches
from holdfast.store import Store
from holdfast.store.topics import MAX_COUNTED, SubscriptionRow, read_topics

MAX_LISTENERS = 100


class TopicInfo(msgspec.Struct, frozen=True):
    """A topic with recent messages: how many, how many runs they created, and how many functions received them."""

    topic: str
    messages: int
    runs: int
    functions: int
    last_at: datetime


class SubscriptionInfo(msgspec.Struct, frozen=True):
    """A task that subscribes. `state`: `active`, `ending` (it is in the code of no live worker) or `ended`."""

    task: str
    app: str
    topics: list[Topic]
    state: str
    declared_at: datetime


class PublishedMessage(msgspec.Struct, frozen=True):
    """A published message. The payload is a plain JSON value with secrets masked."""

    id: UUID
    topic: str
    tenant: str | None
    at: datetime
    runs: int
    functions: int
    payload: Any


class ListeningRun(msgspec.Struct, frozen=True):
    """A function that receives messages of a topic, since its first wait for one."""

    run: UUID
    task: str
    topic: str
    where: dict[str, Any]
    tenant: str | None
    since: datetime


class TopicDetails(msgspec.Struct, frozen=True):
    """Topics with recent messages, the tasks that subscribe, the last messages, and functions that wait."""

    topics: list[TopicInfo]
    subscriptions: list[SubscriptionInfo]
    messages: Sequence[PublishedMessage]
    functions: Sequence[ListeningRun]
    partial: bool
    """Whether there are so many messages that only the last ones were counted."""


class TopicControl:
    """Topics. Messages and functions belong to a tenant or to none; subscriptions to apps."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @audited("publish message", "topic", unless_api=True)
    def publish(self, topic: str, payload: Any = None, key: str | None = None, tenant: str | None = None) -> Published:
        """Publish a message to the subscriptions that workers have stored."""
        return self._store.topics.publish(new_message(topic, payload, key, tenant))

    def list(self, topic: str | None = None, tenant: str | None = None, limit: int = 50) -> TopicDetails:
        """Show all topics or one, with the messages of one tenant or all."""
        if topic is not None:
            check_topic(topic, "the topic")
        tenant = None if tenant is None else check_name(tenant, "tenant")
        topics, store = self._store.topics.topics(tenant), self._store.topics
        return TopicDetails(
            topics=[
                TopicInfo(row.topic, row.messages, row.runs, row.functions, to_datetime(row.last_at))
                for row in topics
                if topic in (None, row.topic)
            ],
            subscriptions=[
                each for each in map(_subscription, store.subscriptions()) if topic is None or _selects(each, topic)
            ],
            messages=self._messages(topic, tenant, limit),
            functions=self._functions(topic, tenant),
            partial=bool(topics) and topics[0].scanned >= MAX_COUNTED,
        )

    def _messages(self, topic: str | None, tenant: str | None, limit: int) -> Sequence[PublishedMessage]:
        rows = self._store.topics.messages(topic, tenant, limit)
        view = PayloadView(self._store.payloads)
        chosen = view.choose((row.id, row.payload_bytes) for row in rows)
        found = self._store.topics.payloads(chosen) if chosen else {}
        return [
            PublishedMessage(
                UUID(row.id), row.topic, row.tenant, to_datetime(row.published_at), row.runs, row.functions,
                view.arguments(found.get(row.id), message_context(row.tenant, row.topic), row.payload_bytes),
            )
            for row in rows
        ]  # fmt: skip

    def _functions(self, topic: str | None, tenant: str | None) -> Sequence[ListeningRun]:
        found = []
        for row in self._store.topics.listeners(topic, tenant, MAX_LISTENERS):
            inbox = parse_inbox(row.inbox)
            if inbox is not None:
                found.append(
                    ListeningRun(
                        UUID(row.run), row.task, inbox.pattern, dict(inbox.where), row.tenant or None,
                        to_datetime(row.since),
                    )
                )  # fmt: skip
        return found


def _subscription(row: SubscriptionRow) -> SubscriptionInfo:
    state = "active" if not row.orphaned else "ending" if row.is_active else "ended"
    return SubscriptionInfo(row.name, row.app, list(read_topics(row.topics)), state, to_datetime(row.declared_at))


def _selects(subscription: SubscriptionInfo, topic: str) -> bool:
    return any(matches(each.pattern, topic) for each in subscription.topics)


def topic_text(topic: Topic) -> str:
    """Describe which messages are selected: `orders.* country="NO"`."""
    conditions = [f"{field}={json.dumps(value, ensure_ascii=False)}" for field, value in topic.where.items()]
    return " ".join([topic.pattern, *conditions])


def inbox_text(target: str | None) -> str | None:
    """Describe the messages that a wait is for; None if it isn't for messages of a topic."""
    inbox = parse_inbox(target)
    return None if inbox is None else topic_text(inbox)
