"""Which SQLite write lock another process holds, read from the kernel's list of its file locks. Linux only."""

from __future__ import annotations

from pathlib import Path

PROCESSES = Path("/proc")
WRITER_BYTES = {"-shm": 120, "-lock": 0}
"""Suffixes of the files beside a database, and the byte that its writer locks there: SQLite's own lock in WAL mode, and
the turn of `sqlite_write_queue.py`."""


def held_write_lock(pid: int) -> str | None:
    """Return the lock file in which the process holds the write lock of a SQLite database.

    None if it holds none, has ended or may not be inspected, and on other platforms.
    """
    process = PROCESSES / str(pid)
    try:
        descriptions = list((process / "fdinfo").iterdir())
    except OSError:
        return None
    for description in descriptions:
        try:
            path = str((process / "fd" / description.name).readlink())
            byte = next((byte for suffix, byte in WRITER_BYTES.items() if path.endswith(suffix)), None)
            if byte is not None and _is_write_locked(description.read_text(), byte):
                return path
        except OSError:  # closed meanwhile
            continue
    return None


def _is_write_locked(description: str, byte: int) -> bool:
    """Return whether a descriptor's `fdinfo` names a write lock on this byte.

    Such a line reads `lock: 1: POSIX ADVISORY WRITE 4711 08:01:132 120 120`; the last two fields are the first and last
    byte, or `EOF`.
    """
    for line in description.splitlines():
        words = line.split()
        if words[:1] != ["lock:"] or "WRITE" not in words or "->" in words:
            continue
        first, last = words[-2:]
        if int(first) <= byte and (last == "EOF" or byte <= int(last)):
            return True
    return False
