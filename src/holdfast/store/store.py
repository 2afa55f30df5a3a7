"""The store: the table of contents of everything that is durable."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from holdfast.database import Database
from holdfast.database.migrate import check_version
from holdfast.model.clock import Clock, database_clock
from holdfast.model.payloads import Payloads
from holdfast.store.access import LoginStore, TokenStore
from holdfast.store.admin import DatabaseHealth, QueueStore, RunCounts
from holdfast.store.attempts import AttemptStore, OutcomeStore
from holdfast.store.audit import AuditStore
from holdfast.store.budgets import BudgetStore
from holdfast.store.claims import ClaimStore
from holdfast.store.enqueue import EnqueueStore, LaneStore
from holdfast.store.graph_forks import GraphForks
from holdfast.store.graphs import GraphStore
from holdfast.store.interaction import AskStore, ValueStore
from holdfast.store.journal import Journal
from holdfast.store.lane_collection import LaneCollector
from holdfast.store.limits import LimitStore
from holdfast.store.logs import LogStore
from holdfast.store.module import ClientClaims, ClientCommitCallback, StoreContext
from holdfast.store.pauses import PauseStore
from holdfast.store.quarantine import Quarantine
from holdfast.store.retention import Retention
from holdfast.store.run_actions import RunActions
from holdfast.store.run_list import RunList
from holdfast.store.run_queries import RunQueries
from holdfast.store.schedules import ScheduleStore, TriggerStore
from holdfast.store.sessions import SessionStore, WatcherStore
from holdfast.store.sorted_runs import SortedRuns
from holdfast.store.stats import StatsStore
from holdfast.store.step_transactions import StepTransactions
from holdfast.store.threads import ThreadStore
from holdfast.store.timers import TimerStore
from holdfast.store.topics import TopicStore
from holdfast.store.waits import EventStore


class Store:
    """Everything durable, by subject: `store.claims.claim(…)`, `store.journal.record(…)` and so on.

    All methods block. The first statement creates or checks the tables.
    """

    def __init__(
        self,
        database: Database,
        *,
        migrate: bool = True,
        clock: Clock = database_clock,
        payloads: Payloads | None = None,
    ) -> None:
        self.database = database
        self.payloads = payloads or Payloads()
        self._context = context = StoreContext(database, clock, self.payloads, migrate=migrate)

        # Create runs.
        self.lanes = LaneStore(context)
        self.enqueuer = EnqueueStore(context, self.lanes)
        self.graphs = GraphStore(context, self.lanes, self.enqueuer)
        self.schedules = ScheduleStore(context, self.lanes)
        self.triggers = TriggerStore(context)

        # Execute them: workers only.
        self.sessions = SessionStore(context)
        self.claims = ClaimStore(context)
        self.journal = Journal(context, self.lanes)
        self.step_transactions = StepTransactions(context, self.journal)
        self.attempts = AttemptStore(context)
        self.logs = LogStore(context)
        self.timers = TimerStore(context)

        # Act on them from outside.
        self.actions = RunActions(context)
        self.graph_forks = GraphForks(context, self.lanes)
        self.pauses = PauseStore(context)
        self.events = EventStore(context)
        self.topics = TopicStore(context)
        self.asks = AskStore(context)
        self.limits = LimitStore(context)
        self.threads = ThreadStore(context)
        self.budgets = BudgetStore(context)

        # Read them.
        self.outcomes = OutcomeStore(context)
        self.queries = RunQueries(context)
        self.run_list = RunList(context, self.lanes)
        self.sorted_runs = SortedRuns(context, self.run_list)
        self.values = ValueStore(context)
        self.watchers = WatcherStore(context)
        self.is_claimed_here = context.is_claimed_here

        # Operate the database.
        self.audit = AuditStore(context)
        self.queues = QueueStore(context)
        self.tokens = TokenStore(context)
        self.logins = LoginStore(context)
        self.counts = RunCounts(context)
        self.stats = StatsStore(context)
        self.retention = Retention(context)
        self.lane_collector = LaneCollector(context, self.lanes)
        self.health = DatabaseHealth(context)
        self.quarantine = context.quarantine = Quarantine(context)

    @property
    def clock(self) -> Clock:
        """The source of `now` in statements; returns None where the database clock decides."""
        return self._context.clock

    def prepare(self) -> list[str]:
        """Create, migrate or check the tables now; return the names of migrations applied."""
        return self._context.prepare()

    def migrate(self) -> list[str]:
        """Migrate the tables even if this store was opened with `migrate=False`; return the migrations applied."""
        self._context.migrates = True
        return self._context.prepare()

    def version(self) -> int:
        """Return the schema version of the tables, 0 if there are none. Changes nothing."""
        managed = self.database.connection("client", self._context.idle_timeout_s)
        return managed.run(lambda connection: check_version(self.database, connection))

    def identity(self) -> str:
        """Return the random id of these tables, which differs between databases and schemas."""
        return self._context.identity()

    def with_database(self, database: Database, *, migrate: bool | None = None) -> Store:
        """Return a store with the same settings on other connections or on another database."""
        migrates = self._context.migrates if migrate is None else migrate
        return Store(database, migrate=migrates, clock=self._context.clock, payloads=self.payloads)

    def on_client_commit(self, callback: ClientCommitCallback) -> Callable[[], None]:
        """Call this after each commit of a client in this process; return a function that stops it."""
        return self._context.on_client_commit(callback)

    def claim_for_clients(self, claims: ClientClaims) -> Callable[[], None]:
        """Let a worker claim in the transactions of clients of this process; return a function that ends it."""
        return self._context.claim_for_clients(claims)

    def report_claimed(self, is_claimed: Callable[[str], bool]) -> Callable[[], None]:
        """Let a worker of this process tell which runs it executes; return a function that ends it."""
        return self._context.report_claimed(is_claimed)

    def user_transaction(self) -> AbstractContextManager[Any]:
        """Open a transaction for the user, which client calls of the same thread join (SQLite only)."""
        self.prepare()
        return self._signalling(self.database.transaction())

    @contextmanager
    def _signalling(self, transaction: AbstractContextManager[Any]) -> Iterator[Any]:
        with transaction as connection:
            yield connection
        self._context.client_committed()

    def set_idle_transaction_timeout(self, seconds: float) -> None:
        """Let the server end transactions that stay idle this long, on connections opened from now on."""
        self._context.idle_timeout_s = seconds

    def close(self) -> None:
        """Close all connections."""
        self.database.close()
