"""Ids of runs: UUID version 7, which sort by the time they were made."""

from __future__ import annotations

import os
import threading
import time
from uuid import UUID

_lock = threading.Lock()
_last = 0


def _new_lock() -> None:
    """In a forked child the lock may be held by a thread that isn't there."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_new_lock)


def new_id() -> UUID:
    """A new UUID version 7. Ids made by one process ascend, also within a millisecond.

    Layout: 48 bits of milliseconds, then 12 bits that count 1/4096 of a millisecond (pushed on by one where two ids
    would be equal), then 62 random bits.
    """
    global _last
    now = (time.time_ns() << 12) // 1_000_000
    with _lock:
        _last = now = max(now, _last + 1)
    random = int.from_bytes(os.urandom(8)) & 0x3FFF_FFFF_FFFF_FFFF
    value = (now >> 12) << 80 | 0x7 << 76 | (now & 0xFFF) << 64 | 0b10 << 62 | random
    return UUID(int=value)
