"""Takes ready runs for free slots. While there is work it doesn't wait; while there is none it waits to be woken.

What a claim took is in hand at once, though it begins only when all claims of the round are made and its past is there:
the heartbeat must know it. If anything of that fails, what was taken is handed back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from typing import Any

from holdfast.engine.attempt import Attempt
from holdfast.engine.event_loop import LoopMonitor
from holdfast.engine.instrumentation import WorkerTelemetry
from holdfast.engine.loops.base import NOT_BEFORE_WOKEN, Loop
from holdfast.engine.runner import Runner
from holdfast.engine.session import Session, WorkerState
from holdfast.engine.write_queue import WriteQueue
from holdfast.store import Claim, Store
from holdfast.task.registry import Registry
from holdfast.task.task import Task
from holdfast.telemetry import log

POLL = 1.0
CONTENDED = 0.005
MOST_UNWRITTEN = 2000
FEW = 16
"""While there is more to do than slots, fewer free ones than this part of all are filled"""
ISOLATION_POLL_S = 0.5
ISOLATION_PATIENCE_S = 0.5
"""How long a worker with claimed runs leaves isolated ones to a worker without any."""
SOON = 0.005
"""so many seconds after the last claim: many at once cost little more than one."""


class KnownLanes:
    """The lanes that this worker can run: its queues, and the tasks that its code knows."""

    def __init__(self, store: Store, registry: Registry, queues: Collection[str] | None) -> None:
        self._store = store
        self._registry = registry
        self._queues = None if queues is None else frozenset(queues)
        self.tasks: dict[int, Task[..., Any]] = {}
        self.ordinary: list[int] = []
        self.processes: list[int] = []
        self.threads: frozenset[int] = frozenset()
        self.limited: frozenset[int] = frozenset()
        self.queues: dict[int, str] = {}
        self._fair: dict[int, str] = {}
        self._seen = 0.0

    def refresh(self) -> bool:
        """Look for new lanes; whether there were any for us."""
        tasks = self._registry.names()
        all_lanes = self._store.lanes.refresh("claim")
        known = {
            lane: tasks[task]
            for lane, (queue, task) in all_lanes.items()
            if task in tasks and (self._queues is None or queue in self._queues)
        }
        self._seen = time.monotonic()
        changed = known.keys() != self.tasks.keys()
        self.tasks = known
        self.limited = self._store.lanes.limited & known.keys()
        self.queues.update((lane, all_lanes[lane][0]) for lane in known)
        self._fair = {lane: queue for lane in known if (queue := all_lanes[lane][0]) in self._registry.fair}
        self.processes = [lane for lane, task in known.items() if task.declaration.run_in == "process"]
        self.ordinary = [lane for lane, task in known.items() if task.declaration.run_in != "process"]
        self.threads = frozenset(lane for lane, task in known.items() if task.declaration.run_in == "thread")
        return changed

    def by_turns(self, lanes: Iterable[int]) -> list[list[int]]:
        """These lanes, those whose turns can be compared together: each fair queue counts its own, others have none."""
        groups: dict[str | None, list[int]] = {}
        for lane in lanes:
            groups.setdefault(self._fair.get(lane), []).append(lane)
        return list(groups.values())

    def refresh_if_old(self) -> None:
        if time.monotonic() - self._seen > POLL:
            self.refresh()


def load_history(store: Store, attempts: Iterable[Attempt]) -> None:
    """Load what durable functions that were claimed before have recorded."""
    again = {each.claim.id: each for each in attempts if each.claim.fence > 1 and each.durable}
    if again:
        kept = store.journal.load([(each.claim.id, each.claim.generation) for each in again.values()])
        for id, attempt in again.items():
            attempt.kept = kept[id]


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
    def reserved(self) -> bool:
        """Whether this worker has claimed a group that it hasn't started."""
        return bool(self._reserved)

    def poll(self) -> bool:
        """Poll for isolated runs if that is due; return whether there are any.

        The claimer polls after a claim, because the claimed runs must not wait for it, and before its first claim,
        because a process that has just started has no runs.
        """
        now = time.monotonic()
        if now >= self._next_poll_at:
            self._next_poll_at = now + ISOLATION_POLL_S
            if not self._store.claims.has_isolated(self._lanes.tasks):
                self._waiting_since = None
            elif self._waiting_since is None:
                self._waiting_since = now
        return self._waiting_since is not None

    def advance(self, session: Session) -> float | None:
        """Reserve or start isolated runs. Return the seconds for which nothing else may be claimed, or None."""
        if not self._next_poll_at:
            self.poll()
        if not (self._reserved or self._running or self._waiting_since is not None):
            return None
        now = time.monotonic()
        was_running = bool(self._running)
        self._running = [
            each for each in self._running if each.session == session.id and not (each.over or each.abandoned)
        ]
        self._reserved = [each for each in self._reserved if each.session == session.id]
        if self._reserved:
            if self._runner.taken and now < self._start_by:
                return min(POLL, self._start_by - now)
            self._start()
        if self._running:
            return POLL
        if was_running:  # the next group of the same crash may be waiting
            self._next_poll_at = now
            self.poll()
        if self._waiting_since is None or (self._runner.taken and now - self._waiting_since < ISOLATION_PATIENCE_S):
            return None
        self._reserve(session, now)
        return 0.0 if self._reserved else None

    def _reserve(self, session: Session, now: float) -> None:
        self._waiting_since = None
        claims = self._store.claims.claim_isolated(session.id, self._lanes.tasks, self._runner.concurrency)
        attempts = [Attempt(claim, self._lanes.tasks[claim.lane], session.id, isolated=True) for claim in claims]
        if self._state.add(session, attempts):
            self._reserved = attempts
            self._start_by = now + self._lease / 3

    def _start(self) -> None:
        attempts, self._reserved = self._reserved, []
        log.isolated_runs_started(len(attempts), self._runner.taken)
        try:
            load_history(self._store, attempts)
        except Exception:
            self._runner.stop(attempts, "hand back")
            self._runner.begin(attempts)
            raise
        self._running = attempts
        self._runner.begin(attempts)


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
        lease: float,
    ) -> None:
        super().__init__()
        self._store = store
        self._state = state
        self._lanes = lanes
        self._runner = runner
        self._queue = queue
        self._monitor = monitor
        self._isolation = IsolatedRuns(store, state, runner, lanes, lease)
        self._told_idle: Session | None = None  # the session whose row says that it wants to be told of new work
        self._busy_since = 0.0
        self._full_until = 0.0  # there was more to do than slots, and probably is until then
        self._limits_checked_at = 0.0
        self._processes_first = False
        self._limited_first = False
        self._dealt = 0
        self._taken: list[Attempt] = []  # in this round
        self.telemetry: WorkerTelemetry | None = None
        self.may_claim: Callable[[], bool] = lambda: True
        """Called before each claim; while it returns False, the worker claims nothing."""
        self.rounds_without_work = 0

    def tick(self) -> float:
        session = self._state.session
        free = self._runner.free()
        if session is None or self._monitor.stalled:
            return POLL
        if self._isolation.reserved and (pause := self._isolation.advance(session)) is not None:
            return pause
        if free <= 0 or self._queue.backlog > MOST_UNWRITTEN:
            return NOT_BEFORE_WOKEN
        if not self.may_claim():
            return POLL
        if (pause := self._isolation.advance(session)) is not None:
            return pause
        if free < self._runner.concurrency // FEW and (early := self._full_until - time.monotonic()) > 0:
            return early
        self._lanes.refresh_if_old()
        started = time.time_ns()
        attempts = self._taken = []
        try:
            self._claim(session, free)
            if not attempts:
                return self._found_nothing(session)
            self._full_until = time.monotonic() + SOON if len(attempts) > free // 2 else 0.0
            load_history(self._store, attempts)
            if self.telemetry is not None:
                self.telemetry.claimed(attempts, started)
        except Exception:
            self._runner.stop(attempts, "hand back")
            self._runner.begin(attempts)
            raise
        self.rounds_without_work = 0
        begun = self._runner.begin(attempts)
        self._note_busy(session)
        self._isolation.poll()
        return 0.0 if begun else POLL

    def _claim(self, session: Session, free: int) -> None:
        """Runs for the free slots. Processes are few, so what needs one is claimed apart, for their own free slots."""
        if not self._lanes.processes:
            self._claim_lanes(session, self._ordinary(), free)
            return
        self._processes_first = not self._processes_first  # in turns, so that neither starves where slots are few
        for in_processes in (self._processes_first, not self._processes_first):
            left = free - len(self._taken)
            if in_processes:
                self._claim_lanes(session, self._lanes.processes, min(left, self._runner.free_processes()))
            else:
                self._claim_lanes(session, self._ordinary(), left)

    def _ordinary(self) -> list[int]:
        """The lanes whose runs need no process; also without those that need a thread, if too many threads are lost."""
        lanes = self._lanes.ordinary
        if self._runner.lost_threads < self._runner.concurrency:
            return lanes
        return [lane for lane in lanes if lane not in self._lanes.threads]

    def _claim_lanes(self, session: Session, lanes: list[int], free: int) -> None:
        """Runs of these lanes. Fair queues are claimed from apart: slots are dealt to them one by one, going on with
        the one that is next, and those that some of them leave go to the others."""
        groups = self._lanes.by_turns(lanes)
        if len(groups) < 2:
            self._claim_group(session, lanes, free)
            return
        first = self._dealt % len(groups)
        self._dealt += free
        left, in_order = free, groups[first:] + groups[:first]
        with_more = []
        for at, group in enumerate(in_order):
            share = (free - at + len(groups) - 1) // len(groups)
            found = self._claim_group(session, group, share)
            left -= found
            if found == share:
                with_more.append(group)
        for group in with_more if left else ():
            left -= self._claim_group(session, group, left)

    def _claim_group(self, session: Session, lanes: list[int], free: int) -> int:
        """Those of lanes with limits are claimed apart, with their permits; how many there were."""
        claims = self._store.claims
        limited = [lane for lane in lanes if lane in self._lanes.limited]
        if not limited:
            return self._take(session, claims.claim(session.id, lanes, free))
        others = [lane for lane in lanes if lane not in self._lanes.limited]
        self._limited_first = not self._limited_first  # in turns, here too
        if self._limited_first:
            found = self._take(session, claims.claim_limited(session.id, limited, free))
            return found + self._take(session, claims.claim(session.id, others, free - found))
        found = self._take(session, claims.claim(session.id, others, free))
        return found + self._take(session, claims.claim_limited(session.id, limited, free - found))

    def _take(self, session: Session, claims: list[Claim]) -> int:
        """What was claimed is in hand from now on, unless the session is over, with which it is recovered; how many."""
        attempts = [Attempt(claim, self._lanes.tasks[claim.lane], session.id) for claim in claims]
        if self._state.add(session, attempts):
            self._taken += attempts
        return len(claims)

    def _claimable(self) -> list[int]:
        """The lanes that there are free slots for."""
        return self._ordinary() + (self._lanes.processes if self._runner.free_processes() > 0 else [])

    def _found_nothing(self, session: Session) -> float:
        """Ask to be told of new work, then look once more: what came in between is not announced."""
        self.rounds_without_work += 1
        self._busy_since = 0.0
        if self._told_idle is not session:
            self._store.sessions.mark_idle(session.id, True)
            self._told_idle = session
            return 0.0
        if self._lanes.refresh():
            return 0.0
        if self._isolation.poll():
            return ISOLATION_POLL_S / 2 if self._runner.taken else 0.0
        lanes = self._claimable()
        if not self._store.claims.has_ready(lanes):
            return POLL
        now = time.monotonic()
        if now >= self._limits_checked_at + POLL:
            self._limits_checked_at = now
            if self._store.lanes.mark_limited_heads(lanes):
                self._lanes.refresh()
        return CONTENDED

    def _note_busy(self, session: Session) -> None:
        """After a while of work without a pause nobody needs to announce more of it."""
        now = time.monotonic()
        if not self._busy_since:
            self._busy_since = now
        elif self._told_idle is session and now - self._busy_since > POLL:
            self._store.sessions.mark_idle(session.id, False)
            self._told_idle = None
