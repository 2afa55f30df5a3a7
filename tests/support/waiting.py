"""Waiting for a condition, for tests of things that happen in other threads and processes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(condition: Callable[[], T], timeout: float = 30, what: str = "") -> T:
    """Look again and again until the condition gives something true, and return that; fail after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {timeout:g} s: {what or condition}"
        time.sleep(0.01)
    return found
