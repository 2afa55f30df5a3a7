"""What follows a failed try: another one, or the end of the run. Pure; the engine and the store write it down."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import msgspec

from holdfast.errors import ConfigError, Fatal, PayloadError, RetryAfter, RunCancelled, RunFailed, StepFailed, TooLarge
from holdfast.model.clock import to_micros
from holdfast.model.retry import Retry

Random: TypeAlias = Callable[[], float]
"""Gives a number from 0 up to 1, as `random.random` does."""


def delay_before_retry(retry: Retry, failures: int, random: Random) -> int:
    """Microseconds until the next try; `failures` counts the failed tries before the one that failed just now.

    The delay is spread over plus and minus `jitter`. Near `max_delay` the upper side is cut off and the whole range
    below it is used, so that delays at the limit don't all end at the same moment.
    """
    middle = _grown(retry, failures)
    low = middle * (1 - retry.jitter)
    high = min(middle * (1 + retry.jitter), float(retry.max_delay_micros))
    return max(0, min(round(low + (high - low) * random()), retry.max_delay_micros))


def _grown(retry: Retry, failures: int) -> float:
    try:
        grown = retry.delay_micros * retry.factor ** max(0, failures)
    except OverflowError:
        grown = float("inf") if retry.delay_micros else 0.0
    return min(grown, float(retry.max_delay_micros))


_NO_USE = ("fatal", "not_serializable", "too_large")
"""Codes of steps' failures that another attempt would only repeat."""


class RetryDecision(msgspec.Struct, frozen=True):
    """Try again in `retry_in` microseconds, or, when that is None, fail. `code` is the error's in both cases."""

    code: str
    retry_in: int | None = None


def decide_after_failure(retry: Retry, failures: int, exception: BaseException, random: Random) -> RetryDecision:
    """What follows an exception of the author's code; `failures` counts the failed tries charged before this one."""
    members = _members(exception)
    for one in members:
        if isinstance(one, Fatal):
            return RetryDecision("fatal")
        if isinstance(one, StepFailed) and one.error.code in _NO_USE:
            return RetryDecision(one.error.code)
    if failures + 1 >= retry.max_attempts:
        return RetryDecision("error")
    if not all(isinstance(one, RetryAfter) or _may_retry(retry, one) for one in members):
        return RetryDecision("error")
    chosen = [_chosen_delay(one, retry, failures, random) for one in members if isinstance(one, RetryAfter)]
    return RetryDecision("error", max(chosen) if chosen else delay_before_retry(retry, failures, random))


def _may_retry(retry: Retry, exception: BaseException) -> bool:
    """Whether the policy allows a retry. The end of a child is final: the next attempt would raise it again."""
    if isinstance(exception, RunFailed | RunCancelled) and exception.child is not None:
        return retry.names(type(exception), RunFailed if isinstance(exception, RunFailed) else RunCancelled)
    return retry.retryable(exception)


def _members(exception: BaseException) -> list[BaseException]:
    """The exception itself, or, of a group, all that are in it."""
    if not isinstance(exception, BaseExceptionGroup):
        return [exception]
    return [member for one in exception.exceptions for member in _members(one)]


def decide_after_timeout(retry: Retry, failures: int, random: Random) -> RetryDecision:
    """What follows an attempt that its timeout ended. `on` doesn't matter here; `never_on=TimeoutError` does."""
    if failures + 1 >= retry.max_attempts or "builtins.TimeoutError" in retry.never_on:
        return RetryDecision("timeout")
    return RetryDecision("timeout", delay_before_retry(retry, failures, random))


def payload_error_code(error: PayloadError) -> str:
    """The code of a run that ends because its result can't be kept; that isn't tried again."""
    return "too_large" if isinstance(error, TooLarge) else "not_serializable"


def _chosen_delay(exception: RetryAfter, retry: Retry, failures: int, random: Random) -> int:
    try:
        return to_micros(exception.delay, "RetryAfter")
    except (ConfigError, ValueError, OverflowError, AttributeError):  # a delay that is none: then the task's own
        return delay_before_retry(retry, failures, random)
