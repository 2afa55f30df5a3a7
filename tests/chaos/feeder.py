"""Gives the workers something to do: roots of every kind, and what they wait for from outside.

Each call is repeated until it is answered, with the same idempotency key, as a careful application would. What was
answered is acknowledged: it must not be lost. Who is in the middle of a call when the run is broken off doesn't know.
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
from tests.support.counting import ask

UNFINISHED = "select count(*) from {}runs where finished_at is null and root is null"
PAUSE = 0.1
LATEST = 2.0
T = TypeVar("T")


class Feeder:
    """Starts roots at a rate, but no more than `most` unfinished ones at once."""

    def __init__(self, workload: Workload, rate: float, most: int, random_source: random.Random) -> None:
        self.acknowledged: dict[str, UUID] = {}
        self.repeats = 0
        self.errors: list[str] = []
        self.unfinished = 0
        self._workload = workload
        self._rate = rate
        self._most = most
        self._random = random_source
        self._kinds = cycle(REGULAR)
        self._numbers = count()
        self._later: list[tuple[float, int, Callable[[], object]]] = []
        self._over = threading.Event()
        self._broken_off = threading.Event()
        self._threads = [
            threading.Thread(target=self._guarded, args=(work,), daemon=True) for work in (self._feed, self._follow)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def finish(self) -> None:
        """Start no more; what was promised to those that wait is still done, in the background."""
        self._over.set()
        self._threads[0].join()

    def close(self) -> None:
        self._over.set()
        self._broken_off.set()
        for thread in self._threads:
            thread.join()

    @property
    def promised(self) -> int:
        """How many are still to hear what they wait for."""
        return len(self._later)

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception:
            self.errors.append(f"the feeder: {traceback.format_exc()}")

    def _feed(self) -> None:
        looked = 0.0
        while not self._over.wait(self._random.uniform(0, 2 / self._rate)):
            if time.monotonic() > looked + 0.5:
                looked = time.monotonic()
                self.unfinished = self._surely(lambda: ask(self._workload.app, UNFINISHED)[0][0]) or 0
            if self.unfinished < self._most:
                self.start_one(next(self._kinds))

    def start_one(self, kind: str) -> bool:
        """Start a root of this kind; False when the run is broken off before that is acknowledged."""
        mark = f"{kind}-{next(self._numbers)}"
        run = self._surely(lambda: self._workload.start[kind](mark))
        if run is None:
            return False
        self.acknowledged[mark] = run.id
        self.unfinished += 1
        if kind in ("order", "plain"):
            self._promise(lambda: self._workload.app.emit(f"go {mark}", "gone"))
            self._promise(lambda: _send(run))
        if kind == "graph":
            self._promise(lambda: run.gate("ok").complete("yes"))
        return True

    def _promise(self, act: Callable[[], object]) -> None:
        when = time.monotonic() + self._random.uniform(0, LATEST)
        heapq.heappush(self._later, (when, next(self._numbers), act))

    def _follow(self) -> None:
        while not self._broken_off.is_set():
            if self._later and self._later[0][0] < time.monotonic():
                self._surely(self._later[0][2])
                heapq.heappop(self._later)
            else:
                time.sleep(PAUSE / 5)

    def _surely(self, act: Callable[[], T]) -> T | None:
        """Do it, again and again while the database is away; None when the run is broken off."""
        while not self._broken_off.is_set():
            try:
                return act()
            except StoreUnavailable:
                self.repeats += 1
                time.sleep(PAUSE)
        return None


def _send(run: Run[object]) -> None:
    """A repeat after a lost answer may come when the run has had the first one, and ended."""
    with suppress(RunFinished):
        run.send("note", "sent")
