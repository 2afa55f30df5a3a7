"""The session under which a worker claims runs, and the runs that it has claimed."""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from collections.abc import Iterable

from holdfast.engine.attempt import Attempt


class Session:
    """One lease period of a worker process. A process that lost its lease continues under a new session."""

    def __init__(self, name: str, info: str) -> None:
        self.id = f"{name}:{secrets.token_hex(6)}"
        self.name = name
        self.info = info
        self.valid_until = 0.0
        """Until when (monotonic) the lease is certainly valid: counted from before the heartbeat was sent."""
        self.excused = False
        """Whether it was lost because the database didn't answer; then its runs are not charged with a crash."""

    def renewed(self, sent_at: float, lease: float) -> None:
        self.valid_until = sent_at + lease

    def seconds_left(self) -> float:
        return self.valid_until - time.monotonic()


def worker_name() -> str:
    return f"{socket.gethostname()[:100]}:{os.getpid()}"


class WorkerState:
    """The current session, if any, and the attempts of its claimed runs. Shared by all loops of a worker."""

    def __init__(self) -> None:
        self.session: Session | None = None
        self.last_lost: Session | None = None
        self._attempts: dict[str, Attempt] = {}
        self._lock = threading.Lock()

    def session_id(self) -> str | None:
        """Return the session's id, for log lines."""
        session = self.session
        return None if session is None else session.id

    def begin(self, session: Session) -> None:
        """Make this the current session."""
        with self._lock:
            self.session = session

    def end(self, session: Session) -> list[Attempt] | None:
        """End a session, so that nothing is done under it any more.

        Return its claimed attempts, or None if the session had already ended.
        """
        with self._lock:
            if self.session is not session:
                return None
            self.session, self.last_lost = None, session
            return [attempt for attempt in self._attempts.values() if attempt.session == session.id]

    def add(self, session: Session, attempts: Iterable[Attempt]) -> bool:
        """Add claimed attempts. Return False if the session ended while the claim was under way."""
        with self._lock:
            if self.session is not session:
                return False
            self._attempts.update((attempt.claim.id, attempt) for attempt in attempts)
            return True

    def remove(self, attempts: Iterable[Attempt]) -> None:
        with self._lock:
            for attempt in attempts:
                if self._attempts.get(attempt.claim.id) is attempt:
                    del self._attempts[attempt.claim.id]

    def claimed(self) -> dict[str, Attempt]:
        """Return a copy of the claimed attempts, by run id."""
        with self._lock:
            return dict(self._attempts)

    def unfinished(self) -> list[Attempt]:
        """Return the claimed attempts whose user code is still running."""
        return [attempt for attempt in self.claimed().values() if not attempt.stopped]

    def __len__(self) -> int:
        return len(self._attempts)
