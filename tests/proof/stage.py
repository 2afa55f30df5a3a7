"""What all seeds of a process share: the database in memory, its stores, the tasks. Made once, wiped for each seed."""

from __future__ import annotations

import random
from datetime import timedelta
from unittest import mock

from greenlet import greenlet

from holdfast import Holdfast
from holdfast.client.client import Client
from holdfast.store import Store
from tests.proof.clockwork import BEGINNING, Clock
from tests.proof.faulty import FaultyDatabase, Host, Shared
from tests.proof.mirror import Mirror
from tests.proof.workload import Troupe

KEEP = ("holdfast_meta", "holdfast_lanes", "holdfast_limit_settings")
SLOTS = 5
"""How many worker processes there can be at once, those that just died included."""


class Process:
    """A process as the database sees it: whose calls they are, and who decides what becomes of them. Without a `host`
    all of them succeed at once."""

    def __init__(self, stage: Stage, name: str) -> None:
        self.name = name
        self.host: Host | None = None
        self.database = FaultyDatabase(stage.shared, self, stage.now)
        self.store = Store(self.database, clock=stage.now)

    def arrive(self, what: str) -> None:
        if self.host is not None:
            self.host.arrive(what)

    def leave(self, what: str) -> None:
        if self.host is not None:
            self.host.leave(what)

    def committed(self, host: Host) -> None:
        if self.host is not None:
            self.host.committed(host)

    def rolled_back(self) -> None:
        if self.host is not None:
            self.host.rolled_back()

    def pause(self, seconds: float | None) -> None:
        assert self.host is not None
        self.host.pause(seconds)

    def go_on(self, stopped: greenlet) -> None:
        if self.host is not None:
            self.host.go_on(stopped)


class Stage:
    """The database and the stores on it."""

    def __init__(self) -> None:
        self.clock: Clock | None = None
        self.shared = Shared()
        self.client = Process(self, "client")
        with mock.patch("holdfast.database.open_database", return_value=self.client.database):
            self.app = Holdfast("sqlite:///:memory:", clock=self.now, name="simulated")
        self.app.store = self.app._client.store
        self.client.store = self.app.store
        self.troupe = Troupe(self.app)
        self.app.schedule("every", self.troupe.child, args=("slot",), every=timedelta(seconds=4), overlap="skip")
        self.workers = [Process(self, f"w{number}") for number in range(SLOTS)]
        self.clients = [
            Client(process.store, self.app.registry, self.app._keep, self.app.telemetry) for process in self.workers
        ]
        self._warm_up()
        self.mirror = Mirror(self.shared.apsw)

    def now(self) -> int:
        return BEGINNING if self.clock is None else self.clock.database()

    def _warm_up(self) -> None:
        """Make all lanes, in the same order each time, and let all stores know them: no seed begins with less."""
        self.app.registry.load()
        self.app.registry.resolve()
        self.client.store.prepare()
        self.shared.apsw.execute("create table author_effects (run text, name text, n int, primary key (run, name, n))")
        limits = self.app.registry.limits
        self.client.store.limits.declare((limit.name, limit.concurrency, limit.rate) for limit in limits)
        for task in self.troupe.jobs:
            task.enqueue("warm", 0, 0)
        self.troupe.child.enqueue("warm")
        self.troupe.broken.enqueue("warm")
        self.troupe.culprit.enqueue("warm", 0)
        self.troupe.program.enqueue(["step", "warm", 0, "dawn"], 0, "")
        self.troupe.plain.enqueue(["step", "warm", 0, "dawn"], 0, "")
        self.app.submit(self.troupe.graph(random.Random(0), "warm"))
        for process in (self.client, *self.workers):
            process.store.prepare()
            process.store.lanes.refresh("claim")

    def reset(self, clock: Clock) -> Mirror:
        """An empty database on this clock."""
        self.clock = clock
        self.shared.wipe(KEEP)
        for process in (self.client, *self.workers):
            process.host = None
            process.database.forget_lines()
        self.mirror = Mirror(self.shared.apsw)
        self.mirror.rows["limit_settings"] = self._limit_settings()
        self.mirror.watch()
        return self.mirror

    def _limit_settings(self) -> dict:
        rows = self.shared.apsw.execute("select name, concurrency from holdfast_limit_settings").fetchall()
        return {(name,): {"name": name, "concurrency": concurrency} for name, concurrency in rows}
