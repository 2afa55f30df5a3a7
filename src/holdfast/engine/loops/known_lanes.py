"""The lanes that a worker claims from."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from holdfast.engine.attempt import SlotPool
from holdfast.model.clock import MICROS_PER_SECOND
from holdfast.model.labels import PREFERENCE_S, meets
from holdfast.store import Claim, Store
from holdfast.task.fakes import active_fakes, fake_remote_tasks
from holdfast.task.registry import Registry
from holdfast.task.task import Task

MAX_CLAIM_LANES = 250
"""A claim reads each of its lanes. If there are more lanes than this, it gets only those that have ready runs."""
RECENT_CLAIM_S = 2.0
"""A lane that gave runs within this time is claimed from without looking for ready runs first: its index entries of
claimed runs, which remain until vacuum, would slow that down."""
PREFERRED_WORKERS_INTERVAL_S = 5.0
"""How often a worker without such labels reads which workers have them."""


class _Abilities(msgspec.Struct):
    """What a live worker reports about itself, as far as it decides which runs are left to it."""

    labels: dict[str, str] = {}
    queues: list[str] | None = None
    tasks: list[str] | None = None

    def is_preferred(self, queue: str, task: Task[..., Any]) -> bool:
        """Return whether it executes runs of this task in this queue, and has the labels that the task prefers."""
        serves = (self.queues is None or queue in self.queues) and (self.tasks is None or task.name in self.tasks)
        return serves and meets(self.labels, {**task.declaration.prefers, **task.declaration.requires})


class KnownLanes:
    """The lanes (pairs of queue and task) that this worker can run: its queues, and the tasks in its code whose labels
    it has.

    It leaves the runs of a task that prefers labels to live workers that have them, until they have waited for
    `PREFERENCE_S`.

    There can be any number of lanes, most of them empty, such as a queue per customer. If they are many, claims get
    those with ready runs, the most urgent first. A run in a lane that had none is found like one in a new lane: at once
    by a worker that found nothing, and within a second by a busy one.
    """

    def __init__(
        self,
        store: Store,
        registry: Registry,
        queues: Collection[str] | None,
        labels: Mapping[str, str] | None = None,
        pools: Mapping[str | None, SlotPool] | None = None,
    ) -> None:
        self._store = store
        self._registry = registry
        self._queues = None if queues is None else frozenset(queues)
        self._labels = labels or {}
        self._pools_by_queue = pools or {}
        self.tasks: dict[int, Task[..., Any]] = {}
        self._claimable: list[int] = []
        self._left: Collection[int] = ()  # the lanes that are left to other workers for now
        self._abilities: list[_Abilities] = []  # of live workers; read only if there are lanes to leave
        self._abilities_read_at = -PREFERRED_WORKERS_INTERVAL_S
        self._later: list[list[int]] = []  # more lanes with ready runs, in groups, the most urgent first
        self._claimed_at: dict[int, float] = {}
        self.ordinary: list[int] = []
        self.processes: list[int] = []
        self.batched: list[int] = []
        self.threads: frozenset[int] = frozenset()
        self.all_need_threads = False
        """Whether all tasks of the code run in threads."""
        self.limited: frozenset[int] = frozenset()
        self.has_plain_order = True
        """Whether one claim without limits can serve all lanes."""
        self.queues: dict[int, str] = {}
        self.pools: dict[int, SlotPool] = {}
        """Where the runs of each lane get their slots; empty if no queue of the worker has slots of its own."""
        self.own_order: dict[int, str] = {}
        """The lanes of fair queues and of queues with `age_priority`, each with its queue."""
        self.refreshed_at = 0.0
        self.are_chosen = False
        """Whether there are so many lanes that claims get only those with ready runs."""

    def refresh(self) -> bool:
        """Read all lanes from the database and return whether the lanes to claim from have changed."""
        tasks = self.served(
            {**fake_remote_tasks(), **self._registry.names()} if active_fakes else self._registry.names()
        )
        all_lanes = self._store.lanes.refresh("claim")
        known = {
            lane: tasks[task]
            for lane, (queue, task) in all_lanes.items()
            if task in tasks and (self._queues is None or queue in self._queues)
        }
        self.refreshed_at = time.monotonic()
        self.tasks = known
        self.queues.update((lane, all_lanes[lane][0]) for lane in known)
        own_order = self._registry.fair.keys() | self._registry.age_intervals.keys()
        self.own_order = {lane: queue for lane in known if (queue := all_lanes[lane][0]) in own_order}
        if self._pools_by_queue:
            self.pools.update((lane, self._pool_of(all_lanes[lane][0])) for lane in known)
        self.all_need_threads = bool(tasks) and all(task.uses_threads for task in tasks.values())
        before = set(self._claimable)
        self._left = self._lanes_to_leave(self.unpreferred(tasks))
        self._set_claimable(self._choose_claimable())
        return set(self._claimable) != before

    def served(self, tasks: Mapping[str, Task[..., Any]]) -> dict[str, Task[..., Any]]:
        """Return those of these tasks whose labels this worker has."""
        return {
            name: task
            for name, task in tasks.items()
            if not (requires := task.declaration.requires) or meets(self._labels, requires)
        }

    def unpreferred(self, tasks: Mapping[str, Task[..., Any]]) -> set[str]:
        """Return those of these tasks that prefer workers with labels that this one doesn't have."""
        return {
            name
            for name, task in tasks.items()
            if (prefers := task.declaration.prefers) and not meets(self._labels, prefers)
        }

    def _lanes_to_leave(self, unpreferred: Collection[str]) -> Collection[int]:
        """Return the lanes of these tasks that live workers with the labels serve, and in which no run waits long."""
        if not unpreferred:
            return ()
        if self.refreshed_at >= self._abilities_read_at + PREFERRED_WORKERS_INTERVAL_S:
            self._abilities_read_at = self.refreshed_at
            self._abilities = list(_read_abilities(info for *_, info in self._store.sessions.list_live("claim")))
        left = {
            lane
            for lane, task in self.tasks.items()
            if task.name in unpreferred and any(each.is_preferred(self.queues[lane], task) for each in self._abilities)
        }
        if left:
            left.difference_update(self._store.claims.waiting_lanes(left, int(PREFERENCE_S * MICROS_PER_SECOND)))
        return left

    def _pool_of(self, queue: str) -> SlotPool:
        return self._pools_by_queue.get(queue) or self._pools_by_queue[None]

    def in_pool(self, lanes: Collection[int], pool: SlotPool) -> list[int]:
        """Return those of these lanes whose runs get their slots from a pool."""
        return [lane for lane in lanes if self.pools[lane] is pool]

    def _set_claimable(self, lanes: list[int]) -> None:
        self._claimable = lanes
        self.limited = self._store.lanes.limited.intersection(lanes)
        self.processes = [lane for lane in lanes if self.tasks[lane].declaration.run_in == "process"]
        self.batched = [lane for lane in lanes if self.tasks[lane].declaration.batch is not None]
        others = lanes if not self.batched else [lane for lane in lanes if lane not in self.batched]
        self.ordinary = [lane for lane in others if self.tasks[lane].declaration.run_in != "process"]
        self.threads = frozenset(lane for lane in others if self.tasks[lane].uses_threads)
        self.has_plain_order = not (self.limited or self.processes or self.batched or self.own_order)

    def _choose_claimable(self) -> list[int]:
        """Return the lanes to claim from: all, or of very many those with ready runs, the most urgent first."""
        self._later = []
        served = (
            {lane: task for lane, task in self.tasks.items() if lane not in self._left} if self._left else self.tasks
        )
        self.are_chosen = len(served) > MAX_CLAIM_LANES
        if not self.are_chosen:
            self._claimed_at.clear()
            return list(served)
        self._claimed_at = {
            lane: at
            for lane, at in self._claimed_at.items()
            if at > self.refreshed_at - RECENT_CLAIM_S and lane in served
        }
        ready = self._store.claims.ready_lanes(skip=self._claimed_at)
        found = [*self._claimed_at, *(lane for lane in ready if lane in served)]
        if len(found) <= MAX_CLAIM_LANES:
            return found
        groups: dict[object, list[int]] = {}  # which don't compete for the same slots, or can't be compared
        for lane in self._store.claims.by_urgency(found):
            groups.setdefault((self.own_order.get(lane), self.tasks[lane].declaration.run_in), []).append(lane)
        self._later = list(groups.values())
        return self._next_lanes()

    def _next_lanes(self) -> list[int]:
        """Take the most urgent lanes of each group."""
        lanes = [lane for group in self._later for lane in group[:MAX_CLAIM_LANES]]
        self._later = [rest for group in self._later if (rest := group[MAX_CLAIM_LANES:])]
        return lanes

    def record_claims(self, claims: Collection[Claim], wanted: int) -> None:
        """Remember which of the chosen lanes gave runs. If they gave less than wanted, claim from the next ones."""
        self._claimed_at.update(dict.fromkeys((claim.lane for claim in claims), time.monotonic()))
        if self._later and len(claims) < wanted:
            self._set_claimable(self._next_lanes())

    def by_order(self, lanes: Iterable[int]) -> list[list[int]]:
        """Group lanes so that the turns of runs can be compared within a group.

        Each fair queue and each queue with `age_priority` has turns of its own and forms a group; all other lanes form
        one group.
        """
        groups: dict[str | None, list[int]] = {}
        for lane in lanes:
            groups.setdefault(self.own_order.get(lane), []).append(lane)
        return list(groups.values())


def _read_abilities(reports: Iterable[Any]) -> Iterable[_Abilities]:
    """Decode what sessions report; pass over what can't be read."""
    for info in reports:
        with suppress(msgspec.DecodeError, TypeError):
            yield msgspec.json.decode(info, type=_Abilities)
