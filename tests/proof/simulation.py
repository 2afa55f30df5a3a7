"""One seed: some workers, some clients, and all that goes wrong between them, step by step in the order of the seed.

First there is chaos: processes die between any two calls, stall, lose their connections or answers, are stopped and
started; the clock jumps. Then it is calm, and everything has to come to its end. The rules are checked at each commit.
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
from tests.proof.actors import NEVER, Actor, Died, Errand, EventLoopActor, LoopActor, give_way
from tests.proof.clients import Clients
from tests.proof.clockwork import SECOND, Clock, virtual
from tests.proof.crews import LEASE, SimulatedWorker
from tests.proof.rules import Judge, is_claim
from tests.proof.stage import Process, Stage
from tests.proof.workload import Play

CALM_STEPS = 30_000
CALM_SECONDS = 240
PASSING = (0, 0, 0, 0, 40, 300, 1500)
"""Microseconds that pass with a step."""


class Violation(Exception):
    """A rule is broken. `seed` shows it again."""

    def __init__(self, seed: int, what: str, trace: list[str]) -> None:
        super().__init__(f"seed {seed}: {what}")
        self.seed = seed
        self.what = what
        self.trace = trace


@dataclass(slots=True)
class Faults:
    """How often what goes wrong, per call of the database or per step."""

    crash: float
    lose: float
    stall: float
    give_way: float
    jump: float
    steps: int

    @classmethod
    def of(cls, chance: random.Random) -> Faults:
        crash, lose, stall, jump = (chance.choice((0, x, 4 * x)) for x in (0.004, 0.01, 0.004, 0.001))
        return cls(crash, lose, stall, chance.choice((0.0, 0.2, 0.5)), jump, chance.choice((150, 300, 600)))


class Outcome:
    """What a seed came to: its trace as a digest, how many steps, how often what went wrong."""

    def __init__(self, simulation: Simulation) -> None:
        self.seed = simulation.seed
        self.digest = simulation.digest()
        self.steps = simulation.steps
        self.counts = simulation.counts


class Simulation:
    """The steps of one seed."""

    def __init__(self, stage: Stage, seed: int, tell: bool = False) -> None:
        self.stage = stage
        self.seed = seed
        self.random = random.Random(f"simulation {seed}")
        self.clock = Clock()
        self.faults = Faults.of(self.random)
        self.actors: list[Actor] = []
        self.workers: list[SimulatedWorker] = []
        self.buried: list[Actor] = []
        self.calm = False
        self.over = False
        self.steps = 0
        self.counts: dict[str, int] = {}
        self.trace: list[str] = []
        self._tell = tell
        self._hash = hashlib.sha256()
        self._failed: Violation | None = None
        self._names = 0
        self.mirror = stage.reset(self.clock)
        self.judge = Judge(self.mirror, self.clock.database)
        self.clients = Clients(self, stage)
        self.play = stage.troupe.play = Play(
            self.mirror, self.fail, self.sleep, self.clients.wanted_event, self._kill_loop
        )

    # Telling

    def note(self, what: str) -> None:
        line = f"{self.clock.micros} {what}"
        self._hash.update(line.encode())
        self.trace.append(line)
        if self._tell:
            print(line)  # noqa: T201 - what was asked for

    def digest(self) -> str:
        return self._hash.hexdigest()[:16]

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def fail(self, what: str, error: BaseException | None = None) -> None:
        """A rule is broken; the first one counts."""
        if self._failed is None and not self.over:
            if error is not None:
                what += "\n" + "".join(traceback.format_exception(error))
            self.note(f"VIOLATION {what}")
            self._failed = Violation(self.seed, what, self.trace)

    # Waiting

    def pause(self, seconds: float | None) -> None:
        give_way(NEVER if seconds is None else self.clock.micros + int(seconds * SECOND))

    def go_on(self, stopped: Any) -> None:
        if not self.over:
            stopped.actor.go_on_at(self.clock.micros)

    def sleep(self, seconds: float) -> None:
        """`time.sleep` of whoever runs in a greenlet."""
        if getcurrent().parent is None:
            return
        if self.over:  # waiting for others would never end
            raise Died
        self.pause(seconds)

    # The run

    def run(self) -> Outcome:
        with virtual(self.clock, self.seed, self.sleep, self._loop_failed):
            try:
                self._play()
            finally:
                self._clean_up()
        if self._failed is not None:
            raise self._failed
        return Outcome(self)

    def _loop_failed(self, name: str) -> None:
        self.fail(f"the loop {name} failed", sys.exc_info()[1])

    def _play(self) -> None:
        self.clients.prepare()
        for _ in range(self.random.randint(1, 3)):
            self.start_worker()
        while self.steps < self.faults.steps and self._failed is None:
            self._something_happens()
            self._step()
        self._calm_down()
        end = self.clock.micros + CALM_SECONDS * SECOND
        while self._failed is None and not self.clients.finished():
            self._step()
            if self.clock.micros > end or self.steps > CALM_STEPS:
                self.fail("it doesn't come to an end: " + self.clients.unfinished())
        if self._failed is None:
            self.clients.check_ends()

    def _calm_down(self) -> None:
        self.note("calm")
        self.calm = True
        for actor in self.actors:
            if actor.stalled_until < NEVER - 1:
                actor.stalled_until = 0  # what is late already comes when it comes
        if not any(worker.alive and not worker.stopping and not worker.blocked for worker in self.workers):
            self.start_worker()
        self.clients.calm_down()

    def _step(self) -> None:
        self.steps += 1
        now = self.clock.micros
        can = [actor for actor in self.actors if actor.due <= now]
        if not can:
            following = min((actor.due for actor in self.actors), default=NEVER)
            if following == NEVER:
                self.start_worker()
            else:
                self.clock.micros = max(following, now)
            return
        actor = can[self.random.randrange(len(can))]
        if not isinstance(actor, EventLoopActor):
            self.note(actor.name)
        actor.step(self)
        if actor.over and actor in self.actors:
            self.actors.remove(actor)
        for worker in self.workers:
            if worker.alive:
                worker.watch_blocked_loop()
        self.clock.micros += self.random.choice(PASSING)

    def _something_happens(self) -> None:
        chance, faults = self.random, self.faults
        if chance.random() > 0.1:
            return
        x = chance.random()
        alive = [worker for worker in self.workers if worker.alive]
        if alive and x < faults.crash * 5:
            self.kill(chance.choice(alive), "between two steps")
        elif alive and x < faults.crash * 5 + 0.01:
            self._stop(chance.choice(alive))
        elif x < faults.crash * 5 + 0.01 + faults.stall * 10:
            self._stall(alive)
        elif x < faults.crash * 5 + 0.01 + (faults.stall + faults.jump) * 10:
            self._jump()
        elif len(alive) < 3 and chance.random() < 0.3:
            self.start_worker()
        elif chance.random() < 0.3:
            self._wake_someone()

    # What goes wrong

    def start_worker(self) -> None:
        free = [number for number, process in enumerate(self.stage.workers) if process.host is None]
        if not free:
            return
        worker = SimulatedWorker(self, self.stage, free[0], f"worker{len(self.workers)}")
        self.note(f"start {worker.name}")
        self.count("start")
        self.workers.append(worker)
        self.actors.append(Errand(f"{worker.name}.start", worker.start, self.clock.micros))

    def kill(self, worker: SimulatedWorker, where: str) -> None:
        self.note(f"kill {worker.name} {where}")
        self.count("kill")
        worker.alive = False
        mine = [actor for actor in self.actors if actor.name.startswith(worker.name + ".")]
        self.actors = [actor for actor in self.actors if actor not in mine]
        self.buried += mine
        worker.loop.die()
        worker.leave_the_stage()

    def _kill_loop(self, loop: Any) -> None:
        """Author code kills its process, whose supervisor starts another one."""
        for worker in self.workers:
            if worker.loop is loop and worker.alive:
                self.count("kill by a culprit")
                self.kill(worker, "by a culprit")
                self.start_worker()

    def _stop(self, worker: SimulatedWorker) -> None:
        if worker.started and not worker.stopping:
            self.note(f"stop {worker.name}")
            self.count("stop")
            worker.stopping = True
            self.actors.append(Errand(f"{worker.name}.stop", worker.stop, self.clock.micros))

    def _stall(self, alive: list[SimulatedWorker]) -> None:
        """A process, or one thread of it, doesn't get to run for a while."""
        until = self.clock.micros + int(self.random.uniform(0.1, 3 * LEASE) * SECOND)
        if self.random.random() < 0.4:
            self._block(alive, until)
            return
        if alive and self.random.random() < 0.5:
            prefix = self.random.choice(alive).name + "."
            stalled = [actor for actor in self.actors if actor.name.startswith(prefix)]
        else:
            stalled = [self.random.choice(self.actors)] if self.actors else []
        for actor in stalled:
            actor.stall(until)
        self.note(f"stall {[actor.name for actor in stalled]}")
        self.count("stall")

    def _block(self, alive: list[SimulatedWorker], until: int) -> None:
        """Author code blocks the event loop of a worker, for a while or for ever; its other threads go on."""
        workers = [worker for worker in alive if worker.author is not None and not worker.blocked]
        if workers:
            worker = self.random.choice(workers)
            assert worker.author is not None
            for_ever = self.random.random() < 0.5
            worker.author.block(self.clock.micros, NEVER - 1 if for_ever else until)
            self.note(f"block {worker.name} {'for ever' if for_ever else ''}")
            self.count("block for ever" if for_ever else "block")

    def _jump(self) -> None:
        seconds = self.random.choice((-LEASE, -0.5, 0.5, LEASE, 4 * LEASE))
        self.clock.jumped += int(seconds * SECOND)
        self.note(f"jump {seconds}")
        self.count("jump")

    def _wake_someone(self) -> None:
        loops = [actor for actor in self.actors if isinstance(actor, LoopActor)]
        if loops:
            actor = self.random.choice(loops)
            actor.loop.wake()
            self.count("wake")

    # What connections ask

    def arrive(self, process: Process, worker: SimulatedWorker | None, what: str) -> None:
        self.note(f"{process.name} {what}")
        if worker is not None and not worker.alive:
            raise Died
        self._trouble(process, worker, f"before {what}", Conflict)

    def leave(self, process: Process, worker: SimulatedWorker | None, what: str) -> None:
        self._trouble(process, worker, f"after {what}", ConnectionLost)

    def _trouble(self, process: Process, worker: Any, where: str, also: type[Exception]) -> None:
        if self.over or getcurrent().parent is None:
            return
        chance, faults = self.random, self.faults
        x = chance.random()
        if not self.calm and worker is not None and x < faults.crash:
            self.kill(worker, where)
            raise Died
        x -= faults.crash
        if not self.calm and x < faults.lose and x >= 0 and self.clients.may_lose(worker):
            self.note(f"lose {process.name} {where}")
            self.count(f"lose {where.split()[0]}")
            raise chance.choice((ConnectionLost, also))("the simulation says so")
        x -= faults.lose
        if not self.calm and 0 <= x < faults.stall:
            self.count("late")
            self.pause(chance.uniform(0, 2 * LEASE))
        elif chance.random() < faults.give_way:
            self.pause(chance.choice((0.0, 0.0005, 0.02)))

    def committed(self, who: str, worker: SimulatedWorker | None = None) -> None:
        changes = self.mirror.committed()
        if changes:
            if worker is not None and not worker.may_claim() and any(map(is_claim, changes)):
                self.fail(f"{who} claims runs while its event loop is blocked")
            for change in changes:
                if change.table == "history" and change.new is not None and change.new["kind"] == "retried":
                    self.play.forget(change.new["run"])
            for fault in self.judge.judge(changes):
                self.fail(f"{who} broke a rule: {fault}")

    # After it

    def _clean_up(self) -> None:
        self.over = True
        self.mirror.unwatch()
        for actor in (*self.actors, *self.buried):
            actor.bury()
        for worker in self.workers:
            worker.loop.bury()
            worker.leave_the_stage()
        self.stage.client.host = None
