"""A million runs of many kinds, as a database has them that was used for a week: for whoever looks among them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any
from uuid import UUID

from benchmarks.tables import Tables
from holdfast.errors import ErrorInfo
from holdfast.model.clock import MICROS_PER_SECOND
from holdfast.model.codec import encode
from holdfast.model.failure import error_to_json
from holdfast.store.part import batch

CHUNK = 5_000
WEEK = 7 * 24 * 3600 * MICROS_PER_SECOND
KEEP = 30 * 24 * 3600 * MICROS_PER_SECOND
BUSY = 3600 * MICROS_PER_SECOND
"""The last hour has as many runs as a quarter of the week."""
TASKS = tuple(f"shop.task{number}" for number in range(40))
QUEUES = ("default", "mail", "slow", "bulk")
TENANTS = 50
TRACEBACK = "Traceback (most recent call last):\n" + '  File "shop/tasks.py", line 10, in send\n    post(order)\n' * 20
UNFINISHED = 20_000
"""At most; in small tables a tenth."""

ARGS = encode({"number": 0, "text": "hello world"}, "the arguments")
NOW = "select {now}"
RUNS = """
insert into {schema}runs (id, lane, tenant, priority, state, due_at, fence, attempt, max_crashes, args, result, error,
    tags, root, parent, keep, records, created_at, started_at, finished_at, expires_at)
select cast(each.id as {uuid}), each.lane, each.tenant, 0, each.state, each.due_at, 1, 1, 3, :args,
    case when each.state = 'done' then '0' end, each.error, each.tags, cast(each.parent as {uuid}),
    cast(each.parent as {uuid}), cast(:keep as bigint), 1, each.created_at, each.started_at, each.finished_at,
    each.finished_at + cast(:keep as bigint)
from {each(:rows, id uuid, lane bigint, tenant text, state text, due_at bigint, error text, tags text, parent uuid,
    created_at bigint, started_at bigint, finished_at bigint)}
"""


class Crowd:
    """Makes the runs, the oldest first; the same ones each time, but for what time it is."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._chance = random.Random(8)
        self._now = int(tables.rows(NOW)[0][0])
        pairs = {(QUEUES[number % len(QUEUES)], task) for number, task in enumerate(TASKS)}
        self._lanes = sorted(tables.store.lanes.ids(pairs).values())
        self.parent = ""
        """A run that has children."""

    def make(self, size: int) -> None:
        """Fill the tables, and count what ended, as the housekeeping of workers would have done meanwhile."""
        rows = self._rows(size)
        for first in range(0, size, CHUNK):
            some = [next(rows) for _ in range(min(CHUNK, size - first))]
            self._tables.rows(RUNS, args=ARGS, keep=KEEP, rows=batch(some))
        while self._tables.store.tallies.count():
            pass

    def _rows(self, size: int) -> Iterator[dict[str, Any]]:
        unfinished = min(UNFINISHED, size // 10)
        for number in range(size):
            created = self._created(number / size)
            row = self._row(number, created)
            state = "ready" if number >= size - unfinished else self._ending()
            if number % (size // min(unfinished, size)) == 0:
                state = self._chance.choice(("waiting", "scheduled", "ready"))
            yield row | self._fate(state, created, number)

    def _created(self, part: float) -> int:
        """Three quarters are spread over the week, the rest over the last hour."""
        since = self._now - WEEK
        if part < 0.75:
            return since + int((WEEK - BUSY) * part / 0.75)
        return self._now - BUSY + int((BUSY - 5 * MICROS_PER_SECOND) * (part - 0.75) / 0.25)

    def _row(self, number: int, created: int) -> dict[str, Any]:
        chance = self._chance
        id = str(UUID(int=created // 1000 << 80 | 0x7 << 76 | chance.getrandbits(12) << 64 | 2 << 62 | number))
        if number % 100 == 0:
            self.parent = id
        return {
            "id": id,
            "lane": chance.choice(self._lanes),
            "tenant": None if chance.random() < 0.5 else f"tenant{chance.randrange(TENANTS)}",
            "tags": '["nightly","eu"]' if chance.random() < 0.01 else '["web"]',
            "parent": self.parent if number % 100 in range(1, 5) else None,
            "created_at": created,
        }

    def _ending(self) -> str:
        return self._chance.choices(("done", "failed", "cancelled"), (97, 2, 1))[0]

    def _fate(self, state: str, created: int, number: int) -> dict[str, Any]:
        ended = state in ("done", "failed", "cancelled")
        begun = created + self._chance.randrange(2 * MICROS_PER_SECOND)
        info = ErrorInfo("error", "shop.PaymentFailed", f"order {number} wasn't paid", TRACEBACK)
        return {
            "state": state,
            "due_at": self._now + WEEK if state == "scheduled" else None,
            "error": error_to_json(info) if state in ("failed", "cancelled") else None,
            "started_at": begun if ended else None,
            "finished_at": begun + self._chance.randrange(2 * MICROS_PER_SECOND) if ended else None,
        }
