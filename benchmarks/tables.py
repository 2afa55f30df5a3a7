"""A database under measurement: made for it, filled, asked what became of the jobs, and dropped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.tasks import NOOP, QUEUE, TASKS, TEXT, make_app
from holdfast.database import Row
from holdfast.database.statements import StatementSource, render

CHUNK = 1000
LONGEST_COUNT = 600.0
"""Seconds that counting may take: after ten minutes at full speed there are many millions."""

DONE = "select count(*) from {schema}runs where seq > cast(:mark as bigint) and state = 'done'"
RECORDED = """
select count(*) from {schema}history h join {schema}runs r on r.id = h.run
where r.seq > cast(:mark as bigint) and h.kind = 'done'
"""
SUM = "select coalesce(sum(cast(result as bigint)), 0) from {schema}runs where seq > cast(:mark as bigint)"
NEWEST = "select coalesce(max(seq), 0) from {schema}runs"
FORGET_HISTORY = """
delete from {schema}history where run in (select id from {schema}runs where seq > cast(:mark as bigint))
"""
FORGET_RUNS = "delete from {schema}runs where seq > cast(:mark as bigint)"


class Tables:
    """Holdfast's tables in a database of their own. What stands above the mark are the jobs that are measured."""

    def __init__(self, url: str, settle: Callable[[], None], drop: Callable[[], None]) -> None:
        self.url = url
        self.settle = settle
        """Write out what is dirty, remove what is dead, and bring the planner's statistics up to date."""
        self._drop = drop
        self.app, _ = make_app(url)
        self.store = self.app.store
        self.store.database.read_timeout_s = LONGEST_COUNT
        self.store.prepare()
        lanes = self.store.lanes.ids({(QUEUE, task) for task in TASKS})
        self.lanes = {task: lane for (_, task), lane in lanes.items()}
        self._mark = 0

    def rows(self, text: str, line: str = "client", **values: Any) -> list[Row]:
        """Run one statement, written with the dialect's fragments."""
        statement = render(StatementSource("bench", None, "", text), self.store.database.dialect)
        given = {"now": None, **values}
        return self.store.database.connection(line).run(lambda connection: connection.execute(statement, given))

    def number(self, text: str) -> int:
        return int(self.rows(text, "read", mark=self._mark)[0][0])

    def mark(self) -> None:
        """Leave what is there now out of all counts, and in place."""
        self._mark = self.number(NEWEST)

    def refill(self, count: int, task: str = NOOP) -> None:
        """Replace the runs by so many new ones of a task, all of them ready."""
        self.rows(FORGET_HISTORY, mark=self._mark)
        self.rows(FORGET_RUNS, mark=self._mark)
        self.settle()
        self.fill(count, task)
        self.settle()

    def fill(self, count: int, task: str = NOOP) -> None:
        """Add runs."""
        for first in range(0, count, CHUNK):
            self.app.registry.get(task).enqueue_many(
                [(number, TEXT) for number in range(first, min(count, first + CHUNK))]
            )

    def unfinished(self) -> bool:
        """Whether any of the runs is ready or running."""
        return self.store.claims.busy(list(self.lanes.values()))

    def done(self) -> int:
        return self.number(DONE)

    def recorded(self) -> int:
        """How many ends the history has."""
        return self.number(RECORDED)

    def sum_of_results(self) -> int:
        return self.number(SUM)

    def close(self) -> None:
        self.app.close()
        self._drop()
