"""What an attempt needs of the database to go on is asked for again while that is away, for as long as the run is ours.

So that a database that restarts costs an attempt time, and nothing else: what it writes waits in the committer, and
what it reads, and the transactions of its author, wait here.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from holdfast.database.faults import Expired
from holdfast.engine.attempt import Attempt
from holdfast.engine.clerk import Reader
from holdfast.engine.loops.base import FIRST_PAUSE
from holdfast.errors import StoreUnavailable
from holdfast.telemetry import log

T = TypeVar("T")
LOOK = 0.05


def patiently(attempt: Attempt, work: Callable[[], T]) -> T:
    """Do the work, which blocks and is safe to repeat. Its last error when author code is told to stop meanwhile."""
    waited = False
    while True:
        try:
            done = work()
        except Expired:
            raise  # its own slowness: the same again would end the same way
        except StoreUnavailable as error:
            if attempt.order is not None:
                raise
            if not waited:
                log.attempt_waits_for_database(attempt.claim.id, attempt.task.name, attempt.claim.attempt, error)
            waited = True
            _pause(attempt)
        else:
            return done


def _pause(attempt: Attempt) -> None:
    until = time.monotonic() + FIRST_PAUSE
    while attempt.order is None and time.monotonic() < until:
        time.sleep(LOOK)


class PatientReader:
    """A reader for one attempt."""

    def __init__(self, attempt: Attempt, reader: Reader) -> None:
        self._attempt = attempt
        self._reader = reader

    def spawned(self, parent: str) -> dict[str, Any]:
        return patiently(self._attempt, lambda: self._reader.spawned(parent))

    def children(self, parent: str, spawn_key: str) -> list[Any]:
        return patiently(self._attempt, lambda: self._reader.children(parent, spawn_key))
