"""Alarms for attempts that don't run on the event loop: a loop that author code blocks must not stop their clocks."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable

from holdfast.engine.loop import NOT_BEFORE_WOKEN, Loop


class Alarm:
    """A call to be made at a time, unless it is cancelled before."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[[], None]) -> None:
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        """Forget the call, and what it holds, now."""
        self.call = None


class Alarms(Loop):
    """Makes calls when their time has come."""

    name = "alarms"

    def __init__(self) -> None:
        super().__init__()
        self._waiting: list[tuple[float, int, Alarm]] = []
        self._numbers = itertools.count()
        self._lock = threading.Lock()

    def set(self, seconds: float, call: Callable[[], None]) -> Alarm:
        """Make the call in so many seconds, on the thread of the alarms."""
        alarm = Alarm(call)
        with self._lock:
            heapq.heappush(self._waiting, (time.monotonic() + seconds, next(self._numbers), alarm))
            first = self._waiting[0][2] is alarm
        if first:
            self.wake()
        return alarm

    def tick(self) -> float:
        while True:
            with self._lock:
                if not self._waiting:
                    return NOT_BEFORE_WOKEN
                left = self._waiting[0][0] - time.monotonic()
                if left > 0:
                    return left
                _, _, alarm = heapq.heappop(self._waiting)
            call = alarm.call
            if call is not None:
                call()
