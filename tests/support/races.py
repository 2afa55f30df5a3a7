"""Two transactions that meet on PostgreSQL: one is carried on by hand, statement by statement, the other waits for it
in a thread. On SQLite writers wait for each other, so there is one way only."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import psycopg

from holdfast.database import Statements
from holdfast.store.enqueue import enqueue_steps
from holdfast.store.rows import NewRun
from tests.support.world import World


class Hand:
    """A raw connection with a transaction that a test carries on by hand."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._statements = Statements("holdfast.store.sql", world.store.database.dialect)
        self._connection = psycopg.connect(world.url, cursor_factory=psycopg.RawCursor)

    def do(self, name: str, /, *, limit: int | None = None, **values: Any) -> list[tuple[Any, ...]]:
        statement = self._statements.get(name, limit)
        values["now"] = self._world.clock()
        texts = [None if values[name] is None else str(values[name]) for name in statement.parameters]
        cursor = self._connection.cursor().execute(statement.sql, texts)
        if not cursor.description:
            return []
        return [tuple(value if value is None else str(value) for value in row) for row in cursor.fetchall()]

    def enqueue(self, run: NewRun) -> str:
        """All steps of the enqueue, without the commit."""
        lanes = self._world.store.lanes.ids([(run.queue, run.task)])
        steps = enqueue_steps([run], lanes)
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


class Background:
    """A call in a thread that is known to wait for a lock."""

    def __init__(self, world: World, call: Callable[[], Any]) -> None:
        self._result: list[Any] = []
        self._thread = threading.Thread(target=self._run, args=(call,))
        self._thread.start()
        with psycopg.connect(world.url, autocommit=True) as looking:
            for _ in range(2000):
                waiting = looking.execute(
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
