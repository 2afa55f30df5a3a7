"""Frame messages in a pipe: a tag, a type in one byte, the length in four bytes, the data.

Requests have an empty tag. The tag of an answer identifies the call that it answers and the process that wrote it: a
task may fork, and its copies share the pipe. User code can write anything to the pipe, so the reader checks the tag,
the type and the length before it reads the data.
"""

from __future__ import annotations

import os
from collections.abc import Callable

REQUEST, BEGUN, END = b"R", b"B", b"E"
"""Types of frames: an attempt to execute; user code is about to start; the attempt has ended."""


class BadFrame(Exception):
    """The pipe contains something else than the expected frame. The message says what."""


def answer_tag(nonce: str, pid: int) -> bytes:
    """Return the tag of the answers to one call of one process."""
    return bytes.fromhex(nonce) + pid.to_bytes(4)


def _always(_started: bool) -> bool:
    return True


def encode_frame(kind: bytes, data: bytes, tag: bytes = b"") -> bytes:
    """Return a message as it goes through the pipe."""
    return tag + kind + len(data).to_bytes(4) + data


def write_frame(file: int, kind: bytes, data: bytes, tag: bytes = b"") -> None:
    """Write a whole message. Raises OSError if the reader is gone."""
    rest = memoryview(encode_frame(kind, data, tag))
    while rest:
        rest = rest[os.write(file, rest) :]


def read_frame(
    file: int,
    kind: bytes,
    max_bytes: int,
    tag: bytes = b"",
    more: Callable[[bool], bool] = _always,
) -> bytes | None:
    """Read a whole message of one type, or return None if the writer is gone. Raises BadFrame for anything else.

    `more` may wait until there is more to read, and returns whether there is. Its argument tells whether a part of the
    message has been read.
    """
    header = _read(file, len(tag) + len(kind) + 4, more, started=False)
    if header is None:
        return None
    if not header.startswith(tag):
        raise BadFrame("a process other than the task's own, or the task itself, wrote to its result pipe")
    found, size = header[len(tag) : -4], int.from_bytes(header[-4:])
    if found != kind:
        raise BadFrame(f"its process sent a frame of type {found!r} instead of {kind!r}")
    if size > max_bytes:
        raise BadFrame(f"its process announced {size:,} bytes, more than {max_bytes:,}")
    return _read(file, size, more, started=True)


def _read(file: int, size: int, more: Callable[[bool], bool], *, started: bool) -> bytes | None:
    parts = []
    while size:
        part = os.read(file, size) if more(started) else b""
        if not part:
            return None
        parts.append(part)
        size -= len(part)
        started = True
    return b"".join(parts)
