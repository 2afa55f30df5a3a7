"""What there is to see of the demo at a moment, and what it came to. Plain data; the display draws it."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

State = Literal["starting", "working", "killed", "stopped"]


@dataclass(slots=True)
class WorkerView:
    """A worker as it is seen."""

    number: int
    pid: int
    state: State = "starting"
    in_hand: list[int] = field(default_factory=list)
    done: int = 0


@dataclass(slots=True)
class DemoState:
    """Everything that is seen. Times are seconds since the curtain rose."""

    jobs: int
    database: str
    figures: list[WorkerView] = field(default_factory=list)
    states: Counter[str] = field(default_factory=Counter)
    events: list[tuple[float, str]] = field(default_factory=list)
    taken_from_the_dead: frozenset[int] = frozenset()
    began: float = field(default_factory=time.monotonic)

    def now(self) -> float:
        return time.monotonic() - self.began

    def tell(self, event: str) -> None:
        self.events.append((self.now(), event))


class Ledger:
    """The demo's ledger, read as it grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self.begun: Counter[int] = Counter()
        self.done: Counter[int] = Counter()
        self.done_by: Counter[int] = Counter()
        self.done_last_by: dict[int, int] = {}
        self.in_hand: dict[int, list[int]] = {}

    def read(self) -> None:
        """Take in the lines that are new."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.decode().splitlines():
            what, number, pid = line.split()
            self._take(what, int(number), int(pid))

    def _take(self, what: str, number: int, pid: int) -> None:
        hand = self.in_hand.setdefault(pid, [])
        if what == "begun":
            self.begun[number] += 1
            hand.append(number)
            return
        self.done[number] += 1
        self.done_by[pid] += 1
        self.done_last_by[number] = pid
        if number in hand:
            hand.remove(number)


@dataclass(frozen=True, slots=True)
class WorkerKill:
    """The one that was killed: when, what it had in hand, and what was finished by then."""

    worker: int
    at: float
    held: frozenset[int]
    finished: frozenset[int]


@dataclass(frozen=True, slots=True)
class DemoResult:
    """What the demo came to, counted from the ledger and from the database."""

    jobs: int
    kill: WorkerKill
    lease: float
    takeover: float | None
    done_by_database: frozenset[int]
    done_by_ledger: frozenset[int]
    begun_again: frozenset[int]

    @property
    def lost(self) -> list[int]:
        """Jobs that one of the two accounts doesn't know as done."""
        return sorted(set(range(1, self.jobs + 1)) - (self.done_by_database & self.done_by_ledger))

    @property
    def finished_again(self) -> list[int]:
        """Jobs that ran again although they were finished before the kill."""
        return sorted(self.begun_again & self.kill.finished)

    @property
    def others_again(self) -> list[int]:
        """Jobs that ran again for another reason than the kill: a slow machine can cost a living worker its lease."""
        return sorted(self.begun_again - self.kill.held - self.kill.finished)

    @property
    def again(self) -> list[int]:
        """Jobs that the dead worker had begun, and that ran again."""
        return sorted(self.begun_again & self.kill.held)

    @property
    def good(self) -> bool:
        return not self.lost and not self.finished_again
