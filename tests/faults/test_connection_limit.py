"""A PostgreSQL server that accepts no more connections delays work; it neither crashes a worker nor fails a run."""

from __future__ import annotations

import secrets
from urllib.parse import parse_qsl, urlencode

import psycopg
import pytest

from holdfast import Holdfast
from holdfast.errors import StoreUnavailable
from tests.support.wait_until import wait_until


class LimitedRole:
    """A role that may do everything in the test's schema, over a limited number of connections."""

    def __init__(self, url: str) -> None:
        self.name = f"limited_{secrets.token_hex(8)}"
        self._connection = psycopg.connect(url, autocommit=True)
        self._execute(f"create role {self.name} login")
        self._execute(f"grant usage on schema holdfast to {self.name}")
        for kind in ("tables", "sequences"):
            self._execute(f"grant all on all {kind} in schema holdfast to {self.name}")
        where, _, options = url.partition("?")
        self.url = f"{where}?{urlencode(dict(parse_qsl(options)) | {'user': self.name})}"

    def limit(self, connections: int) -> None:
        self._execute(f"alter role {self.name} connection limit {connections}")

    def drop(self) -> None:
        self._execute(f"drop owned by {self.name}")
        self._execute(f"drop role {self.name}")
        self._connection.close()

    def _execute(self, statement: str) -> None:
        self._connection.execute(statement.encode())


@pytest.fixture
def role(postgres_url):
    with Holdfast(postgres_url) as app:
        app.store.prepare()
    role = LimitedRole(postgres_url)
    yield role
    role.drop()


def test_the_error_says_that_the_server_accepts_no_more_connections(role):
    role.limit(0)
    with (
        Holdfast(role.url, migrate=False) as app,
        pytest.raises(StoreUnavailable, match=r"too many connections for role.*max_connections, or use pgbouncer"),
    ):
        app.remote("job").enqueue(1)


def test_a_worker_waits_for_connections_and_ends_its_runs_once(role, postgres_url, caplog):
    """Claims and the heartbeat have their connections already; the committer gets none until there are more."""
    calls = []
    with Holdfast(role.url, migrate=False) as app, Holdfast(postgres_url) as client:

        @app.task(name="job")
        async def job(n: int) -> int:
            calls.append(n)
            return n

        with app.worker(lease=30):
            wait_until(lambda: len(client.store.sessions.list_live()) == 1)
            role.limit(0)
            runs = client.remote("job").enqueue_many([(n,) for n in range(3)])
            wait_until(lambda: len(calls) == 3)
            wait_until(lambda: any("too many connections" in str(record.__dict__) for record in caplog.records))
            assert {run.info().state for run in runs} == {"running"}
            role.limit(-1)
            assert [run.result(timeout=60) for run in runs] == [0, 1, 2]
        assert sorted(calls) == [0, 1, 2]
        assert {tuple(entry.kind for entry in run.history()) for run in runs} == {("enqueued", "started", "done")}
    assert not any(record.exc_info for record in caplog.records), "an outage isn't reported as a bug"
