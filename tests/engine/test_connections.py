"""How many connections to PostgreSQL a worker has: two when it is idle, a third for commits, the others on demand."""

from __future__ import annotations

import psycopg
import pytest

from holdfast import Holdfast
from holdfast.engine.loops import heartbeat
from tests.support.wait_until import wait_until

IDLE = ["claim", "heartbeat"]


def connections(url):
    query = (
        "select application_name from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
    )
    with psycopg.connect(url) as connection:
        return sorted(name.removeprefix("holdfast ") for (name,) in connection.execute(query).fetchall())


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(heartbeat, "CLOSE_UNUSED_AFTER_S", 0.3)


@pytest.mark.usefixtures("quick")
def test_an_idle_worker_has_two_connections_and_opens_others_on_demand(postgres_url):
    with Holdfast(postgres_url) as app:

        @app.task(name="plain")
        async def plain(n: int) -> int:
            return n

        with app.worker(lease=6):
            wait_until(lambda: connections(postgres_url) == IDLE, what=lambda: str(connections(postgres_url)))
            runs = plain.enqueue_many([(n,) for n in range(50)])
            assert [run.result(timeout=30) for run in runs] == list(range(50))
            assert {"commit", "client"} <= set(connections(postgres_url))
            wait_until(lambda: connections(postgres_url) == IDLE, what=lambda: str(connections(postgres_url)))
            assert plain.enqueue(7).result(timeout=30) == 7, "closed connections are opened again"


def test_a_connection_in_use_is_not_closed(postgres_url):
    with Holdfast(postgres_url) as app:
        client = app.store.database.connection("client")
        app.store.prepare()
        with client.exclusive() as opened:
            for _ in range(3):
                assert app.store.database.close_unused(0.0) == 0
            opened.execute_script("select 1")
        assert app.store.database.close_unused(0.0) == 0, "it was used since the last look"
        assert app.store.database.close_unused(0.0) == 1
        assert app.store.queries.run("0199a3f2-0000-7000-8000-000000000000") is None, "it is opened again"
