"""The simulation of one seed: workers, clients and faults, in the order that the seed decides.

First faults are injected: processes die between any two calls, stall, lose connections or replies, stop and start; the
clock jumps. Then the faults end, and every run has to reach its end. Invariants are checked at each commit.
"""

from __future__ import annotations

import hashlib
import random
import sys
import traceback
from dataclasses import dataclass
from typing import Any

from greenlet import getcurrent

from holdfast.database.faults import Conflict, ConnectionLost
from tests.proof.clients import Clients
from tests.proof.environment import Environment, Process
from tests.proof.invariants import InvariantChecker
from tests.proof.replica import Change
from tests.proof.simulated_threads import (
    NEVER_US,
    CallThread,
    EventLoopThread,
    LoopThread,
    ProcessDied,
    SimulatedThread,
    yield_until,
)
from tests.proof.simulated_worker import LEASE_S, SimulatedWorker
from tests.proof.virtual_time import SECOND_US, Clock, virtual
from tests.proof.workload import TaskObserver

MAX_CALM_STEPS = 30_000
MAX_CALM_S = 240
STEP_DURATIONS_US = (0, 0, 0, 0, 40, 300, 1500)
"""Possible durations of a step."""


class Violation(Exception):
    """An invariant is violated. `seed` reproduces it."""

    def __init__(self, seed: int, what: str, trace: list[str]) -> None:
        super().__init__(f"seed {seed}: {what}")
        self.seed = seed
        self.what = what
        self.trace = trace


@dataclass(slots=True)
class Faults:
    """Probability of each fault, per database call or per step."""

    crash: float
    lose: float
    stall: float
    preempt: float
    jump: float
    steps: int

    @classmethod
    def of(cls, rng: random.Random) -> Faults:
        crash, lose, stall, jump = (rng.choice((0, x, 4 * x)) for x in (0.004, 0.01, 0.004, 0.001))
        return cls(crash, lose, stall, rng.choice((0.0, 0.2, 0.5)), jump, rng.choice((150, 300, 600)))


class Outcome:
    """The outcome of a seed: the digest of its trace, the number of steps and the injected faults."""

    def __init__(self, simulation: Simulation) -> None:
        self.seed = simulation.seed
        self.digest = simulation.digest()
        self.steps = simulation.steps
        self.counts = simulation.counts


class Simulation:
    """The simulation of one seed."""

    worker_type = SimulatedWorker
    clients_type = Clients

    def __init__(self, environment: Environment, seed: int, show_trace: bool = False) -> None:
        self.environment = environment
        self.seed = seed
        self.random = random.Random(f"simulation {seed}")
        self.clock = Clock()
        self.faults = Faults.of(self.random)
        self.threads: list[SimulatedThread] = []
        self.workers: list[SimulatedWorker] = []
        self.discarded: list[SimulatedThread] = []
        self.calm = False
        self.over = False
        self.steps = 0
        self.counts: dict[str, int] = {}
        self.trace: list[str] = []
        self._show_trace = show_trace
        self._hash = hashlib.sha256()
        self._failed: Violation | None = None
        self._names = 0
        self.replica = environment.reset(self.clock)
        self.invariants = InvariantChecker(self.replica, self.clock.database)
        self.clients = self.clients_type(self, environment)
        self.observer = environment.tasks.observer = TaskObserver(
            self.replica, self.fail, self.sleep, self.clients.wanted_event, self.clients.wanted_ask, self._kill_loop
        )

    # Trace

    def note(self, what: str) -> None:
        line = f"{self.clock.micros} {what}"
        self._hash.update(line.encode())
        self.trace.append(line)
        if self._show_trace:
            print(line)  # noqa: T201

    def digest(self) -> str:
        return self._hash.hexdigest()[:16]

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def fail(self, what: str, error: BaseException | None = None) -> None:
        """Record a violation; only the first one counts."""
        if self._failed is None and not self.over:
            if error is not None:
                what += "\n" + "".join(traceback.format_exception(error))
            self.note(f"VIOLATION {what}")
            self._failed = Violation(self.seed, what, self.trace)

    # Waiting

    def pause(self, seconds: float | None) -> None:
        yield_until(NEVER_US if seconds is None else self.clock.micros + int(seconds * SECOND_US))

    def resume(self, stopped: Any) -> None:
        if not self.over:
            stopped.thread.schedule_at(self.clock.micros)

    def sleep(self, seconds: float) -> None:
        """Replace `time.sleep` in greenlets."""
        if getcurrent().parent is None:
            return
        if self.over:  # no other thread runs any more, so the wait would never end
            raise ProcessDied
        self.pause(seconds)

    # Main loop

    def run(self) -> Outcome:
        with virtual(self.clock, self.seed, self.sleep, self._loop_failed):
            try:
                self._run_steps()
            finally:
                self._clean_up()
        if self._failed is not None:
            raise self._failed
        return Outcome(self)

    def _loop_failed(self, name: str) -> None:
        self.fail(f"the loop {name} failed", sys.exc_info()[1])

    def _run_steps(self) -> None:
        self.clients.prepare()
        for _ in range(self.random.randint(1, 3)):
            self.start_worker()
        while self.steps < self.faults.steps and self._failed is None:
            self._maybe_inject_fault()
            self._step()
        self._stop_faults()
        end = self.clock.micros + MAX_CALM_S * SECOND_US
        while self._failed is None and not self.clients.finished():
            self._step()
            if self.clock.micros > end or self.steps > MAX_CALM_STEPS:
                self.fail("runs don't finish: " + self.clients.unfinished())
        if self._failed is None:
            self.clients.check_ends()

    def _stop_faults(self) -> None:
        self.note("calm")
        self.calm = True
        for thread in self.threads:
            if thread.stalled_until < NEVER_US - 1:
                thread.stalled_until = 0  # calls that are already delayed stay delayed
        able = [worker for worker in self.workers if worker.alive and not worker.stopping and not worker.blocked]
        if not any(worker.has_side for worker in able):
            self.start_worker(has_side=True)
        self.clients.resolve_waits()

    def _step(self) -> None:
        self.steps += 1
        now = self.clock.micros
        can = [thread for thread in self.threads if thread.due <= now]
        if not can:
            following = min((thread.due for thread in self.threads), default=NEVER_US)
            if following == NEVER_US:
                self.start_worker()
            else:
                self.clock.micros = max(following, now)
            return
        thread = can[self.random.randrange(len(can))]
        if not isinstance(thread, EventLoopThread):
            self.note(thread.name)
        thread.step(self)
        if thread.over and thread in self.threads:
            self.threads.remove(thread)
        for worker in self.workers:
            if worker.alive:
                worker.watch_blocked_loop()
        self.clock.micros += self.random.choice(STEP_DURATIONS_US)

    def _maybe_inject_fault(self) -> None:
        rng, faults = self.random, self.faults
        if rng.random() > 0.1:
            return
        x = rng.random()
        alive = [worker for worker in self.workers if worker.alive]
        if alive and x < faults.crash * 5:
            self.kill(rng.choice(alive), "between two steps")
        elif alive and x < faults.crash * 5 + 0.01:
            self._stop(rng.choice(alive))
        elif x < faults.crash * 5 + 0.01 + faults.stall * 10:
            self._stall(alive)
        elif x < faults.crash * 5 + 0.01 + (faults.stall + faults.jump) * 10:
            self._jump_clock()
        elif len(alive) < 3 and rng.random() < 0.3:
            self.start_worker()
        elif rng.random() < 0.3:
            self._wake_loop()

    # Faults

    def start_worker(self, *, has_side: bool = False) -> None:
        has_side = has_side or self.random.random() < 0.5
        free = [number for number, process in enumerate(self.environment.workers) if process.hooks is None]
        if not free:
            return
        worker = self.worker_type(self, self.environment, free[0], f"worker{len(self.workers)}", has_side)
        self.note(f"start {worker.name}")
        self.count("start")
        self.workers.append(worker)
        self.threads.append(CallThread(f"{worker.name}.start", worker.start, self.clock.micros))

    def kill(self, worker: SimulatedWorker, where: str) -> None:
        self.note(f"kill {worker.name} {where}")
        self.count("kill")
        worker.alive = False
        mine = [thread for thread in self.threads if thread.name.startswith(worker.name + ".")]
        self.threads = [thread for thread in self.threads if thread not in mine]
        self.discarded += mine
        worker.loop.die()
        worker.detach()

    def _kill_loop(self, loop: Any) -> None:
        """Let task code kill its process; the supervisor starts another one."""
        for worker in self.workers:
            if worker.loop is loop and worker.alive:
                self.count("kill by a culprit")
                self.kill(worker, "by a culprit")
                self.start_worker(has_side=worker.has_side)

    def _stop(self, worker: SimulatedWorker) -> None:
        if worker.started and not worker.stopping:
            self.note(f"stop {worker.name}")
            self.count("stop")
            worker.stopping = True
            self.threads.append(CallThread(f"{worker.name}.stop", worker.stop, self.clock.micros))

    def _stall(self, alive: list[SimulatedWorker]) -> None:
        """Stall a process, or one of its threads."""
        until = self.clock.micros + int(self.random.uniform(0.1, 3 * LEASE_S) * SECOND_US)
        if self.random.random() < 0.4:
            self._block(alive, until)
            return
        if alive and self.random.random() < 0.5:
            prefix = self.random.choice(alive).name + "."
            stalled = [thread for thread in self.threads if thread.name.startswith(prefix)]
        else:
            stalled = [self.random.choice(self.threads)] if self.threads else []
        for thread in stalled:
            thread.stall(until)
        self.note(f"stall {[thread.name for thread in stalled]}")
        self.count("stall")

    def _block(self, alive: list[SimulatedWorker], until: int) -> None:
        """Let task code block the event loop of a worker, temporarily or forever; its other threads continue."""
        workers = [worker for worker in alive if worker.author is not None and not worker.blocked]
        if workers:
            worker = self.random.choice(workers)
            assert worker.author is not None
            forever = self.random.random() < 0.5
            on_loop = [None, *worker.tasks_on_loop()]
            blocker = self.random.choice(on_loop)
            worker.author.block(self.clock.micros, NEVER_US - 1 if forever else until, blocker)
            self.note(f"block {worker.name} {'forever' if forever else ''} by {on_loop.index(blocker)}")
            self.count("block forever" if forever else "block")

    def _jump_clock(self) -> None:
        seconds = self.random.choice((-LEASE_S, -0.5, 0.5, LEASE_S, 4 * LEASE_S))
        self.clock.jumped += int(seconds * SECOND_US)
        self.note(f"jump {seconds}")
        self.count("jump")

    def _wake_loop(self) -> None:
        loops = [thread for thread in self.threads if isinstance(thread, LoopThread)]
        if loops:
            thread = self.random.choice(loops)
            thread.loop.wake()
            self.count("wake")

    # Hooks of the connections

    def before_transaction(self, process: Process, worker: SimulatedWorker | None, what: str) -> None:
        self.note(f"{process.name} {what}")
        if worker is not None and not worker.alive:
            raise ProcessDied
        self._maybe_fail_call(process, worker, f"before {what}", Conflict)

    def before_reply(self, process: Process, worker: SimulatedWorker | None, what: str) -> None:
        self._maybe_fail_call(process, worker, f"after {what}", ConnectionLost)

    def _maybe_fail_call(self, process: Process, worker: Any, where: str, also: type[Exception]) -> None:
        if self.over or getcurrent().parent is None:
            return
        rng, faults = self.random, self.faults
        x = rng.random()
        if not self.calm and worker is not None and x < faults.crash:
            self.kill(worker, where)
            raise ProcessDied
        x -= faults.crash
        if not self.calm and x < faults.lose and x >= 0 and self.clients.may_lose(worker):
            self.note(f"lose {process.name} {where}")
            self.count(f"lose {where.split()[0]}")
            raise rng.choice((ConnectionLost, also))("injected by the simulation")
        x -= faults.lose
        if not self.calm and 0 <= x < faults.stall:
            self.count("late")
            self.pause(rng.uniform(0, 2 * LEASE_S))
        elif rng.random() < faults.preempt:
            self.pause(rng.choice((0.0, 0.0005, 0.02)))

    def committed(self, who: str, worker: SimulatedWorker | None = None) -> None:
        changes = self.replica.committed()
        if changes:
            self.check_commit(who, worker, changes)

    def check_commit(self, who: str, worker: SimulatedWorker | None, changes: list[Change]) -> None:
        """Check the invariants after a commit with these changes."""
        if worker is not None and not worker.may_claim() and any(change.ready is not None for change in changes):
            self.fail(f"{who} claims runs while its event loop is blocked")
        for change in changes:
            if change.table == "history" and change.new is not None and change.new["kind"] == "retried":
                self.observer.forget(change.new["run"])
        for fault in self.invariants.check(changes):
            self.fail(f"{who} violated an invariant: {fault}")

    # Cleanup

    def _clean_up(self) -> None:
        self.over = True
        self.replica.unwatch()
        for thread in (*self.threads, *self.discarded):
            thread.discard()
        for worker in self.workers:
            worker.loop.discard()
            worker.detach()
        self.environment.client.hooks = None
