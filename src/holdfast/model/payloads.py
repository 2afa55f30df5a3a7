"""The stored form of payloads: size limits, compression, and the app's codec.

Payloads are stored as text. One that isn't plain JSON starts with `~`, which JSON never does, followed by a letter per
transformation (`z` compressed, `c` encoded by the codec, `a` encoded by a codec that takes a context), a colon, and
base64. Payloads are packed where they are created and unpacked where they are read, with the context of that place; no
code in between reads them. Text that can't be unpacked stays as it is, and `codec.decode` raises PayloadError for it.
"""

from __future__ import annotations

import base64
import inspect
import zlib
from collections.abc import Callable
from typing import Any, Literal, Protocol, TypeAlias

import msgspec

from holdfast.errors import ConfigError, PayloadAltered, PayloadError, PayloadUnreadable, TooLarge
from holdfast.model.codec import MAX_PAYLOAD_BYTES, UnreadableText, allow_payload_bytes
from holdfast.model.step_keys import without_digest

WARN_ABOVE_BYTES = 256 * 1024
COMPRESS_ABOVE_BYTES = 32 * 1024
MIN_BYTES = 1024
MAX_BYTES = 64 * 1024 * 1024
MAX_COMPRESSED_SHARE = 0.9
"""Compressed payloads are kept only if they are smaller than this share of the original."""
MAX_WARNINGS = 1000
STORED_IN_CLEAR = (
    "the payload is stored in clear, but this app's codec only accepts encoded ones: another program wrote it, or it "
    "is older than the codec"
)
ENVELOPES = "\x1fasks"
"""The place of the asks of a run. The names of topics have no control characters."""
CANT_COPY = (
    "the payload is bound to its place by a codec that this app doesn't have: use the same Holdfast(codec=…) to copy it"
)

PayloadField: TypeAlias = Literal[
    "args", "result", "step", "step_args", "event", "message", "reply", "value", "chunk", "progress", "schedule",
    "log", "thread", "topic",
]  # fmt: skip
"""What a payload is."""


class PayloadContext(msgspec.Struct, frozen=True):
    """Where a payload is stored. A codec that takes a context can bind the payload to this place.

    Attributes:
        field: What the payload is: `args` and `result` of a run (or of a gate), the result of a `step`, the arguments
            of a failed step (`step_args`), the payload of an `event` or a `message` (or of an ask), the `reply` to an
            ask, a `value` of `ctx.set`, a `chunk` of `ctx.write`, the `progress` of a run, lines that a run logged
            (`log`), the arguments of a `schedule` that was created at run time, a part of a `thread` of LangGraph, or a
            message that was published to a `topic`.
        tenant: The tenant of the run, event or message.
        run: The id of the run; None for events, schedules and published messages.
        name: The key of the step or ask, the name of the event, value, schedule or thread, or the topic; `template` for
            arguments into which a graph fills outputs; None for others.
    """

    field: PayloadField
    tenant: str | None = None
    run: str | None = None
    name: str | None = None


class Codec(Protocol):
    """The interface of `Holdfast(codec=…)`: transforms bytes to bytes, and back."""

    def encode(self, data: bytes, /) -> bytes: ...

    def decode(self, data: bytes, /) -> bytes: ...


class ContextCodec(Protocol):
    """A codec that also gets the place of each payload. Both methods have a parameter `context`, passed by name.

    If it has an attribute `accepts_plain` that is False, payloads that are stored in clear are rejected.
    """

    def encode(self, data: bytes, /, *, context: PayloadContext) -> bytes: ...

    def decode(self, data: bytes, /, *, context: PayloadContext) -> bytes: ...


class Payloads:
    """The payload settings of one app. `on_large` is called once per kind of payload above `warn_above`.

    Attributes:
        binds: Whether the codec takes a context, so that a payload can't be copied to another place as it is.
        rejects_plain: Whether payloads that are stored in clear are rejected.
        plain_below: Texts of up to this many characters are stored as they are, so that `pack` needn't be called.
    """

    def __init__(
        self,
        *,
        warn_above: int | None = WARN_ABOVE_BYTES,
        refuse_above: int = MAX_PAYLOAD_BYTES,
        compress_above: int | None = COMPRESS_ABOVE_BYTES,
        codec: Codec | ContextCodec | None = None,
        on_large: Callable[[str, int], None] | None = None,
    ) -> None:
        self.limit = _size("refuse_above", refuse_above)
        self._warn_above = MAX_BYTES if warn_above is None else _size("warn_above", warn_above)
        self._compress_above = MAX_BYTES if compress_above is None else _size("compress_above", compress_above)
        if codec is not None and not (callable(getattr(codec, "encode", None)) and hasattr(codec, "decode")):
            raise ConfigError(f"codec must have the methods encode(bytes) and decode(bytes), but is {codec!r}")
        self._codec: Any = codec
        self.binds = codec is not None and _takes_context(codec)
        self.rejects_plain = getattr(codec, "accepts_plain", True) is False
        self._letter = "a" if self.binds else "c"
        self._on_large = on_large
        self._warned: set[str] = set()
        # A character has at most 4 bytes.
        self.plain_below = 0 if codec is not None else min(self.limit, self._warn_above, self._compress_above) // 4
        allow_payload_bytes(self.limit)

    def pack(self, text: str, context: PayloadContext, what: str, of: str = "") -> str:
        """Return the stored form of a payload. `what` and `of` name it in messages; they are joined only if needed."""
        return text if len(text) <= self.plain_below else self._pack(text, context, f"{what} {of}" if of else what)

    def check_size(self, text: str, what: str) -> None:
        """Raise TooLarge if a payload is larger than the limit."""
        if len(text) > self.limit // 4:
            self._check_size(len(text.encode()), what)

    def _pack(self, text: str, context: PayloadContext, what: str) -> str:
        data = text.encode()
        self._check_size(len(data), what)
        return self._transformed(text, data, context, what)

    def _transformed(self, text: str, data: bytes, context: PayloadContext, what: str) -> str:
        size, applied = len(data), ""
        if size > self._compress_above:
            smaller = zlib.compress(data, 1)
            if len(smaller) < size * MAX_COMPRESSED_SHARE:
                data, applied = smaller, "z"
        if self._codec is not None:
            data, applied = self._encoded(data, context, what), applied + self._letter
        return f"~{applied}:{base64.b64encode(data).decode()}" if applied else text

    def repack(self, text: str, source: PayloadContext, target: PayloadContext) -> str:
        """Return the stored form of a copy of a stored payload in another place."""
        return self.pack_copy(self.unpack(text, source), target)

    def pack_copy(self, text: str, context: PayloadContext) -> str:
        """Pack JSON that was unpacked elsewhere, whatever its size, for a copy in another place.

        Text that couldn't be unpacked is copied as it is, or refused if it is bound to its place.
        """
        if isinstance(text, UnreadableText):
            raise text.error
        if text[:1] == "~":
            if is_bound(text):
                raise PayloadUnreadable(CANT_COPY)
            return text
        return self._transformed(text, text.encode(), context, "a copy")

    def _check_size(self, size: int, what: str) -> None:
        if size > self.limit:
            raise TooLarge(
                f"{what}: {size:,} bytes of JSON exceed the limit of {self.limit:,}; store large data elsewhere "
                "(a file, an object store, your own table) and pass a reference"
            )
        if (
            size > self._warn_above
            and self._on_large is not None
            and what not in self._warned
            and len(self._warned) < MAX_WARNINGS
        ):
            self._warned.add(what)
            self._on_large(what, size)

    def _encoded(self, data: bytes, context: PayloadContext, what: str) -> bytes:
        try:
            encoded: Any = self._codec.encode(data, context=context) if self.binds else self._codec.encode(data)
        except PayloadError:
            raise
        except Exception as error:
            raise PayloadError(f"{what}: the codec failed to encode it: {type(error).__name__}: {error}") from error
        if not isinstance(encoded, bytes):
            raise PayloadError(f"{what}: the codec's encode must return bytes, not {type(encoded).__name__}")
        return encoded

    def unpack(self, text: str, context: PayloadContext) -> str:
        """Return the JSON of a stored payload. Text that can't be unpacked is returned for `codec.decode` to reject."""
        if text[:1] != "~" and not self.rejects_plain:
            return text
        try:
            return self._unpack(text, context, self.limit)
        except PayloadUnreadable as error:
            return UnreadableText.of(text if text[:1] == "~" else f"~{text}", error)
        except Exception:  # truncated text, or an error of the app's codec, such as a wrong key
            return text

    def unpack_within(self, text: str, context: PayloadContext | None, max_bytes: int) -> str | None:
        """Do the same, but return None if the JSON has more than `max_bytes`, without decompressing the rest.

        Without a context, the text isn't a payload: it is never packed.
        """
        if context is not None and (text[:1] == "~" or self.rejects_plain):
            try:
                text = self._unpack(text, context, min(max_bytes, self.limit))
            except PayloadUnreadable as error:
                return UnreadableText.of(text if text[:1] == "~" else f"~{text}", error)
            except _LargerThanLimitError:
                return None if max_bytes < self.limit else text
            except Exception:  # as above
                return text
        return text if len(text) <= max_bytes // 4 or len(text.encode(errors="replace")) <= max_bytes else None

    def _unpack(self, text: str, context: PayloadContext, limit: int) -> str:
        applied, _, rest = text[1:].partition(":") if text[:1] == "~" else ("", "", "")
        if self.rejects_plain and applied[-1:] not in ("a", "c"):
            raise PayloadAltered(STORED_IN_CLEAR)
        data = base64.b64decode(rest, validate=True)
        for letter in reversed(applied):
            if letter == "z":
                data = _decompress(data, limit)
            elif letter in ("a", "c") and self._codec is not None:
                data = self._codec.decode(data, context=context) if self.binds else self._codec.decode(data)
            else:
                return text
        return data.decode()


def checkpoint_context(kind: str, tenant: str | None, run: str, key: str) -> PayloadContext | None:
    """Return the place of a checkpoint's value; None for kinds whose values aren't payloads.

    What a run has received stays bound to the event, or to the topic of the message.
    """
    if is_step_result(kind, key):
        return PayloadContext("step", tenant, run, key)
    if kind in ("event", "message"):
        operation, _, name = key.rpartition("#")[0].partition(":")
        if operation in ("$ask", "$serve"):
            return message_context(tenant, run, ENVELOPES)
        if operation == "$next":
            return PayloadContext("topic", tenant, None, without_digest(name))
        return PayloadContext("event", tenant, None, name) if kind == "event" else message_context(tenant, run, name)
    return None


def is_step_result(kind: str, key: str) -> bool:
    """Return whether the value of a checkpoint is the result of a step.

    The kind alone isn't authenticated: with another one, a forged result in clear would pass for something that is
    never packed. All operations but steps have keys that start with `$`.
    """
    return kind == "step" or (key[:1] != "$" and kind != "failed")


def message_context(tenant: str | None, run: str, topic: str) -> PayloadContext:
    """Return the place of a message, which stays the same when the run has received it."""
    return PayloadContext("message", tenant, run, topic)


def template_context(tenant: str | None, run: str) -> PayloadContext:
    """Return the place of the arguments of a graph node into which outputs of other nodes are filled."""
    return PayloadContext("args", tenant, run, "template")


def schedule_context(tenant: str | None, name: str) -> PayloadContext:
    """Return the place of the arguments of a schedule that was created at run time."""
    return PayloadContext("schedule", tenant, name=name)


def is_bound(text: str) -> bool:
    """Return whether a stored payload was encoded for its place, so that a copy elsewhere couldn't be decoded."""
    return text[:1] == "~" and "a" in text[:4].partition(":")[0]


def _takes_context(codec: Codec | ContextCodec) -> bool:
    """Return whether the methods of a codec have a parameter `context`."""
    takes = [_has_context(method) for method in (codec.encode, codec.decode)]
    if takes[0] != takes[1]:
        raise ConfigError("codec: give both encode and decode a parameter `context`, or none of them")
    return takes[0]


def _has_context(method: Callable[..., bytes]) -> bool:
    try:
        return "context" in inspect.signature(method).parameters
    except (TypeError, ValueError):  # written in C, without a signature
        return False


class _LargerThanLimitError(ValueError):
    """Decompressed data exceeds the limit."""


def _decompress(data: bytes, limit: int) -> bytes:
    """Decompress up to `limit` bytes, so that a small stored text can't fill the memory."""
    stream = zlib.decompressobj()
    found = stream.decompress(data, limit + 1)
    if len(found) > limit:
        raise _LargerThanLimitError
    if not stream.eof:
        raise ValueError("truncated")
    return found


def _size(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not MIN_BYTES <= value <= MAX_BYTES:
        raise ConfigError(f"{name} must be a number of bytes from {MIN_BYTES:,} to {MAX_BYTES:,}, not {value!r}")

    return value
