"""Delete lanes that have no runs, so that names that were used once don't remain forever.

A lane (a queue and a task) is created with its first run. Processes cache its id for up to `LANE_CACHE_S`, so it can't
just be deleted once it is empty: a run could be inserted into it. Collection takes two steps, at least
`RETIRE_AFTER_US` apart. First the lane is marked as unused; from then on, a process that reads it in order to enqueue
removes the mark. If the mark is still there, and the lane still empty, its row moves to `retired_lanes`. Runs that get
into a retired lane nevertheless (from a transaction that was open all the time, a nested graph, a computer that was
suspended, or an older release, which caches ids forever) are moved to a new lane of the same name.

With few lanes nothing is collected: they cost nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from holdfast.database import Row
from holdfast.model.clock import MICROS_PER_SECOND
from holdfast.store.enqueue import LANE_CACHE_S, LaneStore
from holdfast.store.module import StoreContext, StoreModule, Tx, id_rows, in_chunks, json_rows
from holdfast.telemetry import log

MIN_LANES = 1000
"""As long as there are no more lanes than this, none is collected."""
RETIRE_AFTER_US = 6 * LANE_CACHE_S * MICROS_PER_SECOND
MAX_CHECKED_LANES = 5000
"""How many lanes one pass looks into."""
MAX_SCATTERED_RUNS = 20_000
"""With more scheduled, owned or held runs than this, nothing is collected."""
MAX_SEARCHED_LANES = 10_000
"""How many retired lanes one pass searches for late runs."""
NAMES_RETENTION_US = 91 * 86_400 * MICROS_PER_SECOND
"""How long the names of retired lanes are kept: longer than statistics."""
MIN_KEPT_NAMES = 100_000
"""So many names are kept however old they are, for runs that are very late."""


class LaneCollector(StoreModule):
    """Housekeeping of lanes. Any number of workers may do it."""

    def __init__(self, context: StoreContext, lanes: LaneStore) -> None:
        super().__init__(context)
        self._lanes = lanes
        self._checked_up_to = 0
        self._searched_up_to = -1

    def collect(self) -> int:
        """Mark unused lanes, retire those that were marked long ago, and return how many were retired."""
        self._move_late_runs()
        lanes = self._lanes.refresh("housekeeping")
        if len(lanes) <= MIN_LANES:
            return 0
        busy = self._busy_lanes()
        if busy is None:
            return 0
        scheduled = {(queue, task) for queue, task in self._execute("housekeeping", "list_scheduled_lanes")}
        busy |= {lane for lane, key in lanes.items() if key in scheduled}
        checked = self._next_portion(lanes)
        empty = self._without_runs([lane for lane in checked if lane not in busy])
        self._execute("housekeeping", "mark_lanes_used", rows=_id_rows(set(checked).difference(empty)))
        if not empty:
            return 0
        self._execute("housekeeping", "mark_lanes_unused", rows=_id_rows(empty))
        return self._retire(empty)

    def _busy_lanes(self) -> set[int] | None:
        """Return the lanes of scheduled, owned and held runs, which no index has by lane; None if they are too many."""
        rows = self._execute("housekeeping", "list_busy_lanes", limit=MAX_SCATTERED_RUNS)
        by_kind: Counter[str] = Counter()
        for kind, _, runs in rows:
            by_kind[kind] += int(runs)
        if any(runs >= MAX_SCATTERED_RUNS for runs in by_kind.values()):
            return None
        return {int(lane) for _, lane, _ in rows}

    def _next_portion(self, lanes: Iterable[int]) -> list[int]:
        """Return the next lanes to check; the passes take turns through all of them."""
        in_order = sorted(lane for lane in lanes if lane > self._checked_up_to)[:MAX_CHECKED_LANES]
        self._checked_up_to = in_order[-1] if len(in_order) == MAX_CHECKED_LANES else 0
        return in_order

    def _without_runs(self, lanes: list[int]) -> list[int]:
        found: list[int] = []
        for chunk in in_chunks(lanes):
            rows = self._execute("housekeeping", "find_lanes_without_runs", rows=_id_rows(chunk))
            found += [int(lane) for (lane,) in rows]
        return found

    def _move_late_runs(self) -> None:
        """Move runs out of retired lanes into a lane of the same name, and forget the names of very old ones."""
        late = self._late_lanes()
        if late:
            ids = self._lanes.ids({(queue, task) for _, queue, task in late})
            for old, queue, task in late:
                runs = id_rows(str(id) for (id,) in self._execute("housekeeping", "pick_late_runs", lane=old))
                moved = self._execute("housekeeping", "move_runs", lane=ids[queue, task], old=old, rows=runs)
                if moved:
                    log.late_runs_moved(len(moved), queue, task)
        self._execute("housekeeping", "prune_retired_lanes", age=NAMES_RETENTION_US, kept=MIN_KEPT_NAMES)

    def _late_lanes(self) -> list[Row]:
        """Return retired lanes with late runs; the passes take turns through all retired lanes."""
        above = self._searched_up_to
        ((last,),) = self._execute("housekeeping", "last_retired_lane", above=above, size=MAX_SEARCHED_LANES)
        self._searched_up_to = -1
        if last is None:
            return self._late_lanes() if above >= 0 else []
        late = list(self._execute("housekeeping", "find_late_lanes", above=above, last=last))
        ((more,),) = self._execute("housekeeping", "last_retired_lane", above=last, size=1)
        if more is not None:
            self._searched_up_to = int(last)
        return late

    def _retire(self, lanes: list[int]) -> int:
        """Delete those of these lanes that were marked long ago and still have no run; keep their names."""

        def work(tx: Tx) -> int:
            old = [int(lane) for (lane,) in tx.execute("pick_retired_lanes", rows=_id_rows(lanes), age=RETIRE_AFTER_US)]
            unused = [
                int(lane)
                for chunk in in_chunks(old)
                for (lane,) in tx.execute("find_unused_lanes", rows=_id_rows(chunk), limit=MAX_SCATTERED_RUNS)
            ]
            if unused:
                tx.execute("add_retired_lanes", rows=_id_rows(unused))
                tx.execute("delete_lanes", rows=_id_rows(unused))
            return len(unused)

        return self._transaction("housekeeping", work)


def _id_rows(lanes: Iterable[int]) -> str:
    return json_rows({"id": lane} for lane in lanes)
