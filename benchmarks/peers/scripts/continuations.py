"""Names and timing of continuations, as `benchmarks/suite/continuations.py` measures them for Holdfast."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

STEP, CHILD_CALL, SPAWN_JOIN = "step", "child call", "spawn and join"
RESULT, ASYNC_RESULT, WAKE, MESSAGE = "result", "result, async caller", "emit to wake", "message"
PAUSE_S = 0.01
WARM_UP = 10


def per_operation(run: Callable[[int], Any], count: int) -> float:
    """Return the milliseconds of one operation of a workflow, timed from outside, without the cost of the workflow."""
    run(WARM_UP)
    times = []
    for number in (1, 1 + count):
        started = time.perf_counter()
        run(number)
        times.append(time.perf_counter() - started)
    return (times[1] - times[0]) / count * 1000


def median_ms(count: int, operation: Callable[[int], Any]) -> float:
    """Return the median milliseconds of an operation."""
    times = []
    for number in range(WARM_UP + count):
        started = time.perf_counter()
        operation(number)
        times.append(time.perf_counter() - started)
    return statistics.median(times[WARM_UP:]) * 1000


def median_receipt_ms(count: int, received: SimpleQueue[int], send: Callable[[int], Any]) -> float:
    """Return the median milliseconds from a call of `send` until a workflow has received the number."""

    def operation(number: int) -> None:
        send(number)
        while received.get() != number:  # a replay repeats earlier numbers
            pass

    times = []
    for number in range(count):
        time.sleep(PAUSE_S)  # until the workflow waits
        started = time.perf_counter()
        operation(number)
        times.append(time.perf_counter() - started)
    return statistics.median(times) * 1000
