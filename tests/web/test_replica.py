"""Lists, statistics and metrics are read from a replica; it is never behind what was done here, nor required."""

from __future__ import annotations

import tempfile
from pathlib import Path

import psycopg
import pytest

from holdfast import Holdfast
from holdfast.control import Control
from holdfast.control import replica as replica_module
from holdfast.control.replica import ReplicaReads
from holdfast.errors import ConfigError, StoreUnavailable
from holdfast.store.admin import WalPosition
from holdfast.testing.server import PostgresServer
from holdfast.web.api.operation import LAG_HEADER
from holdfast.web.pages.routes import PAGES
from holdfast.web.site import OPERATIONS, dashboard
from tests.support.wait_until import wait_until
from tests.support.web import Visitor

SECOND = 1_000_000


class Side:
    """A control of which `ReplicaReads` uses only the position."""

    def __init__(self, written=0, now=0, replayed_at=None):
        self.identity = "same"
        self.upkeep = self
        self.position = WalPosition(written, now, replayed_at)
        self.error = None
        self.checks = 0

    def wal_position(self):
        self.checks += 1
        if self.error is not None:
            raise self.error
        return self.position


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        seconds = 100.0

        def monotonic(self):
            return self.seconds

    clock = Clock()
    monkeypatch.setattr(replica_module, "time", clock)
    return clock


@pytest.fixture
def folder():
    """A folder that the user of the servers can write to."""
    with tempfile.TemporaryDirectory(prefix="holdfast-replica-", ignore_cleanup_errors=True) as name:
        Path(name).chmod(0o777)
        yield Path(name)


def who(reads, primary):
    return reads.run(lambda control: "primary" if control is primary else "replica")


def test_a_replica_that_has_everything_is_read_and_a_late_one_says_how_late(clock):
    primary, replica = Side(500, 90 * SECOND), Side(500)
    reads = ReplicaReads(primary, replica)
    assert who(reads, primary) == ("replica", 0.0)
    replica.position = WalPosition(400, 0, 88 * SECOND)
    assert who(reads, primary) == ("replica", 0.0), "measured once a second"
    clock.seconds += 1
    assert who(reads, primary) == ("replica", 2.0)
    replica.position = WalPosition(400, 0, 59 * SECOND)
    clock.seconds += 1
    assert who(reads, primary) == ("primary", None)
    replica.position = WalPosition(0, 0, None)
    clock.seconds += 1
    assert who(reads, primary) == ("primary", None)
    assert ReplicaReads(primary).run(lambda control: control) == (primary, None)


def test_after_a_change_the_replica_is_read_only_when_it_has_the_change(clock):
    primary, replica = Side(500, 90 * SECOND), Side(500)
    reads = ReplicaReads(primary, replica)
    assert who(reads, primary).value == "replica"
    primary.position = WalPosition(600, 91 * SECOND, None)
    replica.position = WalPosition(550, 0, 91 * SECOND)
    reads.changed()
    assert who(reads, primary).value == "primary"
    primary.position = WalPosition(900, 92 * SECOND, None)
    replica.position = WalPosition(599, 0, 92 * SECOND)
    clock.seconds += 1
    assert who(reads, primary).value == "primary"
    replica.position = WalPosition(600, 0, 92 * SECOND)
    clock.seconds += 1
    assert who(reads, primary) == ("replica", 0.0), "later changes of others may be missing"


def test_a_lost_replica_is_left_alone_for_a_while_and_used_again(clock, caplog):
    caplog.set_level("INFO", "holdfast")
    primary, replica = Side(500), Side(500)
    reads = ReplicaReads(primary, replica)
    replica.error = StoreUnavailable("gone")
    assert who(reads, primary).value == "primary"
    clock.seconds += 9
    assert (who(reads, primary).value, replica.checks) == ("primary", 1)
    replica.error = None
    clock.seconds += 1
    assert who(reads, primary).value == "replica"

    def fail_on_replica(control):
        if control is replica:
            raise StoreUnavailable("cut off in the middle")
        return "from the primary"

    assert reads.run(fail_on_replica) == ("from the primary", None)
    assert who(reads, primary).value == "primary"
    said = [record.getMessage().split(" reason=")[0] for record in caplog.records]
    unused = "read replica not in use, reading from the primary"
    assert said == [unused, "read replica in use", unused]


def test_errors_of_the_read_itself_are_not_hidden(clock):
    primary, replica = Side(), Side()

    def fail(_control):
        raise ConfigError("no such state")

    with pytest.raises(ConfigError, match="no such state"):
        ReplicaReads(primary, replica).run(fail)


def test_another_database_is_never_read(clock):
    primary, replica = Side(), Side()
    replica.identity = "other"
    assert who(ReplicaReads(primary, replica), primary).value == "primary"


@pytest.mark.parametrize(
    ("url", "read_url"), [("sqlite:///:memory:", "postgresql:///x"), ("postgresql:///x", "sqlite:///x")]
)
def test_a_read_url_needs_postgresql_on_both_sides(url, read_url):
    with Holdfast(url) as app, pytest.raises(ConfigError, match="a read URL is for PostgreSQL"):
        dashboard(app, token="t" * 32, read_url=read_url)


def lists():
    """The addresses of everything that may be read from a replica."""
    paths = [page.path for page in PAGES if page.may_lag]
    paths += ["/api/v1" + operation.path for operation in OPERATIONS if operation.may_lag]
    names = {"{queue:path}": "default", "{task:path}": "add", "{tenant:path}": "t", "{session}": "none"}
    for path in paths:
        for name, value in names.items():
            path = path.replace(name, value)
        yield {"/find": "/find?q=abc", "/api/v1/search": "/api/v1/search?text=abc"}.get(path, path)


def test_nothing_that_changes_or_shows_one_run_may_lag():
    assert all(operation.method == "GET" for operation in OPERATIONS if operation.may_lag)
    assert not any("{id}" in each.path for each in (*OPERATIONS, *PAGES) if each.may_lag)


def test_every_list_can_be_read_with_a_read_url(postgres_url):
    """The server is its own replica here. A standby refuses writes and locks: so does a read-only transaction."""
    with Holdfast(postgres_url) as app:
        app.remote("add").options(tenant="t").enqueue(1, 2)
        read_only = postgres_url + "&options=-c%20default_transaction_read_only%3Don"
        site = dashboard(app, token="t" * 32, read_url=read_only)
        try:
            visitor = Visitor(site, token="t" * 32)
            for path in lists():
                answer = visitor.get(path)
                assert answer.status in (200, 404), path
                if path.startswith("/api/v1"):
                    assert answer.headers[LAG_HEADER.lower()] == "0.0", path
                elif answer.status == 200:
                    assert "Replica, 0 s behind" in answer.text, path
            run = visitor.any_run()
            assert LAG_HEADER.lower() not in visitor.get(f"/api/v1/runs/{run}").headers
            assert "\nholdfast_replica_used 1\n" in visitor.get("/metrics").text
            assert "\nholdfast_replica_lag_seconds 0.0\n" in visitor.get("/metrics").text
        finally:
            site.close()


@pytest.mark.slow
def test_a_standby_serves_lists_while_it_keeps_up(folder, monkeypatch):
    """A real standby: paused in its replay, continued, and killed."""
    monkeypatch.setattr(replica_module, "CHECK_INTERVAL_S", 0.0)
    primary, standby = PostgresServer(folder / "a", port=0), PostgresServer(folder / "b", port=0)
    with primary:
        url = primary.create_database("shop")
        with Holdfast(url) as app, Holdfast(url) as other:
            app.remote("add").enqueue(1, 2)
            primary.copy_to(standby.data)
            with standby:
                site = dashboard(app, token="t" * 32, read_url=standby.url_of("shop"))
                visitor = Visitor(site, token="t" * 32)

                def listed():
                    answer = visitor.get("/api/v1/runs")
                    return len(answer.json["runs"]), answer.headers.get(LAG_HEADER.lower())

                other.remote("add").enqueue(2, 3)
                wait_until(lambda: listed() == (2, "0.0"))
                with psycopg.connect(standby.url_of("shop"), autocommit=True) as connection:
                    connection.execute("select pg_wal_replay_pause()")
                    other.remote("add").enqueue(3, 4)
                    count, lag = listed()
                    assert count == 2
                    assert lag is not None, "another process's change may be missing for a while"
                    assert visitor.post("/api/v1/runs", {"task": "add", "args": [5, 6], "remote": True}).status in (
                        200,
                        201,
                    )
                    assert listed() == (4, None), "what was done here never is"
                    connection.execute("select pg_wal_replay_resume()")
                wait_until(lambda: listed() == (4, "0.0"))
                standby.kill()
                assert listed() == (4, None)
                site.close()


def test_a_control_reads_the_position_of_its_server(postgres_url):
    with Holdfast(postgres_url) as app:
        app.store.prepare()
        before = Control(app.store).upkeep.wal_position()
        app.remote("add").enqueue(1)
        after = Control(app.store).upkeep.wal_position()
    assert after.bytes > before.bytes
    assert before.replayed_at is None
