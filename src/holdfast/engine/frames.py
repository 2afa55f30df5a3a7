"""Messages through a pipe: four bytes of length, then so many bytes."""

from __future__ import annotations

import os


def write_frame(file: int, data: bytes) -> None:
    """Write a whole message; OSError when nobody reads any more."""
    rest = memoryview(len(data).to_bytes(4) + data)
    while rest:
        rest = rest[os.write(file, rest) :]


def read_frame(file: int) -> bytes | None:
    """Read a whole message; None when the other side is gone."""
    header = _read(file, 4)
    return None if header is None else _read(file, int.from_bytes(header))


def _read(file: int, size: int) -> bytes | None:
    parts = []
    while size:
        part = os.read(file, size)
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
