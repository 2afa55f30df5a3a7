"""Processes that the database knows: worker sessions with their leases, and clients that wait for results.

A dead session's runs are recovered, and a crash is charged to the run that caused it. When a process dies, all runs in
it stop, but usually one of them is to blame. A run is charged only if it died alone: no other run was running in that
process. A death with several runs charges none of them. They return to ready; a run to which that happens twice in a
row is isolated: it next runs in a process with fewer runs (a quarter of the last group), until the culprit dies alone
and the others have finished.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from holdfast.database import Row
from holdfast.store.limits import return_permits
from holdfast.store.module import StoreContext, StoreModule, Tx, column, history_row, id_rows, json_rows, time_left
from holdfast.store.propagation import failed_runs, propagate_ends
from holdfast.store.rows import LostWorker, RecoveryResult
from holdfast.store.run_tree import LockedRun, affected_ancestors, lock_runs, lock_unlocked_runs
from holdfast.store.step_permits import drop_step_permits
from holdfast.store.typed_rows import RowReader


class _ReportedStatus(msgspec.Struct):
    """The part of a worker's reported status that recovery needs."""

    leftover: Sequence[str] = ()


class _LossDetails(msgspec.Struct):
    """What is recorded of a lost worker besides its session and the number of requeued runs."""

    name: str | None = None
    failed: int = 0
    excused: bool = False
    runs: tuple[str, ...] = ()
    failed_runs: tuple[str, ...] = ()


class CrashedRun(NamedTuple):
    """A locked, running run whose process died."""

    run: str
    runs_in_process: int
    """How many runs were running in the process, this one included; 0: the process didn't die, but lost its lease
    because the database didn't answer."""
    isolate: bool | None = None
    """Whether it must not share a process with other runs from now on; None: only if it died before and no attempt has
    ended regularly since."""
    error: str | None = None
    """The error that describes the death, as JSON; stored with the run even if it is retried."""


class WakeAddress(NamedTuple):
    """How new work wakes a worker: the channel on which it listens, and the group of workers that run the same tasks.

    An empty channel: it can't listen.
    """

    channel: str
    group: str


UNREACHABLE = WakeAddress("", "")


class SessionRow(NamedTuple):
    """A session. `now`: the time at which `lease_until` was read."""

    session: str
    name: str
    started_at: int
    lease_until: int
    idle: int
    info: str
    runs: int
    status: str | None
    now: int

    @property
    def lease_left(self) -> int:
        """Microseconds until the lease expires."""
        return self.lease_until - self.now


class ClaimedRunRow(NamedTuple):
    """A run that a session has claimed."""

    id: str
    task: str
    queue: str
    attempt: int
    claimed_at: int
    session: str
    now: int


_SESSION_ROWS = RowReader(SessionRow)
_CLAIMED_ROWS = RowReader(ClaimedRunRow)
MAX_CLAIMED_ROWS = 2_000
"""How many claimed runs are read."""


class SessionStore(StoreModule):
    """Worker sessions: leases, and the recovery of runs whose session has died."""

    def __init__(self, context: StoreContext) -> None:
        super().__init__(context)

    def open(
        self, session: str, name: str, lease: int, info: str, status: str | None = None, wake: WakeAddress | None = None
    ) -> None:
        """Register a worker process; its lease, in microseconds, starts now."""
        channel, group = wake or (None, None)
        self._execute(
            "heartbeat", "open_session", session=session, name=name, lease=lease, info=info, status=status,
            channel=channel, wake_group=group,
        )  # fmt: skip

    def renew(self, session: str, lease: int, status: str | None = None) -> bool:
        """Renew the lease and report the worker's status; False if it has expired, which ends the session."""
        return bool(self._execute("heartbeat", "renew_session", session=session, lease=lease, status=status))

    def expire(self, sessions: Sequence[str]) -> None:
        """End the leases of sessions whose processes are known to have exited."""
        self._execute("housekeeping", "expire_sessions", rows=_sessions(sessions))

    def mark_idle(self, session: str, idle: bool) -> None:
        """Set whether the session wants to be notified of new work."""
        self._execute("claim", "mark_idle", session=session, idle=int(idle))

    def count_idle(self, group: str) -> int:
        """Count the live sessions of a group that want to be notified of new work."""
        return int(self._execute("claim", "count_idle", wake_group=group)[0][0])

    def wake_next(self, session: str, group: str) -> bool:
        """Notify another idle worker of the group of this session; return whether there is one."""
        if not self._context.database.dialect.notifies:
            return False
        return bool(self._execute("claim", "wake_next", session=session, wake_group=group)[0][0])

    def unmark_unresponsive(self, session: str, group: str) -> None:
        """Stop notifying the idle worker of the group that is notified first: it didn't respond."""
        if self._context.database.dialect.notifies:
            self._execute("claim", "unmark_unresponsive", session=session, wake_group=group)

    def close(self, session: str) -> bool:
        """Remove the session of a worker that stopped; False if runs still name it: a recovery releases those."""
        return bool(self._execute("heartbeat", "close_session", session=session))

    def excuse(self, session: str) -> None:
        """Let the runs of a session be recovered uncharged.

        Its worker is alive and lost its lease because the database didn't answer.
        """
        self._execute("heartbeat", "excuse_session", session=session)

    def list_live(self, purpose: str = "read") -> list[Row]:
        """Return live sessions: session, name, started_at, lease_until, info."""
        return self._execute(purpose, "list_live_sessions")

    def list_all(self) -> list[SessionRow]:
        """Return all sessions, the oldest first."""
        return _SESSION_ROWS.read_all(self._execute("read", "list_sessions"))

    def claimed(self, session: str | None, limit: int = 100) -> list[ClaimedRunRow]:
        """Return runs that sessions, or one of them, have claimed, those claimed first."""
        rows = self._execute("read", "list_claimed", session=session, size=limit, most=MAX_CLAIMED_ROWS)
        return _CLAIMED_ROWS.read_all((str(id), *others) for id, *others in rows)

    def count_claimed(self, sessions: list[str]) -> list[tuple[str, str, str, int]]:
        """Return session, queue, task and the number of their runs that the session has claimed."""
        rows = self._execute("read", "count_claimed", rows=_sessions(sessions))
        return [(session, queue, task, number) for session, queue, task, number in rows]

    def find_dead(self) -> dict[str, int]:
        """Return sessions whose lease has expired, each with the microseconds since then.

        0: the session has no row, but runs still name it.
        """
        found = self._execute("poll", "find_dead_sessions")
        if not all(isinstance(session, str) and "\ufffd" not in session for session, _ in found):  # only on SQLite
            suspects = self._execute("housekeeping", "suspect_unknown_sessions")
            self._context.quarantine.examine(
                "housekeeping", [str(id) for (id,) in suspects], "the session is no valid text"
            )
        return {session: expired_for for session, expired_for in found if isinstance(session, str)}

    def next_expiry(self) -> int | None:
        """Return the microseconds until the next lease expires, None without sessions."""
        return time_left(*self._execute("poll", "time_to_next_expiry")[0])

    def list_lost(self, age: int) -> list[tuple[int, LostWorker]]:
        """Return the workers that were lost in the last `age` microseconds, each with the time, the last first."""
        lost: dict[str, tuple[int, LostWorker]] = {}
        for at, session, requeued, details in self._execute("read", "list_lost_workers", age=age):
            try:
                more = msgspec.json.decode(details, type=_LossDetails)
            except msgspec.MsgspecError:  # corrupt, or written by another release
                more = _LossDetails()
            last, known = lost.get(session, (at, LostWorker(session, more.name, 0, 0)))
            counts = known.requeued + requeued, known.failed + more.failed
            runs = (*known.runs, *more.runs), (*known.failed_runs, *more.failed_runs)
            lost[session] = last, LostWorker(session, more.name, *counts, known.excused or more.excused, *runs)
        return list(lost.values())

    def recover(self, sessions: Collection[str], too_many: str, *, excused: bool = False) -> RecoveryResult:
        """Recover up to 500 runs of those of these sessions that are still dead under the lock.

        `too_many`: the error of runs that crashed more often than they may. `excused`: the database was unavailable, so
        the sessions may have expired through no fault of their runs.
        """

        def work() -> RecoveryResult:
            return self._transaction("housekeeping", lambda tx: _recover(tx, sessions, too_many, excused=excused))

        rows = _sessions(sessions)
        return self._past_corrupt_rows("housekeeping", work, lambda tx: column(tx.execute("suspect_owned", rows=rows)))


def _recover(tx: Tx, sessions: Collection[str], too_many: str, *, excused: bool) -> RecoveryResult:
    given = _sessions(sessions)
    names: dict[str, str] = dict(tx.execute("lock_dead_sessions", rows=given))
    locked = list(names)
    unknown = set(sessions) - {row[0] for row in tx.execute("find_known_sessions", rows=given)}
    died_with: dict[str, int] = dict(tx.execute("count_runs_of_dead", rows=_sessions(locked)) if locked else ())
    statuses = tx.execute("read_session_statuses", rows=_sessions(locked)) if locked else ()
    leftover = {session: _leftover_runs(status) for session, status in statuses}
    died_with |= dict(tx.execute("count_runs_of_unknown", rows=_sessions(unknown)) if unknown else ())
    if excused:
        died_with = dict.fromkeys(died_with, 0)
    dead = {*locked, *unknown}
    dead_rows = _sessions(sorted(dead))
    picked = tx.execute("pick_runs_of_dead", rows=dead_rows)
    may_fail = [str(id) for id, parent, session in picked if parent is not None and died_with.get(session) == 1]
    lock_runs(tx, affected_ancestors(tx, may_fail))  # parents before their children
    runs = lock_unlocked_runs(tx, (str(id) for id, *_ in picked)) if picked else {}
    runs = {id: run for id, run in runs.items() if run.session in dead}
    running = [id for id, run in runs.items() if run.state == "running"]
    ended = [id for id, run in runs.items() if run.state != "running"]
    crashed = []
    for id in running:
        session = str(runs[id].session)
        runs_in_process = died_with[session]
        if runs_in_process == 1 and leftover.get(session, set()) - {id}:
            runs_in_process = 2  # leftover code of another run is a suspect too
        crashed.append(CrashedRun(id, runs_in_process))
    failed, failed_graphs = record_crashes(tx, runs, crashed, too_many, fenced=False)
    released = tx.execute("release_ended_runs", rows=id_rows(ended)) if ended else []
    history = (
        history_row(str(id), n, "let_go", attempt, session=runs[str(id)].session) for id, n, attempt, _ in released
    )
    tx.execute("add_history", rows=json_rows(history))
    stopped = [*running, *ended]
    return_permits(tx, [*(runs[id].limits for id in stopped), *drop_step_permits(tx, stopped)])
    ended_sessions = {row[0] for row in tx.execute("delete_dead_sessions", rows=dead_rows)}
    requeued = _by_session(runs, (id for id in running if id not in failed))
    given_up = _by_session(runs, failed)
    lost = [
        LostWorker(
            session, names.get(session), len(requeued.get(session, ())), len(given_up.get(session, ())),
            excused=session in requeued and died_with.get(session) == 0,
            runs=requeued.get(session, ()), failed_runs=given_up.get(session, ()),
        )
        for session in sorted(ended_sessions | requeued.keys() | given_up.keys())
    ]  # fmt: skip
    if lost:
        tx.execute("record_lost_workers", rows=json_rows(map(_loss_row, lost)))
    return RecoveryResult(len(running) - len(failed), failed, len(released), sorted(dead), failed_graphs, lost)


def _by_session(runs: Mapping[str, LockedRun], ids: Iterable[str]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for id in ids:
        session = str(runs[id].session)
        found[session] = (*found.get(session, ()), id)
    return found


def _loss_row(lost: LostWorker) -> dict[str, Any]:
    details = msgspec.json.encode(
        _LossDetails(lost.name, lost.failed, lost.excused, lost.runs, lost.failed_runs)
    ).decode()
    return {"session": lost.session, "runs": lost.requeued, "details": details}


def _leftover_runs(status: str | None) -> set[str]:
    """Return lost or abandoned runs whose code was still running: they may have killed the process."""
    try:
        return set(msgspec.json.decode(status or "{}", type=_ReportedStatus).leftover)
    except msgspec.DecodeError:  # written by another release
        return set()


def _sessions(sessions: Iterable[str]) -> str:
    return json_rows({"session": session} for session in sessions)


def record_crashes(
    tx: Tx,
    runs: Mapping[str, LockedRun],
    crashed: Sequence[CrashedRun],
    too_many: str | None = None,
    *,
    fenced: bool,
) -> tuple[list[str], list[str]]:
    """Return crashed runs to ready, or fail those that died alone more often than their `max_crashes` allows.

    Return the runs that failed and the graphs that failed with them. The caller has locked the runs and their parents.
    `too_many`: the error of those that fail, unless their crash has one. `fenced`: the history entry names the fence,
    because the session itself reports the crash.
    """
    rows = [
        {
            "id": crash.run, "runs_in_process": crash.runs_in_process, "error": crash.error,
            "isolate": 0 if not crash.runs_in_process else None if crash.isolate is None else int(crash.isolate),
        }
        for crash in crashed
    ]  # fmt: skip
    by_run = {crash.run: crash for crash in crashed}
    history, ends = [], []
    for id, n, attempt, since, state, ending, *_ in tx.execute("crash_runs", rows=json_rows(rows), too_many=too_many):
        run, crash = runs[str(id)], by_run[str(id)]
        fails = state == "failed" or ending != run.ending
        data: str | None
        if crash.runs_in_process != 1:
            kind, data = "worker_lost", msgspec.json.encode({"together": crash.runs_in_process}).decode()
        else:
            kind, data = "crashed", crash.error or (too_many if fails else None)
        fence = run.fence if fenced else None
        history.append(history_row(run.id, n, kind, attempt, fence=fence, session=run.session, since=since, data=data))
        if fails:
            ends.append(run.ended("failed" if state == "failed" else "undoing"))
    tx.execute("add_history", rows=json_rows(history))
    return [end.id for end in ends if end.is_final], failed_runs(propagate_ends(tx, ends))


class WatcherStore(StoreModule):
    """Client processes that want to be notified when runs end, on databases that notify (decision 15)."""

    def add(self, id: str, lifetime: int, *, hears_workers: bool = False) -> None:
        """Register a process for this many microseconds, and delete the expired rows of processes that died.

        `hears_workers`: workers with this store hand it the ends that they commit, and needn't notify it of those.
        """
        if hears_workers:
            self._context.watcher = id
        if self._context.database.dialect.notifies:
            self._execute("client", "prune_watchers")
            self.renew(id, lifetime)

    def renew(self, id: str, lifetime: int) -> None:
        """Extend the registration."""
        if self._context.database.dialect.notifies:
            self._execute("client", "upsert_watcher", id=id, lifetime=lifetime)

    def remove(self, id: str) -> None:
        """Remove the registration."""
        if self._context.watcher == id:
            self._context.watcher = None
        if self._context.database.dialect.notifies:
            self._execute("client", "delete_watcher", id=id)
