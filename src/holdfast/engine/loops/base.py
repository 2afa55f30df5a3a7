"""The life cycle that all loops of the engine share. The loop's thread only calls `tick`; tests call it themselves."""

from __future__ import annotations

import contextvars
import random
import threading
from abc import ABC, abstractmethod
from contextlib import suppress

from holdfast.errors import StoreReplaced, StoreUnavailable
from holdfast.telemetry import log
from holdfast.telemetry.log_format import current_worker

UNTIL_WOKEN_S = 3600.0
"""Returned by a tick that has nothing to do before `wake` is called."""
FIRST_RETRY_PAUSE_S = 1.0
MAX_RETRY_PAUSE_S = 5.0


class WakeSignal:
    """Wakes one waiting thread. `set` before `wait` isn't lost; several `set` count as one.

    A lock that is released to wake the waiter: `threading.Event` takes several times as long (bench: steps).
    """

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def set(self) -> None:
        if self._lock.locked():
            with suppress(RuntimeError):  # another thread has released it at the same moment
                self._lock.release()

    def clear(self) -> None:
        self._lock.acquire(blocking=False)

    def wait(self, timeout_s: float) -> bool:
        """Wait until `set` is called, or was called since the last `wait`. Return False after the timeout."""
        return self._lock.acquire(timeout=timeout_s)


class Loop(ABC):
    """Calls `tick` repeatedly. Between two ticks it waits as long as the first one returned, or until `wake`."""

    name: str

    def __init__(self) -> None:
        self._woken = WakeSignal()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._failed_ticks = 0
        self._is_timed_out = False  # whether this tick follows a full pause instead of a `wake`

    @abstractmethod
    def tick(self) -> float:
        """Do one round of work and return the seconds to wait before the next one; 0 for none."""

    def start(self) -> None:
        context = contextvars.Context()
        context.run(current_worker.set, current_worker.get())
        self._thread = threading.Thread(
            target=context.run, args=(self._run,), name=f"holdfast-{self.name}", daemon=True
        )
        self._thread.start()

    def wake(self) -> None:
        """Start the next tick now. From any thread."""
        self._woken.set()

    def stop(self, timeout: float | None = None) -> None:
        """Start no further tick, and wait for the one under way."""
        self._stopping.set()
        self._woken.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)

    @property
    def running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    @property
    def is_failing(self) -> bool:
        """Whether the last tick raised an exception."""
        return self._failed_ticks > 0

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._woken.clear()
            pause_s = self._guarded_tick()
            self._is_timed_out = False
            if self._failed_ticks:
                self._stopping.wait(pause_s)  # a wake-up doesn't make the database available
            elif pause_s > 0 and not self._stopping.is_set():
                self._is_timed_out = not self._woken.wait(pause_s)

    def _guarded_tick(self) -> float:
        """Call `tick`. After an exception, return a pause with exponential backoff, so that the loop continues."""
        try:
            pause_s = self.tick()
        except StoreReplaced:  # already logged; this process can't use the database any more
            self._stopping.set()
            return 0.0
        except StoreUnavailable as error:
            self._failed_ticks += 1
            if self._failed_ticks == 1:
                log.database_error(self.name, error)
        except Exception:
            self._failed_ticks += 1
            log.loop_failed(self.name)
        else:
            if self._failed_ticks:
                log.database_recovered(self.name)
            self._failed_ticks = 0
            return pause_s
        longest_s = min(FIRST_RETRY_PAUSE_S * 2 ** (self._failed_ticks - 1), MAX_RETRY_PAUSE_S)
        return (
            random.uniform(FIRST_RETRY_PAUSE_S, longest_s) if longest_s > FIRST_RETRY_PAUSE_S else FIRST_RETRY_PAUSE_S
        )
