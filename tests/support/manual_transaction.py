"""Race two transactions on PostgreSQL: the test runs one statement by statement while the other blocks in a thread.

SQLite serializes writers, so such races don't occur there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import psycopg

from holdfast.database import Statements
from holdfast.model.payloads import Payloads
from holdfast.store.enqueue import enqueue_steps
from holdfast.store.rows import NewRun
from tests.support.store_harness import StoreHarness


class ManualTransaction:
    """A transaction on a raw connection that the test runs statement by statement."""

    def __init__(self, harness: StoreHarness) -> None:
        self._world = harness
        self._statements = Statements("holdfast.store.sql", harness.store.database.dialect)
        self._connection = psycopg.connect(harness.url, cursor_factory=psycopg.RawCursor)

    def do(self, name: str, /, *, limit: int | None = None, **values: Any) -> list[tuple[Any, ...]]:
        statement = self._statements.get(name, limit)
        values["now"] = self._world.clock()
        texts = [None if values[name] is None else str(values[name]) for name in statement.parameters]
        cursor = self._connection.cursor().execute(statement.sql, texts)
        if not cursor.description:
            return []
        return [tuple(value if value is None else str(value) for value in row) for row in cursor.fetchall()]

    def enqueue(self, run: NewRun) -> str:
        """Run all statements of an enqueue without committing."""
        lanes = self._world.store.lanes.ids([(run.queue, run.task)])
        steps = enqueue_steps([run], lanes, Payloads())
        try:
            name, values = next(steps)
            while True:
                name, values = steps.send(self.do(name, **values))
        except StopIteration as end:
            return str(end.value[0])

    def commit(self) -> None:
        self._connection.commit()
        self._connection.close()

    def rollback(self) -> None:
        self._connection.rollback()
        self._connection.close()


class BlockedCall:
    """A call in a thread that waits for a lock; the constructor returns when it does."""

    def __init__(self, harness: StoreHarness, call: Callable[[], Any]) -> None:
        self._result: list[Any] = []
        self._thread = threading.Thread(target=self._run, args=(call,))
        self._thread.start()
        with psycopg.connect(harness.url, autocommit=True) as observer:
            for _ in range(2000):
                waiting = observer.execute(
                    "select 1 from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
                )
                if waiting.fetchone():
                    return
                threading.Event().wait(0.005)
        raise AssertionError("the call didn't wait for the other transaction")

    def _run(self, call: Callable[[], Any]) -> None:
        try:
            self._result.append(call())
        except BaseException as error:
            self._result.append(error)

    def result(self) -> Any:
        self._thread.join(30)
        if isinstance(self._result[0], BaseException):
            raise self._result[0]
        return self._result[0]
