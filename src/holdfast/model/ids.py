"""Ids of runs: UUID version 7, which sort by the time they were made."""

from __future__ import annotations

import os
import threading
import time
from random import Random
from uuid import UUID

_lock = threading.Lock()
_random = Random()  # seeded by the system
_last = 0


def _begin_anew() -> None:
    """In a forked child the lock may be held by a thread that isn't there, and the parent goes on with our numbers."""
    global _lock
    _lock = threading.Lock()
    _random.seed()


os.register_at_fork(after_in_child=_begin_anew)


def new_id() -> UUID:
    """A new UUID version 7. Ids made by one process ascend, also within a millisecond."""
    return UUID(new_id_text())


def new_id_text() -> str:
    """The same as text, for those who make many.

    Layout: 48 bits of milliseconds, then 12 bits that count 1/4096 of a millisecond (pushed on by one where two ids
    would be equal), then 62 random bits.
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
