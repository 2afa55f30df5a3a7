"""Queues: pausing keeps claims away, resuming allows them, and both return what they changed."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest

from holdfast.database.sqlite import (
    BUSY_POLL_INTERVAL_S,
    BUSY_POLLS,
    COMMIT_POLL_INTERVAL_S,
    POLL_INTERVAL_S,
    DataVersionPoller,
    SqliteDatabase,
)
from holdfast.database.statements import Statement
from tests.support.store_harness import CANCELLED


def lanes(harness, *queues):
    return [harness.lane("task", queue) for queue in queues]


def test_runs_of_a_paused_queue_stay_ready_and_are_not_claimed(harness):
    harness.session("w")
    paused, other = harness.add(queue="billing"), harness.add(queue="mail")
    assert harness.store.queues.pause(["billing"]) == ["billing"]
    claims = harness.store.claims.claim("w", lanes(harness, "billing", "mail"), 8)
    assert [claim.id for claim in claims] == [other]
    assert harness.state(paused) == "ready"


def test_no_store_claims_after_the_pause_has_committed(harness):
    harness.add(queue="billing")
    harness.session("w")
    asked = lanes(harness, "billing")
    other = harness.another_store()
    assert other.claims.has_ready(asked)
    harness.store.queues.pause(["billing"])
    assert other.claims.claim("w", asked, 1) == []
    assert not other.claims.has_ready(asked)


def test_a_run_enqueued_into_a_paused_queue_waits(harness):
    harness.session("w")
    harness.store.queues.pause(["new queue"])
    harness.add(queue="new queue")
    assert harness.store.claims.claim("w", lanes(harness, "new queue"), 1) == []


def test_a_resumed_queue_is_claimed_from_in_the_old_order(harness):
    harness.session("w")
    ids = [harness.add(queue="billing") for _ in range(3)]
    harness.store.queues.pause(["billing"])
    assert harness.store.queues.resume(["billing"]) == ["billing"]
    assert [claim.id for claim in harness.store.claims.claim("w", lanes(harness, "billing"), 4)] == ids


def test_pause_and_resume_return_only_what_they_changed(harness, clock):
    assert harness.store.queues.pause(["b", "a", "a"]) == ["a", "b"]
    clock.advance(5)
    assert harness.store.queues.pause(["a", "c"]) == ["c"]
    assert harness.store.queues.resume(["a", "never named"]) == ["a"]
    rows = {row.name: row for row in harness.store.queues.list_all()}
    assert {name: row.paused for name, row in rows.items()} == {"a": 0, "b": 1, "c": 1}
    assert rows["c"].paused_at == rows["b"].paused_at + 5_000_000
    assert rows["a"].paused_at is None


def test_a_running_run_of_a_queue_that_is_paused_finishes(harness):
    harness.session("w")
    claim = harness.running("w")
    harness.store.queues.pause(["default"])
    assert harness.end("w", claim)
    assert harness.state(claim.id) == "done"


def test_lanes_of_a_paused_queue_count_as_busy_only_while_something_runs(harness):
    harness.session("w")
    asked = [harness.lane()]
    claim = harness.running("w")
    harness.add()
    harness.store.queues.pause(["default"])
    assert harness.store.claims.has_active(asked)
    harness.end("w", claim)
    assert not harness.store.claims.has_active(asked)
    harness.store.queues.resume(["default"])
    assert harness.store.claims.has_active(asked)


def test_a_scheduled_run_of_a_paused_queue_is_not_active(harness):
    harness.session("w")
    claim = harness.running("w")
    harness.store.actions.cancel(claim.id, CANCELLED)
    harness.store.actions.retry(claim.id)
    asked = [harness.lane()]
    assert harness.row(claim.id)["session"] == "w", "its worker has not let go yet"
    assert harness.store.claims.has_active(asked)
    harness.store.queues.pause(["default"])
    assert not harness.store.claims.has_active(asked)


def test_every_queue_that_was_ever_used_or_paused_is_listed_by_name(harness):
    harness.add(queue="b")
    harness.add(queue="b", task="other")
    harness.store.queues.pause(["c"])
    harness.store.queues.pause(["a"])
    harness.store.queues.resume(["a"])
    assert [row.name for row in harness.store.queues.list_all()] == ["a", "b", "c"]


@pytest.mark.parametrize("name", ["'; drop table runs; --", "with space", "ü☂", "%s $1 :x {y}"])
def test_odd_queue_names_are_paused_like_any_other(harness, name):
    harness.session("w")
    harness.add(queue=name)
    harness.store.queues.pause([name])
    assert harness.store.claims.claim("w", lanes(harness, name), 1) == []


def test_resuming_notifies_listeners(harness):
    harness.session("w")
    harness.store.sessions.mark_idle("w", True)
    harness.store.queues.pause(["default"])
    watch = harness.store.database.change_listener()
    heard: list[bool] = []
    stop = threading.Event()
    watch.wait(0, stop)  # the first look only begins to watch
    listening = threading.Thread(target=lambda: heard.append(watch.wait(30, stop)))
    listening.start()
    began = time.monotonic()
    harness.store.queues.resume(["default"])
    listening.join(30)
    watch.close()
    assert heard == [True]
    assert time.monotonic() - began < 20


def test_an_interrupted_listener_stops_at_once(harness):
    watch = harness.store.database.change_listener()
    stop = threading.Event()
    watch.wait(0, stop)  # the first look only begins to watch
    while watch.wait(0.01, stop):  # what was heard of the beginning
        pass
    listening = threading.Thread(target=watch.wait, args=(3600, stop))
    listening.start()
    stop.set()
    watch.interrupt()
    listening.join(5)
    stopped = not listening.is_alive()
    listening.join()
    watch.close()
    assert stopped


def test_a_listener_polls_less_often_while_its_own_process_writes_constantly():
    class Stop(threading.Event):
        def wait(self, timeout=None):
            paused.append(timeout)
            writer.use_count += writes
            return len(paused) % 10 == 0

    paused: list[float] = []
    writes = 2
    writer = SimpleNamespace(use_count=0)
    line = SimpleNamespace(run=lambda work: (None, 1))
    watch, stop = DataVersionPoller(line, writer), Stop()
    assert watch.wait(60, stop)  # the first look only begins to watch
    assert not watch.wait(60, stop)
    assert paused == [POLL_INTERVAL_S] * BUSY_POLLS + [BUSY_POLL_INTERVAL_S] * (10 - BUSY_POLLS)
    writes = 0
    assert not watch.wait(60, stop)
    assert paused[10:] == [BUSY_POLL_INTERVAL_S] + [POLL_INTERVAL_S] * 9, "a pause, and it looks as ever"


@pytest.mark.parametrize(
    ("uses", "expected"),
    [([0, 0], [COMMIT_POLL_INTERVAL_S] * 2), ([1, 0], [COMMIT_POLL_INTERVAL_S, POLL_INTERVAL_S])],
)
def test_a_reported_write_is_looked_for_at_once_although_this_process_read_before(uses, expected):
    """Its own use of the connection may have been a read; a second one in a row is a write."""

    class Stop(threading.Event):
        def wait(self, timeout=None):
            paused.append(timeout)
            writer.use_count += uses[len(paused) - 1]
            return len(paused) == len(uses)

    class Watch:
        def is_watching(self):
            return True

        def drain(self):
            pass

        def wait(self, _timeout):
            writer.use_count += 1  # a read while it waited
            return True

    paused: list[float] = []
    writer = SimpleNamespace(use_count=0)
    line = SimpleNamespace(run=lambda work: (None, 1))
    listener = DataVersionPoller(line, writer)
    listener._watch, listener._seen = Watch(), (None, 1)
    assert not listener.wait(60, Stop())
    assert paused == expected


def test_a_listener_rarely_mistakes_its_own_writes_for_those_of_others(tmp_path, monkeypatch):
    ours = SqliteDatabase(str(tmp_path / "shared.db"))
    theirs = SqliteDatabase(str(tmp_path / "shared.db"))
    write = Statement("write", "create table if not exists t (n); insert into t values (1)", ())
    watch, stop = ours.change_listener(), threading.Event()

    def written(database: SqliteDatabase) -> bool:
        database.connection("commit").run(lambda connection: connection.execute(write, {}))
        return watch.wait(0, stop)

    monkeypatch.setattr("holdfast.database.sqlite.BUSY_POLL_INTERVAL_S", 3600)
    assert watch.wait(0, stop)  # the first look only begins to watch
    assert not written(ours)
    assert written(theirs)
    assert not written(ours)
    monkeypatch.setattr("holdfast.database.sqlite.BUSY_POLL_INTERVAL_S", 0)
    assert written(ours), "it may as well have been another's"
    for database in (ours, theirs):
        database.close()
