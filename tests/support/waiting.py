"""Waiting for a condition, for tests of things that happen in other threads and processes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(condition: Callable[[], T], timeout: float = 30, what: str | Callable[[], str] = "") -> T:
    """Look again and again until the condition gives something true, and return that; fail after `timeout` seconds,
    and say what was missing, as it is then if `what` is a function."""
    deadline = time.monotonic() + timeout
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout:g} s: {what() if callable(what) else what or condition}")
        time.sleep(0.01)
    return found
