"""Group commit: the only way in which a worker writes about the runs that it has in hand.

Whatever waits is written in one transaction; while it is being written, the next group gathers. So an idle worker adds
no delay, and a busy one shares the cost of a commit among many.

* A command that lost its fence fails alone; its group goes on.
* A group that the database refuses for its data is tried again in halves, so that one bad value can't hurt others.
* After a lost connection the whole group is repeated: what was written before the answer got lost is recognised.
* Commands of a session that is over are dropped: nothing may be written under it.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import repeat, starmap
from logging import DEBUG
from operator import attrgetter
from threading import get_ident
from typing import Any, NamedTuple, TypeAlias

from msgspec.structs import replace

from holdfast.database import DataFault
from holdfast.engine.attempt import Attempt
from holdfast.engine.desk import Answer, Ask
from holdfast.engine.loop import NOT_BEFORE_WOKEN, Loop
from holdfast.engine.session import Duty
from holdfast.engine.watching import Watching
from holdfast.errors import ErrorInfo
from holdfast.model.clock import SECOND
from holdfast.model.codec import decode
from holdfast.model.failure import from_json, to_json
from holdfast.store import End, Store
from holdfast.store.commands import LOST, wants_to_be_alone
from holdfast.store.rows import Counted
from holdfast.telemetry import log

LARGEST_GROUP = 500
ENOUGH = 200
"""So many commands are written without waiting for more: the loop goes on with the others of its turn meanwhile."""
LARGEST_BYTES = 8 * 1024 * 1024
LOOP_SECONDS = 0.01
"""How long the next group waits for those who were just answered to say what comes next, where nothing else waits."""


class Over(NamedTuple):
    """An attempt, and how it ended; without an end: it is over on this worker, long after its run."""

    attempt: Attempt
    end: End | None
    size: int = 0
    """About how many bytes of payload the end has."""
    plain: bool = False


Task: TypeAlias = Over | Ask
"""What waits to be written."""

_size_of = attrgetter("size")
_session_of = attrgetter("attempt.session")
_is_on_loop = attrgetter("on_loop")


def take_group(waiting: deque[Task]) -> list[Task]:
    """As many of them as fit into one group: so many, or so many bytes."""
    group = [*starmap(waiting.popleft, repeat((), min(len(waiting), LARGEST_GROUP)))]
    if sum(map(_size_of, group)) <= LARGEST_BYTES:
        return group
    size = 0
    for at, task in enumerate(group):
        size += task.size
        if at and size > LARGEST_BYTES:
            waiting.extendleft(reversed(group[at:]))
            return group[:at]
    return group


class Committer(Loop):
    """Writes what attempts say, and their ends."""

    name = "committer"

    def __init__(
        self,
        store: Store,
        duty: Duty,
        failed: Callable[[str], None],
        written: Callable[[], None],
        lost: Callable[[list[Attempt]], None],
    ) -> None:
        super().__init__()
        self._store = store
        self._duty = duty
        self._failed = failed
        self._written = written
        self._lost = lost
        self._waiting: deque[Task] = deque()  # filled by any thread, emptied by one
        self._announced = False  # a turn of the loop that wakes us is on its way
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread = 0
        self._pause = 0.0
        self._writing = 0
        self._told: set[int] = set()  # attempts of the group under way whose ends are durable, by id()
        self.ended = 0
        self.handed_back = 0
        self.watching: Watching | None = None

    def use(self, loop: asyncio.AbstractEventLoop) -> None:
        """Where answers to coroutines are given."""
        self._loop = loop
        loop.call_soon_threadsafe(self._note_thread)

    def _note_thread(self) -> None:
        self._loop_thread = get_ident()

    def end(self, attempt: Attempt, end: End) -> None:
        self.submit(Over(attempt, end, len(end.result or "") + len(end.error or "")))

    def let_go(self, attempt: Attempt) -> None:
        self.submit(Over(attempt, None))

    def submit(self, task: Task) -> None:
        """Have something written soon. From any thread."""
        if get_ident() == self._loop_thread:
            self.submit_here(task)
        else:
            self._waiting.append(task)
            self.wake()

    def submit_here(self, task: Task) -> None:
        """The same on the loop. What its tasks say in one turn of it goes together, up to what is enough for a group:
        the first of many must not begin one of its own."""
        self._waiting.append(task)
        if not self._announced:
            assert self._loop is not None
            self._announced = True
            self._loop.call_soon(self._announce)
        elif len(self._waiting) == ENOUGH:
            self.wake()

    def _announce(self) -> None:
        self._announced = False
        self.wake()

    @property
    def backlog(self) -> int:
        """Commands that aren't durable yet."""
        return len(self._waiting) + self._writing

    def tick(self) -> float:
        self._writing = len(self._waiting)  # before they are taken out: nobody may take them for written
        group = take_group(self._waiting)
        self._writing = len(group)
        if not group:
            return NOT_BEFORE_WOKEN
        self._told.clear()
        self._pause = 0.0
        started = time.time_ns()
        try:
            self._write(group)
            if self.watching is not None:
                self.watching.committed(len(group), (task.attempt for task in group), started)
        except BaseException:
            self._waiting.extendleft(task for task in reversed(group) if not self._is_told(task))
            raise
        finally:
            self._writing = 0
            self._written()
        return self._pause

    def _is_told(self, task: Task) -> bool:
        if isinstance(task, Ask):
            return id(task) in self._told
        return task.end is not None and id(task.attempt) in self._told

    def _write(self, group: list[Task]) -> None:
        session = self._duty.session
        current = session.id if session else None
        if set(map(_session_of, group)) != {current}:
            dropped = [task for task in group if task.attempt.session != current]
            self._duty.remove([task.attempt for task in dropped if isinstance(task, Over)])
            group = [task for task in group if task.attempt.session == current]
        if current is None:
            return
        plain: list[Any] = [task for task in group if task.plain]
        rest = [task for task in group if not task.plain] if len(plain) < len(group) else []
        self._write_asks(current, plain, [task for task in rest if isinstance(task, Ask)])
        self._write_overs(current, [task for task in rest if isinstance(task, Over)])

    def _write_asks(self, session: str, plain: list[Ask], others: list[Ask]) -> None:
        """What attempts say: plain checkpoints, and others. The outcomes of waits go first: nobody waits for them to be
        durable, so nothing that came after them may be before them."""
        journal = self._store.journal
        alone = [ask for ask in others if wants_to_be_alone(ask.command)]
        if len(others) > len(alone):
            some = [ask for ask in others if not wants_to_be_alone(ask.command)] if alone else others
            self._write_halved(some, lambda some: journal.write(session, [ask.command for ask in some]))
        if plain:
            self._write_halved(plain, lambda some: journal.record(session, [ask.command for ask in some]))
        for ask in alone:
            self._write_halved([ask], lambda some: [journal.enqueue(session, some[0].command)])

    def _write_halved(self, asks: list[Ask], write: Callable[[Any], Sequence[Answer]]) -> None:
        try:
            answers = write(asks)
        except DataFault as fault:
            if len(asks) > 1:
                half = len(asks) // 2
                self._write_halved(asks[:half], write)
                self._write_halved(asks[half:], write)
                return
            answers = [fault]
        self._told.update(map(id, asks))
        self._answer(asks, answers)

    def _answer(self, asks: list[Ask], answers: Sequence[Answer]) -> None:
        if LOST in answers:
            lost = {id(ask.attempt): ask.attempt for ask, answer in zip(asks, answers, strict=True) if answer is LOST}
            self._lost(list(lost.values()))
        told: Sequence[tuple[Ask, Answer]] = list(zip(asks, answers, strict=True))
        if not all(map(_is_on_loop, asks)):
            for ask, answer in told:
                if not ask.on_loop:
                    ask.answer(ask, answer)
            told = [each for each in told if each[0].on_loop]
        if told and self._loop is not None:
            self._loop.call_soon_threadsafe(self._tell_and_wake, told)
            self._pause = 0.0 if self._waiting else LOOP_SECONDS

    def _tell_and_wake(self, told: Sequence[tuple[Ask, Answer]]) -> None:
        """On the loop: give answers; what their receivers say next, in the loop's next turn, belongs together."""
        for ask, answer in told:
            ask.answer(ask, answer)
        assert self._loop is not None
        self._loop.call_soon(self.wake)

    def _write_overs(self, current: str, ours: list[Over]) -> None:
        ends = [(attempt, end) for attempt, end, *_ in ours if end is not None and end.kind != "crashed"]
        if ends:
            self._write_ends(current, ends)
        crashed = [(attempt, end) for attempt, end, *_ in ours if end is not None and end.kind == "crashed"]
        if crashed:
            self._write_crashes(current, crashed)
        over = [attempt for attempt, end, *_ in ours if end is None]
        if over:
            self._store.attempts.let_go(current, [(attempt.claim.id, attempt.claim.fence) for attempt in over])
            self._duty.remove(over)

    def _write_ends(self, session: str, ends: list[tuple[Attempt, End]]) -> None:
        try:
            counted = self._store.attempts.end(session, [end for _, end in ends])
        except DataFault as fault:
            if len(ends) > 1:
                half = len(ends) // 2
                self._write_ends(session, ends[:half])
                self._write_ends(session, ends[half:])
            else:
                self._write_without_data(session, *ends[0], fault)
            return
        whole, quiet = len(counted) == len(ends), not log.logger.isEnabledFor(DEBUG)
        for attempt, end in ends:
            self._told.add(id(attempt))
            if not whole and end.claim not in counted:
                self._refused(attempt)
            elif quiet and end.kind == "done" and end.drift is None:
                self.ended += 1
            else:
                self._tell(attempt, end)
        for graph in counted.failed_with:
            self._failed(graph)
        self._duty.remove([attempt for attempt, end in ends if not end.lingers])  # those stay until they are let go

    def _write_crashes(self, session: str, ends: list[tuple[Attempt, End]]) -> None:
        """Processes died; whether their runs are tried again is the store's to say."""
        counted, failed = self._store.attempts.crash(session, [end for _, end in ends])
        for run in failed:
            self._failed(run)
        for attempt, end in ends:
            self._told.add(id(attempt))
            if end.claim not in counted:
                self._refused(attempt)
                continue
            self.ended += 1
            error = from_json(end.error or "")
            log.attempt_crashed(end.id, attempt.task.name, attempt.claim.attempt, error, final=end.id in failed)
        self._duty.remove(attempt for attempt, _ in ends)

    def _write_without_data(self, session: str, attempt: Attempt, end: End, fault: DataFault) -> None:
        """The database takes everything but this: the run fails, with what the database said."""
        log.end_not_written(end.id, attempt.task.name, attempt.claim.attempt, fault)
        error = to_json(ErrorInfo("error", "DataFault", str(fault)))
        plain = replace(end, kind="failed", state="failed", result=None, error=error, delay=None, failed=1)
        try:
            counted = self._store.attempts.end(session, [plain])
        except DataFault as again:  # then the heartbeat hands it back
            log.end_not_written(end.id, attempt.task.name, attempt.claim.attempt, again)
            counted = Counted()
        self._told.add(id(attempt))
        self._duty.remove([] if end.lingers else [attempt])
        for graph in counted.failed_with:
            self._failed(graph)
        if end.claim in counted:
            self._tell(attempt, plain)
        else:
            self._refused(attempt)

    def _refused(self, attempt: Attempt) -> None:
        """The run was cancelled or taken over. If it is only that it ended while we were at it, we let go of it now."""
        log.attempt_refused(attempt.claim.id, attempt.task.name, attempt.claim.attempt)
        if attempt.over:
            self.let_go(attempt)

    def _tell(self, attempt: Attempt, end: End) -> None:
        self.ended += 1
        claim = attempt.claim
        if end.drift is not None:
            log.drifted(claim.id, attempt.task.name, claim.attempt, ", ".join(decode(end.drift)["steps"]))
        if end.kind == "done":
            log.attempt_done(claim.id, attempt.task.name, claim.attempt)
        elif end.kind in ("waiting", "restarted", "moved"):
            log.attempt_paused(claim.id, attempt.task.name, claim.attempt, end.kind)
        elif end.kind == "undoing":
            log.attempt_undoes(claim.id, attempt.task.name, claim.attempt, from_json(end.error or ""))
        elif end.kind == "undone":
            log.attempt_undone(claim.id, attempt.task.name, claim.attempt)
            if end.state == "failed":
                self._failed(claim.id)
        elif end.kind == "handed_back":
            self.handed_back += 1
            log.attempt_handed_back(claim.id, attempt.task.name, claim.attempt)
        else:
            retry_in = None if end.delay is None else end.delay / SECOND
            log.attempt_failed(claim.id, attempt.task.name, claim.attempt, from_json(end.error or ""), retry_in)
            if end.kind == "failed":
                self._failed(claim.id)
