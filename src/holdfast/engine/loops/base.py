"""The life cycle that all loops of the engine share. A thread only calls `tick`; tests call it themselves."""

from __future__ import annotations

import contextvars
import random
import threading
from abc import ABC, abstractmethod

from holdfast.errors import StoreReplaced, StoreUnavailable
from holdfast.telemetry import log
from holdfast.telemetry.log_format import current_worker

NOT_BEFORE_WOKEN = 3600.0
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 5.0


class Loop(ABC):
    """Calls `tick` again and again, waiting in between for as long as the tick said, or until woken."""

    name: str

    def __init__(self) -> None:
        self._woken = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._troubles = 0

    @abstractmethod
    def tick(self) -> float:
        """One round of work; the seconds to wait before the next one (0: at once)."""

    def start(self) -> None:
        here = contextvars.Context()
        here.run(current_worker.set, current_worker.get())
        self._thread = threading.Thread(target=here.run, args=(self._run,), name=f"holdfast-{self.name}", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Let the next tick begin now. One that is woken already has still to begin its tick."""
        if not self._woken.is_set():
            self._woken.set()

    def stop(self, timeout: float | None = None) -> None:
        """Begin no further tick; wait for the one under way."""
        self._stopping.set()
        self._woken.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)

    @property
    def running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _run(self) -> None:
        while not self._stopping.is_set():
            pause = self._guarded_tick()
            if self._troubles:
                self._stopping.wait(pause)  # being woken doesn't make a database come back
            elif pause > 0 and not self._stopping.is_set():
                self._woken.wait(pause)
            self._woken.clear()

    def _guarded_tick(self) -> float:
        """A loop outlives whatever happens in a tick: it waits a little, longer each time, and goes on."""
        try:
            pause = self.tick()
        except StoreReplaced:  # logged where it was found; this process can't use the database any more
            self._stopping.set()
            return 0.0
        except StoreUnavailable as error:
            self._troubles += 1
            if self._troubles == 1:
                log.database_error(self.name, error)
        except Exception:
            self._troubles += 1
            log.loop_failed(self.name)
        else:
            if self._troubles:
                log.database_recovered(self.name)
            self._troubles = 0
            return pause
        longest = min(FIRST_PAUSE * 2 ** (self._troubles - 1), LONGEST_PAUSE)
        return random.uniform(FIRST_PAUSE, longest) if longest > FIRST_PAUSE else FIRST_PAUSE
