"""Protect an open SQLite file against deletion, replacement and lost locks.

SQLite itself notices none of these:

* The file or its write-ahead log is deleted, moved or replaced. The program goes on writing to a file that no other
  process sees. `FileGuard` checks before and after each write that their directory is unchanged, or else that their
  devices and inodes are.
* Another SQLite library in the same process opens the file. POSIX locks belong to the process, so closing any
  descriptor of a file drops all of them, and another process may then delete the log. The standard library announces
  its connections with an audit event: `sqlite3.connect` on an open database is refused.
* Other code of the process opens and closes the file (a copy, a checksum), with the same effect. No audit event is
  cheap enough to watch for that. Instead, each open file also holds an OFD lock on the bytes that SQLite locks for
  readers. The kernel drops that lock only with its own descriptor, and it alone keeps others from deleting the log.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import unquote

from holdfast.database import ofd_locks
from holdfast.errors import ConfigError, StoreReplaced

if sys.platform == "linux":
    import fcntl

FileId = tuple[int, int]
"""Device and inode."""

# The bytes that SQLite locks for readers of the database, and the one that every process with a WAL index locks
SHARED_FIRST, SHARED_SIZE = 0x40000002, 510
SHM_ALIVE = 128

FULL_CHECK_S = 0.25
"""How long a check may rely on an unchanged directory: a parent of it can be moved too."""
MTIME_GRANULARITY_NS = 20_000_000
"""Linux gives changes within one clock tick (at most 10 ms) the same time."""
_logger = logging.getLogger("holdfast")

SECOND_LIBRARY = (
    "{} is open in this process: Python's sqlite3 module can't open it too, because two SQLite libraries in one process"
    " break each other's file locks, and committed data gets lost. Use the connection of `with app.transaction()` (or"
    " ctx.transaction), or read the file from another process"
)


def file_id(path: str) -> FileId | None:
    """Return the identity of the file that the path names now; None if there is none."""
    try:
        found = os.stat(path)  # noqa: PTH116 - takes bytes too
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino


def processes_on_deleted_files(path: str) -> list[int]:
    """Return the processes that have a deleted file of this name, or its log, open, if this user may see that."""
    real = os.path.realpath(path)
    deleted = {f"{real} (deleted)", f"{real}-wal (deleted)"}
    found = set()
    for fds in Path("/proc").glob("[0-9]*/fd"):
        with suppress(OSError):
            for entry in fds.iterdir():
                with suppress(OSError):  # it was closed meanwhile
                    if str(entry.readlink()) in deleted:
                        found.add(int(fds.parent.name))
    return sorted(found)


class _OpenFile:
    """A database file that this process has open, however many connections use it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.connections = 0
        self._locks: list[tuple[int, int, int]] = []  # descriptor, first byte, how many

    def lock_shared(self, path: str, first: int, size: int) -> None:
        """Take a shared lock on a byte range. The descriptor must stay open for as long as SQLite has the file open."""
        if not ofd_locks.AVAILABLE:
            return
        with suppress(OSError):
            self._locks.append((os.open(path, os.O_RDONLY | os.O_CLOEXEC), first, size))
            self._lock(fcntl.F_RDLCK)

    def _lock(self, kind: int) -> None:
        for fd, first, size in self._locks:
            with suppress(OSError):
                fcntl.fcntl(fd, fcntl.F_OFD_SETLK, ofd_locks.lock_request(kind, first, size))

    def unlock(self) -> None:
        """Release the locks before the last connection closes: SQLite then locks the file to checkpoint the log."""
        if self._locks:
            self._lock(fcntl.F_UNLCK)

    def close(self, *, in_child: bool = False) -> None:
        """Close the descriptors after the last connection has closed.

        A descriptor of a file that other code of this process has open stays open: closing it would drop that code's
        POSIX locks. A forked child closes all of them, because it inherits no POSIX locks.
        """
        for fd, _, _ in self._locks:
            with suppress(OSError):
                if in_child or not _is_open_elsewhere(fd):
                    os.close(fd)
        self._locks = []


def _is_open_elsewhere(fd: int) -> bool:
    opened = os.fstat(fd)
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            if int(entry.name) != fd and os.path.samestat(opened, os.fstat(int(entry.name))):
                return True
    return False


class _OpenFiles:
    """All database files that Holdfast has open in this process."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._files: dict[FileId, _OpenFile] = {}
        self._is_hooked = False

    def add(self, id: FileId, path: str, wal: FileId | None) -> None:
        """Register an open connection; the first one locks the file."""
        file = self._files.get(id)
        if file is None:
            file = self._files[id] = _OpenFile(path)
            file.lock_shared(path, SHARED_FIRST, SHARED_SIZE)
            if wal is not None:
                file.lock_shared(f"{os.path.realpath(path)}-shm", SHM_ALIVE, 1)
        file.connections += 1
        if not self._is_hooked:
            self._is_hooked = True
            sys.addaudithook(_audit)

    def closing(self, id: FileId) -> None:
        """Release the file's locks if the connection that is about to close is the last one."""
        file = self._files.get(id)
        if file is not None and file.connections == 1:
            file.unlock()

    def closed(self, id: FileId) -> None:
        """Forget a closed connection; the last one closes the descriptors of the locks."""
        file = self._files.get(id)
        if file is None:
            return
        file.connections -= 1
        if not file.connections:
            del self._files[id]
            file.close()

    def reset_after_fork(self) -> None:
        """Forget the parent's connections in a forked child. The parent keeps its locks."""
        self.lock = threading.RLock()
        files, self._files = self._files, {}
        for file in files.values():
            file.close(in_child=True)

    def refuse_second_library(self, database: Any) -> None:
        """Raise ConfigError if `sqlite3.connect` is about to open a file that Holdfast has open."""
        if not self._files:
            return
        for path in _paths(database):
            with suppress(OSError, ValueError):
                if file_id(path) in self._files:
                    raise ConfigError(SECOND_LIBRARY.format(f"SQLite file {path}"))


def _paths(database: Any) -> list[str]:
    """Return the files that `sqlite3.connect` may open for this argument: read as a path, and as a URI."""
    try:
        name = os.fsdecode(database)
    except TypeError:
        return []
    if not name.startswith("file:"):
        return [name] if name not in ("", ":memory:") else []
    path = unquote(name.removeprefix("file:").partition("?")[0].partition("#")[0])
    if path.startswith("//"):
        path = f"/{path[2:].partition('/')[2]}"
    return [name, path]


def _audit(event: str, args: tuple[Any, ...]) -> None:
    """Handle an audit event. Python calls this for every event of the process, so it must be cheap."""
    if event == "sqlite3.connect":
        _open_files.refuse_second_library(args[0])


_open_files = _OpenFiles()
os.register_at_fork(after_in_child=_open_files.reset_after_fork)


class FileGuard:
    """Checks that the path of a database still names the file and the log that its connections have open."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.wal = f"{os.path.realpath(path)}-wal"
        self.failure: StoreReplaced | None = None
        """The error that makes this database unusable for the rest of this process."""
        self._file: FileId | None = None
        self._wal: FileId | None = None
        self._connections = 0
        self._failing = threading.Lock()
        self._directory: int | None = None
        self._directory_mtime_ns = -1
        self._full_check_due = 0.0

    @property
    def open_lock(self) -> threading.RLock:
        """The lock for opening and closing connections, shared by all databases of this process."""
        return _open_files.lock

    def make_file(self) -> None:
        """Create the database file if there is none, for its owner only. SQLite gives its -wal and -shm the same mode.

        An existing file isn't opened here: closing it would drop the locks of this process's connections to it.
        """
        with self.open_lock:  # another thread may be closing the last connection, which deletes the log
            if self._connections:
                self.check()
                return
        try:
            os.close(os.open(os.path.realpath(self.path), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            if Path(self.path).is_dir():
                raise IsADirectoryError from None
            if not os.access(self.path, os.R_OK | os.W_OK):
                raise PermissionError(13, "Permission denied") from None

    def find_file(self) -> FileId:
        """Return the identity of the file; raise StoreReplaced if there is none."""
        file = file_id(self.path)
        if file is None:
            self._fail(f"SQLite file {self.path} was removed")
        return file

    def opened(self) -> None:
        """Register a connection that was opened and has read once, so that the log exists."""
        file, wal = self.find_file(), file_id(self.wal)
        if not self._connections:
            self._file, self._wal = file, wal
            self._watch_directory()
        else:
            self.check()
        _open_files.add(file, self.path, wal)
        self._connections += 1

    def check(self) -> None:
        """Raise StoreReplaced unless the file and its log are those that were opened.

        This runs after every commit, so it must be cheap: deleting or replacing a file changes its directory, and one
        `fstat` tells whether the directory has changed (bench: steps). The full check follows every `FULL_CHECK_S`.
        """
        if (
            self._directory is not None
            and time.monotonic() < self._full_check_due
            and os.fstat(self._directory).st_mtime_ns == self._directory_mtime_ns
            and self.failure is None
        ):
            return
        self._check_files()

    def _check_files(self) -> None:
        """Compare the identities of the file and its log, and remember the state of their directory."""
        if self.failure is not None:
            raise StoreReplaced(str(self.failure))
        mtime_ns = 0 if self._directory is None else os.fstat(self._directory).st_mtime_ns
        try:
            file, wal = file_id(self.path), file_id(self.wal) if self._wal is not None else None
        except OSError:  # such as a missing permission, which proves nothing
            return
        if file != self._file:
            self._fail(f"SQLite file {self.path} was {'removed' if file is None else 'replaced'}")
        if wal != self._wal:
            self._fail(f"the write-ahead log {self.wal} was {'removed' if wal is None else 'replaced'}")
        if mtime_ns < time.time_ns() - MTIME_GRANULARITY_NS:  # a later change will have another time
            self._directory_mtime_ns = mtime_ns
            self._full_check_due = time.monotonic() + FULL_CHECK_S

    def _watch_directory(self) -> None:
        """Open the directory of the file and its log, unless a link leads there: then it may be changed elsewhere."""
        real = os.path.realpath(self.path)
        if real == self.path:
            with suppress(OSError):
                self._directory = os.open(Path(real).parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def close_directory(self) -> None:
        """Stop watching the directory."""
        directory, self._directory = self._directory, None
        if directory is not None:
            os.close(directory)

    def is_intact(self) -> bool:
        """Return whether `check` passes."""
        try:
            self.check()
        except StoreReplaced:
            return False
        return True

    def _fail(self, what: str) -> NoReturn:
        with self._failing:
            if self.failure is None:
                self.failure = StoreReplaced(
                    f"{what} while this program had it open. What this program committed since then is lost, and it"
                    f" writes nothing more. Stop all programs that use {Path(self.path).name}, put the file back"
                    " together with its -wal file if you moved or restored it, and start them again"
                )
                _logger.error("%s", self.failure)
        raise StoreReplaced(str(self.failure))

    def closing(self) -> None:
        """Prepare for the close of a connection."""
        if self._file is not None:
            _open_files.closing(self._file)

    def closed(self) -> None:
        """Forget a connection that was closed."""
        self._connections -= 1
        if not self._connections:
            self.close_directory()
        if self._file is not None:
            _open_files.closed(self._file)
