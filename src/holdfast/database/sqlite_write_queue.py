"""A fair queue for the write lock of a SQLite file, shared by all Holdfast connections and processes on that file.

SQLite doesn't queue writers: each one sleeps and tries again, so a program that commits and begins at once wins against
every sleeping writer. Holdfast's writers therefore take turns in a lock file beside the database, before they lock the
database itself. Turns and positions in the queue are byte-range locks that belong to an open file (OFD locks), which
the kernel releases when a process dies. The file itself only names the process whose application code has the turn,
for error messages.

    byte 0                    locked while a connection writes
    URGENT_FIRST + time       locked by a heartbeat that waits
    ORDINARY_FIRST + time     locked by any other writer that waits

The time is the kernel's monotonic clock when the wait began, in microseconds, so the byte's offset is the position in
the queue. Heartbeats go before all other writers. Without waiters, a connection takes the turn with two system calls.

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

from holdfast.database import ofd_locks

if sys.platform == "linux":
    import fcntl

WAIT_TIMEOUT_S = 30.0
URGENT_TIMEOUT_S = 10.0
WAITER_CHECK_S = 0.003
"""How long a connection keeps writing without checking for waiters, after it found none: each check costs a system call
per transaction (bench: steps)."""
TURN_S = 0.02
"""How long a connection may overtake waiting ones, so that short transactions of one process aren't interleaved with
another's: each change of the writer makes SQLite drop its page cache."""
STALE_S = 0.25
"""Waiters that leave a free lock alone for this long are frozen (SIGSTOP) and lose their position."""
BYPASS_S = 10.0
"""How long a connection bypasses the queue after its file failed, or after SQLite let it write while another connection
had the turn: the process of that connection is frozen."""
MIN_POLL_S, MAX_POLL_S = 0.0005, 0.005
POLL_SHARE = 1 / 16
"""The next poll comes after this share of the time waited so far, so that waiting for a long transaction is cheap."""
RECHECK_S = 1.0

WRITER = 0
URGENT_FIRST = 1
ORDINARY_FIRST = 1 << 52
_TO_END = 0

_HOLDER = struct.Struct("=qq")
"""Process id, and the start of its transaction in microseconds (monotonic)."""

if sys.platform == "linux":  # the requests of every write, packed once
    _LOCK_WRITER = ofd_locks.lock_request(fcntl.F_WRLCK, WRITER, 1)
    _UNLOCK_WRITER = ofd_locks.lock_request(fcntl.F_UNLCK, WRITER, 1)
    _FIND_WAITER = ofd_locks.lock_request(fcntl.F_WRLCK, URGENT_FIRST, _TO_END)
    _NO_WAITER = struct.pack("h", fcntl.F_UNLCK)


class Holder(NamedTuple):
    """The process that has the turn with a transaction of application code, and for how long."""

    pid: int
    seconds: float

    def __str__(self) -> str:
        return f"process {self.pid}, which has kept its transaction open for {self.seconds:.1f} s"


class SqliteWriteQueue:
    """One connection's access to the queue; used by one thread at a time."""

    def __init__(self, database: str, *, urgent: bool = False) -> None:
        self.path = f"{database}-lock"
        self._database = database
        self._is_urgent = urgent
        self._is_usable = ofd_locks.AVAILABLE
        self._fd: int | None = None
        self._holds_turn = False
        self._holder_recorded = False
        self._turn_ends = 0.0
        self._no_waiter_until = 0.0
        self._next_check = 0.0
        self._bypass_until = 0.0
        self._urgent_first, self._ordinary_first = URGENT_FIRST, ORDINARY_FIRST
        self.waiting_since: float | None = None
        """When the wait under way began (monotonic)."""
        self.last_wait_s = 0.0
        """How long the last `acquire` waited."""
        self.is_overdue = False
        """Whether the last `acquire` timed out."""

    def acquire(self) -> None:
        """Wait for the turn. May return without it (a timeout, no usable file); then only SQLite's own lock decides."""
        if self._holds_turn:
            return
        now = time.monotonic()
        self.last_wait_s = 0.0
        self.is_overdue = False
        if now < self._bypass_until or not self._is_usable:
            return
        try:
            if now >= self._next_check:
                self._check_file(now)
            self.is_overdue = not self._acquire(now)
        except OSError:  # no permission, no such locks, no descriptor left
            self._bypass_until = now + BYPASS_S
            self.close()

    def _acquire(self, now: float) -> bool:
        if self._is_urgent:
            return self._try_turn() or self._wait(now)
        if now < self._no_waiter_until:
            return self._try_turn() or self._wait(now)
        if not self._anyone_waits():
            self._turn_ends = now + TURN_S
            self._no_waiter_until = now + WAITER_CHECK_S
        elif now >= self._turn_ends or self._is_locked(self._urgent_first, ORDINARY_FIRST):
            return self._wait(now)
        return self._try_turn() or self._wait(now)

    def _wait(self, began: float) -> bool:
        """Poll until those before this connection have had their turn and the lock is free; False after a timeout."""
        position = self._join_queue(began)
        self.waiting_since = now = polled = began
        free_since: float | None = None
        try:
            while True:
                if not self._must_queue(position):
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
                    self._unlock(position)
                    position = self._join_queue(now)
        finally:
            self._unlock(position)
            self.waiting_since = None
            self.last_wait_s = time.monotonic() - began

    def _must_queue(self, position: int) -> bool:
        """Return whether another waiter comes before this connection."""
        if self._is_urgent:
            return self._is_locked(self._urgent_first, position)
        return self._is_locked(self._urgent_first, ORDINARY_FIRST) or self._is_locked(self._ordinary_first, position)

    def _anyone_waits(self) -> bool:
        if self._ordinary_first == ORDINARY_FIRST:
            found = fcntl.fcntl(self._descriptor, fcntl.F_OFD_GETLK, _FIND_WAITER)
            return found[: len(_NO_WAITER)] != _NO_WAITER
        return self._is_locked(self._urgent_first, ORDINARY_FIRST) or self._is_locked(self._ordinary_first, _TO_END)

    def _join_queue(self, now: float) -> int:
        position = (URGENT_FIRST if self._is_urgent else ORDINARY_FIRST) + int(now * 1e6)
        while not self._try_lock(position):
            position += 1
        return position

    def release(self) -> None:
        """Release the turn, if this connection has it."""
        if not self._holds_turn:
            return
        self._holds_turn = False
        try:
            if self._holder_recorded:
                self._holder_recorded = False
                os.pwrite(self._descriptor, bytes(_HOLDER.size), 0)
            fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLK, _UNLOCK_WRITER)
        except OSError:
            self.close()

    def wrote(self) -> None:
        """Bypass the queue for a while if this connection wrote without the turn.

        The connection that had the turn all the time isn't in a transaction, so its process is frozen.
        """
        if self.is_overdue:
            self.is_overdue = False
            self._bypass_until = time.monotonic() + BYPASS_S

    def note_holder(self) -> None:
        """Record this process as the holder of the turn, for transactions that application code may keep open."""
        if self._holds_turn:
            with suppress(OSError):
                self._holder_recorded = True
                os.pwrite(self._descriptor, _HOLDER.pack(os.getpid(), int(time.monotonic() * 1e6)), 0)

    def holder(self) -> Holder | None:
        """Return the process whose application code has the turn, if it is known."""
        if not self._is_usable:
            return None
        try:
            if self._fd is None:
                self._check_file(time.monotonic())
            recorded = os.pread(self._descriptor, _HOLDER.size, 0)
            if len(recorded) < _HOLDER.size or not self._is_locked(WRITER, 1):
                return None
        except OSError:
            return None
        pid, since = _HOLDER.unpack(recorded)
        return Holder(pid, max(time.monotonic() - since / 1e6, 0.0)) if pid else None

    def close(self) -> None:
        """Close the lock file, which releases its locks. In a forked child this leaves the parent's locks alone."""
        fd, self._fd = self._fd, None
        self._holds_turn = self._holder_recorded = False
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
        """Open the lock file, again if it was deleted. It gets the owner and the permissions of the database."""
        self._next_check = now + RECHECK_S
        if self._fd is not None:
            if os.fstat(self._fd).st_nlink:
                return
            self.close()
        try:
            self._fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            owner = Path(self._database).stat()
            self._fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_CREAT, 0o600)
            with suppress(OSError):
                os.fchmod(self._fd, owner.st_mode & 0o666)
                os.fchown(self._fd, owner.st_uid, owner.st_gid)

    def _try_turn(self) -> bool:
        self._holds_turn = True  # before the call, so that an interrupt after it releases the lock
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
            fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLK, ofd_locks.lock_request(fcntl.F_WRLCK, byte, 1))
        except (BlockingIOError, PermissionError):
            return False
        return True

    def _unlock(self, byte: int) -> None:
        with suppress(OSError):
            fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLK, ofd_locks.lock_request(fcntl.F_UNLCK, byte, 1))

    def _is_locked(self, first: int, end: int) -> bool:
        """Whether another connection has a lock on any byte from `first` up to `end`; 0: up to the last one."""
        length = end - first if end else _TO_END
        if length < 0 or (end and not length):
            return False
        found = fcntl.fcntl(self._descriptor, fcntl.F_OFD_GETLK, ofd_locks.lock_request(fcntl.F_WRLCK, first, length))
        return bool(ofd_locks.FLOCK.unpack(found)[0] != fcntl.F_UNLCK)
