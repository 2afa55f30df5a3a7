"""Starts runs of every kind, and sends the events, messages and approvals that they wait for.

Each call is repeated with the same idempotency key until it is answered, as a careful application would. An answered
call is acknowledged: its run must not be lost. A call in progress when the chaos run is aborted has no known result.
"""

from __future__ import annotations

import heapq
import random
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from itertools import count, cycle
from typing import TypeVar
from uuid import UUID

from holdfast import Run
from holdfast.errors import RunFinished, StoreUnavailable
from tests.chaos.workload import REGULAR, Workload
from tests.support.history_queries import fetch

UNFINISHED = "select count(*) from {}runs where finished_at is null and root is null"
RETRY_INTERVAL_S = 0.1
MAX_DELAY_S = 2.0
T = TypeVar("T")


class Feeder:
    """Starts roots at a rate, with at most `max_unfinished` unfinished ones."""

    def __init__(self, workload: Workload, rate: float, max_unfinished: int, random_source: random.Random) -> None:
        self.acknowledged: dict[str, UUID] = {}
        self.repeats = 0
        self.errors: list[str] = []
        self.unfinished = 0
        self._workload = workload
        self._rate = rate
        self._max_unfinished = max_unfinished
        self._random = random_source
        self._kinds = cycle(REGULAR)
        self._numbers = count()
        self._later: list[tuple[float, int, Callable[[], object]]] = []
        self._stopped = threading.Event()
        self._aborted = threading.Event()
        self._threads = [
            threading.Thread(target=self._catch_errors, args=(work,), daemon=True)
            for work in (self._feed, self._run_scheduled)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def finish(self) -> None:
        """Start no more roots. Scheduled events and messages are still sent in the background."""
        self._stopped.set()
        self._threads[0].join()

    def close(self) -> None:
        self._stopped.set()
        self._aborted.set()
        for thread in self._threads:
            thread.join()

    @property
    def scheduled(self) -> int:
        """The number of scheduled actions that are still to be done."""
        return len(self._later)

    def _catch_errors(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception:
            self.errors.append(f"feeder: {traceback.format_exc()}")

    def _feed(self) -> None:
        polled_at = 0.0
        while not self._stopped.wait(self._random.uniform(0, 2 / self._rate)):
            if time.monotonic() > polled_at + 0.5:
                polled_at = time.monotonic()
                self.unfinished = self.persist(lambda: fetch(self._workload.app, UNFINISHED)[0][0]) or 0
            if self.unfinished < self._max_unfinished:
                self.start_one(next(self._kinds))

    def start_one(self, kind: str) -> bool:
        """Start a root of this kind; return False if the chaos run is aborted before the answer."""
        mark = f"{kind}-{next(self._numbers)}"
        run = self.persist(lambda: self._workload.start[kind](mark))
        if run is None:
            return False
        self.acknowledged[mark] = run.id
        self.unfinished += 1
        if kind in ("order", "plain"):
            self._schedule(lambda: self._workload.app.emit(f"go {mark}", "gone"))
            self._schedule(lambda: _send(run))
        if kind == "topic":
            self._schedule(lambda: self._workload.pay(mark))
        if kind == "graph":
            self._schedule(lambda: run.gate("ok").complete("yes"))
        return True

    def _schedule(self, act: Callable[[], object]) -> None:
        when = time.monotonic() + self._random.uniform(0, MAX_DELAY_S)
        heapq.heappush(self._later, (when, next(self._numbers), act))

    def _run_scheduled(self) -> None:
        while not self._aborted.is_set():
            if self._later and self._later[0][0] < time.monotonic():
                self.persist(self._later[0][2])
                heapq.heappop(self._later)
            else:
                time.sleep(RETRY_INTERVAL_S / 5)

    def persist(self, act: Callable[[], T]) -> T | None:
        """Call `act` until the database answers; return None if the chaos run is aborted."""
        while not self._aborted.is_set():
            try:
                return act()
            except StoreUnavailable:
                self.repeats += 1
                time.sleep(RETRY_INTERVAL_S)
        return None


def _send(run: Run[object]) -> None:
    """Send a message. After a lost answer, the run may have received the first one and finished."""
    with suppress(RunFinished):
        run.send("note", "sent")
