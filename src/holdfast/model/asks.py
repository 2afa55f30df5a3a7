"""Asks: messages to a run that get a reply. How they are stored, and how they are answered.

An ask is a message with a topic that no other message can have. Its payload is an envelope with the ask's name, so that
a function that serves several names receives all of them in order of arrival.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from holdfast.errors import AskRejected, PayloadError
from holdfast.model.codec import decode, encode
from holdfast.model.payloads import ENVELOPES, PayloadContext, message_context

ASK_PREFIX = "\x1f"
"""How the topics of asks begin. The names of other topics have no control characters."""
ANY_ASK = ASK_PREFIX
"""What a function waits for that serves: asks of all names."""


class ReceivedAsk(msgspec.Struct, frozen=True):
    """An ask as the run receives it. `id`: the call that sent it. `payload`: JSON text."""

    key: str
    id: str
    name: str
    payload: str

    @property
    def reply_base(self) -> str:
        """The identity of its answer. It names the ask, so that the order of answers doesn't matter."""
        return f"$reply:{self.name}:{self.id}"


class AskAnswer(NamedTuple):
    """The answer to an ask of a run, packed."""

    key: str
    id: str
    answer: Literal["reply", "rejected"]
    text: str


FollowedWrites: TypeAlias = Mapping[str, Mapping[str, AskAnswer | None]]
"""Runs that have written what clients may wait for, with the answers by the keys of the asks; None has to be read."""


class Rejection(msgspec.Struct, omit_defaults=True):
    """Why an ask was rejected. `type`: the name of the exception's class, if an exception was the reason."""

    reason: str
    type: str | None = None
    data: Any = None

    def error(self, name: str, run: str) -> AskRejected:
        """Return the exception that the asker gets."""
        return AskRejected(self.reason, data=self.data, type=self.type, ask=name, run=run)


class _Envelope(msgspec.Struct, array_like=True):
    key: str
    id: str
    name: str
    payload: msgspec.Raw


def ask_topic(name: str) -> str:
    """Return the topic of the asks with a name."""
    return ASK_PREFIX + name


def asked_name(topic: str | None) -> str | None:
    """Return the name of the asks with a topic; empty for asks of all names, None for other topics."""
    return topic[len(ASK_PREFIX) :] if topic is not None and topic.startswith(ASK_PREFIX) else None


def encode_envelope(ask: ReceivedAsk) -> str:
    """Return the payload of the message that carries an ask."""
    return msgspec.json.encode(_Envelope(ask.key, ask.id, ask.name, msgspec.Raw(ask.payload.encode()))).decode()


def decode_envelope(text: str) -> ReceivedAsk:
    """Return the ask that a message carries. Raises PayloadError."""
    try:
        found = msgspec.json.decode(text, type=_Envelope)
    except msgspec.MsgspecError as error:
        raise PayloadError(f"the stored ask is corrupt: {error}") from error
    return ReceivedAsk(found.key, found.id, found.name, bytes(found.payload).decode())


def ask_context(tenant: str | None, run: str) -> PayloadContext:
    """Return the place of the asks of a run: one for all names, because the name is inside."""
    return message_context(tenant, run, ENVELOPES)


def reply_context(tenant: str | None, run: str, key: str) -> PayloadContext:
    """Return the place of the reply to an ask."""
    return PayloadContext("reply", tenant, run, key)


def encode_rejection(rejection: Rejection) -> str:
    """Return a rejection as JSON text. Raises PayloadError if its data can't be stored."""
    return encode(rejection, "the data of the rejection")


def decode_rejection(text: str) -> Rejection:
    """Return a rejection from its stored text."""
    found: Rejection = decode(text, Rejection)
    return found
