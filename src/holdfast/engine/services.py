"""What conductors need of their worker: to have commands written, threads for plain functions, looks at waits."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias, TypeVar
from uuid import UUID

import msgspec

from holdfast.database.faults import Expired
from holdfast.engine.attempt import Attempt
from holdfast.engine.loops.base import FIRST_PAUSE
from holdfast.engine.threads import ThreadCall
from holdfast.errors import StoreUnavailable
from holdfast.store import NewRun, Store
from holdfast.store.commands import Command, Outcome, Record, Reply, StepRecord, payload_size
from holdfast.store.rows import NewGraph
from holdfast.telemetry import log

if TYPE_CHECKING:
    from holdfast.engine.attempt import Attempt, Order


class ClientServices(Protocol):
    """What the application's side does for runs: turns requests into rows, and rows into what authors see."""

    def new_run(self, request: Any) -> NewRun: ...

    def new_child_graph(self, plan: Any, result: str | None) -> tuple[NewRun, NewGraph]: ...

    def pack(self, text: str, what: str) -> str:
        """A payload as it is stored."""

    def unpack(self, text: str) -> str:
        """A stored payload as JSON."""

    def trace(self) -> str | None:
        """The trace context of the code that asks, as it is kept with what it makes."""

    def handle(self, id: UUID, task: str) -> Any: ...

    def decode_result(self, task: str, text: str) -> Any: ...

    def ended(self) -> None:
        """Runs have ended, perhaps: whoever waits for one in this process may look."""


class ChildReader(Protocol):
    """How children ended. Blocking."""

    def spawned(self, parent: str) -> dict[str, Any]: ...

    def children(self, parent: str, spawn_key: str) -> list[Any]: ...


Answer: TypeAlias = Reply | Exception


class Ask(msgspec.Struct):
    """A command that waits to be written, and who is told of it, and of what it is about to him. On the loop answers
    are given there, in the order of the commands; else right away, on the committer's thread."""

    attempt: Attempt
    command: Command | StepRecord
    answer: Callable[[Ask, Answer], None]
    on_loop: bool
    about: Any = None
    size: int = 0
    """About how many bytes of payload the command has."""
    plain: bool = False
    """Whether the command is a checkpoint and nothing else, as most are."""
    number: ClassVar[int] = 1

    @classmethod
    def of(
        cls, attempt: Attempt, command: Command, answer: Callable[[Ask, Answer], None], on_loop: bool, about: Any = None
    ) -> Ask:
        """With what is to be known of the command."""
        plain = type(command) is Record and not command.waited
        return cls(attempt, command, answer, on_loop, about, payload_size(command), plain)

    def record(self) -> Record:
        """The command of one that is plain, as any other checkpoint."""
        command = self.command
        if type(command) is StepRecord:
            return command.whole(self.attempt.claim.generation)
        assert type(command) is Record
        return command


class ResidentWaiter(Protocol):
    """An attempt that waits in memory."""

    current: Attempt

    def hear(self, key: str, kind: str, outcome: Outcome) -> None:
        """What one of its waits came to. From any thread; more than once, perhaps."""


class WorkerServices(Protocol):
    """A worker as its conductors see it."""

    store: Store
    client: ClientServices

    def submit(self, ask: Ask) -> None: ...

    def submit_here(self, ask: Ask) -> None:
        """The same on the loop."""

    def keep(self, ask: Ask) -> None:
        """The same for the checkpoint of a step that went well and has no undo."""

    def run_in_thread(self, call: Callable[[], None]) -> ThreadCall: ...

    def watch(self, waiting: ResidentWaiter) -> None:
        """Look at the waits of an attempt from now on, until it is over."""

    def stop(self, attempt: Attempt, order: Order) -> None:
        """Tell author code to stop."""

    def has_room(self) -> bool:
        """Whether there are free slots, so that waiting in memory takes nothing from others."""

    def transact(self, attempt: Attempt, command: Record, work: Callable[[Any], str]) -> str | None:
        """Call work with a connection, and record the text that it returns, in one transaction; None when the run was
        lost, and all of it taken back. Blocks."""


T = TypeVar("T")
LOOK = 0.05


def retry_while_unavailable(attempt: Attempt, work: Callable[[], T]) -> T:
    """Do the work, which blocks and is safe to repeat. Its last error when author code is told to stop meanwhile."""
    waited = False
    while True:
        try:
            done = work()
        except Expired:
            raise  # its own slowness: the same again would end the same way
        except StoreUnavailable as error:
            if attempt.order is not None:
                raise
            if not waited:
                log.attempt_waiting_for_database(attempt.claim.id, attempt.task.name, attempt.claim.attempt, error)
            waited = True
            _pause(attempt)
        else:
            return done


def _pause(attempt: Attempt) -> None:
    until = time.monotonic() + FIRST_PAUSE
    while attempt.order is None and time.monotonic() < until:
        time.sleep(LOOK)


class RetryingChildReader:
    """A reader for one attempt."""

    def __init__(self, attempt: Attempt, reader: ChildReader) -> None:
        self._attempt = attempt
        self._reader = reader

    def spawned(self, parent: str) -> dict[str, Any]:
        return retry_while_unavailable(self._attempt, lambda: self._reader.spawned(parent))

    def children(self, parent: str, spawn_key: str) -> list[Any]:
        return retry_while_unavailable(self._attempt, lambda: self._reader.children(parent, spawn_key))
