"""The state and the result of the demo, as plain data; the display draws it."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

State = Literal["starting", "working", "killed", "stopped"]


@dataclass(slots=True)
class WorkerView:
    """A worker as displayed."""

    number: int
    pid: int
    state: State = "starting"
    claimed: list[int] = field(default_factory=list)
    done: int = 0


@dataclass(slots=True)
class DemoState:
    """Everything that is displayed. Times are seconds since the start."""

    jobs: int
    database: str
    workers: list[WorkerView] = field(default_factory=list)
    states: Counter[str] = field(default_factory=Counter)
    events: list[tuple[float, str]] = field(default_factory=list)
    recovered: frozenset[int] = frozenset()
    started_at: float = field(default_factory=time.monotonic)

    def now(self) -> float:
        return time.monotonic() - self.started_at

    def add_event(self, event: str) -> None:
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
        self.claimed: dict[int, list[int]] = {}

    def read(self) -> None:
        """Read new lines."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.decode().splitlines():
            what, number, pid = line.split()
            self._apply(what, int(number), int(pid))

    def _apply(self, what: str, number: int, pid: int) -> None:
        claimed = self.claimed.setdefault(pid, [])
        if what == "begun":
            self.begun[number] += 1
            claimed.append(number)
            return
        self.done[number] += 1
        self.done_by[pid] += 1
        self.done_last_by[number] = pid
        if number in claimed:
            claimed.remove(number)


@dataclass(frozen=True, slots=True)
class WorkerKill:
    """The killed worker: when it died, its claimed invoices, and those finished by then."""

    worker: int
    at: float
    held: frozenset[int]
    finished: frozenset[int]


@dataclass(frozen=True, slots=True)
class DemoResult:
    """The result, counted from the ledger and from the database."""

    jobs: int
    kill: WorkerKill
    lease: float
    recovery_s: float | None
    done_by_database: frozenset[int]
    done_by_ledger: frozenset[int]
    begun_again: frozenset[int]

    @property
    def lost(self) -> list[int]:
        """Jobs that aren't done according to both the database and the ledger."""
        return sorted(set(range(1, self.jobs + 1)) - (self.done_by_database & self.done_by_ledger))

    @property
    def finished_again(self) -> list[int]:
        """Jobs that ran again although they were finished before the kill."""
        return sorted(self.begun_again & self.kill.finished)

    @property
    def others_again(self) -> list[int]:
        """Jobs that ran again for another reason: on a slow machine a running worker can lose its lease."""
        return sorted(self.begun_again - self.kill.held - self.kill.finished)

    @property
    def again(self) -> list[int]:
        """Jobs that the killed worker had started and that ran again."""
        return sorted(self.begun_again & self.kill.held)

    @property
    def passed(self) -> bool:
        return not self.lost and not self.finished_again
