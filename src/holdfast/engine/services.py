"""What executors of durable functions need from the client and from their worker."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from uuid import UUID

from holdfast.database.faults import Expired
from holdfast.engine.loops.base import FIRST_RETRY_PAUSE_S
from holdfast.engine.threads import ThreadCall
from holdfast.engine.write_queue import PendingWrite
from holdfast.errors import StoreUnavailable
from holdfast.model.asks import FollowedWrites
from holdfast.model.payloads import PayloadContext
from holdfast.store import AttemptEnd, NewRun, Store
from holdfast.store.commands import NewCheckpoint, WaitOutcome
from holdfast.store.rows import NewGraph
from holdfast.store.topics import DeclaredSubscription
from holdfast.telemetry import log

if TYPE_CHECKING:
    from holdfast.engine.attempt import Attempt, StopReason
    from holdfast.engine.durable.async_executor import AsyncExecutor
    from holdfast.engine.executors import Executors
    from holdfast.engine.remote_call import RemoteCall
    from holdfast.task.operations import Step

T = TypeVar("T")

STOP_POLL_INTERVAL_S = 0.05


class ClientServices(Protocol):
    """What the client does for the engine: create runs from requests, and convert payloads and results."""

    has_limits: bool
    """Whether limits apply; not in direct calls of tests."""

    def new_run(self, request: Any, *, pack: bool = True) -> NewRun:
        """Build a run; `pack=False`: its arguments are packed later, for another id."""

    def new_child(self, request: Any, tenant: str | None) -> NewRun:
        """Build a child of a run of this tenant, which it inherits if it has none."""

    def new_child_graph(self, plan: Any, result: str | None, tenant: str | None) -> tuple[NewRun, NewGraph]: ...

    def step_permits(self, step: Step) -> str | None:
        """Return the permits that a step needs, as `WaitCommand` takes them; None if it needs none."""

    def check_budget(self, name: str) -> None:
        """Raise ConfigError unless the application declares this budget."""

    def subscriptions(self) -> tuple[str, list[DeclaredSubscription]]:
        """Return the name of the app, and the tasks of its code that subscribe to topics."""

    def pack(self, text: str, context: PayloadContext, what: str) -> str:
        """Return a JSON payload as it is stored in this place."""

    def unpack(self, text: str, context: PayloadContext) -> str:
        """Return a payload that is stored in this place as JSON."""

    def trace(self) -> str | None:
        """Return the trace context of the calling code, as it is stored with what that code creates."""

    def handle(self, id: UUID, task: str, *, created: bool = True) -> Any: ...

    def decode_result(self, task: str, text: str) -> Any:
        """Decode a result, given as JSON."""

    def wake_followers(self, written: FollowedWrites) -> None:
        """Wake the callers in this process that follow these runs, and hand them the answers that are known."""

    def wake_result_waiters(self, ended: Mapping[str, AttemptEnd | None]) -> None:
        """Wake the callers in this process that wait for the results of these runs, because they have ended.

        `ended`: the ends that were written, by run; None for runs whose outcome has to be read.
        """


class ChildReader(Protocol):
    """Reads how children ended. Blocks."""

    def spawned_results(self, parent: str) -> dict[str, Any]: ...

    def child_results(self, parent: str, spawn_key: str) -> list[Any]: ...


class ResidentWaiter(Protocol):
    """An executor whose run stays in memory while it waits."""

    current: Attempt

    def resolve_wait(self, key: str, outcome: WaitOutcome) -> None:
        """Deliver the outcome of a wait. Called from any thread, perhaps more than once for a wait."""


class WorkerServices(Protocol):
    """What a worker does for the executors of its attempts."""

    store: Store
    client: ClientServices
    executors: Executors

    def submit(self, write: PendingWrite) -> None:
        """Have a command written soon. A write with `on_loop` comes from the event loop's thread."""

    def submit_ahead(self, write: PendingWrite) -> None:
        """Have a command written that no code awaits, together with what its run submits next."""

    def run_in_thread(self, call: Callable[[], None]) -> ThreadCall: ...

    def call_in_executor(self, executor: str, call: RemoteCall) -> Future[Any]:
        """Start a call in an executor. Cancelling the future cancels the call. From any thread."""

    def watch(self, waiter: ResidentWaiter, *, is_timed: bool) -> None:
        """Poll the waits of an attempt until it stops. `is_timed`: whether a new one is due at some time."""

    def stop(self, attempt: Attempt, reason: StopReason) -> None:
        """Make the code of an attempt stop, for this reason."""

    def suspend(self, executor: AsyncExecutor) -> bool:
        """Suspend a function that waits and keep it in memory. Return False if there is no room for it."""

    def is_claimed(self, run: str) -> bool:
        """Return whether this worker executes the run at present."""

    def has_free_slots(self) -> bool:
        """Return whether slots are free, so that a run that waits in memory takes none from others."""

    def read(self, attempt: Attempt, read: Callable[[], Any]) -> Any:
        """Read from the database for an attempt. Blocks."""

    def transact(self, attempt: Attempt, record: NewCheckpoint, run: Callable[[Any], str]) -> str | None:
        """Call `run` with a connection and record the text that it returns, in one transaction. Blocks.

        Returns None if the run was lost; then the transaction was rolled back.
        """


def retry_while_unavailable(attempt: Attempt, call: Callable[[], T]) -> T:
    """Repeat an idempotent, blocking call while the database is unavailable, until the attempt is asked to stop.

    So a restart of the database only delays an attempt: its writes wait in the committer, its reads and transactions
    wait here.
    """
    is_reported = False
    while True:
        try:
            return call()
        except Expired:
            raise  # The call itself was too slow, and would be again.
        except StoreUnavailable as error:
            if attempt.stop_reason is not None:
                raise
            if not is_reported:
                log.attempt_waiting_for_database(attempt.claim.id, attempt.task.name, attempt.claim.attempt, error)
                is_reported = True
        deadline = time.monotonic() + FIRST_RETRY_PAUSE_S
        while attempt.stop_reason is None and time.monotonic() < deadline:
            time.sleep(STOP_POLL_INTERVAL_S)
