"""Bound how often something happens by key, such as failed sign-ins by client."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

MAX_FAILURES = 10
"""A client may fail this often in a row."""
RECOVERY_S = 30.0
"""Each failure is forgotten after this time."""
MAX_CLIENTS = 10_000
"""How many keys are remembered. Beyond that, the one that was counted the longest ago is forgotten."""


class Throttle:
    """Counts by key: `burst` at once are allowed, then one per `recovery_s`."""

    def __init__(self, burst: int, recovery_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._burst = burst
        self._recovery_s = recovery_s
        self._clock = clock
        self._counts: dict[str, tuple[float, float]] = {}  # by key: how many, when; the latest last
        self._lock = threading.Lock()

    def pause_s(self, key: str) -> float:
        """Return the seconds until this key may be counted again, 0 if it may now."""
        with self._lock:
            return max(self._recent(key) - self._burst + 1, 0.0) * self._recovery_s

    def record(self, key: str) -> bool:
        """Count one; return whether the key has to pause from now on."""
        with self._lock:
            count = self._recent(key) + 1
            self._counts.pop(key, None)
            if len(self._counts) >= MAX_CLIENTS:
                del self._counts[next(iter(self._counts))]
            self._counts[key] = (count, self._clock())
            return count > self._burst - 1

    def _recent(self, key: str) -> float:
        count, at = self._counts.get(key, (0.0, 0.0))
        return max(count - (self._clock() - at) / self._recovery_s, 0.0)


class SignInThrottle(Throttle):
    """Counts failed sign-ins by client."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(MAX_FAILURES, RECOVERY_S, clock)
