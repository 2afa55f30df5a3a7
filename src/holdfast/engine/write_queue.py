"""The queue of writes about claimed runs: attempts submit, the committer takes batches.

`submit` is the only way to write about a claimed run. Writes are committed in the order in which they were submitted,
with one exception: checkpoints of steps from one iteration of the event loop are gathered and encoded as one text, so
they follow the other writes of that iteration, but precede the ends of their attempts.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from threading import get_ident
from typing import Any, ClassVar, NamedTuple, TypeAlias, final

import msgspec

from holdfast.engine.attempt import Attempt
from holdfast.store import AttemptEnd
from holdfast.store.commands import Command, NewCheckpoint, NewStepCheckpoint, Reply, payload_size
from holdfast.store.logs import NewLogs

MAX_BATCH_WRITES = 500
MAX_BATCH_BYTES = 8 * 1024 * 1024
MAX_CHECKPOINT_BATCH_BYTES = 256 * 1024
"""Larger checkpoints are not encoded as one text: the encoding would delay the event loop."""
FLUSH_AT_WRITES = 200
"""The committer starts on this many writes without waiting for the end of the event loop's iteration."""
AHEAD_ITERATIONS = 5
"""After how many iterations of the event loop a write that no code awaits is committed alone. Within these, a function
that has received something submits its answer, or its next wait."""

WriteResult: TypeAlias = Reply | Exception


@final
class PendingWrite(msgspec.Struct):
    """A command about a claimed run, and the callback for its result.

    `on_result` is called on the event loop, in the order of the commands, if `on_loop` is set; otherwise on the
    committer's thread.
    """

    attempt: Attempt
    command: Command | NewStepCheckpoint
    on_result: Callable[[PendingWrite, WriteResult], None]
    on_loop: bool
    context: Any = None
    """Whatever the callback needs."""
    count: ClassVar[int] = 1

    @property
    def size(self) -> int:
        """The approximate size of the command's payload, in bytes."""
        return payload_size(self.command)

    @property
    def is_checkpoint(self) -> bool:
        """Whether the command only records a value, as most do."""
        command = self.command
        return type(command) is NewStepCheckpoint or (type(command) is NewCheckpoint and not command.waited)

    def record(self) -> NewCheckpoint:
        """Return the command of a checkpoint in its general form."""
        command = self.command
        if type(command) is NewStepCheckpoint:
            return command.to_checkpoint(self.attempt.claim.generation)
        assert type(command) is NewCheckpoint
        return command


@final
class PendingEnd(msgspec.Struct):
    """The end of an attempt. Without `end`, the run has ended or was lost before, and the worker releases it."""

    attempt: Attempt
    end: AttemptEnd | None
    size: int = 0
    """The approximate size of the end's payload, in bytes."""
    count: ClassVar[int] = 1


@final
class PendingLogs(msgspec.Struct):
    """Lines that the code of an attempt has logged while it executes; those that are left come with its end."""

    attempt: Attempt
    groups: list[NewLogs]
    size: int
    on_written: Callable[[], None]
    """Called when they are durable, or were refused."""
    count: ClassVar[int] = 1


@final
class CheckpointBatch(msgspec.Struct):
    """Checkpoints of steps from one iteration of the event loop, encoded as the JSON rows that the statement takes.

    The loop's thread encodes them, because their data is in its core's cache (bench: steps).
    """

    session: str
    writes: list[PendingWrite]
    rows: str
    """The rows without the enclosing brackets."""
    size: int
    count: int


SingleWrite: TypeAlias = PendingEnd | PendingWrite | PendingLogs
QueuedWrite: TypeAlias = SingleWrite | CheckpointBatch

_encode = msgspec.json.Encoder().encode
_value_of = attrgetter("command.value")
_count_of = attrgetter("count")
_session_of = attrgetter("attempt.session")
_command_of = attrgetter("command")


class WriteQueue:
    """Collects writes from all threads until the committer takes them.

    Everything that coroutines submit in one iteration of the event loop becomes available together, when it ends:
    otherwise the first of many writes would be committed alone.
    """

    def __init__(self) -> None:
        self.wake_committer: Callable[[], None] = lambda: None
        self._ready: deque[QueuedWrite] = deque()  # appended to by all threads, consumed by the committer
        self._steps: list[PendingWrite] = []  # checkpoints of steps from this iteration of the loop
        self._ends_after_steps: list[PendingEnd] = []  # of durable functions that may have a checkpoint in `_steps`
        self._flush_scheduled = False
        self._has_writes_ahead = False  # writes that no code awaits, for which a flush is scheduled
        self._in_flight = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread = 0

    def set_event_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Set the event loop on which coroutines submit."""
        self._loop = loop
        loop.call_soon_threadsafe(self._note_loop_thread)

    def _note_loop_thread(self) -> None:
        self._loop_thread = get_ident()

    def submit_ahead(self, write: PendingWrite) -> None:
        """Have a write committed that no code awaits, with what its run submits next. On the loop's thread."""
        self._ready.append(write)
        if not self._has_writes_ahead:
            self._has_writes_ahead = True
            self._wake_after(AHEAD_ITERATIONS)

    def _wake_after(self, iterations: int) -> None:
        """Wake the committer after so many iterations of the event loop, unless it has taken all writes before."""
        if iterations and self._ready:
            assert self._loop is not None
            self._loop.call_soon(self._wake_after, iterations - 1)
            return
        self._has_writes_ahead = False
        if self._ready:
            self.wake_committer()

    def submit(self, write: PendingEnd | PendingWrite) -> None:
        """Have a write committed soon. From any thread; a write with `on_loop` from the event loop's thread."""
        if type(write) is PendingEnd:  # isinstance() costs much more where it is false
            if get_ident() != self._loop_thread:
                self._ready.append(write)
                self.wake_committer()
                return
            if self._steps and write.attempt.durable:
                self._ends_after_steps.append(write)
            else:
                self._ready.append(write)
        elif not write.on_loop:
            self._ready.append(write)
            self.wake_committer()
            return
        elif type(write.command) is NewStepCheckpoint:
            self._steps.append(write)
            if not self._flush_scheduled:
                self.flush_after_iteration()
            elif len(self._steps) == FLUSH_AT_WRITES:
                self._flush()
            return
        else:
            self._ready.append(write)
        if not self._flush_scheduled:
            self.flush_after_iteration()
        elif len(self._ready) == FLUSH_AT_WRITES:
            self.wake_committer()

    def submit_logs(self, logs: PendingLogs) -> None:
        """Have log lines committed soon. From any thread."""
        self._ready.append(logs)
        self.wake_committer()

    def flush_after_iteration(self) -> None:
        """Make the writes of this iteration of the event loop available when it ends. On the loop's thread."""
        if not self._flush_scheduled:
            assert self._loop is not None
            self._flush_scheduled = True
            self._loop.call_soon(self._end_iteration)

    def _end_iteration(self) -> None:
        self._flush_scheduled = False
        self._flush()

    def _flush(self) -> None:
        """Append the gathered checkpoints, then the ends of their attempts.

        The checkpoints follow all other writes of the iteration, because a function may have withdrawn a wait before it
        called the step.
        """
        if self._steps:
            self._ready.extend(batch_checkpoints(self._steps))
            self._steps = []
        if self._ends_after_steps:
            self._ready.extend(self._ends_after_steps)
            self._ends_after_steps = []
        if self._ready:
            self.wake_committer()

    # The committer's side

    def take(self) -> list[QueuedWrite]:
        """Remove and return the next batch. It counts as available until `finish`."""
        self._in_flight = 1  # set before anything is removed, so that `available` never misses writes
        batch = take_batch(self._ready)
        self._in_flight = sum(map(_count_of, batch))
        return batch

    def put_back(self, writes: Sequence[QueuedWrite]) -> None:
        """Return writes of the last batch to the head of the queue."""
        self._ready.extendleft(reversed(writes))

    def finish(self) -> None:
        """Note that the last batch is written, or was put back."""
        self._in_flight = 0

    @property
    def in_flight(self) -> int:
        """The number of writes in the batch that the committer is writing."""
        return self._in_flight

    @property
    def has_ready(self) -> bool:
        return bool(self._ready)

    @property
    def available(self) -> int:
        """The number of writes that the committer has or can take."""
        ready: int = sum(map(_count_of, tuple(self._ready)))
        return ready + self._in_flight

    @property
    def backlog(self) -> int:
        """The number of writes that are not durable yet, including those of the event loop's current iteration."""
        gathered = len(self._steps) + len(self._ends_after_steps)  # read first: writes move from there to `_ready`
        return gathered + self.available


def batch_checkpoints(writes: list[PendingWrite]) -> Sequence[QueuedWrite]:
    """Encode checkpoints as one batch, if they are small and of one session; otherwise return them unchanged."""
    session = writes[0].attempt.session
    size = sum(map(len, map(_value_of, writes)))
    if size > MAX_CHECKPOINT_BATCH_BYTES or set(map(_session_of, writes)) != {session}:
        return writes
    rows = _encode(list(map(_command_of, writes))).decode()
    return [CheckpointBatch(session, writes, rows[1:-1], size, len(writes))]


def take_batch(ready: deque[QueuedWrite]) -> list[QueuedWrite]:
    """Remove and return writes from the head, up to `MAX_BATCH_WRITES` and `MAX_BATCH_BYTES`, but at least one."""
    batch: list[QueuedWrite] = []
    count = size = 0
    while ready:
        write = ready[0]
        count += write.count
        size += write.size
        if batch and (count > MAX_BATCH_WRITES or size > MAX_BATCH_BYTES):
            break
        batch.append(ready.popleft())
    return batch


class WritesByKind(NamedTuple):
    """The writes of a batch: checkpoint batches, other commands, ends, and log lines."""

    checkpoints: list[CheckpointBatch]
    commands: list[PendingWrite]
    ends: list[PendingEnd]
    logs: list[PendingLogs]


def by_kind(batch: Iterable[QueuedWrite]) -> WritesByKind:
    """Split a batch by the kinds of its writes."""
    checkpoints: list[CheckpointBatch] = []
    commands: list[PendingWrite] = []
    ends: list[PendingEnd] = []
    logs: list[PendingLogs] = []
    for write in batch:
        if type(write) is PendingEnd:
            ends.append(write)
        elif type(write) is CheckpointBatch:
            checkpoints.append(write)
        elif type(write) is PendingLogs:
            logs.append(write)
        else:
            commands.append(write)
    return WritesByKind(checkpoints, commands, ends, logs)


def sessions_of(batch: Iterable[QueuedWrite]) -> set[str]:
    return {write.session if isinstance(write, CheckpointBatch) else write.attempt.session for write in batch}


def single_writes(batch: Iterable[QueuedWrite]) -> list[SingleWrite]:
    """Return the writes of a batch one by one, including those inside checkpoint batches."""
    return [each for write in batch for each in (write.writes if isinstance(write, CheckpointBatch) else (write,))]
