"""All processes of a session, as the system sees them: to show that nothing is left running, and no zombie either."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Member(NamedTuple):
    """A process of a session."""

    pid: int
    parent: int
    zombie: bool


def family(session: int) -> list[Member]:
    """The processes whose session began with this one. Those that a test starts begin a session of their own."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text(errors="replace")
        except OSError:  # it has just ended
            continue
        state, parent, _group, of_session = text.rpartition(")")[2].split()[:4]
        if int(of_session) == session:
            found.append(Member(int(stat.parent.name), int(parent), state in "ZX"))
    return found


def running(session: int) -> set[int]:
    """The numbers of those that still run."""
    return {member.pid for member in family(session) if not member.zombie}


def children(pid: int) -> list[Member]:
    """What a process that began a session has started and not yet buried."""
    return [member for member in family(pid) if member.parent == pid]
