"""Back up SQLite databases while they are in use, and restore backups."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from holdfast.control.open import IN_MEMORY
from holdfast.database.sqlite_backup import copy_file, count_unfinished, prepare_restored
from holdfast.database.url import sqlite_path
from holdfast.errors import ConfigError


class BackupReport(msgspec.Struct, frozen=True):
    """What was backed up or restored."""

    source: str
    target: str
    bytes: int
    unfinished: dict[str, int]
    """Unfinished runs by state. After a restore, their outcome may have been lost."""


def backup(url: str, file: Path, progress: Callable[[int, int], None] = lambda _done, _all: None) -> BackupReport:
    """Copy the SQLite database of this URL to a new file. Programs may use it meanwhile."""
    copy_file(_path(url), file, progress)
    return BackupReport(url, str(file), file.stat().st_size, count_unfinished(file))


def restore(
    file: Path, url: str, *, paused: bool = False, progress: Callable[[int, int], None] = lambda _done, _all: None
) -> BackupReport:
    """Create the SQLite database of this URL from a backup. Its file must not exist.

    `paused`: pause all queues, so that nothing runs before someone has looked at the unfinished runs.
    """
    path = _path(url)
    for suffix in ("-wal", "-shm"):
        left = path.with_name(path.name + suffix)
        if left.exists():
            raise ConfigError(
                f"{left} belongs to another database: stop all programs that use {path}, and move it away"
            )
    unfinished = count_unfinished(file)  # it is a database that this code can read
    copy_file(file, path, progress)
    prepare_restored(path, paused=paused)
    return BackupReport(str(file), url, path.stat().st_size, unfinished)


def _path(url: str) -> Path:
    if not url.startswith("sqlite:") or url == IN_MEMORY:
        raise ConfigError("backup and restore are for SQLite files; docs/backup.md shows how to back up PostgreSQL")
    return Path(sqlite_path(url))
