"""The doctor's findings on real and fabricated databases."""

from __future__ import annotations

import subprocess
import sys

import psycopg
import pytest
from msgspec.structs import replace

from holdfast.control import health_checks
from holdfast.control.doctor import Doctor
from holdfast.control.tasks import TaskInfo
from holdfast.control.workers import WorkerInfo
from holdfast.model.clock import to_datetime
from holdfast.store.admin import FileFacts, ServerFacts, SnapshotHolder, TableBloat
from holdfast.store.sessions import WakeAddress
from holdfast.task.registry import Registry
from tests.support.store_harness import DAY, SECOND, StoreHarness
from tests.support.wait_until import wait_until

pytestmark = pytest.mark.no_tables

SERVER = ServerFacts(100, 20, "on", "on", "on", "on", 0, 0.0, "16.1", 2)
FILE = FileFacts("3.54.1", "wal", 2**20, 0, 0, 0o600)
WORKER = WorkerInfo("s", "web1", "working", 30.0, to_datetime(0), None, 10, 0, ["task"])


@pytest.fixture
def doctor(harness):
    harness.store.prepare()
    return Doctor(harness.store, Registry(), lambda: harness.clock() / SECOND)


@pytest.fixture
def postgres(postgres_url):
    """A harness on PostgreSQL only."""
    harness = StoreHarness(postgres_url)
    harness.store.prepare()
    yield harness
    harness.close()


@pytest.fixture
def on_postgres(postgres):
    return Doctor(postgres.store, Registry(), lambda: postgres.clock() / SECOND)


def codes(examination):
    """Findings, without those of every test server."""
    return [finding.code for finding in examination.findings if finding.code != "durability"]


def the(examination, code):
    (found,) = [finding for finding in examination.findings if finding.code == code]
    assert found.what
    assert found.means
    assert found.do
    return found


def test_healthy_database_has_no_findings(doctor):
    examination = doctor.examine()
    assert codes(examination) == []
    assert {"schema", "workers and runs", "unknown tasks"} <= set(examination.looked_at)


def test_tables_that_arent_there_or_are_behind_are_wrong(harness):
    bare = Doctor(harness.another_store(migrate=False), Registry())
    found = bare.examine()
    assert (codes(found), found.well) == (["schema"], False)
    harness.store.prepare()
    harness.sql("update {schema}meta set value = '3' where name = 'schema'")
    assert "version 3" in the(bare.examine(), "schema").what


def test_tables_that_are_ahead_are_wrong(harness, doctor):
    harness.sql("update {schema}meta set value = '99' where name = 'oldest_code'")
    assert "newer" in the(doctor.examine(), "schema").do


def test_ready_runs_without_a_worker_are_wrong(harness, doctor):
    harness.add_many(3)
    found = doctor.examine()
    assert the(found, "no_worker").data == {"ready": 3}
    assert not found.well


def test_unrecovered_runs_of_dead_workers_are_reported(harness, doctor, clock):
    harness.session("w")
    harness.running("w")
    clock.advance(100)
    assert the(doctor.examine(), "stuck").data["runs"] == 1


def test_overdue_scheduled_run_is_reported(harness, doctor, clock):
    harness.add(delay=10 * SECOND)
    clock.advance(200)
    harness.session("w")
    assert the(doctor.examine(), "overdue").data == {"seconds": 190}


def say(harness, session, info):
    harness.store.sessions.open(session, f"worker {session}", DAY, info)


def test_tasks_and_queues_that_no_worker_serves_are_named(harness, doctor):
    say(harness, "w", '{"queues": ["default", "quiet"], "concurrency": 5, "tasks": ["known"]}')
    harness.add("known")
    harness.add_many(2, task="unknown")
    harness.add("known", queue="elsewhere")
    harness.add("known", queue="quiet")
    harness.store.queues.pause(["quiet"])
    found = doctor.examine()
    assert the(found, "unknown_task").data == {"task": "unknown", "queue": "default", "runs": 2}
    assert the(found, "no_queue").data == {"queue": "elsewhere", "runs": 1}
    assert the(found, "paused").level == "note"
    assert found.findings[-1].level == "note", "the worst first"


def test_test_server_is_reported_as_not_durable(on_postgres):
    assert "synchronous_commit" in the(on_postgres.examine(), "durability").data["settings"]


def test_clock_skew_is_reported(postgres):
    for ahead, level in ((0.0, None), (5.0, "note"), (-600.0, "wrong")):
        doctor = Doctor(postgres.store, Registry(), lambda ahead=ahead: postgres.clock() / SECOND - ahead)
        found = [finding.level for finding in doctor.examine().findings if finding.code == "clock"]
        assert found == ([] if level is None else [level])


def test_old_snapshot_names_its_holder(postgres, on_postgres, monkeypatch):
    monkeypatch.setattr(health_checks, "MAX_SNAPSHOT_AGE_S", 0.0)
    with psycopg.connect(postgres.url, application_name="nightly report") as report:
        report.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        report.execute("select count(*) from holdfast.runs")
        found = [f for f in on_postgres.examine().findings if f.data.get("application") == "nightly report"]
        (culprit,) = found
        assert culprit.code == "snapshot"
        assert culprit.data["pid"] == report.info.backend_pid
        assert culprit.data["state"] == "idle in transaction"
        assert "select count(*) from holdfast.runs" in culprit.what
        assert str(report.info.backend_pid) in culprit.do
        assert culprit.data["seconds"] >= 0
    monkeypatch.undo()
    assert "snapshot" not in codes(on_postgres.examine()), "and a young one is none"


def test_worker_without_listener_is_reported(postgres, on_postgres):
    """A worker behind a pooler knows that no notification reaches it."""
    postgres.session("w", lease=1e6)
    assert "listener" not in codes(on_postgres.examine())
    postgres.store.sessions.open("pooled", "w", 10**12, "{}", None, WakeAddress("", "group"))
    assert the(on_postgres.examine(), "listener").data == {"workers": 2, "listeners": 1}


def test_dead_rows_are_reported(postgres, on_postgres, monkeypatch):
    monkeypatch.setattr(health_checks, "MAX_DEAD_ROWS", 10)
    postgres.sql("alter table {schema}runs set (autovacuum_enabled = off)")
    postgres.add_many(30)
    for _ in range(3):
        postgres.sql("update {schema}runs set priority = priority + 1")
    postgres.sql("select pg_stat_force_next_flush()")
    found = wait_until(lambda: [f for f in on_postgres.examine().findings if f.code == "bloat"])
    assert found[0].data["table"] == "runs"
    assert found[0].data["dead"] >= 60


def test_connections_are_counted(on_postgres, monkeypatch):
    monkeypatch.setattr(health_checks, "MAX_CONNECTION_SHARE", 0.0)
    assert the(on_postgres.examine(), "connections").data["connections"] >= 1


def test_what_retention_costs_and_whether_pruning_keeps_up(doctor, harness, monkeypatch):
    assert {"retention", "pruning"}.isdisjoint(codes(doctor.examine()))
    monkeypatch.setattr(health_checks, "MANY_RUNS", 10)
    monkeypatch.setattr(health_checks, "MAX_EXPIRED", 4)
    harness.add_many(10)
    finding = the(doctor.examine(), "retention")
    assert (finding.level, finding.data["runs"], finding.data["expired"]) == ("note", 10, 0)
    assert finding.data["bytes"] > 10_000
    harness.sql("update {schema}runs set state = 'done', finished_at = 1, expires_at = 1 where seq > 5")
    assert the(doctor.examine(), "pruning").data == {"expired": 5}


def test_lost_workers_of_the_last_day_are_named_with_their_runs(doctor, harness):
    harness.session("w1")
    for _ in range(3):
        harness.running("w1")
    harness.session("w2")
    harness.clock.advance(61)
    harness.session("alive", lease=10 * 86_400)
    harness.recover("w1", "w2")
    finding = the(doctor.examine(), "lost_workers")
    assert finding.level == "note"
    assert finding.what.startswith("2 workers lost in the last 24 hours; 3 runs requeued; last: worker w1 at ")
    assert [(each["session"], each["requeued"]) for each in finding.data["workers"]] == [("w1", 3), ("w2", 0)]
    harness.clock.advance(86_401)
    assert "lost_workers" not in codes(doctor.examine())


@pytest.mark.parametrize(
    ("facts", "workers", "code"),
    [
        (SERVER, [WORKER], None),
        (SERVER._replace(standby=1), [], "standby"),
        (SERVER._replace(fsync="off"), [], "durability"),
        (SERVER._replace(autovacuum="off"), [], "autovacuum"),
        (SERVER._replace(connections=81), [], "connections"),
        (SERVER._replace(listeners=50), [WORKER] * 34, "connections"),
        (SERVER, [WORKER] * 3, "listener"),
        (SERVER, [replace(WORKER, state="dead")] * 3, None),
        (SERVER._replace(notifications=0.6), [], "notifications"),
    ],
)
def test_server_facts_lead_to_findings(facts, workers, code):
    assert [finding.code for finding in health_checks.check_server(facts, workers)] == ([] if code is None else [code])


@pytest.mark.parametrize(
    ("facts", "code"),
    [
        (FILE, None),
        (FILE._replace(journal_mode="delete"), "journal"),
        (FILE._replace(wal_size=2**30), "wal"),
        (FILE._replace(writer=(4711, 0.2)), None),
        (FILE._replace(writer=(4711, 3.2)), "writer"),
        (FILE._replace(lost_processes=(4711,)), "replaced"),
        (FILE._replace(size=2**30, free=2**29 + 1), "free"),
        (FILE._replace(mode=0o644), "permissions"),
        (FILE._replace(journal_mode="memory", mode=None), None),
    ],
)
def test_file_facts_lead_to_findings(facts, code):
    assert [finding.code for finding in health_checks.check_file(facts)] == ([] if code is None else [code])


def test_facts_of_a_real_file(tmp_path):
    harness = StoreHarness(f"sqlite:///{tmp_path / 'holdfast.db'}")
    harness.add()
    facts = harness.store.health.file()
    assert (facts.journal_mode, facts.mode) == ("wal", 0o600)
    assert facts.size > 0
    assert facts.wal_size > 0
    harness.close()


def test_a_process_that_has_a_deleted_file_open_is_named(tmp_path):
    path = tmp_path / "holdfast.db"
    program = (
        f"from holdfast import Holdfast; app = Holdfast('sqlite:///{path}'); app.runs(); print(1, flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        other.stdout.readline()
        for name in ("holdfast.db", "holdfast.db-wal", "holdfast.db-shm"):
            (tmp_path / name).unlink()
        harness = StoreHarness(f"sqlite:///{path}")
        harness.store.prepare()
        examination = Doctor(harness.store, Registry()).examine()
        harness.close()
        other.communicate("\n")
    assert (codes(examination), examination.well) == (["replaced"], False)
    assert the(examination, "replaced").data == {"processes": [other.pid]}


def test_file_readable_by_others_is_reported(tmp_path):
    path = tmp_path / "holdfast.db"
    harness = StoreHarness(f"sqlite:///{path}")
    harness.store.prepare()
    doctor = Doctor(harness.store, Registry())
    assert codes(doctor.examine()) == []
    path.chmod(0o644)
    examination = doctor.examine()
    assert (codes(examination), examination.well) == (["permissions"], True)
    assert the(examination, "permissions").data == {"mode": "644"}
    harness.close()


def test_long_wal_is_reported_with_its_reader(tmp_path, monkeypatch):
    monkeypatch.setattr(health_checks, "MAX_WAL_BYTES", 0)
    harness = StoreHarness(f"sqlite:///{tmp_path / 'holdfast.db'}")
    harness.add()
    examination = Doctor(harness.store, Registry()).examine()
    assert not examination.well
    assert the(examination, "wal").data["bytes"] > 0
    harness.close()


def test_prepared_transactions_and_slots_hold_snapshots_too():
    holders = [
        SnapshotHolder("prepared", None, "gid-7", "ada", 900 * SECOND, None, None),
        SnapshotHolder("slot", None, "standby1", None, None, "inactive", None),
        SnapshotHolder("transaction", 7, "web", "ada", SECOND, "active", "select 1"),
    ]
    prepared, slot = health_checks.check_holders(holders)
    assert "gid-7" in prepared.do
    assert "standby1" in slot.do


def test_a_table_with_many_dead_rows_is_bloated_and_one_with_few_isnt():
    tables = [TableBloat("runs", 10, 200_000, None), TableBloat("history", 300_000, 200_000, 5 * SECOND)]
    assert [finding.data["table"] for finding in health_checks.check_bloat(tables)] == ["runs"]


def test_contradictory_task_settings_are_reported():
    task = TaskInfo("shop.charge", (), "default", 0, "loop", 3, 30.0, 3600.0, None)
    wrong = replace(task, name="shop.refund", timeout=60.0, deadline=60.0)
    assert [finding.data["task"] for finding in health_checks.check_tasks([task, wrong])] == ["shop.refund"]
