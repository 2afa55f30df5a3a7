"""One try of a run: what it is told to do, how it ended, and what that means for the run."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import msgspec
from msgspec.structs import replace

from holdfast.errors import BadState, ErrorInfo, PayloadError, TaskError
from holdfast.model.clock import MICROS_PER_SECOND, to_datetime
from holdfast.model.codec import decode, encode
from holdfast.model.failure import describe_exception, error_to_json
from holdfast.model.payloads import Payloads
from holdfast.model.retry import Retry
from holdfast.model.step_keys import key_label
from holdfast.policy.retry_decision import RetryDecision, decide_after_failure, decide_after_timeout, payload_error_code
from holdfast.store import Claim, End
from holdfast.store.commands import LoadedHistory
from holdfast.store.rows import EndKind, EndState
from holdfast.task.machine import Machine, Transition
from holdfast.task.scope import StopSignal
from holdfast.task.task import Task
from holdfast.telemetry import log
from holdfast.telemetry.log_format import CurrentAttempt, current_attempt

if TYPE_CHECKING:
    from holdfast.engine.durable.plans import OperationPlans
    from holdfast.engine.instrumentation import AttemptTelemetry
    from holdfast.engine.threads import ThreadCall
    from holdfast.task.options import RunIn

NO_RETRY = Retry(max_attempts=1)

Order: TypeAlias = Literal["timeout", "deadline", "lost", "hand back", "suspend", "restart"]
"""Why author code is told to stop. The last two it brought about itself: it waits, or asked to begin anew."""


class Cancellable(Protocol):
    """A timer."""

    def cancel(self) -> None: ...


class Killable(Protocol):
    """A process at work on an attempt."""

    def kill(self) -> None: ...


class Attempt(msgspec.Struct, eq=False):
    """One try. Ends once: by its author code, its timeout, its deadline, or the loss of its run."""

    claim: Claim
    task: Task[..., Any]
    session: str
    kept: LoadedHistory | None = None
    signature: Any = None
    retry: Retry = NO_RETRY
    timeout: int | None = None
    place: RunIn | None = None
    """Where its author code runs."""
    durable: bool = False
    lock: threading.Lock = msgspec.field(default_factory=threading.Lock)
    handle: asyncio.Task[None] | None = None
    timer: Cancellable | None = None
    child: Killable | None = None
    order: Order | None = None
    stop_signal: StopSignal = msgspec.field(default_factory=StopSignal)
    """The flag that `holdfast.stop_requested()` reads in author code."""
    begun: bool = False
    """Its coroutine runs: one that doesn't yet would be cancelled without a trace."""
    ended: bool = False
    """Its end was handed to the committer."""
    over: bool = False
    """Author code has stopped."""
    abandoned: bool = False
    """Author code ignored the order to stop: the run continues without it."""
    thread: ThreadCall | None = None
    """The thread that runs its code, or waits for its process; None on the event loop."""
    isolated: bool = False
    """It runs without other runs in the process, because processes that ran it have died."""
    plans: OperationPlans | None = None
    """Of a durable function that has begun."""
    waits_for: Sequence[str] = ()
    restart_args: str | None = None
    threads_over: Callable[[], None] | None = None
    """Called when the last thread of its steps has ended, or was abandoned."""
    scheduled_for: datetime | None = None
    watched: AttemptTelemetry | None = None
    """Where telemetry is on."""

    def __post_init__(self) -> None:
        task, claim = self.task, self.claim
        self.durable = task.durable
        self.signature, self.retry, self.timeout, self.place = task.execution_spec(claim.args)
        if self.timeout is not None:
            self.timeout = max(self.timeout - claim.spent, 0)
        if claim.options is not None:
            try:
                self._apply(decode(claim.options))
            except Exception as error:  # written by other code: then the declaration holds
                log.options_unreadable(claim.id, task.name, claim.attempt, error)

    def __repr__(self) -> str:
        return f"<attempt {self.claim.attempt} of {self.label}>"  # without the arguments: they may be secret

    def _apply(self, options: dict[str, Any]) -> None:
        """What was asked for at enqueue comes before the task's declaration."""
        if "retry" in options:
            self.retry = Retry.from_json(options["retry"])
        if "timeout" in options:
            self.timeout = max(options["timeout"] - self.claim.spent, 0)
        if "scheduled_for" in options:
            self.scheduled_for = to_datetime(options["scheduled_for"])

    def tell(self, order: Order) -> bool:
        """Note that it shall stop, and why; False when that came too late. The first reason counts, but for a loss."""
        with self.lock:
            if self.over or self.ended or self.order == "lost" or (self.order is not None and order != "lost"):
                return False
            self.order = order
            self.stop_signal.requested = True
            return True

    def kill(self) -> None:
        """End the process that is at it, if there is one."""
        with self.lock:
            if self.child is not None:
                self.child.kill()

    def leave(self) -> None:
        """Its process is done with it, and not to be killed on its account any more."""
        with self.lock:
            self.child = None

    def enter(self) -> None:
        """Author code begins in this thread or task: what it logs and traces is this attempt's."""
        current_attempt.set(CurrentAttempt(self.claim.id, self.task.name, self.claim.attempt, self.session))
        if self.watched is not None:
            self.watched.begin()

    @property
    def label(self) -> str:
        return f"{self.task.name} {self.claim.id}"

    def returned(self, value: Any) -> End:
        """The author's code returned. A result that can't be kept fails the run: another try would return it again."""
        try:
            if isinstance(self.task, Machine):
                return self._moved(self.task, self.signature.next_transition(value))
            result = self.signature.encode_result(value)
        except PayloadError as error:
            return self._end(
                RetryDecision(payload_error_code(error)), describe_exception(error, payload_error_code(error))
            )
        except BadState as error:
            return self._end(RetryDecision("bad_state"), describe_exception(error, "bad_state"))
        return self._done(result)

    def _done(self, result: str) -> End:
        return End(self.claim.id, self.claim.seq, self.claim.fence, "done", "done", result=result)

    def _moved(self, machine: Machine[Any], following: Transition | str) -> End:
        """A state of a machine returned: the next one begins with new budgets, now or later; or it is done."""
        if isinstance(following, str):
            return self._done(following)
        told: dict[str, Any] = {"from": self.signature.name, "to": following.to}
        if following.delay is not None:
            told["after"] = following.delay / MICROS_PER_SECOND
        end = self._plain("moved", "ready" if following.delay is None else "scheduled", lingers=False)
        return replace(end, args=following.args, delay=following.delay, note=encode(told), keep_records=machine.history)

    def failed(self, exception: BaseException, code: str | None = None) -> End:
        """What follows from an exception of the author's code; `code` overrides the code of the exception's class."""
        try:
            outcome = decide_after_failure(self.retry, self.claim.failures, exception, random.random)
            return self._end(outcome, describe_exception(exception, code or outcome.code))
        except BaseException as trouble:  # an exception that can't even be looked at
            message = f"it can't be described: looking at it raised {type(trouble).__name__}"
            return self._end(RetryDecision("error"), ErrorInfo("error", type(exception).__name__, message))

    def misfit(self, exception: TaskError | PayloadError) -> End:
        """The kept arguments don't fit the code of this worker; trying again can't help before either changes."""
        code = "bad_state" if isinstance(exception, BadState) else "bad_arguments"
        return self._end(RetryDecision(code), describe_exception(exception, code))

    def crashed(self, error: ErrorInfo, together: int = 1, *, isolate: bool | None = None) -> End:
        """The process of its author code died, or its code had to be abandoned. `together`: how many runs could have
        caused that; only a run that is the sole suspect is charged."""
        end = self._plain("crashed", "ready", lingers=False)
        return replace(end, error=error_to_json(error), runs_in_process=together, isolate=isolate)

    def timed_out(self, *, lingers: bool) -> End:
        seconds = ((self.timeout or 0) + self.claim.spent) / MICROS_PER_SECOND
        error = ErrorInfo("timeout", "TimeoutError", f"the attempt took longer than its timeout of {seconds:g} s")
        return self._end(
            decide_after_timeout(self.retry, self.claim.failures, random.random), error, "timed_out", lingers
        )

    def overdue(self, *, lingers: bool) -> End:
        return self._end(RetryDecision("deadline"), deadline_error(), lingers=lingers)

    def handed_back(self, *, lingers: bool) -> End:
        return self._plain("handed_back", "ready", lingers)

    def stopped(self, order: Order, *, lingers: bool) -> End | None:
        """The end of an attempt that was told to stop; None where the run isn't ours any more."""
        if order == "lost":
            return None
        ends = {
            "timeout": self.timed_out, "deadline": self.overdue, "hand back": self.handed_back,
            "suspend": self.suspended, "restart": self.restarted,
        }  # fmt: skip
        return ends[order](lingers=lingers)

    def suspended(self, *, lingers: bool) -> End:
        """It waits: it gives up its slot, and keeps its attempt."""
        note = encode({"waits_for": self.waits_for})
        return replace(self._plain("waiting", "waiting", lingers), note=note)

    def restarted(self, *, lingers: bool) -> End:
        """It asked to begin anew with other arguments."""
        return replace(self._plain("restarted", "ready", lingers), args=self.restart_args)

    def undone(self) -> End:
        """All compensations have run: it ends as it was to."""
        return self._plain("undone", "cancelled" if self.claim.ending == "cancelled" else "failed", lingers=False)

    def undo_failed(self, key: str, error: ErrorInfo) -> End:
        """A compensation can't be run: that is for people to see to."""
        told = ErrorInfo(
            "undo", error.type, f"the undo of {key_label(key)} failed ({error.code}): {error}", error.traceback
        )
        return self._end(RetryDecision("undo"), told)

    def undo_interrupted(self, exception: BaseException) -> End:
        """Compensations stopped for another reason than their own failure, such as a rejected write: the task's retry
        policy applies. The run keeps the error that it is undone for as its cause."""
        return self.failed(exception, "undo")

    def _plain(self, kind: EndKind, state: EndState, lingers: bool) -> End:
        claim = self.claim
        return End(claim.id, claim.seq, claim.fence, kind, state, still_running=int(lingers))

    def complete(self, end: End, payloads: Payloads) -> End:
        """What an end means for this run: whether it concerns its family, and whether it has to undo first. What it
        brings along is as it is stored from now on."""
        try:
            self._pack(end, payloads)
        except PayloadError as error:
            code = payload_error_code(error)
            end = self._end(RetryDecision(code), describe_exception(error, code), lingers=bool(end.still_running))
        claim = self.claim
        end.limits = claim.limits
        alone = claim.parent is None and (self.plans is None or not self.plans.has_waited)
        if alone and (not self.durable or (end.kind == "done" and end.drift is None)):
            return end
        end.in_tree = True
        undos = self.plans.has_undos if self.plans is not None else bool(self.claim.undos)
        if end.kind == "failed" and undos and self.claim.ending is None:
            return replace(end, kind="undoing", state="ready")
        return end

    def _pack(self, end: End, payloads: Payloads) -> None:
        if end.result is not None:
            end.result = payloads.pack(end.result, "the result of task", self.task.name)
        if end.args is not None:
            end.args = payloads.pack(end.args, "the arguments of task", self.task.name)

    def _end(
        self,
        outcome: RetryDecision,
        error: ErrorInfo,
        retry_kind: Literal["retrying", "timed_out"] = "retrying",
        lingers: bool = False,
    ) -> End:
        claim = self.claim
        text = error_to_json(error)
        if outcome.retry_in is None:
            return End(
                claim.id, claim.seq, claim.fence, "failed", "failed", error=text, failed=1, still_running=int(lingers)
            )
        return End(
            claim.id, claim.seq, claim.fence, retry_kind, "scheduled", error=text, delay=outcome.retry_in, failed=1,
            still_running=int(lingers),
        )  # fmt: skip


def deadline_error() -> ErrorInfo:
    return ErrorInfo("deadline", "TimeoutError", "the run didn't end before its deadline")


def blocked_error(seconds: float) -> ErrorInfo:
    message = f"it blocked the event loop for {seconds:.0f} s: use async I/O, or a `def` task, which runs in a thread"
    return ErrorInfo("crashed", "Crashed", message)


def crash_error() -> ErrorInfo:
    message = "its worker process died or lost its lease, with no other run in it, more often than max_crashes allows"
    return ErrorInfo("crashed", "Crashed", message)
