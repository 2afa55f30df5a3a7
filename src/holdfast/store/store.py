"""The store: all parts on one ground."""

from __future__ import annotations

from holdfast.database import Database
from holdfast.model.clock import Clock, database_clock
from holdfast.model.payloads import Payloads
from holdfast.store.attempts import Attempts
from holdfast.store.claims import Claims
from holdfast.store.counting import Counting
from holdfast.store.events import Events
from holdfast.store.forks import Forks
from holdfast.store.graphs import Graphs
from holdfast.store.health import Health
from holdfast.store.intake import Intake
from holdfast.store.journal import Journal
from holdfast.store.lanes import Lanes
from holdfast.store.limits import Limits
from holdfast.store.listing import Listing
from holdfast.store.operators import Operators
from holdfast.store.part import Ground
from holdfast.store.queues import Queues
from holdfast.store.schedules import Schedules
from holdfast.store.tallies import Tallies
from holdfast.store.timers import Timers
from holdfast.store.tokens import Tokens
from holdfast.store.transactions import Transactions
from holdfast.store.triggers import Triggers
from holdfast.store.upkeep import Upkeep
from holdfast.store.views import Views
from holdfast.store.watchers import Watchers
from holdfast.store.workers import Workers


class Store:
    """All that is durable, as `store.claims.claim(…)` and so on. The first use of a part makes or checks the tables."""

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
        self._ground = ground = Ground(database, clock, self.payloads, migrate=migrate)
        self.lanes = Lanes(ground)
        self.intake = Intake(ground, self.lanes)
        self.graphs = Graphs(ground, self.lanes, self.intake)
        self.claims = Claims(ground)
        self.attempts = Attempts(ground)
        self.journal = Journal(ground, self.lanes)
        self.transactions = Transactions(ground, self.journal)
        self.events = Events(ground)
        self.forks = Forks(ground)
        self.workers = Workers(ground)
        self.watchers = Watchers(ground)
        self.timers = Timers(ground)
        self.schedules = Schedules(ground, self.lanes)
        self.triggers = Triggers(ground)
        self.operators = Operators(ground)
        self.limits = Limits(ground)
        self.queues = Queues(ground)
        self.tokens = Tokens(ground)
        self.upkeep = Upkeep(ground)
        self.views = Views(ground)
        self.listing = Listing(ground, self.lanes)
        self.counting = Counting(ground)
        self.health = Health(ground)
        self.tallies = Tallies(ground)

    @property
    def clock(self) -> Clock:
        """What statements take the time from."""
        return self._ground.clock

    def prepare(self) -> list[str]:
        """Make or check the tables now; the migrations that were applied."""
        return self._ground.prepare()

    def identity(self) -> str:
        """What tells these tables from those of another database or schema."""
        return self._ground.identity()

    def beside(self, database: Database, *, migrate: bool | None = None) -> Store:
        """A store with the same settings on other connections to the same tables, or on another database; `migrate`:
        where that is to be otherwise."""
        migrates = self._ground.migrates if migrate is None else migrate
        return Store(database, migrate=migrates, clock=self._ground.clock, payloads=self.payloads)

    def be_patient_for(self, seconds: float) -> None:
        """How long a transaction of ours may stay idle before the server ends it; for lines opened from now on."""
        self._ground.patience = seconds

    def close(self) -> None:
        self.database.close()
