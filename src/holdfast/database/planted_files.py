"""Refuse files and links that another user may have placed where a SQLite database is expected.

In a directory that others may write to, such as `/tmp`, another user can create a link or a file with the name of the
database first, and have Holdfast write payloads to a file that they can read, or overwrite a file of ours. The rules
are those of Linux for sticky directories (`fs.protected_symlinks`, `fs.protected_regular`): a link or file may belong
to this user, to root, or to the owner of its directory.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from holdfast.errors import ConfigError

COMPANIONS = ("-wal", "-shm", "-journal", "-lock")


def refuse_planted_files(path: str) -> None:
    """Raise ConfigError if the database, a file beside it, or a link on the way may come from another user."""
    if not hasattr(os, "geteuid"):
        return
    _check_links(Path(path), set())
    real = os.path.realpath(path)
    _check_file(Path(real))
    for suffix in COMPANIONS:
        companion = Path(real + suffix)
        if os.path.islink(companion):  # noqa: PTH114 - unlike is_symlink, it doesn't raise for a name that is too long
            raise ConfigError(f"{companion} is a symbolic link, which SQLite never creates: delete it")
        _check_file(companion)


def _check_links(path: Path, seen: set[Path]) -> None:
    """Check every link on the way, and those in the targets of links: a link of ours may lead through another's."""
    for part in (*reversed(path.parents), path):
        link = Path(os.path.realpath(part.parent)) / part.name
        if link not in seen and _check_link(link):
            seen.add(link)  # links may form a loop
            _check_links(link.parent / link.readlink(), seen)


def _check_link(link: Path) -> bool:
    """Return whether this is a link. Raise ConfigError if it may come from another user."""
    try:
        found = link.lstat()
        is_link = stat.S_ISLNK(found.st_mode)
        if is_link and not _is_trusted(found.st_uid, link.parent.stat()):
            raise ConfigError(
                f"{link} is a symbolic link of another user (uid {found.st_uid}), who can redirect it; use a path"
                " without it, in a directory that only you can write to"
            )
    except OSError:  # it doesn't exist, or can't be read: opening the database reports that
        return False
    return is_link


def _check_file(file: Path) -> None:
    try:
        found, directory = file.lstat(), file.parent.stat()
    except OSError:
        return
    if directory.st_mode & stat.S_IWOTH and not _is_trusted(found.st_uid, directory):
        raise ConfigError(
            f"{file} belongs to another user (uid {found.st_uid}), in a directory that everyone can write to: use a"
            " database in a directory that only you can write to"
        )


def _is_trusted(owner: int, directory: os.stat_result) -> bool:
    return owner in (os.geteuid(), 0, directory.st_uid)
