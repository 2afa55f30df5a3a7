"""Wait until a file is written, by any process, without polling it.

Linux reports writes through inotify. Elsewhere, and where the kernel refuses another watch, `open_watch` returns None
and the caller polls.
"""

from __future__ import annotations

import ctypes
import os
import select
import sys
from contextlib import suppress
from pathlib import Path

IN_MODIFY = 0x00000002
IN_IGNORED = 0x00008000
"""The watch is gone, because the file was deleted."""
_EVENT_HEADER_BYTES = 16
_READ_BYTES = 64 * 1024


class FileWatch:
    """Reports writes to one file. Used by one thread; `interrupt` and `close` may come from another one."""

    def __init__(self, path: str, inotify: int, libc: ctypes.CDLL) -> None:
        self._path = path
        self._inotify = inotify
        self._libc = libc
        self._interrupt = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll = select.poll()
        self._poll.register(inotify, select.POLLIN)
        self._poll.register(self._interrupt, select.POLLIN)
        self._is_watching = False

    def is_watching(self) -> bool:
        """Return whether writes are reported; if not, try to watch the file again."""
        if not self._is_watching:
            self._is_watching = self._libc.inotify_add_watch(self._inotify, os.fsencode(self._path), IN_MODIFY) >= 0
        return self._is_watching

    def wait(self, timeout_s: float) -> bool:
        """Return True when the file was written since the last `drain`; False after `timeout_s` or when interrupted."""
        return any(fd == self._inotify for fd, _ in self._poll.poll(timeout_s * 1000))

    def drain(self) -> None:
        """Discard what was reported so far. Read the file's state after this, not before."""
        with suppress(BlockingIOError):
            while True:
                events = os.read(self._inotify, _READ_BYTES)
                self._is_watching = self._is_watching and not _has_ignored(events)

    def interrupt(self) -> None:
        """End the wait under way, and every later one."""
        with suppress(OSError):
            os.eventfd_write(self._interrupt, 1)

    def close(self) -> None:
        for fd in (self._inotify, self._interrupt):
            with suppress(OSError):
                os.close(fd)


def open_watch(path: str) -> FileWatch | None:
    """Watch an existing file, or return None if the platform can't."""
    if sys.platform != "linux" or not Path(path).exists():
        return None
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        inotify = libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, AttributeError):
        return None
    if inotify < 0:
        return None
    watch = FileWatch(path, inotify, libc)
    if watch.is_watching():
        return watch
    watch.close()
    return None


def _has_ignored(events: bytes) -> bool:
    at = 0
    while at < len(events):
        mask = int.from_bytes(events[at + 4 : at + 8], sys.byteorder)
        name_bytes = int.from_bytes(events[at + 12 : at + 16], sys.byteorder)
        if mask & IN_IGNORED:
            return True
        at += _EVENT_HEADER_BYTES + name_bytes
    return False
