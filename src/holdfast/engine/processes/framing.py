"""Frame messages in a pipe: a tag, the length in four bytes, the data.

Requests have an empty tag. The tag of an answer identifies the call that it answers and the process that wrote it: a
task may fork, and its copies share the pipe.
"""

from __future__ import annotations

import os
from collections.abc import Callable


class ForeignFrame(Exception):
    """A process other than the expected sender wrote to the pipe."""


def answer_tag(nonce: str, pid: int) -> bytes:
    """Return the tag of the answers to one call of one process."""
    return bytes.fromhex(nonce) + pid.to_bytes(4)


def _always() -> bool:
    return True


def write_frame(file: int, data: bytes, tag: bytes = b"") -> None:
    """Write a whole message. Raises OSError if the reader is gone."""
    rest = memoryview(tag + len(data).to_bytes(4) + data)
    while rest:
        rest = rest[os.write(file, rest) :]


def read_frame(file: int, more: Callable[[], bool] = _always, tag: bytes = b"") -> bytes | None:
    """Read a whole message, or return None if the writer is gone. Raises ForeignFrame if the tag doesn't match.

    `more` may wait until there is more to read, and returns whether there is.
    """
    header = _read(file, len(tag) + 4, more)
    if header is None:
        return None
    if not header.startswith(tag):  # checked before the length, which would be meaningless
        raise ForeignFrame
    return _read(file, int.from_bytes(header[len(tag) :]), more)


def _read(file: int, size: int, more: Callable[[], bool]) -> bytes | None:
    parts = []
    while size:
        part = os.read(file, size) if more() else b""
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
