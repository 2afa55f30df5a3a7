"""Queues, workers, tasks and maintenance for operators."""

from __future__ import annotations

import pytest

from holdfast import Holdfast, Retry
from holdfast.control import Control
from holdfast.control.open import empty_control, open_control
from holdfast.database import migrate
from holdfast.database.migrate import newest_version
from holdfast.errors import ConfigError, SchemaBehind
from holdfast.store import admin
from tests.support.store_harness import DAY, SECOND, StoreHarness

pytestmark = pytest.mark.no_tables

# Queues


def test_queues_tell_what_waits_in_them(control, harness, clock):
    harness.session("w")
    harness.running("w")
    harness.add()
    clock.advance(30)
    harness.add()
    harness.add(queue="mail", delay=SECOND)
    control.queues.pause(["mail"])
    default, mail = control.queues.list()
    assert (default.name, default.paused, default.runs) == ("default", False, {"ready": 2, "running": 1})
    assert default.oldest_ready == 30
    assert (mail.name, mail.paused, mail.runs, mail.oldest_ready) == ("mail", True, {"scheduled": 1}, None)
    assert mail.paused_at is not None


def test_held_and_other_unfinished_runs_are_counted_by_queue_and_finished_ones_are_not(control, harness):
    harness.session("w")
    harness.end("w", harness.running("w"))
    harness.running("w")
    harness.add("other")
    held = harness.add()
    harness.sql("update {schema}runs set held = 'quiescing' where id = cast(:id as {uuid})", id=held)
    harness.add(delay=60 * SECOND)
    harness.add(queue="mail")
    queues = control.queues.list()
    assert {queue.name: queue.runs for queue in queues} == {
        "default": {"ready": 2, "running": 1, "scheduled": 1},
        "mail": {"ready": 1},
    }
    assert [queue.at_least for queue in queues] == [[], []]


def test_very_many_runs_of_queues_are_not_counted_and_the_list_says_so(control, harness, monkeypatch):
    for _ in range(3):
        harness.add()
    harness.add(delay=60 * SECOND)
    monkeypatch.setattr(admin, "MAX_INDEX_ENTRIES", 2)
    (queue,) = control.queues.list()
    assert (queue.runs, queue.at_least) == ({"ready": 2, "scheduled": 1}, ["ready"])


def test_pause_and_resume_say_what_they_changed(control):
    assert control.queues.pause(["a", "b"]) == {"a", "b"}
    assert control.queues.pause(["b"]) == set()
    assert control.queues.resume(["a", "c"]) == {"a"}
    assert {queue.name for queue in control.queues.list() if queue.paused} == {"b"}


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 201])
def test_invalid_queue_is_rejected(control, name):
    with pytest.raises(ConfigError, match="a queue"):
        control.queues.pause([name])
    assert control.queues.list() == []


def test_drain_does_not_wait_for_a_paused_queue(database_url):
    with Holdfast(database_url) as app:
        calls = []
        app.task(name="note", queue="mail")(lambda: calls.append("mail"))
        app.task(name="work")(lambda: calls.append("work"))
        control = Control(app.store)
        control.queues.pause(["mail"])
        paused = app.registry.get("note").enqueue()
        app.registry.get("work").enqueue()
        app.worker().drain(timeout=30)
        assert calls == ["work"]
        assert paused.info().state == "ready"
        control.queues.resume(["mail"])
        app.worker().drain(timeout=30)
        assert calls == ["work", "mail"]


def test_idle_worker_serves_a_resumed_queue(database_url):
    with Holdfast(database_url) as app, Holdfast(database_url) as operators:
        task = app.task(name="note", queue="mail")(lambda: "done")
        control = Control(operators.store)
        control.queues.pause(["mail"])
        run = task.enqueue()
        with app.worker():
            control.queues.resume(["mail"])
            assert run.result(timeout=30) == "done"


# Workers


def test_workers_are_listed_with_what_they_hold_and_dead_ones_as_dead(control, harness, clock):
    harness.store.sessions.open("old", "host:1", 10 * SECOND, '{"queues": ["mail"], "concurrency": 5}')
    clock.advance(1)
    harness.store.sessions.open("young", "host:2", 60 * SECOND, '{"queues": null, "concurrency": 100}')
    harness.running("old")
    clock.advance(20)
    old, young = control.workers.list()
    assert (old.session, old.state, old.runs, old.queues, old.concurrency) == ("old", "dead", 1, ["mail"], 5)
    assert old.lease_left == -11
    assert (young.state, young.runs, young.queues, young.lease_left) == ("working", 0, None, 40)


def test_listening_worker_without_runs_is_idle(control, harness):
    harness.session("w")
    harness.store.sessions.mark_idle("w", True)
    assert [worker.state for worker in control.workers.list()] == ["idle"]
    harness.running("w")
    assert [worker.state for worker in control.workers.list()] == ["working"]


@pytest.mark.parametrize("info", ["{}", "[]", "nonsense"])
def test_reports_of_other_releases_are_tolerated(control, harness, info):
    harness.store.sessions.open("w", "host:1", SECOND, info)
    (worker,) = control.workers.list()
    assert (worker.queues, worker.concurrency) == (None, None)


# Upkeep


def finished(harness, count, **more):
    ids = harness.add_many(count, **more)
    claims = harness.claim("w", 512)
    for claim in claims:
        harness.end("w", claim)
    return ids


def test_prune_deletes_what_is_due_and_leaves_the_rest(control, harness, clock):
    harness.session("w", lease=100 * 86_400)
    finished(harness, 3, keep=DAY)
    finished(harness, 2, keep=10 * DAY)
    harness.add()
    clock.advance(2 * 86_400)
    assert control.upkeep.count_old() == 3
    assert control.upkeep.prune() == 3
    assert harness.rows("runs") == 3
    assert harness.rows("history") == 2
    assert control.upkeep.prune() == 0


def test_prune_older_than_goes_by_the_end_not_by_the_time_to_be_kept(control, harness, clock):
    harness.session("w", lease=100 * 86_400)
    old = finished(harness, 2, keep=300 * DAY)
    unfinished = harness.add("other")
    clock.advance(8 * 86_400)
    young = finished(harness, 1, keep=DAY)
    assert control.upkeep.count_old(7 * 86_400) == 2
    assert control.upkeep.prune(7 * 86_400) == 2
    left = {str(run.id) for run in control.runs.page()}
    assert left == {unfinished, *young}
    assert not left & set(old)


def test_prune_goes_in_batches_and_tells_how_far_it_is(control, harness, clock):
    harness.session("w")
    for _ in range(3):
        finished(harness, 400)
    told = []
    clock.advance(1)
    assert control.upkeep.prune(0, told.append) == 1200
    assert told == [500, 1000, 1200]
    assert harness.rows("history") == 0


def test_running_run_is_not_pruned(control, harness, clock):
    harness.session("w")
    claim = harness.running("w")
    harness.store.actions.cancel(claim.id, '{"code":"cancelled"}')
    clock.advance(60)
    assert control.upkeep.count_old(0) == 0
    assert control.upkeep.prune(0) == 0
    assert harness.state(claim.id) == "cancelled"


def test_a_negative_age_is_refused(control):
    with pytest.raises(ConfigError, match="negative"):
        control.upkeep.prune(-1)


def test_tables_are_created_on_request_only(database_url):
    with open_control(database_url, make=True) as control:
        before = control.upkeep.tables()
        assert before.version == 0
        assert before.pending[0] == "0001_runs.sql"
        with pytest.raises(SchemaBehind, match="holdfast migrate"):
            control.runs.page()
        assert control.upkeep.tables().version == 0
        assert control.upkeep.migrate() == before.pending
        assert control.upkeep.migrate() == []
        assert control.upkeep.tables().version == newest_version()
        assert control.upkeep.tables().pending == []
        assert control.runs.page() == []


def test_opening_creates_no_sqlite_file(sqlite_url, tmp_path):
    with pytest.raises(ConfigError, match=r"SQLite file .* does not exist"):
        open_control(sqlite_url)
    with pytest.raises(ConfigError, match=r"the directory of .* does not exist"):
        open_control(f"sqlite:///{tmp_path}/nowhere/x.db")
    assert list(tmp_path.iterdir()) == []


def test_tables_of_an_older_release_get_the_table_of_queues(database_url, monkeypatch):
    first, *_ = migrate.migrations()
    with monkeypatch.context() as patch:
        patch.setattr(migrate, "migrations", lambda: (first,))
        harness = StoreHarness(database_url)
        harness.store.prepare()
        harness.sql("insert into {schema}lanes (queue, task) values ('default', 'job')")
        harness.sql(
            "insert into {schema}runs (id, lane, priority, state, max_crashes, args, keep, created_at)"
            " values ('01990000-0000-7000-8000-000000000000', 1, 0, 'ready', 3, '[]', 1, 1)"
        )
        harness.close()
    with open_control(database_url) as control:
        assert control.upkeep.tables().pending[0] == "0002_queues.sql"
        with pytest.raises(SchemaBehind, match="version 1"):
            control.queues.list()
        control.upkeep.migrate()
        control.queues.pause(["default"])
        assert [(queue.name, queue.runs) for queue in control.queues.list()] == [("default", {"ready": 1})]


def test_empty_database_shows_nothing():
    with empty_control() as control:
        assert (control.runs.page(), control.queues.list(), control.workers.list()) == ([], [], [])


# Tasks


def test_tasks_are_listed_as_their_authors_declared_them():
    app = Holdfast("sqlite:///:memory:")

    def work() -> None: ...

    app.task(name="b", queue="mail", retry=Retry(max_attempts=7), timeout=30, deadline=60, aliases=["old"])(work)
    app.task(name="a")(test_empty_database_shows_nothing)
    a, b = Control(app.store, app.registry).tasks.list()
    assert (a.name, a.queue, a.run_in, a.max_attempts, a.timeout) == ("a", "default", "thread", 10, None)
    assert (b.name, b.queue, b.max_attempts, b.timeout, b.deadline, b.aliases) == ("b", "mail", 7, 30, 60, ("old",))
    assert a.defined is not None
    assert a.defined.rpartition(":")[0].endswith("tests/control/test_resources.py")
