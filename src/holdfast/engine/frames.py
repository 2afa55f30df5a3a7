"""Messages through a pipe: four bytes of length, then so many bytes."""

from __future__ import annotations

import os
from collections.abc import Callable


def _always() -> bool:
    return True


def write_frame(file: int, data: bytes) -> None:
    """Write a whole message; OSError when nobody reads any more."""
    rest = memoryview(len(data).to_bytes(4) + data)
    while rest:
        rest = rest[os.write(file, rest) :]


def read_frame(file: int, more: Callable[[], bool] = _always) -> bytes | None:
    """Read a whole message; None when the other side is gone. `more` may wait until there is more to read, and says
    whether there is."""
    header = _read(file, 4, more)
    return None if header is None else _read(file, int.from_bytes(header), more)


def _read(file: int, size: int, more: Callable[[], bool]) -> bytes | None:
    parts = []
    while size:
        part = os.read(file, size) if more() else b""
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
