"""Tables are created, migrated and checked once, whichever process comes first."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from holdfast.database import migrate, open_database, postgres
from holdfast.database.migrate import CODE_VERSION, Migration, migrations, newest_version
from holdfast.errors import SchemaAhead, SchemaBehind, StoreError
from holdfast.store import Store
from tests.support.store_harness import StoreHarness
from tests.support.wait_until import wait_until

pytestmark = pytest.mark.no_tables

STARTER = """
import sys
from holdfast.database import open_database
from holdfast.store import Store
store = Store(open_database(sys.argv[1], "holdfast"))
print("here", flush=True)
sys.stdin.readline()
applied = store.prepare()
store.lanes.refresh()
print(len(applied))
"""


def test_eight_processes_that_start_together_migrate_once(database_url, harness):
    """They wait for a common signal, so that they truly race on the empty database."""
    pipes: dict[str, Any] = {"stdin": -1, "stdout": -1, "stderr": -1, "text": True}
    starters = [subprocess.Popen([sys.executable, "-c", STARTER, database_url], **pipes) for _ in range(8)]
    assert [process.stdout.readline() for process in starters] == ["here\n"] * 8
    for process in starters:
        process.stdin.write("\n")
        process.stdin.flush()
    outcomes = [(process.communicate(timeout=60), process.returncode) for process in starters]
    assert [code for (_, faults), code in outcomes if code != 0 or faults] == [], outcomes
    assert sorted(int(said) for (said, _), _ in outcomes) == [0] * 7 + [len(migrations())]
    assert harness.store.prepare() == []
    assert dict(harness.sql("select name, value from {schema}meta"))["schema"] == str(newest_version())


def test_the_first_use_creates_the_tables(harness):
    assert harness.store.prepare() == [migration.name for migration in migrations()]
    assert harness.store.prepare() == []
    assert harness.another_store().prepare() == []


def test_without_migrate_missing_tables_are_an_error_that_says_what_to_do(harness):
    store = harness.another_store(migrate=False)
    with pytest.raises(SchemaBehind, match=r"don't exist yet.*: run `holdfast migrate`$"):
        store.lanes.refresh()
    harness.store.prepare()
    assert store.lanes.refresh() == {}


def set_meta(harness, name, value):
    harness.sql("update {schema}meta set value = :value where name = :name", name=name, value=str(value))


def test_without_migrate_older_tables_are_an_error_with_both_versions(harness, monkeypatch):
    harness.store.prepare()
    later = Migration(newest_version() + 1, "9999_later.sql", "create table {schema}later (x int);")
    monkeypatch.setattr(migrate, "migrations", lambda: (*migrations(), later))
    with pytest.raises(SchemaBehind, match=f"version {newest_version() - 1}.*needs version {newest_version()}"):
        harness.another_store(migrate=False).prepare()


def test_tables_that_need_newer_code_are_refused(harness):
    harness.store.prepare()
    set_meta(harness, "oldest_code", CODE_VERSION + 1)
    with pytest.raises(SchemaAhead, match=f"code version {CODE_VERSION + 1}.*upgrade"):
        harness.another_store().lanes.refresh()
    with pytest.raises(SchemaAhead):
        harness.another_store(migrate=False).lanes.refresh()


def test_newer_tables_that_old_code_can_live_with_work(harness):
    harness.store.prepare()
    set_meta(harness, "schema", newest_version() + 7)
    store = harness.another_store()
    assert store.prepare() == []
    run = harness.new()
    assert store.enqueuer.enqueue([run]) == [run.id]
    assert dict(harness.sql("select name, value from {schema}meta"))["schema"] == str(newest_version() + 7)


def test_only_the_missing_migrations_are_applied(harness, monkeypatch):
    harness.store.prepare()
    kept = harness.add()
    known = migrations()
    later = Migration(newest_version() + 1, "9999_later.sql", "-- oldest code: 1\ncreate table {schema}later (x int);")
    monkeypatch.setattr(migrate, "migrations", lambda: (*known, later))
    assert harness.another_store().prepare() == ["9999_later.sql"]
    assert harness.rows("later") == 0
    assert harness.state(kept) == "ready"
    assert dict(harness.sql("select name, value from {schema}meta"))["schema"] == str(later.number)


def test_an_interrupted_migration_is_rolled_back(database_url, monkeypatch):
    known = migrations()
    broken = Migration(newest_version() + 1, "9999_broken.sql", "create table {schema}half (x int); create nonsense;")
    monkeypatch.setattr(migrate, "migrations", lambda: (*known, broken))
    store = Store(open_database(database_url, "holdfast"))
    with pytest.raises(StoreError):
        store.prepare()
    line = store.database.connection("client")
    for table in ("meta", "runs", "half"):
        assert not line.run(lambda connection, it=table: store.database.table_exists(connection, it)), table
    monkeypatch.setattr(migrate, "migrations", lambda: known)
    assert store.prepare() == [migration.name for migration in known]
    store.close()


def test_an_interrupted_migration_leaves_older_tables_unchanged(harness, monkeypatch):
    kept = harness.add()
    known = migrations()
    broken = Migration(newest_version() + 1, "9999_broken.sql", "alter table {schema}runs add x int; create nonsense;")
    monkeypatch.setattr(migrate, "migrations", lambda: (*known, broken))
    with pytest.raises(StoreError):
        harness.another_store().prepare()
    assert dict(harness.sql("select name, value from {schema}meta"))["schema"] == str(known[-1].number)
    assert harness.state(kept) == "ready"


def test_a_migration_may_take_longer_than_other_statements(postgres_url, monkeypatch):
    shown = "select current_setting('statement_timeout') as statement, current_setting('lock_timeout') as lock"
    known = migrations()
    later = Migration(newest_version() + 1, "9999_later.sql", f"create table {{schema}}later as {shown};")
    monkeypatch.setattr(migrate, "migrations", lambda: (*known, later))
    harness = StoreHarness(postgres_url)
    harness.store.prepare()
    assert harness.sql("select statement, lock from {schema}later") == [("0", "10s")]
    assert harness.sql(shown) == [("30s", "10s")]
    harness.close()


def test_a_process_that_starts_waits_for_another_one_that_migrates(postgres_url, monkeypatch):
    monkeypatch.setattr(postgres, "LOCK_TIMEOUT_S", 0.05)
    harness = StoreHarness(postgres_url)
    waits = (
        "select 1 from pg_stat_activity where datname = current_database() and wait_event = 'advisory'"
        " and clock_timestamp() - query_start > interval '0.1 s'"
    )
    with ThreadPoolExecutor() as pool, psycopg.connect(postgres_url) as other:
        other.execute("select pg_advisory_xact_lock(hashtextextended('holdfast migration holdfast', 0))")
        applied = pool.submit(harness.store.prepare)
        with psycopg.connect(postgres_url, autocommit=True) as watcher:
            wait_until(lambda: applied.done() or watcher.execute(waits).fetchone())
        other.rollback()
        assert applied.result(timeout=30) == [migration.name for migration in migrations()]
    harness.close()


def test_migrations_are_numbered_without_gaps_and_say_which_code_they_need():
    numbers = [migration.number for migration in migrations()]
    assert numbers == list(range(1, newest_version() + 1))
    assert migrations()[0].oldest_code == 1
    assert all(migration.oldest_code is None or migration.oldest_code <= CODE_VERSION for migration in migrations())


def test_schemas_of_one_postgres_database_are_independent(postgres_url):
    one, other = (Store(open_database(postgres_url, schema)) for schema in ("one", "Other_2"))
    assert one.prepare() == other.prepare() != []
    assert one.lanes.ids([("q", "t")])
    assert other.lanes.refresh() == {}
    one.close()
    other.close()
