"""What conductors need of their worker: to have commands written, threads for plain functions, looks at waits."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from uuid import UUID

from holdfast.database.faults import Expired
from holdfast.engine.attempt import Attempt
from holdfast.engine.loops.base import FIRST_PAUSE
from holdfast.engine.threads import ThreadCall
from holdfast.engine.write_queue import PendingWrite
from holdfast.errors import StoreUnavailable
from holdfast.store import NewRun, Store
from holdfast.store.commands import Outcome, Record
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


class ResidentWaiter(Protocol):
    """An attempt that waits in memory."""

    current: Attempt

    def hear(self, key: str, kind: str, outcome: Outcome) -> None:
        """What one of its waits came to. From any thread; more than once, perhaps."""


class WorkerServices(Protocol):
    """A worker as its conductors see it."""

    store: Store
    client: ClientServices

    def submit(self, write: PendingWrite) -> None:
        """Have a command written soon. A write with `on_loop` comes from the event loop's thread."""

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
                log.attempt_waits_for_database(attempt.claim.id, attempt.task.name, attempt.claim.attempt, error)
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
