"""Faults of workers and tasks, and the injector that triggers all faults at random intervals."""

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

from holdfast import Holdfast
from holdfast.errors import ConfigError
from tests.chaos.feeder import Feeder
from tests.chaos.worker_pool import Attack, WorkerPool, WorkerProcess
from tests.chaos.workload import LIMIT
from tests.support.culprits import BLOCKS, HANGS, HOLDS_GIL, KILLS, kinds_of


class Fault(ABC):
    """A kind of fault."""

    name: str
    mean_interval_s: float
    is_outage = False
    """Whether the database is unavailable meanwhile."""
    is_failover = False
    """Whether another server takes over."""

    def __init__(self, random_source: random.Random) -> None:
        self.random = random_source
        self.fired = 0
        self.unavailable: str | None = None
        """Why the fault can't be injected on this machine."""
        self.times: list[tuple[float, float]] = []

    @property
    def failovers(self) -> Sequence[tuple[float, float]]:
        """The periods from the start of a failover to the new primary."""
        return self.times if self.is_failover else []

    @abstractmethod
    def inject(self) -> bool:
        """Inject the fault and undo it; tell whether it happened."""

    def fire(self) -> None:
        since = time.monotonic()
        if self.inject():
            self.fired += 1
            self.times.append((since, time.monotonic()))


class WorkerFault(Fault):
    """A fault of one worker."""

    def __init__(self, random_source: random.Random, pool: WorkerPool) -> None:
        super().__init__(random_source)
        self.pool = pool

    def freeze(self, worker: WorkerProcess, seconds: float) -> None:
        """Stop the worker's process with SIGSTOP for some seconds."""
        since = time.monotonic()
        worker.process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        with suppress(ProcessLookupError):
            worker.process.send_signal(signal.SIGCONT)
        self.pool.attacks.append(Attack(worker.process.pid, since, time.monotonic()))


class WorkerKilled(WorkerFault):
    name = "worker killed (SIGKILL)"
    mean_interval_s = 4.5

    def inject(self) -> bool:
        with self.pool.borrow_worker() as worker:
            if worker is not None:
                self.pool.kill(worker)
        return worker is not None


class WorkerStopped(WorkerFault):
    """Freezes a worker for longer than its lease, so that it continues after others took over."""

    name = "worker stopped past its lease (SIGSTOP)"
    mean_interval_s = 4.0  # plus the duration of the fault

    def inject(self) -> bool:
        with self.pool.borrow_worker() as worker:
            if worker is None:
                return False
            self.freeze(worker, self.pool.lease + self.random.uniform(0.5, 2))
        return True


class WorkerPaused(WorkerFault):
    """Freezes a worker for less than its lease."""

    name = "worker stopped within its lease (SIGSTOP)"
    mean_interval_s = 8.0

    def inject(self) -> bool:
        with self.pool.borrow_worker() as worker:
            if worker is None:
                return False
            self.freeze(worker, self.pool.lease * self.random.uniform(0.2, 0.6))
        return True


class WorkerTerminated(WorkerFault):
    name = "worker stopped cleanly (SIGTERM)"
    mean_interval_s = 12.0

    def inject(self) -> bool:
        with self.pool.borrow_worker() as worker:
            if worker is None:
                return False
            worker.expected = True
            since = time.monotonic()
            worker.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                worker.process.wait(15)
            worker.process.kill()
            self.pool.attacks.append(Attack(worker.process.pid, since, time.monotonic()))
            self.pool.replace(worker)
        return True


class HarmfulTask(Fault):
    """Starts a task that is itself a fault, of one of these kinds."""

    def __init__(
        self, source: random.Random, feeder: Feeder, name: str, mean_interval_s: float, kinds: Sequence[str]
    ) -> None:
        super().__init__(source)
        self.name = name
        self.mean_interval_s = mean_interval_s
        self._feeder = feeder
        self._kinds = kinds

    def inject(self) -> bool:
        return self._feeder.start_one(self.random.choice(self._kinds))


class OperatorPaused(Fault):
    """Pauses a task, the queue or a tenant, or lowers a limit, and undoes it, while workers die."""

    name = "operator pauses runs or lowers a limit"
    mean_interval_s = 6.0

    def __init__(self, source: random.Random, feeder: Feeder, app: Holdfast) -> None:
        super().__init__(source)
        self._feeder = feeder
        self._app = app

    def inject(self) -> bool:
        target = self.random.choice(({"task": "job"}, {"task": "flow"}, {"queue": "default"}, None))
        try:
            if target is None:
                done = self._feeder.persist(lambda: self._app.limits.set(LIMIT, concurrency=1, by="chaos"))
            else:
                done = self._feeder.persist(lambda: self._app.pause(**target))
        except ConfigError:  # no worker has declared the limit yet
            return False
        time.sleep(self.random.uniform(0.2, 2))
        if target is None:
            self._feeder.persist(lambda: self._app.limits.reset(LIMIT))
        else:
            self._feeder.persist(lambda: self._app.resume(**target))
        return done is not None


HARM_INTERVALS_S = {BLOCKS: 15.0, HANGS: 15.0, KILLS: 25.0, HOLDS_GIL: 25.0}
"""The mean number of seconds between two culprits of a kind. One that kills its process takes several workers along
before it is found."""
RESTLESS_INTERVAL_S = 12.0


def task_faults(source: random.Random, feeder: Feeder) -> list[Fault]:
    """Return faults that start culprits of all kinds, and machines that move without a pause."""
    culprits: list[Fault] = [
        HarmfulTask(random.Random(source.random()), feeder, f"task that {harm}", mean_interval_s, kinds_of(harm))
        for harm, mean_interval_s in HARM_INTERVALS_S.items()
    ]
    name = "machine that moves without a pause"
    return [*culprits, HarmfulTask(random.Random(source.random()), feeder, name, RESTLESS_INTERVAL_S, ["restless"])]


class FaultInjector:
    """Injects all kinds of faults concurrently, each in its own thread, until it is stopped."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        self.faults = faults
        self._stopped = threading.Event()
        self._threads = [
            threading.Thread(target=self._inject_repeatedly, args=(fault,), daemon=True) for fault in faults
        ]
        self.errors: list[str] = []

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Wait until every fault has been undone."""
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def _inject_repeatedly(self, fault: Fault) -> None:
        while fault.unavailable is None and not self._stopped.wait(
            fault.mean_interval_s * fault.random.uniform(0.5, 1.5)
        ):
            try:
                fault.fire()
            except Exception:
                self.errors.append(f"{fault.name}: {traceback.format_exc()}")
                return
