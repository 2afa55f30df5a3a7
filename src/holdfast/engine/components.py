"""All loops of one worker process, wired together. How they are started and stopped is in `worker.py`."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from holdfast.engine.attempt import Attempt, Order
from holdfast.engine.event_loop import LoopMonitor, StallHandler
from holdfast.engine.hooks import FailureNotifier, Hooks, Lifespan
from holdfast.engine.instrumentation import WorkerTelemetry
from holdfast.engine.loops.base import Loop
from holdfast.engine.loops.claimer import Claimer, KnownLanes
from holdfast.engine.loops.committer import Committer
from holdfast.engine.loops.heartbeat import FreezeDetector, Heartbeat, LeaseGuard
from holdfast.engine.loops.listener import CommitListener
from holdfast.engine.loops.maintenance import Pruner, StatsAggregator
from holdfast.engine.loops.recovery import RecoveryLoop
from holdfast.engine.loops.scheduler import Scheduler
from holdfast.engine.loops.timers import TimerLoop
from holdfast.engine.loops.trigger_poller import TriggerPoller
from holdfast.engine.loops.wait_poller import WaitPoller
from holdfast.engine.runner import Runner
from holdfast.engine.services import ClientServices, ResidentWaiter, retry_while_unavailable
from holdfast.engine.session import Session, WorkerState, worker_name
from holdfast.engine.threads import ThreadCall, TimerThread
from holdfast.engine.virtual_time import VirtualTimeFollower
from holdfast.engine.write_queue import AttemptEnd
from holdfast.model.clock import MICROS_PER_SECOND
from holdfast.store import Store
from holdfast.store.commands import NewCheckpoint
from holdfast.task.registry import Registry
from holdfast.task.schedule_registry import ScheduleRegistry
from holdfast.telemetry import Telemetry, log


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """How a worker works. Times are seconds, but for how long events are kept: microseconds."""

    queues: Sequence[str] | None = None
    concurrency: int = 100
    lease: float = 60.0
    grace: float = 30.0
    keep_events: int = 30 * 24 * 3600 * MICROS_PER_SECOND
    wait_for_database: bool = False


MOST_NAMES = 1000
"""How many tasks a worker names in what it says of itself."""


class WorkerComponents:
    """The organs of a worker and the few nerves between them."""

    def __init__(
        self,
        store: Store,
        registry: Registry,
        hooks: Hooks,
        settings: WorkerSettings,
        read_info: Callable[[str], Any],
        client: ClientServices,
        schedule_registry: ScheduleRegistry,
        telemetry: Telemetry,
    ) -> None:
        self.store = store
        self.telemetry: WorkerTelemetry | None = None
        self._schedule_registry = schedule_registry
        self.client = client
        self.settings = settings
        self.state = WorkerState()
        self.lifespan = Lifespan(hooks)
        self._registry = registry
        lease = settings.lease
        self.timer_thread = TimerThread()
        self.monitor = LoopMonitor(self._loop_recovered)
        self.runner = Runner(
            settings.concurrency,
            self._ended,
            self._let_go,
            self._slot_freed,
            self.state.__len__,
            self.timer_thread,
            self.monitor,
            hooks.between,
        )
        self.runner.serve(self)
        self.failures = FailureNotifier(
            hooks, read_info, self.runner.run_in_thread, lambda: self.runner.loop, self.timer_thread, self._slot_freed
        )
        self.lanes = KnownLanes(store, registry, settings.queues)
        self.committer = Committer(store, self.state, self.failures.notify, self._written, self._lost)
        self.submit = self.committer.queue.submit
        self.wait_poller = WaitPoller(store)
        self.claimer = Claimer(store, self.state, self.lanes, self.runner, self.committer.queue, self.monitor, lease)
        self.claimer.may_claim = self.failures.has_room
        freezes = FreezeDetector(self.state, lease)
        self.heartbeat = Heartbeat(
            store, self.state, self.runner, lease, freezes, self._new_session, self.lose, self._status
        )
        self.stall_handler = StallHandler(
            self.monitor, self.runner, self.state, lease, self.heartbeat.renew_soon, self._unhealthy
        )
        self.lease_guard = LeaseGuard(store, self.state, lease, freezes, self.lose, self.stall_handler)
        self.recovery = RecoveryLoop(store, self.failures.notify, lease, freezes)
        self.timers = TimerLoop(store, self._promoted, self.failures.notify)
        self.scheduler = Scheduler(store, schedule_registry, client, self._promoted)
        self.trigger_poller = TriggerPoller(
            store, schedule_registry, client, self._promoted, self.runner.run_in_thread, lambda: self.runner.loop
        )
        self.pruner = Pruner(store, settings.keep_events)
        self.stats = StatsAggregator(store)
        self.listener = CommitListener(store, self._heard)
        self.virtual_time = VirtualTimeFollower(self)
        self.on_unhealthy: Callable[[str], None] | None = None
        """Called with the reason when the worker should be restarted."""
        self.on_session: Callable[[str], None] | None = None
        """Called with the id of each session before it is opened."""
        if telemetry.on:
            self.telemetry = WorkerTelemetry(telemetry, self.lanes.queues, store.events.trace_context, self._gauges)
            self.claimer.telemetry = self.committer.telemetry = self.telemetry

    def _gauges(self) -> dict[str, float]:
        runner = self.runner
        return {
            "holdfast.slots": runner.concurrency, "holdfast.slots.busy": runner.taken,
            "holdfast.backlog": self.committer.queue.backlog, "holdfast.loop.lag": self.monitor.lag,
            "holdfast.threads.lost": runner.lost_threads, "holdfast.failure_hooks.pending": self.failures.pending,
        }  # fmt: skip

    @property
    def housekeepers(self) -> list[Loop]:
        return [self.listener, self.recovery, self.pruner, self.stats, self.wait_poller, *self.clocks]

    @property
    def clocks(self) -> list[Loop]:
        """Those that let runs begin by the clock. A drain turns them itself, to know when it is done."""
        by_need = (
            (self._schedule_registry.schedules, self.scheduler),
            (self._schedule_registry.triggers, self.trigger_poller),
        )
        return [self.timers, *(loop for needed, loop in by_need if needed)]

    def lose(self, session: Session, why: str) -> None:
        """The session is over: author code stops, nothing of it is written any more, a new session follows."""
        in_hand = self.state.end(session)
        if in_hand is None:
            return
        attempts = [attempt for attempt in in_hand if not attempt.over]
        log.session_lost(session.id, why, sorted(attempt.label for attempt in attempts))
        self.runner.stop(attempts, "lost")
        self.state.remove(attempts)
        self.heartbeat.wake()

    def quiet(self) -> bool:
        """Whether nothing is in hand and nothing that we could run is ready or running anywhere."""
        if len(self.state) or self.runner.taken or self.committer.queue.backlog or self.trigger_poller.busy:
            return False
        self.lanes.refresh()
        return not self.store.claims.has_active(self.lanes.tasks)

    def wait_until(
        self, reached: Callable[[], bool], seconds: float, hurry: Callable[[], bool] = lambda: False
    ) -> bool:
        """Wait for a condition, at most so long, or until there is a hurry."""
        deadline = time.monotonic() + seconds
        while not reached():
            if time.monotonic() >= deadline or hurry():
                return reached()
            time.sleep(0.005)
        return True

    def unfinished(self) -> list[Attempt]:
        """Attempts whose author code is still running."""
        return [attempt for attempt in self.state.in_hand().values() if not attempt.over]

    def _new_session(self) -> Session:
        tasks = self._registry.names()
        known = sorted(tasks) if len(tasks) <= MOST_NAMES else None
        in_processes = sorted(name for name, task in tasks.items() if task.declaration.run_in == "process")
        info = {
            "queues": self.settings.queues, "concurrency": self.settings.concurrency, "tasks": known,
            "process_slots": self.runner.process_slots, "process_tasks": in_processes[:MOST_NAMES],
        }  # fmt: skip
        session = Session(worker_name(), json.dumps(info))
        if self.on_session is not None:
            self.on_session(session.id)
        return session

    def _status(self) -> str | None:
        """The worker's health, as its session reports it; None when there is nothing to say."""
        status = msgspec.json.encode(self.stall_handler.status).decode()
        return None if status == "{}" else status

    def _unhealthy(self, reason: str) -> None:
        if self.on_unhealthy is not None:
            self.on_unhealthy(reason)

    def _loop_recovered(self) -> None:
        self.claimer.wake()

    # What durable functions need (`WorkerServices`)

    def use(self, loop: asyncio.AbstractEventLoop) -> None:
        """The event loop for author code."""
        self.runner.use(loop)
        self.committer.set_event_loop(loop)

    def run_in_thread(self, call: Callable[[], None]) -> ThreadCall:
        return self.runner.run_in_thread(call)

    def watch(self, waiting: ResidentWaiter) -> None:
        self.wait_poller.watch(waiting)
        self.timers.wake()

    def stop(self, attempt: Attempt, order: Order) -> None:
        self.runner.stop([attempt], order)

    def has_free_slots(self) -> bool:
        return self.runner.free() > 0

    def read(self, attempt: Attempt, read: Callable[[], Any]) -> Any:
        return retry_while_unavailable(attempt, read)

    def transact(self, attempt: Attempt, command: NewCheckpoint, work: Callable[[Any], str]) -> str | None:
        run = self.store.step_transactions.run
        text = retry_while_unavailable(
            attempt, lambda: run(attempt.session, command, work, lambda: attempt.order is not None)
        )
        if text is None:
            self._lost([attempt])
        return text

    # What the organs tell each other

    def _lost(self, attempts: list[Attempt]) -> None:
        """Something that was said about these runs was refused: they are somebody else's, or were ended."""
        for attempt in attempts:
            log.result_discarded(attempt.claim.id, attempt.task.name, attempt.claim.attempt)
        self.runner.stop(attempts, "lost")

    def _ended(self, attempt: Attempt, end: Any) -> None:
        if attempt.watched is not None:
            attempt.watched.end(end)
        size = len(end.result or "") + len(end.error or "") + len(end.args or "")
        self.submit(AttemptEnd(attempt, end, size))

    def _let_go(self, attempt: Attempt) -> None:
        if attempt.watched is not None:
            attempt.watched.end(None)
        self.submit(AttemptEnd(attempt, None))

    def _slot_freed(self) -> None:
        if self.runner.free() > 0:
            self.claimer.wake()

    def _written(self) -> None:
        self.client.ended()
        self.wait_poller.stir()
        if self.runner.free() > 0:
            self.claimer.wake()

    def _promoted(self) -> None:
        self.wait_poller.stir()
        self.claimer.wake()

    def _heard(self) -> None:
        self.wait_poller.stir()
        self.claimer.wake()
        self.timers.wake()
