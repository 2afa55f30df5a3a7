"""Replay one unfinished run with the current code, without running steps and without writing.

Each branch of the function stops at the first operation that isn't recorded. When all branches have stopped or the
function has returned, two things reveal a difference: recorded checkpoints that the code didn't request, and waits of
the run that the code no longer waits for. What the code does after something new can't be seen that way: then a second
replay continues with `UnknownValue` in the place of results that don't exist. Code outside steps does run.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, NoReturn
from uuid import UUID, uuid4

import msgspec

from holdfast.engine.attempt import Attempt
from holdfast.engine.durable.async_executor import AsyncExecutor
from holdfast.engine.durable.executor import Arguments
from holdfast.engine.durable.history import RecordedHistory
from holdfast.engine.durable.plans import OperationPlans, Plan, PlanExecutor
from holdfast.engine.durable.sync_executor import SyncExecutor
from holdfast.engine.durable.undo import ReplayOutcome, replay_function
from holdfast.engine.executors import Executors
from holdfast.engine.remote_call import RemoteCall
from holdfast.engine.services import ClientServices
from holdfast.engine.threads import ThreadCall, ThreadPool
from holdfast.errors import TaskError
from holdfast.model.asks import FollowedWrites
from holdfast.model.codec import UnreadableText
from holdfast.model.payloads import PayloadContext, Payloads
from holdfast.store import AttemptEnd, NewRun, Store
from holdfast.store.commands import LoadedHistory, RunToken
from holdfast.store.rows import NewGraph
from holdfast.store.run_queries import UnfinishedClaim
from holdfast.task import operations as op
from holdfast.task.registry import Registry
from holdfast.task.task import Task

CLEANUP_S = 1.0
"""Time beyond its timeout that a replay gets for cleanup."""
SIGNAL_INTERVAL_S = 0.5
"""A Ctrl-C right before a wait doesn't end that wait, so waits are short."""
MAX_SKIPPED_OPERATIONS = 1000
"""After this many unrecorded operations a replay stops to skip them: the code may be in an endless loop."""


class CannotCheck(BaseException):
    """The code uses something that a replay can't provide. A BaseException, so that task code doesn't catch it."""


class ChildHandle:
    """The handle of a child within a replay: it can be joined, nothing else."""

    def __init__(self, id: UUID, task: str, created: bool = True) -> None:
        self.id = id
        self.task = task
        self.created = created

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ChildHandle) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"<run {self.id} of {self.task}>"

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise CannotCheck(f"the code uses .{name} of another run outside a step")


class ReadOnlyRunFactory:
    """The client services of a replay; they create nothing."""

    has_limits = True

    def step_permits(self, step: Any) -> None:
        """Return none: no step runs."""

    def check_budget(self, name: str) -> None:
        """Accept any budget: nothing is spent."""

    def __init__(self, registry: Registry, payloads: Payloads) -> None:
        self._registry = registry
        self._payloads = payloads

    def subscriptions(self) -> tuple[str, list[Any]]:
        """Return none: a replay declares nothing."""
        return "", []

    def new_run(self, request: Any, *, pack: bool = True) -> NewRun:  # noqa: ARG002
        raise _refusal("create a run")

    def new_child(self, request: Any, tenant: str | None) -> NewRun:  # noqa: ARG002
        raise _refusal("create a child")

    def new_child_graph(
        self,
        plan: Any,  # noqa: ARG002
        result: str | None,  # noqa: ARG002
        tenant: str | None,  # noqa: ARG002
    ) -> tuple[NewRun, NewGraph]:
        raise _refusal("create a graph")

    def pack(self, text: str, context: PayloadContext, what: str) -> str:
        return self._payloads.pack(text, context, what)

    def unpack(self, text: str, context: PayloadContext) -> str:
        return self._payloads.unpack(text, context)

    def trace(self) -> str | None:
        """Return no trace context: the replay creates nothing."""

    def handle(self, id: UUID, task: str, *, created: bool = True) -> ChildHandle:
        return ChildHandle(id, task, created)

    def decode_result(self, task: str, text: str) -> Any:
        return self._registry.decode_result(task, text)

    def wake_followers(self, written: FollowedWrites) -> None:
        """Do nothing: a replay writes no chunks."""

    def wake_result_waiters(self, ended: Mapping[str, AttemptEnd | None]) -> None:
        """Do nothing: no run ends in a replay."""


class ReadOnlyServices:
    """The worker services of a replay; they only read."""

    def __init__(self, store: Store, client: ClientServices) -> None:
        self.store = store
        self.client = client
        self.executors = Executors({})

    def call_in_executor(self, executor: str, call: RemoteCall) -> Future[Any]:
        raise AssertionError(f"a replay calls {call} in the executor {executor}")

    def run_in_thread(self, call: Callable[[], None]) -> ThreadCall:
        """Run a call in a thread that ends with the call."""
        threads = ThreadPool()
        handle = threads.run(call)
        threads.close()
        return handle

    def is_claimed(self, run: str) -> bool:  # noqa: ARG002 - nothing runs beside a replay
        return False

    def has_free_slots(self) -> bool:
        return True

    def read(self, attempt: Any, read: Callable[[], Any]) -> Any:  # noqa: ARG002
        return read()

    def submit(self, write: Any) -> NoReturn:
        raise _refusal(f"write {type(write.command).__name__}")

    submit_ahead = submit

    def watch(self, waiting: Any, *, is_timed: bool) -> NoReturn:  # noqa: ARG002
        raise _refusal("wait")

    def stop(self, attempt: Any, order: Any) -> NoReturn:  # noqa: ARG002
        raise _refusal(f"end by {order}")

    def suspend(self, executor: Any) -> NoReturn:  # noqa: ARG002
        raise _refusal("suspend")

    def transact(self, attempt: Any, command: Any, work: Any) -> NoReturn:  # noqa: ARG002
        raise _refusal("run a transaction")


def _refusal(what: str) -> TaskError:
    return TaskError(f"the check tried to {what}; this is a bug in Holdfast")


# A replay that continues after what isn't recorded


class UnknownValue(msgspec.Struct, eq=False):
    """Stands for a result that isn't recorded.

    The code may take parts of it and pass it on, for example to a step, which then has other arguments than any
    recorded one. What needs the value itself can't be checked.
    """

    unknown_result_of: str

    def __getattr__(self, name: str) -> UnknownValue:
        if name.startswith("__"):
            raise AttributeError(name)
        return UnknownValue(self.unknown_result_of)

    def __getitem__(self, _item: object) -> UnknownValue:
        return UnknownValue(self.unknown_result_of)

    def _needed(self, *_: object, **__: object) -> NoReturn:
        raise CannotCheck(f"the code needs the result of {self.unknown_result_of}, which isn't recorded")

    __bool__ = __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __hash__ = _needed
    __iter__ = __len__ = __contains__ = __call__ = __str__ = __repr__ = __format__ = _needed
    __int__ = __float__ = __index__ = __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _needed
    __truediv__ = __rtruediv__ = __floordiv__ = __mod__ = __neg__ = __abs__ = __round__ = _needed
    __await__ = __aiter__ = __enter__ = __aenter__ = _needed


def _contains_unknown(value: object) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_contains_unknown, value))
    if isinstance(value, dict):
        return any(map(_contains_unknown, value.values()))
    return isinstance(value, UnknownValue)


class _Skipped(BaseException):
    """Ends the plan of an operation that isn't recorded; its caller gets an unknown value."""


class SkippingPlans(OperationPlans):
    """Plans that go on after operations that aren't recorded, as long as something recorded wasn't requested."""

    __slots__ = ("_new_runs", "_waits", "skipped", "uncertain")

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._waits = frozenset(self.history.open_waits)
        self._new_runs: set[UUID] = set()
        self.skipped: list[str] = []
        """The keys of the unrecorded operations after which the replay went on."""
        self.uncertain: set[str] = set()
        """The names of steps whose arguments contain an unknown value: they may be those that are recorded."""

    def start(self, executor: PlanExecutor, operation: op.Operation) -> Plan:
        return self._continue(super().start(executor, operation), operation)

    async def _continue(self, plan: Plan, operation: op.Operation) -> Any:
        if isinstance(operation, op.Join) and operation.run in self._new_runs:
            plan.close()
            return UnknownValue(operation.task)
        try:
            return await plan
        except _Skipped:
            if isinstance(operation, op.FunctionCall) and _contains_unknown(
                [*operation.args, *operation.kwargs.values()]
            ):
                self.uncertain.add(operation.name)
            return self._unknown_result(operation)

    def _unknown_result(self, operation: op.Operation) -> Any:
        match operation:
            case op.Undo() | op.Sleep() | op.Write():
                return None
            case op.FunctionGate():
                return UnknownValue(f"gate {operation.plan.graph.name}")
            case op.Spawn() | op.Enqueue() | op.Submit():
                task = operation.plan.graph.name if isinstance(operation, op.Submit) else operation.request.task
                run = ChildHandle(uuid4(), task)
                self._new_runs.add(run.id)
                return run
            case op.Step() | op.Transaction():
                return UnknownValue(f"step {operation.name}")
            case op.Map() | op.Join():
                return UnknownValue(operation.task)
            case _:
                return UnknownValue(operation.base.removeprefix("$").replace(":", " "))

    def skip(self, key: str, reached: list[str]) -> bool:
        """Return whether to go on after an unrecorded operation, given those that were reached before."""
        if key == "$restart" or key in self._waits or len(self.skipped) >= MAX_SKIPPED_OPERATIONS:
            return False
        if not self.history.unconsumed and self._waits.issubset(reached):
            return False
        self.skipped.append(key)
        return True


class SkippingAsyncExecutor(AsyncExecutor):
    """Replays an async function beyond operations that aren't recorded."""

    __slots__ = ("_stopped",)

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._stopped = False

    @property
    def has_stopped(self) -> bool:
        return self._stopped

    async def stop_at_unrecorded(self, key: str) -> NoReturn:
        assert isinstance(self.plans, SkippingPlans)
        if key in self.plans.history.withdrawn or not self.plans.skip(key, self.unrecorded):
            self._stopped = True
            await super().stop_at_unrecorded(key)
        self.unrecorded.append(key)
        self._other_activity += 1
        await asyncio.sleep(0)
        raise _Skipped


class SkippingSyncExecutor(SyncExecutor):
    """Replays a sync function beyond operations that aren't recorded."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._stopped = False

    @property
    def has_stopped(self) -> bool:
        return self._stopped

    async def stop_at_unrecorded(self, key: str) -> NoReturn:
        assert isinstance(self.plans, SkippingPlans)
        if not self.plans.skip(key, self.unrecorded):
            self._stopped = True
            await super().stop_at_unrecorded(key)
        self.unrecorded.append(key)
        raise _Skipped


class RunReplay:
    """One replay of a run.

    Attributes:
        history: What is recorded. After the replay, `unconsumed` has what the code didn't request.
        plans: The plans of the replay.
        unrecorded: The keys of the unrecorded operations that the code reached, in order.
    """

    def __init__(
        self,
        services: ReadOnlyServices,
        task: Task[..., Any],
        run: UnfinishedClaim,
        kept: LoadedHistory,
        *,
        skipping: bool = False,
    ) -> None:
        claim = run.claim
        self._services = services
        self._attempt = Attempt(claim, task, "check", kept)
        self._skipping = skipping
        self._outcome: ReplayOutcome | None = None
        self.history = RecordedHistory(kept, RunToken(claim.id, claim.seq, claim.fence, claim.generation))
        plans = SkippingPlans if skipping else OperationPlans
        self.plans = plans(claim, self.history, services.client, services.store.journal, replay_only=True)
        self.unrecorded: list[str] = []

    def arguments(self) -> Arguments:
        """Decode the stored arguments. Raises what the task's signature raises."""
        if isinstance(self._attempt.claim.args, UnreadableText):
            raise self._attempt.claim.args.error
        arguments: Arguments = self._attempt.signature.decode(self._attempt.claim.args)
        return arguments

    def run(self, arguments: Arguments, timeout_s: float) -> ReplayOutcome | None:
        """Replay the run; return None if it took too long."""
        thread = threading.Thread(target=self._work, args=(arguments, timeout_s), name="holdfast-check", daemon=True)
        thread.start()
        until = time.monotonic() + timeout_s + CLEANUP_S
        while thread.is_alive() and (left := until - time.monotonic()) > 0:
            thread.join(min(left, SIGNAL_INTERVAL_S))
        return self._outcome

    def _work(self, arguments: Arguments, timeout_s: float) -> None:
        try:
            if self._attempt.run_in == "loop":
                with asyncio.Runner() as runner:
                    runner.get_loop().set_exception_handler(lambda *_: None)
                    self._outcome = runner.run(asyncio.wait_for(self._on_loop(arguments), timeout_s))
            else:
                executor_class = SkippingSyncExecutor if self._skipping else SyncExecutor
                executor = executor_class(self._attempt, self.plans, self._services)
                self.unrecorded = executor.unrecorded
                self._outcome = executor.replay_function(arguments)
        except TimeoutError:
            pass  # reported as a missing outcome
        except BaseException as error:
            self._outcome = ReplayOutcome(True, error)

    async def _on_loop(self, arguments: Arguments) -> ReplayOutcome:
        executor_class = SkippingAsyncExecutor if self._skipping else AsyncExecutor
        executor = executor_class(self._attempt, self.plans, self._services, asyncio.get_running_loop())
        self.unrecorded = executor.unrecorded
        return await replay_function(executor, arguments)
