"""A simulated worker: a real crew, whose loops are ticked by the simulation, and whose threads are errands of it."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

from greenlet import greenlet

from holdfast.engine.crew import Crew, Settings
from holdfast.engine.threads import ThreadCall
from holdfast.engine.worker import Worker
from holdfast.errors import StoreUnavailable
from holdfast.store.transactions import LINES
from tests.proof.actors import Errand, EventLoopActor, LoopActor
from tests.proof.clockwork import SteppedLoop
from tests.proof.faulty import Host
from tests.proof.stage import Stage

if TYPE_CHECKING:
    from tests.proof.simulation import Simulation

LEASE = 2.0


class SimulatedThreads:
    """Threads of author code: errands that take their time."""

    def __init__(self, worker: SimulatedWorker) -> None:
        self._worker = worker
        self.lost = 0
        self.lock = threading.Lock()

    def run(self, call: Callable[[], None]) -> ThreadCall:
        context = contextvars.Context()
        handle = ThreadCall(self, call)
        self._worker.add_errand("thread", partial(context.run, handle))
        return handle

    def close(self) -> None:
        """They end by themselves."""


class FreeLines:
    """The lines for author's transactions that nobody uses, where waiting for one means to give way."""

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self._free = [f"author-{number + 1}" for number in range(LINES)]

    def get(self) -> str:
        while not self._free:
            self._sim.pause(0.01)
        return self._free.pop(0)

    def put(self, line: str) -> None:
        self._free.append(line)


class SimulatedWorker:
    """One worker process."""

    def __init__(self, sim: Simulation, stage: Stage, slot: int, name: str) -> None:
        self.sim = sim
        self.name = name
        self.alive = True
        self.started = False
        self.stopping = False
        self.process = stage.workers[slot]
        self.process.host = self
        self.process.store.transactions._free = FreeLines(sim)
        self.loop = SteppedLoop(sim.clock)
        client = stage.clients[slot]
        concurrency = sim.random.choice((1, 2, 8))
        self.crew = Crew(
            self.process.store,
            stage.app.registry,
            stage.app._hooks,
            Settings(concurrency=concurrency, lease=LEASE, grace=sim.random.choice((0.0, 0.5))),
            lambda id: client.info(UUID(id)),
            client,
            stage.app._timetable,
            stage.app.telemetry,
        )
        self.crew.runner._threads = SimulatedThreads(self)
        self.worker = Worker(self.crew, stage.app.registry)

    def add_errand(self, what: str, call: Callable[[], None]) -> None:
        if self.alive:
            self.sim.actors.append(Errand(f"{self.name}.{what}", call, self.sim.clock.micros))

    def start(self) -> None:
        """What a worker does before its loops begin; tried until the database lets it."""
        begin = True
        while True:
            try:
                if begin:
                    self.worker._startup.load()
                    self.worker._startup.connect()
                    begin = False
                self.crew.use(self.loop)
                self.crew.lanes.refresh()
                self.crew.heartbeat.tick()
                break
            except StoreUnavailable:
                self.worker._startup._started = False
                self.sim.pause(1.0)
        self.started = True
        crew = self.crew
        housekeepers = [loop for loop in crew.housekeepers if loop not in (crew.listener, crew.tallier)]
        loops = [crew.heartbeat, crew.alarms, crew.warden, crew.committer, *housekeepers, crew.claimer]
        self.sim.actors += [LoopActor(f"{self.name}.{loop.name}", loop, self.sim.clock) for loop in loops]
        self.sim.actors.append(EventLoopActor(f"{self.name}.author", self.loop))

    def stop(self) -> None:
        """As for SIGTERM: finish within the grace, hand the rest back; then the process ends."""
        self.worker._finish_or_cancel()
        self.worker._write_and_tell()
        self.worker._close(exiting=True)
        self.sim.kill(self, "when it was done")

    def leave_the_stage(self) -> None:
        if self.process.host is self:
            self.process.host = None
            self.process.database.forget_lines()

    # What its connections ask

    def arrive(self, what: str) -> None:
        self.sim.arrive(self.process, self, what)

    def leave(self, what: str) -> None:
        self.sim.leave(self.process, self, what)

    def committed(self, host: Host) -> None:
        self.sim.committed(self.name)

    def rolled_back(self) -> None:
        self.sim.mirror.rolled_back()

    def pause(self, seconds: float | None) -> None:
        self.sim.pause(seconds)

    def go_on(self, stopped: greenlet) -> None:
        self.sim.go_on(stopped)
