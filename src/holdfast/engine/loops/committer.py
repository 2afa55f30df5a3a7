"""Group commit: the only way in which a worker writes about the runs that it has in hand.

Whatever waits is written in one go, each kind in one transaction; while it is being written, the next group gathers. So
an idle worker adds no delay, and a busy one shares the cost of a commit among many.

* A command that lost its fence fails alone; its group goes on.
* A group that the database refuses for its data is tried again in halves, so that one bad value can't hurt others. So
  is one that raises anything else but a trouble of the store: nothing that a run brings along stops the worker.
* After a lost connection the whole group is repeated: what was written before the answer got lost is recognised.
* Commands of a session that is over are dropped: nothing may be written under it.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, repeat
from logging import DEBUG
from operator import attrgetter
from threading import get_ident
from typing import Any, TypeAlias

from msgspec.structs import replace

from holdfast.database import DataFault
from holdfast.engine.attempt import Attempt
from holdfast.engine.instrumentation import WorkerTelemetry
from holdfast.engine.loops.base import Loop
from holdfast.engine.services import Answer, Ask
from holdfast.engine.session import WorkerState
from holdfast.engine.write_queue import Bundle, Over, Task, bundled, loose, sessions_of, take_group
from holdfast.errors import ConfigError, StoreError
from holdfast.model.clock import MICROS_PER_SECOND
from holdfast.model.codec import decode
from holdfast.model.failure import describe_exception, error_from_json, error_to_json
from holdfast.store import End, Store
from holdfast.store.commands import LOST, Wrote, wants_to_be_alone
from holdfast.store.rows import Counted
from holdfast.telemetry import log

ENOUGH = 200
"""So many commands are written without waiting for more: the loop goes on with the others of its turn meanwhile."""
LOOK_SECONDS = 1.0
"""How soon it is written what the loop said in a turn that doesn't end, because author code blocks it."""

WROTE = Wrote()

Ends: TypeAlias = list[tuple[Attempt, End]]

_is_on_loop = attrgetter("on_loop")
_number_of = attrgetter("number")


def is_of_the_data(error: Exception) -> bool:
    """Whether what was to be written is to blame for an error, and not the store, where it is said to be, or us."""
    return isinstance(error, DataFault) or not isinstance(error, StoreError | ConfigError | MemoryError)


class Committer(Loop):
    """Writes what attempts say, and their ends."""

    name = "committer"

    def __init__(
        self,
        store: Store,
        state: WorkerState,
        failed: Callable[[str], None],
        written: Callable[[], None],
        lost: Callable[[list[Attempt]], None],
    ) -> None:
        super().__init__()
        self._store = store
        self._state = state
        self._failed = failed
        self._written = written
        self._lost = lost
        self._waiting: deque[Task] = deque()  # filled by any thread, emptied by one
        self._steps: list[Ask] = []  # what gathers on the loop in one turn of it
        self._ends: list[Over] = []  # of durable functions whose steps may stand there
        self._announced = False  # the end of the turn is on its way
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread = 0
        self._writing = 0
        self._told: set[int] = set()  # of the group under way what is durable: asks, and attempts that ended, by id()
        self.ended = 0
        self.handed_back = 0
        self.telemetry: WorkerTelemetry | None = None

    def use(self, loop: asyncio.AbstractEventLoop) -> None:
        """Where answers to coroutines are given."""
        self._loop = loop
        loop.call_soon_threadsafe(self._note_thread)

    def _note_thread(self) -> None:
        self._loop_thread = get_ident()

    def end(self, attempt: Attempt, end: End) -> None:
        self.submit(Over(attempt, end, len(end.result or "") + len(end.error or "") + len(end.args or "")))

    def let_go(self, attempt: Attempt) -> None:
        self.submit(Over(attempt, None))

    def submit(self, task: Over | Ask) -> None:
        """Have something written soon. From any thread."""
        if get_ident() == self._loop_thread:
            self.submit_here(task)
        else:
            self._waiting.append(task)
            self.wake()

    def submit_here(self, task: Over | Ask) -> None:
        """The same on the loop. What its tasks say in one turn of it goes together, up to what is enough for a group:
        the first of many must not begin one of its own."""
        if self._steps and isinstance(task, Over) and task.attempt.durable:
            self._ends.append(task)
        else:
            self._waiting.append(task)
        if not self._announced:
            self._announce()
        elif len(self._waiting) == ENOUGH:
            self.wake()

    def keep(self, ask: Ask) -> None:
        """The same for the checkpoint of a step that went well and has no undo."""
        self._steps.append(ask)
        if not self._announced:
            self._announce()
        elif len(self._steps) == ENOUGH:
            self._hand_over()

    def _announce(self) -> None:
        assert self._loop is not None
        self._announced = True
        self._loop.call_soon(self._end_turn)

    def _end_turn(self) -> None:
        self._announced = False
        self._hand_over()

    def _hand_over(self) -> None:
        """The steps that have gathered wait to be written: behind all else that was said meanwhile, since author code
        may have withdrawn a wait before it came to a step; but before the ends of their functions."""
        if self._steps:
            self._waiting.extend(bundled(self._steps))
            self._steps = []
        if self._ends:
            self._waiting.extend(self._ends)
            self._ends = []
        if self._waiting:
            self.wake()

    @property
    def backlog(self) -> int:
        """Commands that aren't durable yet."""
        gathering = len(self._steps) + len(self._ends)  # looked at first: from there they go on
        return gathering + self.handed_over

    @property
    def handed_over(self) -> int:
        """The same without what has gathered in a turn of the loop, which must end first."""
        waiting: int = sum(map(_number_of, tuple(self._waiting)))
        return waiting + self._writing

    def tick(self) -> float:
        self._writing = 1  # before any is taken out: nobody may take it for written
        group = take_group(self._waiting)
        self._writing = sum(map(_number_of, group))
        if not group:
            return LOOK_SECONDS
        self._told.clear()
        started = time.time_ns()
        try:
            self._write(group)
            if self.telemetry is not None:
                self.telemetry.committed(self._writing, (task.attempt for task in loose(group)), started)
        except BaseException:
            self._waiting.extendleft(task for task in reversed(loose(group)) if not self._is_told(task))
            raise
        finally:
            self._writing = 0
            self._written()
        return 0.0 if self._waiting else LOOK_SECONDS

    def _is_told(self, task: Ask | Over) -> bool:
        if isinstance(task, Ask):
            return id(task) in self._told
        return task.end is not None and id(task.attempt) in self._told

    def _write(self, group: list[Task]) -> None:
        session = self._state.session
        current = session.id if session else None
        if sessions_of(group) != {current}:
            overs = [task for task in group if isinstance(task, Over)]
            self._state.remove([task.attempt for task in overs if task.attempt.session != current])
            group = [task for task in group if sessions_of([task]) == {current}]
        if current is None:
            return
        bundles = [task for task in group if isinstance(task, Bundle)]
        self._write_asks(current, bundles, [task for task in group if isinstance(task, Ask)])
        self._write_overs(current, [task for task in group if isinstance(task, Over)])

    def _write_asks(self, session: str, bundles: list[Bundle], asks: list[Ask]) -> None:
        """What attempts say: checkpoints, and others. The outcomes of waits go first: nobody waits for them to be
        durable, so nothing that came after them may be before them."""
        journal = self._store.journal
        plain = [ask for ask in asks if ask.plain]
        alone = [ask for ask in asks if wants_to_be_alone(ask.command)]
        if others := [ask for ask in asks if not ask.plain and not wants_to_be_alone(ask.command)]:
            self._write_halved(others, lambda some: journal.write(session, [ask.command for ask in some]))
        if bundles and not self._write_bundles(session, bundles):
            plain += chain.from_iterable(bundle.asks for bundle in bundles)
        if plain:
            self._write_halved(plain, lambda some: journal.record(session, [ask.record() for ask in some]))
        for ask in alone:
            self._write_halved([ask], lambda some: [journal.enqueue(session, some[0].command)])

    def _write_bundles(self, session: str, bundles: list[Bundle]) -> bool:
        """Checkpoints of steps, as one text. False where they don't all count, or not as they are."""
        rows, number = ",".join([bundle.rows for bundle in bundles]), sum(map(_number_of, bundles))
        try:
            if not self._store.journal.record_steps(session, f"[{rows}]", number):
                return False
        except Exception as fault:
            if not is_of_the_data(fault):
                raise
            return False
        asks = list(chain.from_iterable(bundle.asks for bundle in bundles))
        self._told.update(map(id, asks))
        self._pass_on(zip(asks, repeat(WROTE)))
        return True

    def _write_halved(self, asks: list[Ask], write: Callable[[Any], Sequence[Answer]]) -> None:
        try:
            answers = write(asks)
        except Exception as fault:
            if not is_of_the_data(fault):
                raise
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
        if told:
            self._pass_on(told)

    def _pass_on(self, told: Iterable[tuple[Ask, Answer]]) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._tell_on_loop, told)

    def _tell_on_loop(self, told: Iterable[tuple[Ask, Answer]]) -> None:
        """Give answers. What their receivers say next, in the loop's next turn, belongs together, and goes on at once
        when the last of them has said it."""
        for ask, answer in told:
            ask.answer(ask, answer)
        if not self._announced:
            self._announce()

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
            self._state.remove(over)

    def _write_ends(self, session: str, ends: Ends) -> None:
        try:
            counted = self._store.attempts.end(session, [end for _, end in ends])
        except Exception as fault:
            self._write_apart(self._write_ends, session, ends, fault)
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
        self._state.remove([attempt for attempt, end in ends if not end.lingers])  # those stay until they are let go

    def _write_crashes(self, session: str, ends: Ends) -> None:
        """Processes died, or code was abandoned; the store decides whether the runs are tried again."""
        try:
            counted, failed = self._store.attempts.crash(session, [end for _, end in ends])
        except Exception as fault:
            self._write_apart(self._write_crashes, session, ends, fault)
            return
        for run in failed:
            self._failed(run)
        for attempt, end in ends:
            self._told.add(id(attempt))
            if end.claim not in counted:
                self._refused(attempt)
                continue
            self.ended += 1
            error = error_from_json(end.error or "")
            log.attempt_crashed(end.id, attempt.task.name, attempt.claim.attempt, error, final=end.id in failed)
        self._state.remove(attempt for attempt, _ in ends)

    def _write_apart(self, write: Callable[[str, Ends], None], session: str, ends: Ends, fault: Exception) -> None:
        """What could not be written, in halves; of a single one that it failed."""
        if not is_of_the_data(fault):
            raise fault
        if len(ends) > 1:
            half = len(ends) // 2
            write(session, ends[:half])
            write(session, ends[half:])
        else:
            self._write_without_data(session, *ends[0], fault)

    def _write_without_data(self, session: str, attempt: Attempt, end: End, fault: Exception) -> None:
        """The database takes everything but this: the run fails, with what was said of it."""
        error = describe_exception(fault)
        log.result_not_stored(end.id, attempt.task.name, attempt.claim.attempt, error)
        plain = replace(
            end, kind="failed", state="failed", result=None, error=error_to_json(error), args=None, delay=None, failed=1
        )
        try:
            counted = self._store.attempts.end(session, [plain])
        except Exception as again:
            if not is_of_the_data(again):
                raise
            log.result_not_stored(end.id, attempt.task.name, attempt.claim.attempt, describe_exception(again))
            # then the heartbeat hands it back
            counted = Counted()
        self._told.add(id(attempt))
        self._state.remove([] if end.lingers else [attempt])
        for graph in counted.failed_with:
            self._failed(graph)
        if end.claim in counted:
            self._tell(attempt, plain)
        else:
            self._refused(attempt)

    def _refused(self, attempt: Attempt) -> None:
        """The run was cancelled or taken over. If it is only that it ended while we were at it, we let go of it now."""
        log.result_discarded(attempt.claim.id, attempt.task.name, attempt.claim.attempt)
        if attempt.over:
            self.let_go(attempt)

    def _tell(self, attempt: Attempt, end: End) -> None:
        if end.kind == "handed_back":
            self.handed_back += 1
        else:
            self.ended += 1
        claim = attempt.claim
        if end.drift is not None:
            log.replay_drifted(claim.id, attempt.task.name, claim.attempt, ", ".join(decode(end.drift)["steps"]))
        if end.kind == "done":
            log.attempt_done(claim.id, attempt.task.name, claim.attempt)
        elif end.kind in ("waiting", "restarted", "moved"):
            log.attempt_suspended(claim.id, attempt.task.name, claim.attempt, end.kind)
        elif end.kind == "undoing":
            log.compensation_started(claim.id, attempt.task.name, claim.attempt, error_from_json(end.error or ""))
        elif end.kind == "undone":
            log.compensation_finished(claim.id, attempt.task.name, claim.attempt)
            if end.state == "failed":
                self._failed(claim.id)
        elif end.kind == "handed_back":
            log.attempt_released(claim.id, attempt.task.name, claim.attempt)
        else:
            retry_in = None if end.delay is None else end.delay / MICROS_PER_SECOND
            log.attempt_failed(claim.id, attempt.task.name, claim.attempt, error_from_json(end.error or ""), retry_in)
            if end.kind == "failed":
                self._failed(claim.id)
