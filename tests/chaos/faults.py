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

from tests.chaos.feeder import Feeder
from tests.chaos.pool import Attack, Member, Pool
from tests.support.culprits import BLOCKS, HANGS, HOLDS_GIL, KILLS, kinds_of


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

    def freeze(self, member: Member, seconds: float) -> None:
        """Stop the worker's process for so long."""
        since = time.monotonic()
        member.process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        with suppress(ProcessLookupError):
            member.process.send_signal(signal.SIGCONT)
        self.pool.attacks.append(Attack(member.process.pid, since, time.monotonic()))


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
            self.freeze(member, self.pool.lease + self.random.uniform(0.5, 2))
        return True


class WorkerPaused(OfPool):
    """For less than its lease: it goes on as if nothing had been."""

    name = "worker stopped within its lease (SIGSTOP)"
    every = 8.0

    def once(self) -> bool:
        with self.pool.victim() as member:
            if member is None:
                return False
            self.freeze(member, self.pool.lease * self.random.uniform(0.2, 0.6))
        return True


class WorkerTold(OfPool):
    name = "worker told to stop (SIGTERM)"
    every = 12.0

    def once(self) -> bool:
        with self.pool.victim() as member:
            if member is None:
                return False
            member.expected = True
            since = time.monotonic()
            member.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                member.process.wait(15)
            member.process.kill()
            self.pool.attacks.append(Attack(member.process.pid, since, time.monotonic()))
            self.pool.replace(member)
        return True


class TaskStarted(Fault):
    """A task that is a fault itself is started, of one of these kinds."""

    def __init__(self, source: random.Random, feeder: Feeder, name: str, every: float, kinds: Sequence[str]) -> None:
        super().__init__(source)
        self.name = name
        self.every = every
        self._feeder = feeder
        self._kinds = kinds

    def once(self) -> bool:
        return self._feeder.start_one(self.random.choice(self._kinds))


EVERY_S = {BLOCKS: 15.0, HANGS: 15.0, KILLS: 25.0, HOLDS_GIL: 25.0}
"""The mean number of seconds between two culprits of a kind. One that kills its process takes several workers along
before it is found."""
RESTLESS_EVERY_S = 12.0


def faults_of_tasks(source: random.Random, feeder: Feeder) -> list[Fault]:
    """Culprits of all kinds, and machines that move without a pause."""
    culprits: list[Fault] = [
        TaskStarted(random.Random(source.random()), feeder, f"task that {harm}", every, kinds_of(harm))
        for harm, every in EVERY_S.items()
    ]
    name = "machine that moves without a pause"
    return [*culprits, TaskStarted(random.Random(source.random()), feeder, name, RESTLESS_EVERY_S, ["restless"])]


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
