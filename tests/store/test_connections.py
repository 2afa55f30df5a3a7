"""Managed connections: retries after conflicts, reconnects after losses, pauses between refused attempts."""

from __future__ import annotations

import socket
import stat
import threading
from itertools import pairwise
from pathlib import Path

import apsw
import psycopg
import pytest

from holdfast.database import Conflict, ConnectionLost, DataFault, base, open_database
from holdfast.database import sqlite_connection as sqlite_module
from holdfast.database.statements import Statement
from holdfast.errors import StoreUnavailable
from holdfast.store import Store
from tests.support.store_harness import StoreHarness


@pytest.fixture
def postgres(postgres_url):
    harness = StoreHarness(postgres_url)
    harness.store.prepare()
    yield harness
    harness.close()


def plain(sql, **values):
    return Statement("test", sql, tuple(values))


# Conflicts


def test_a_serialization_failure_is_tried_again(postgres):
    id = postgres.add()
    tries = []

    def work(connection):
        tries.append(1)
        connection.execute_script("begin isolation level repeatable read")
        try:
            connection.execute(plain("select 1 from holdfast.runs"), {})
            if len(tries) == 1:  # someone else changes what was read
                with psycopg.connect(postgres.url) as other:
                    other.execute("update holdfast.runs set priority = 1")
            connection.execute(plain("update holdfast.runs set priority = priority + 10"), {})
            connection.commit()
        except Exception:
            connection.rollback()
            raise

    postgres.store.database.connection("client").run(work)
    assert (len(tries), postgres.row(id)["priority"]) == (2, 11)


def test_a_deadlock_is_tried_again_and_both_go_through(postgres):
    first, second = postgres.add(), postgres.add()
    change = "update holdfast.runs set priority = priority + 1 where id = cast($1 as uuid)"
    tries = []
    other = psycopg.connect(postgres.url, options="-c deadlock_timeout=60s", cursor_factory=psycopg.RawCursor)

    def other_side():
        other.execute(change, [first])  # waits for us, and never gives up first
        other.commit()

    thread = threading.Thread(target=other_side)

    def work(connection):
        tries.append(1)
        with connection.transaction():
            connection.execute(plain(change, id=first), {"id": first})
            if len(tries) == 1:
                other.execute(change, [second])
                thread.start()
            connection.execute(plain(change, id=second), {"id": second})

    postgres.store.database.connection("client").run(work)
    thread.join(30)
    other.close()
    assert len(tries) > 1, "there was no deadlock"  # we may be first again, and then there is another one
    assert [postgres.row(id)["priority"] for id in (first, second)] == [2, 2]


def test_a_lasting_conflict_is_raised_as_unavailable(postgres):
    tries = []

    def work(connection):
        tries.append(1)
        raise Conflict("again")

    with pytest.raises(StoreUnavailable, match="again"):
        postgres.store.database.connection("client").run(work)
    assert len(tries) == base.MAX_CONFLICT_ATTEMPTS


def test_a_busy_sqlite_file_is_tried_again(sqlite_url, tmp_path, monkeypatch):
    monkeypatch.setattr(sqlite_module, "BUSY_TIMEOUT_S", 0.02)
    harness = StoreHarness(sqlite_url)
    harness.store.prepare()
    other = apsw.Connection(str(tmp_path / "holdfast.db"))
    other.execute("begin immediate")
    tries = []

    def work(connection):
        tries.append(1)
        if len(tries) == 3:
            other.execute("rollback")
        with connection.transaction():
            return len(tries)

    assert harness.store.database.connection("client").run(work) == 3
    other.close()
    harness.close()


def test_a_sqlite_file_that_stays_busy_is_unavailable_with_the_reason(sqlite_url, tmp_path, monkeypatch):
    monkeypatch.setattr(sqlite_module, "BUSY_TIMEOUT_S", 0.001)
    harness = StoreHarness(sqlite_url)
    harness.store.prepare()
    harness.lane()
    other = apsw.Connection(str(tmp_path / "holdfast.db"))
    other.execute("begin immediate")
    with pytest.raises(StoreUnavailable, match="another process is writing"):
        harness.add()
    other.execute("rollback")
    assert harness.state(harness.add()) == "ready"
    other.close()
    harness.close()


# Losses


def terminate(harness):
    """Terminate all connections of Holdfast on the server."""
    with psycopg.connect(harness.url, autocommit=True) as other:
        return other.execute(
            "select count(pg_terminate_backend(pid, 5000)) from pg_stat_activity"
            " where datname = current_database() and application_name like 'holdfast %'"
        ).fetchone()[0]


def test_a_connection_that_the_server_ended_is_opened_anew(postgres):
    assert terminate(postgres) >= 1
    assert postgres.state(postgres.add()) == "ready"


def test_a_transaction_whose_connection_was_lost_is_repeated_as_a_whole(postgres):
    tries = []

    def work(tx):
        tries.append(1)
        tx.execute("add_lanes", rows='[{"queue":"q","task":"t"}]')
        if len(tries) == 1:
            assert terminate(postgres) >= 1
        tx.execute("add_lanes", rows='[{"queue":"q","task":"u"}]')

    postgres.store.enqueuer._transaction("client", work)
    assert len(tries) == 2
    assert postgres.sql("select queue, task from {schema}lanes order by task") == [("q", "t"), ("q", "u")]


def test_a_connection_lost_twice_in_one_call_is_raised_to_the_caller(postgres):
    tries = []

    def work(connection):
        tries.append(1)
        terminate(postgres)
        connection.execute(plain("select 1"), {})

    with pytest.raises(ConnectionLost):
        postgres.store.database.connection("client").run(work)
    assert len(tries) == base.MAX_LOSS_ATTEMPTS
    assert postgres.state(postgres.add()) == "ready"


@pytest.mark.parametrize("code", ["54000", "54001", "22P05"])
def test_a_value_too_large_for_postgres_is_a_data_fault(postgres, code):
    """The connection is intact, and a retry would fail in the same way."""
    tries = []

    def work(connection):
        tries.append(connection)
        connection.execute_script(f"do $$ begin raise exception 'too much' using errcode = '{code}'; end $$")

    with pytest.raises(DataFault):
        postgres.store.database.connection("client").run(work)
    assert len(tries) == 1


def test_an_error_in_the_middle_of_a_transaction_leaves_nothing_of_it_and_keeps_the_connection(harness):
    harness.store.prepare()
    line = harness.store.database.connection("client")
    connection = line.run(lambda connection: connection)

    class Stop(Exception):
        pass

    def work(tx):
        tx.execute("add_lanes", rows='[{"queue":"q","task":"t"}]')
        raise Stop

    with pytest.raises(Stop):
        harness.store.enqueuer._transaction("client", work)
    assert harness.rows("lanes") == 0
    assert harness.state(harness.add()) == "ready", "the line is fit for use"
    assert line.run(lambda connection: connection) is connection


def test_after_an_interrupt_the_connection_is_opened_anew(harness):
    harness.store.prepare()
    line = harness.store.database.connection("client")
    connection = line.run(lambda connection: connection)

    def work(tx):
        tx.execute("add_lanes", rows='[{"queue":"q","task":"t"}]')
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        harness.store.enqueuer._transaction("client", work)
    assert harness.rows("lanes") == 0
    assert line.run(lambda connection: connection) is not connection


def test_a_connection_that_was_lost_while_a_transaction_held_it_is_opened_anew(sqlite_url):
    harness = StoreHarness(sqlite_url)
    harness.store.prepare()
    harness.store.database.connection("client").run(lambda connection: connection.close())
    with pytest.raises(ConnectionLost), harness.store.database.transaction():
        pass
    with harness.store.database.transaction() as connection:
        assert connection.execute("select 1") == [(1,)]
    harness.close()


def test_a_connection_lost_inside_a_transaction_is_not_reopened_before_its_end(sqlite_url):
    """Otherwise the rest of the transaction would be committed without its beginning."""
    harness = StoreHarness(sqlite_url)
    harness.store.prepare()
    database = harness.store.database
    with pytest.raises(ConnectionLost), database.transaction():
        database.connection("client").run(lambda connection: connection.close())
        with pytest.raises(ConnectionLost), database.transaction():
            pass
        with pytest.raises(ConnectionLost):
            harness.lane()
    assert harness.rows("lanes") == 0
    harness.close()


class Time:
    """Replaces the time module of the managed connection."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


def test_connection_attempts_to_a_refusing_server_are_a_second_apart(monkeypatch):
    clock = Time()
    monkeypatch.setattr(base, "time", clock)
    asked = []
    listener = socket.create_server(("127.0.0.1", 0))

    def refuse():
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            asked.append(clock.now)
            client.close()

    threading.Thread(target=refuse, daemon=True).start()
    url = f"postgresql://u@127.0.0.1:{listener.getsockname()[1]}/db?sslmode=disable&gssencmode=disable"
    store = Store(open_database(url, "holdfast"))
    for _ in range(35):
        with pytest.raises(StoreUnavailable, match="cannot connect to"):
            store.lanes.refresh()
        clock.now += 0.1
    assert len(asked) == 4
    assert all(later - earlier >= 1.0 for earlier, later in pairwise(asked))
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


def test_each_purpose_has_its_own_connection_on_postgres_except_reads(postgres):
    line = postgres.store.database.connection
    assert line("client") is line("client") is line("read")
    assert len({line(name) for name in ("client", "claim", "commit", "heartbeat")}) == 4


def test_sqlite_has_one_writing_connection_and_others_for_heartbeat_and_reads(sqlite_url):
    harness = StoreHarness(sqlite_url)
    line = harness.store.database.connection
    assert line("client") is line("claim") is line("commit")
    assert len({line(name) for name in ("client", "heartbeat", "read")}) == 3
    harness.close()


# Settings


def test_a_database_whose_default_is_serializable_works_and_loses_nothing(postgres_url):
    name = psycopg.conninfo.conninfo_to_dict(postgres_url)["dbname"]
    with psycopg.connect(postgres_url, autocommit=True) as owner:
        owner.execute(f"alter database {name} set default_transaction_isolation = 'serializable'")
    harness = StoreHarness(postgres_url)
    harness.store.prepare()
    assert harness.sql("show transaction_isolation") == [("read committed",)]
    ids: list[str] = []
    gate = threading.Barrier(8)

    def enqueue(n):
        store = harness.another_store()
        run = harness.new(key=f"k{n % 2}", unique="u" if n % 4 == 0 else None)
        gate.wait()
        ids.append(store.enqueuer.enqueue([run])[0])

    threads = [threading.Thread(target=enqueue, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ids) == 8
    assert len(set(ids)) == harness.rows("runs") == 2
    harness.session("w")
    claims = harness.claim("w", 8)
    assert [harness.end("w", claim) for claim in claims] == [True, True]
    harness.close()


def test_transactions_are_read_committed_whatever_the_url_says(postgres_url):
    harness = StoreHarness(f"{postgres_url}&options=-c%20default_transaction_isolation%3Dserializable")
    seen = []
    harness.store.prepare()

    def work(connection):
        with connection.transaction():
            seen.append(connection.execute(plain("show transaction_isolation"), {}))

    harness.store.database.connection("client").run(work)
    assert seen == [[("read committed",)]]
    harness.close()


def test_connections_have_timeouts_of_their_own(postgres):
    postgres.store.set_idle_transaction_timeout(7.0)
    line = postgres.store._context.connection("commit")
    names = ("idle_in_transaction_session_timeout", "lock_timeout", "statement_timeout", "jit", "application_name")
    shown = [line.run(lambda c, name=name: c.execute(plain(f"show {name}"), {}))[0][0] for name in names]
    assert shown == ["7s", "10s", "30s", "off", "holdfast commit"]


def test_a_transaction_left_idle_is_ended_by_the_server_and_repeated(postgres):
    postgres.store.set_idle_transaction_timeout(0.05)
    tries = []

    def work(tx):
        tries.append(1)
        tx.execute("list_lanes")
        if len(tries) == 1:
            with psycopg.connect(postgres.url, autocommit=True) as other:
                while other.execute(
                    "select 1 from pg_stat_activity where application_name = 'holdfast commit'"
                    " and datname = current_database()"
                ).fetchone():
                    pass
        tx.execute("list_lanes")

    postgres.store.enqueuer._transaction("commit", work)
    assert len(tries) == 2


@pytest.mark.no_tables
def test_a_new_sqlite_file_is_for_its_owner_only(sqlite_url, tmp_path):
    harness = StoreHarness(sqlite_url)
    harness.add()
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in Path(tmp_path).iterdir()}
    assert modes == dict.fromkeys(("holdfast.db", "holdfast.db-wal", "holdfast.db-shm", "holdfast.db-lock"), 0o600)
    harness.close()


@pytest.mark.parametrize("purpose", ["client", "heartbeat", "read"])
def test_sqlite_writes_a_wal_and_syncs_it_fully(sqlite_url, purpose):
    harness = StoreHarness(sqlite_url)
    harness.store.prepare()
    line = harness.store.database.connection(purpose)
    pragmas = ("journal_mode", "synchronous")
    assert [line.run(lambda c, it=it: c.execute(plain(f"pragma {it}"), {}))[0][0] for it in pragmas] == ["wal", 2]
    harness.close()


def test_a_sqlite_database_in_memory_works():
    harness = StoreHarness("sqlite:///:memory:")
    harness.session("w")
    assert harness.end("w", harness.running("w"))
    harness.close()


def test_a_sqlite_database_in_memory_outlives_the_loss_of_its_connection():
    """As after a call that took too long and was aborted."""
    harness, other = StoreHarness("sqlite:///:memory:"), StoreHarness("sqlite:///:memory:")
    harness.session("w")
    harness.add()

    def lose(connection):
        raise ConnectionLost("cut")

    with pytest.raises(ConnectionLost):
        harness.store.database.connection("commit").run(lose)
    assert len(harness.claim("w", 1)) == 1
    other.session("w")
    assert not other.claim("w", 1), "each has its own"
    harness.close()
    other.close()


def test_no_thread_opens_a_sqlite_file_while_the_process_forks(sqlite_url, monkeypatch):
    """Not even on a new connection: the child would believe that it holds the file's locks."""
    database = open_database(sqlite_url, "holdfast")
    opened, open_file = threading.Event(), database._open
    monkeypatch.setattr(database, "_open", lambda *given: (opened.set(), open_file(*given))[1])
    thread = threading.Thread(target=lambda: database.connection("client").run(lambda connection: None))
    database.before_fork()
    try:
        thread.start()
        assert not opened.wait(0.2)
    finally:
        database.after_fork(in_child=False)
    thread.join(30)
    assert opened.is_set()
    database.close()
