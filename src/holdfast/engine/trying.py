"""What one try of a step came to, and whether there is another: shared by both ways of running steps."""

from __future__ import annotations

import random
from typing import Any

from holdfast.engine.effects import Tried
from holdfast.errors import ErrorInfo, PayloadError
from holdfast.model.clock import MICROS_PER_SECOND
from holdfast.model.codec import encode
from holdfast.model.failure import describe_exception
from holdfast.model.payloads import Payloads
from holdfast.model.retry import Retry
from holdfast.policy.retry_decision import RetryDecision, decide_after_failure, decide_after_timeout, payload_error_code
from holdfast.task.operations import Call

ONCE = Retry(max_attempts=1)


class TookTooLong(Exception):
    """A step's own timeout has passed."""


def returned(call: Call, value: Any, payloads: Payloads) -> Tried:
    """Author code returned. A value that can't be kept fails the step: another try would return it again."""
    try:
        text = encode(value, "the result of step", call.name)
        return Tried(text, payloads.pack(text, "the result of step", call.name))
    except PayloadError as error:
        return Tried(error=describe_exception(error, payload_error_code(error)), exception=error)


class Tries:
    """The tries of one step, counted."""

    __slots__ = ("_call", "_failures", "_retry", "_timeout")

    def __init__(self, call: Call, retry: Retry | None, timeout: int | None) -> None:
        self._call = call
        self._retry = retry or ONCE
        self._timeout = timeout
        self._failures = 0

    def failed(self, exception: BaseException) -> Tried | float:
        """Author code raised: how it ended, or the seconds until the next try."""
        if isinstance(exception, TookTooLong):
            outcome = decide_after_timeout(self._retry, self._failures, random.random)
            seconds = (self._timeout or 0) / MICROS_PER_SECOND
            error = ErrorInfo("timeout", "TimeoutError", f"the step took longer than its timeout of {seconds:g} s")
        else:
            outcome, error = self._described(exception)
        self._failures += 1
        if outcome.retry_in is not None:
            return outcome.retry_in / MICROS_PER_SECOND
        return Tried(error=error, exception=TimeoutError(error.message) if error.code == "timeout" else exception)

    def _described(self, exception: BaseException) -> tuple[RetryDecision, ErrorInfo]:
        try:
            outcome = decide_after_failure(self._retry, self._failures, exception, random.random)
            return outcome, describe_exception(exception, outcome.code)
        except BaseException as trouble:  # an exception that can't even be looked at
            message = f"it can't be described: looking at it raised {type(trouble).__name__}"
            return RetryDecision("error"), ErrorInfo("error", type(exception).__name__, message)
