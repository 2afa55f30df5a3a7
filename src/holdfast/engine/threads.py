"""Threads for author code that is a plain `def`.

Not the standard library's pool: that one is joined when the interpreter ends, so that a hung function would keep the
process from ending. These are daemons, made when needed and kept.
"""

from __future__ import annotations

import contextvars
import queue
import threading
from collections.abc import Callable, Sequence

from holdfast.telemetry import log


class Threads:
    """Runs each call in a thread of its own, reusing idle ones. The caller sees to it that there aren't too many."""

    def __init__(self, between: Sequence[Callable[[], None]] = ()) -> None:
        self._between = between
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._idle = 0
        self._started = 0
        self._owed = 0  # calls that wait for a thread that is busy now
        self._lock = threading.Lock()

    def run(self, call: Callable[[], None]) -> None:
        """Run the call soon. Where the system gives no more threads it waits for one that becomes free; RuntimeError
        when there is none at all."""
        with self._lock:
            if self._idle:
                self._idle -= 1
            else:
                self._start_or_wait()
        self._calls.put(call)

    def _start_or_wait(self) -> None:
        try:
            threading.Thread(target=self._serve, name=f"holdfast-thread-{self._started + 1}", daemon=True).start()
        except RuntimeError:
            if not self._started:
                raise
            self._owed += 1
        else:
            self._started += 1

    def close(self) -> None:
        """Let the threads end when they are idle."""
        for _ in range(self._started):
            self._calls.put(None)

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            self._prepare()
            try:
                contextvars.Context().run(call)
            except BaseException:
                log.loop_failed("thread")
            del call
            self._prepare()
            with self._lock:
                if self._owed:
                    self._owed -= 1
                else:
                    self._idle += 1

    def _prepare(self) -> None:
        """The thread is about to be used, or was: what an integration keeps for it is looked after."""
        for function in self._between:
            try:
                function()
            except Exception:
                log.hook_failed(function.__qualname__)
