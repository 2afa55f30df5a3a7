"""Reads on a replica of a PostgreSQL server, which may be a little behind: lists, statistics and metrics.

Claims and everything that changes something never use a replica. A read falls back to the primary while the replica is
unreachable, further behind than `MAX_LAG_S`, or doesn't have what was changed through this object yet.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from holdfast.control.control import Control
from holdfast.errors import ConfigError, StoreError
from holdfast.model.clock import MICROS_PER_SECOND
from holdfast.telemetry import log

T = TypeVar("T")

MAX_LAG_S = 30.0
"""A replica that is further behind isn't used."""
CHECK_INTERVAL_S = 1.0
RETRY_INTERVAL_S = 10.0
"""How long a replica that failed is left alone."""


class Read(NamedTuple, Generic[T]):
    """What was read, and how many seconds the replica was behind; None if the primary was read."""

    value: T
    lag_s: float | None


class ReplicaReads:
    """Calls functions with the control of a replica, or of the primary. From any thread."""

    def __init__(self, primary: Control, replica: Control | None = None) -> None:
        self._primary = primary
        self._replica = replica
        self._lock = threading.Lock()
        self._check_at = 0.0
        self._lag_s: float | None = None
        self._problem: str | None = ""  # of the last check; not checked yet
        self._is_same = False
        self._writes = 0
        self._seen_writes = 0
        self._must_reach = 0

    @property
    def has_replica(self) -> bool:
        """Whether a replica is configured."""
        return self._replica is not None

    def run(self, read: Callable[[Control], T]) -> Read[T]:
        """Call `read`, which must change nothing: if it fails on the replica, it is called again."""
        if self._replica is not None and (lag_s := self.lag_s()) is not None:
            try:
                return Read(read(self._replica), lag_s)
            except StoreError as error:
                self._fail(error)
        return Read(read(self._primary), None)

    def changed(self) -> None:
        """Note that the primary was written: the replica isn't read before it has that."""
        with self._lock:
            self._writes += 1

    def lag_s(self) -> float | None:
        """Return how many seconds the replica is behind, measured in the last second; None if it isn't to be used."""
        if not self._lock.acquire(blocking=False):
            return None  # another thread is checking, and the replica may be slow to answer
        try:
            is_stale = self._writes != self._seen_writes and self._lag_s is not None
            if self._replica is not None and (is_stale or time.monotonic() >= self._check_at):
                self._check(self._replica)
            return self._lag_s
        finally:
            self._lock.release()

    def close(self) -> None:
        if self._replica is not None:
            self._replica.close()

    def _check(self, replica: Control) -> None:
        try:
            lag_s, problem = self._measure(replica)
        except (StoreError, ConfigError) as error:
            lag_s, problem = None, str(error)
            self._check_at = time.monotonic() + RETRY_INTERVAL_S
        else:
            self._check_at = time.monotonic() + CHECK_INTERVAL_S
        self._set(lag_s, problem)

    def _measure(self, replica: Control) -> tuple[float | None, str | None]:
        """Return how far the replica is behind, None with the reason if that is too far.

        The primary's position is read first: a replica that has reached it has everything up to now. If it hasn't, what
        it has is as old as the last transaction that it has replayed.
        """
        if not self._is_same:
            if replica.identity != self._primary.identity:
                raise ConfigError("the read URL leads to other tables than those of the app")
            self._is_same = True
        writes = self._writes
        primary, there = self._primary.upkeep.wal_position(), replica.upkeep.wal_position()
        if writes != self._seen_writes:
            self._must_reach, self._seen_writes = primary.bytes, writes
        if there.bytes < self._must_reach:
            return None, None  # it will have it in a moment
        if there.bytes >= primary.bytes:
            return 0.0, None
        if there.replayed_at is None:
            return None, "it has replayed nothing yet"
        lag_s = max(0, primary.now - there.replayed_at) / MICROS_PER_SECOND
        return (lag_s, None) if lag_s <= MAX_LAG_S else (None, f"it is {lag_s:.0f} s behind")

    def _fail(self, error: StoreError) -> None:
        with self._lock:
            self._check_at = time.monotonic() + RETRY_INTERVAL_S
            self._set(None, str(error))

    def _set(self, lag_s: float | None, problem: str | None) -> None:
        if problem is not None and not self._problem:
            log.replica_unused(problem)
        elif problem is None and self._problem:
            log.replica_used()
        self._lag_s, self._problem = lag_s, problem
