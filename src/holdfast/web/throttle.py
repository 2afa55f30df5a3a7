"""Slow down clients that fail to sign in."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

MAX_FAILURES = 10
"""A client may fail this often in a row."""
RECOVERY_S = 30.0
"""Each failure is forgotten after this time."""
MAX_CLIENTS = 10_000
"""How many clients are remembered. Beyond that, the one whose last failure is the oldest is forgotten."""


class SignInThrottle:
    """Counts failed sign-ins by client: a burst is allowed, then one per `RECOVERY_S`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures: dict[str, tuple[float, float]] = {}  # by client: how many, when; the latest last
        self._lock = threading.Lock()

    def pause_s(self, client: str) -> float:
        """Return the seconds until this client may try again, 0 if it may now."""
        with self._lock:
            return max(self._recent(client) - MAX_FAILURES + 1, 0.0) * RECOVERY_S

    def record_failure(self, client: str) -> bool:
        """Count a failed sign-in; return whether the client has to pause from now on."""
        with self._lock:
            failures = self._recent(client) + 1
            self._failures.pop(client, None)
            if len(self._failures) >= MAX_CLIENTS:
                del self._failures[next(iter(self._failures))]
            self._failures[client] = (failures, self._clock())
            return failures > MAX_FAILURES - 1

    def _recent(self, client: str) -> float:
        count, at = self._failures.get(client, (0.0, 0.0))
        return max(count - (self._clock() - at) / RECOVERY_S, 0.0)
