"""Worker sessions: their leases, and the recovery of what the dead held."""

from __future__ import annotations

from holdfast.database import Row
from holdfast.store.part import Do, Part, batch, record
from holdfast.store.rows import Recovered


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
        held_by = {str(id): (session, state) for id, session, state in do("pick_lost", rows=ours)}
        running = [id for id, (_, state) in held_by.items() if state == "running"]
        others = [id for id, (_, state) in held_by.items() if state != "running"]
        crashed = do("recover_lost", rows=batch({"id": id} for id in running), error=crashed_error) if running else []
        released = do("release_lost", rows=batch({"id": id} for id in others)) if others else []
        errors = {"failed": crashed_error}
        records = [
            record(str(id), n, "crashed", attempt, session=held_by[str(id)][0], since=since, data=errors.get(state))
            for id, n, attempt, since, state, _ in crashed
        ]
        records += [
            record(str(id), n, "let_go", attempt, session=held_by[str(id)][0]) for id, n, attempt, _ in released
        ]
        do("add_history", rows=batch(records))
        do("forget_sessions", rows=ours)
        failed = [str(row[0]) for row in crashed if row[4] == "failed"]
        return Recovered(len(crashed) - len(failed), failed, len(released), sorted(locked | unknown))
