"""The session under which a worker process works, and what it has in hand."""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from collections.abc import Iterable

from holdfast.engine.attempt import Attempt


class Session:
    """One start of a worker, with an id of its own; a process that lost its lease goes on under a new one."""

    def __init__(self, name: str, info: str) -> None:
        self.id = f"{name}:{secrets.token_hex(6)}"
        self.name = name
        self.info = info
        self.good_until = 0.0
        """Until when (monotonic) the lease is certain: reckoned from before the heartbeat was sent."""

        self.excused = False
        """It was lost because the database didn't answer, so its runs aren't charged."""

    def renewed(self, sent_at: float, lease: float) -> None:
        self.good_until = sent_at + lease

    def seconds_left(self) -> float:
        return self.good_until - time.monotonic()


def worker_name() -> str:
    return f"{socket.gethostname()[:100]}:{os.getpid()}"


class WorkerState:
    """The session of now, if any, and the attempts that it has in hand. Shared by all loops of a worker."""

    def __init__(self) -> None:
        self.session: Session | None = None
        self.last_lost: Session | None = None
        self._attempts: dict[str, Attempt] = {}
        self._lock = threading.Lock()

    def named(self) -> str | None:
        """The session's id, for log lines."""
        session = self.session
        return None if session is None else session.id

    def begin(self, session: Session) -> None:
        with self._lock:
            self.session = session

    def end(self, session: Session) -> list[Attempt] | None:
        """The session is over: nobody works under it from now on. What it had in hand; None when that was known."""
        with self._lock:
            if self.session is not session:
                return None
            self.session, self.last_lost = None, session
            return [attempt for attempt in self._attempts.values() if attempt.session == session.id]

    def add(self, session: Session, attempts: Iterable[Attempt]) -> bool:
        """Take attempts in hand; False when the session was lost while their claim was on its way."""
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

    def in_hand(self) -> dict[str, Attempt]:
        with self._lock:
            return dict(self._attempts)

    def __len__(self) -> int:
        return len(self._attempts)
