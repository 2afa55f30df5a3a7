"""Crashes of workers in tests: at each place where a worker writes, it can die, in this process, as if killed.

The store of a kit says what is about to be written; `Crashes` notes it, or lets the worker die there, right before
(what was done isn't on record) or right after (it is, and nobody has heard of it). Another session of the worker then
takes over, as another worker would.
"""

from __future__ import annotations

import inspect
import os
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import dropwhile, takewhile
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple, TypeVar

from holdfast.database import Database
from holdfast.errors import KeyConflict
from holdfast.model.payloads import Payloads
from holdfast.model.step_keys import key_label
from holdfast.model.virtual_clock import ClockFollower, VirtualClock
from holdfast.store import End, Store
from holdfast.store.attempts import Attempts
from holdfast.store.commands import LOST, Command, Enqueue, Record, Reply
from holdfast.store.journal import Journal
from holdfast.store.lanes import Lanes
from holdfast.store.part import Ground
from holdfast.store.rows import Counted
from holdfast.store.transactions import Transactions

T = TypeVar("T")

OURS = f"{Path(__file__).resolve().parents[1]}{os.sep}"
DONE_BY_AUTHORS = ("step", "failed", "undone")
"""Records of what author code has done by then, that would be done again."""
DONE = {"done": "the end", "failed": "the failure", "retrying": "a failed attempt", "timed_out": "a timeout"}
DONE |= {"moved": "the move to another state", "restarted": "the restart"}
LEFT = {"waiting": "the suspension", "undoing": "the failure that is to be undone", "undone": "the end of undoing"}


class Place(NamedTuple):
    """Where a worker can die. `recorded`: right after that was written, else right before. `nth`: at which time."""

    what: str
    nth: int
    recorded: bool

    def __str__(self) -> str:
        times = f", for the {_ordinal(self.nth)} time" if self.nth > 1 else ""
        when = "was on record" if self.recorded else "was done, but not on record"
        return f"a crash when {self.what} {when}{times}"


def _ordinal(number: int) -> str:
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


class Said(NamedTuple):
    """Something that is about to be written about a run. `done`: author code has done it."""

    run: str
    what: str
    done: bool


class Crashes:
    """Notes where workers write; and lets one die at the place `at`, if there is one."""

    def __init__(self, at: Place | None = None) -> None:
        self.at = at
        self.places: list[Place] = []
        self.where: str | None = None
        """The line of author code at which it stood, when it has died."""
        self._times: Counter[str] = Counter()
        self._lock = threading.Lock()

    def around(self, worker: ClockFollower | None, said: Iterable[Said], write: Callable[[], T], lost: T) -> T:
        """Write, or don't; `lost` is what a dead worker is answered."""
        if worker is None:
            return write()
        places = self._note(worker, said)
        if (run := places.get(self._at(recorded=False))) is not None:
            self._crash(worker, run)
            return lost
        written = write()
        if (run := places.get(self._at(recorded=True))) is not None:
            self._crash(worker, run)
            return lost
        return written

    def _at(self, *, recorded: bool) -> Place | None:
        return self.at if self.at is not None and self.at.recorded is recorded and self.where is None else None

    def _note(self, worker: ClockFollower, said: Iterable[Said]) -> dict[Place | None, str]:
        """The places that this is, with their runs."""
        found: dict[Place | None, str] = {}
        with self._lock:
            for run, what, done in said:
                attempt = worker.attempt(run)
                if attempt is None:
                    continue
                named = f"{what} of {attempt.task.name}"
                self._times[named] += 1
                moments = (False, True) if done else (True,)
                places = [Place(named, self._times[named], recorded) for recorded in moments]
                self.places += places
                found.update((place, run) for place in places)
        return found

    def _crash(self, worker: ClockFollower, run: str) -> None:
        self.where = line_of(worker.attempt(run))
        worker.die()


current: list[Crashes] = []
"""What the test under way is to go through; the last one counts."""


# What is written


def said_by(commands: Sequence[Command]) -> list[Said]:
    return [_said_by(command) for command in commands]


def _said_by(command: Command) -> Said:
    if isinstance(command, Record):
        done = command.kind in DONE_BY_AUTHORS
        what = key_label(command.key)
        return Said(command.run, f"step {what}" if command.kind in DONE_BY_AUTHORS[:2] else what, done)
    key = getattr(command, "key", None)
    what = type(command).__name__.lower() if key is None else key_label(key)
    return Said(command.held.run, what, False)


def said_at(ends: Sequence[End]) -> list[Said]:
    """Attempts that are handed back are nobody's doing."""
    named = DONE | LEFT
    return [Said(end.id, named[end.kind], end.kind in DONE) for end in ends if end.kind in named]


class CrashingJournal(Journal):
    """What durable functions record."""

    def __init__(self, ground: Ground, lanes: Lanes, crashes: Crashes, clock: VirtualClock) -> None:
        super().__init__(ground, lanes)
        self._crashes = crashes
        self._clock = clock

    def record_steps(self, session: str, rows: str, number: int) -> bool:  # noqa: ARG002 - nothing of them is written
        """Never as one: a crash is at one step."""
        return False

    def record(self, session: str, records: Sequence[Record]) -> list[Reply]:
        write = partial(super().record, session, records)
        lost: list[Reply] = [LOST] * len(records)
        return self._crashes.around(self._clock.worker(session), said_by(records), write, lost)

    def write(self, session: str, commands: Sequence[Command]) -> list[Reply]:
        write = partial(super().write, session, commands)
        lost: list[Reply] = [LOST] * len(commands)
        return self._crashes.around(self._clock.worker(session), said_by(commands), write, lost)

    def enqueue(self, session: str, command: Enqueue) -> Reply | KeyConflict:
        write = partial(super().enqueue, session, command)
        lost: Reply | KeyConflict = LOST
        return self._crashes.around(self._clock.worker(session), said_by([command]), write, lost)


class CrashingAttempts(Attempts):
    """The ends of attempts."""

    def __init__(self, ground: Ground, crashes: Crashes, clock: VirtualClock) -> None:
        super().__init__(ground)
        self._crashes = crashes
        self._clock = clock

    def end(self, session: str, ends: Sequence[End]) -> Counted:
        write = partial(super().end, session, ends)
        return self._crashes.around(self._clock.worker(session), said_at(ends), write, Counted())


class CrashingTransactions(Transactions):
    """Transactions of author code, which happen with their record or not at all: there is no place in between."""

    def __init__(self, ground: Ground, journal: Journal, crashes: Crashes, clock: VirtualClock) -> None:
        super().__init__(ground, journal)
        self._crashes = crashes
        self._clock = clock

    def run(
        self,
        session: str,
        record: Record,
        work: Callable[[Any], str],
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> str | None:
        write = partial(super().run, session, record, work, is_stopped)
        said = [Said(record.run, f"transaction {key_label(record.key)}", False)]
        return self._crashes.around(self._clock.worker(session), said, write, None)


class CrashingStore(Store):
    """A store whose workers can die where they write."""

    def __init__(self, database: Database, clock: VirtualClock, payloads: Payloads, crashes: Crashes) -> None:
        super().__init__(database, clock=clock, payloads=payloads)
        ground, plain = self._ground, self.journal
        self.journal = CrashingJournal(ground, self.lanes, crashes, clock)
        self.attempts = CrashingAttempts(ground, crashes, clock)
        self.transactions = CrashingTransactions(ground, plain, crashes, clock)


# Where author code stands


def line_of(attempt: Any) -> str:
    """The line of the task's function, or of what it has called, at which it stands; else where that function is."""
    code = None if attempt is None else getattr(inspect.unwrap(attempt.signature.fn), "__code__", None)
    if code is None:
        return "a line that is not known"
    frames = _in_threads(code) if attempt.handle is None else _awaiting(attempt.handle.get_coro())
    beside = dropwhile(lambda frame: frame.f_code is not code, frames)
    stands = list(takewhile(lambda frame: not frame.f_code.co_filename.startswith(OURS), beside))
    if stands:
        return f"{_shown(stands[-1].f_code.co_filename)}:{stands[-1].f_lineno}"
    return f"{_shown(code.co_filename)}:{code.co_firstlineno}"


def _awaiting(coroutine: Any) -> list[FrameType]:
    """The frames of a coroutine and of what it awaits, outermost first."""
    found: list[FrameType] = []
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None)
        found += [] if frame is None else [frame]
        coroutine = getattr(coroutine, "cr_await", None)
    return found


def _in_threads(code: CodeType) -> list[FrameType]:
    """The frames of a thread that is in this code, outermost first."""
    for top in sys._current_frames().values():
        frames = [frame for frame, _ in traceback.walk_stack(top)]
        if any(frame.f_code is code for frame in frames):
            return frames[::-1]
    return []


def _shown(path: str) -> str:
    """A path as people in this folder would write it."""
    with suppress(ValueError):
        return str(Path(path).relative_to(Path.cwd()))
    return path
