"""The worker processes of a chaos run, each replaced when it exits."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tests.chaos.workload import NEAR

WORKER = Path(__file__).with_name("worker.py")
CLOCK_OFFSETS_S = (0.0, 600.0, -600.0, 3.0, -3.0)
STOP_TIMEOUT_S = 20.0
LABELLED = 3
"""One of so many workers has the label that some tasks prefer."""


class Machine:
    """Where workers run: this machine, with its network and its clock."""

    clock: str | None = None
    """How far its clock is off. None if each of its workers may have another time."""

    def inside(self) -> contextlib.AbstractContextManager[None]:
        """Let this thread start programs on the machine."""
        return contextlib.nullcontext()

    def environment(self) -> Mapping[str, str]:
        return os.environ


@dataclass
class WorkerProcess:
    """A worker process. While it is `busy` with one fault, no other fault may use it."""

    process: subprocess.Popen[bytes]
    log: Path
    machine: Machine
    busy: bool = False
    expected: bool = False
    """Whether its exit is expected."""


@dataclass(frozen=True)
class Kill:
    """The process that was killed, and when by the monotonic clock."""

    pid: int
    at: float


class Attack(NamedTuple):
    """The period of a fault of a worker, by the monotonic clock."""

    pid: int
    since: float
    until: float


@dataclass
class WorkerPool:
    """Starts workers, lends them to faults and keeps their number constant."""

    url: str
    folder: Path
    size: int
    lease: float
    concurrency: int
    random_source: random.Random
    machines: Sequence[Machine] = (Machine(),)
    workers: list[WorkerProcess] = field(default_factory=list)
    exited: list[WorkerProcess] = field(default_factory=list)
    kills: list[Kill] = field(default_factory=list)
    attacks: list[Attack] = field(default_factory=list)
    skewed_clocks: int = 0
    failed_starts: int = 0
    unexpected_exits: list[WorkerProcess] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self) -> None:
        for number in range(self.size):
            self.workers.append(self._start_worker(self.machines[number % len(self.machines)]))

    def _start_worker(self, machine: Machine) -> WorkerProcess:
        off = self.random_source.choice(CLOCK_OFFSETS_S) if machine.clock is None else 0.0
        self.skewed_clocks += off != 0 or machine.clock not in (None, "")
        number = len(self.workers) + len(self.exited)
        log = self.folder / f"worker{number}.log"
        options = ["--lease", self.lease, "--concurrency", self.concurrency, "--clock-off", off]
        options += ["--label", NEAR] if number % LABELLED == 0 else []
        command = [sys.executable, WORKER, self.url, self.folder / "ledger", *options]
        with log.open("wb") as output, machine.inside():
            process = subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
                env=machine.environment(),
            )  # fmt: skip
        return WorkerProcess(process, log, machine)

    @contextlib.contextmanager
    def borrow_worker(self) -> Iterator[WorkerProcess | None]:
        """Lend a running worker to one fault; None if no worker is available."""
        with self._lock:
            free = [worker for worker in self.workers if not worker.busy and _has_started(worker)]
            worker = self.random_source.choice(free) if free else None
            if worker is not None:
                worker.busy = True
        try:
            yield worker
        finally:
            if worker is not None:
                worker.busy = False

    def of_machine(self, machine: Machine) -> list[WorkerProcess]:
        """Return the workers of a machine, those that have exited included."""
        with self._lock:
            return [worker for worker in (*self.exited, *self.workers) if worker.machine is machine]

    @contextlib.contextmanager
    def borrow_machine(self, machine: Machine) -> Iterator[list[WorkerProcess]]:
        """Lend the workers of a machine that no other fault uses to one fault."""
        with self._lock:
            free = [each for each in self.workers if each.machine is machine and not each.busy and _has_started(each)]
            for worker in free:
                worker.busy = True
        try:
            yield free
        finally:
            for worker in free:
                worker.busy = False

    def kill(self, worker: WorkerProcess) -> None:
        """Kill a worker with SIGKILL and replace it."""
        worker.expected = True
        at = time.monotonic()
        self.kills.append(Kill(worker.process.pid, at))
        self.attacks.append(Attack(worker.process.pid, at, at))
        os.killpg(worker.process.pid, signal.SIGKILL)
        self.replace(worker)

    def replace(self, worker: WorkerProcess) -> None:
        _reap(worker)
        with self._lock:
            self.workers.remove(worker)
            self.exited.append(worker)
            self.workers.append(self._start_worker(worker.machine))

    def replace_exited(self) -> None:
        """Replace workers that exited unexpectedly: after an error, or without a database at start."""
        for worker in [worker for worker in self.workers if not worker.expected and worker.process.poll() is not None]:
            if b"not started: " in worker.log.read_bytes():
                self.failed_starts += 1
            else:
                self.unexpected_exits.append(worker)
            worker.expected = True
            self.replace(worker)

    def logs(self) -> Iterator[tuple[Path, str]]:
        for worker in (*self.exited, *self.workers):
            yield worker.log, worker.log.read_text(errors="replace")

    def close(self) -> None:
        """Stop all workers with SIGTERM and kill those that don't exit in time."""
        for worker in self.workers:
            worker.expected = True
            with contextlib.suppress(ProcessLookupError):
                worker.process.send_signal(signal.SIGCONT)
                worker.process.terminate()
        for worker in self.workers:
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.process.wait(STOP_TIMEOUT_S)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(worker.process.pid, signal.SIGKILL)
            _reap(worker)


def _has_started(worker: WorkerProcess) -> bool:
    return worker.process.poll() is None and b"worker started" in worker.log.read_bytes()


def _reap(worker: WorkerProcess) -> None:
    worker.process.wait()
    if worker.process.stdin is not None:
        worker.process.stdin.close()
