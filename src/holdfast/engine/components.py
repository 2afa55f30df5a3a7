"""The components of one worker process, wired together. `worker.py` starts and stops them."""

from __future__ import annotations

import asyncio
import hashlib
import json
import resource
import secrets
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.engine.attempt import Attempt, Session, StopReason, WorkerState, worker_name
from holdfast.engine.durable.async_executor import AsyncExecutor
from holdfast.engine.durable.resident import ResidentFunctions
from holdfast.engine.event_loop import StallHandler
from holdfast.engine.executors import Executors
from holdfast.engine.hooks import FailureNotifier, Hooks, Lifespan
from holdfast.engine.instrumentation import WorkerTelemetry
from holdfast.engine.loops.base import Loop
from holdfast.engine.loops.claimer import Claimer
from holdfast.engine.loops.committer import Committer
from holdfast.engine.loops.heartbeat import FreezeDetector, Heartbeat, LeaseGuard, OutageDetector
from holdfast.engine.loops.known_lanes import KnownLanes
from holdfast.engine.loops.listener import CommitListener
from holdfast.engine.loops.maintenance import KEEP_AUDIT_MICROS, Pruner, StatsAggregator
from holdfast.engine.loops.recovery import RecoveryLoop
from holdfast.engine.loops.scheduler import Scheduler
from holdfast.engine.loops.timers import TimerLoop
from holdfast.engine.loops.trigger_poller import TriggerPoller
from holdfast.engine.loops.wait_poller import WaitPoller
from holdfast.engine.placement import MAX_CONCURRENCY, check_int, check_queues
from holdfast.engine.remote_call import RemoteCall
from holdfast.engine.runner import LoopMonitor, Runner
from holdfast.engine.services import ClientServices, ResidentWaiter, retry_while_unavailable
from holdfast.engine.threads import ThreadCall, TimerThread
from holdfast.engine.virtual_time import VirtualTimeFollower
from holdfast.engine.write_queue import WriteQueue
from holdfast.errors import ConfigError
from holdfast.model.asks import FollowedWrites
from holdfast.model.clock import MICROS_PER_SECOND, Duration, to_micros
from holdfast.model.labels import check_labels
from holdfast.model.run_logs import Logs
from holdfast.store import AttemptEnd, Store
from holdfast.store.commands import NewCheckpoint, WaitOutcome
from holdfast.store.module import ResolvedWait
from holdfast.store.sessions import WakeAddress
from holdfast.task.registry import Registry
from holdfast.task.schedule_registry import ScheduleRegistry
from holdfast.telemetry import Telemetry, log

if TYPE_CHECKING:
    from holdfast.engine.run_logs import LogCollector

MIN_LEASE_S = 0.5
FREEZE_SHARE = 1 / 4
"""A process whose threads stand still for this share of the lease is frozen. Its supervisor then kills it if it holds
the write lock of a SQLite file, in time for the other workers to renew their leases."""
MIN_FREEZE_S = 1.0
MAX_REPORTED_TASKS = 1000
"""How many task names a worker stores in its session row."""


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """The settings of a worker. Durations are seconds, except those that begin with `keep`: microseconds."""

    queues: Sequence[str] | None = None
    queue_slots: Mapping[str, int] = field(default_factory=dict)
    """The queues that have slots of their own; the others share the rest of `concurrency`."""
    labels: Mapping[str, str] = field(default_factory=dict)
    concurrency: int = 100
    threads: int = 40
    lease: float = 60.0
    grace: float = 25.0
    keep_events: int = 30 * 24 * 3600 * MICROS_PER_SECOND
    keep_audit: int = KEEP_AUDIT_MICROS
    keep_keys: int | None = None
    wait_for_database: bool = False
    max_resident: int = 1000
    max_resident_bytes: int = 64 * 1024 * 1024
    logs: Logs | None = None

    @classmethod
    def checked(
        cls,
        *,
        queues: Sequence[str] | Mapping[str, int | None] | None,
        concurrency: int | None,
        labels: Mapping[str, str] | None,
        threads: int,
        lease: Duration,
        grace: Duration,
        max_resident: int,
        max_resident_bytes: int,
        **others: Any,
    ) -> WorkerSettings:
        """Check settings as they are written in code. Raises ConfigError."""
        served = check_queues(queues, concurrency)
        return cls(
            queues=served.names,
            queue_slots=served.slots,
            concurrency=served.concurrency,
            labels=check_labels({} if labels is None else labels, "labels"),
            threads=check_int(threads, "threads", 1, MAX_CONCURRENCY),
            lease=_checked_lease(lease),
            grace=to_micros(grace, "grace") / MICROS_PER_SECOND,
            max_resident=check_int(max_resident, "max_resident", 0),
            max_resident_bytes=check_int(max_resident_bytes, "max_resident_bytes", 0),
            **others,
        )


def _checked_lease(lease: Duration) -> float:
    seconds = to_micros(lease, "lease") / MICROS_PER_SECOND
    if seconds < MIN_LEASE_S:
        raise ConfigError(f"lease must be at least {MIN_LEASE_S} s, not {seconds:g} s")
    return seconds


def _memory_bytes() -> int:
    """Return the resident memory of this process, or elsewhere than on Linux the most that it ever had."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024


class WorkerComponents:
    """The loops and services of one worker, and the signals between them.

    Data flows from the claimer through the runner and the write queue to the committer. Signals only wake loops
    earlier than they would wake by themselves.
    """

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
        self.settings = settings
        self.telemetry: WorkerTelemetry | None = None
        self.on_unhealthy: Callable[[str], None] | None = None
        """Called with the reason when the worker should be restarted."""
        self.on_session: Callable[[str], None] | None = None
        """Called with the id of each session before it is opened."""
        self.on_progress: Callable[[float], None] | None = None
        """Called regularly while the threads of this process run, with the seconds after which silence is a freeze."""
        self._registry = registry
        self._schedule_registry = schedule_registry
        self._client = client
        lease = settings.lease
        self.state = state = WorkerState()
        self.queue = WriteQueue()
        self.lifespan = Lifespan(hooks)
        self.timer_thread = TimerThread()
        self.monitor = LoopMonitor()
        self.residents = ResidentFunctions(settings.max_resident, settings.max_resident_bytes)
        self.runner = runner = Runner(
            settings.concurrency, settings.threads, state, self.queue, self.timer_thread, self.monitor, hooks,
            self.residents, Executors(registry.executors), store.payloads.limit, settings.queue_slots,
        )  # fmt: skip
        self.failures = FailureNotifier(
            hooks, read_info, runner.run_in_thread, lambda: runner.loop, self.timer_thread, runner.notify_if_free
        )
        self.lanes = KnownLanes(store, registry, settings.queues, settings.labels, runner.pools)
        self.claimer = Claimer(store, state, self.lanes, runner, self.queue, self.monitor, self.failures, lease)
        runner.on_free_slot, self.monitor.on_recovered = self.claimer.slot_freed, self.claimer.wake
        self.committer = Committer(
            store,
            state,
            self.queue,
            self.claimer,
            self.failures.notify,
            self._after_commit,
            self._stop_lost_attempts,
            self.residents.confirm,
            self.residents.reject,
        )
        self.wait_poller = WaitPoller(store)
        freezes = FreezeDetector(state, lease)
        outages = OutageDetector(lease, freezes)
        self.heartbeat = Heartbeat(
            store, state, runner, lease, freezes, outages, self._new_session, self.lose_session, self._status
        )
        self.stall_handler = StallHandler(
            self.monitor, runner, state, lease, self.heartbeat.renew_soon, self._report_unhealthy
        )
        self.lease_guard = LeaseGuard(
            store, state, lease, freezes, self.lose_session, self.stall_handler, self._report_progress
        )
        self.recovery = RecoveryLoop(store, state, self.failures.notify, freezes, outages)
        claimer = self.claimer
        self.timers = TimerLoop(
            store, self._runs_became_ready, self.failures.notify, lambda: claimer.poll_interval_s
        )  # fmt: skip
        claimer.on_notified = self.timers.wake
        self.scheduler = Scheduler(store, schedule_registry, client, self._runs_became_ready)
        self.trigger_poller = TriggerPoller(
            store, schedule_registry, client, self._runs_became_ready, runner.run_in_thread, lambda: runner.loop
        )
        self.pruner = Pruner(store, settings.keep_events, settings.keep_audit, settings.keep_keys)
        self.stats = StatsAggregator(store)
        self.wake_channel = f"holdfast.{secrets.token_hex(8)}"
        self.listener = CommitListener(
            store, self.wake_channel, self._others_committed, self._client_committed, claimer.client_claim,
            lambda run: state.find(run) is not None,
        )  # fmt: skip
        self.virtual_time = VirtualTimeFollower(self)
        runner.services = ExecutorServices(self, client)
        self.log_collector: LogCollector | None = None
        if settings.logs is not None:
            from holdfast.engine.run_logs import LogCollector

            self.log_collector = LogCollector(settings.logs, self.queue, self.timer_thread, store.payloads)
            runner.log_collector = self.committer.log_collector = self.log_collector
        if telemetry.on:
            self.telemetry = WorkerTelemetry(
                telemetry, self.lanes.queues, store.events.trace_context, self._gauges, store.queues.oldest_ready,
                store.claims.waits,
            )  # fmt: skip
            self.claimer.telemetry = self.claimer.batches.telemetry = self.committer.telemetry = self.telemetry
            self.heartbeat.on_missed_renewal = self.telemetry.lease_missed

    def set_event_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Set the event loop for user code."""
        self.runner.set_event_loop(loop)
        self.committer.set_event_loop(loop)

    # The loops in groups, for starting and stopping

    @property
    def background_loops(self) -> list[Loop]:
        """The loops that a worker can stop without harm to its running attempts."""
        return [self.listener, self.recovery, self.pruner, self.stats, self.wait_poller, *self.clock_loops]

    @property
    def clock_loops(self) -> list[Loop]:
        """The loops that make runs ready when their time has come. A drain ticks them itself."""
        return [self.timers, self.scheduler, *([self.trigger_poller] if self._schedule_registry.triggers else [])]

    @property
    def core_loops(self) -> list[Loop]:
        """The loops that attempts depend on, in the order in which they stop."""
        return [self.committer, self.timer_thread, self.lease_guard, self.heartbeat]

    # State

    def is_idle(self) -> bool:
        """Return whether nothing is claimed here, and no run of this worker's lanes is ready or running anywhere."""
        if len(self.state) or self.runner.busy_slots or self.queue.backlog or self.trigger_poller.busy:
            return False
        self.lanes.refresh()
        return not self.store.claims.has_active(self.lanes.tasks)

    def lose_session(self, session: Session, reason: str) -> None:
        """End a session whose lease has expired or will expire: stop its attempts, without writing anything."""
        claimed = self.state.end(session)
        if claimed is None:
            return
        attempts = [attempt for attempt in claimed if not attempt.stopped]
        log.session_lost(session.id, reason, sorted(attempt.label for attempt in attempts))
        self.runner.stop(attempts, "lost")
        self.state.remove(attempts)
        self.residents.close()  # they continue only in the session in which they were suspended
        self.claimer.wake()  # attempts whose ends were being written no longer take up slots
        self.heartbeat.wake()

    def _new_session(self) -> Session:
        tasks = self._registry.names()
        known = sorted(tasks) if len(tasks) <= MAX_REPORTED_TASKS else None
        in_threads = sorted(name for name, task in tasks.items() if task.uses_threads)
        in_processes = sorted(name for name, task in tasks.items() if task.declaration.run_in == "process")
        requires = {name: task.declaration.requires for name, task in tasks.items() if task.declaration.requires}
        prefers = {name: task.declaration.prefers for name, task in tasks.items() if task.declaration.prefers}
        info = {
            "queues": self.settings.queues, "concurrency": self.settings.concurrency, "tasks": known,
            "process_slots": self.runner.process_slots, "process_tasks": in_processes[:MAX_REPORTED_TASKS],
            "thread_slots": self.runner.threads, "thread_tasks": in_threads[:MAX_REPORTED_TASKS],
            "app": self._schedule_registry.app, "schedules": self.scheduler.digests(),
            "subscriptions": self.scheduler.subscription_digests(),
            "labels": self.settings.labels, "queue_slots": self.settings.queue_slots,
            "requires": dict(sorted(requires.items())[:MAX_REPORTED_TASKS]),
            "prefers": dict(sorted(prefers.items())[:MAX_REPORTED_TASKS]),
            "version": metadata.version("holdfast"),
        }  # fmt: skip
        unpreferred = self.lanes.unpreferred(tasks)
        served = [f"{name} (left)" if name in unpreferred else name for name in self.lanes.served(tasks)]
        session = Session(worker_name(), json.dumps(info), self._wake_address(served))
        if self.on_session is not None:
            self.on_session(session.id)
        return session

    def _wake_address(self, tasks: Iterable[str]) -> WakeAddress:
        channel = self.wake_channel if self.store.database.can_listen else ""
        queues = None if self.settings.queues is None else sorted(self.settings.queues)
        return WakeAddress(channel, hashlib.sha256(json.dumps([queues, sorted(tasks)]).encode()).hexdigest()[:16])

    def _status(self) -> str:
        """Return the worker's health as JSON, for its session row."""
        return msgspec.json.encode(msgspec.structs.replace(self.stall_handler.status, memory=_memory_bytes())).decode()

    def _gauges(self) -> dict[str, float]:
        runner = self.runner
        return {
            "holdfast.slots": runner.concurrency, "holdfast.slots.busy": runner.busy_slots,
            "holdfast.backlog": self.queue.backlog, "holdfast.loop.lag": self.monitor.lag,
            "holdfast.threads.lost": runner.lost_threads, "holdfast.failure_hooks.pending": self.failures.pending,
        }  # fmt: skip

    # Signals between the components

    def _after_commit(
        self,
        ended: Mapping[str, AttemptEnd | None],
        followed: FollowedWrites,
        affects_others: bool,
        left_ready: bool,
    ) -> None:
        """Wake what may continue after a commit: clients that wait for ended runs or follow streams, waiting functions,
        the claimer."""
        if ended:
            self._client.wake_result_waiters(ended)
        if followed:
            self._client.wake_followers(followed)
        if affects_others and self.wait_poller.waiters:
            self.wait_poller.poll_soon()
        if self.runner.free_slots() > 0:  # a slot counts as free only when the end of its last run is durable
            if left_ready:
                self.claimer.wake()
            else:
                self.claimer.slot_freed()

    def _runs_became_ready(self) -> None:
        if self.wait_poller.waiters:
            self.wait_poller.poll_soon()
        self.claimer.wake()

    def _client_committed(self, resolved: Sequence[ResolvedWait], has_ready: bool) -> None:
        """Hand the outcomes of waits to the functions in this worker; wake what may find more."""
        for each in resolved:
            attempt = self.state.find(each.run)
            if attempt is not None and attempt.resolve_wait is not None and attempt.claim.generation == each.generation:
                attempt.resolve_wait(each.key, WaitOutcome(each.outcome, each.value))
        if has_ready:
            self._runs_became_ready()

    def _others_committed(self) -> None:
        self.claimer.notified()  # which wakes the timers after its claim: they share a connection
        self._runs_became_ready()

    def _stop_lost_attempts(self, attempts: list[Attempt]) -> None:
        """Stop attempts whose write was rejected: another worker has the run, or it was ended."""
        for attempt in attempts:
            log.result_discarded(attempt.claim.id, attempt.task.name, attempt.claim.attempt, **attempt.log_fields())
        self.runner.stop(attempts, "lost")

    def _report_progress(self) -> None:
        if self.on_progress is not None:
            self.on_progress(max(self.settings.lease * FREEZE_SHARE, MIN_FREEZE_S))

    def _report_unhealthy(self, reason: str) -> None:
        if self.on_unhealthy is not None:
            self.on_unhealthy(reason)


class ExecutorServices:
    """What the executors of durable functions use of a worker: its `WorkerServices`."""

    def __init__(self, components: WorkerComponents, client: ClientServices) -> None:
        self.store = components.store
        self.client = client
        self.submit, self.submit_ahead = components.queue.submit, components.queue.submit_ahead
        self.executors = components.runner.executors
        self._components = components

    def run_in_thread(self, call: Callable[[], None]) -> ThreadCall:
        return self._components.runner.run_in_thread(call)

    def call_in_executor(self, executor: str, call: RemoteCall) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(self.executors.call(executor, call), self._components.runner.loop)

    def watch(self, waiter: ResidentWaiter, *, is_timed: bool) -> None:
        self._components.wait_poller.add(waiter)
        if is_timed:
            self._components.timers.wake()

    def stop(self, attempt: Attempt, reason: StopReason) -> None:
        self._components.runner.stop([attempt], reason)

    def suspend(self, executor: AsyncExecutor) -> bool:
        return self._components.runner.suspend(executor)

    def is_claimed(self, run: str) -> bool:
        return self._components.state.find(run) is not None

    def has_free_slots(self) -> bool:
        return self._components.runner.free_slots() > 0

    def read(self, attempt: Attempt, read: Callable[[], Any]) -> Any:
        return retry_while_unavailable(attempt, read)

    def transact(self, attempt: Attempt, record: NewCheckpoint, run: Callable[[Any], str]) -> str | None:
        transact = self.store.step_transactions.run
        text = retry_while_unavailable(
            attempt,
            lambda: transact(
                attempt.session, record, run, lambda: attempt.stop_reason is not None, attempt.claim.tenant
            ),
        )
        if text is None:
            self._components._stop_lost_attempts([attempt])
        return text
