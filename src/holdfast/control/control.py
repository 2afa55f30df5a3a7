"""`Control`: all that operators can see and do, by subject, as `control.runs.cancel(…)` and so on."""

from __future__ import annotations

from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Self

from holdfast.control.bulk import Bulk
from holdfast.control.counts import Counting
from holdfast.control.doctor import Doctor
from holdfast.control.events import Events
from holdfast.control.gates import Gates
from holdfast.control.graphs import Graphs
from holdfast.control.limits import Limits
from holdfast.control.queues import Queues
from holdfast.control.runs import Runs
from holdfast.control.schedules import Schedules
from holdfast.control.stats import Statistics
from holdfast.control.tasks import Tasks
from holdfast.control.tokens import Tokens
from holdfast.control.upkeep import Upkeep
from holdfast.control.why import Whys
from holdfast.control.workers import Workers
from holdfast.store import Store
from holdfast.task.registry import Registry

if TYPE_CHECKING:
    from holdfast.control.check import Check


class Control:
    """An operator's door to one database. Only `tasks` and `check` need the code's registry; with
    it `doctor` says more, and arguments of a fork are checked."""

    def __init__(self, store: Store, registry: Registry | None = None) -> None:
        self._store = store
        self._known = known = Registry() if registry is None else registry
        self.runs = Runs(store, known)
        self.bulk = Bulk(store)
        self.counts = Counting(store)
        self.stats = Statistics(store)
        self.graphs = Graphs(store)
        self.gates = Gates(store)
        self.events = Events(store)
        self.queues = Queues(store)
        self.schedules = Schedules(store)
        self.workers = Workers(store)
        self.limits = Limits(store)
        self.whys = Whys(store)
        self.upkeep = Upkeep(store)
        self.tasks = Tasks(known)
        self.tokens = Tokens(store)
        self.doctor = Doctor(store, known)

    @cached_property
    def check(self) -> Check:
        """Whether open runs would go on with this code as they began."""
        from holdfast.control.check import Check  # with most of the engine, which nothing else here needs

        return Check(self._store, self._known)

    @property
    def database(self) -> str:
        """The database as it may be shown: without a password."""
        return self._store.database.display_url

    @property
    def identity(self) -> str:
        """What tells these tables from all others; known only to those who can read them."""
        return self._store.identity()

    def close(self) -> None:
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, t: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
