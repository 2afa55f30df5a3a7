"""What is done to the workers and to their database, each at times of its own, and how often it truly happened."""

from __future__ import annotations

import random
import signal
import subprocess
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress

from tests.chaos.pool import Pool


class Fault(ABC):
    """One kind of fault. `every`: the mean number of seconds between two."""

    name: str
    every: float
    outage = False
    """Whether the database can't be used meanwhile."""
    taken_over = False
    """Whether another server takes its place."""

    def __init__(self, random_source: random.Random) -> None:
        self.random = random_source
        self.fired = 0
        self.missing: str | None = None
        """Why it can't be had here."""
        self.times: list[tuple[float, float]] = []

    @abstractmethod
    def once(self) -> bool:
        """Do it, and repair what must be repaired; whether it happened."""

    def fire(self) -> None:
        since = time.monotonic()
        if self.once():
            self.fired += 1
            self.times.append((since, time.monotonic()))


class OfPool(Fault):
    """A fault of one worker."""

    def __init__(self, random_source: random.Random, pool: Pool) -> None:
        super().__init__(random_source)
        self.pool = pool


class WorkerKilled(OfPool):
    name = "worker killed (SIGKILL)"
    every = 4.5

    def once(self) -> bool:
        with self.pool.victim() as member:
            if member is not None:
                self.pool.kill(member)
        return member is not None


class WorkerStopped(OfPool):
    """Longer than its lease: it comes back as one who has been given up."""

    name = "worker stopped past its lease (SIGSTOP)"
    every = 4.0  # on top of the time that it takes

    def once(self) -> bool:
        with self.pool.victim() as member:
            if member is None:
                return False
            member.process.send_signal(signal.SIGSTOP)
            time.sleep(self.pool.lease + self.random.uniform(0.5, 2))
            with suppress(ProcessLookupError):
                member.process.send_signal(signal.SIGCONT)
        return True


class WorkerPaused(OfPool):
    """For less than its lease: it goes on as if nothing had been."""

    name = "worker stopped within its lease (SIGSTOP)"
    every = 8.0

    def once(self) -> bool:
        with self.pool.victim() as member:
            if member is None:
                return False
            member.process.send_signal(signal.SIGSTOP)
            time.sleep(self.pool.lease * self.random.uniform(0.2, 0.6))
            with suppress(ProcessLookupError):
                member.process.send_signal(signal.SIGCONT)
        return True


class WorkerTold(OfPool):
    name = "worker told to stop (SIGTERM)"
    every = 12.0

    def once(self) -> bool:
        with self.pool.victim() as member:
            if member is None:
                return False
            member.expected = True
            member.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                member.process.wait(15)
            member.process.kill()
            self.pool.replace(member)
        return True


class Storm:
    """All faults at once, each in a thread of its own, until it is over."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        self.faults = faults
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._play, args=(fault,), daemon=True) for fault in faults]
        self.errors: list[str] = []

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Every fault ends what it began."""
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _play(self, fault: Fault) -> None:
        while fault.missing is None and not self._over.wait(fault.every * fault.random.uniform(0.5, 1.5)):
            try:
                fault.fire()
            except Exception:
                self.errors.append(f"{fault.name}: {traceback.format_exc()}")
                return
