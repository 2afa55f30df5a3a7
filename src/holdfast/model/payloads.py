"""The stored form of payloads: size limits, compression, and the app's codec.

Payloads are stored as text. One that isn't plain JSON starts with `~`, which JSON never does, followed by a letter per
transformation (`z` compressed, `c` encoded by the codec), a colon, and base64. Payloads are packed where they are
created and unpacked where they are read; no code in between reads them. Text that can't be unpacked stays as it is,
and `codec.decode` raises PayloadError for it.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable
from typing import Any, Protocol

from holdfast.errors import ConfigError, PayloadError, TooLarge
from holdfast.model.codec import MAX_PAYLOAD_BYTES, allow_payload_bytes

WARN_ABOVE_BYTES = 256 * 1024
COMPRESS_ABOVE_BYTES = 32 * 1024
MIN_BYTES = 1024
MAX_BYTES = 64 * 1024 * 1024
MAX_COMPRESSED_SHARE = 0.9
"""Compressed payloads are kept only if they are smaller than this share of the original."""
MAX_WARNINGS = 1000


class Codec(Protocol):
    """The interface of `Holdfast(codec=…)`: transforms bytes to bytes, and back."""

    def encode(self, data: bytes, /) -> bytes: ...

    def decode(self, data: bytes, /) -> bytes: ...


class Payloads:
    """The payload settings of one app. `on_large` is called once per kind of payload above `warn_above`."""

    def __init__(
        self,
        *,
        warn_above: int | None = WARN_ABOVE_BYTES,
        refuse_above: int = MAX_PAYLOAD_BYTES,
        compress_above: int | None = COMPRESS_ABOVE_BYTES,
        codec: Codec | None = None,
        on_large: Callable[[str, int], None] | None = None,
    ) -> None:
        self.limit = _size("refuse_above", refuse_above)
        self._warn_above = MAX_BYTES if warn_above is None else _size("warn_above", warn_above)
        self._compress_above = MAX_BYTES if compress_above is None else _size("compress_above", compress_above)
        if codec is not None and not (callable(getattr(codec, "encode", None)) and hasattr(codec, "decode")):
            raise ConfigError(f"codec must have the methods encode(bytes) and decode(bytes), but is {codec!r}")
        self._codec = codec
        self._on_large = on_large
        self._warned: set[str] = set()
        self._plain_below = 0 if codec is not None else min(self.limit, self._warn_above, self._compress_above) // 4
        """Texts of up to this many characters need no checks: a character has at most 4 bytes."""
        allow_payload_bytes(self.limit)

    def pack(self, text: str, what: str, of: str = "") -> str:
        """Return the stored form of a payload. `what` and `of` name it in messages; they are joined only if needed."""
        return text if len(text) <= self._plain_below else self._pack(text, f"{what} {of}" if of else what)

    def _pack(self, text: str, what: str) -> str:
        data = text.encode()
        size = len(data)
        self._check_size(size, what)
        applied = ""
        if size > self._compress_above:
            smaller = zlib.compress(data, 1)
            if len(smaller) < size * MAX_COMPRESSED_SHARE:
                data, applied = smaller, "z"
        if self._codec is not None:
            data, applied = self._encoded(data, what), applied + "c"
        return f"~{applied}:{base64.b64encode(data).decode()}" if applied else text

    def encode_unpacked(self, text: str) -> str:
        """Apply the codec, if there is one, to JSON that was put together from stored payloads, whatever its size."""
        if self._codec is None or text[:1] == "~":
            return text
        return f"~c:{base64.b64encode(self._encoded(text.encode(), 'a result')).decode()}"

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

    def _encoded(self, data: bytes, what: str) -> bytes:
        assert self._codec is not None
        try:
            encoded: Any = self._codec.encode(data)
        except Exception as error:
            raise PayloadError(f"{what}: the codec failed to encode it: {type(error).__name__}: {error}") from error
        if not isinstance(encoded, bytes):
            raise PayloadError(f"{what}: the codec's encode must return bytes, not {type(encoded).__name__}")
        return encoded

    def unpack(self, text: str) -> str:
        """Return the JSON of a stored payload. Text that can't be unpacked is returned for `codec.decode` to reject."""
        if text[:1] != "~":
            return text
        try:
            return self._unpack(text, self.limit)
        except Exception:  # truncated text, or an error of the app's codec, such as a wrong key
            return text

    def unpack_within(self, text: str, max_bytes: int) -> str | None:
        """Do the same, but return None if the JSON has more than `max_bytes`, without decompressing the rest."""
        if text[:1] == "~":
            try:
                text = self._unpack(text, min(max_bytes, self.limit))
            except _LargerThanLimitError:
                return None if max_bytes < self.limit else text
            except Exception:  # as above
                return text
        return text if len(text) <= max_bytes // 4 or len(text.encode(errors="replace")) <= max_bytes else None

    def _unpack(self, text: str, limit: int) -> str:
        applied, _, rest = text[1:].partition(":")
        data = base64.b64decode(rest, validate=True)
        for letter in reversed(applied):
            if letter == "z":
                data = _decompress(data, limit)
            elif letter == "c" and self._codec is not None:
                data = self._codec.decode(data)
            else:
                return text
        return data.decode()


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
