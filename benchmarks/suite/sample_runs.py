"""Sample data: runs of many kinds, like those of a database after a week of use."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any
from uuid import UUID

from benchmarks.databases import BenchmarkDatabase
from holdfast.errors import ErrorInfo
from holdfast.model.clock import MICROS_PER_SECOND
from holdfast.model.failure import error_to_json
from holdfast.store.module import json_rows

CHUNK_ROWS = 5_000
WEEK_US = 7 * 24 * 3600 * MICROS_PER_SECOND
RETENTION_US = 30 * 24 * 3600 * MICROS_PER_SECOND
BUSY_PERIOD_US = 3600 * MICROS_PER_SECOND
"""A quarter of all runs is from the last hour."""
TASKS = tuple(f"shop.task{number}" for number in range(40))
QUEUES = ("default", "mail", "slow", "bulk")
TENANTS = 50
TRACEBACK = "Traceback (most recent call last):\n" + '  File "shop/tasks.py", line 10, in send\n    post(order)\n' * 20
MAX_UNFINISHED = 20_000
"""A tenth of the runs is unfinished, but not more than this."""

RUNS_PER_METADATA = 100
"""Every hundredth run has metadata, and a key."""
NOW = "select {now}"
RUNS = """
insert into {schema}runs (id, lane, tenant, priority, state, due_at, fence, attempt, max_crashes, args, result, error,
    tags, root, parent, keep, records, created_at, started_at, finished_at, expires_at)
select cast(each.id as {uuid}), each.lane, each.tenant, 0, each.state, each.due_at, 1, 1, 3,
    '{"number":' || each.number || ',"text":"hello world"}',
    case when each.state = 'done' then '0' end, each.error, each.tags, cast(each.parent as {uuid}),
    cast(each.parent as {uuid}), cast(:keep as bigint), 1, each.created_at, each.started_at, each.finished_at,
    each.finished_at + cast(:keep as bigint)
from {each(:rows, id uuid, lane bigint, tenant text, state text, due_at bigint, error text, tags text, parent uuid,
    created_at bigint, started_at bigint, finished_at bigint, number int)}
"""
METADATA = """
insert into {schema}metadata (run, name, value)
select cast(each.id as {uuid}), 'order', cast(each.number as text) from {each(:rows, id uuid, number int)}
"""
KEYS = """
insert into {schema}keys (scope, key, digest, run, created_at)
select 'bench', 'order-' || each.number, '', cast(each.id as {uuid}), 0 from {each(:rows, id uuid, number int)}
"""


class SampleRuns:
    """Inserts runs, oldest first; always the same ones relative to the current time."""

    def __init__(self, db: BenchmarkDatabase) -> None:
        self._db = db
        self._rng = random.Random(8)
        self._now = int(db.query(NOW)[0][0])
        pairs = {(QUEUES[number % len(QUEUES)], task) for number, task in enumerate(TASKS)}
        self._lanes = sorted(db.store.lanes.ids(pairs).values())
        self.parent = ""
        """The id of a run that has children."""

    def insert(self, size: int) -> None:
        """Insert the runs and compute the statistics that workers would have computed meanwhile."""
        rows = self._rows(size)
        for first in range(0, size, CHUNK_ROWS):
            some = [next(rows) for _ in range(min(CHUNK_ROWS, size - first))]
            self._db.query(RUNS, keep=RETENTION_US, rows=json_rows(some))
            found = [
                {"id": row["id"], "number": row["number"]} for row in some if row["number"] % RUNS_PER_METADATA == 0
            ]
            for statement in (METADATA, KEYS):
                self._db.query(statement, rows=json_rows(found))
        while self._db.store.stats.aggregate():
            pass

    def _rows(self, size: int) -> Iterator[dict[str, Any]]:
        unfinished = min(MAX_UNFINISHED, size // 10)
        for number in range(size):
            created = self._created(number / size)
            row = self._row(number, created)
            state = "ready" if number >= size - unfinished else self._final_state()
            if number % (size // min(unfinished, size)) == 0:
                state = self._rng.choice(("waiting", "scheduled", "ready"))
            yield row | self._outcome(state, created, number)

    def _created(self, fraction: float) -> int:
        """Spread three quarters over the week and the rest over the last hour."""
        since = self._now - WEEK_US
        if fraction < 0.75:
            return since + int((WEEK_US - BUSY_PERIOD_US) * fraction / 0.75)
        return self._now - BUSY_PERIOD_US + int((BUSY_PERIOD_US - 5 * MICROS_PER_SECOND) * (fraction - 0.75) / 0.25)

    def _row(self, number: int, created: int) -> dict[str, Any]:
        rng = self._rng
        id = str(UUID(int=created // 1000 << 80 | 0x7 << 76 | rng.getrandbits(12) << 64 | 2 << 62 | number))
        if number % 100 == 0:
            self.parent = id
        return {
            "id": id,
            "lane": rng.choice(self._lanes),
            "tenant": None if rng.random() < 0.5 else f"tenant{rng.randrange(TENANTS)}",
            "tags": '["nightly","eu"]' if rng.random() < 0.01 else '["web"]',
            "parent": self.parent if number % 100 in range(1, 5) else None,
            "created_at": created,
            "number": number,
        }

    def _final_state(self) -> str:
        return self._rng.choices(("done", "failed", "cancelled"), (97, 2, 1))[0]

    def _outcome(self, state: str, created: int, number: int) -> dict[str, Any]:
        ended = state in ("done", "failed", "cancelled")
        started = created + self._rng.randrange(2 * MICROS_PER_SECOND)
        info = ErrorInfo("error", "shop.PaymentFailed", f"order {number} was not paid", TRACEBACK)
        return {
            "state": state,
            "due_at": self._now + WEEK_US if state == "scheduled" else None,
            "error": error_to_json(info) if state in ("failed", "cancelled") else None,
            "started_at": started if ended else None,
            "finished_at": started + self._rng.randrange(2 * MICROS_PER_SECOND) if ended else None,
        }
