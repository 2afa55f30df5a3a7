"""Attempts of claimed runs, and the session under which a worker claims them.

An `Attempt` holds the state of an attempt while it executes, and translates each outcome into an end for the store.
`WorkerState` has the current session and its attempts.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import msgspec
from msgspec.structs import replace

from holdfast.errors import BadState, ErrorInfo, PayloadError, PayloadUnreadable, TaskError
from holdfast.model.clock import MICROS_PER_SECOND, to_datetime
from holdfast.model.codec import decode, encode
from holdfast.model.failure import describe_exception, error_to_json
from holdfast.model.payloads import PayloadContext, Payloads
from holdfast.model.retry import Retry
from holdfast.model.step_keys import key_label
from holdfast.policy.retry_decision import RetryDecision, decide_after_failure, decide_after_timeout, payload_error_code
from holdfast.store import AttemptEnd, Claim
from holdfast.store.commands import LoadedHistory, WaitOutcome
from holdfast.store.hooks import HOOKS
from holdfast.store.rows import EndKind, EndState
from holdfast.store.sessions import UNREACHABLE, WakeAddress
from holdfast.task.fakes import active_fakes, fake_task
from holdfast.task.machine import Machine, Transition
from holdfast.task.scope import Scope, StopSignal
from holdfast.task.task import Task
from holdfast.telemetry import log
from holdfast.telemetry.log_format import CurrentAttempt, current_attempt

if TYPE_CHECKING:
    from holdfast.engine.batches import BatchCall
    from holdfast.engine.durable.async_executor import AsyncExecutor
    from holdfast.engine.durable.plans import OperationPlans
    from holdfast.engine.instrumentation import AttemptTelemetry
    from holdfast.engine.run_logs import RunLog
    from holdfast.engine.threads import ThreadCall
    from holdfast.task.options import RunIn

NO_RETRY = Retry(max_attempts=1)

StopReason: TypeAlias = Literal["timeout", "deadline", "lost", "release", "suspend", "restart"]
"""Why user code has to stop. It causes the last two itself: it waits, or it called `restart`."""


class Cancellable(Protocol):
    """A timer."""

    def cancel(self) -> None: ...


class Killable(Protocol):
    """A process that executes an attempt."""

    def kill(self) -> None: ...


class SlotPool:
    """Slots of a worker: those of one queue, or those that the queues without slots of their own share.

    Only a worker with such queues has pools. `Runner` changes the counts under its lock.
    """

    def __init__(self, slots: int, threads: int) -> None:
        self.slots = slots
        self.threads = min(threads, slots)
        """How many of its attempts may execute in threads at the same time."""
        self.busy = 0
        self.busy_threads = 0
        self.busy_processes = 0
        self.claimed = 0
        """Attempts whose end isn't durable, except members of batches."""

    def free(self) -> int:
        """Return how many more attempts may start, by the rule of `Runner.free_slots`."""
        return min(self.slots - self.busy, 2 * self.slots - 1 - self.claimed)

    def free_threads(self) -> int:
        """Return how many more attempts may start in threads."""
        return min(self.free(), self.threads - self.busy_threads)

    def count(self, attempt: Attempt, change: int) -> None:
        """Count an attempt that starts (1) or frees its slot (-1)."""
        self.busy += change
        self.busy_threads += change * (attempt.run_in == "thread")
        self.busy_processes += change * (attempt.run_in == "process")


def slot_pools(queue_slots: Mapping[str, int] | None, concurrency: int, threads: int) -> dict[str | None, SlotPool]:
    """Return the pools of a worker by queue; none if no queue has slots of its own. `threads`: of the shared slots."""
    pools: dict[str | None, SlotPool] = {queue: SlotPool(slots, slots) for queue, slots in (queue_slots or {}).items()}
    shared = concurrency - sum(pool.slots for pool in pools.values())
    return pools | ({None: SlotPool(shared, threads)} if pools and shared > 0 else {})


class Attempt(msgspec.Struct, eq=False):
    """One attempt of a claimed run.

    It ends once: when its user code returns or raises, at its timeout or deadline, or when the worker releases or
    loses the run. `lock` guards the fields that decide which of these comes first.
    """

    claim: Claim
    task: Task[..., Any]
    session: str
    loaded_history: LoadedHistory | None = None
    corrupt_history: PayloadError | None = None
    """Why the recorded history can't be loaded; the run fails without being started."""
    signature: Any = None
    retry: Retry = NO_RETRY
    timeout: int | None = None
    """Microseconds that remain of the run's timeout."""
    run_in: RunIn | None = None
    durable: bool = False
    lock: threading.Lock = msgspec.field(default_factory=threading.Lock)
    loop_task: asyncio.Task[None] | None = None
    timer: Cancellable | None = None
    process: Killable | None = None
    stop_reason: StopReason | None = None
    stop_signal: StopSignal = msgspec.field(default_factory=StopSignal)
    """The flag that `holdfast.stop_requested()` reads in user code."""
    pause_requested: bool = False
    """Whether its run was paused: a durable function stops before its next step."""
    started: bool = False
    """Whether its coroutine runs. Cancelling an asyncio task before that would skip the coroutine entirely."""
    reported: bool = False
    """Whether its end was submitted to the write queue."""
    stopped: bool = False
    """Whether its user code has stopped."""
    abandoned: bool = False
    """Whether the run continues without this attempt's code, because the code ignored the request to stop."""
    batched: bool = False
    """Whether its task is called for several runs at once."""
    batch: BatchCall | None = None
    """The call that executes it together with others, once it has started."""
    thread: ThreadCall | None = None
    """The thread that runs its code, or waits for its process; None on the event loop."""
    isolated: bool = False
    """Whether it runs without other runs in the process, because processes that ran it have died."""
    slots: SlotPool | None = None
    """Where its slot is taken from; None if no queue of its worker has slots of its own."""
    plans: OperationPlans | None = None
    """The plans of a durable function that has started."""
    resident: AsyncExecutor | None = None
    """The executor of a resident function that continues as this attempt."""
    on_child_end: Callable[[Sequence[Any]], None] | None = None
    """Takes the end of a child (id, state, result, error) that ran in this worker. From any thread."""
    resolve_wait: Callable[[str, WaitOutcome], None] | None = None
    """Delivers the outcome of a wait. From any thread."""
    waits_for: Sequence[str] = ()
    restart_args: str | None = None
    on_threads_done: Callable[[], None] | None = None
    """Called when the last thread of its steps has ended or was abandoned."""
    scheduled_for: datetime | None = None
    has_hooks: bool = False
    """Whether the end of its run enqueues other tasks."""
    telemetry: AttemptTelemetry | None = None
    """None if telemetry is off."""
    logs: RunLog | None = None
    """Collects the lines that its code logs; None if they aren't kept."""

    def __post_init__(self) -> None:
        task, claim = self.task, self.claim
        self.durable = task.durable
        self.batched = task.declaration.batch is not None
        self.signature, self.retry, self.timeout, self.run_in = task.execution_spec(claim.args)
        if self.timeout is not None:
            self.timeout = max(self.timeout - claim.spent, 0)
        if claim.options is not None:
            try:
                self._apply_options(decode(claim.options))
            except Exception as error:  # a foreign or corrupt row: the task's declaration applies
                log.options_unreadable(claim.id, task.name, claim.attempt, error)

    def __repr__(self) -> str:
        return f"<attempt {self.claim.attempt} of {self.label}>"  # without the arguments, which may be secret

    def _apply_options(self, options: dict[str, Any]) -> None:
        """Apply the options given at enqueue, which override the task's declaration."""
        if "retry" in options:
            self.retry = Retry.from_json(options["retry"])
        if "timeout" in options:
            self.timeout = max(options["timeout"] - self.claim.spent, 0)
        self.has_hooks = HOOKS in options
        if "scheduled_for" in options:
            self.scheduled_for = to_datetime(options["scheduled_for"])

    @property
    def label(self) -> str:
        return f"{self.task.name} {self.claim.id}"

    # While it executes

    def request_stop(self, reason: StopReason) -> bool:
        """Note that the code has to stop, and why. Return False if it is too late for that.

        The first reason counts; only the loss of the run overrides it.
        """
        with self.lock:
            known = self.stop_reason
            if self.stopped or self.reported or known == "lost" or (known is not None and reason != "lost"):
                return False
            self.stop_reason = reason
            self.stop_signal.requested = True
            return True

    def kill_process(self) -> None:
        """Kill the process that executes the attempt, if there is one."""
        with self.lock:
            if self.process is not None:
                self.process.kill()

    def detach_process(self) -> None:
        """Forget the process: it has finished this attempt, and must not be killed because of it."""
        with self.lock:
            self.process = None

    def enter_context(self) -> None:
        """Attribute the logs and spans of the current thread or asyncio task to this attempt."""
        current_attempt.set(CurrentAttempt(self.claim.id, self.task.name, self.claim.attempt, self.session))
        if self.telemetry is not None:
            self.telemetry.begin()
        if self.logs is not None:
            self.logs.enter()

    def log_fields(self) -> dict[str, str]:
        """Return the ids of its span, for lines that are logged outside it."""
        return {} if self.telemetry is None else self.telemetry.log_fields()

    def job_scope(self) -> Scope:
        """Return the scope of a job."""
        return Scope(self.claim.id, generation=self.claim.generation, stop=self.stop_signal)

    def body_scope(self) -> Scope:
        """Return the scope of the body of a durable function."""
        return Scope(self.claim.id, durable=True, generation=self.claim.generation, stop=self.stop_signal)

    # How it ends

    def returned(self, value: Any) -> AttemptEnd:
        """Return the end of an attempt whose code returned `value`.

        A result that can't be encoded fails the run, because another attempt would return it again.
        """
        try:
            if isinstance(self.task, Machine):
                return self._transitioned(self.task, self.signature.next_transition(value))
            result = self.signature.encode_result(value)
        except PayloadError as error:
            code = payload_error_code(error)
            return self._end(RetryDecision(code), describe_exception(error, code))
        except BadState as error:
            return self._end(RetryDecision("bad_state"), describe_exception(error, "bad_state"))
        return self._done(result)

    def _done(self, result: str) -> AttemptEnd:
        return AttemptEnd(self.claim.id, self.claim.seq, self.claim.fence, "done", "done", result=result)

    def _transitioned(self, machine: Machine[Any], transition: Transition | str) -> AttemptEnd:
        """Return the end of a machine's state: the next state starts with fresh budgets, or the machine is done."""
        if isinstance(transition, str):
            return self._done(transition)
        note: dict[str, Any] = {"from": self.signature.name, "to": transition.to}
        delay = transition.delay
        if delay is not None:
            note["after"] = delay / MICROS_PER_SECOND
        end = self._end_without_error("moved", "ready" if delay is None else "scheduled")
        return replace(end, args=transition.args, delay=delay, note=encode(note), keep_records=machine.history)

    def failed(self, exception: BaseException, code: str | None = None) -> AttemptEnd:
        """Return the end after an exception of the user's code. `code` overrides the code of the exception."""
        try:
            decision = decide_after_failure(self.retry, self.claim.failures, exception, random.random)
            return self._end(decision, describe_exception(exception, code or decision.code))
        except BaseException as error:  # even the exception's own methods may raise
            message = f"the exception can't be described: inspecting it raised {type(error).__name__}"
            return self._end(RetryDecision("error"), ErrorInfo("error", type(exception).__name__, message))

    def invalid_arguments(self, exception: TaskError | PayloadError) -> AttemptEnd:
        """Return the end of an attempt whose stored arguments don't fit this worker's code. Retrying can't help."""
        code = "bad_state" if isinstance(exception, BadState) else "bad_arguments"
        if isinstance(exception, PayloadUnreadable):
            code = "unreadable"
        return self._end(RetryDecision(code), describe_exception(exception, code))

    def crashed(self, error: ErrorInfo, suspects: int = 1, *, isolate: bool | None = None) -> AttemptEnd:
        """Return the end of an attempt whose process died, or whose code had to be abandoned.

        `suspects`: how many runs could have caused that; only a sole suspect is charged.
        """
        end = self._end_without_error("crashed", "ready")
        return replace(end, error=error_to_json(error), runs_in_process=suspects, isolate=isolate)

    def timed_out(self, *, still_running: bool = False) -> AttemptEnd:
        seconds = ((self.timeout or 0) + self.claim.spent) / MICROS_PER_SECOND
        error = ErrorInfo("timeout", "TimeoutError", f"the attempt took longer than its timeout of {seconds:g} s")
        decision = decide_after_timeout(self.retry, self.claim.failures, random.random)
        return self._end(decision, error, "timed_out", still_running)

    def deadline_exceeded(self, *, still_running: bool = False) -> AttemptEnd:
        return self._end(RetryDecision("deadline"), deadline_error(), still_running=still_running)

    def released(self, *, still_running: bool = False) -> AttemptEnd:
        """Return the end of an attempt whose run the worker releases, uncharged."""
        return self._end_without_error("handed_back", "ready", still_running)

    def suspended(self, *, still_running: bool = False) -> AttemptEnd:
        """Return the end of a durable function that waits: it frees its slot and keeps its attempt number."""
        note = encode({"waits_for": self.waits_for})
        return replace(self._end_without_error("waiting", "waiting", still_running), note=note)

    def restarted(self, *, still_running: bool = False) -> AttemptEnd:
        """Return the end of an attempt that restarts its run with other arguments."""
        return replace(self._end_without_error("restarted", "ready", still_running), args=self.restart_args)

    def end_when_stopped(self, reason: StopReason, *, still_running: bool = False) -> AttemptEnd | None:
        """Return the end of an attempt that was asked to stop; None if its run was lost."""
        if reason == "lost":
            return None
        ends = {
            "timeout": self.timed_out, "deadline": self.deadline_exceeded, "release": self.released,
            "suspend": self.suspended, "restart": self.restarted,
        }  # fmt: skip
        return ends[reason](still_running=still_running)

    def undone(self) -> AttemptEnd:
        """Return the end after all compensations have run: the run becomes failed or cancelled, as decided before."""
        return self._end_without_error("undone", "cancelled" if self.claim.ending == "cancelled" else "failed")

    def undo_failed(self, key: str, error: ErrorInfo) -> AttemptEnd:
        """Return the end after a compensation failed permanently: an operator has to decide."""
        message = f"undo of {key_label(key)} failed ({error.code}): {error}"
        return self._end(RetryDecision("undo"), ErrorInfo("undo", error.type, message, error.traceback, error.data))

    def undo_interrupted(self, exception: BaseException) -> AttemptEnd:
        """Return the end after compensations stopped for another reason than their own failure, like a rejected write.

        The task's retry policy applies. The run keeps the error that caused the undo.
        """
        return self.failed(exception, "undo")

    def finalize(self, end: AttemptEnd, payloads: Payloads) -> AttemptEnd:
        """Complete an end for the store: pack its payloads, mark it if it affects other runs, start an undo."""
        try:
            self._pack(end, payloads)
        except PayloadError as error:
            code = payload_error_code(error)
            end = self._end(RetryDecision(code), describe_exception(error, code), still_running=bool(end.still_running))
        claim = self.claim
        end.limits = claim.limits
        end.permits = self.plans is not None and self.plans.holds_permits
        alone = claim.parent is None and (self.plans is None or not self.plans.has_waited)
        if alone and not self.has_hooks and (not self.durable or (end.kind == "done" and end.drift is None)):
            return end
        end.in_tree = True
        end.parents = () if claim.parent is None else (str(claim.parent),)
        if self.durable:
            end.is_blank = claim.attempt == 1 and self.plans is not None and self.plans.is_blank
        else:
            end.is_blank = claim.fence == 1
        undos = self.plans.has_undos if self.plans is not None else bool(self.claim.undos)
        if end.kind == "failed" and undos and self.claim.ending is None:
            return replace(end, kind="undoing", state="ready", forget=())  # the undo replays the failure, too
        return end

    def _pack(self, end: AttemptEnd, payloads: Payloads) -> None:
        if end.result is not None and len(end.result) > payloads.plain_below:
            context = PayloadContext("result", self.claim.tenant, end.id)
            end.result = payloads.pack(end.result, context, "the result of task", self.task.name)
        if end.args is not None:
            context = PayloadContext("args", self.claim.tenant, end.id)
            end.args = payloads.pack(end.args, context, "the arguments of task", self.task.name)

    def _end_without_error(self, kind: EndKind, state: EndState, still_running: bool = False) -> AttemptEnd:
        claim = self.claim
        return AttemptEnd(claim.id, claim.seq, claim.fence, kind, state, still_running=int(still_running))

    def _end(
        self,
        decision: RetryDecision,
        error: ErrorInfo,
        retry_kind: Literal["retrying", "timed_out"] = "retrying",
        still_running: bool = False,
    ) -> AttemptEnd:
        claim = self.claim
        kind: EndKind = "failed" if decision.retry_in is None else retry_kind
        state: EndState = "failed" if decision.retry_in is None else "scheduled"
        return AttemptEnd(
            claim.id, claim.seq, claim.fence, kind, state, error=error_to_json(error, decision.retry_in),
            delay=decision.retry_in,
            failed=1, still_running=int(still_running),
        )  # fmt: skip


def new_attempts(
    claims: Iterable[Claim],
    tasks: Mapping[int, Task[..., Any]],
    pools: Mapping[int, SlotPool],
    session: str,
    *,
    isolated: bool = False,
) -> list[Attempt]:
    """Create the attempts of claimed runs. `tasks`: those of their lanes, in whose place tests may put fakes.

    Compensations are those of the task's own code.
    """
    return [
        Attempt(
            claim,
            fake_task(tasks[claim.lane]) if active_fakes and claim.ending is None else tasks[claim.lane],
            session,
            isolated=isolated,
            slots=pools.get(claim.lane),
        )
        for claim in claims
    ]


def deadline_error() -> ErrorInfo:
    return ErrorInfo("deadline", "TimeoutError", "the run did not finish before its deadline")


def blocked_error(seconds: float) -> ErrorInfo:
    message = (
        f"the task blocked the event loop for {seconds:.0f} s: use async I/O, or a `def` task, which runs in a thread"
    )
    return ErrorInfo("crashed", "Crashed", message)


def crash_error() -> ErrorInfo:
    message = "its worker process died or lost its lease, with no other run in it, more often than max_crashes allows"
    return ErrorInfo("crashed", "Crashed", message)


# Sessions


class Session:
    """One lease period of a worker process. A process that lost its lease continues under a new session."""

    def __init__(self, name: str, info: str, wake: WakeAddress = UNREACHABLE) -> None:
        self.id = f"{name}:{secrets.token_hex(6)}"
        self.name = name
        self.info = info
        self.wake = wake
        self.valid_until = 0.0
        """Until when (monotonic) the lease is certainly valid: counted from before the heartbeat was sent."""
        self.excused = False
        """Whether it was lost because the database didn't answer; then its runs are not charged with a crash."""

    def renewed(self, sent_at: float, lease: float) -> None:
        self.valid_until = sent_at + lease

    def seconds_left(self) -> float:
        return self.valid_until - time.monotonic()


def worker_name() -> str:
    return f"{socket.gethostname()[:100]}:{os.getpid()}"


class WorkerState:
    """The current session, if any, and the attempts of its claimed runs. Shared by all loops of a worker."""

    def __init__(self) -> None:
        self.session: Session | None = None
        self.last_lost: Session | None = None
        self._attempts: dict[str, Attempt] = {}
        self.batched = 0
        """How many of the attempts are members of batches, which hold one slot together."""
        self._lock = threading.Lock()

    def session_id(self) -> str | None:
        """Return the session's id, for log lines."""
        session = self.session
        return None if session is None else session.id

    @property
    def has_begun(self) -> bool:
        """Whether a session was ever opened: the tables were checked, and the worker has started."""
        return self.session is not None or self.last_lost is not None

    def begin(self, session: Session) -> None:
        """Make this the current session."""
        with self._lock:
            self.session = session

    def end(self, session: Session) -> list[Attempt] | None:
        """End a session, so that nothing is done under it any more.

        Return its claimed attempts, or None if the session had already ended.
        """
        with self._lock:
            if self.session is not session:
                return None
            self.session, self.last_lost = None, session
            return [attempt for attempt in self._attempts.values() if attempt.session == session.id]

    def add(self, session: Session, attempts: Sequence[Attempt]) -> bool:
        """Add claimed attempts. Return False if the session ended while the claim was under way."""
        with self._lock:
            if self.session is not session:
                return False
            self._attempts.update((attempt.claim.id, attempt) for attempt in attempts)
            self.batched += sum(attempt.batched for attempt in attempts)
            if attempts and attempts[0].slots is not None:
                _count_claimed(attempts, 1)
            return True

    def remove(self, attempts: Iterable[Attempt]) -> None:
        with self._lock:
            for attempt in attempts:
                if self._attempts.get(attempt.claim.id) is attempt:
                    del self._attempts[attempt.claim.id]
                    self.batched -= attempt.batched
                    if attempt.slots is not None:
                        _count_claimed([attempt], -1)

    def find(self, run: str) -> Attempt | None:
        """Return the claimed attempt of a run, if it is claimed here."""
        return self._attempts.get(run)

    def claimed(self) -> dict[str, Attempt]:
        """Return a copy of the claimed attempts, by run id."""
        with self._lock:
            return dict(self._attempts)

    def unfinished(self) -> list[Attempt]:
        """Return the claimed attempts whose user code is still running."""
        return [attempt for attempt in self.claimed().values() if not attempt.stopped]

    def __len__(self) -> int:
        return len(self._attempts)


def _count_claimed(attempts: Iterable[Attempt], change: int) -> None:
    for attempt in attempts:
        if attempt.slots is not None and not attempt.batched:
            attempt.slots.claimed += change
