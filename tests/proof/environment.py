"""The environment that all seeds of a process share: in-memory database, stores and tasks; cleared for each seed."""

from __future__ import annotations

import random
from datetime import timedelta
from unittest import mock

from greenlet import greenlet

from holdfast import Holdfast
from holdfast.client.client import Client
from holdfast.model.keep import KeepRules
from holdfast.store import Store
from tests.proof.faulty_database import FaultyDatabase, ProcessHooks, SharedDatabase
from tests.proof.replica import Replica
from tests.proof.virtual_time import EPOCH_US, Clock
from tests.proof.workload import SimulatedTasks

KEPT_TABLES = (
    "holdfast_meta", "holdfast_lanes", "holdfast_limit_settings", "holdfast_budgets", "holdfast_subscriptions",
)  # fmt: skip
MAX_PROCESSES = 5
"""Maximum number of simultaneous worker processes, including those that have just died."""


class Process:
    """A simulated process with its own database and store.

    Its `hooks` decide which database calls fail or stall. Without hooks, every call succeeds at once.
    """

    def __init__(self, environment: Environment, name: str) -> None:
        self.name = name
        self.hooks: ProcessHooks | None = None
        self.database = FaultyDatabase(environment.shared, self, environment.now)
        self.store = Store(self.database, clock=environment.now)

    def before_transaction(self, what: str) -> None:
        if self.hooks is not None:
            self.hooks.before_transaction(what)

    def before_reply(self, what: str) -> None:
        if self.hooks is not None:
            self.hooks.before_reply(what)

    def committed(self, hooks: ProcessHooks) -> None:
        if self.hooks is not None:
            self.hooks.committed(hooks)

    def rolled_back(self) -> None:
        if self.hooks is not None:
            self.hooks.rolled_back()

    def pause(self, seconds: float | None) -> None:
        assert self.hooks is not None
        self.hooks.pause(seconds)

    def resume(self, stopped: greenlet) -> None:
        if self.hooks is not None:
            self.hooks.resume(stopped)


class Environment:
    """The database, its stores and the app with its tasks."""

    def __init__(self) -> None:
        self.clock: Clock | None = None
        self.shared = SharedDatabase()
        self.client = Process(self, "client")
        with mock.patch("holdfast.database.open_database", return_value=self.client.database):
            self.app = Holdfast("sqlite:///:memory:", clock=self.now, name="simulated")
        self.app.store = self.app._client.store
        self.client.store = self.app.store
        self.tasks = SimulatedTasks(self.app)
        self.app.schedule("every", self.tasks.child, args=("slot",), every=timedelta(seconds=4), overlap="skip")
        self.workers = [Process(self, f"w{number}") for number in range(MAX_PROCESSES)]
        self.clients = [
            Client(process.store, self.app.registry, KeepRules(self.app._keep), self.app.telemetry, self.app.links)
            for process in self.workers
        ]
        for client in self.clients:
            client.app_name = self.app._client.app_name  # otherwise another app takes over the subscriptions
        self._create_lanes()
        self.replica = Replica(self.shared.apsw)

    def now(self) -> int:
        return EPOCH_US if self.clock is None else self.clock.database()

    def _create_lanes(self) -> None:
        """Create all lanes in a fixed order and load them into all stores, so that all seeds start alike."""
        self.app.registry.load()
        self.app.registry.resolve()
        self.client.store.prepare()
        self.shared.apsw.execute("create table author_effects (run text, name text, n int, primary key (run, name, n))")
        limits = self.app.registry.limits
        self.client.store.limits.declare(
            (limit.name, limit.concurrency, limit.rate, limit.cost is not None) for limit in limits
        )
        self.client.store.budgets.declare(self.app.registry.budgets)
        for task in self.tasks.jobs:
            task.enqueue("warm", 0, 0)
        self.tasks.heard.enqueue("warm")
        self.tasks.child.enqueue("warm")
        self.tasks.broken.enqueue("warm")
        self.tasks.culprit.enqueue("warm", 0)
        self.tasks.side.enqueue("warm", 0)
        self.tasks.program.enqueue(["step", "warm", 0, "dawn"], 0, "")
        self.tasks.plain.enqueue(["step", "warm", 0, "dawn"], 0, "")
        self.tasks.batched.enqueue(("warm", 0, 0))
        self.app.remote("noted").enqueue("warm")
        self.app.submit(self.tasks.graph(random.Random(0), "warm"))
        for process in (self.client, *self.workers):
            process.store.prepare()
            process.store.lanes.refresh("claim")
        for client in (self.app._client, *self.clients):  # otherwise the first call does, in whichever seed that is
            client.creator.declare_limits()
            client.topics._declare()

    def reset(self, clock: Clock) -> Replica:
        """Empty the database and use this clock."""
        self.clock = clock
        self.shared.clear(KEPT_TABLES)
        for process in (self.client, *self.workers):
            process.hooks = None
            process.database.forget_connections()
            process.store.lanes._monotonic, process.store.lanes._read_at = clock.monotonic, clock.monotonic()
        for limit in self.app.registry.limits:
            self.client.store.limits.reset(limit.name)
        for budget in self.app.registry.budgets:
            self.client.store.budgets.reset(budget.name)
        self.replica = Replica(self.shared.apsw)
        self.replica.rows["limit_settings"] = self._settings("limit_settings", "name", "concurrency", "rate", "period")
        self.replica.rows["budgets"] = self._settings("budgets", "name", "bound", "check_at")
        self.replica.watch()
        return self.replica

    def _settings(self, table: str, *columns: str) -> dict:
        rows = self.shared.apsw.execute(f"select {', '.join(columns)} from holdfast_{table}").fetchall()
        return {(row[0],): dict(zip(columns, row, strict=True)) for row in rows}
