"""Topics: how they are named, which of them a subscription selects, and where a function's messages are stored."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

import msgspec

from holdfast.errors import ConfigError
from holdfast.model import payloads
from holdfast.model.codec import canonical, digest, encode
from holdfast.model.ids import new_id_text
from holdfast.model.names import MAX_KEY_CHARS, check_name, quoted
from holdfast.model.payloads import PayloadContext

ANY_SEGMENTS = "*"
"""The segment of a pattern that stands for one or more segments of a topic."""
INBOX_PREFIX = "\x1e"
"""How the topics of messages begin that a run receives with `ctx.next`. Others have no control characters."""
MAX_TOPICS = 20
MAX_FIELDS = 10
MAX_WHERE_BYTES = 1000

FieldValue: TypeAlias = str | int | float | bool | None
"""What a field is compared with."""


class Topic(msgspec.Struct, frozen=True):
    """The messages that a task subscribes to: `@app.task(on=Topic("orders.*", where={"country": "NO"}))`.

    Attributes:
        pattern: The name of a topic. A segment `*` stands for one or more segments: `orders.*` selects `orders.paid`
            and `orders.eu.paid`, and `*` selects every topic.
        where: Only messages whose payload has these values, by the name or dotted path of a field. A value is a string,
            a number, a boolean or None. A payload without the field isn't selected.
    """

    pattern: str
    where: Mapping[str, FieldValue] = {}


class Published(msgspec.Struct, frozen=True):
    """A message that was published.

    Attributes:
        id: Its id.
        runs: How many runs it created: one for each task that subscribes to it.
        functions: How many functions it was delivered to that wait for messages with `ctx.next`.
        created: Whether the call published it. False if a message with its `key` was published before.
    """

    id: UUID
    runs: int
    functions: int
    created: bool = True


class NewMessage(NamedTuple):
    """A message to publish. `payload`: JSON text. `digest`: identifies the payload behind `key`."""

    id: str
    topic: str
    tenant: str | None
    payload: str
    key: str | None = None
    digest: str | None = None


def new_message(topic: str, payload: Any, key: str | None = None, tenant: str | None = None) -> NewMessage:
    """Return a message with a new id, if it is valid."""
    name = check_topic(topic, "the topic of publish")
    what = f"the message on topic {name!r}"
    return NewMessage(
        new_id_text(),
        name,
        None if tenant is None else check_name(tenant, "tenant"),
        encode(payload, what),
        None if key is None else check_name(key, "key", MAX_KEY_CHARS),
        None if key is None else str(digest(canonical(payload, what))),
    )


Topics: TypeAlias = str | Topic | Sequence[str | Topic]
"""One topic or several."""


def check_topic(name: object, what: str) -> str:
    """Return the name of a topic that a message is published to, if it is valid."""
    checked = check_name(name, what)
    if ANY_SEGMENTS in checked:
        raise ConfigError(f"{what} must name one topic, without {ANY_SEGMENTS}: {quoted(checked)}")
    _check_segments(checked, what)
    return checked


def check_topics(given: object, what: str) -> tuple[Topic, ...]:
    """Return the topics that a task subscribes to, if they are valid."""
    several = [given] if isinstance(given, str | Topic) else given
    if not isinstance(several, Sequence) or not several:
        raise ConfigError(f"{what} must be a topic or a list of topics, not {given!r}")
    if len(several) > MAX_TOPICS:
        raise ConfigError(f"{what} must have at most {MAX_TOPICS} topics, not {len(several):,}")
    return tuple(_checked(each, what) for each in several)


def _checked(given: object, what: str) -> Topic:
    topic = given if isinstance(given, Topic) else Topic(check_name(given, f"{what}: a topic"))
    pattern = check_name(topic.pattern, f"{what}: the pattern of a topic")
    _check_segments(pattern, f"{what}: the pattern of a topic")
    if any(ANY_SEGMENTS in segment and segment != ANY_SEGMENTS for segment in pattern.split(".")):
        raise ConfigError(f"{what}: {ANY_SEGMENTS} must be a whole segment, as in 'orders.*': {quoted(pattern)}")
    return Topic(pattern, check_where(topic.where, f"{what}: where"))


def _check_segments(name: str, what: str) -> None:
    if not all(name.split(".")):
        raise ConfigError(f"{what} must consist of segments with dots between them, none of them empty: {quoted(name)}")


def check_where(given: object, what: str) -> dict[str, FieldValue]:
    """Return the values that fields of a payload must have, sorted by field, if they are valid."""
    if not isinstance(given, Mapping):
        raise ConfigError(f"{what} must be a mapping of fields to values, not {type(given).__name__}")
    if len(given) > MAX_FIELDS:
        raise ConfigError(f"{what} must have at most {MAX_FIELDS} fields, not {len(given):,}")
    where: dict[str, FieldValue] = {}
    for field, value in given.items():
        _check_segments(check_name(field, f"{what}: a field"), f"{what}: a field")
        if not isinstance(value, str | bool | int | float | None):
            raise ConfigError(
                f"{what}[{field!r}] must be a string, a number, a boolean or None, not {type(value).__name__}"
            )
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{what}[{field!r}] must be a number that JSON has, not {value}")
        where[field] = canonical_value(value)
    where = dict(sorted(where.items()))
    if len(encode(where, what).encode()) > MAX_WHERE_BYTES:
        raise ConfigError(f"{what} may have at most {MAX_WHERE_BYTES:,} bytes of JSON")
    return where


def canonical_value(value: Any) -> Any:
    """Return a value so that equal numbers are stored in the same way: 17.0 as 17."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def encode_where(where: Mapping[str, FieldValue]) -> str:
    """Return conditions as JSON text, the same for equal ones."""
    return msgspec.json.encode(where, order="sorted").decode()


def values_digest(values: Iterable[FieldValue]) -> str:
    """Return a short text that is the same for equal values."""
    return hashlib.sha256(msgspec.json.encode(list(values))).hexdigest()[:32]


def inbox_of(topic: str, where: Mapping[str, FieldValue]) -> str:
    """Return under which topic a run's messages are stored that it receives with `ctx.next(topic, where)`."""
    return INBOX_PREFIX + msgspec.json.encode([topic, where], order="sorted").decode()


def parse_inbox(target: str | None) -> Topic | None:
    """Return which messages an inbox takes; None if it is the topic of other messages."""
    if target is None or not target.startswith(INBOX_PREFIX):
        return None
    try:
        topic, where = msgspec.json.decode(target[len(INBOX_PREFIX) :], type=tuple[str, dict[str, Any]])
    except msgspec.MsgspecError:
        return None
    return Topic(topic, where)


def received_context(tenant: str | None, run: str, topic: str) -> PayloadContext:
    """Return the place of a message of a run: of one that was sent to it, or that it received from a topic."""
    inbox = parse_inbox(topic)
    return payloads.message_context(tenant, run, topic) if inbox is None else message_context(tenant, inbox.pattern)


def message_context(tenant: str | None, topic: str) -> PayloadContext:
    """Return the place of the payload of a published message. It stays the same in runs that receive it."""
    return PayloadContext("topic", tenant, name=topic)
