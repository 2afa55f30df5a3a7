"""`Control`: the operations of operators by subject, such as `control.runs.cancel(…)`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Self

from holdfast.control.audit import AuditControl
from holdfast.control.budgets import BudgetControl
from holdfast.control.bulk import BulkControl
from holdfast.control.doctor import Doctor
from holdfast.control.events import EventControl
from holdfast.control.explainer import Explainer
from holdfast.control.gate_links import GateLinkControl
from holdfast.control.gates import GateControl
from holdfast.control.graphs import GraphControl
from holdfast.control.interaction import InteractionControl
from holdfast.control.limits import LimitControl
from holdfast.control.maintenance import Maintenance
from holdfast.control.pauses import PauseControl
from holdfast.control.queues import QueueControl
from holdfast.control.runs import RunControl
from holdfast.control.schedules import ScheduleControl
from holdfast.control.stats import CountControl, StatsControl
from holdfast.control.streams import StreamControl
from holdfast.control.tasks import TaskControl
from holdfast.control.tenants import TenantControl
from holdfast.control.tokens import LoginControl, TokenControl
from holdfast.control.topics import TopicControl
from holdfast.control.workers import WorkerControl
from holdfast.model.signed_tokens import LinkSettings
from holdfast.store import Store
from holdfast.store.run_queries import RunPosition
from holdfast.store.run_search import RunSearch
from holdfast.task.registry import Registry

if TYPE_CHECKING:
    from holdfast.control.replay_check import ReplayChecker


class Control:
    """Inspect and operate one database. `tasks` and `check` need the registry of an app; with it, `doctor` also checks
    task settings, and the arguments of forks are validated. `links`: the settings of signed links, by default those of
    the environment."""

    def __init__(self, store: Store, registry: Registry | None = None, links: LinkSettings | None = None) -> None:
        self._store = store
        self._registry = known = Registry() if registry is None else registry
        self.graphs = GraphControl(store)
        self.runs = RunControl(store, known, self.graphs)
        self.search = RunSearch(store)
        self.bulk = BulkControl(store)
        self.counts = CountControl(store)
        self.stats = StatsControl(store)
        self.gates = GateControl(store)
        self.gate_links = GateLinkControl(store, links)
        self.events = EventControl(store)
        self.topics = TopicControl(store)
        self.interaction = InteractionControl(store, known)
        self.streams = StreamControl(store, self.runs, self.interaction)
        self.queues = QueueControl(store)
        self.pauses = PauseControl(store)
        self.schedules = ScheduleControl(store)
        self.tenants = TenantControl(store)
        self.workers = WorkerControl(store)
        self.limits = LimitControl(store)
        self.budgets = BudgetControl(store)
        self.whys = Explainer(store)
        self.upkeep = Maintenance(store)
        self.tasks = TaskControl(known)
        self.audit = AuditControl(store)
        self.tokens = TokenControl(store)
        self.logins = LoginControl(store)
        self.doctor = Doctor(store, known)

    @cached_property
    def check(self) -> ReplayChecker:
        """Check whether unfinished runs replay with the current code."""
        from holdfast.control.replay_check import (
            ReplayChecker,  # imports most of the engine
        )

        return ReplayChecker(self._store, self._registry)

    @property
    def database(self) -> str:
        """The URL of the database without its password."""
        return self._store.database.display_url

    @property
    def identity(self) -> str:
        """A secret that identifies these tables; only clients of the database can read it."""
        return self._store.identity()

    def positions(self, runs: Sequence[str]) -> dict[str, RunPosition]:
        """Return how far runs are, by id, to compare databases."""
        return self._store.queries.positions(runs)

    def close(self) -> None:
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, t: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
