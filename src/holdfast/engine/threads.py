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

ABANDON_AFTER_S = 1.0
"""How long code that was ordered to stop may continue before its run continues without it."""


class ThreadCall:
    """One call in a thread. A thread can't be killed: a call that doesn't return can only be abandoned."""

    __slots__ = ("_lost", "_pool", "_returned", "_run")

    def __init__(self, pool: Threads, run: Callable[[], None]) -> None:
        self._pool = pool
        self._run: Callable[[], None] | None = run
        self._returned = False
        self._lost = False

    def __call__(self) -> None:
        assert self._run is not None
        try:
            self._run()
        finally:
            self._run = None  # an idle thread must not keep the arguments alive
            self._settle(returned=True)

    def abandon(self) -> None:
        """Count its thread as lost until it returns, if it hasn't returned."""
        self._settle(returned=False)

    def _settle(self, *, returned: bool) -> None:
        with self._pool.lock:
            if self._returned:
                return
            self._returned = returned
            was_lost, self._lost = self._lost, not returned
            self._pool.lost += self._lost - was_lost


class Threads:
    """Runs each call in a thread of its own, reusing idle ones. The caller limits how many there are.

    `lost` counts the threads whose calls were abandoned and have not returned.
    """

    def __init__(self, between: Sequence[Callable[[], None]] = ()) -> None:
        self._between = between
        self._calls: queue.SimpleQueue[ThreadCall | None] = queue.SimpleQueue()
        self._idle = 0
        self._started = 0
        self._owed = 0  # calls that wait for a thread that is busy now
        self.lost = 0
        self.lock = threading.Lock()

    def run(self, call: Callable[[], None]) -> ThreadCall:
        """Run the call soon. If the system gives no more threads, the call waits for one that becomes free;
        RuntimeError if there is none at all."""
        with self.lock:
            if self._idle:
                self._idle -= 1
            else:
                self._start_or_wait()
        handle = ThreadCall(self, call)
        self._calls.put(handle)
        return handle

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
            with self.lock:
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
