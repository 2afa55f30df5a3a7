"""Run ids: UUID version 7, which sort by creation time."""

from __future__ import annotations

import os
import threading
import time
from random import Random
from uuid import UUID

_lock = threading.Lock()
_random = Random()
_last = 0


def _reset_after_fork() -> None:
    """Reset in a forked child: a thread of the parent may hold the lock, and the parent continues the same sequence."""
    global _lock
    _lock = threading.Lock()
    _random.seed()


os.register_at_fork(after_in_child=_reset_after_fork)


def new_id() -> UUID:
    """Return a new UUID version 7. Ids of one process ascend, also within a millisecond."""
    return UUID(new_id_text())


def new_id_text() -> str:
    """Return a new id as text, which is faster if many are needed.

    Layout: 48 bits of milliseconds, 12 bits that count 1/4096 of a millisecond (incremented where two ids would be
    equal), 62 random bits.
    """

    global _last
    now = (time.time_ns() << 12) // 1_000_000
    with _lock:
        _last = now = max(now, _last + 1)
        random = _random.getrandbits(62)
    return (
        f"{now >> 28:08x}-{now >> 12 & 0xFFFF:04x}-7{now & 0xFFF:03x}"
        f"-{0x8000 | random >> 48:04x}-{random & 0xFFFF_FFFF_FFFF:012x}"
    )
