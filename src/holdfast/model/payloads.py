"""How payloads are stored: their size is judged, large ones are compressed, and an author's codec may have its way.

What is stored stays text. A payload that isn't plain JSON begins with `~`, which JSON never does, then the letters of
what was done to it (`z` compressed, `c` by the codec), a colon, and base64. Texts are packed where they are made and
unpacked where they are read; in between nobody looks into them. A text that can't be unpacked is left as it is: whoever
wants to read it then gets a PayloadError from `codec.decode`, and nothing is lost.
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
LEAST_LIMIT = 1024
MOST_LIMIT = 64 * 1024 * 1024
WORTH_IT = 0.9
"""What compression leaves must be smaller than that part."""
MOST_TOLD = 1000


class Codec(Protocol):
    """What authors give as `Holdfast(codec=…)`: bytes to bytes, and back."""

    def encode(self, data: bytes, /) -> bytes: ...

    def decode(self, data: bytes, /) -> bytes: ...


class Payloads:
    """The settings of one app. `tell` is called with what is large and its bytes, once for each."""

    def __init__(
        self,
        *,
        warn_above: int | None = WARN_ABOVE_BYTES,
        refuse_above: int = MAX_PAYLOAD_BYTES,
        compress_above: int | None = COMPRESS_ABOVE_BYTES,
        codec: Codec | None = None,
        tell: Callable[[str, int], None] | None = None,
    ) -> None:
        self.limit = _size("refuse_above", refuse_above)
        self._warn = MOST_LIMIT if warn_above is None else _size("warn_above", warn_above)
        self._compress = MOST_LIMIT if compress_above is None else _size("compress_above", compress_above)
        if codec is not None and not (callable(getattr(codec, "encode", None)) and hasattr(codec, "decode")):
            raise ConfigError(f"codec needs the methods encode(bytes) and decode(bytes), which {codec!r} hasn't")
        self._codec = codec
        self._tell = tell
        self._told: set[str] = set()
        self._plain_below = 0 if codec is not None else min(self.limit, self._warn, self._compress) // 4
        """So many characters are never too many bytes, whatever they are."""
        allow_payload_bytes(self.limit)

    def pack(self, text: str, what: str, of: str = "") -> str:
        """A payload as it is stored; TooLarge when it may not be. `what`, and `of` behind it, say in messages which
        it is: put together only there."""
        return text if len(text) <= self._plain_below else self._pack(text, f"{what} {of}" if of else what)

    def _pack(self, text: str, what: str) -> str:
        data = text.encode()
        size = len(data)
        self._judge(size, what)
        done = ""
        if size > self._compress:
            smaller = zlib.compress(data, 1)
            if len(smaller) < size * WORTH_IT:
                data, done = smaller, "z"
        if self._codec is not None:
            data, done = self._encoded(data, what), done + "c"
        return f"~{done}:{base64.b64encode(data).decode()}" if done else text

    def _judge(self, size: int, what: str) -> None:
        if size > self.limit:
            raise TooLarge(
                f"{what}: {size:,} bytes of JSON, but the limit is {self.limit:,}; keep large data elsewhere "
                "(a file, an object store, a table of your own) and pass a reference to it"
            )
        if size > self._warn and self._tell is not None and what not in self._told and len(self._told) < MOST_TOLD:
            self._told.add(what)
            self._tell(what, size)

    def _encoded(self, data: bytes, what: str) -> bytes:
        assert self._codec is not None
        try:
            encoded: Any = self._codec.encode(data)
        except Exception as error:
            raise PayloadError(f"{what}: the codec can't encode it: {type(error).__name__}: {error}") from error
        if not isinstance(encoded, bytes):
            raise PayloadError(f"{what}: the codec's encode gave a {type(encoded).__name__}, not bytes")
        return encoded

    def unpack(self, text: str) -> str:
        """A stored payload as JSON; the text itself where it can't be had, for `codec.decode` to refuse."""
        return text if text[:1] != "~" else self._unpack(text)

    def _unpack(self, text: str) -> str:
        done, _, rest = text[1:].partition(":")
        try:
            data = base64.b64decode(rest, validate=True)
            for letter in reversed(done):
                if letter == "z":
                    data = zlib.decompress(data)
                elif letter == "c" and self._codec is not None:
                    data = self._codec.decode(data)
                else:
                    return text
            return data.decode()
        except Exception:  # cut short, or by the author's codec: another key, or none
            return text


def _size(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not LEAST_LIMIT <= value <= MOST_LIMIT:
        raise ConfigError(f"{name} is a number of bytes from {LEAST_LIMIT:,} to {MOST_LIMIT:,}, but is {value!r}")
    return value
