"""Measure whether the event loop is responsive."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

STALL_S = 0.25
"""A loop that takes longer than this to run a callback is stalled."""


class LoopMonitor:
    """Measures how long the event loop takes to run a callback that another thread schedules."""

    def __init__(self, on_recovered: Callable[[], None]) -> None:
        self._on_recovered = on_recovered
        self._sent_at: float | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self.thread: int | None = None
        """The id of the loop's thread, known after its first answer."""

    def use(self, loop: asyncio.AbstractEventLoop) -> None:
        """Watch this loop from now on."""
        self.loop = loop
        self.ping()

    def ping(self) -> None:
        """Schedule a callback, unless one is pending. From any thread."""
        if self._sent_at is None and self.loop is not None:
            self.sent()
            try:
                self.loop.call_soon_threadsafe(self.answered)
            except RuntimeError:  # the loop is closed: the worker has stopped
                self._sent_at = None

    def sent(self) -> None:
        """Start a measurement: the caller is about to schedule a callback that calls `answered`."""
        if self._sent_at is None:
            self._sent_at = time.monotonic()

    def answered(self) -> None:
        """End the measurement. Called on the loop, by the scheduled callback."""
        self.thread = threading.get_ident()
        sent_at, self._sent_at = self._sent_at, None
        if sent_at is not None and time.monotonic() - sent_at > STALL_S:
            self._on_recovered()

    @property
    def lag(self) -> float:
        """For how many seconds the scheduled callback has been waiting for the loop; 0.0 if none is pending."""
        sent_at = self._sent_at
        return 0.0 if sent_at is None else time.monotonic() - sent_at

    @property
    def stalled(self) -> bool:
        """Whether the loop lags so much that it must not be given more work."""
        return self.lag > STALL_S
