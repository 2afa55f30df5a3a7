"""An administrator repeatedly ends connections of workers with pg_terminate_backend."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from typing import Any

import psycopg
import pytest

from tests.faults.conftest import APPS
from tests.support.history_queries import fetch
from tests.support.wait_until import wait_until

ROUND = 30
ENOUGH = 5
"""Minimum number of terminations per kind of connection."""
MOST_ROUNDS = 10
KINDS = {"claim", "commit", "heartbeat", "housekeeping", "client", "transaction-1"}
"""The purposes of a worker's connections, from `application_name`."""
VICTIMS = (
    "select pid, application_name from pg_stat_activity"
    " where datname = current_database() and application_name like 'holdfast %' and pid <> pg_backend_pid()"
)


def effects(ledger):
    return Counter(tuple(words[:2]) for words in ledger.words())


class Dba:
    """Terminates connections of workers, the least often terminated kinds first."""

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True)
        self._chance = random.Random(48)
        self.ended: Counter[str] = Counter()

    def end_one(self) -> None:
        found = self._connection.execute(VICTIMS).fetchall()
        if found:
            self._chance.shuffle(found)
            pid, name = min(found, key=lambda victim: self.ended[victim[1]])
            if self._connection.execute("select pg_terminate_backend(%s)", [pid]).fetchone() == (True,):
                self.ended[name.removeprefix("holdfast ")] += 1

    def left(self) -> set[str]:
        """Return the kinds of connections that were not terminated often enough."""
        return {kind for kind in KINDS if self.ended[kind] < ENOUGH}

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def app_on_postgres(postgres_url, connect):
    return connect(postgres_url)


@pytest.fixture
def dba(postgres_url):
    dba = Dba(postgres_url)
    yield dba
    dba.close()


def work_while_connections_end(app, dba) -> tuple[list[Any], int]:
    """Enqueue the runs and return them with their number per task."""
    runs: list[Any] = []
    looks = itertools.count()

    def done() -> bool:
        if next(looks) % 3 == 0:
            dba.end_one()
        return fetch(app, "select 1 from {}runs where finished_at is null limit 1") == []

    for number in range(MOST_ROUNDS):
        marks = range(number * ROUND, (number + 1) * ROUND)
        for task in ("job", "limited", "function"):
            runs += app.remote(task).enqueue_many([(n,) for n in marks])
            dba.end_one()
        for n in marks:
            app.emit(f"go {n}", n)
        wait_until(done, 60, lambda: str(fetch(app, "select id, state, held from {}runs where finished_at is null")))
        if not dba.left():
            break
    return runs, len(runs) // 3


def test_terminated_connections_lose_no_runs_and_block_none(
    postgres_url, app_on_postgres, dba, processes, ledger, capsys
):
    app = app_on_postgres
    with psycopg.connect(postgres_url) as own:
        own.execute("create table paid (n int not null)")
    workers = [processes.start(APPS / "terminated.py", postgres_url, ledger.path) for _ in range(2)]
    for worker in workers:
        worker.wait_for("worker started", timeout=60)
    runs, number = work_while_connections_end(app, dba)
    with capsys.disabled():
        print(f"\n{dba.ended.total()} connections ended, {len(runs)} runs: {dict(dba.ended)}")  # noqa: T201
    assert dba.left() == set()
    assert {run.info().state for run in runs} == {"done"}
    happened = effects(ledger)
    expected = {(what, str(n)) for what in ("job", "limited", "first", "last") for n in range(number)}
    expected |= {("job", str(-n - 1)) for n in range(number)}
    assert set(happened) == expected
    assert set(happened.values()) == {1}, "no worker died, and no lease ended: nothing is done twice"
    assert fetch(app, "select count(*), count(distinct n) from paid") == [(number, number)]
    assert fetch(app, "select count(*) from {}runs where session is not null") == [(0,)]
    assert fetch(app, "select count(*) from {}limits where used > 0") == [(0,)]
    assert all(worker.alive for worker in workers)
    assert not [worker.log for worker in workers if "Traceback" in worker.log]
