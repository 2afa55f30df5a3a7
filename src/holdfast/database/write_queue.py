"""A fair queue for the write lock of a SQLite file, shared by all Holdfast connections and processes on that file.

SQLite doesn't queue writers: each one sleeps and tries again, so a program that commits and begins at once wins against
everybody who sleeps. Holdfast's writers therefore take turns in a lock file beside the database, before they ask SQLite
for its lock. The lock file holds no state. Turns and places in the queue are byte-range locks that belong to an open
file (OFD locks), which the kernel releases when a process dies.

    byte 0                    locked while a connection writes
    URGENT_FIRST + time       locked by a heartbeat that waits
    ORDINARY_FIRST + time     locked by any other writer that waits

The time is the kernel's monotonic clock when the wait began, in microseconds, so the byte's offset is the place in the
queue. Heartbeats go before everybody else. A connection that nobody waits for takes the turn with two system calls.

The queue only orders writers, and SQLite's own lock stays the one that protects the data. Where the file can't be used
(another platform, a file system without such locks, no permission), writers go straight to SQLite.
"""

from __future__ import annotations

import os
import struct
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

if sys.platform == "linux":
    import fcntl

WAIT_TIMEOUT_S = 30.0
URGENT_TIMEOUT_S = 10.0
TURN_S = 0.02
"""How long a connection may pass those who wait, so that short transactions of one process are not interleaved with
another's: each change of the writer makes SQLite drop its page cache."""
STALE_S = 0.25
"""Waiters who leave a free lock alone for so long are frozen (SIGSTOP) and lose their place."""
DISTRUST_S = 10.0
"""How long the queue is passed by when its file can't be used, or when SQLite let us write while somebody had the
turn: that process is frozen."""
MIN_POLL_S, MAX_POLL_S = 0.0005, 0.005
POLL_SHARE = 1 / 16
"""The next poll comes after this share of the time waited so far, so that waiting for a long transaction is cheap."""
RECHECK_S = 1.0

WRITER = 0
URGENT_FIRST = 1
ORDINARY_FIRST = 1 << 52
_TO_END = 0

_FLOCK = struct.Struct("hhqqi4x")
_HOLDER = struct.Struct("=qq")

if sys.platform == "linux":  # what every write asks the kernel, ready to be sent
    _LOCK_WRITER = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, WRITER, 1, 0)
    _UNLOCK_WRITER = _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, WRITER, 1, 0)
    _ASK_ANYONE = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, URGENT_FIRST, _TO_END, 0)
    _NOBODY = struct.pack("h", fcntl.F_UNLCK)


class Holder(NamedTuple):
    """Who has the turn with a transaction of application code, and for how long."""

    pid: int
    seconds: float

    def __str__(self) -> str:
        return f"process {self.pid}, which has kept its transaction open for {self.seconds:.1f} s"


class WriteQueue:
    """One connection's access to the queue; used by one thread at a time."""

    def __init__(self, database: str, *, urgent: bool = False) -> None:
        self.path = f"{database}-lock"
        self._database = database
        self._is_urgent = urgent
        self._is_usable = sys.platform == "linux" and hasattr(fcntl, "F_OFD_SETLK")
        self._fd: int | None = None
        self._holds_turn = False
        self._noted = False
        self._turn_ends = 0.0
        self._next_check = 0.0
        self._distrusted_until = 0.0
        self._urgent_first, self._ordinary_first = URGENT_FIRST, ORDINARY_FIRST
        self.waiting_since: float | None = None
        """When the wait under way began (monotonic)."""
        self.last_wait_s = 0.0
        """How long the last turn was waited for."""
        self.is_overdue = False
        """Whether the last turn didn't come in time."""

    def acquire(self) -> None:
        """Wait for the turn. It may come back without one: then only SQLite's own lock decides."""
        if self._holds_turn:
            return
        now = time.monotonic()
        self.last_wait_s = 0.0
        self.is_overdue = False
        if now < self._distrusted_until or not self._is_usable:
            return
        try:
            if now >= self._next_check:
                self._check_file(now)
            self.is_overdue = not self._acquire(now)
        except OSError:  # no permission, no such locks, no descriptor left
            self._distrusted_until = now + DISTRUST_S
            self.close()

    def _acquire(self, now: float) -> bool:
        if self._is_urgent:
            return self._try_turn() or self._wait(now)
        if not self._anyone_waits():
            self._turn_ends = now + TURN_S
        elif now >= self._turn_ends or self._is_locked(self._urgent_first, ORDINARY_FIRST):
            return self._wait(now)
        return self._try_turn() or self._wait(now)

    def _wait(self, began: float) -> bool:
        """Poll until those before us have had their turn and the lock is free."""
        self.waiting_since = now = polled = began
        place = self._take_place(began)
        free_since: float | None = None
        try:
            while True:
                if not self._must_queue(place):
                    if self._try_turn():
                        self._turn_ends = now + TURN_S
                        return True
                    free_since = None
                elif self._is_locked(WRITER, 1):
                    free_since = None
                elif free_since is None:
                    free_since = now
                elif now - free_since > STALE_S:
                    self._urgent_first = URGENT_FIRST + int(free_since * 1e6)
                    self._ordinary_first = max(self._ordinary_first, ORDINARY_FIRST + int(free_since * 1e6))
                waited = now - began
                if waited > (URGENT_TIMEOUT_S if self._is_urgent else WAIT_TIMEOUT_S):
                    return False
                time.sleep(min(max(waited * POLL_SHARE, MIN_POLL_S), MAX_POLL_S))
                polled, now = now, time.monotonic()
                if now - polled > STALE_S:  # this process was frozen, and the others may have passed it
                    self._unlock(place)
                    place = self._take_place(now)
        finally:
            self._unlock(place)
            self.waiting_since = None
            self.last_wait_s = time.monotonic() - began

    def _must_queue(self, place: int) -> bool:
        """Whether somebody is before us."""
        if self._is_urgent:
            return self._is_locked(self._urgent_first, place)
        return self._is_locked(self._urgent_first, ORDINARY_FIRST) or self._is_locked(self._ordinary_first, place)

    def _anyone_waits(self) -> bool:
        if self._ordinary_first == ORDINARY_FIRST:
            found = fcntl.fcntl(self._descriptor, fcntl.F_OFD_GETLK, _ASK_ANYONE)
            return found[: len(_NOBODY)] != _NOBODY
        return self._is_locked(self._urgent_first, ORDINARY_FIRST) or self._is_locked(self._ordinary_first, _TO_END)

    def _take_place(self, now: float) -> int:
        place = (URGENT_FIRST if self._is_urgent else ORDINARY_FIRST) + int(now * 1e6)
        while not self._try_lock(place):
            place += 1
        return place

    def release(self) -> None:
        """Give the turn back, if this connection has it."""
        if not self._holds_turn:
            return
        self._holds_turn = False
        try:
            if self._noted:
                self._noted = False
                os.pwrite(self._descriptor, bytes(_HOLDER.size), 0)
            fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLK, _UNLOCK_WRITER)
        except OSError:
            self.close()

    def wrote(self) -> None:
        """SQLite let us write. If another one has had the turn all the time, its process is frozen outside of its
        transaction: leave the queue alone for a while."""
        if self.is_overdue:
            self.is_overdue = False
            self._distrusted_until = time.monotonic() + DISTRUST_S

    def note_holder(self) -> None:
        """Write down who has the turn, for transactions that application code may keep open."""
        if self._holds_turn:
            with suppress(OSError):
                self._noted = True
                os.pwrite(self._descriptor, _HOLDER.pack(os.getpid(), int(time.monotonic() * 1e6)), 0)

    def holder(self) -> Holder | None:
        """Which process's application code has the turn, as far as it is known."""
        if not self._is_usable:
            return None
        try:
            if self._fd is None:
                self._check_file(time.monotonic())
            kept = os.pread(self._descriptor, _HOLDER.size, 0)
            if len(kept) < _HOLDER.size or not self._is_locked(WRITER, 1):
                return None
        except OSError:
            return None
        pid, since = _HOLDER.unpack(kept)
        return Holder(pid, max(time.monotonic() - since / 1e6, 0.0)) if pid else None

    def close(self) -> None:
        """Close the lock file, which gives everything back. In a forked child this leaves the parent's locks alone."""
        fd, self._fd = self._fd, None
        self._holds_turn = self._noted = False
        self._next_check = 0.0
        if fd is not None:
            with suppress(OSError):
                os.close(fd)

    # The file and its locks

    @property
    def _descriptor(self) -> int:
        if self._fd is None:
            raise OSError("the lock file is closed")
        return self._fd

    def _check_file(self, now: float) -> None:
        """Open the lock file, again if it was deleted. It is as accessible as the database."""
        self._next_check = now + RECHECK_S
        if self._fd is not None:
            if os.fstat(self._fd).st_nlink:
                return
            self.close()
        try:
            self._fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            owner = Path(self._database).stat()
            self._fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC | os.O_CREAT, 0o600)
            with suppress(OSError):
                os.fchmod(self._fd, owner.st_mode & 0o666)
                os.fchown(self._fd, owner.st_uid, owner.st_gid)

    def _try_turn(self) -> bool:
        self._holds_turn = True  # before the call: an interrupt behind it must find something to release
        try:
            fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLK, _LOCK_WRITER)
        except (BlockingIOError, PermissionError):
            self._holds_turn = False
        except OSError:
            self._holds_turn = False
            raise
        return self._holds_turn

    def _try_lock(self, byte: int) -> bool:
        try:
            fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0))
        except (BlockingIOError, PermissionError):
            return False
        return True

    def _unlock(self, byte: int) -> None:
        with suppress(OSError):
            fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, byte, 1, 0))

    def _is_locked(self, first: int, end: int) -> bool:
        """Whether another connection has a lock on any byte from `first` up to `end`; 0: up to the last one."""
        length = end - first if end else _TO_END
        if length < 0 or (end and not length):
            return False
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, first, length, 0)
        found = fcntl.fcntl(self._descriptor, fcntl.F_OFD_GETLK, asked)
        return bool(_FLOCK.unpack(found)[0] != fcntl.F_UNLCK)
