"""Copies of SQLite files with SQLite's backup API: consistent, while workers write."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw

from holdfast.database.planted_files import refuse_planted_files
from holdfast.errors import ConfigError, StoreError

PAGES_PER_STEP = 1000
PART_SUFFIX = ".part"
"""A copy has this suffix until it is complete."""

_EXCUSE_SESSIONS = "update holdfast_workers set lease_until = 0, died_with = 0, idle = 0"
_COUNT_UNFINISHED = """
select state, count(*) from holdfast_runs where state not in ('done', 'failed', 'cancelled', 'skipped')
group by state order by state
"""
_PAUSE_QUEUES = """
insert into holdfast_queues (name, paused, paused_at)
select distinct queue, 1, cast(unixepoch('now', 'subsec') * 1000000 as integer) from holdfast_lanes where true
on conflict (name) do update set paused = 1, paused_at = coalesce(paused_at, excluded.paused_at)
"""


def copy_file(source: Path, target: Path, progress: Callable[[int, int], None]) -> None:
    """Copy a database that may be in use to a file that doesn't exist, and check the copy.

    `progress` is called with the copied and all pages. The copy appears when it is complete. All of it is from one
    moment: the copy reads one snapshot, which other writers don't change.
    """
    if not source.is_file():
        raise ConfigError(f"{source} does not exist")
    if target.exists():
        raise ConfigError(f"{target} exists: choose another name, or move it away first")
    if not target.absolute().parent.is_dir():
        raise ConfigError(f"the directory of {target} does not exist: create it first")
    part = target.with_name(target.name + PART_SUFFIX)
    part.unlink(missing_ok=True)  # of a copy that was interrupted
    try:
        _copy_snapshot(source, part, progress)
        _check(part)
        _sync(part)
        part.rename(target)
        _sync(target.absolute().parent)
    except apsw.Error as error:
        raise StoreError(f"{source} can't be copied to {target}: {error}") from error
    finally:
        part.unlink(missing_ok=True)


def prepare_restored(file: Path, *, paused: bool) -> None:
    """Change a copy that no program uses yet, so that its workers count as lost through no fault of their runs.

    `paused`: pause all queues, too.
    """
    refuse_planted_files(str(file))
    connection = apsw.Connection(str(file))
    try:
        with connection:
            connection.execute(_EXCUSE_SESSIONS)
            if paused:
                connection.execute(_PAUSE_QUEUES)
    finally:
        connection.close()


def count_unfinished(file: Path) -> dict[str, int]:
    """Count the unfinished runs of a backup by state, without changing the file."""
    if not file.is_file():
        raise ConfigError(f"{file} does not exist")
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    try:
        connection = apsw.Connection(f"{file.absolute().as_uri()}?immutable=1", flags=flags)
        try:
            rows: Any = connection.execute(_COUNT_UNFINISHED).fetchall()
            return dict(rows)
        finally:
            connection.close()
    except apsw.Error as error:
        raise StoreError(f"{file} isn't a backup of a Holdfast database: {error}") from error


def _copy_snapshot(source: Path, part: Path, progress: Callable[[int, int], None]) -> None:
    reader = apsw.Connection(str(source), flags=apsw.SQLITE_OPEN_READWRITE)
    writer = apsw.Connection(str(part))
    try:
        reader.execute("begin")
        reader.execute("select count(*) from sqlite_schema").fetchall()  # begins the snapshot
        with writer.backup("main", reader, "main") as backup:
            while not backup.done:
                backup.step(PAGES_PER_STEP)
                progress(backup.page_count - backup.remaining, backup.page_count)
    finally:
        writer.close()
        reader.close()


def _check(part: Path) -> None:
    connection = apsw.Connection(str(part))
    try:
        connection.execute("pragma journal_mode = delete").fetchall()  # one file, without a log
        found = connection.execute("pragma quick_check(1)").fetchall()
    finally:
        connection.close()
    if found != [("ok",)]:
        raise StoreError(f"the copy is damaged, and so is probably the original: {found[0][0]}")


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
