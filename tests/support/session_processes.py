"""The processes of a session, read from /proc, to check that none is left running and none is a zombie."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class SessionProcess(NamedTuple):
    """A process of a session."""

    pid: int
    parent: int
    zombie: bool


def session_processes(session: int) -> list[SessionProcess]:
    """Return the processes of the session with this id. Processes that a test starts begin their own session."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text(errors="replace")
        except OSError:  # it has just exited
            continue
        state, parent, _group, process_session = text.rpartition(")")[2].split()[:4]
        if int(process_session) == session:
            found.append(SessionProcess(int(stat.parent.name), int(parent), state in "ZX"))
    return found


def running(session: int) -> set[int]:
    """Return the ids of the processes that still run."""
    return {process.pid for process in session_processes(session) if not process.zombie}


def children(pid: int) -> list[SessionProcess]:
    """Return the direct children of a session leader, including zombies."""
    return [process for process in session_processes(pid) if process.parent == pid]
