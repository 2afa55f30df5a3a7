"""Group commit: the committer writes everything about the worker's claimed runs, in batches.

It takes what the write queue holds and writes it, each kind in one transaction; meanwhile the next batch gathers. So an
idle worker adds no delay, and a busy one shares the cost of a commit among many runs.

* A write that lost its fence fails alone; the rest of its batch is written.
* If the database rejects a batch because of its data, the committer bisects it: one bad value can't fail others. The
  same goes for any other exception that isn't a failure of the store: a malformed payload never stops the worker.
* After a lost connection the committer repeats the whole batch; the store recognizes what was written before.
* Writes of an earlier session are discarded: its lease has expired.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from itertools import chain, repeat
from logging import DEBUG
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from msgspec.structs import replace

from holdfast.database import DataFault
from holdfast.engine.attempt import Attempt, WorkerState
from holdfast.engine.instrumentation import WorkerTelemetry
from holdfast.engine.loops.base import Loop
from holdfast.engine.loops.claimer import CommitClaim
from holdfast.engine.write_queue import (
    CheckpointBatch,
    PendingEnd,
    PendingLogs,
    PendingWrite,
    QueuedWrite,
    SingleWrite,
    WriteQueue,
    WriteResult,
    by_kind,
    sessions_of,
    single_writes,
)
from holdfast.errors import ConfigError, StoreError, TenantMoved
from holdfast.model.asks import AskAnswer, FollowedWrites
from holdfast.model.clock import MICROS_PER_SECOND
from holdfast.model.codec import decode
from holdfast.model.failure import describe_exception, error_from_json, error_to_json
from holdfast.model.payloads import PayloadContext
from holdfast.model.run import FINAL_STATES
from holdfast.store import AttemptEnd, Store
from holdfast.store.commands import (
    OF_ITS_RUN,
    RUN_LOST,
    NewCheckpoint,
    Reply,
    ReplyCommand,
    SetCommand,
    WaitCommand,
    WriteCommand,
    Written,
    needs_own_transaction,
)
from holdfast.store.rows import Claim, EndedClaims
from holdfast.telemetry import log

if TYPE_CHECKING:
    from holdfast.engine.run_logs import LogCollector
    from holdfast.store.logs import LogWrites

POLL_INTERVAL_S = 1.0
"""How soon writes are committed that weren't flushed, because user code blocks the event loop."""

MAX_CLAIMING_WRITES = 8
"""Larger batches claim nothing: the claimer claims on its own connection meanwhile. They wait for the rows that they
lock, too: one run that isn't as expected would let all of them be written again."""

WROTE = Written()

Ends: TypeAlias = list[tuple[Attempt, AttemptEnd]]

_is_on_loop = attrgetter("on_loop")
_count_of = attrgetter("count")
_is_in_tree = attrgetter("in_tree")


class CommitClaims(Protocol):
    """Lets the committer claim runs in the transaction that makes them ready."""

    def begin_commit_claim(self, session: str) -> CommitClaim | None: ...

    def end_commit_claim(self, claim: CommitClaim, is_committed: bool, restarted: Collection[str] = ()) -> None: ...


def is_data_error(error: Exception) -> bool:
    """Return whether the written data caused an error, as opposed to the store or the process."""
    return isinstance(error, DataFault | TenantMoved) or not isinstance(error, StoreError | ConfigError | MemoryError)


def _is_plain_outcome(command: Any) -> bool:
    """Return whether the command records a known value, without a compensation."""
    return type(command) is NewCheckpoint and command.kind != "now" and not command.undo


def _is_followed(command: Any) -> bool:
    """Return whether clients may wait for what the command writes: a chunk, a value or an answer."""
    return isinstance(command, WriteCommand | SetCommand) or _answer_of(command) is not None


def _answer_of(command: Any) -> AskAnswer | None:
    return command.answer if isinstance(command, WaitCommand | ReplyCommand) else None


def _frees_others(ends: Iterable[AttemptEnd]) -> bool:
    """Return whether ends of runs alone may make runs ready: their own, or others that their permits let in."""
    return any(not end.in_tree and (end.limits is not None or end.state not in FINAL_STATES) for end in ends)


def _claims_of(attempts: Iterable[Attempt]) -> dict[str, Claim]:
    return {attempt.claim.id: attempt.claim for attempt in attempts}


class Committer(Loop):
    """Writes the commands and the ends of attempts, and delivers the results."""

    name = "committer"

    def __init__(
        self,
        store: Store,
        state: WorkerState,
        queue: WriteQueue,
        claims: CommitClaims,
        on_failed: Callable[[str], None],
        on_commit: Callable[[Mapping[str, AttemptEnd | None], FollowedWrites, bool, bool], None],
        on_lost: Callable[[list[Attempt]], None],
        on_suspended: Callable[[Attempt], None],
        on_rejected: Callable[[Attempt], None],
    ) -> None:
        super().__init__()
        self._store = store
        self._state = state
        self._queue = queue
        queue.wake_committer = self.wake
        self._claims = claims
        self._on_failed = on_failed
        self._on_commit = on_commit
        self._on_lost = on_lost
        self._on_suspended = on_suspended
        self._on_rejected = on_rejected
        self._loop: asyncio.AbstractEventLoop | None = None
        self._durable: list[PendingWrite | PendingLogs | Attempt] = []  # writes of this batch, and ended attempts
        self._ended_runs: dict[str, AttemptEnd | None] = {}  # runs that ended in this batch, and how, if that is known
        self._wrote_commands = False  # other than checkpoints
        self._affected_others = False  # whether this batch may have made other runs ready, or resolved waits
        self._followed: dict[str, dict[str, AskAnswer | None]] = {}  # what clients may wait for in this batch
        self._left_ready = False  # whether this batch may have made runs ready that it didn't claim
        self.ended_attempts = 0
        self.released_attempts = 0
        self.telemetry: WorkerTelemetry | None = None
        self.log_collector: LogCollector | None = None
        """Has the log lines of attempts, if they are kept."""

    def set_event_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Set the event loop on which coroutines get their results."""
        self._loop = loop
        self._queue.set_event_loop(loop)

    def tick(self) -> float:
        queue = self._queue
        batch = queue.take()
        if not batch:
            return POLL_INTERVAL_S
        if self.log_collector is not None:
            batch = self.log_collector.add_lines(batch)
        started = time.time_ns()
        try:
            self._write(batch)
            if self.telemetry is not None:
                attempts = (write.attempt for write in single_writes(batch))
                self.telemetry.committed(queue.in_flight, attempts, started)
        except BaseException:
            durable = set(map(id, self._durable))
            queue.put_back([write for write in single_writes(batch) if not self._is_durable(write, durable)])
            raise
        finally:
            self._durable.clear()
            queue.finish()
            self._signal_commit()
        return 0.0 if queue.has_ready else POLL_INTERVAL_S

    def _signal_commit(self) -> None:
        """Report which runs have ended or written what clients follow, whether waits may be resolved, and whether runs
        may be ready and unclaimed.

        Most commits only record steps.
        """
        ended, self._ended_runs = self._ended_runs, {}
        left_ready, self._left_ready = self._left_ready, False
        affected_others, self._affected_others = self._affected_others, False
        wrote_commands, self._wrote_commands = self._wrote_commands, False
        if ended or affected_others or wrote_commands:
            followed, self._followed = self._followed, {}
            self._on_commit(ended, followed, affected_others, left_ready)

    def _is_durable(self, write: SingleWrite, durable: Collection[int]) -> bool:
        """Return whether a write of the batch is durable; `durable`: the id() of such writes, and of ended attempts."""
        if isinstance(write, PendingEnd):
            return write.end is not None and id(write.attempt) in durable
        return id(write) in durable

    def _write(self, batch: list[QueuedWrite]) -> None:
        session = self._state.session
        current = session.id if session else None
        if sessions_of(batch) != {current}:
            ended = by_kind(batch).ends
            self._state.remove([write.attempt for write in ended if write.attempt.session != current])
            batch = [write for write in batch if sessions_of([write]) == {current}]
        if current is None:
            return
        checkpoints, commands, ends, logs = by_kind(batch)
        if logs:
            self._write_logs(current, logs)
        if checkpoints or commands:
            self._write_commands(current, checkpoints, commands)
        if ends:
            self._write_attempt_ends(current, ends)

    def _write_logs(self, session: str, writes: list[PendingLogs]) -> None:
        """Write log lines. Those that the database rejects are dropped: they must not stop anything else."""
        assert self.log_collector is not None
        try:
            groups = [group for write in writes for group in write.groups]
            self._store.logs.record(session, self.log_collector.writes(groups))
        except Exception as error:
            if not is_data_error(error):
                raise
            if len(writes) > 1:
                for write in writes:
                    self._write_logs(session, [write])
                return
            attempt = writes[0].attempt
            log.lines_not_stored(attempt.claim.id, attempt.task.name, attempt.claim.attempt, error)
        self._durable += writes
        for write in writes:
            write.on_written()

    # Commands

    def _write_commands(self, session: str, batches: list[CheckpointBatch], writes: list[PendingWrite]) -> None:
        """Write commands and checkpoints.

        Commands other than checkpoints go first: no code waits until the outcome of a wait is durable, so no checkpoint
        that follows it may become durable before it.
        """
        journal = self._store.journal
        checkpoints = [write for write in writes if write.is_checkpoint]
        alone = [write for write in writes if needs_own_transaction(write.command)]
        self._wrote_commands |= len(checkpoints) < len(writes)
        self._affected_others |= any(not isinstance(write.command, OF_ITS_RUN) for write in writes)
        if others := [
            write for write in writes if not write.is_checkpoint and not needs_own_transaction(write.command)
        ]:
            if len(others) + len(checkpoints) <= MAX_CLAIMING_WRITES:  # one transaction instead of two
                others += [write for write in checkpoints if _is_plain_outcome(write.command)]
                checkpoints = [write for write in checkpoints if not _is_plain_outcome(write.command)]
            self._write_bisecting(others, lambda some: self._write_some(session, some))
        if batches and not self._write_checkpoint_batches(session, batches):
            checkpoints += chain.from_iterable(batch.writes for batch in batches)
        if checkpoints:
            self._write_bisecting(checkpoints, lambda some: journal.record(session, [write.record() for write in some]))
        self._left_ready |= bool(alone)
        for write in alone:
            self._write_bisecting([write], lambda some: [journal.enqueue(session, some[0].command)])

    def _write_some(self, session: str, writes: list[PendingWrite]) -> list[Reply]:
        commands: list[Any] = [write.command for write in writes]
        for each in filter(_is_followed, commands):
            answers = self._followed.setdefault(each.token.run, {})
            if (answer := _answer_of(each)) is not None:
                answers.setdefault(answer.key, None)  # until it is known to be the one that counts
        with self._claiming(session, len(commands)) as claim:
            is_small = len(writes) <= MAX_CLAIMING_WRITES
            claims = _claims_of(write.attempt for write in writes) if is_small else None
            return self._store.journal.write(session, commands, claim, claims, self._note_answer)

    def _note_answer(self, run: str, answer: AskAnswer) -> None:
        self._followed[run][answer.key] = answer

    @contextmanager
    def _claiming(self, session: str, writes: int, restarted: Collection[str] = ()) -> Iterator[CommitClaim | None]:
        """Claim what the transaction inside makes ready, if the batch is small: then this worker is hardly busy."""
        claim = self._claims.begin_commit_claim(session) if writes <= MAX_CLAIMING_WRITES else None
        is_committed = False
        try:
            yield claim
            is_committed = True
        finally:
            if claim is not None:
                self._claims.end_commit_claim(claim, is_committed, restarted)
            self._left_ready |= claim is None or not claim.is_complete

    def _write_checkpoint_batches(self, session: str, batches: list[CheckpointBatch]) -> bool:
        """Write encoded checkpoints with one statement. Return False if they have to be written one by one instead."""
        rows, count = ",".join([batch.rows for batch in batches]), sum(map(_count_of, batches))
        try:
            if not self._store.journal.record_steps(session, f"[{rows}]", count):
                return False
        except Exception as error:
            if not is_data_error(error):
                raise
            return False
        writes = list(chain.from_iterable(batch.writes for batch in batches))
        self._durable += writes
        self._deliver_on_loop(zip(writes, repeat(WROTE)))
        return True

    def _write_bisecting(self, writes: list[PendingWrite], write: Callable[[Any], Sequence[WriteResult]]) -> None:
        try:
            results = write(writes)
        except Exception as error:
            if not is_data_error(error):
                raise
            if len(writes) > 1:
                half = len(writes) // 2
                self._write_bisecting(writes[:half], write)
                self._write_bisecting(writes[half:], write)
                return
            results = [error]
        self._durable += writes
        self._deliver(writes, results)

    def _deliver(self, writes: list[PendingWrite], results: Sequence[WriteResult]) -> None:
        pairs = list(zip(writes, results, strict=True))
        if RUN_LOST in results:
            lost = {id(write.attempt): write.attempt for write, result in pairs if result is RUN_LOST}
            self._on_lost(list(lost.values()))
        if not all(map(_is_on_loop, writes)):
            for write, result in pairs:
                if not write.on_loop:
                    write.on_result(write, result)
            pairs = [pair for pair in pairs if pair[0].on_loop]
        if pairs:
            self._deliver_on_loop(pairs)

    def _deliver_on_loop(self, pairs: Iterable[tuple[PendingWrite, WriteResult]]) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._call_back, pairs)

    def _call_back(self, pairs: Iterable[tuple[PendingWrite, WriteResult]]) -> None:
        """Call the callbacks on the event loop.

        The resumed coroutines run in the loop's next iteration; their writes are flushed together after it.
        """
        for write, result in pairs:
            write.on_result(write, result)
        self._queue.flush_after_iteration()

    # Ends of attempts

    def _write_attempt_ends(self, session: str, writes: list[PendingEnd]) -> None:
        all_ends = [(write.attempt, write.end) for write in writes if write.end is not None]
        ends = [each for each in all_ends if each[1].kind != "crashed"]
        if ends:
            self._write_ends(session, ends)
        if len(ends) < len(writes):
            self._left_ready = self._affected_others = True
        if len(ends) < len(all_ends):
            self._write_crashes(session, [each for each in all_ends if each[1].kind == "crashed"])
        released = [write.attempt for write in writes if write.end is None]
        if released:
            self._store.attempts.release(session, [(attempt.claim.id, attempt.claim.fence) for attempt in released])
            self._state.remove(released)

    def _write_ends(self, session: str, ends: Ends) -> None:
        reports = [end for _, end in ends]
        restarted = [end.id for end in reports if end.kind in ("restarted", "moved")]
        try:
            in_tree, frees_others = any(map(_is_in_tree, reports)), _frees_others(reports)
            self._left_ready |= frees_others
            self._affected_others |= in_tree or frees_others
            with self._claiming(session, len(ends), restarted) if in_tree else nullcontext() as claim:
                claims = self._claims_with_parents(ends) if in_tree else None
                recorded = self._store.attempts.end(session, reports, claim, self._last_lines(ends), claims)
        except Exception as error:
            self._write_ends_bisecting(self._write_ends, session, ends, error)
            return
        all_accepted, no_debug_log = len(recorded) == len(ends), not log.logger.isEnabledFor(DEBUG)
        self._durable += [attempt for attempt, _ in ends]
        for attempt, end in ends:
            if not all_accepted and end.claim not in recorded:
                self._rejected(attempt)
                continue
            if attempt.claim.parent is not None:
                self._report_to_parent(attempt.claim, end)
            if no_debug_log and end.kind == "done" and end.drift is None:
                self.ended_attempts += 1
            else:
                self._accepted(attempt, end)
        if all_accepted:
            self._ended_runs.update((end.id, end) for end in reports if end.state in FINAL_STATES)
        else:
            self._ended_runs.update((end.id, None) for end in reports if end.state in FINAL_STATES)
        self._ended_runs.update(dict.fromkeys(recorded.other_ends))
        for graph in recorded.failed_graphs:
            self._on_failed(graph)
        # An attempt whose code is still running stays claimed until it is released.
        self._state.remove([attempt for attempt, end in ends if not end.still_running])

    def _claims_with_parents(self, ends: Ends) -> dict[str, Claim] | None:
        """Return the claims of ended runs, and of their parents in this worker."""
        if len(ends) > MAX_CLAIMING_WRITES:
            return None
        claims = _claims_of(attempt for attempt, _ in ends)
        parents = {str(claim.parent) for claim in claims.values() if claim.parent is not None}
        return claims | _claims_of(parent for parent in map(self._state.find, parents) if parent is not None)

    def _last_lines(self, ends: Ends) -> LogWrites | None:
        """Return the log lines that are written with these ends."""
        collector = self.log_collector
        return None if collector is None else collector.last_lines(attempt for attempt, _ in ends)

    def _report_to_parent(self, child: Claim, end: AttemptEnd) -> None:
        """Hand the end of a child to its parent if that is in this worker, so that it needn't read it."""
        found = self._state.find(str(child.parent))
        if found is not None and found.on_child_end is not None and end.kind in ("done", "failed"):
            result = end.result
            if result is not None and result[:1] == "~":
                result = self._store.payloads.unpack(result, PayloadContext("result", child.tenant, end.id))
            found.on_child_end((end.id, end.state, result, end.error))

    def _write_crashes(self, session: str, ends: Ends) -> None:
        """Write the ends of attempts whose process died or whose code was abandoned; the store decides on retries."""
        try:
            if (lines := self._last_lines(ends)) is not None:
                self._store.logs.record(session, lines)
            recorded, failed = self._store.attempts.crash(session, [end for _, end in ends])
        except Exception as error:
            self._write_ends_bisecting(self._write_crashes, session, ends, error)
            return
        self._ended_runs.update(dict.fromkeys(failed))
        for run in failed:
            self._on_failed(run)
        for attempt, end in ends:
            self._durable.append(attempt)
            if end.claim not in recorded:
                self._rejected(attempt)
                continue
            self.ended_attempts += 1
            info = error_from_json(end.error or "")
            log.attempt_crashed(
                end.id, attempt.task.name, attempt.claim.attempt, info, final=end.id in failed, **attempt.log_fields()
            )
        self._state.remove(attempt for attempt, _ in ends)

    def _write_ends_bisecting(
        self, write: Callable[[str, Ends], None], session: str, ends: Ends, error: Exception
    ) -> None:
        """Write a rejected batch of ends in halves; a single rejected end is written as a failure of its run."""
        if not is_data_error(error):
            raise error
        if len(ends) > 1:
            half = len(ends) // 2
            write(session, ends[:half])
            write(session, ends[half:])
        elif self._last_lines(ends) is not None:
            attempt = ends[0][0]
            log.lines_not_stored(attempt.claim.id, attempt.task.name, attempt.claim.attempt, error)
            attempt.logs = None  # the end may be fine without them
            write(session, ends)
        else:
            self._write_as_failed(session, *ends[0], error)

    def _write_as_failed(self, session: str, attempt: Attempt, end: AttemptEnd, error: Exception) -> None:
        """Fail the run of an end that the database rejects, with the database's error."""
        self._on_rejected(attempt)
        info = describe_exception(error)
        log.result_not_stored(end.id, attempt.task.name, attempt.claim.attempt, info, **attempt.log_fields())
        failed = replace(
            end, kind="failed", state="failed", result=None, error=error_to_json(info), args=None, delay=None, failed=1
        )
        try:
            recorded = self._store.attempts.end(session, [failed])
        except Exception as again:
            if not is_data_error(again):
                raise
            info = describe_exception(again)
            log.result_not_stored(end.id, attempt.task.name, attempt.claim.attempt, info, **attempt.log_fields())
            recorded = EndedClaims()  # the next heartbeat finds the run and releases it
        self._durable.append(attempt)
        self._ended_runs.update(dict.fromkeys([failed.id, *recorded.other_ends]))
        self._state.remove([] if end.still_running else [attempt])
        for graph in recorded.failed_graphs:
            self._on_failed(graph)
        if end.claim in recorded:
            self._accepted(attempt, failed)
        else:
            self._rejected(attempt)

    def _rejected(self, attempt: Attempt) -> None:
        """Handle an end that was rejected because the run was cancelled or another worker has it.

        If the run ended in the database while its code was still running here, it is released now.
        """
        log.result_discarded(attempt.claim.id, attempt.task.name, attempt.claim.attempt, **attempt.log_fields())
        self._on_rejected(attempt)
        if attempt.stopped:
            self._queue.submit(PendingEnd(attempt, None))

    def _accepted(self, attempt: Attempt, end: AttemptEnd) -> None:
        """Count and log an end that is durable, and report a failed run."""
        if end.kind == "handed_back":
            self.released_attempts += 1
        else:
            self.ended_attempts += 1
        claim = attempt.claim
        if end.drift is not None:
            drift = decode(end.drift)
            steps, renamed = drift["steps"], drift.get("renamed", {})
            log.replay_drifted(claim.id, attempt.task.name, claim.attempt, steps, renamed, **attempt.log_fields())
        if end.kind == "done":
            log.attempt_done(claim.id, attempt.task.name, claim.attempt)
        elif end.kind in ("waiting", "restarted", "moved"):
            self._suspended(attempt, end)
        elif end.kind == "undoing":
            error = error_from_json(end.error or "")
            log.compensation_started(claim.id, attempt.task.name, claim.attempt, error, **attempt.log_fields())
        elif end.kind == "undone":
            log.compensation_finished(claim.id, attempt.task.name, claim.attempt, **attempt.log_fields())
            if end.state == "failed":
                self._on_failed(claim.id)
        elif end.kind == "handed_back":
            log.attempt_released(claim.id, attempt.task.name, claim.attempt)
        else:
            retry_in = None if end.delay is None else end.delay / MICROS_PER_SECOND
            error = error_from_json(end.error or "")
            log.attempt_failed(claim.id, attempt.task.name, claim.attempt, error, retry_in, **attempt.log_fields())
            if end.kind == "failed":
                self._on_failed(claim.id)

    def _suspended(self, attempt: Attempt, end: AttemptEnd) -> None:
        if end.kind == "waiting":
            self._on_suspended(attempt)
        log.attempt_suspended(attempt.claim.id, attempt.task.name, attempt.claim.attempt, end.kind)
