"""Messages through a pipe: the sender's mark, the length in four bytes, the data.

Requests have an empty mark. The mark of an answer says which call it answers and which process wrote it: a task may
fork, and its copies share the pipe.
"""

from __future__ import annotations

import os
from collections.abc import Callable


class ForeignFrame(Exception):
    """A process other than the expected sender wrote to the pipe."""


def answer_mark(nonce: str, pid: int) -> bytes:
    """Return the mark of the answers to one call of one process."""
    return bytes.fromhex(nonce) + pid.to_bytes(4)


def _always() -> bool:
    return True


def write_frame(file: int, data: bytes, mark: bytes = b"") -> None:
    """Write a whole message; OSError when nobody reads any more."""
    rest = memoryview(mark + len(data).to_bytes(4) + data)
    while rest:
        rest = rest[os.write(file, rest) :]


def read_frame(file: int, more: Callable[[], bool] = _always, mark: bytes = b"") -> bytes | None:
    """Read a whole message; None when the other side is gone, ForeignFrame if it has another mark.

    `more` may wait until there is more to read, and says whether there is.
    """
    header = _read(file, len(mark) + 4, more)
    if header is None:
        return None
    if not header.startswith(mark):  # checked before the length, which would be nonsense
        raise ForeignFrame
    return _read(file, int.from_bytes(header[len(mark) :]), more)


def _read(file: int, size: int, more: Callable[[], bool]) -> bytes | None:
    parts = []
    while size:
        part = os.read(file, size) if more() else b""
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
