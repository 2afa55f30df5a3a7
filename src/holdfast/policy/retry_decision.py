"""Decide what follows a failed attempt: a retry after a delay, or a permanent failure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import TypeAlias

import msgspec

from holdfast.errors import (
    BudgetExceeded,
    CostExceedsLimit,
    ExecutorLost,
    Fatal,
    PayloadError,
    PayloadUnreadable,
    RetryAfter,
    RunCancelled,
    RunFailed,
    StepFailed,
    TooLarge,
    WaitTimeout,
)
from holdfast.model.clock import to_micros
from holdfast.model.retry import Retry

Random: TypeAlias = Callable[[], float]
"""Returns a number in [0, 1), like `random.random`."""

_PERMANENT_CODES = ("fatal", "not_serializable", "too_large", "unreadable")
"""Codes of failed steps that another attempt would only repeat."""


_NAMED = (WaitTimeout, BudgetExceeded, CostExceedsLimit)
"""Exceptions after which an attempt is retried only if the policy names their class."""


class RetryDecision(msgspec.Struct, frozen=True):
    """Retry in `retry_in` microseconds, or fail if it is None. `code` is the error code in both cases."""

    code: str
    retry_in: int | None = None


def decide_after_failure(retry: Retry, failures: int, exception: BaseException, random: Random) -> RetryDecision:
    """Decide after an exception of task code. `failures` counts the failed attempts charged before this one."""
    members = _members(exception)
    for one in members:
        if isinstance(one, Fatal):
            return RetryDecision("fatal")
        if isinstance(one, StepFailed) and one.error.code in _PERMANENT_CODES:
            return RetryDecision(one.error.code)
    if failures + 1 >= retry.max_attempts:
        return RetryDecision("error")
    chosen = _longest_delay(members)
    if not all(_asks_for_retry(one) or _may_retry(retry, one) for one in members):
        return RetryDecision("error")
    return RetryDecision("error", delay_before_retry(retry, failures, random) if chosen is None else chosen)


def longest_retry_after(exception: BaseException) -> timedelta | None:
    """Return the longest delay that an exception, or a group of them, asks for with `RetryAfter`."""
    chosen = _longest_delay(_members(exception))
    return None if chosen is None else timedelta(microseconds=chosen)


def decide_after_timeout(retry: Retry, failures: int, random: Random) -> RetryDecision:
    """Decide after an attempt that timed out. `on` has no effect, but `never_on=TimeoutError` and `retry_if` have."""
    if failures + 1 >= retry.max_attempts or "builtins.TimeoutError" in retry.never_on:
        return RetryDecision("timeout")
    if not retry.accepts(TimeoutError("the timeout expired")):
        return RetryDecision("timeout")
    return RetryDecision("timeout", delay_before_retry(retry, failures, random))


def payload_error_code(error: PayloadError) -> str:
    """Return the code of a run whose result can't be stored, which is not retried."""
    if isinstance(error, PayloadUnreadable):
        return "unreadable"
    return "too_large" if isinstance(error, TooLarge) else "not_serializable"


def delay_before_retry(retry: Retry, failures: int, random: Random) -> int:
    """Return the microseconds until the next attempt; `failures` counts the failed attempts before the latest one.

    The delay is randomized by plus or minus `jitter`. Near `max_delay` the upper side is cut off and the whole range
    below is used, so that delays at the limit don't all end at the same moment.
    """
    middle = _exponential_delay(retry, failures)
    low = middle * (1 - retry.jitter)
    high = min(middle * (1 + retry.jitter), float(retry.max_delay_micros))
    return max(0, min(round(low + (high - low) * random()), retry.max_delay_micros))


def _exponential_delay(retry: Retry, failures: int) -> float:
    try:
        delay = retry.delay_micros * retry.factor ** max(0, failures)
    except OverflowError:
        delay = float("inf") if retry.delay_micros else 0.0
    return min(delay, float(retry.max_delay_micros))


def _chosen_delay(exception: BaseException) -> int | None:
    """Return the delay that an exception asks for; None if it doesn't, or if the delay is invalid."""
    try:
        if isinstance(exception, RetryAfter):
            return to_micros(exception.delay, "RetryAfter")
        if isinstance(exception, StepFailed) and exception.retry_after is not None:
            return to_micros(exception.retry_after, "RetryAfter")
    except Exception:  # Not a duration, or a class that doesn't set it: the policy chooses the delay.
        pass
    return None


def _asks_for_retry(exception: BaseException) -> bool:
    return isinstance(exception, RetryAfter) or _chosen_delay(exception) is not None


def _longest_delay(exceptions: Iterable[BaseException]) -> int | None:
    return max((delay for one in exceptions if (delay := _chosen_delay(one)) is not None), default=None)


def _may_retry(retry: Retry, exception: BaseException) -> bool:
    """Return whether the policy allows a retry.

    The outcome of a child and the timeout of a wait are recorded: the next attempt would raise them again. A budget
    stays exceeded, and a cost above its limit, until an operator raises it. A lost call says nothing about the code.
    """
    if isinstance(exception, ExecutorLost):
        return retry.accepts(exception)
    if isinstance(exception, RunFailed | RunCancelled) and exception.child is not None:
        named = retry.names(type(exception), RunFailed if isinstance(exception, RunFailed) else RunCancelled)
        return named and retry.accepts(exception)
    for kind in _NAMED:
        if isinstance(exception, kind):
            return retry.names(kind) and retry.accepts(exception)
    return retry.retryable(exception)


def _members(exception: BaseException) -> list[BaseException]:
    """Return the exceptions in a group, at any depth, or the exception itself."""
    if not isinstance(exception, BaseExceptionGroup):
        return [exception]
    return [member for one in exception.exceptions for member in _members(one)]
