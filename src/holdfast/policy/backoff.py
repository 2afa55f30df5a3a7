"""How long to wait before the next try. Pure: chance is a parameter."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

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
