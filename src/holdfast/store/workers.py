"""Worker sessions: their leases, and the recovery of runs whose session has died."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from holdfast.database import Row
from holdfast.store.crashes import Death, record_deaths
from holdfast.store.family import above, held_runs, hold, ids
from holdfast.store.part import Do, Part, batch, record
from holdfast.store.permits import give_back
from holdfast.store.rows import Recovered


class _Reported(msgspec.Struct):
    """The part of a worker's reported health that recovery needs."""

    leftover: Sequence[str] = ()


class Workers(Part):
    """Sessions, alive and dead."""

    def open(self, session: str, name: str, lease: int, info: str, status: str | None = None) -> None:
        """A worker process has started; its lease, in microseconds, begins now."""
        self._one("heartbeat", "open_session", session=session, name=name, lease=lease, info=info, status=status)

    def renew(self, session: str, lease: int, status: str | None = None) -> bool:
        """Renew the lease and report the worker's health; False if the lease has expired: the session has ended."""
        return bool(self._one("heartbeat", "renew_session", session=session, lease=lease, status=status))

    def expire(self, sessions: Sequence[str]) -> None:
        """End the leases of sessions whose processes are known to have ended."""
        self._one("housekeeping", "expire_sessions", rows=_sessions(sessions))

    def mark_idle(self, session: str, idle: bool) -> None:
        """Whether the session wants to be told of new work."""
        self._one("claim", "mark_idle", session=session, idle=int(idle))

    def close(self, session: str) -> bool:
        """The worker has stopped; False when runs still name it, which a recovery will see to."""
        return bool(self._one("heartbeat", "close_session", session=session))

    def excuse(self, session: str) -> None:
        """Mark a session so that its runs are recovered uncharged: its worker is alive, and lost its lease because the
        database didn't answer."""
        self._one("heartbeat", "excuse_session", session=session)

    def live(self) -> list[Row]:
        return self._one("read", "live_workers")

    def sessions(self) -> list[Row]:
        """All sessions: id, name, start, microseconds left of the lease, idle, info, how many runs name it, and the
        health that it reported."""
        return self._one("read", "list_sessions")

    def claimed_by_task(self, sessions: list[str]) -> list[tuple[str, str, int]]:
        """Return session, task and how many runs of the task the session has claimed."""
        rows = self._one("read", "count_claimed", rows=_sessions(sessions))
        return [(session, task, number) for session, task, number in rows]

    def dead(self) -> list[str]:
        """Sessions whose lease is over, or that nobody knows though runs name them."""
        return [row[0] for row in self._one("housekeeping", "dead_sessions")]

    def next_expiry(self) -> int | None:
        """Microseconds until the next lease would be over."""
        left: int | None = self._one("housekeeping", "next_expiry")[0][0]
        return left

    def recover(self, sessions: list[str], too_many: str, *, excused: bool = False) -> Recovered:
        """Recover up to 500 runs of these sessions, as far as they are still dead under the lock.

        `too_many`: the error of runs that fail because they crashed more often than they may. `excused`: the database
        was away, so the sessions may have expired through no fault of their runs.
        """
        return self._together("housekeeping", lambda do: self._recover(do, sessions, too_many, excused=excused))

    def _recover(self, do: Do, sessions: list[str], too_many: str, *, excused: bool) -> Recovered:
        given = _sessions(sessions)
        locked = [row[0] for row in do("lock_dead", rows=given)]
        unknown = set(sessions) - {row[0] for row in do("known_sessions", rows=given)}
        counted = do("count_dead", rows=_sessions(locked)) if locked else []
        died_with: dict[str, int] = {session: runs for session, runs, _ in counted}
        leftover = {session: _leftover(status) for session, _, status in counted}
        died_with |= dict(do("running_of_sessions", rows=_sessions(unknown)) if unknown else ())
        if excused:
            died_with = dict.fromkeys(died_with, 0)
        dead = {*locked, *unknown}
        ours = _sessions(sorted(dead))
        picked = do("pick_lost", rows=ours)
        may_fail = [str(id) for id, parent, session in picked if parent is not None and died_with.get(session) == 1]
        hold(do, above(do, may_fail))  # before its children
        held = held_runs(do("hold_free_runs", rows=ids(str(id) for id, *_ in picked))) if picked else {}
        held = {id: run for id, run in held.items() if run.session in dead}
        running = [id for id, run in held.items() if run.state == "running"]
        others = [id for id, run in held.items() if run.state != "running"]
        deaths = []
        for id in running:
            session = str(held[id].session)
            together = died_with[session]
            if together == 1 and leftover.get(session, set()) - {id}:  # leftover code of another run is a suspect, too
                together = 2
            deaths.append(Death(id, together))
        failed, failed_with = record_deaths(do, held, deaths, too_many, fenced=False)
        released = do("release_lost", rows=ids(others)) if others else []
        let_go = (
            record(str(id), n, "let_go", attempt, session=held[str(id)].session) for id, n, attempt, _ in released
        )
        do("add_history", rows=batch(let_go))
        give_back(do, [held[id].limits for id in (*running, *others)])
        do("forget_sessions", rows=ours)
        return Recovered(len(running) - len(failed), failed, len(released), sorted(dead), failed_with)


def _leftover(status: str | None) -> set[str]:
    """Return runs that the worker had lost or abandoned while their code still ran: it may have killed the process."""
    try:
        return set(msgspec.json.decode(status or "{}", type=_Reported).leftover)
    except msgspec.DecodeError:  # another release, or something else, wrote it
        return set()


def _sessions(sessions: Iterable[str]) -> str:
    return batch({"session": session} for session in sessions)
