"""A reentrant lock that starves no thread."""

from __future__ import annotations

import threading
import time
from collections import deque
from types import TracebackType

TURN_S = 0.02
"""A thread that has waited for longer than this gets the lock next."""


class _Waiter:
    __slots__ = ("since", "thread", "wakeup")

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.since = time.monotonic()
        self.wakeup = threading.Lock()
        self.wakeup.acquire()


class FairLock:
    """A reentrant lock. Threads that have waited for longer than `TURN_S` get it next, in order of arrival.

    `threading.RLock` goes to whichever thread runs first, which is usually the one that has just released it. This lock
    does the same while no thread has waited for `TURN_S`: handing it over at once would leave it unused until the next
    thread gets the GIL.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._owner: int | None = None
        self._depth = 0
        self._waiting: deque[_Waiter] = deque()
        self._revoked: dict[int, int] = {}  # thread id to its outstanding releases, which have no effect

    def acquire(self, timeout: float = -1) -> bool:
        me = threading.get_ident()
        if self._revoked and me in self._revoked:
            raise RuntimeError("the lock was revoked from this thread")
        if self._owner == me:
            self._depth += 1
            return True
        with self._mutex:
            if self._owner is None:
                self._owner, self._depth = me, 1
                return True
            waiter = _Waiter()
            self._waiting.append(waiter)
        try:
            return self._wait(waiter, None if timeout < 0 else time.monotonic() + timeout)
        except BaseException:  # an interrupt
            self._withdraw(waiter)
            raise

    def _wait(self, waiter: _Waiter, deadline: float | None) -> bool:
        while True:
            woken = waiter.wakeup.acquire(timeout=-1 if deadline is None else max(deadline - time.monotonic(), 0))
            with self._mutex:
                if self._owner is None:
                    self._waiting.remove(waiter)
                    self._owner, self._depth = waiter.thread, 1
                if self._owner == waiter.thread:
                    return True
                if not woken:
                    self._waiting.remove(waiter)
                    return False

    def _withdraw(self, waiter: _Waiter) -> None:
        with self._mutex:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
                if self._owner is None:  # this thread was woken to take the lock
                    self._wake_next()
        if self._owner == waiter.thread:
            self.release()

    def revoke(self) -> None:
        """Pass the lock of a thread that doesn't return on to the next one.

        Later releases by that thread have no effect. It can't acquire the lock again until it has made all of them.
        """
        with self._mutex:
            if self._owner is not None:
                self._revoked[self._owner] = self._depth
                self._owner, self._depth = None, 0
                self._wake_next()

    def is_revoked(self) -> bool:
        """Return whether the lock was revoked from this thread."""
        return bool(self._revoked) and threading.get_ident() in self._revoked

    def release(self) -> None:
        me = threading.get_ident()
        if self._revoked and me in self._revoked:
            self._revoked[me] -= 1
            if not self._revoked[me]:
                del self._revoked[me]
            return
        if self._owner != me:
            raise RuntimeError("cannot release un-acquired lock")
        self._depth -= 1
        if self._depth:
            return
        with self._mutex:
            self._owner = None
            self._wake_next()

    def _wake_next(self) -> None:
        if not self._waiting:
            return
        first = self._waiting[0]
        if time.monotonic() - first.since > TURN_S:
            self._waiting.popleft()
            self._owner, self._depth = first.thread, 1
        if first.wakeup.locked():
            first.wakeup.release()

    def reset_after_fork(self) -> None:
        """Forget the waiting threads in a forked child, where they don't exist."""
        self._mutex = threading.Lock()
        self._waiting.clear()
        self._revoked.clear()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, t: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        self.release()
