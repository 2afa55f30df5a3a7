"""A simulated worker: real components whose loops and threads are stepped by the simulation."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from greenlet import greenlet

from holdfast.engine.components import WorkerComponents, WorkerSettings
from holdfast.engine.runner import STALL_S
from holdfast.engine.threads import ThreadCall
from holdfast.engine.worker import Worker
from holdfast.errors import StoreUnavailable
from holdfast.store.step_transactions import MAX_STEP_TRANSACTIONS
from tests.proof.environment import Environment
from tests.proof.faulty_database import ProcessHooks
from tests.proof.simulated_threads import CallThread, EventLoopThread, LoopThread
from tests.proof.virtual_time import SECOND_US, SteppedLoop
from tests.proof.workload import SIDE, SIDE_SLOTS

if TYPE_CHECKING:
    from tests.proof.simulation import Simulation

LEASE_S = 2.0
MARGIN_S = 0.01


class SimulatedThreadPool:
    """A pool whose threads, which run task code, are stepped by the simulation."""

    def __init__(self, worker: SimulatedWorker) -> None:
        self._worker = worker
        self.lost = 0
        self.unreturned = 0
        self.lock = threading.Lock()

    def run(self, call: Callable[[], None]) -> ThreadCall:
        context = contextvars.Context()
        self.unreturned += 1
        handle = ThreadCall(self, call)
        self._worker.add_thread("thread", partial(context.run, handle))
        return handle

    def shrink(self) -> bool:
        """Report that no thread is left: the simulation has no idle threads."""
        return False

    def close(self, wait_s: float = 0.0) -> None:
        """Do nothing, because the threads end by themselves."""


class FreeConnections:
    """Unused connections for step transactions; a greenlet that waits for one yields."""

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self._free = [f"transaction-{number + 1}" for number in range(MAX_STEP_TRANSACTIONS)]

    def get(self, timeout: float) -> str:
        while not self._free:
            self._sim.pause(0.01)
        return self._free.pop(0)

    def put(self, line: str) -> None:
        self._free.append(line)


class SimulatedWorker:
    """One worker process."""

    def __init__(self, sim: Simulation, environment: Environment, slot: int, name: str, has_side: bool) -> None:
        self.sim = sim
        self.name = name
        self.alive = True
        self.started = False
        self.stopping = False
        self.process = environment.workers[slot]
        self.process.hooks = self
        self.process.store.step_transactions._free = FreeConnections(sim)
        self.loop = SteppedLoop(sim.clock)
        client = environment.clients[slot]
        concurrency = sim.random.choice((1, 2, 8))
        self.has_side = has_side
        self.components = WorkerComponents(
            self.process.store,
            environment.app.registry,
            environment.app._hooks,
            WorkerSettings(
                concurrency=concurrency + (SIDE_SLOTS if has_side else 0),
                queue_slots={SIDE: SIDE_SLOTS} if has_side else {},
                labels={SIDE: "yes"} if has_side else {},
                lease=LEASE_S,
                grace=sim.random.choice((0.0, 0.5)),
                max_resident=sim.random.choice((0, 1, 1000)),
            ),
            lambda id: client.info(UUID(id)),
            client,
            environment.app._schedule_registry,
            environment.app.telemetry,
        )
        self.components.runner._threads = SimulatedThreadPool(self)
        self.components.on_unhealthy = self._restart_soon
        self.worker = Worker(self.components, environment.app.registry)
        self.author: EventLoopThread | None = None
        self._lease_guard: LoopThread | None = None
        self._claimer: LoopThread | None = None
        self._noticed_at: int | None = None
        self._restarting = False

    def add_thread(self, what: str, call: Callable[[], None]) -> None:
        if self.alive:
            self.sim.threads.append(CallThread(f"{self.name}.{what}", call, self.sim.clock.micros))

    def start(self) -> None:
        """Start the worker, retrying while the database is unavailable, then add its loops to the simulation."""
        begin = True
        while True:
            try:
                if begin:
                    self.worker._startup.load()
                    self.worker._startup.connect()
                    begin = False
                self.components.set_event_loop(self.loop)
                self.components.lanes.refresh()
                self.components.heartbeat.tick()
                break
            except StoreUnavailable:
                self.worker._startup._started = False
                self.sim.pause(1.0)
        self.started = True
        components = self.components
        housekeepers = [
            loop for loop in components.background_loops if loop not in (components.listener, components.stats)
        ]
        loops = [
            components.heartbeat,
            components.timer_thread,
            components.lease_guard,
            components.committer,
            *housekeepers,
            components.claimer,
        ]
        threads = {loop: LoopThread(f"{self.name}.{loop.name}", loop, self.sim.clock) for loop in loops}
        self._lease_guard, self._claimer = threads[components.lease_guard], threads[components.claimer]
        self.author = EventLoopThread(f"{self.name}.author", self.loop)
        self.sim.threads += [*threads.values(), self.author]

    def stop(self) -> None:
        """Stop as after SIGTERM: finish within the grace period, release the rest, end the process."""
        self.worker._finish_or_cancel()
        self.worker._flush_and_notify()
        self.worker._close(exiting=True)
        self.sim.kill(self, "when it was done")

    # A blocked event loop

    @property
    def blocked(self) -> bool:
        return self.author is not None and self.author.blocked_since is not None

    def tasks_on_loop(self) -> list[asyncio.Task[Any]]:
        """Return the asyncio tasks that execute attempts and may block the loop."""
        handles = [
            attempt.loop_task for attempt in self.components.state.claimed().values() if attempt.run_in == "loop"
        ]
        return [handle for handle in handles if handle is not None and not handle.done()]

    def watch_blocked_loop(self) -> None:
        """Record when the lease guard first checked a blocked loop. Called after each step."""
        if not self.blocked:
            self._noticed_at = None
        elif self._noticed_at is None and self._lease_guard is not None and self.author is not None:
            since = self.author.blocked_since
            if since is not None and self._lease_guard.began_at > since and not self._lease_guard.under_way:
                self._noticed_at = self.sim.clock.micros

    def may_claim(self) -> bool:
        """Return whether the claim began before the worker had to know that its event loop is blocked."""
        began_at = self.claim_began_at()
        if self._noticed_at is None or began_at is None:
            return True
        return began_at <= self._noticed_at + (STALL_S + MARGIN_S) * SECOND_US

    def claim_began_at(self) -> int | None:
        """Return when the claim of the current thread began: with the claimer's tick."""
        return None if self._claimer is None else self._claimer.began_at

    def _restart_soon(self, _reason: str) -> None:
        """Let the supervisor restart the worker after two leases, in which released runs are written."""
        if not self._restarting:
            self._restarting = True
            due = self.sim.clock.micros + 2 * int(LEASE_S * SECOND_US)
            self.sim.threads.append(CallThread(f"supervisor of {self.name}", self._restart, due))

    def _restart(self) -> None:
        if self.alive:
            self.sim.kill(self, "because it is unhealthy")
            self.sim.start_worker()

    def detach(self) -> None:
        if self.process.hooks is self:
            self.process.hooks = None
            self.process.database.forget_connections()

    # Hooks of its connections

    def before_transaction(self, what: str) -> None:
        self.sim.before_transaction(self.process, self, what)

    def before_reply(self, what: str) -> None:
        self.sim.before_reply(self.process, self, what)

    def committed(self, hooks: ProcessHooks) -> None:
        self.sim.committed(self.name, self)

    def rolled_back(self) -> None:
        self.sim.replica.rolled_back()

    def pause(self, seconds: float | None) -> None:
        self.sim.pause(seconds)

    def resume(self, stopped: greenlet) -> None:
        self.sim.resume(stopped)
