"""Wait for a condition in other threads or processes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(condition: Callable[[], T], timeout: float = 30, what: str | Callable[[], str] = "") -> T:
    """Poll until the condition returns something true and return it; fail after `timeout` seconds.

    The failure shows `what`, which is called then if it is a function.
    """
    deadline = time.monotonic() + timeout
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout:g} s: {what() if callable(what) else what or condition}")
        time.sleep(0.01)
    return found
