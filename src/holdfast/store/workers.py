"""Worker sessions: their leases, and the recovery of what the dead held."""

from __future__ import annotations

from holdfast.database import Row
from holdfast.store.family import HeldRun, above, held_runs, hold, ids
from holdfast.store.part import Do, Part, batch, record
from holdfast.store.permits import give_back
from holdfast.store.rows import Recovered
from holdfast.store.settling import settle


class Workers(Part):
    """Sessions, alive and dead."""

    def open(self, session: str, name: str, lease: int, info: str) -> None:
        """A worker process has started; its lease, in microseconds, begins now."""
        self._one("heartbeat", "open_session", session=session, name=name, lease=lease, info=info)

    def renew(self, session: str, lease: int) -> bool:
        """The heartbeat; False when the lease had run out: the session is over then."""
        return bool(self._one("heartbeat", "renew_session", session=session, lease=lease))

    def mark_idle(self, session: str, idle: bool) -> None:
        """Whether the session wants to be told of new work."""
        self._one("claim", "mark_idle", session=session, idle=int(idle))

    def close(self, session: str) -> bool:
        """The worker has stopped; False when runs still name it, which a recovery will see to."""
        return bool(self._one("heartbeat", "close_session", session=session))

    def live(self) -> list[Row]:
        return self._one("read", "live_workers")

    def sessions(self) -> list[Row]:
        """All sessions: id, name, start, microseconds left of the lease, idle, info, how many runs name it."""
        return self._one("read", "list_sessions")

    def claimed_by_task(self, sessions: list[str]) -> list[tuple[str, str, int]]:
        """Return session, task and how many runs of it the session holds."""
        rows = self._one("read", "count_claimed", rows=batch({"session": session} for session in sessions))
        return [(session, task, number) for session, task, number in rows]

    def dead(self) -> list[str]:
        """Sessions whose lease is over, or that nobody knows though runs name them."""
        return [row[0] for row in self._one("housekeeping", "dead_sessions")]

    def next_expiry(self) -> int | None:
        """Microseconds until the next lease would be over."""
        left: int | None = self._one("housekeeping", "next_expiry")[0][0]
        return left

    def recover(self, sessions: list[str], crashed_error: str) -> Recovered:
        """Give back up to 500 runs of these sessions, as far as they are still dead under the lock."""
        return self._together("housekeeping", lambda do: self._recover(do, sessions, crashed_error))

    def _recover(self, do: Do, sessions: list[str], crashed_error: str) -> Recovered:
        given = batch({"session": session} for session in sessions)
        locked = {row[0] for row in do("lock_dead", rows=given)}
        unknown = set(sessions) - {row[0] for row in do("known_sessions", rows=given)}
        ours = batch({"session": session} for session in sorted(locked | unknown))
        picked = do("pick_lost", rows=ours)
        hold(do, above(do, [str(id) for id, parent in picked if parent is not None]))  # before its children
        held = held_runs(do("hold_free_runs", rows=ids(str(id) for id, _ in picked))) if picked else {}
        held = {id: run for id, run in held.items() if run.session in locked | unknown}
        running = [id for id, run in held.items() if run.state == "running"]
        others = [id for id, run in held.items() if run.state != "running"]
        failed, failed_with = self._give_back(do, held, running, crashed_error) if running else ([], [])
        released = do("release_lost", rows=ids(others)) if others else []
        let_go = (
            record(str(id), n, "let_go", attempt, session=held[str(id)].session) for id, n, attempt, _ in released
        )
        do("add_history", rows=batch(let_go))
        give_back(do, [held[id].limits for id in (*running, *others)])
        do("forget_sessions", rows=ours)
        return Recovered(len(running) - len(failed), failed, len(released), sorted(locked | unknown), failed_with)

    def _give_back(
        self, do: Do, held: dict[str, HeldRun], running: list[str], error: str
    ) -> tuple[list[str], list[str]]:
        """Runs of the dead go back to ready, or fail; which failed, and which graphs by it."""
        crashed = do("recover_lost", rows=ids(running), error=error)
        records, ends = [], []
        for id, n, attempt, since, state, ending, *_ in crashed:
            run = held[str(id)]
            dies = state == "failed" or ending != run.ending
            data = error if dies else None
            records.append(record(run.id, n, "crashed", attempt, session=run.session, since=since, data=data))
            if dies:
                ends.append(run.ended("failed" if state == "failed" else "undoing"))
        do("add_history", rows=batch(records))
        failed_with = settle(do, ends)
        return [end.id for end in ends if end.final], failed_with
