"""Decide whether a failed step is tried again, and record failed tries.

A failed try that is followed by another one is an entry in the run's history, written before the pause. A permanent
failure is a checkpoint. Both have the arguments of the call, for operators; a step that succeeds at once records none.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Mapping
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from holdfast.engine.attempt import NO_RETRY
from holdfast.engine.durable.plans import StepResult
from holdfast.errors import ErrorInfo
from holdfast.model.clock import MICROS_PER_SECOND
from holdfast.model.codec import display_value, encode
from holdfast.model.failure import describe_exception, error_to_json
from holdfast.model.payloads import PayloadContext, Payloads
from holdfast.model.retry import Retry
from holdfast.model.step_keys import key_label
from holdfast.policy.retry_decision import RetryDecision, decide_after_failure, decide_after_timeout
from holdfast.store.commands import FailedTryCommand, RunToken
from holdfast.store.rows import Claim
from holdfast.task.operations import FunctionCall, Step, Transaction
from holdfast.task.scope import current_scope
from holdfast.telemetry import log

if TYPE_CHECKING:
    from holdfast.engine.durable.async_executor import AsyncExecutor
    from holdfast.engine.durable.sync_executor import SyncExecutor

MAX_RECORDED_TRIES = 20
"""From then on, the entry of a failed try replaces that of the try before."""
MAX_ARGUMENT_BYTES = 2000
"""Of longer arguments, the start is recorded."""
CUT_ARGUMENT_CHARS = 200


class StepTimedOut(Exception):
    """The timeout of a step has expired."""


class FailedTry(NamedTuple):
    """A try that failed and is followed by another one, after `retry_in` microseconds."""

    number: int
    error: ErrorInfo
    retry_in: int

    @property
    def pause_s(self) -> float:
        return self.retry_in / MICROS_PER_SECOND


class StepRetries:
    """Decides whether a failed step is tried again."""

    __slots__ = ("_timeout", "failures", "retry")

    def __init__(self, retry: Retry | None = None, timeout: int | None = None) -> None:
        self.retry = retry or NO_RETRY
        self._timeout = timeout
        self.failures = 0

    def failed(self, exception: BaseException) -> StepResult | FailedTry:
        """Return the failed result if the step isn't tried again."""
        if isinstance(exception, StepTimedOut):
            outcome = decide_after_timeout(self.retry, self.failures, random.random)
            timeout_s = (self._timeout or 0) / MICROS_PER_SECOND
            error = ErrorInfo("timeout", "TimeoutError", f"the step exceeded its timeout of {timeout_s:g} s")
        else:
            outcome, error = self._describe(exception)
        self.failures += 1
        if outcome.retry_in is not None:
            return FailedTry(self.failures, error, outcome.retry_in)
        raised = TimeoutError(error.message) if error.code == "timeout" else exception
        return StepResult(error=error, exception=raised, tries=self.failures)

    def _describe(self, exception: BaseException) -> tuple[RetryDecision, ErrorInfo]:
        try:
            outcome = decide_after_failure(self.retry, self.failures, exception, random.random)
            return outcome, describe_exception(exception, outcome.code)
        except BaseException as describing:  # The exception's own methods may raise anything.
            message = f"the exception can't be described: inspecting it raised {type(describing).__name__}"
            return RetryDecision("error"), ErrorInfo("error", type(exception).__name__, message)


class RecordedTries:
    """The tries of one call of a step or transaction in one attempt; failed ones are logged and recorded."""

    __slots__ = ("_call", "_claim", "_key", "_last_entry", "_payloads", "_retries", "_started_ns")

    def __init__(
        self, call: FunctionCall, key: str, payloads: Payloads, claim: Claim, started_ns: int | None = None
    ) -> None:
        self._call = call
        self._claim = claim
        self._key = key
        self._payloads = payloads
        self._retries = StepRetries(call.retry, call.timeout) if isinstance(call, Step) else StepRetries()
        self._started_ns = started_ns or monotonic_ns()
        self._last_entry: int | None = None

    def next_try(self) -> None:
        """Note that the next try starts: its number is part of the scope of the step's code."""
        self._started_ns = monotonic_ns()
        scope = current_scope.get()
        assert scope is not None
        current_scope.set(msgspec.structs.replace(scope, step_try=self._retries.failures + 1))

    async def failed(self, executor: AsyncExecutor | SyncExecutor, exception: BaseException) -> StepResult | FailedTry:
        """Return the failed result if the step isn't tried again; otherwise record the try first."""
        duration_us = (monotonic_ns() - self._started_ns) // 1000
        outcome = self._retries.failed(exception)
        claim, label = executor.current.claim, key_label(self._key)
        about = (claim.id, executor.task.name, claim.attempt, label)
        if isinstance(outcome, FailedTry):
            log.step_retrying(*about, outcome.number, outcome.error, outcome.pause_s)
            try:
                self._last_entry = await executor.write(self._entry(executor.plans.run_token, outcome, duration_us))
            except Exception as rejected:  # The step is tried again all the same.
                log.step_try_not_recorded(*about, rejected)
        else:
            assert outcome.error is not None
            log.step_failed(*about, outcome.tries, outcome.error)
            outcome.args = self._arguments()
        return outcome

    def _arguments(self) -> str | None:
        return recorded_arguments(self._call, self._payloads, self._claim, self._key)

    def _entry(self, token: RunToken, failed: FailedTry, duration_us: int) -> FailedTryCommand:
        data = {
            "fence": token.fence, "step": self._key, "try": failed.number, "tries": self._retries.retry.max_attempts,
            "took": duration_us, "retry_in": failed.retry_in, "args": self._arguments(),
            "error": msgspec.Raw(error_to_json(failed.error).encode()),
        }  # fmt: skip
        replaces = self._last_entry if failed.number > MAX_RECORDED_TRIES else None
        return FailedTryCommand(token, self._key, msgspec.json.encode(data).decode(), replaces)


def recorded_arguments(call: FunctionCall, payloads: Payloads, claim: Claim, key: str) -> str | None:
    """Return the arguments of a call as they are stored for operators: by name, secrets masked, long ones cut."""
    if not call.args and not call.kwargs:
        return None
    try:
        text = encode(display_value(encode(_by_name(call))))
        if len(text.encode()) > MAX_ARGUMENT_BYTES:
            text = encode(f"{text[:CUT_ARGUMENT_CHARS]}…")
        context = PayloadContext("step_args", claim.tenant, claim.id, key)
        return payloads.pack(text, context, "the arguments of step", call.name)
    except Exception:  # What can't be shown must not fail the step.
        return None


def _by_name(call: FunctionCall) -> Mapping[str, Any]:
    first = (None,) if isinstance(call, Transaction) else ()  # the connection
    try:
        bound = inspect.signature(call.fn).bind(*first, *call.args, **call.kwargs).arguments
    except (TypeError, ValueError):  # no signature, or arguments that don't match it
        return {"*": call.args, **call.kwargs}
    return {name: value for at, (name, value) in enumerate(bound.items()) if at >= len(first)}
