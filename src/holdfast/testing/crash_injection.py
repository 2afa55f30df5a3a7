"""Inject worker crashes in tests: kill the worker, in this process, at any point where it writes.

The store of a kit reports each write to a `CrashInjector`, which records it or kills the worker: right before the write
(the work is done but not recorded) or right after it (recorded, but the worker doesn't know). A new session then takes
over, as another worker would.
"""

from __future__ import annotations

import inspect
import os
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import dropwhile, takewhile
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple, TypeVar, overload

from holdfast.database import Database
from holdfast.errors import KeyConflict
from holdfast.model.asks import AskAnswer
from holdfast.model.payloads import Payloads
from holdfast.model.step_keys import key_label
from holdfast.model.virtual_clock import ClockFollower, VirtualClock
from holdfast.store import AttemptEnd, Store
from holdfast.store.attempts import AttemptStore
from holdfast.store.commands import RUN_LOST, Command, EnqueueCommand, NewCheckpoint, Reply
from holdfast.store.enqueue import LaneStore
from holdfast.store.journal import Journal
from holdfast.store.logs import LogStore, LogWrites
from holdfast.store.module import StoreContext, Tx
from holdfast.store.rows import Claim, EndedClaims
from holdfast.store.step_transactions import StepTransactions
from holdfast.store.threads import HeldClaim, StoredCheckpoint, StoredWrite, ThreadKey, ThreadStore

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

MARK = "crash_at_every_step"
PACKAGE_PREFIX = f"{Path(__file__).resolve().parents[1]}{os.sep}"
USER_CODE_RECORDS = ("step", "failed", "undone")
"""Records of user code that has run and would run again after a crash."""
USER_CODE_ENDS = {"done": "the end", "failed": "the failure", "retrying": "a failed attempt", "timed_out": "a timeout"}
USER_CODE_ENDS |= {"moved": "the move to another state", "restarted": "the restart"}
OTHER_ENDS = {
    "waiting": "the suspension",
    "undoing": "the failure that is to be undone",
    "undone": "the end of undoing",
}


class CrashPoint(NamedTuple):
    """A point where a worker can crash: before or after (`recorded`) the nth write of a kind."""

    what: str
    nth: int
    recorded: bool

    def __str__(self) -> str:
        times = f", the {_ordinal(self.nth)} time" if self.nth > 1 else ""
        when = "was recorded" if self.recorded else "was done but not recorded"
        return f"a crash after {self.what} {when}{times}"


def _ordinal(number: int) -> str:
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


class ObservedWrite(NamedTuple):
    """A write about a run. `done`: user code has run that the write records."""

    run: str
    what: str
    done: bool


class CrashInjector:
    """Records the points where workers write, and kills a worker at the point `at`, if set."""

    def __init__(self, at: CrashPoint | None = None) -> None:
        self.at = at
        self.points: list[CrashPoint] = []
        self.where: str | None = None
        """The line of user code where the killed worker was."""
        self._times: Counter[str] = Counter()
        self._lock = threading.Lock()

    def guard(
        self, worker: ClockFollower | None, writes: Iterable[ObservedWrite], write: Callable[[], T], lost: T
    ) -> T:
        """Perform a write, and crash before or after it if this is the point. A killed worker gets `lost`."""
        if worker is None:
            return write()
        points = self._record(worker, writes)
        if (run := points.get(self._at(recorded=False))) is not None:
            self._crash(worker, run)
            return lost
        written = write()
        if (run := points.get(self._at(recorded=True))) is not None:
            self._crash(worker, run)
            return lost
        return written

    def _at(self, *, recorded: bool) -> CrashPoint | None:
        return self.at if self.at is not None and self.at.recorded is recorded and self.where is None else None

    def _record(self, worker: ClockFollower, writes: Iterable[ObservedWrite]) -> dict[CrashPoint | None, str]:
        """Return the crash points of these writes, with their runs."""
        found: dict[CrashPoint | None, str] = {}
        with self._lock:
            for run, what, done in writes:
                attempt = worker.attempt(run)
                if attempt is None:
                    continue
                named = f"{what} of {attempt.task.name}"
                self._times[named] += 1
                moments = (False, True) if done else (True,)
                points = [CrashPoint(named, self._times[named], recorded) for recorded in moments]
                self.points += points
                found.update((point, run) for point in points)
        return found

    def _crash(self, worker: ClockFollower, run: str) -> None:
        self.where = line_of(worker.attempt(run))
        worker.die()


active_injectors: list[CrashInjector] = []
"""The injectors of the current test. The last one is used."""


# Observed writes


def writes_of(commands: Sequence[Command]) -> list[ObservedWrite]:
    return [_write_of(command) for command in commands]


def _write_of(command: Command) -> ObservedWrite:
    if isinstance(command, NewCheckpoint):
        done = command.kind in USER_CODE_RECORDS
        what = key_label(command.key)
        return ObservedWrite(command.run, f"step {what}" if command.kind in USER_CODE_RECORDS[:2] else what, done)
    key = getattr(command, "key", None)
    what = type(command).__name__.lower() if key is None else key_label(key)
    return ObservedWrite(command.token.run, what, False)


def writes_of_ends(ends: Sequence[AttemptEnd]) -> list[ObservedWrite]:
    """Return the writes of ended attempts, without released ones."""
    named = USER_CODE_ENDS | OTHER_ENDS
    return [ObservedWrite(end.id, named[end.kind], end.kind in USER_CODE_ENDS) for end in ends if end.kind in named]


class CrashingJournal(Journal):
    """A journal with crash points."""

    def __init__(self, context: StoreContext, lanes: LaneStore, crashes: CrashInjector, clock: VirtualClock) -> None:
        super().__init__(context, lanes)
        self._crashes = crashes
        self._clock = clock

    def record_steps(self, session: str, rows: str, number: int) -> bool:  # noqa: ARG002
        """Refuse bulk writes, because a crash point is a single step."""
        return False

    def record(self, session: str, records: Sequence[NewCheckpoint]) -> list[Reply]:
        write = partial(super().record, session, records)
        lost: list[Reply] = [RUN_LOST] * len(records)
        return self._crashes.guard(self._clock.worker(session), writes_of(records), write, lost)

    def write(
        self,
        session: str,
        commands: Sequence[Command],
        before_commit: Callable[[Tx], None] | None = None,
        claims: Mapping[str, Claim] | None = None,
        on_answered: Callable[[str, AskAnswer], None] | None = None,
    ) -> list[Reply]:
        write = partial(super().write, session, commands, before_commit, claims, on_answered)
        lost: list[Reply] = [RUN_LOST] * len(commands)
        return self._crashes.guard(self._clock.worker(session), writes_of(commands), write, lost)

    def enqueue(self, session: str, command: EnqueueCommand) -> Reply | KeyConflict:
        write = partial(super().enqueue, session, command)
        lost: Reply | KeyConflict = RUN_LOST
        return self._crashes.guard(self._clock.worker(session), writes_of([command]), write, lost)


class CrashingAttempts(AttemptStore):
    """Ends of attempts with crash points."""

    def __init__(self, context: StoreContext, crashes: CrashInjector, clock: VirtualClock) -> None:
        super().__init__(context)
        self._crashes = crashes
        self._clock = clock

    def end(
        self,
        session: str,
        ends: Sequence[AttemptEnd],
        before_commit: Callable[[Tx], None] | None = None,
        logs: LogWrites | None = None,
        claims: Mapping[str, Claim] | None = None,
    ) -> EndedClaims:
        write = partial(super().end, session, ends, before_commit, logs, claims)
        return self._crashes.guard(self._clock.worker(session), writes_of_ends(ends), write, EndedClaims())


class CrashingLogs(LogStore):
    """Log lines with crash points."""

    def __init__(self, context: StoreContext, crashes: CrashInjector, clock: VirtualClock) -> None:
        super().__init__(context)
        self._crashes = crashes
        self._clock = clock

    def record(self, session: str, writes: LogWrites) -> None:
        observed = [ObservedWrite(run, "log lines", False) for run in {group.run for group in writes.groups}]
        self._crashes.guard(self._clock.worker(session), observed, partial(super().record, session, writes), None)


class CrashingTransactions(StepTransactions):
    """User transactions with a crash point after the commit; before it, everything rolls back."""

    def __init__(self, context: StoreContext, journal: Journal, crashes: CrashInjector, clock: VirtualClock) -> None:
        super().__init__(context, journal)
        self._crashes = crashes
        self._clock = clock

    def run(
        self,
        session: str,
        record: NewCheckpoint,
        work: Callable[[Any], str],
        is_stopped: Callable[[], bool] = lambda: False,
        tenant: str | None = None,
    ) -> str | None:
        write = partial(super().run, session, record, work, is_stopped, tenant)
        writes = [ObservedWrite(record.run, f"transaction {key_label(record.key)}", False)]
        return self._crashes.guard(self._clock.worker(session), writes, write, None)


class CrashingThreads(ThreadStore):
    """Threads of LangGraph with crash points: those that runs write."""

    def __init__(self, context: StoreContext, crashes: CrashInjector, clock: VirtualClock) -> None:
        super().__init__(context)
        self._crashes = crashes
        self._clock = clock

    def put(
        self,
        key: ThreadKey,
        checkpoint: StoredCheckpoint,
        values: Mapping[tuple[str, str], str],
        claim: HeldClaim | None = None,
    ) -> bool:
        write = partial(super().put, key, checkpoint, values, claim)
        return write() if claim is None else self._guard(claim, "the checkpoint of a graph", write, done=False)

    def put_writes(
        self, key: ThreadKey, id: str, writes: Iterable[StoredWrite], claim: HeldClaim | None = None
    ) -> bool:
        write = partial(super().put_writes, key, id, writes, claim)
        return write() if claim is None else self._guard(claim, "the writes of a node", write, done=True)

    def _guard(self, claim: HeldClaim, what: str, write: Callable[[], bool], *, done: bool) -> bool:
        observed = [ObservedWrite(claim.run, what, done)]
        return self._crashes.guard(self._clock.worker(claim.session), observed, write, False)


class CrashingStore(Store):
    """A store that reports its writes to a crash injector."""

    def __init__(self, database: Database, clock: VirtualClock, payloads: Payloads, crashes: CrashInjector) -> None:
        super().__init__(database, clock=clock, payloads=payloads)
        context, plain = self._context, self.journal
        self.journal = CrashingJournal(context, self.lanes, crashes, clock)
        self.attempts = CrashingAttempts(context, crashes, clock)
        self.logs = CrashingLogs(context, crashes, clock)
        self.step_transactions = CrashingTransactions(context, plain, crashes, clock)
        self.threads = CrashingThreads(context, crashes, clock)


# The current line of user code


def line_of(attempt: Any) -> str:
    """Return the current line of the task's function or what it calls; else where the function is defined."""
    code = None if attempt is None else getattr(inspect.unwrap(attempt.signature.fn), "__code__", None)
    if code is None:
        return "an unknown line"
    frames = _in_threads(code) if attempt.loop_task is None else _awaiting(attempt.loop_task.get_coro())
    from_task = dropwhile(lambda frame: frame.f_code is not code, frames)
    user_frames = list(takewhile(lambda frame: not frame.f_code.co_filename.startswith(PACKAGE_PREFIX), from_task))
    if user_frames:
        return f"{_shown(user_frames[-1].f_code.co_filename)}:{user_frames[-1].f_lineno}"
    return f"{_shown(code.co_filename)}:{code.co_firstlineno}"


def _awaiting(coroutine: Any) -> list[FrameType]:
    """Return the frames of a coroutine and of what it awaits, outermost first."""
    found: list[FrameType] = []
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None)
        found += [] if frame is None else [frame]
        coroutine = getattr(coroutine, "cr_await", None)
    return found


def _in_threads(code: CodeType) -> list[FrameType]:
    """Return the frames of a thread that runs this code, outermost first."""
    for top in sys._current_frames().values():
        frames = [frame for frame, _ in traceback.walk_stack(top)]
        if any(frame.f_code is code for frame in frames):
            return frames[::-1]
    return []


def _shown(path: str) -> str:
    """Return a path relative to the current directory if possible."""
    with suppress(ValueError):
        return str(Path(path).relative_to(Path.cwd()))
    return path


# The marker


@overload
def crash_at_every_step(test: F, /) -> F: ...
@overload
def crash_at_every_step(*, unrecorded: bool = True) -> Callable[[F], F]: ...
def crash_at_every_step(test: Any = None, /, *, unrecorded: bool = True) -> Any:
    """Mark a test to run once normally, and again with a worker crash after each write.

    Where a write records work that user code has done, such as a step, the test also runs with a crash right before
    it: the work is done but not recorded. The test must use the `kit` fixture or its own `Kit`; its fixtures are set up
    anew for each run.

    Args:
        unrecorded: Whether to include the crashes before a write.

    Example:
        ```python
        @crash_at_every_step
        def test_checkout(kit):
            run = checkout.enqueue(order)
            kit.drain()
            assert payments() == [42]
        ```
    """
    import pytest

    mark = getattr(pytest.mark, MARK)(unrecorded=unrecorded)
    return mark if test is None else mark(test)
