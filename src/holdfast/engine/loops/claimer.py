"""The claimer takes ready runs from the queue for the free slots of its worker.

While there is work, it claims without pauses; otherwise it waits until it is woken. A claimed run counts as claimed at
once, so that the heartbeat knows it, although it starts only when all claims of the round are made and its history is
loaded. If any of that fails, the claimed runs are released. `docs/claims.md` explains how a claim works.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from typing import Any

from holdfast.engine.attempt import Attempt, Session, WorkerState
from holdfast.engine.batches import BatchCollector
from holdfast.engine.durable.resident import ResidentFunctions
from holdfast.engine.hooks import FailureNotifier
from holdfast.engine.instrumentation import WorkerTelemetry
from holdfast.engine.loops.base import UNTIL_WOKEN_S, Loop
from holdfast.engine.runner import LoopMonitor, Runner
from holdfast.engine.write_queue import WriteQueue
from holdfast.errors import PayloadError, StoreError
from holdfast.store import Claim, Store
from holdfast.store.claims import claim_size
from holdfast.store.commands import LoadedHistory
from holdfast.store.module import CORRUPT_DATA, Tx
from holdfast.task.fakes import active_fakes, fake_remote_tasks, fake_task
from holdfast.task.registry import Registry
from holdfast.task.task import Task
from holdfast.telemetry import log

POLL_INTERVAL_S = 1.0
MAX_IDLE_POLL_INTERVAL_S = 4.0
IDLE_POLLERS = 8
"""While more workers than this are idle, each polls less often: together they still poll several times a second."""
QUIET_PAUSE_S = 0.02
"""The pause after a claim that left most slots free: unless a run is announced, nothing is ready."""
CONTENDED_PAUSE_S = 0.005
MAX_CONTENDED_PAUSE_S = 0.04
"""The pauses after claims that found nothing although runs are ready: other workers were faster."""
MAX_BACKLOG_WRITES = 2000
"""With more unwritten ends and checkpoints, the worker claims nothing."""
BACKLOG_PAUSE_S = 0.01
MAX_COMMIT_CLAIM_RUNS = 8
"""More runs than this that become ready with one commit are left to the claimer, which claims while others commit."""
SMALL_CLAIM_DIVISOR = 16
SATURATED_PAUSE_S = 0.005
"""While the queue is longer than the free slots, a claim for less than 1/`SMALL_CLAIM_DIVISOR` of all slots is delayed
by this much: claiming many runs at once costs little more than claiming one."""
MAX_CLAIM_LANES = 250
"""A claim looks into each lane, so of more lanes than this it gets only those that have ready runs."""
MIN_HAND_ON_INTERVAL_S = 0.02
MAX_HAND_ON_INTERVAL_S = 0.5
"""How often a worker whose slots are full wakes another one: seldom after it found no idle one."""
RECENT_CLAIM_S = 2.0
"""A lane that gave runs within this time is claimed from without looking for ready runs first: its index entries of
claimed runs, which remain until vacuum, would slow that down."""
ISOLATION_POLL_INTERVAL_S = 0.5
ISOLATION_PATIENCE_S = 0.5
"""How long a worker with claimed runs leaves isolated ones to a worker without any."""


class KnownLanes:
    """The lanes (pairs of queue and task) that this worker can run: its queues, and the tasks in its code.

    There can be any number of lanes, most of them empty, such as a queue per customer. If they are many, claims get
    those with ready runs, the most urgent first. A run in a lane that had none is found like one in a new lane: at once
    by a worker that found nothing, and within a second by a busy one.
    """

    def __init__(self, store: Store, registry: Registry, queues: Collection[str] | None) -> None:
        self._store = store
        self._registry = registry
        self._queues = None if queues is None else frozenset(queues)
        self.tasks: dict[int, Task[..., Any]] = {}
        self._claimable: list[int] = []
        self._later: list[list[int]] = []  # more lanes with ready runs, in groups, the most urgent first
        self._claimed_at: dict[int, float] = {}
        self.ordinary: list[int] = []
        self.processes: list[int] = []
        self.batched: list[int] = []
        self.threads: frozenset[int] = frozenset()
        self.all_need_threads = False
        """Whether all tasks of the code run in threads."""
        self.limited: frozenset[int] = frozenset()
        self.queues: dict[int, str] = {}
        self._fair: dict[int, str] = {}
        self._refreshed_at = 0.0

    def refresh(self) -> bool:
        """Read all lanes from the database and return whether the lanes to claim from have changed."""
        tasks = {**fake_remote_tasks(), **self._registry.names()} if active_fakes else self._registry.names()
        all_lanes = self._store.lanes.refresh("claim")
        known = {
            lane: tasks[task]
            for lane, (queue, task) in all_lanes.items()
            if task in tasks and (self._queues is None or queue in self._queues)
        }
        self._refreshed_at = time.monotonic()
        self.tasks = known
        self.queues.update((lane, all_lanes[lane][0]) for lane in known)
        self._fair = {lane: queue for lane in known if (queue := all_lanes[lane][0]) in self._registry.fair}
        self.all_need_threads = bool(tasks) and all(task.uses_threads for task in tasks.values())
        before = set(self._claimable)
        self._set_claimable(self._choose_claimable())
        return set(self._claimable) != before

    def _set_claimable(self, lanes: list[int]) -> None:
        self._claimable = lanes
        self.limited = self._store.lanes.limited.intersection(lanes)
        self.processes = [lane for lane in lanes if self.tasks[lane].declaration.run_in == "process"]
        self.batched = [lane for lane in lanes if self.tasks[lane].declaration.batch is not None]
        others = lanes if not self.batched else [lane for lane in lanes if lane not in self.batched]
        self.ordinary = [lane for lane in others if self.tasks[lane].declaration.run_in != "process"]
        self.threads = frozenset(lane for lane in others if self.tasks[lane].uses_threads)

    def _choose_claimable(self) -> list[int]:
        """Return the lanes to claim from: all, or of very many those with ready runs, the most urgent first."""
        self._later = []
        if len(self.tasks) <= MAX_CLAIM_LANES:
            self._claimed_at.clear()
            return list(self.tasks)
        self._claimed_at = {
            lane: at
            for lane, at in self._claimed_at.items()
            if at > self._refreshed_at - RECENT_CLAIM_S and lane in self.tasks
        }
        ready = self._store.claims.ready_lanes(skip=self._claimed_at)
        found = [*self._claimed_at, *(lane for lane in ready if lane in self.tasks)]
        if len(found) <= MAX_CLAIM_LANES:
            return found
        groups: dict[object, list[int]] = {}  # which don't compete for the same slots, or can't be compared
        for lane in self._store.claims.by_urgency(found):
            groups.setdefault((self._fair.get(lane), self.tasks[lane].declaration.run_in), []).append(lane)
        self._later = list(groups.values())
        return self._next_lanes()

    def _next_lanes(self) -> list[int]:
        """Take the most urgent lanes of each group."""
        lanes = [lane for group in self._later for lane in group[:MAX_CLAIM_LANES]]
        self._later = [rest for group in self._later if (rest := group[MAX_CLAIM_LANES:])]
        return lanes

    def record_claims(self, claims: Collection[Claim], wanted: int) -> None:
        """Remember which lanes gave runs. If they gave less than wanted, claim from the next ones."""
        if len(self.tasks) > MAX_CLAIM_LANES:
            self._claimed_at.update(dict.fromkeys((claim.lane for claim in claims), time.monotonic()))
            if self._later and len(claims) < wanted:
                self._set_claimable(self._next_lanes())

    def task_of(self, claim: Claim) -> Task[..., Any]:
        """Return the task of a claimed run; in tests, its fake. Compensations are those of the task's own code."""
        task = self.tasks[claim.lane]
        return fake_task(task) if active_fakes and claim.ending is None else task

    @property
    def has_plain_order(self) -> bool:
        """Whether one claim without limits can serve all lanes."""
        return not (self.limited or self.processes or self.batched or self._fair)

    def refresh_if_stale(self) -> None:
        if time.monotonic() - self._refreshed_at > POLL_INTERVAL_S:
            self.refresh()

    def by_fair_queue(self, lanes: Iterable[int]) -> list[list[int]]:
        """Group lanes so that the turns of runs can be compared within a group.

        Each fair queue numbers its own turns and forms a group; all other lanes form one group.
        """
        groups: dict[str | None, list[int]] = {}
        for lane in lanes:
            groups.setdefault(self._fair.get(lane), []).append(lane)
        return list(groups.values())


def load_history(store: Store, attempts: Iterable[Attempt], residents: ResidentFunctions) -> None:
    """Load the recorded history of durable functions that were claimed before: of resident ones, only the waits."""
    again = [each for each in attempts if each.claim.fence > 1 and each.durable]
    if not again:
        return
    for attempt in again:
        attempt.resident = residents.take(attempt)
    resident = [attempt for attempt in again if attempt.resident is not None]
    replayed = [attempt for attempt in again if attempt.resident is None]
    for some, load in ((resident, _load_waits), (replayed, _load_all)):
        try:
            _set_history(some, load(store, some))
        except CORRUPT_DATA:  # of one of them: find out which
            for attempt in some:
                try:
                    _set_history([attempt], load(store, [attempt]))
                except CORRUPT_DATA as error:
                    attempt.corrupt_history = PayloadError(f"the run's stored history is corrupt: {error}")


def _load_all(store: Store, attempts: Sequence[Attempt]) -> dict[str, LoadedHistory]:
    tenants = {each.claim.id: each.claim.tenant for each in attempts if each.claim.tenant is not None}
    return store.journal.load(_run_keys(attempts), tenants=tenants) if attempts else {}


def _load_waits(store: Store, attempts: Sequence[Attempt]) -> dict[str, LoadedHistory]:
    return store.journal.load_waits(_run_keys(attempts)) if attempts else {}


def _run_keys(attempts: Sequence[Attempt]) -> list[tuple[str, int]]:
    return [(each.claim.id, each.claim.generation) for each in attempts]


def _set_history(attempts: Sequence[Attempt], loaded: dict[str, LoadedHistory]) -> None:
    for attempt in attempts:
        attempt.loaded_history = loaded[attempt.claim.id]
        attempt.corrupt_history = loaded[attempt.claim.id].unreadable


class IsolatedRuns:
    """Runs the suspects of a crash without other runs in the process, so that the next death identifies the culprit.

    A worker without runs claims a group of isolated runs at once. A busy one first leaves them to others for a while.
    Then it reserves a group, claims nothing else, and starts the group when its other runs have ended, or after a third
    of the lease, so that long runs can't delay the group forever.
    """

    def __init__(self, store: Store, state: WorkerState, runner: Runner, lanes: KnownLanes, lease: float) -> None:
        self._store = store
        self._state = state
        self._runner = runner
        self._lanes = lanes
        self._lease = lease
        self._next_poll_at = 0.0
        self._waiting_since: float | None = None
        self._reserved: list[Attempt] = []
        self._start_by = 0.0
        self._running: list[Attempt] = []

    @property
    def has_reserved(self) -> bool:
        """Whether this worker has claimed a group that it hasn't started."""
        return bool(self._reserved)

    @property
    def is_active(self) -> bool:
        """Whether isolated runs exist, so that nothing else may be claimed, or soon."""
        return bool(self._reserved or self._running or self._waiting_since is not None)

    def poll(self) -> bool:
        """Poll for isolated runs if that is due; return whether there are any.

        The claimer polls after a claim, because the claimed runs must not wait for it, and before its first claim,
        because a process that has just started has no runs.
        """
        now = time.monotonic()
        if now >= self._next_poll_at:
            self._next_poll_at = now + ISOLATION_POLL_INTERVAL_S
            if not self._store.claims.has_isolated(self._lanes.tasks):
                self._waiting_since = None
            elif self._waiting_since is None:
                self._waiting_since = now
        return self._waiting_since is not None

    def advance(self, session: Session) -> float | None:
        """Reserve or start isolated runs. Return the seconds for which nothing else may be claimed, or None."""
        if not self._next_poll_at:
            self.poll()
        if not self.is_active:
            return None
        now = time.monotonic()
        was_running = bool(self._running)
        # Until its end is durable, a death of the process would be charged to a run that has stopped, too.
        self._running = [
            each
            for each in self._running
            if each.session == session.id and not each.abandoned and self._state.find(each.claim.id) is each
        ]
        self._reserved = [each for each in self._reserved if each.session == session.id]
        if self._reserved:
            if self._runner.busy_slots and now < self._start_by:
                return min(POLL_INTERVAL_S, self._start_by - now)
            self._start()
        if self._running:
            return POLL_INTERVAL_S
        if was_running:  # the next group of the same crash may be waiting
            self._next_poll_at = now
            self.poll()
        if self._waiting_since is None:
            return None
        if self._runner.busy_slots and now - self._waiting_since < ISOLATION_PATIENCE_S:
            return None
        self._reserve(session, now)
        return 0.0 if self._reserved else None

    def _reserve(self, session: Session, now: float) -> None:
        self._waiting_since = None
        claims = self._store.claims.claim_isolated(session.id, self._lanes.tasks, self._runner.concurrency)
        attempts = [Attempt(claim, self._lanes.task_of(claim), session.id, isolated=True) for claim in claims]
        if self._state.add(session, attempts):
            self._reserved = attempts
            self._start_by = now + self._lease / 3

    def _start(self) -> None:
        attempts, self._reserved = self._reserved, []
        log.isolated_runs_started(len(attempts), self._runner.busy_slots)
        try:
            load_history(self._store, attempts, self._runner.residents)
        except Exception:
            self._runner.stop(attempts, "release")
            self._runner.start(attempts)
            raise
        self._running = attempts
        self._runner.start(attempts)


class CommitClaim:
    """A claim in the transaction in which the committer makes runs ready. Called with that transaction.

    It claims with the claimer's own statement, so it observes the same order of lanes, priorities and turns: it may get
    other runs than those that the transaction has made ready.
    """

    def __init__(self, store: Store, session: Session, lanes: Collection[int], max_runs: int) -> None:
        self.session = session
        self.began_ns = time.time_ns()
        self.claims: list[Claim] = []
        self.is_complete = False
        """Whether the transaction left no run ready that this worker could claim."""
        self._store = store
        self._lanes = lanes
        self._max_runs = max_runs

    def __call__(self, tx: Tx) -> None:
        self.claims = []  # the transaction may be repeated
        self.is_complete = not tx.ready_runs
        if 0 < tx.ready_runs <= self._max_runs:
            wanted = min(tx.ready_runs + 1, self._max_runs)  # one more, to know whether others are ready
            self.claims = self._store.claims.claim_before_commit(tx, self.session.id, self._lanes, wanted)
            self.is_complete = len(self.claims) < claim_size(wanted)


class Claimer(Loop):
    """Fills free slots with ready runs."""

    name = "claimer"

    def __init__(
        self,
        store: Store,
        state: WorkerState,
        lanes: KnownLanes,
        runner: Runner,
        queue: WriteQueue,
        monitor: LoopMonitor,
        failures: FailureNotifier,
        lease: float,
    ) -> None:
        super().__init__()
        self._store = store
        self._state = state
        self._lanes = lanes
        self._runner = runner
        self._queue = queue
        self._monitor = monitor
        self._failures = failures
        self._isolation = IsolatedRuns(store, state, runner, lanes, lease)
        self._idle_session: Session | None = None  # the session whose row asks for notifications of new work
        self._busy_since = 0.0
        self._saturated_until = 0.0  # the queue was longer than the free slots, and probably is until then
        self._threads_saturated_until = 0.0  # the same for runs that need a thread
        self._contended_pause_s = CONTENDED_PAUSE_S
        self._limits_checked_at = 0.0
        self._processes_first = False
        self._limited_first = False
        self._slots_dealt = 0
        self._claimed: list[Attempt] = []  # in this round
        self._batches = BatchCollector()
        self.is_draining = False
        """Whether a batch starts as soon as nothing more is ready for it."""
        self._claiming = threading.Lock()  # the claimer and the committer don't claim at the same time
        self.telemetry: WorkerTelemetry | None = None
        self._needs_slots = True  # whether runs may be ready that found no slot
        self._was_notified = False  # another process has announced work, perhaps to this worker alone
        self._hand_on_at = 0.0
        self._hand_on_interval_s = MIN_HAND_ON_INTERVAL_S
        self.empty_rounds = 0
        """How many rounds in a row found nothing."""
        self.poll_interval_s = POLL_INTERVAL_S
        """How often this worker polls while it is idle."""

    def notified(self) -> None:
        """Note that another process has announced work to this worker. Then call `wake`. From any thread."""
        self._was_notified = True

    def slot_freed(self) -> None:
        """Claim again if the last claim found more runs than slots. From any thread."""
        if self._needs_slots:
            self.wake()

    def tick(self) -> float:
        pause_s = self._tick()
        batch_s = self._batches.seconds_left()
        return pause_s if batch_s is None or self._runner.free_slots() <= 0 else min(pause_s, batch_s)

    def _tick(self) -> float:
        self._needs_slots = True  # before the slots are counted, so that no freed slot is missed
        session = self._state.session
        was_notified, self._was_notified = self._was_notified, False
        if session is None:
            return POLL_INTERVAL_S
        if self._monitor.is_stalled:
            self._decline(session, was_notified)
            return POLL_INTERVAL_S
        is_poll = self._is_timed_out and self._idle_session is session and self.empty_rounds > 0
        if is_poll and not len(self._batches) and not self._poll(session):
            return self._idle_pause(session)
        with self._claiming:
            self._start_batches(session)
            if (pause_s := self._pause_before_claim(session)) is not None:
                self._decline(session, was_notified)
                return pause_s
            free, _ = self._slots()
            self._lanes.refresh_if_stale()
            attempts = self._claimed = []
            self._claim_and_load(session, free)
            self._lanes.record_claims([each.claim for each in attempts], free)
            all_started = not attempts or self._start(attempts)
            found_batched = self._claim_batches(session) if self._lanes.batched else False
        if not attempts:
            return self._claimed_no_slots(session, was_notified, found_batched=found_batched)
        if is_poll:
            self._store.sessions.unmark_unresponsive(session.id, session.wake.group)
        if len(attempts) >= claim_size(free):
            self._unmark_idle(session)
            self._hand_on(session)
        self.empty_rounds, self.poll_interval_s = 0, POLL_INTERVAL_S
        if all_started and len(attempts) < free // 2 and self._idle_session is session:
            # Nothing more is ready, and the next run that becomes ready is announced.
            self._needs_slots, self._busy_since = not self._has_slots_of_all_kinds(), 0.0
            return QUIET_PAUSE_S
        self._mark_busy(session)
        self._isolation.poll()
        return 0.0 if all_started else POLL_INTERVAL_S

    def _claimed_no_slots(self, session: Session, was_notified: bool, *, found_batched: bool) -> float:
        """Return the pause after a round that filled no slot, except with batches."""
        if found_batched:
            self.empty_rounds, self.poll_interval_s = 0, POLL_INTERVAL_S
            return 0.0
        if not self._has_slots_of_all_kinds():
            self._decline(session, was_notified)
        return self._found_nothing(session)

    def _pause_before_claim(self, session: Session) -> float | None:
        """Return how long to wait before the next claim; None if a claim is due."""
        free, slots = self._slots()
        if self._isolation.has_reserved and (pause_s := self._isolation.advance(session)) is not None:
            return pause_s
        if free <= 0:
            return UNTIL_WOKEN_S
        if self._queue.backlog > MAX_BACKLOG_WRITES:
            return BACKLOG_PAUSE_S
        if self._failures.queue and not self._failures.has_room():
            return POLL_INTERVAL_S
        if (pause_s := self._isolation.advance(session)) is not None:
            return pause_s
        if free < slots // SMALL_CLAIM_DIVISOR and self._saturated_until > time.monotonic():
            return self._saturated_until - time.monotonic()
        return None

    def _claim_and_load(self, session: Session, free: int) -> None:
        """Claim runs for the free slots and load their recorded history."""
        started = time.time_ns()
        attempts = self._claimed
        try:
            self._claim(session, free)
            self._saturated_until = time.monotonic() + SATURATED_PAUSE_S if len(attempts) > free // 2 else 0.0
            if attempts:
                self._contended_pause_s = CONTENDED_PAUSE_S
            load_history(self._store, attempts, self._runner.residents)
            if attempts and self.telemetry is not None:
                self.telemetry.claimed(attempts, started)
        except Exception:
            self._runner.stop(attempts, "release")
            self._runner.start(attempts)
            raise

    # Batches

    def _claim_batches(self, session: Session) -> bool:
        """Claim runs for batches and start those that are full; return whether there were any."""
        found = 0
        began = time.time_ns()
        for lane in self._lanes.batched:
            task = self._lanes.tasks[lane]
            batch = task.declaration.batch
            assert batch is not None
            while self._has_slot(task) and (missing := batch.max_size - self._batches.count(lane)) > 0:
                wanted = 1 << (missing - 1).bit_length()  # a size that one claim can have; the rest waits here
                claims = self._store.claims
                claim = claims.claim_limited if lane in self._lanes.limited else claims.claim
                attempts = [
                    Attempt(each, self._lanes.task_of(each), session.id) for each in claim(session.id, [lane], wanted)
                ]
                if not attempts or not self._state.add(session, attempts):
                    break
                if self.telemetry is not None:
                    self.telemetry.claimed(attempts, began)
                found += len(attempts)
                self._batches.add(attempts)
                self._start_batches(session)
        if not found and self.is_draining:
            self._start_batches(session, everything=True)
        return bool(found)

    def _has_slot(self, task: Task[..., Any]) -> bool:
        return (self._threads_to_fill() if task.uses_threads else self._runner.free_slots()) > 0

    def _start_batches(self, session: Session | None, *, everything: bool = False) -> None:
        """Start the batches that are due, as long as slots are free; all of them if the worker stops."""
        while session is None or self._runner.free_slots() > 0:
            attempts = self._batches.take(None if session is None else session.id, everything=everything)
            if attempts is None:
                return
            self._start(attempts)

    # Claims of the committer

    def begin_commit_claim(self, session: str) -> CommitClaim | None:
        """Let the committer claim in its transaction; None if this claimer has to decide. Then call `end_commit_claim`.

        Limits, fair queues, tasks in processes and isolated runs are the claimer's business, and so is a worker with
        few free slots or a stalled event loop.
        """
        current, lanes = self._state.session, self._lanes
        if current is None or current.id != session or self._monitor.is_stalled:
            return None
        if not lanes.has_plain_order or not self._claiming.acquire(blocking=False):
            return None
        max_runs = min(self._runner.free_slots(), MAX_COMMIT_CLAIM_RUNS)
        is_blocked = self._stopping.is_set() or self._isolation.is_active or bool(self._failures.queue)
        is_blocked = is_blocked or (bool(lanes.threads) and self._threads_to_fill() < max_runs)
        if max_runs <= 0 or is_blocked or self._queue.backlog > MAX_BACKLOG_WRITES:
            self._claiming.release()
            return None
        return CommitClaim(self._store, current, lanes.ordinary, max_runs)

    def end_commit_claim(self, claim: CommitClaim, is_committed: bool, restarted: Collection[str] = ()) -> None:
        """Start what was claimed. `restarted`: runs that have no recorded history any more."""
        try:
            if not is_committed or not claim.claims:
                return
            attempts = [Attempt(each, self._lanes.task_of(each), claim.session.id) for each in claim.claims]
            if not self._state.add(claim.session, attempts):
                return
            try:
                again = [each for each in attempts if each.claim.id not in restarted]
                load_history(self._store, again, self._runner.residents)
                if self.telemetry is not None:
                    self.telemetry.claimed(attempts, claim.began_ns)
            except Exception:
                self._runner.stop(attempts, "release")
                raise
            finally:
                self._start(attempts)
        finally:
            self._claiming.release()

    def _slots(self) -> tuple[int, int]:
        """Return the number of free slots, and of all, for the tasks of this worker's code."""
        if self._lanes.all_need_threads:
            return self._runner.free_thread_slots(), self._runner.threads
        return self._runner.free_slots(), self._runner.concurrency

    def _start(self, attempts: list[Attempt]) -> bool:
        all_started = self._runner.start(attempts)
        if self.telemetry is not None:
            self.telemetry.started(attempts)
        return all_started

    # Which lanes get how many slots

    def _claim(self, session: Session, free: int) -> None:
        """Claim runs for `free` slots. Lanes that need processes are claimed apart, for the free process slots."""
        if not self._lanes.processes:
            self._claim_ordinary(session, free)
            return
        self._processes_first = not self._processes_first  # alternate, so that neither starves if slots are few
        for in_processes in (self._processes_first, not self._processes_first):
            left = free - len(self._claimed)
            if in_processes:
                self._claim_lanes(session, self._lanes.processes, min(left, self._runner.free_process_slots()))
            else:
                self._claim_ordinary(session, left)

    def _claim_ordinary(self, session: Session, free: int) -> None:
        """Claim runs that need no process: in order while threads are free, then only those that need none."""
        threads = self._threads_to_fill()
        if not self._lanes.threads or threads >= free:
            self._claim_lanes(session, self._lanes.ordinary, free)
            return
        before = len(self._claimed)
        if threads > 0:
            self._claim_lanes(session, self._lanes.ordinary, threads)
            claimed = self._claimed[before:]
            in_threads = sum(attempt.run_in == "thread" for attempt in claimed)
            now = time.monotonic()
            self._threads_saturated_until = now + SATURATED_PAUSE_S if in_threads > threads // 2 else 0.0
            if len(claimed) < threads:  # nothing else is ready
                return
        self._claim_lanes(session, self._lanes_without_threads(), free - len(self._claimed) + before)

    def _has_slots_of_all_kinds(self) -> bool:
        """Return whether any run that this worker knows could start."""
        has_threads = not self._lanes.threads or self._threads_to_fill() > 0
        return has_threads and (not self._lanes.processes or self._runner.free_process_slots() > 0)

    def _threads_to_fill(self) -> int:
        """Return how many runs to claim that may need a thread, like `tick` for slots; none if too many are lost."""
        free = self._runner.free_thread_slots()
        if self._runner.lost_threads >= self._runner.threads or self._waits_for_more_threads(free):
            return 0
        return free

    def _waits_for_more_threads(self, free: int) -> bool:
        is_small = free < self._runner.threads // SMALL_CLAIM_DIVISOR
        return is_small and self._threads_saturated_until > time.monotonic()

    def _lanes_without_threads(self) -> list[int]:
        return [lane for lane in self._lanes.ordinary if lane not in self._lanes.threads]

    def _claim_lanes(self, session: Session, lanes: list[int], free: int) -> None:
        """Claim runs of these lanes, sharing the slots between fair queues.

        Slots are dealt to the groups one by one, continuing with the group that is next. Slots that a group can't fill
        go to groups that could.
        """
        groups = self._lanes.by_fair_queue(lanes)
        if len(groups) < 2:
            self._claim_group(session, lanes, free)
            return
        first = self._slots_dealt % len(groups)
        self._slots_dealt += free
        left, in_order = free, groups[first:] + groups[:first]
        with_more = []
        for position, group in enumerate(in_order):
            share = (free - position + len(groups) - 1) // len(groups)
            found = self._claim_group(session, group, share)
            left -= found
            if found == share:
                with_more.append(group)
        for group in with_more if left else ():
            left -= self._claim_group(session, group, left)

    def _claim_group(self, session: Session, lanes: list[int], free: int) -> int:
        """Claim runs of these lanes and return how many. Lanes with limits are claimed apart, with their permits."""
        claims = self._store.claims
        limited = [lane for lane in lanes if lane in self._lanes.limited]
        if not limited:
            return self._add(session, claims.claim(session.id, lanes, free))
        others = [lane for lane in lanes if lane not in self._lanes.limited]
        self._limited_first = not self._limited_first  # alternate, for the same reason
        if self._limited_first:
            found = self._add(session, claims.claim_limited(session.id, limited, free))
            return found + self._add(session, claims.claim(session.id, others, free - found))
        found = self._add(session, claims.claim(session.id, others, free))
        return found + self._add(session, claims.claim_limited(session.id, limited, free - found))

    def _add(self, session: Session, claims: list[Claim]) -> int:
        """Add claimed runs to the worker's state, unless the session has ended: then recovery takes them back."""
        attempts = [Attempt(claim, self._lanes.task_of(claim), session.id) for claim in claims]
        if self._state.add(session, attempts):
            self._claimed += attempts
        return len(claims)

    # Idle and busy

    def _found_nothing(self, session: Session) -> float:
        """Ask for notifications of new work, then claim once more: work that arrived in between is not announced."""
        self.empty_rounds += 1
        was_busy, self._busy_since = self._busy_since > 0, 0.0
        if was_busy and self._store.claims.has_ready(lanes := self._startable_lanes()):
            self._busy_since = time.monotonic()
            self._mark_limited_heads(lanes)
            return self._contended_pause()
        if self._idle_session is not session:
            self._store.sessions.mark_idle(session.id, True)
            self._idle_session = session
            return 0.0
        if self._lanes.refresh():
            return 0.0
        if self._isolation.poll():
            return ISOLATION_POLL_INTERVAL_S / 2 if self._runner.busy_slots else 0.0
        free_threads = self._runner.free_thread_slots()
        if self._waits_for_more_threads(free_threads):
            return SATURATED_PAUSE_S
        lanes = self._startable_lanes()
        if not self._store.claims.has_ready(lanes):
            self._needs_slots = not self._has_slots_of_all_kinds()
            return self._idle_pause(session)
        self._mark_limited_heads(lanes)
        return self._contended_pause()

    def _mark_limited_heads(self, lanes: list[int]) -> None:
        """Mark lanes whose first ready run has limits, which an ordinary claim passes over; at most once a second."""
        now = time.monotonic()
        if now >= self._limits_checked_at + POLL_INTERVAL_S:
            self._limits_checked_at = now
            if self._store.lanes.mark_limited_heads(lanes):
                self._lanes.refresh()

    def stop(self, timeout: float | None = None) -> None:
        """Claim nothing more, execute incomplete batches, and let other workers be notified instead of this one."""
        super().stop(timeout)
        if not self.running:
            self._start_batches(None, everything=True)
        session, self._idle_session = self._idle_session, None
        if session is not None and self._state.session is session:
            with suppress(StoreError):  # it expires with the lease
                self._store.sessions.mark_idle(session.id, False)

    def _decline(self, session: Session, was_notified: bool) -> None:
        """Hand on work that was announced to this worker, which can't claim now, and ask for no more of it."""
        if was_notified and self._idle_session is session:
            self._unmark_idle(session)
            self._hand_on_at = 0.0
            self._hand_on(session)

    def _unmark_idle(self, session: Session) -> None:
        """Ask for no more notifications."""
        if self._idle_session is session:
            self._store.sessions.mark_idle(session.id, False)
            self._idle_session = None

    def _hand_on(self, session: Session) -> None:
        """Wake an idle worker of the same group, because more may be ready than this worker has slots for."""
        now = time.monotonic()
        if now < self._hand_on_at:
            return
        if self._store.sessions.wake_next(session.id, session.wake.group):
            self._hand_on_interval_s = MIN_HAND_ON_INTERVAL_S
        else:
            self._hand_on_interval_s = min(2 * self._hand_on_interval_s, MAX_HAND_ON_INTERVAL_S)
        self._hand_on_at = now + self._hand_on_interval_s

    def _poll(self, session: Session) -> bool:
        """Return whether there may be something to do.

        It writes nothing, except that it asks for notifications again if another worker found this one unresponsive. A
        claim that finds nothing would commit.
        """
        if self._store.database.dialect.notifies:
            self._store.sessions.mark_idle(session.id, True)
        self._lanes.refresh()
        if self._isolation.is_active or self._isolation.poll() or self._store.claims.has_ready(self._startable_lanes()):
            return True
        self._needs_slots = not self._has_slots_of_all_kinds()
        return False

    def _idle_pause(self, session: Session) -> float:
        """Return the time until the next poll. It grows with the number of idle workers of the same group.

        These poll at different times, so together they still find work within a second.
        """
        notifies = self._store.database.dialect.notifies
        idle = self._store.sessions.count_idle(session.wake.group) if notifies else 1
        self.poll_interval_s = min(POLL_INTERVAL_S * max(idle / IDLE_POLLERS, 1.0), MAX_IDLE_POLL_INTERVAL_S)
        return self.poll_interval_s * random.uniform(0.75, 1.0)

    def _startable_lanes(self) -> list[int]:
        """Return the lanes whose runs could start now, because a thread or process is free for them."""
        has_threads = self._runner.free_thread_slots() > 0 and self._runner.lost_threads < self._runner.threads
        lanes = self._lanes.ordinary if has_threads else self._lanes_without_threads()
        lanes = lanes + [lane for lane in self._lanes.batched if self._has_slot(self._lanes.tasks[lane])]
        return lanes + (self._lanes.processes if self._runner.free_process_slots() > 0 else [])

    def _contended_pause(self) -> float:
        """Return a pause that grows while other workers are faster, with jitter so that they don't try together."""
        self._store.claims.expect_contention()
        pause_s = self._contended_pause_s
        self._contended_pause_s = min(2 * pause_s, MAX_CONTENDED_PAUSE_S)
        return pause_s * random.uniform(0.5, 1.5)

    def _mark_busy(self, session: Session) -> None:
        """Turn notifications off after a second of uninterrupted work."""
        now = time.monotonic()
        if not self._busy_since:
            self._busy_since = now
        elif now - self._busy_since > POLL_INTERVAL_S:
            self._unmark_idle(session)
