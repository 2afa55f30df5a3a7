"""The claimer takes ready runs from the queue for the free slots of its worker.

While there is work, it claims without pauses; otherwise it waits until it is woken. A claimed run counts as claimed at
once, so that the heartbeat knows it, although it starts only when all claims of the round are made and its history is
loaded. If any of that fails, the claimed runs are released. `docs/claims.md` explains how a claim works.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any, Self

from holdfast.engine.attempt import Attempt, Session, SlotPool, WorkerState, new_attempts
from holdfast.engine.durable.history import load_history
from holdfast.engine.hooks import FailureNotifier
from holdfast.engine.instrumentation import WorkerTelemetry
from holdfast.engine.loops.base import UNTIL_WOKEN_S, Loop
from holdfast.engine.loops.batch_claimer import BatchClaimer
from holdfast.engine.loops.isolation import ISOLATION_POLL_INTERVAL_S, IsolatedRuns
from holdfast.engine.loops.known_lanes import KnownLanes
from holdfast.engine.runner import LoopMonitor, Runner
from holdfast.engine.write_queue import WriteQueue
from holdfast.errors import StoreError
from holdfast.store import Claim, Store
from holdfast.store.claims import claim_size
from holdfast.store.module import MAX_COMMIT_CLAIM_RUNS, Tx
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
MAX_COMMIT_CLAIM_WAIT_S = 0.002
"""How long a commit waits for the claimer's own claim: a claim with the commit saves more than that."""
MAX_LAST_CLAIM_S = 0.2
"""How long a stop waits for the claim in a client's commit; a later one is released with the session."""
SMALL_CLAIM_DIVISOR = 16
SATURATED_PAUSE_S = 0.005
"""While the queue is longer than the free slots, a claim for less than 1/`SMALL_CLAIM_DIVISOR` of all slots is delayed
by this much: claiming many runs at once costs little more than claiming one."""
MIN_HAND_ON_INTERVAL_S = 0.02
MAX_HAND_ON_INTERVAL_S = 0.5
"""How often a worker whose slots are full wakes another one: seldom after it found no idle one."""


class CommitClaim:
    """A claim in the transaction in which the committer makes runs ready. Called with that transaction.

    It claims with the claimer's own statement, so it observes the same order of lanes, priorities and turns: it may get
    other runs than those that the transaction has made ready.
    """

    def __init__(
        self, store: Store, session: Session, lanes: Collection[int], max_runs: int, *, leaves_lanes: bool = False
    ) -> None:
        self.session = session
        self.began_ns = time.time_ns()
        self.is_complete = False
        """Whether the transaction left no run ready that this worker could claim. Known after `claims` was called."""
        self.claimed = 0
        """How many runs it has claimed. Known after `claims` was called."""
        self._wanted = 0
        self._claimed: Callable[[], list[Claim]] = list
        self._store = store
        self._lanes = lanes
        self.max_runs = max_runs
        self._leaves_lanes = leaves_lanes  # it doesn't claim from all lanes of the worker: some have no free slots

    def __call__(self, tx: Tx) -> None:
        self._claimed, self._wanted = list, 0  # the transaction may be repeated
        self.is_complete = not tx.ready_runs
        if 0 < tx.ready_runs <= self.max_runs:
            self._wanted = min(tx.ready_runs + 1, self.max_runs)  # one more, to know whether others are ready
            self._claimed = self._store.claims.claim_before_commit(tx, self.session.id, self._lanes, self._wanted)

    def claims(self) -> list[Claim]:
        """Return what was claimed. Call it once, after the commit."""
        claims = self._claimed()
        self.claimed = len(claims)
        if self._wanted:
            self.is_complete = len(claims) < claim_size(self._wanted) and not self._leaves_lanes
        return claims


class ClientClaim:
    """A claim in the transaction in which a client of this process makes runs ready."""

    def __init__(self, claimer: Claimer, session_id: str) -> None:
        self.session_id = session_id
        self._claimer = claimer
        self._claim: CommitClaim | None = None
        self._tx: Tx | None = None

    def __enter__(self) -> Self:
        return self

    def __call__(self, tx: Tx) -> None:
        self._tx = tx
        if self._claim is None and 0 < tx.ready_runs <= MAX_COMMIT_CLAIM_RUNS:
            self._claim = self._claimer.begin_commit_claim(self.session_id, wait_s=0.0)
        if self._claim is not None:
            self._claim(tx)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        claim, tx = self._claim, self._tx
        if claim is None or tx is None:
            return
        try:
            self._claimer.end_commit_claim(claim, is_committed=error is None)
        except Exception:  # the client's transaction has succeeded, and the claimed runs are released
            log.loop_failed(self._claimer.name)
        if claim.is_complete and claim.claimed >= tx.ready_runs:
            tx.ready_runs = 0  # nothing is left for which a claimer has to be woken


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
        self._is_contended = False
        self._limits_checked_at = 0.0
        self._processes_first = False
        self._limited_first = False
        self._slots_dealt = 0
        self._has_filled_pool = False  # in this round
        self._claimed: list[Attempt] = []  # in this round
        self.batches = BatchClaimer(store, state, runner, lanes, self._has_slot, self._start)
        self._claiming = threading.Lock()  # the claimer and the committer don't claim at the same time
        self.telemetry: WorkerTelemetry | None = None
        self._needs_slots = True  # whether runs may be ready that found no slot
        self._lacks_slots = True  # what this round has found; becomes `_needs_slots` at its end
        self._slot_freed = False  # since this round began
        self.on_notified: Callable[[], None] = lambda: None
        """Called after the round that follows a notification of another process."""
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
        self._slot_freed = True
        if self._needs_slots:
            self.wake()

    def tick(self) -> float:
        self._slot_freed = False  # before the slots are counted, so that no freed slot is missed
        self._lacks_slots = True
        was_notified, self._was_notified = self._was_notified, False
        pause_s = self._tick(was_notified)
        self._claimed = []  # keeps no ended attempts in memory
        self._needs_slots = self._lacks_slots
        if self._needs_slots and self._slot_freed:
            self.wake()
        if was_notified:
            self.on_notified()
        if not self.batches.collected.groups or self._runner.free_slots() <= 0:
            return pause_s
        batch_s = self.batches.collected.seconds_left()
        return pause_s if batch_s is None else min(pause_s, batch_s)

    def _tick(self, was_notified: bool) -> float:
        session = self._state.session
        if session is None:
            return POLL_INTERVAL_S
        if self._monitor.is_stalled:
            self._decline(session, was_notified)
            return POLL_INTERVAL_S
        is_timed_out = self._is_timed_out and self._idle_session is session and not self.batches.collected.groups
        if is_timed_out and not self.empty_rounds and not self._finds_more():
            return self.poll_interval_s
        is_poll = is_timed_out and self.empty_rounds > 0
        if is_poll and not self._poll(session):
            return self._idle_pause(session)
        with self._claiming:
            if (pause_s := self._pause_before_claim(session)) is not None:
                self._decline(session, was_notified)
                return pause_s
            free, _ = self._slots()
            attempts = self._claimed = []
            self._claim_and_load(session, free)
            all_started = not attempts or self._start(attempts)
            is_busy = bool(attempts) and not was_notified
            found_batched = self.batches.claim(session, is_busy=is_busy) if self._lanes.batched else False
        if not attempts:
            return self._claimed_no_slots(session, was_notified, found_batched=found_batched)
        if is_poll:
            self._store.sessions.unmark_unresponsive(session.id, session.wake.group)
        self._hand_on_if_full(session, has_filled_all=len(attempts) >= claim_size(free))
        self.empty_rounds, self.poll_interval_s = 0, POLL_INTERVAL_S
        is_quiet = len(attempts) < free // 2 and not self._has_filled_pool
        if all_started and is_quiet and self._idle_session is session:
            # Nothing more is ready, and the next run that becomes ready is announced.
            self._lacks_slots, self._busy_since = not self._has_slots_of_all_kinds(), 0.0
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
        """Start the batches that are due; return how long to wait before the next claim, None if a claim is due."""
        if self.batches.collected.groups:
            self.batches.start_due(session)
        free, slots = self._slots()
        is_isolating = self._isolation.is_active
        if is_isolating and self._isolation.has_reserved and (pause_s := self._isolation.advance(session)) is not None:
            return pause_s
        if free <= 0:
            return UNTIL_WOKEN_S
        if self._queue.backlog > MAX_BACKLOG_WRITES:
            return BACKLOG_PAUSE_S
        if self._failures.queue and not self._failures.has_room():
            return POLL_INTERVAL_S
        if is_isolating and (pause_s := self._isolation.advance(session)) is not None:
            return pause_s
        if free < slots // SMALL_CLAIM_DIVISOR and self._saturated_until > time.monotonic():
            return self._saturated_until - time.monotonic()
        return None

    def _claim_and_load(self, session: Session, free: int) -> None:
        """Claim runs for the free slots and load their recorded history."""
        if time.monotonic() - self._lanes.refreshed_at > POLL_INTERVAL_S:
            self._lanes.refresh()
        started = time.time_ns()
        attempts = self._claimed
        try:
            self._claim(session, free)
            if self._lanes.are_chosen:
                self._lanes.record_claims([each.claim for each in attempts], free)
            self._saturated_until = time.monotonic() + SATURATED_PAUSE_S if len(attempts) > free // 2 else 0.0
            if attempts:
                self._contended_pause_s, self._is_contended = CONTENDED_PAUSE_S, False
            self._load_history(attempts)
            if attempts and self.telemetry is not None:
                self.telemetry.claimed(attempts, started)
        except Exception:
            self._runner.stop(attempts, "release")
            self._runner.start(attempts)
            raise

    def _load_history(self, attempts: list[Attempt]) -> None:
        if any(each.claim.fence > 1 for each in attempts):  # nothing is recorded before the first claim of a run
            load_history(self._store, attempts, self._runner.residents)

    def _has_slot(self, lane: int) -> bool:
        pool, uses_threads = self._lanes.pools.get(lane), self._lanes.tasks[lane].uses_threads
        return (self._threads_to_fill(pool) if uses_threads else self._runner.free_slots(pool)) > 0

    # Claims of the committer

    def client_claim(self) -> ClientClaim | None:
        """Let a client of this process claim in its transaction what that makes ready, like the committer in its own.

        None while this worker has more runs than such a claim may take: then the client is one of many, and the claimer
        claims for all of them at once.
        """
        session = self._state.session
        if session is None or len(self._state) > MAX_COMMIT_CLAIM_RUNS or self._stopping.is_set():
            return None
        return ClientClaim(self, session.id)

    def begin_commit_claim(self, session: str, wait_s: float = MAX_COMMIT_CLAIM_WAIT_S) -> CommitClaim | None:
        """Let the committer claim in its transaction; None if this claimer has to decide. Then call `end_commit_claim`.

        If this claimer is claiming for too long, the claim takes no runs, but still tells whether any are left ready.

        Only the claimer itself claims runs with limits, runs of queues with an order of their own or of tasks in
        processes, and isolated runs, and only it claims while the worker has few free slots or a stalled event loop.
        """
        current, lanes = self._state.session, self._lanes
        if current is None or current.id != session or self._monitor.is_stalled:
            return None
        if not lanes.has_plain_order:
            return None
        if not self._claiming.acquire(timeout=wait_s):
            return CommitClaim(self._store, current, lanes.ordinary, 0)
        pools = self._runner.pools
        open_pools: list[SlotPool | None] = [pool for pool in pools.values() if pool.free() > 0] or [None]
        max_runs = min(MAX_COMMIT_CLAIM_RUNS, *map(self._runner.free_slots, open_pools))
        is_blocked = self._stopping.is_set() or self._isolation.is_active or bool(self._failures.queue)
        is_blocked = is_blocked or (bool(lanes.threads) and min(map(self._threads_to_fill, open_pools)) < max_runs)
        if max_runs <= 0 or is_blocked or self._queue.backlog > MAX_BACKLOG_WRITES:
            self._claiming.release()
            return None
        if len(open_pools) == len(pools) or not pools:
            return CommitClaim(self._store, current, lanes.ordinary, max_runs)
        some = [lane for lane in lanes.ordinary if lanes.pools[lane] in open_pools]
        return CommitClaim(self._store, current, some, max_runs, leaves_lanes=True)

    def end_commit_claim(self, claim: CommitClaim, is_committed: bool, restarted: Collection[str] = ()) -> None:
        """Start what was claimed. `restarted`: runs that have no recorded history any more."""
        if not claim.max_runs:
            return
        try:
            if not is_committed or not (claims := claim.claims()):
                return
            attempts = new_attempts(claims, self._lanes.tasks, self._lanes.pools, claim.session.id)
            if not self._state.add(claim.session, attempts):
                return
            try:
                again = [each for each in attempts if each.claim.id not in restarted]
                self._load_history(again)
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
        """Claim runs for `free` slots. Queues with slots of their own are claimed apart, each for its free ones."""
        self._processes_first = not self._processes_first  # alternate, so that neither starves if slots are few
        self._limited_first = not self._limited_first
        self._has_filled_pool = False
        if not self._runner.pools:
            self._claim_pool(session, None, self._lanes.ordinary, self._lanes.processes, free)
        for pool in self._runner.pools.values():
            before, free = len(self._claimed), pool.free()
            if free > 0:
                ordinary = self._lanes.in_pool(self._lanes.ordinary, pool)
                self._claim_pool(session, pool, ordinary, self._lanes.in_pool(self._lanes.processes, pool), free)
                self._has_filled_pool |= len(self._claimed) - before >= claim_size(free)

    def _claim_pool(
        self, session: Session, pool: SlotPool | None, ordinary: list[int], processes: list[int], free: int
    ) -> None:
        """Claim runs for `free` slots. Lanes that need processes are claimed apart, for the free process slots."""
        if not processes:
            self._claim_ordinary(session, pool, ordinary, free)
            return
        before = len(self._claimed)
        for in_processes in (self._processes_first, not self._processes_first):
            left = free - len(self._claimed) + before
            if in_processes:
                self._claim_lanes(session, processes, min(left, self._runner.free_process_slots(pool)))
            else:
                self._claim_ordinary(session, pool, ordinary, left)

    def _claim_ordinary(self, session: Session, pool: SlotPool | None, lanes: list[int], free: int) -> None:
        """Claim runs that need no process: in order while threads are free, then only those that need none."""
        threads = self._threads_to_fill(pool)
        if not self._lanes.threads or threads >= free:
            self._claim_lanes(session, lanes, free)
            return
        before = len(self._claimed)
        if threads > 0:
            self._claim_lanes(session, lanes, threads)
            claimed = self._claimed[before:]
            in_threads = sum(attempt.run_in == "thread" for attempt in claimed)
            now = time.monotonic()
            self._threads_saturated_until = now + SATURATED_PAUSE_S if in_threads > threads // 2 else 0.0
            if len(claimed) < threads:  # nothing else is ready
                return
        self._claim_lanes(session, self._without_threads(lanes), free - len(self._claimed) + before)

    def _has_slots_of_all_kinds(self) -> bool:
        """Return whether any run that this worker knows could start."""
        return all(map(self._has_all_slots, self._runner.pools.values() or (None,)))

    def _has_all_slots(self, pool: SlotPool | None) -> bool:
        if pool is not None and pool.free() <= 0:
            return False
        has_threads = not self._lanes.threads or self._threads_to_fill(pool) > 0
        return has_threads and (not self._lanes.processes or self._runner.free_process_slots(pool) > 0)

    def _threads_to_fill(self, pool: SlotPool | None) -> int:
        """Return how many runs to claim that may need a thread, like `tick` for slots; none if too many are lost."""
        free = self._runner.free_thread_slots(pool)
        if self._runner.lost_threads >= self._runner.threads or (pool is None and self._waits_for_more_threads(free)):
            return 0
        return free

    def _waits_for_more_threads(self, free: int) -> bool:
        is_small = free < self._runner.threads // SMALL_CLAIM_DIVISOR
        return is_small and self._threads_saturated_until > time.monotonic()

    def _without_threads(self, lanes: list[int]) -> list[int]:
        return [lane for lane in lanes if lane not in self._lanes.threads]

    def _claim_lanes(self, session: Session, lanes: list[int], free: int) -> None:
        """Claim runs of these lanes, sharing the slots between queues with an order of their own.

        Slots are dealt to the groups one by one, continuing with the group that is next. Slots that a group can't fill
        go to groups that could.
        """
        groups = self._lanes.by_order(lanes) if self._lanes.own_order else []
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
        if self._limited_first:
            found = self._add(session, claims.claim_limited(session.id, limited, free))
            return found + self._add(session, claims.claim(session.id, others, free - found))
        found = self._add(session, claims.claim(session.id, others, free))
        return found + self._add(session, claims.claim_limited(session.id, limited, free - found))

    def _add(self, session: Session, claims: list[Claim]) -> int:
        """Add claimed runs to the worker's state, unless the session has ended: then recovery takes them back."""
        attempts = new_attempts(claims, self._lanes.tasks, self._lanes.pools, session.id)
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
            self._lacks_slots = not self._has_slots_of_all_kinds()
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
        if self._claiming.acquire(timeout=MAX_LAST_CLAIM_S):  # after the last claim of a client
            self._claiming.release()
        if not self.running:
            self.batches.start_due(None, everything=True)
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

    def _hand_on_if_full(self, session: Session, *, has_filled_all: bool) -> None:
        if has_filled_all:
            self._unmark_idle(session)
        if has_filled_all or self._has_filled_pool:
            self._hand_on(session)

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

    def _finds_more(self) -> bool:
        """Check, without a commit, whether anything became ready since a claim that left most slots free."""
        if self._isolation.is_active or self._store.claims.has_ready(self._startable_lanes()):
            return True
        self.empty_rounds += 1
        self._lacks_slots = not self._has_slots_of_all_kinds()
        return False

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
        self._lacks_slots = not self._has_slots_of_all_kinds()
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
        """Return the lanes whose runs could start now, because a slot, and a thread or process, is free for them."""
        lanes = [lane for lane in self._lanes.batched if self._has_slot(lane)]
        if not self._runner.pools:
            return lanes + self._startable(None, self._lanes.ordinary, self._lanes.processes)
        for pool in self._runner.pools.values():
            ordinary = self._lanes.in_pool(self._lanes.ordinary, pool)
            if pool.free() > 0:
                lanes += self._startable(pool, ordinary, self._lanes.in_pool(self._lanes.processes, pool))
        return lanes

    def _startable(self, pool: SlotPool | None, ordinary: list[int], processes: list[int]) -> list[int]:
        has_threads = self._runner.free_thread_slots(pool) > 0 and self._runner.lost_threads < self._runner.threads
        lanes = ordinary if has_threads else self._without_threads(ordinary)
        return lanes + (processes if self._runner.free_process_slots(pool) > 0 else [])

    def _contended_pause(self) -> float:
        """Return a pause that grows while other workers are faster, with jitter so that they don't try together.

        At first, runs may be ready because they became so after the claim.
        """
        if not self._is_contended:
            self._is_contended = True
            return 0.0
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
